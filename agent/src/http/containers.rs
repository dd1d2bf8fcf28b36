//! The calls on nested containers and sessions, which `mesos task exec` and `attach` need.

use std::sync::Arc;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::Caller;
use meseta_daemon::server::stream_body;
use meseta_isolators::ContainerName;
use meseta_proto::media::{self, Accept, MESSAGE_ACCEPT, MediaType};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent as api;
use meseta_proto::mesos::v1::agent::call::Type;
use meseta_proto::mesos::v1::agent::process_io;
use meseta_proto::mesos::v1::agent::response::Type as Answer;
use meseta_resources::ContainerId;
use tokio::sync::mpsc;

use super::Reply;
use super::container_rights::{authorize, authorize_launch, look_up};
use crate::containerizer::Containerizer;
use crate::context::{Context, Unavailable};
use crate::core::{LaunchPlan, Snapshot, Subject, volumes_among};
use crate::nested::output::{OutputReceiver, Stream};
use crate::nested::terminal::WindowSize;
use crate::nested::{Found, NestedError, Reader, SIGKILL};

/// Records of output that wait for their connection.
const RECORDS_MAX: usize = 1;
/// Mesos's message for a container without a terminal, which its command line searches for.
const NO_SWITCHBOARD: &str = "I/O switchboard server was disabled for this container";

pub(super) fn bad(text: &str) -> Reply {
    Reply::text(StatusCode::BAD_REQUEST, text)
}

pub(super) fn refuse(id: &pb::ContainerId, error: &NestedError) -> Reply {
    match error {
        NestedError::Unknown => {
            let text = format!("Container {} cannot be found", full_name(id));
            Reply::text(StatusCode::NOT_FOUND, &text)
        }
        NestedError::Exists => Reply::empty(StatusCode::ACCEPTED),
        NestedError::NoInput => no_switchboard(),
        NestedError::Crowded => Reply::text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        NestedError::Taken => Reply::text(StatusCode::CONFLICT, &error.to_string()),
        NestedError::Running | NestedError::Failed(_) => {
            Reply::text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        }
    }
}

/// The ids from the outermost container inwards, as Mesos shows them.
fn full_name(id: &pb::ContainerId) -> String {
    match &id.parent {
        None => id.value.clone(),
        Some(parent) => format!("{}.{}", full_name(parent), id.value),
    }
}

pub(super) fn checked(id: &pb::ContainerId) -> Result<ContainerId, Reply> {
    ContainerId::try_from(id).map_err(|_| bad("'container_id' contains invalid characters"))
}

fn containerizer(context: &Context) -> Result<&Containerizer, Reply> {
    let ready = context.containerizer.get();
    ready.ok_or_else(|| Unavailable::Recovering.into())
}

/// The request of a client to launch a nested container.
struct NestedRequest {
    id: pb::ContainerId,
    command: Option<pb::CommandInfo>,
    container: Option<pb::ContainerInfo>,
}

fn nested_request(call: api::Call) -> Option<NestedRequest> {
    match call.r#type() {
        Type::LaunchContainer => call.launch_container.map(|launch| NestedRequest {
            id: launch.container_id,
            command: launch.command,
            container: launch.container,
        }),
        Type::LaunchNestedContainer => call.launch_nested_container.map(|launch| NestedRequest {
            id: launch.container_id,
            command: launch.command,
            container: launch.container,
        }),
        _ => call
            .launch_nested_container_session
            .map(|launch| NestedRequest {
                id: launch.container_id,
                command: launch.command,
                container: launch.container,
            }),
    }
}

/// The requested terminal: its size, if the request has one, or `None` without a terminal.
fn terminal(request: &NestedRequest) -> Option<Option<WindowSize>> {
    let info = request.container.as_ref()?.tty_info?;
    Some(info.window_size.map(window_size))
}

/// Converts a window size; values beyond the kernel's range become its maximum.
pub(super) fn window_size(size: pb::tty_info::WindowSize) -> WindowSize {
    let cells = |count| u16::try_from(count).unwrap_or(u16::MAX);
    WindowSize {
        rows: cells(size.rows),
        columns: cells(size.columns),
    }
}

