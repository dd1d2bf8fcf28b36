//! The v0 endpoints: whole answers from one snapshot, rendered outside the core.
//!
//! Large bodies are streamed as they are rendered; what fits one chunk carries its length.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use meseta_access::Action;
use meseta_proto::transport::door::Caller;
use serde::Serialize;
use tokio::sync::mpsc;

use super::output::{ChunkWriter, collect_query};
use super::{BODY_MAX, Endpoint, Site, answered, body, text, views};
use crate::core::Snapshot;

/// Chunks that are rendered and not yet sent.
const CHUNKS_MAX: usize = 4;

/// The longest name of a JSONP callback.
const CALLBACK_MAX: usize = 256;

pub(super) async fn read(
    site: &Arc<Site>,
    caller: &Caller,
    endpoint: Endpoint,
    query: Option<&str>,
) -> Response {
    let query = collect_query(query.unwrap_or_default());
    let snapshot = match site.handle.view(caller).await {
        Ok(snapshot) => snapshot,
        Err(closed) => return closed.into(),
    };
    let callback = query.get("jsonp").cloned();
    if callback
        .as_ref()
        .is_some_and(|callback| callback.len() > CALLBACK_MAX)
    {
        let message = format!("The 'jsonp' callback is longer than {CALLBACK_MAX} bytes");
        return text(StatusCode::BAD_REQUEST, message);
    }
    let paging = match views::Paging::of(&query) {
        Ok(paging) => paging,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let is_jsonp = callback.is_some();
    let (sender, mut chunks) = mpsc::channel(CHUNKS_MAX);
    let site = site.clone();
    tokio::task::spawn_blocking(move || {
        let mut writer = ChunkWriter::new(sender);
        let rendered = render(
            &site,
            endpoint,
            &snapshot,
            &query,
            &paging,
            callback,
            &mut writer,
        );
        if let Err(error) = rendered.and_then(|()| writer.finish()) {
            tracing::debug!(%error, ?endpoint, "reader left before the end");
        }
    });
    let content_type = if is_jsonp {
        "text/javascript"
    } else {
        "application/json"
    };
    let first = chunks.recv().await.unwrap_or_default();
    let body = match chunks.recv().await {
        None => Body::from(first),
        Some(second) => streamed([first, second], chunks),
    };
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn streamed(begun: [Bytes; 2], chunks: mpsc::Receiver<Bytes>) -> Body {
    use tokio_stream::StreamExt;
    let rest = tokio_stream::wrappers::ReceiverStream::new(chunks);
    let all = tokio_stream::iter(begun).chain(rest);
    Body::from_stream(all.map(Ok::<_, std::convert::Infallible>))
}

fn render(
    site: &Site,
    endpoint: Endpoint,
    snapshot: &Snapshot,
    query: &BTreeMap<String, String>,
    paging: &views::Paging,
    callback: Option<String>,
    writer: &mut ChunkWriter,
) -> std::io::Result<()> {
    let closing = if let Some(callback) = callback {
        writer.text(&callback)?;
        writer.text("(")?;
        ");"
    } else {
        ""
    };
    let index = views::Index::of(snapshot);
    let filter = |name: &str| query.get(name).map(String::as_str);
    match endpoint {
        Endpoint::Version => json(writer, &views::version(&site.identity)),
        Endpoint::State => {
            let flags = flags_for(site, snapshot);
            json(writer, &views::state(snapshot, &index, flags))
        }
        Endpoint::StateSummary => json(writer, &views::summary(snapshot, &index)),
        Endpoint::Slaves => json(writer, &views::slaves(snapshot, filter("slave_id"))),
        Endpoint::Frameworks => json(
            writer,
            &views::frameworks(snapshot, &index, filter("framework_id")),
        ),
        Endpoint::Tasks => json(writer, &views::tasks(snapshot, query, paging)),
        Endpoint::Roles => json(writer, &views::roles(snapshot)),
        Endpoint::Quota => json(writer, &views::quota(snapshot)),
        Endpoint::Weights => json(writer, &views::weights(snapshot)),
        Endpoint::Schedule => json(writer, &views::maintenance_schedule(snapshot)),
        Endpoint::MaintenanceStatus => json(writer, &views::maintenance_status(snapshot)),
        Endpoint::Flags => json(writer, &BTreeMap::from([("flags", &site.flags)])),
        Endpoint::MetricsSnapshot => json(writer, &site.metrics.mesos(snapshot)),
        _ => Ok(()),
    }?;
    // Mesos ends a callback without a semicolon.
    writer.text(closing.trim_end_matches(';'))
}

/// The flags, unless they are not to be seen.
fn flags_for<'a>(site: &'a Site, snapshot: &Snapshot) -> Option<&'a BTreeMap<String, String>> {
    let is_shown = snapshot.viewer.allows(Action::ViewFlags, None);
    is_shown.then_some(&site.flags)
}

fn json(writer: &mut ChunkWriter, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(writer, value).map_err(std::io::Error::from)
}

pub(super) async fn prometheus(site: &Arc<Site>) -> Response {
    let snapshot = match site.handle.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(closed) => return closed.into(),
    };
    let site = site.clone();
    let rendered = tokio::task::spawn_blocking(move || site.metrics.prometheus(&snapshot)).await;
    match rendered {
        Ok(Ok(body)) => {
            let content_type = HeaderValue::from_static(prometheus::TEXT_FORMAT);
            ([(header::CONTENT_TYPE, content_type)], body).into_response()
        }
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) async fn teardown(site: &Arc<Site>, caller: &Caller, request: Request) -> Response {
    let bytes = match body::read(request.into_body(), BODY_MAX).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(),
    };
    let form = collect_query(&String::from_utf8_lossy(&bytes));
    let Some(framework_id) = form.get("frameworkId") else {
        return text(
            StatusCode::BAD_REQUEST,
            "Missing 'frameworkId' query parameter in the request body",
        );
    };
    answered(site.handle.teardown(caller, framework_id.clone()).await)
}
