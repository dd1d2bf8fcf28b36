//! The operator API of the agent, `POST /api/v1`, in JSON and in protobuf.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use meseta_daemon::authentication::Caller;
use meseta_proto::json;
use meseta_proto::media::{self, MESSAGE_CONTENT_TYPE, MediaType};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent as api;
use meseta_proto::mesos::v1::agent::call::Type;
use meseta_proto::mesos::v1::agent::response::Type as Answer;

use super::routes::Permitted;
use super::statistics::{container_status, sampled};
use super::{Reply, attach_input, containers, files, read_call};
use crate::context::Context;
use crate::core::{Executor, ExecutorKind, Framework, Phase, Snapshot};
use crate::monitor::statistics::resource_statistics;
use crate::permission;

pub(super) async fn call(permitted: Permitted) -> Result<Reply, Reply> {
    let (context, caller) = (&permitted.context, &permitted.caller);
    let request = permitted.request;
    let refuse = |error: media::Error| Reply::text(error.status(), &error.to_string());
    let streams = request.headers().get(http::header::CONTENT_TYPE);
    if streams.is_some_and(|kind| kind == MediaType::RecordIo.as_str()) {
        return attach_input::attach_input(context, caller, request).await;
    }
    let content_type = media::content_type(request.headers(), &MediaType::MESSAGES);
    let content_type = content_type.map_err(refuse)?;
    if request.headers().contains_key(MESSAGE_CONTENT_TYPE) {
        let text = "'Message-Content-Type' is for calls in application/recordio only: leave it out";
        return Err(Reply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let headers = request.headers().clone();
    let (call, _charge): (api::Call, _) = read_call(context, caller, content_type, request).await?;
    permission::check(caller, permission::call(call.r#type()))?;
    match call.r#type() {
        Type::LaunchNestedContainerSession => {
            return containers::session(context, caller, &headers, call).await;
        }
        Type::AttachContainerOutput => {
            return containers::attach_output(context, caller, &headers, call).await;
        }
        _ => {}
    }
    let accept = media::accept(&headers).map_err(refuse)?;
    containers::no_message_accept(&headers)?;
    let Some(response) = answer(context, caller, call).await? else {
        return Ok(Reply::empty(StatusCode::OK));
    };
    if accept == MediaType::Json {
        return Ok(Reply::bytes(accept.as_str(), response_json(&response)));
    }
    Ok(Reply::bytes(
        accept.as_str(),
        media::encode(accept, &response),
    ))
}

/// A response in JSON. As in Mesos, some lists are present even if empty: clients index them without a check.
fn response_json(response: &api::Response) -> Vec<u8> {
    let part = if let Some(tasks) = &response.get_tasks {
        tasks_json(tasks)
    } else if let Some(executors) = &response.get_executors {
        executors_json(executors)
    } else if let Some(frameworks) = &response.get_frameworks {
        frameworks_json(frameworks)
    } else if let Some(containers) = &response.get_containers {
        let is_empty = containers.containers.is_empty();
        json::object_with_lists(containers, &[("containers", is_empty)])
    } else if let Some(listed) = &response.list_files {
        json::object_with_lists(listed, &[("file_infos", listed.file_infos.is_empty())])
    } else if let Some(state) = &response.get_state {
        let parts = [
            ("get_tasks", state.get_tasks.as_ref().map(tasks_json)),
            (
                "get_executors",
                state.get_executors.as_ref().map(executors_json),
            ),
            (
                "get_frameworks",
                state.get_frameworks.as_ref().map(frameworks_json),
            ),
        ];
        json::object_of_parts(parts)
    } else {
        return media::encode(MediaType::Json, response);
    };
    let kind = response.r#type().as_str_name();
    json::response(kind, &part)
}

fn tasks_json(tasks: &api::response::GetTasks) -> Vec<u8> {
    let lists = [
        ("pending_tasks", tasks.pending_tasks.is_empty()),
        ("queued_tasks", tasks.queued_tasks.is_empty()),
        ("launched_tasks", tasks.launched_tasks.is_empty()),
        ("terminated_tasks", tasks.terminated_tasks.is_empty()),
        ("completed_tasks", tasks.completed_tasks.is_empty()),
    ];
    json::object_with_lists(tasks, &lists)
}

fn executors_json(executors: &api::response::GetExecutors) -> Vec<u8> {
    let lists = [
        ("executors", executors.executors.is_empty()),
        (
            "completed_executors",
            executors.completed_executors.is_empty(),
        ),
    ];
    json::object_with_lists(executors, &lists)
}

fn frameworks_json(frameworks: &api::response::GetFrameworks) -> Vec<u8> {
    let lists = [
        ("frameworks", frameworks.frameworks.is_empty()),
        (
            "completed_frameworks",
            frameworks.completed_frameworks.is_empty(),
        ),
    ];
    json::object_with_lists(frameworks, &lists)
}

fn invalid(what: &str) -> Reply {
    let text = format!("Failed to validate agent::Call: {what}");
    Reply::text(StatusCode::BAD_REQUEST, &text)
}

/// The answer to a call with a result; `None` for a call without.
async fn answer(
    context: &Arc<Context>,
    caller: &Caller,
    call: api::Call,
) -> Result<Option<api::Response>, Reply> {
    let kind = call.r#type.and_then(|kind| Type::try_from(kind).ok());
    let Some(kind) = kind.filter(|kind| *kind != Type::Unknown) else {
        return Err(invalid("Expecting 'type' to be present"));
    };
    let mut response = api::Response::default();
    let answer = match kind {
        Type::GetHealth => {
            response.get_health = Some(api::response::GetHealth { healthy: true });
            Answer::GetHealth
        }
        Type::GetVersion => {
            response.get_version = Some(version(context));
            Answer::GetVersion
        }
        Type::GetFlags => {
            response.get_flags = Some(flags(context));
            Answer::GetFlags
        }
        Type::GetLoggingLevel => {
            let level = context.verbosity.level();
            response.get_logging_level = Some(api::response::GetLoggingLevel { level });
            Answer::GetLoggingLevel
        }
        Type::SetLoggingLevel => {
            let set = call.set_logging_level;
            let set = set.ok_or_else(|| invalid("Expecting 'set_logging_level' to be present"))?;
            let duration = u64::try_from(set.duration.nanoseconds).map(Duration::from_nanos);
            let duration = duration.map_err(|_| invalid("'duration' must not be negative"))?;
            context.verbosity.raise(set.level, duration);
            caller.audit("SET_LOGGING_LEVEL", &set.level.to_string(), "done");
            return Ok(None);
        }
        Type::GetMetrics => {
            response.get_metrics = Some(metrics(context).await);
            Answer::GetMetrics
        }
        Type::ListFiles => {
            let path = call.list_files.map(|list| list.path);
            let path = path.ok_or_else(|| invalid("Expecting 'list_files' to be present"))?;
            response.list_files = Some(files::list_for_api(context, caller, path).await?);
            Answer::ListFiles
        }
        Type::ReadFile => {
            let read = call.read_file;
            let read = read.ok_or_else(|| invalid("Expecting 'read_file' to be present"))?;
            response.read_file = Some(files::read_for_api(context, caller, read).await?);
            Answer::ReadFile
        }
        Type::GetState
        | Type::GetTasks
        | Type::GetExecutors
        | Type::GetFrameworks
        | Type::GetContainers
        | Type::GetAgent
        | Type::GetOperations
        | Type::GetResourceProviders => {
            let snapshot = if kind == Type::GetContainers {
                context.containers(caller).await?
            } else {
                context.view(caller).await?
            };
            let answer = from_snapshot(context, &snapshot, kind, &mut response);
            let asked = call.get_containers.unwrap_or_default();
            if let Some(told) = response.get_containers.as_mut()
                && asked.show_nested()
            {
                told.containers.extend(nested(context, &snapshot));
            }
            answer
        }
        Type::LaunchContainer
        | Type::LaunchNestedContainer
        | Type::WaitContainer
        | Type::WaitNestedContainer
        | Type::KillContainer
        | Type::KillNestedContainer
        | Type::RemoveContainer
        | Type::RemoveNestedContainer => {
            match containers::answer(context, caller, call, &mut response).await? {
                Some(answer) => answer,
                None => return Ok(None),
            }
        }
        other => return Err(not_implemented(other)),
    };
    response.r#type = Some(answer.into());
    Ok(Some(response))
}

fn not_implemented(kind: Type) -> Reply {
    let text = format!("agent::Call {} is not implemented yet", kind.as_str_name());
    Reply::text(StatusCode::NOT_IMPLEMENTED, &text)
}

fn from_snapshot(
    context: &Context,
    snapshot: &Snapshot,
    kind: Type,
    response: &mut api::Response,
) -> Answer {
    match kind {
        Type::GetTasks => {
            response.get_tasks = Some(tasks(snapshot));
            Answer::GetTasks
        }
        Type::GetExecutors => {
            response.get_executors = Some(executors(snapshot));
            Answer::GetExecutors
        }
        Type::GetFrameworks => {
            response.get_frameworks = Some(frameworks(snapshot));
            Answer::GetFrameworks
        }
        Type::GetContainers => {
            response.get_containers = Some(containers(context, snapshot));
            Answer::GetContainers
        }
        Type::GetAgent => {
            let mut info = snapshot.info.clone();
            info.id = snapshot.agent_id.as_ref().map(|id| pb::AgentId {
                value: id.to_string(),
            });
            response.get_agent = Some(api::response::GetAgent {
                agent_info: Some(info),
                drain_config: snapshot.draining.map(|draining| draining.config),
                estimated_drain_start_time: snapshot.draining.map(|draining| pb::TimeInfo {
                    nanoseconds: i64::try_from(draining.since.as_nanos()).unwrap_or(i64::MAX),
                }),
            });
            Answer::GetAgent
        }
        Type::GetOperations => {
            let operations = snapshot.operations.iter();
            response.get_operations = Some(api::response::GetOperations {
                operations: operations.map(|one| (**one).clone()).collect(),
            });
            Answer::GetOperations
        }
        Type::GetResourceProviders => {
            response.get_resource_providers = Some(api::response::GetResourceProviders::default());
            Answer::GetResourceProviders
        }
        _ => {
            response.get_state = Some(api::response::GetState {
                get_tasks: Some(tasks(snapshot)),
                get_executors: Some(executors(snapshot)),
                get_frameworks: Some(frameworks(snapshot)),
            });
            Answer::GetState
        }
    }
}

fn version(context: &Context) -> api::response::GetVersion {
    api::response::GetVersion {
        version_info: context.build.version_info(meseta_proto::INTERFACE_VERSION),
    }
}

fn flags(context: &Context) -> api::response::GetFlags {
    let flags = context.flags.iter();
    api::response::GetFlags {
        flags: flags
            .map(|(name, value)| pb::Flag {
                name: name.clone(),
                value: Some(value.clone()),
            })
            .collect(),
    }
}

async fn metrics(context: &Arc<Context>) -> api::response::GetMetrics {
    let keys = crate::metrics::mesos_keys(context).await;
    let pairs = keys.as_object().into_iter().flatten();
    api::response::GetMetrics {
        metrics: pairs
            .map(|(name, number)| pb::Metric {
                name: name.clone(),
                value: number.as_f64(),
            })
            .collect(),
    }
}

fn tasks(snapshot: &Snapshot) -> api::response::GetTasks {
    let mut tasks = api::response::GetTasks::default();
    for executor in snapshot.executors() {
        for task in executor.tasks.values() {
            let message = task.to_message();
            if task.is_terminal() {
                tasks.terminated_tasks.push(message);
            } else if executor.kind == ExecutorKind::Custom && !task.delivered {
                tasks.queued_tasks.push(message);
            } else {
                tasks.launched_tasks.push(message);
            }
        }
        let over = executor.completed.iter();
        tasks
            .completed_tasks
            .extend(over.map(|task| task.to_message()));
    }
    let completed = all_frameworks(snapshot).flat_map(|framework| &framework.completed);
    let over = completed.flat_map(|executor| executor.all_tasks());
    tasks
        .completed_tasks
        .extend(over.map(|task| task.to_message()));
    tasks
}

fn executors(snapshot: &Snapshot) -> api::response::GetExecutors {
    let entry = |executor: &Arc<Executor>| api::response::get_executors::Executor {
        executor_info: executor.describe(),
    };
    let completed = all_frameworks(snapshot).flat_map(|framework| &framework.completed);
    api::response::GetExecutors {
        executors: snapshot.executors().map(entry).collect(),
        completed_executors: completed.map(entry).collect(),
    }
}

fn frameworks(snapshot: &Snapshot) -> api::response::GetFrameworks {
    let entry = |framework: &Arc<Framework>| api::response::get_frameworks::Framework {
        framework_info: (*framework.info).clone(),
    };
    api::response::GetFrameworks {
        frameworks: snapshot.frameworks.values().map(entry).collect(),
        completed_frameworks: snapshot.completed_frameworks.iter().map(entry).collect(),
    }
}

/// Containers inside executors' containers: those of groups' tasks, and those requested through this API. There are no
/// standalone containers, so that `show_standalone` adds nothing.
fn nested(context: &Context, snapshot: &Snapshot) -> Vec<api::response::get_containers::Container> {
    let asked_for = context.nested.running();
    let mut all = Vec::new();
    for executor in snapshot.executors().filter(|executor| executor.is_live()) {
        let of_tasks = executor
            .tasks
            .values()
            .filter_map(|task| task.nested.as_ref());
        let of_tasks = of_tasks.filter(|nested| nested.phase == Phase::Running);
        let asked_for = asked_for
            .iter()
            .filter(|id| id.root() == executor.container.id);
        for id in of_tasks.map(|nested| &nested.id).chain(asked_for) {
            let container_id = pb::ContainerId::from(id);
            all.push(api::response::get_containers::Container {
                framework_id: Some(pb::FrameworkId {
                    value: executor.key.framework.to_string(),
                }),
                executor_id: Some(pb::ExecutorId {
                    value: executor.key.executor.to_string(),
                }),
                executor_name: Some(executor.name()),
                container_id: container_id.clone(),
                container_status: Some(pb::ContainerStatus {
                    container_id: Some(container_id),
                    ..pb::ContainerStatus::default()
                }),
                resource_statistics: None,
            });
        }
    }
    all
}

fn containers(context: &Context, snapshot: &Snapshot) -> api::response::GetContainers {
    let entries = sampled(context, snapshot);
    let entries = entries.map(
        |(executor, sample)| api::response::get_containers::Container {
            framework_id: Some(pb::FrameworkId {
                value: executor.key.framework.to_string(),
            }),
            executor_id: Some(pb::ExecutorId {
                value: executor.key.executor.to_string(),
            }),
            executor_name: Some(executor.name()),
            container_id: pb::ContainerId {
                value: executor.key.container.to_string(),
                parent: None,
            },
            container_status: Some(container_status(executor)),
            resource_statistics: sample
                .map(|sample| resource_statistics(&sample, context.enable_cfs)),
        },
    );
    api::response::GetContainers {
        containers: entries.collect(),
    }
}

fn all_frameworks(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<Framework>> {
    let live = snapshot.frameworks.values();
    live.chain(&snapshot.completed_frameworks)
}
