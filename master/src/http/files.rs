//! `/files/browse`, `/files/read`, `/files/download`, `/files/debug`: the master's log.

use std::io;

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use meseta_daemon::authentication::Caller;
use meseta_daemon::files::ReadsError;
use meseta_daemon::query::Query;
use meseta_proto::mesos::v1::FileInfo;
use serde_json::{Value, json};

use super::output;
use super::responses::text;
use super::routes::{Handled, Permitted};
use crate::context::Context;
use crate::files::{self, Files, FilesError};

/// The error message of Mesos.
const PATH_MISSING: &str = "Expecting 'path=value' in query.\n";

/// The kinds of requests for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRequest {
    Browse,
    Read,
    Download,
    Debug,
}

pub(super) async fn handle(permitted: Permitted, file_request: FileRequest) -> Handled {
    let query = permitted.query();
    let context = &permitted.context;
    if file_request == FileRequest::Download {
        return download(context, &permitted.caller, &query).await;
    }
    let files = context.files.clone();
    let content = context
        .file_reads
        .run(move || show(&files, file_request, &query));
    content.await.map_err(crowded)
}

fn crowded(crowded: ReadsError) -> Response {
    text(StatusCode::SERVICE_UNAVAILABLE, crowded.to_string())
}

fn show(files: &Files, file_request: FileRequest, query: &Query) -> Response {
    if file_request == FileRequest::Debug {
        let all = files.all();
        let paths = all.iter().map(|(name, file_path)| {
            (
                (*name).to_owned(),
                Value::from(file_path.display().to_string()),
            )
        });
        return output::value(query, &Value::Object(paths.collect()));
    }
    let Some(path) = query.get("path").filter(|path| !path.is_empty()) else {
        return text(StatusCode::BAD_REQUEST, PATH_MISSING);
    };
    let content = match file_request {
        FileRequest::Browse => files.list(path).map(|infos| {
            let infos: Vec<Value> = infos.iter().map(view).collect();
            output::value(query, &Value::Array(infos))
        }),
        FileRequest::Read | FileRequest::Download | FileRequest::Debug => read(files, path, query),
    };
    content.unwrap_or_else(refused)
}

fn refused(error: FilesError) -> Response {
    match error {
        FilesError::NotFound => text(StatusCode::NOT_FOUND, ""),
        FilesError::Read { .. } => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Sends the whole current file in chunks: a log may be larger than the memory.
async fn download(context: &Context, caller: &Caller, query: &Query) -> Handled {
    let Some(path) = query.get("path").filter(|path| !path.is_empty()) else {
        return Err(text(StatusCode::BAD_REQUEST, PATH_MISSING));
    };
    let file_path = context.files.path_of(path).map_err(refused)?.to_owned();
    let to_open = file_path.clone();
    let opened = context.file_reads.run(move || {
        let file = std::fs::File::open(to_open)?;
        let length = file.metadata()?.len();
        io::Result::Ok((file, length))
    });
    // The response excludes bytes written after the opening.
    let opened = opened.await.map_err(crowded)?;
    let (file, length) = opened.map_err(|error| refused(files::failed(path, error)))?;
    let body = context.file_reads.body(file, length, caller);
    let body = body.map_err(crowded)?;
    let name = file_path.file_name().unwrap_or_default().to_string_lossy();
    let disposition = format!("attachment; filename={name}");
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

fn read(files: &Files, path: &str, query: &Query) -> Result<Response, FilesError> {
    let number = |name: &str| match query.get(name) {
        None => Ok(None),
        Some(text) => text
            .parse::<i64>()
            .map(Some)
            .map_err(|error| format!("Failed to parse {name}: {error}.\n")),
    };
    let negative = |value: Option<i64>| value.filter(|value| *value < 0);
    let (offset, length) = match (number("offset"), number("length")) {
        (Ok(offset), Ok(length)) => (offset, length),
        (Err(message), _) | (_, Err(message)) => {
            return Ok(text(StatusCode::BAD_REQUEST, message));
        }
    };
    // A length of -1 means no length, as Mesos's page requests the size.
    let length = length.filter(|length| *length != -1);
    if let Some(length) = negative(length) {
        let message = format!("Negative length provided: {length}.\n");
        return Ok(text(StatusCode::BAD_REQUEST, message));
    }
    // Without an offset, the response has only the size, as the offset for the next read.
    let Some(offset) = offset.and_then(|offset| u64::try_from(offset).ok()) else {
        let size = files.read(path, 0, Some(0))?.size;
        return Ok(output::value(query, &json!({"data": "", "offset": size})));
    };
    let length = length.and_then(|length| u64::try_from(length).ok());
    let data = files.read(path, offset, length)?.data;
    let data = String::from_utf8_lossy(&data);
    let body = json!({"data": data, "offset": offset});
    Ok(output::value(query, &body))
}

fn view(info: &FileInfo) -> Value {
    let mode = info.mode.unwrap_or_default();
    let bits = (0..9).rev().map(|bit| {
        let set = mode & (1 << bit) != 0;
        let letter = ['x', 'w', 'r'][bit % 3];
        if set { letter } else { '-' }
    });
    let mode: String = std::iter::once('-').chain(bits).collect();
    let mtime = info
        .mtime
        .as_ref()
        .map(|time| time.nanoseconds / 1_000_000_000);
    json!({
        "path": info.path, "nlink": info.nlink, "size": info.size, "mtime": mtime, "mode": mode,
        "uid": info.uid, "gid": info.gid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_minus_one_reads_all() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "0123456789").unwrap();
        let files = Files::new(Some(log));
        for (query, status) in [
            ("offset=0&length=-1", StatusCode::OK),
            ("offset=-1&length=-1", StatusCode::OK),
            ("offset=0&length=-2", StatusCode::BAD_REQUEST),
        ] {
            let answer = read(&files, "/master/log", &Query::parse(query)).unwrap();
            assert_eq!(answer.status(), status, "{query}");
        }
    }
}
