//! `--modules` and `--modules_dir`: parameters for built-in modules, in Mesos's JSON.
//!
//! No library is ever loaded: a module's name selects the built-in module of that name. Several values are merged.
//! Invariant: an invalid part is an error with its location and the correct form.

use std::path::Path;

use meseta_estimators::config::Suggestion;
use meseta_estimators::{ModuleParameters, Parameters, spec};
use serde_json::Value;

/// The most bytes of a text with modules; a longer text is probably a mistake.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// The most files that `--modules_dir` may have.
const FILES_MAX: usize = 256;

/// The reason why modules are unusable.
#[derive(Debug, thiserror::Error)]
pub enum ModulesError {
    /// A file or folder cannot be read.
    #[error("failed to read {path}, named by --{flag}")]
    Unreadable {
        flag: &'static str,
        /// The file or folder.
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The text or the folder is too large.
    #[error("{origin}: more than {max} {what}")]
    TooMuch {
        origin: String,
        what: &'static str,
        /// The limit that was exceeded.
        max: u64,
    },
    /// The text is not valid JSON.
    #[error("{origin} is not JSON")]
    Syntax {
        origin: String,
        #[source]
        source: serde_json::Error,
    },
    /// The JSON has an invalid structure.
    #[error("{origin}: {at} {wrong}")]
    Shape {
        origin: String,
        /// The location of the error in the text.
        at: String,
        /// The description of the error.
        wrong: String,
    },
    /// There is no built-in module of that name.
    #[error(
        "{origin}: unknown module {name:?}; built in are {known}; libraries cannot be loaded: \
         serve your own module over gRPC and give its address, \
         --resource_estimator=unix:///path.sock or \
         --qos_controller=http://host:port"
    )]
    Unknown {
        origin: String,
        name: String,
        /// The valid names of modules.
        known: String,
    },
}

/// Reads all given parameters, by module.
pub(crate) fn read(
    modules: &[String],
    dir: Option<&Path>,
) -> Result<ModuleParameters, ModulesError> {
    let mut all = ModuleParameters::new();
    for value in modules {
        let (origin, text) = match value.strip_prefix("file://") {
            Some(path) => (path.to_owned(), read_file("modules", Path::new(path))?),
            None => ("--modules".to_owned(), value.clone()),
        };
        merge(&mut all, &origin, &text)?;
    }
    for path in dir.map(files_of).transpose()?.unwrap_or_default() {
        let text = read_file("modules_dir", &path)?;
        merge(&mut all, &path.display().to_string(), &text)?;
    }
    Ok(all)
}

/// The files of `--modules_dir` in order of name, without hidden files.
fn files_of(dir: &Path) -> Result<Vec<std::path::PathBuf>, ModulesError> {
    let unreadable = |source| ModulesError::Unreadable {
        flag: "modules_dir",
        path: dir.display().to_string(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.is_file() {
            files.push(path);
        }
    }
    if files.len() > FILES_MAX {
        return Err(ModulesError::TooMuch {
            origin: dir.display().to_string(),
            what: "files",
            max: FILES_MAX as u64,
        });
    }
    files.sort();
    Ok(files)
}

fn read_file(flag: &'static str, path: &Path) -> Result<String, ModulesError> {
    let unreadable = |source| ModulesError::Unreadable {
        flag,
        path: path.display().to_string(),
        source,
    };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > TEXT_BYTES_MAX {
        return Err(ModulesError::TooMuch {
            origin: path.display().to_string(),
            what: "bytes",
            max: TEXT_BYTES_MAX,
        });
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn merge(all: &mut ModuleParameters, origin: &str, text: &str) -> Result<(), ModulesError> {
    let value: Value = serde_json::from_str(text).map_err(|source| ModulesError::Syntax {
        origin: origin.to_owned(),
        source,
    })?;
    let location = ErrorLocation { origin };
    let root = location.object("the whole", &value, &["libraries"])?;
    for library in many(root.get("libraries")) {
        let library = location.object("a library", library, &["file", "name", "modules"])?;
        for module in many(library.get("modules")) {
            let module = location.object("a module", module, &["name", "parameters"])?;
            let (name, parameters) = location.module(module)?;
            let merged = all.remove(&name).unwrap_or_default();
            // An equal value does not count as a second value.
            let merged = if merged == parameters {
                merged
            } else {
                merged.iter().chain(parameters.iter()).cloned().collect()
            };
            all.insert(name, merged);
        }
    }
    Ok(())
}

/// As in Mesos, a single object may replace an array.
fn many(value: Option<&Value>) -> Vec<&Value> {
    match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(all)) => all.iter().collect(),
        Some(one) => vec![one],
    }
}

/// The location of an error.
struct ErrorLocation<'a> {
    origin: &'a str,
}

