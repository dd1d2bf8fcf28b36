//! The v0 endpoints: whole answers from one snapshot, rendered outside the core.
//!
//! Large bodies are streamed as they are rendered; an answer of one chunk has a length.

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
use meseta_daemon::compression::Compressible;
use meseta_daemon::query::Query;
use meseta_daemon::request;
use meseta_proto::Invalid;

use super::responses::{answered, crowded, text};
use super::routes::{Handled, Permitted};
use crate::chunked_response::{Document, ReaderPermit, once};
use crate::closed::Closed;
use crate::context::Context;
use crate::core::Snapshot;
use crate::metrics::Measured;
use crate::metrics::Metrics;
use crate::view_cache::ViewScope;
use crate::views::{self, AgentSelection, write};

/// The content of a path.
#[derive(Debug)]
pub(super) struct Page {
    /// The part of the cluster that the page reads.
    scope: ViewScope,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// A page written at once: a few bytes, however large the cluster is and whatever its tenants do.
    Small(fn(&Context, &Snapshot, &mut Vec<u8>)),
    /// A page written in chunks, which several threads may render.
    Large(fn(&Context, &Arc<Snapshot>, &Plan) -> Document),
    Metrics,
}

impl Page {
    const fn small(scope: ViewScope, write: fn(&Context, &Snapshot, &mut Vec<u8>)) -> Self {
        let content = Content::Small(write);
        Self { scope, content }
    }

    const fn large(document: fn(&Context, &Arc<Snapshot>, &Plan) -> Document) -> Self {
        Self::large_of(ViewScope::Cluster, document)
    }

    const fn large_of(
        scope: ViewScope,
        document: fn(&Context, &Arc<Snapshot>, &Plan) -> Document,
    ) -> Self {
        let content = Content::Large(document);
        Self { scope, content }
    }
}

pub(super) static VERSION: Page = Page::small(ViewScope::Policies, |context, _, out| {
    write(out, &views::version(&context.identity));
});
pub(super) static FLAGS: Page = Page::small(ViewScope::Policies, |context, _, out| {
    write(out, &BTreeMap::from([("flags", &context.flags)]));
});
pub(super) static QUOTA: Page = Page::large_of(ViewScope::Policies, |_, snapshot, _| {
    views::quotas(snapshot)
});
pub(super) static WEIGHTS: Page = Page::large_of(ViewScope::Policies, |_, snapshot, _| {
    views::weight_list(snapshot)
});
pub(super) static MAINTENANCE_SCHEDULE: Page =
    Page::large_of(ViewScope::Policies, |_, snapshot, _| {
        views::schedule_list(snapshot)
    });
pub(super) static MAINTENANCE_STATUS: Page =
    Page::large(|_, snapshot, _| views::status_list(snapshot));
pub(super) static ROLES: Page = Page::large(|_, snapshot, _| views::roles(snapshot));
pub(super) static STATE: Page =
    Page::large(|context, snapshot, _| views::state(snapshot, flags_for(context, snapshot)));
pub(super) static STATE_SUMMARY: Page = Page::large(|_, snapshot, Plan { query, .. }| {
    views::summary(snapshot, query.get("slaves") != Some("false"))
});
pub(super) static SLAVES: Page = Page::large(|_, snapshot, Plan { query, paging, .. }| {
    views::slaves(snapshot, AgentSelection::from_query(query, paging))
});
pub(super) static FRAMEWORKS: Page = Page::large(|_, snapshot, Plan { query, .. }| {
    let has_tasks = query.get("tasks") != Some("false");
    views::frameworks(snapshot, query.get("framework_id"), has_tasks)
});
pub(super) static TASKS: Page =
    Page::large(|_, snapshot, plan| views::tasks(snapshot, &plan.query, &plan.paging));
pub(super) static METRICS_SNAPSHOT: Page = Page {
    scope: ViewScope::Cluster,
    content: Content::Metrics,
};

/// The parts of a request that matter for reading.
#[derive(Debug)]
struct ReadRequest {
    query: Query,
    /// The versions that the client already has.
    if_none_match: Option<String>,
}

