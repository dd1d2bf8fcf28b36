//! A file of ACLs: Mesos's JSON, read completely or refused with the place of the error.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::action::{Action, Objects, PATHS};
use crate::unique_keys;

/// The maximum number of entries of one list; a longer file is a mistake.
const ENTRIES_MAX: usize = 10_000;

/// The principals or objects of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entity {
    Some(Vec<String>),
    /// Any principal or object.
    Any,
    /// No object is permitted.
    None,
}

/// An entry: these principals, and no others that the entry matches, may act on these objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    pub principals: Entity,
    pub objects: Entity,
}

/// The contents of a file of ACLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acls {
    /// The decision where no entry matches; the daemon's own default when the file does not set it.
    pub permissive: Option<bool>,
    lists: BTreeMap<Action, Vec<Acl>>,
}

/// Errors in a file of ACLs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    #[error("the ACLs are not JSON: {0}")]
    Syntax(String),
    #[error("the ACLs: {0}; merge them, or remove one")]
    Twice(String),
    #[error("{location}: expected {expected}")]
    Shape {
        location: String,
        expected: &'static str,
    },
    #[error("`{key}` is not a list of ACLs{hint}")]
    UnknownList { key: String, hint: String },
    #[error("{location}: unknown key `{key}`; an entry has `principals` and `{object}`")]
    UnknownKey {
        location: String,
        key: String,
        object: &'static str,
    },
    #[error("{location}: the type must be ANY or NONE: single {object} cannot be named")]
    NotWhole {
        location: String,
        object: &'static str,
    },
    #[error("{location}: '{path}' has no authorization; known paths are: {}", PATHS.join(", "))]
    Path { location: String, path: String },
    #[error("{location}: '{role}' is neither a role nor, as `a/%`, all roles below a role")]
    Role { location: String, role: String },
    #[error("`{key}` has more than {ENTRIES_MAX} entries")]
    TooMany { key: String },
}

impl Acls {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, AclError> {
        let value = unique_keys::parse(text).map_err(|error| match error.is_data() {
            true => AclError::Twice(error.to_string()),
            false => AclError::Syntax(error.to_string()),
        })?;
        let root = object(&value, "the ACLs")?;
        let mut acls = Self::default();
        for (key, value) in root {
            if key == "permissive" {
                let decision = value.as_bool().ok_or_else(|| AclError::Shape {
                    location: "permissive".to_owned(),
                    expected: "true or false",
                })?;
                acls.permissive = Some(decision);
                continue;
            }
            // The names from before Mesos 1.0 have no reliable meaning.
            let Some(action) = Action::ALL.iter().find(|action| action.key() == key) else {
                return Err(unknown_list(key));
            };
            let list = entries(*action, value)?;
            acls.lists.insert(*action, list);
        }
        Ok(acls)
    }

    /// The entries for an action, in the order of the file.
    #[must_use]
    pub fn for_action(&self, action: Action) -> &[Acl] {
        self.lists.get(&action).map_or(&[], Vec::as_slice)
    }
}

fn unknown_list(key: &str) -> AclError {
    let hint = match key {
        "set_quotas" | "remove_quotas" => "; Mesos calls it `update_quotas` now".to_owned(),
        "shutdown_frameworks" => "; Mesos calls it `teardown_frameworks` now".to_owned(),
        _ => {
            let shared = |other: &str| {
                let pairs = key.bytes().zip(other.bytes());
                pairs.take_while(|(one, two)| one == two).count()
            };
            let near = Action::ALL.iter().max_by_key(|action| shared(action.key()));
            near.filter(|action| shared(action.key()) >= 4)
                .map(|action| format!("; did you mean `{}`?", action.key()))
                .unwrap_or_default()
        }
    };
    AclError::UnknownList {
        key: key.to_owned(),
        hint,
    }
}

fn object<'a>(value: &'a Value, location: &str) -> Result<&'a Map<String, Value>, AclError> {
    value.as_object().ok_or_else(|| AclError::Shape {
        location: location.to_owned(),
        expected: "an object",
    })
}

