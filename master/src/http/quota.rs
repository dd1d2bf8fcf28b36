//! `/quota`: guarantees and limits of roles.

use http::{Method, StatusCode};
use meseta_daemon::query::decode;
use meseta_proto::json;
use meseta_proto::mesos::v1::quota::QuotaRequest;

use super::responses::{answered, text};
use super::routes::{Handled, Permitted};
use super::v0;
use crate::core::{Administration, Answer};

pub(super) async fn handle(permitted: Permitted) -> Handled {
    match *permitted.request.method() {
        Method::POST => set(permitted).await,
        Method::DELETE => remove(permitted).await,
        _ => v0::read(permitted, &v0::QUOTA).await,
    }
}

async fn set(permitted: Permitted) -> Handled {
    let read = json::from_slice::<QuotaRequest>;
    let (asker, request) = permitted.read_json("set quota", read).await?;
    let request = Administration::SetQuota(Box::new(request));
    asker.administer(request).await
}

/// Removes the quota of the role after `/quota/`: its name may contain slashes.
async fn remove(permitted: Permitted) -> Handled {
    let Permitted {
        context,
        caller,
        request,
        ..
    } = permitted;
    // The Mesos name of the endpoint, whichever alias the client used.
    let inner = request.uri().path().trim_start_matches('/');
    let inner = inner.strip_prefix("master/").unwrap_or(inner);
    let endpoint_path = format!("/master/{inner}");
    let role = inner
        .strip_prefix("quota/")
        .map(|role| role.trim_matches('/'));
    let Some(role) = role.filter(|role| !role.is_empty()) else {
        let message = format!(
            "Failed to parse remove quota request for path '{endpoint_path}': expected 3 tokens, found 2 \
             tokens"
        );
        return Err(text(StatusCode::BAD_REQUEST, message));
    };
    let role = decode(role);
    let answer = context
        .handle
        .administer(&caller, Administration::RemoveQuota { role })
        .await?;
    Ok(answered(match answer {
        Answer::BadRequest(reason) => Answer::BadRequest(format!(
            "Failed to remove quota for path '{endpoint_path}': {reason}"
        )),
        other => other,
    }))
}