impl ErrorLocation<'_> {
    fn wrong(&self, at: impl Into<String>, wrong: impl Into<String>) -> ModulesError {
        ModulesError::Shape {
            origin: self.origin.to_owned(),
            at: at.into(),
            wrong: wrong.into(),
        }
    }

    fn object<'v>(
        &self,
        at: &str,
        value: &'v Value,
        known: &[&str],
    ) -> Result<&'v serde_json::Map<String, Value>, ModulesError> {
        let Some(object) = value.as_object() else {
            return Err(self.wrong(at, format!("must be an object with {}", known.join(", "))));
        };
        match object.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(object),
            Some(key) => {
                let near = Suggestion::for_name(key, known.iter().copied());
                let known = known.join(", ");
                Err(self.wrong(
                    at,
                    format!("has an unknown key {key:?}{near}; known are {known}"),
                ))
            }
        }
    }

    fn module(
        &self,
        module: &serde_json::Map<String, Value>,
    ) -> Result<(String, Parameters), ModulesError> {
        let Some(name) = module.get("name").and_then(Value::as_str) else {
            return Err(self.wrong("a module", "needs a \"name\" of text"));
        };
        if !spec::is_builtin(name) {
            return Err(ModulesError::Unknown {
                origin: self.origin.to_owned(),
                name: name.to_owned(),
                known: spec::builtin_names().collect::<Vec<_>>().join(", "),
            });
        }
        let parameters = many(module.get("parameters")).into_iter();
        let parameters = parameters.map(|parameter| self.parameter(name, parameter));
        let parameters = parameters.collect::<Result<Vec<_>, _>>()?;
        Ok((name.to_owned(), parameters.into_iter().collect()))
    }

    fn parameter(&self, module: &str, parameter: &Value) -> Result<(String, String), ModulesError> {
        let at = format!("a parameter of {module}");
        let parameter = self.object(&at, parameter, &["key", "value"])?;
        let Some(key) = parameter.get("key").and_then(Value::as_str) else {
            return Err(self.wrong(at, "needs a \"key\" of text"));
        };
        let value = match parameter.get("value") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(Value::Bool(flag)) => flag.to_string(),
            _ => return Err(self.wrong(at, format!("needs a \"value\" of text for {key:?}"))),
        };
        Ok((key.to_owned(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: &str = r#"{
      "libraries": {
        "file": "/usr/local/lib64/libfixed_resource_estimator.so",
        "modules": {
          "name": "org_apache_mesos_FixedResourceEstimator",
          "parameters": { "key": "resources", "value": "cpus:14" }
        }
      }
    }"#;
    const LOAD: &str = r#"{
      "libraries": [{
        "file": "/usr/local/lib64/libload_qos_controller.so",
        "modules": [{
          "name": "org_apache_mesos_LoadQoSController",
          "parameters": [
            { "key": "load_threshold_5min", "value": "6" },
            { "key": "load_threshold_15min", "value": "4" }
          ]
        }]
      }]
    }"#;

    fn parameters(all: &ModuleParameters, name: &str) -> Vec<(String, String)> {
        all.get(name)
            .map(|all| all.iter().cloned().collect())
            .unwrap_or_default()
    }

    #[test]
    fn the_documents_own_values_are_merged() {
        let all = read(&[FIXED.to_owned(), LOAD.to_owned(), FIXED.to_owned()], None).unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            parameters(&all, "org_apache_mesos_FixedResourceEstimator"),
            [pair("resources", "cpus:14")]
        );
        assert_eq!(
            parameters(&all, "org_apache_mesos_LoadQoSController"),
            [
                pair("load_threshold_5min", "6"),
                pair("load_threshold_15min", "4")
            ]
        );
    }

    #[test]
    fn a_folder_is_merged_too() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.json"), FIXED).unwrap();
        std::fs::write(dir.path().join(".hidden"), "garbage").unwrap();
        let all = read(&[LOAD.to_owned()], Some(dir.path())).unwrap();
        assert_eq!(all.len(), 2);
        let file = format!("file://{}", dir.path().join("a.json").display());
        assert_eq!(read(&[file], None).unwrap().len(), 1);
        let gone = read(&[], Some(&dir.path().join("gone"))).unwrap_err();
        assert!(gone.to_string().contains("--modules_dir"), "{gone}");
    }

    #[test]
    fn module_errors_name_the_mistake() {
        for (text, told) in [
            ("{", "--modules is not JSON"),
            ("[]", "must be an object with libraries"),
            (
                r#"{"library": []}"#,
                r#"unknown key "library", did you mean "libraries"?"#,
            ),
            (r#"{"libraries": [1]}"#, "a library must be an object"),
            (r#"{"libraries": {"modules": {}}}"#, "needs a \"name\""),
            (
                r#"{"libraries": {"modules": {"name": "org_example_Foo"}}}"#,
                "serve your own module over gRPC",
            ),
            (
                r#"{"libraries": {"modules": {"name": "fixed", "parameters": {"key": "resources"}}}}"#,
                "needs a \"value\"",
            ),
            (
                r#"{"libraries": {"modules": {"name": "fixed", "parameters": {"value": "x"}}}}"#,
                "needs a \"key\"",
            ),
        ] {
            let error = read(&[text.to_owned()], None).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