fn entries(action: Action, value: &Value) -> Result<Vec<Acl>, AclError> {
    let key = action.key();
    let list = value.as_array().ok_or_else(|| AclError::Shape {
        location: key.to_owned(),
        expected: "a list of entries",
    })?;
    if list.len() > ENTRIES_MAX {
        return Err(AclError::TooMany {
            key: key.to_owned(),
        });
    }
    let mut acls = Vec::with_capacity(list.len());
    for (index, entry) in list.iter().enumerate() {
        let acl = one(action, &format!("{key}[{index}]"), entry)?;
        match acl.objects {
            // One entry for each role, as in Mesos, so that `a` and `a/%` may stand side by side.
            Entity::Some(values) if action.objects() == Objects::Roles => {
                acls.extend(values.into_iter().map(|role| Acl {
                    principals: acl.principals.clone(),
                    objects: Entity::Some(vec![role]),
                }));
            }
            _ => acls.push(acl),
        }
    }
    Ok(acls)
}

fn one(action: Action, location: &str, value: &Value) -> Result<Acl, AclError> {
    let entry = object(value, location)?;
    let object_key = action.object_key();
    if let Some(key) = entry
        .keys()
        .find(|key| *key != "principals" && *key != object_key)
    {
        return Err(AclError::UnknownKey {
            location: location.to_owned(),
            key: key.clone(),
            object: object_key,
        });
    }
    let part = |name: &str| {
        let location = format!("{location}.{name}");
        let value = entry.get(name).ok_or_else(|| AclError::Shape {
            location: location.clone(),
            expected: "an entity: {\"values\": [...]} or {\"type\": \"ANY\"} or {\"type\": \"NONE\"}",
        })?;
        entity(&location, value)
    };
    let acl = Acl {
        principals: part("principals")?,
        objects: part(object_key)?,
    };
    check_objects(action, &format!("{location}.{object_key}"), &acl.objects)?;
    Ok(acl)
}

fn entity(location: &str, value: &Value) -> Result<Entity, AclError> {
    let shape = |expected| AclError::Shape {
        location: location.to_owned(),
        expected,
    };
    let parts = object(value, location)?;
    if parts.keys().any(|key| key != "type" && key != "values") {
        return Err(shape("nothing but `type` and `values`"));
    }
    match parts.get("type").map(Value::as_str) {
        Some(Some("ANY")) => return Ok(Entity::Any),
        Some(Some("NONE")) => return Ok(Entity::None),
        None | Some(Some("SOME")) => {}
        Some(_) => return Err(shape("a type of ANY, NONE or SOME")),
    }
    let values = match parts.get("values") {
        None => return Err(shape("`values`, or a type of ANY or NONE")),
        Some(values) => values.as_array().ok_or_else(|| shape("a list of values"))?,
    };
    let texts = values.iter().map(|value| {
        let text = value.as_str();
        text.map(str::to_owned)
            .ok_or_else(|| shape("values that are strings"))
    });
    Ok(Entity::Some(texts.collect::<Result<_, _>>()?))
}

fn check_objects(action: Action, location: &str, entity: &Entity) -> Result<(), AclError> {
    let Entity::Some(values) = entity else {
        return Ok(());
    };
    let location = || location.to_owned();
    match action.objects() {
        Objects::Whole => Err(AclError::NotWhole {
            location: location(),
            object: action.object_key(),
        }),
        Objects::Paths => match values.iter().find(|path| !PATHS.contains(&path.as_str())) {
            Some(path) => Err(AclError::Path {
                location: location(),
                path: path.clone(),
            }),
            None => Ok(()),
        },
        Objects::Roles => {
            let is_bad = |role: &&String| role.contains('%') && !is_recursive(role);
            match values.iter().find(is_bad) {
                Some(role) => Err(AclError::Role {
                    location: location(),
                    role: role.clone(),
                }),
                None => Ok(()),
            }
        }
        Objects::Exact => Ok(()),
    }
}