/// Plans the launch of a nested container.
fn plan_of(
    snapshot: &Snapshot,
    request: &NestedRequest,
    is_session: bool,
) -> Result<(LaunchPlan, ContainerId), Reply> {
    let id = checked(&request.id)?;
    ContainerName::new(id.as_str())
        .map_err(|error| bad(&format!("'container_id' cannot be used: {error}")))?;
    let Some(parent) = request.id.parent.as_deref() else {
        return Err(Reply::text(
            StatusCode::NOT_IMPLEMENTED,
            "Standalone containers are not supported: give a parent",
        ));
    };
    if !is_session && terminal(request).is_some() {
        return Err(Reply::text(
            StatusCode::NOT_IMPLEMENTED,
            "Terminals are given to sessions only (LAUNCH_NESTED_CONTAINER_SESSION)",
        ));
    }
    let parent_id = checked(parent)?;
    let parent_entry = snapshot.container(&parent_id);
    let (executor, task) = parent_entry.ok_or_else(|| refuse(parent, &NestedError::Unknown))?;
    let mut command = request.command.clone().unwrap_or_default();
    if command.value.as_deref().unwrap_or_default().is_empty() {
        return Err(bad("Expecting 'command' to have a value"));
    }
    if !command.uris.is_empty() {
        return Err(bad(
            "'command.uris' are fetched for tasks and executors only: have the executor fetch them, or the \
             command itself",
        ));
    }
    let user = match (&command.user, task) {
        (Some(user), _) => user.clone(),
        (None, Some(task)) => task.user.clone(),
        (None, None) => executor.user.clone(),
    };
    if is_session {
        let own = task.and_then(|task| task.info.command.clone());
        let own = own.or_else(|| executor.info.as_ref().and_then(|info| info.command.clone()));
        let own = own.and_then(|command| command.environment);
        let mut variables = own.unwrap_or_default().variables;
        variables.extend(command.environment.unwrap_or_default().variables);
        command.environment = Some(pb::Environment { variables });
    }
    let info = pb::TaskInfo {
        name: request.id.value.clone(),
        task_id: pb::TaskId {
            value: request.id.value.clone(),
        },
        command: Some(command),
        container: request.container.clone().map(Box::new),
        ..pb::TaskInfo::default()
    };
    let info = Arc::new(info);
    let plan = LaunchPlan {
        run: executor.key.clone(),
        container: id,
        subject: if is_session {
            Subject::Task(info)
        } else {
            Subject::Nested(info)
        },
        user,
        role: executor.role.clone(),
        demand: executor.container.demand,
        resources: meseta_resources::Resources::default(),
        volumes: Vec::new(),
        // A group's outer container has no volumes itself; its tasks see theirs in their own sandboxes.
        parent_volumes: match task {
            Some(task) => volumes_among(&task.info.resources),
            None => executor.volumes(|_| true),
        },
    };
    Ok((plan, parent_id))
}

/// Looks up a container by id, and authorizes the action.
pub(super) async fn looked_up(
    context: &Context,
    caller: &Caller,
    kind: Type,
    id: &pb::ContainerId,
) -> Result<Found, Reply> {
    let found = look_up(context, id);
    authorize(context, caller, kind, Some(id), found.as_ref().ok()).await?;
    checked(id)?;
    found.map_err(|error| refuse(id, &error))
}