impl ReadRequest {
    fn from_request(request: &Request) -> Self {
        let known = request.headers().get(header::IF_NONE_MATCH);
        Self {
            query: Query::from_uri(request.uri()),
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

pub(super) async fn read(permitted: Permitted, page: &'static Page) -> Handled {
    let Permitted {
        context,
        caller,
        route,
        request,
    } = permitted;
    let reader = match page.content {
        Content::Small(_) => None,
        Content::Large(_) | Content::Metrics => {
            let admitted = context.renderer.admit(&caller).await;
            Some(admitted.map_err(crowded)?)
        }
    };
    let source = source_of(&context, &caller, page).await?;
    let read_request = ReadRequest::from_request(&request);
    let version = route.has_etag.then(|| {
        // Weak: the same content, in any encoding.
        let (id, changed) = (&source.seen.identity.id, source.seen.changed);
        // Other callers see other content, and so does the same caller after a change of rules.
        let mut viewer = DefaultHasher::new();
        (caller.principal(), caller.approver.version()).hash(&mut viewer);
        // An answer marked as stale is another version: a browser keeps the headers of its cached answer.
        context.handle.standing.suspended().hash(&mut viewer);
        format!("W/\"{id}-{changed}-{:x}\"", viewer.finish())
    });
    let version = version.and_then(|version| {
        let is_known = read_request.knows(&version);
        Some((HeaderValue::from_str(&version).ok()?, is_known))
    });
    let plan = Plan::from_page(page, read_request.query)
        .map_err(|message| text(StatusCode::BAD_REQUEST, message))?;
    let mut response = match &version {
        Some((_, true)) => StatusCode::NOT_MODIFIED.into_response(),
        _ => rendered(&context, page, source, plan, reader).await,
    };
    if let Some((version, _)) = version {
        response.headers_mut().insert(header::ETAG, version);
    }
    Ok(response)
}

/// The form of the answer.
#[derive(Debug)]
struct Plan {
    /// The script function that receives the answer.
    callback: Option<String>,
    paging: views::Paging,
    query: Query,
}

impl Plan {
    fn from_page(page: &Page, query: Query) -> Result<Self, Invalid> {
        let callback = query.get("jsonp").map(str::to_owned);
        if callback
            .as_ref()
            .is_some_and(|callback| callback.len() > request::CALLBACK_BYTES_MAX)
        {
            return Err(request::callback_too_long());
        }
        if let (Content::Metrics, Some(timeout)) = (&page.content, query.get("timeout")) {
            // The data are available, so there is nothing to wait for.
            request::timeout(timeout)?;
        }
        Ok(Self {
            callback,
            paging: views::Paging::from_query(&query)?,
            query,
        })
    }
}

/// The data of an answer.
async fn source_of(context: &Context, caller: &Caller, page: &Page) -> Result<Measured, Closed> {
    Ok(match page.content {
        Content::Metrics => context.handle.measured(caller).await?,
        Content::Small(_) | Content::Large(_) => {
            Measured::from_snapshot(context.handle.view(caller, page.scope).await?)
        }
    })
}

async fn rendered(
    context: &Arc<Context>,
    page: &'static Page,
    source: Measured,
    plan: Plan,
    reader: Option<ReaderPermit>,
) -> Response {
    let content_type = if plan.callback.is_some() {
        "text/javascript"
    } else {
        "application/json"
    };
    let document = match &page.content {
        Content::Small(write) => {
            let (context, snapshot) = (context.clone(), source.seen);
            Document::from_first(vec![once(1, move |out| write(&context, &snapshot, out))])
        }
        Content::Large(document) => document(context, &source.seen, &plan),
        Content::Metrics => {
            let has_frameworks = plan.query.get("frameworks") != Some("false");
            Metrics::document(&context.metrics, &source, has_frameworks)
        }
    };
    let document = document.with_callback(plan.callback.as_deref());
    let body = match reader {
        Some(reader) => context.renderer.answer(document, reader).await,
        None => context.renderer.render_small(document.first).await,
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

/// The flags, unless the caller may not see them.
fn flags_for<'a>(
    context: &'a Context,
    snapshot: &Snapshot,
) -> Option<&'a BTreeMap<String, String>> {
    let is_shown = snapshot.viewer.allows(Action::ViewFlags, None);
    is_shown.then_some(&context.flags)
}

pub(super) async fn prometheus(permitted: Permitted) -> Handled {
    let context = permitted.context;
    let turn = context
        .buffered_responses
        .acquire_moderate(&permitted.caller);
    let turn = turn.await.map_err(crowded)?;
    let measured = context.handle.measured(&permitted.caller).await?;
    // The permit moves with the work, which continues when the caller leaves.
    let rendered = background::spawn(move || {
        let text = context.metrics.prometheus(&measured);
        drop(turn);
        text
    });
    let failed =
        |error: &dyn std::error::Error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let body = rendered.await.map_err(|error| failed(&error))?;
    let body = body.map_err(|error| failed(&error))?;
    let content_type = HeaderValue::from_static(prometheus::TEXT_FORMAT);
    let mut response = ([(header::CONTENT_TYPE, content_type)], body).into_response();
    response.extensions_mut().insert(Compressible);
    Ok(response)
}

pub(super) async fn teardown(permitted: Permitted) -> Handled {
    let read = |bytes: &Bytes| Query::parse(&String::from_utf8_lossy(bytes));
    let (asker, form, _) = permitted.read_body(read).await?;
    let Some(framework_id) = form.get("frameworkId") else {
        return Err(text(
            StatusCode::BAD_REQUEST,
            "Missing 'frameworkId' query parameter in the request body",
        ));
    };
    let (handle, caller) = (&asker.context.handle, &asker.caller);
    let answer = handle.teardown(caller, framework_id.to_owned()).await?;
    Ok(answered(answer))
}