/// Whether the role is `a/%` without any other special character.
fn is_recursive(role: &str) -> bool {
    role.strip_suffix("/%")
        .is_some_and(|parent| !parent.is_empty() && !parent.contains('%'))
}

impl Entity {
    /// The common prefix of all roles that this entity matches, if it is `a/%`.
    pub(crate) fn subtree(&self) -> Option<&str> {
        match self {
            Self::Some(values) => match values.as_slice() {
                [role] if is_recursive(role) => role.strip_suffix('%'),
                _ => None,
            },
            Self::Any | Self::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Acls::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn invalid_acl_error_names_its_place() {
        for (text, part) in [
            ("", "not JSON"),
            ("[]", "the ACLs: expected an object"),
            (
                r#"{"permissive":"no"}"#,
                "permissive: expected true or false",
            ),
            (r#"{"run_task":[]}"#, "did you mean `run_tasks`?"),
            (r#"{"set_quotas":[]}"#, "`update_quotas`"),
            (r#"{"run_tasks":{}}"#, "run_tasks: expected a list"),
            (r#"{"run_tasks":[1]}"#, "run_tasks[0]: expected an object"),
            (
                r#"{"run_tasks":[{"principals":{"type":"ANY"}}]}"#,
                "run_tasks[0].users: expected an entity",
            ),
            (
                r#"{"run_tasks":[{"principals":{"type":"ANY"},"roles":{"type":"ANY"}}]}"#,
                "unknown key `roles`",
            ),
            (
                r#"{"run_tasks":[{"principals":{"type":"ALL"},"users":{"type":"ANY"}}]}"#,
                "ANY, NONE or SOME",
            ),
            (
                r#"{"run_tasks":[{"principals":{"values":"a"},"users":{"type":"ANY"}}]}"#,
                "a list of values",
            ),
            (
                r#"{"run_tasks":[{"principals":{},"users":{"type":"ANY"}}]}"#,
                "run_tasks[0].principals: expected `values`",
            ),
            (
                r#"{"view_roles":[{"principals":{"type":"ANY"},"roles":{"values":["b","%"]}}]}"#,
                "'%'",
            ),
            (
                r#"{"view_roles":[{"principals":{"type":"ANY"},"roles":{"values":["a%"]}}]}"#,
                "'a%'",
            ),
        ] {
            let error = error(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Regression: only the last of two equal keys counted, so that an action denied by the first was allowed.
    #[test]
    fn duplicate_key_is_refused_by_name() {
        let list = |kind: &str| {
            format!(
                r#""run_tasks":[{{"principals":{{"type":"ANY"}},"users":{{"type":"{kind}"}}}}]"#
            )
        };
        for (text, key) in [
            (format!("{{{},{}}}", list("NONE"), list("ANY")), "run_tasks"),
            (
                r#"{"permissive":false,"permissive":true}"#.to_owned(),
                "permissive",
            ),
            (
                r#"{"run_tasks":[{"principals":{"type":"ANY"},"users":{"type":"NONE","type":"ANY"}}]}"#
                    .to_owned(),
                "type",
            ),
        ] {
            let error = error(&text);
            assert!(error.contains(&format!("`{key}` occurs twice")), "{error}");
        }
        // In two objects the key is not a duplicate.
        let once = format!("{{{}}}", list("ANY"));
        assert_eq!(
            Acls::parse(&once)
                .unwrap()
                .for_action(Action::RunTask)
                .len(),
            1
        );
    }

    #[test]
    fn every_list_of_mesos_is_known() {
        for action in Action::ALL {
            let text = format!(
                r#"{{"{}":[{{"principals":{{"type":"ANY"}},"{}":{{"type":"NONE"}}}}]}}"#,
                action.key(),
                action.object_key()
            );
            assert_eq!(
                Acls::parse(&text).unwrap().for_action(*action).len(),
                1,
                "{text}"
            );
        }
        assert_eq!(Action::ALL.len(), 54);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let text = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(Acls::parse(&text), Err(AclError::Syntax(_))));
    }
}
