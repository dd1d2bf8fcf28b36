//! `/files/*`, LIST_FILES and READ_FILE, over [`crate::sandbox_files`].

use std::sync::Arc;

use http::StatusCode;
use meseta_access::Action;
use meseta_daemon::authentication::Caller;
use meseta_daemon::files::ReadsError;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent as api;
use serde_json::{Value, json};

use super::Reply;
use super::reply::List;
use super::routes::Permitted;
use crate::context::Context;
use crate::core::Snapshot;
use crate::permission;
use crate::sandbox_files::{Entry, FilesError, NamedRun, Sandboxes};
use meseta_daemon::query::Query;

impl From<FilesError> for Reply {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::NotFound => Self::text(StatusCode::NOT_FOUND, ""),
            FilesError::IsDirectory => {
                Self::text(StatusCode::BAD_REQUEST, "Cannot read a directory.\n")
            }
            FilesError::NotDirectory => Self::text(StatusCode::BAD_REQUEST, "Not a directory.\n"),
            FilesError::NotAFile => {
                Self::text(StatusCode::BAD_REQUEST, "Only regular files can be read.\n")
            }
            FilesError::Forbidden(forbidden) => forbidden.into(),
            FilesError::Io(error) => Self::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("Failed to read: {error}.\n"),
            ),
        }
    }
}

/// Reads from the sandbox that contains `path`, if the caller may read the files of its owner.
async fn on_disk<T: Send + 'static>(
    context: &Arc<Context>,
    caller: &Caller,
    path: &str,
    work: impl FnOnce(Sandboxes) -> Result<T, FilesError> + Send + 'static,
) -> Result<T, Reply> {
    let snapshot = context.snapshot().await?;
    let sandboxes = Sandboxes::new(context.layout.clone(), snapshot.agent_id.clone());
    let containerizer = context.containerizer.get();
    let switches_user =
        containerizer.is_some_and(|containerizer| containerizer.settings().user_switching.is_on());
    let (reader, path) = (caller.approver.clone(), path.to_owned());
    let place = place_of(&path).to_owned();
    let read = context.file_reads.run_at(&place, move || {
        if reader.allows_everything() {
            return work(sandboxes);
        }
        let run = sandboxes.run(&path);
        let user = run.and_then(|run| user_of(&snapshot, &run));
        if switches_user {
            return work(sandboxes.read_by(reader, user));
        }
        // All files belong to the agent's user; the executor's user is known from the launch.
        let allowed = reader.check(Action::AccessSandbox, user.as_deref());
        let conceal = |forbidden| permission::conceal(forbidden, &reader, user.as_deref());
        allowed.map_err(conceal).map_err(FilesError::Forbidden)?;
        work(sandboxes)
    });
    read.await.map_err(unread)?.map_err(Reply::from)
}

fn unread(error: ReadsError) -> Reply {
    let status = match error {
        ReadsError::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        ReadsError::NoAnswer => StatusCode::GATEWAY_TIMEOUT,
    };
    Reply::text(status, &error.to_string())
}

/// Returns the part of a path that names one run of an executor, or a whole path of another form. A silent file system
/// with the files of one run does not block readers of other runs.
fn place_of(path: &str) -> &str {
    const RUNS: &str = "/runs/";
    let run = path.find(RUNS).map(|at| at + RUNS.len());
    let end = run.and_then(|run| Some(run + path.get(run..)?.find('/')?));
    end.and_then(|end| path.get(..end)).unwrap_or(path)
}

/// The user of an executor in this run, while the run is remembered. For the newest run without a sandbox, the user of
/// its current run.
fn user_of(snapshot: &Snapshot, run: &NamedRun) -> Option<String> {
    let over = snapshot.completed_frameworks.iter();
    let found = snapshot.frameworks.get(&run.framework);
    let found = found.or_else(|| over.rev().find(|one| one.id == run.framework))?;
    let executor = match &run.container {
        Some(container) => {
            let mut runs = found.executors.values().chain(&found.completed);
            runs.find(|one| one.key.container == *container)
        }
        None => found.executors.get(run.executor.as_str()),
    }?;
    Some(executor.user.clone())
}

fn path_of(query: &Query) -> Result<String, Reply> {
    let path = query.get("path").filter(|path| !path.is_empty());
    path.map(str::to_owned)
        .ok_or_else(|| bad("Expecting 'path=value' in query.\n"))
}

fn bad(text: &str) -> Reply {
    Reply::text(StatusCode::BAD_REQUEST, text)
}