/// LAUNCH_CONTAINER, WAIT_CONTAINER, KILL_CONTAINER, REMOVE_CONTAINER and their older names.
pub(super) async fn answer(
    context: &Arc<Context>,
    caller: &Caller,
    call: api::Call,
    response: &mut api::Response,
) -> Result<Option<Answer>, Reply> {
    let field = call.r#type().as_str_name().to_lowercase();
    let missing = || {
        bad(&format!(
            "Failed to validate agent::Call: Expecting '{field}' to be present"
        ))
    };
    let containerizer = containerizer(context)?;
    let nested = &context.nested;
    match call.r#type() {
        Type::LaunchContainer | Type::LaunchNestedContainer => {
            let request = nested_request(call).ok_or_else(missing)?;
            let snapshot = context.snapshot().await?;
            let actions = (
                Action::LaunchNestedContainerAsUser,
                Action::LaunchNestedContainerUnderParent,
            );
            authorize_launch(
                caller,
                &snapshot,
                actions,
                &request.id,
                request.command.as_ref(),
            )?;
            let (plan, _) = plan_of(&snapshot, &request, false)?;
            let launched = nested.launch(containerizer, plan).await;
            launched.map_err(|error| refuse(&request.id, &error))?;
            Ok(None)
        }
        Type::WaitContainer | Type::WaitNestedContainer => {
            let is_new = call.r#type() == Type::WaitContainer;
            let id = match is_new {
                true => call.wait_container.map(|wait| wait.container_id),
                false => call.wait_nested_container.map(|wait| wait.container_id),
            };
            let id = id.ok_or_else(missing)?;
            let found = looked_up(context, caller, Type::WaitContainer, &id).await?;
            let ended = found.wait().await;
            let exit_status = ended.map_err(|error| refuse(&id, &error))?;
            if is_new {
                response.wait_container = Some(api::response::WaitContainer {
                    exit_status,
                    ..api::response::WaitContainer::default()
                });
                return Ok(Some(Answer::WaitContainer));
            }
            response.wait_nested_container = Some(api::response::WaitNestedContainer {
                exit_status,
                ..api::response::WaitNestedContainer::default()
            });
            Ok(Some(Answer::WaitNestedContainer))
        }
        Type::KillContainer | Type::KillNestedContainer => {
            let newer = |kill: api::call::KillContainer| (kill.container_id, kill.signal);
            let older = |kill: api::call::KillNestedContainer| (kill.container_id, kill.signal);
            let kill = match call.r#type() {
                Type::KillContainer => call.kill_container.map(newer),
                _ => call.kill_nested_container.map(older),
            };
            let (id, signal) = kill.ok_or_else(missing)?;
            let found = looked_up(context, caller, Type::KillContainer, &id).await?;
            let killed = found.kill(containerizer, signal.unwrap_or(SIGKILL)).await;
            killed.map_err(|error| refuse(&id, &error))?;
            Ok(None)
        }
        _ => {
            let id = match call.r#type() {
                Type::RemoveContainer => call.remove_container.map(|remove| remove.container_id),
                _ => call
                    .remove_nested_container
                    .map(|remove| remove.container_id),
            };
            let id = id.ok_or_else(missing)?;
            let found = looked_up(context, caller, Type::RemoveContainer, &id).await?;
            let removed = nested.remove(found).await;
            removed.map_err(|error| refuse(&id, &error))?;
            Ok(None)
        }
    }
}

fn no_switchboard() -> Reply {
    Reply::text(StatusCode::INTERNAL_SERVER_ERROR, NO_SWITCHBOARD)
}

/// ATTACH_CONTAINER_OUTPUT: the later output of a session. The output of tasks is in their sandboxes.
pub(super) async fn attach_output(
    context: &Arc<Context>,
    caller: &Caller,
    headers: &HeaderMap,
    call: api::Call,
) -> Result<Reply, Reply> {
    let types = stream_types(headers)?;
    let id = call
        .attach_container_output
        .map(|attach| attach.container_id);
    let found = id.as_ref().map(|id| look_up(context, id));
    let looked_up = found.as_ref().and_then(|found| found.as_ref().ok());
    let kind = Type::AttachContainerOutput;
    authorize(context, caller, kind, id.as_ref(), looked_up).await?;
    let id = id.ok_or_else(|| {
        bad("Failed to validate agent::Call: Expecting 'attach_container_output' to be present")
    })?;
    let own = checked(&id)?;
    let found = found.unwrap_or(Err(NestedError::Unknown));
    match found.and_then(|found| found.attach_output()) {
        Ok(Some(chunks)) => Ok(stream(context, types, chunks, None)),
        Ok(None) => Err(no_switchboard()),
        Err(error @ NestedError::Crowded) => Err(refuse(&id, &error)),
        Err(error) => {
            let snapshot = context.snapshot().await?;
            Err(match snapshot.container(&own) {
                Some(_) => no_switchboard(),
                None => refuse(&id, &error),
            })
        }
    }
}

