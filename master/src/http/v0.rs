//! The v0 endpoints: whole answers from one snapshot, rendered outside the core.
//!
//! Large bodies are streamed as they are rendered; what fits one piece carries its length.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use meseta_access::Action;
use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::request;

use super::chunked_response::{Document, once};
use super::output::collect_query;
use super::views::write;
use super::{Compressible, Context, Endpoint, answered, text, views};
use crate::core::Snapshot;
use crate::measures::Measures;
use crate::metrics::Metrics;
use crate::service::Closed;
use crate::view_cache::ViewScope;

/// Paths that may be asked again and again: what they show has a number that stays while it does.
const fn is_polled(endpoint: Endpoint) -> bool {
    matches!(
        endpoint,
        Endpoint::State
            | Endpoint::StateSummary
            | Endpoint::Slaves
            | Endpoint::Frameworks
            | Endpoint::Tasks
            | Endpoint::Roles
            | Endpoint::Quota
            | Endpoint::Weights
            | Endpoint::Schedule
            | Endpoint::MaintenanceStatus
    )
}

/// What of the cluster an endpoint reads.
const fn view_scope(endpoint: Endpoint) -> ViewScope {
    match endpoint {
        Endpoint::Version
        | Endpoint::Flags
        | Endpoint::Quota
        | Endpoint::Weights
        | Endpoint::Schedule => ViewScope::Policies,
        _ => ViewScope::Cluster,
    }
}

/// What of a request matters for reading.
#[derive(Debug)]
pub(super) struct ReadRequest {
    query: BTreeMap<String, String>,
    /// The versions that the client has already.
    if_none_match: Option<String>,
}

impl ReadRequest {
    pub(super) fn of(request: &Request) -> Self {
        let known = request.headers().get(header::IF_NONE_MATCH);
        Self {
            query: collect_query(request.uri().query().unwrap_or_default()),
            if_none_match: known
                .and_then(|value| value.to_str().ok())
                .map(ToOwned::to_owned),
        }
    }

    /// Whether the client has this version.
    fn knows(&self, version: &str) -> bool {
        let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        let known = self.if_none_match.iter().flat_map(|tags| tags.split(','));
        known
            .map(bare)
            .any(|tag| tag == bare(version) || tag == "*")
    }
}

