//! `/rights`: the rights of the caller, so that a page offers no action that would be refused. Mesos has no such
//! endpoint.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use meseta_access::{Action, Extent};
use serde_json::{Value, json};

use super::routes::Permitted;

/// The number of objects listed for one action. More would not help a reader.
const NAMED_MAX: usize = 100;

pub(super) fn handle(permitted: &Permitted) -> Response {
    let approver = &permitted.caller.approver;
    let actions: BTreeMap<_, _> = Action::ALL
        .iter()
        .map(|action| (action.key(), view(approver.extent(*action, NAMED_MAX))))
        .collect();
    let body = json!({ "principal": approver.principal(), "actions": actions });
    Json(body).into_response()
}

fn view(extent: Extent) -> Value {
    json!({ "others": extent.unnamed, "named": extent.named })
}