/// The content type of a stream, and the type of its records.
fn stream_types(headers: &HeaderMap) -> Result<(&'static str, MediaType), Reply> {
    let all = [MediaType::Json, MediaType::Protobuf, MediaType::RecordIo];
    let outer = Accept::from_headers(headers, &ACCEPT).choose(&all);
    let outer = outer.ok_or_else(|| Reply::empty(StatusCode::NOT_ACCEPTABLE))?;
    if outer != MediaType::RecordIo {
        no_message_accept(headers)?;
        return Ok((outer.as_str(), outer));
    }
    let message = Accept::from_headers(headers, &MESSAGE_ACCEPT).choose(&MediaType::MESSAGES);
    let message = message.ok_or_else(|| Reply::empty(StatusCode::NOT_ACCEPTABLE))?;
    Ok((outer.as_str(), message))
}

/// Refuses a type for records if the answer has none.
pub(super) fn no_message_accept(headers: &HeaderMap) -> Result<(), Reply> {
    if !headers.contains_key(MESSAGE_ACCEPT) {
        return Ok(());
    }
    let text = "'Message-Accept' is for answers in application/recordio only: leave it out";
    Err(Reply::text(StatusCode::NOT_ACCEPTABLE, text))
}

/// LAUNCH_NESTED_CONTAINER_SESSION: a command in a container that lives as long as a client reads its output.
pub(super) async fn session(
    context: &Arc<Context>,
    caller: &Caller,
    headers: &HeaderMap,
    call: api::Call,
) -> Result<Reply, Reply> {
    let types = stream_types(headers)?;
    let request = nested_request(call).ok_or_else(|| {
        bad("Failed to validate agent::Call: Expecting 'launch_nested_container_session' to be present")
    })?;
    let snapshot = context.snapshot().await?;
    let actions = (
        Action::LaunchNestedContainerSessionAsUser,
        Action::LaunchNestedContainerSessionUnderParent,
    );
    authorize_launch(
        caller,
        &snapshot,
        actions,
        &request.id,
        request.command.as_ref(),
    )?;
    let (plan, parent) = plan_of(&snapshot, &request, true)?;
    let containerizer = containerizer(context)?.clone();
    let nested = &context.nested;
    let session = nested
        .session(&containerizer, plan, &parent, terminal(&request))
        .await;
    let session = session.map_err(|error| refuse(&request.id, &error))?;
    Ok(stream(context, types, session.chunks, Some(session.reader)))
}

/// Converts pieces of output to records; the container ends with the last reader of a session.
fn stream(
    context: &Arc<Context>,
    (outer, media): (&'static str, MediaType),
    mut chunks: OutputReceiver,
    reader: Option<Reader>,
) -> Reply {
    let (sender, records) = mpsc::channel(RECORDS_MAX);
    tokio::spawn(async move {
        let is_gone = loop {
            let chunk = tokio::select! {
                biased;
                () = sender.closed() => break true,
                chunk = chunks.recv() => chunk,
            };
            let Some((stream, bytes)) = chunk else {
                break false;
            };
            let record = media::encode_record(media, &data(stream, &bytes));
            if sender.send(record).await.is_err() {
                break true;
            }
        };
        // Nobody reads the queued pieces any more.
        drop(chunks);
        if let (false, Some(reader)) = (is_gone, reader) {
            reader.has_read_all();
        }
    });
    let body = stream_body(records, context.shutdown.clone());
    let records = (outer == MediaType::RecordIo.as_str()).then(|| media.as_str());
    Reply::stream(outer, records, body)
}

fn data(stream: Stream, bytes: &Bytes) -> api::ProcessIo {
    let kind = match stream {
        Stream::Output => process_io::data::Type::Stdout,
        Stream::Error => process_io::data::Type::Stderr,
    };
    api::ProcessIo {
        r#type: Some(process_io::Type::Data.into()),
        data: Some(process_io::Data {
            r#type: Some(kind.into()),
            data: Some(bytes.to_vec()),
        }),
        ..api::ProcessIo::default()
    }
}