pub(super) async fn read(
    context: &Arc<Context>,
    caller: &Caller,
    endpoint: Endpoint,
    read_request: ReadRequest,
) -> Response {
    let source = match Source::of(context, caller, endpoint).await {
        Ok(source) => source,
        Err(closed) => return closed.into(),
    };
    let plan = match Plan::of(endpoint, &read_request) {
        Ok(plan) => plan,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let version = is_polled(endpoint).then(|| {
        // Weak: the same content, in whatever encoding.
        let (id, changed) = (&source.snapshot.identity.id, source.snapshot.changed);
        // Others see other things, and the same one too once the rules are others.
        let mut viewer = DefaultHasher::new();
        (caller.principal(), caller.approver.version()).hash(&mut viewer);
        format!("W/\"{id}-{changed}-{:x}\"", viewer.finish())
    });
    let version = version.and_then(|version| {
        let is_known = read_request.knows(&version);
        Some((HeaderValue::from_str(&version).ok()?, is_known))
    });
    let mut response = match &version {
        Some((_, true)) => StatusCode::NOT_MODIFIED.into_response(),
        _ => rendered(context, endpoint, source, plan, read_request.query).await,
    };
    if let Some((version, _)) = version {
        response.headers_mut().insert(header::ETAG, version);
    }
    response
}

/// How an answer is to be written.
#[derive(Debug)]
struct Plan {
    /// The function that a script wants it to be handed to.
    callback: Option<String>,
    paging: views::Paging,
}

impl Plan {
    fn of(endpoint: Endpoint, read_request: &ReadRequest) -> Result<Self, String> {
        let callback = read_request.query.get("jsonp").cloned();
        if callback
            .as_ref()
            .is_some_and(|callback| callback.len() > request::CALLBACK_BYTES_MAX)
        {
            return Err(request::callback_too_long());
        }
        if let (Endpoint::MetricsSnapshot, Some(timeout)) =
            (endpoint, read_request.query.get("timeout"))
        {
            // All is at hand: there is nothing to wait for.
            request::timeout(timeout)?;
        }
        Ok(Self {
            callback,
            paging: views::Paging::of(&read_request.query)?,
        })
    }
}

/// Where an answer is taken from.
struct Source {
    snapshot: Arc<Snapshot>,
    /// Counts that only metrics need.
    measures: Measures,
}

impl Source {
    async fn of(context: &Context, caller: &Caller, endpoint: Endpoint) -> Result<Self, Closed> {
        let (snapshot, measures) = if endpoint == Endpoint::MetricsSnapshot {
            context.handle.measures(caller).await?
        } else {
            let snapshot = context.handle.view(caller, view_scope(endpoint)).await?;
            (snapshot, Measures::default())
        };
        Ok(Self { snapshot, measures })
    }
}

async fn rendered(
    context: &Arc<Context>,
    endpoint: Endpoint,
    source: Source,
    plan: Plan,
    query: BTreeMap<String, String>,
) -> Response {
    let content_type = if plan.callback.is_some() {
        "text/javascript"
    } else {
        "application/json"
    };
    let body = if is_small(endpoint) && plan.callback.is_none() {
        let (context, renderer) = (context.clone(), context.renderer.clone());
        let write = move |out: &mut Vec<u8>| small(&context, endpoint, &source.snapshot, out);
        renderer.render_small(write).await
    } else {
        let document = document(context, endpoint, source, &query, &plan);
        let document = document.with_callback(plan.callback.as_deref());
        context.renderer.answer(document).await
    };
    let body = match body {
        Ok(body) => body,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.extensions_mut().insert(Compressible);
    response
}

fn document(
    context: &Arc<Context>,
    endpoint: Endpoint,
    source: Source,
    query: &BTreeMap<String, String>,
    plan: &Plan,
) -> Document {
    let snapshot = &source.snapshot;
    let filter = |name: &str| query.get(name).map(String::as_str);
    match endpoint {
        Endpoint::State => views::state(snapshot, flags_for(context, snapshot)),
        Endpoint::StateSummary => views::summary(snapshot),
        Endpoint::Slaves => views::slaves(snapshot, filter("slave_id")),
        Endpoint::Frameworks => views::frameworks(snapshot, filter("framework_id")),
        Endpoint::Tasks => views::tasks(snapshot, query, &plan.paging),
        Endpoint::MetricsSnapshot => {
            Metrics::document(&context.metrics, &source.snapshot, source.measures)
        }
        _ => {
            let (context, snapshot) = (context.clone(), source.snapshot);
            let small = once(1, move |out| small(&context, endpoint, &snapshot, out));
            Document::of(vec![small])
        }
    }
}

/// Whether all of it is written by [`small`].
const fn is_small(endpoint: Endpoint) -> bool {
    matches!(
        endpoint,
        Endpoint::Version
            | Endpoint::Roles
            | Endpoint::Quota
            | Endpoint::Weights
            | Endpoint::Schedule
            | Endpoint::MaintenanceStatus
            | Endpoint::Flags
    )
}

/// What is written in one go.
fn small(context: &Context, endpoint: Endpoint, snapshot: &Snapshot, out: &mut Vec<u8>) {
    match endpoint {
        Endpoint::Version => write(out, &views::version(&context.identity)),
        Endpoint::Roles => write(out, &views::roles(snapshot)),
        Endpoint::Quota => write(out, &views::quota(snapshot)),
        Endpoint::Weights => write(out, &views::weights(snapshot)),
        Endpoint::Schedule => write(out, &views::maintenance_schedule(snapshot)),
        Endpoint::MaintenanceStatus => write(out, &views::maintenance_status(snapshot)),
        Endpoint::Flags => write(out, &BTreeMap::from([("flags", &context.flags)])),
        _ => {}
    }
}

/// The flags, unless they are not to be seen.
fn flags_for<'a>(
    context: &'a Context,
    snapshot: &Snapshot,
) -> Option<&'a BTreeMap<String, String>> {
    let is_shown = snapshot.viewer.allows(Action::ViewFlags, None);
    is_shown.then_some(&context.flags)
}

pub(super) async fn prometheus(context: &Arc<Context>) -> Response {
    let snapshot = match context.handle.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(closed) => return closed.into(),
    };
    let context = context.clone();
    let rendered = background::spawn(move || context.metrics.prometheus(&snapshot)).await;
    match rendered {
        Ok(Ok(body)) => {
            let content_type = HeaderValue::from_static(prometheus::TEXT_FORMAT);
            ([(header::CONTENT_TYPE, content_type)], body).into_response()
        }
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) async fn teardown(
    context: &Arc<Context>,
    caller: &Caller,
    request: Request,
) -> Response {
    let read = |bytes: &Bytes| collect_query(&String::from_utf8_lossy(bytes));
    let form = match context.json_body(caller, request.into_body(), read).await {
        Ok((form, ..)) => form,
        Err(refused) => return refused,
    };
    let Some(framework_id) = form.get("frameworkId") else {
        return text(
            StatusCode::BAD_REQUEST,
            "Missing 'frameworkId' query parameter in the request body",
        );
    };
    answered(context.handle.teardown(caller, framework_id.clone()).await)
}
