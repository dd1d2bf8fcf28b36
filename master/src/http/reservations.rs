//! `/reserve`, `/unreserve`, `/create-volumes`, `/destroy-volumes` and their calls of `/api/v1`.
//!
//! Both forms only name the requested change; the core checks it, rescinds the offers in its way and applies it. The
//! response 202 means just that: the agent's own state shows the final outcome.

use bytes::Bytes;
use http::StatusCode;
use meseta_daemon::query::Query;
use meseta_proto::json;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::{Invalid, invalid};

use super::responses::{answered, text};
use super::routes::{Handled, Permitted};
use crate::operator::reservations::Change;

impl Change {
    /// The parameter that holds the resources.
    const fn parameter(self) -> &'static str {
        match self {
            Self::Reserve | Self::Unreserve => "resources",
            Self::Create | Self::Destroy => "volumes",
        }
    }
}

/// Handles the form of one of the endpoints.
pub(super) async fn handle(permitted: Permitted, change: Change) -> Handled {
    let read = |bytes: &Bytes| form(change, &String::from_utf8_lossy(bytes));
    let (asker, form, _) = permitted.read_body(read).await?;
    let (agent, operation) = form.map_err(|message| text(StatusCode::BAD_REQUEST, message))?;
    let handle = &asker.context.handle;
    let answer = handle.operate(&asker.caller, agent, operation).await?;
    Ok(answered(answer))
}

fn form(change: Change, body: &str) -> Result<(String, Operation), Invalid> {
    let form = Query::parse(body);
    if let Some(name) = form.repeated() {
        return Err(invalid!(
            "The parameter '{}' is given more than once in the request body",
            name.escape_debug()
        ));
    }
    let missing = |name: &str| invalid!("Missing '{name}' query parameter in the request body");
    let agent = form.get("slaveId").ok_or_else(|| missing("slaveId"))?;
    let name = change.parameter();
    let resources = form.get(name).ok_or_else(|| missing(name))?;
    let resources = list(change, name, resources)?;
    let source = match form.get("source") {
        Some(source) if change == Change::Reserve => list(change, "source", source)?,
        _ => Vec::new(),
    };
    Ok((agent.to_owned(), change.operation(resources, source)))
}

fn list(change: Change, name: &str, value: &str) -> Result<Vec<v1::Resource>, Invalid> {
    json::many_from_slice(value.as_bytes()).map_err(|error| {
        let verb = match change {
            Change::Reserve => "Error parsing",
            Change::Unreserve | Change::Create | Change::Destroy => "Error in parsing",
        };
        let why = match error {
            json::Error::Syntax {
                reason,
                line,
                column,
            } => format!("{reason} (line {line}, column {column})"),
            json::Error::Convert { reason, .. } => reason,
        };
        invalid!("{verb} '{name}' query parameter in the request body: {why}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_forms_name_the_bad_field() {
        let error = |change, body: &str| String::from(form(change, body).unwrap_err());
        assert_eq!(
            error(Change::Reserve, ""),
            "Missing 'slaveId' query parameter in the request body"
        );
        assert_eq!(
            error(Change::Reserve, "slaveId=a"),
            "Missing 'resources' query parameter in the request body"
        );
        assert_eq!(
            error(Change::Destroy, "slaveId=a&resources=[]"),
            "Missing 'volumes' query parameter in the request body"
        );
        let of_unknown_parts = error(Change::Create, "unknown=1&SLAVEID=a&volumes=[]");
        assert!(of_unknown_parts.starts_with("Missing 'slaveId'"));
        let twice = error(Change::Reserve, "slaveId=a&slaveId=b&resources=[]");
        assert!(
            twice.contains("'slaveId' is given more than once"),
            "{twice}"
        );
        let broken = error(Change::Reserve, "slaveId=a&resources=x");
        assert!(
            broken.starts_with("Error parsing 'resources' query parameter in the request body: "),
            "{broken}"
        );
        // As in published examples: an object instead of a list, and a comma after the last member.
        for (body, place) in [
            (r#"resources={ { "name" : "cpus" } }"#, "line 1, column 3"),
            (r#"resources=[ { "name" : "cpus" }, ]"#, "line 1, column 24"),
        ] {
            let text = error(Change::Reserve, &format!("slaveId=a&{body}"));
            assert!(text.contains(place), "{text}");
        }
        for body in [
            "resources={}",
            "resources=[1]",
            "resources=[{}]",
            "resources=[],",
        ] {
            let text = error(Change::Unreserve, &format!("slaveId=a&{body}"));
            assert!(text.starts_with("Error in parsing 'resources'"), "{text}");
        }
    }

    #[test]
    fn a_form_becomes_an_operation() {
        let body = "slaveId=a-S0&resources=%5B%7B%22name%22%3A%22cpus%22%2C%22type%22%3A%22SCALAR%22\
                    %2C%22scalar%22%3A%7B%22value%22%3A8%7D%2C%22role%22%3A%22ads%22%2C\
                    %22reservation%22%3A%7B%7D%7D%5D";
        let (agent, operation) = form(Change::Reserve, body).unwrap();
        assert_eq!(agent, "a-S0");
        let reserve = operation.reserve.unwrap();
        assert_eq!(reserve.resources.len(), 1);
        assert_eq!(reserve.resources[0].role.as_deref(), Some("ads"));
        assert!(reserve.source.is_empty());
    }
}