/// Answers requests for `/files/browse`.
pub(super) async fn browse(permitted: Permitted) -> Result<Reply, Reply> {
    let (context, caller) = (&permitted.context, &permitted.caller);
    let path = path_of(&permitted.query)?;
    let entries = on_disk(context, caller, &path.clone(), move |sandboxes| {
        sandboxes.list(&path)
    })
    .await?;
    Ok(Reply::json(&List(entries.iter().map(entry_value))))
}

fn entry_value(entry: &Entry) -> Value {
    json!({
        "gid": entry.group,
        "mode": entry.mode_text(),
        "mtime": entry.mtime_secs,
        "nlink": entry.links,
        "path": entry.path,
        "size": entry.size,
        "uid": entry.user,
    })
}

/// Answers requests for `/files/read`.
pub(super) async fn read(permitted: Permitted) -> Result<Reply, Reply> {
    let (context, caller, query) = (&permitted.context, &permitted.caller, &permitted.query);
    let path = path_of(query)?;
    let offset = number(query, "offset")?.unwrap_or(-1);
    let length = number(query, "length")?.filter(|length| *length != -1);
    if offset < -1 {
        return Err(bad(&format!("Negative offset provided: {offset}.\n")));
    }
    if let Some(length) = length.filter(|length| *length < 0) {
        return Err(bad(&format!("Negative length provided: {length}.\n")));
    }
    let length = length.and_then(|length| u64::try_from(length).ok());
    let from = u64::try_from(offset).ok();
    let chunk = on_disk(
        context,
        caller,
        &path.clone(),
        move |sandboxes| match from {
            Some(from) => sandboxes.read(&path, from, length),
            None => sandboxes.read(&path, 0, Some(0)),
        },
    )
    .await?;
    let offset = from.unwrap_or(chunk.size);
    let data = String::from_utf8_lossy(&chunk.data);
    Ok(Reply::json(&json!({ "data": data, "offset": offset })))
}

fn number(query: &Query, name: &str) -> Result<Option<i64>, Reply> {
    let Some(text) = query.get(name) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        bad(&format!(
            "Failed to parse {name}: Failed to convert '{text}' to number.\n"
        ))
    })
}

/// Answers requests for `/files/download`.
pub(super) async fn download(permitted: Permitted) -> Result<Reply, Reply> {
    let (context, caller) = (&permitted.context, &permitted.caller);
    let path = path_of(&permitted.query)?;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let (file, size) = on_disk(context, caller, &path.clone(), move |sandboxes| {
        sandboxes.open(&path)
    })
    .await?;
    let body = context
        .file_reads
        .body(file, size, caller)
        .map_err(unread)?;
    Ok(Reply::file(name, size, body))
}

/// `/files/debug`: the virtual paths and the real paths behind them.
pub(super) async fn debug(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let snapshot = context.snapshot().await?;
    let mut paths = serde_json::Map::new();
    for executor in snapshot.executors() {
        let real = context.layout.sandbox(&executor.key).display().to_string();
        let virtual_path = format!(
            "/frameworks/{}/executors/{}/runs/latest",
            executor.key.framework, executor.key.executor
        );
        paths.insert(virtual_path, json!(real));
        paths.insert(real.clone(), json!(real));
    }
    Ok(Reply::json(&Value::Object(paths)))
}

/// The answer to the call LIST_FILES.
pub(super) async fn list_for_api(
    context: &Arc<Context>,
    caller: &Caller,
    path: String,
) -> Result<api::response::ListFiles, Reply> {
    let entries = on_disk(context, caller, &path.clone(), move |sandboxes| {
        sandboxes.list(&path)
    })
    .await?;
    let info = |entry: &Entry| pb::FileInfo {
        path: entry.path.clone(),
        nlink: i32::try_from(entry.links).ok(),
        size: Some(entry.size),
        mtime: Some(pb::TimeInfo {
            nanoseconds: entry.mtime_nanos,
        }),
        mode: Some(entry.mode),
        uid: Some(entry.user.clone()),
        gid: Some(entry.group.clone()),
    };
    Ok(api::response::ListFiles {
        file_infos: entries.iter().map(info).collect(),
    })
}

/// The answer to the call READ_FILE.
pub(super) async fn read_for_api(
    context: &Arc<Context>,
    caller: &Caller,
    read: api::call::ReadFile,
) -> Result<api::response::ReadFile, Reply> {
    let chunk = on_disk(context, caller, &read.path.clone(), move |sandboxes| {
        sandboxes.read(&read.path, read.offset, read.length)
    })
    .await?;
    Ok(api::response::ReadFile {
        size: chunk.size,
        data: chunk.data,
        file_id: Some(chunk.file_id),
    })
}
