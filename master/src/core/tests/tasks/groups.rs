//! Task groups and executors: launched as a whole, refused as a whole.

use super::*;

fn begin() -> (World, Node, Scheduler, v1::Offer) {
    let resources = "cpus:4;mem:1024;disk:1024;ports:[31000-31009]";
    let (mut world, node, scheduler, offer) = World::with_offer(plain(), resources);
    world.take_frames(node.connection);
    (world, node, scheduler, offer)
}

pub(in crate::core::tests) fn executor(scheduler: &Scheduler, id: &str) -> v1::ExecutorInfo {
    v1::ExecutorInfo {
        executor_id: executor_id(id),
        framework_id: Some(framework_id(&scheduler.id)),
        r#type: Some(v1::executor_info::Type::Default.into()),
        resources: wire("cpus:0.1;mem:32;disk:8"),
        ..v1::ExecutorInfo::default()
    }
}

pub(in crate::core::tests) fn group(
    executor: v1::ExecutorInfo,
    tasks: Vec<v1::TaskInfo>,
) -> v1::offer::Operation {
    v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::LaunchGroup.into()),
        launch_group: Some(v1::offer::operation::LaunchGroup {
            executor,
            task_group: v1::TaskGroupInfo { tasks },
        }),
        ..v1::offer::Operation::default()
    }
}

pub(in crate::core::tests) fn accept_all(
    offer: &v1::Offer,
    operations: Vec<v1::offer::Operation>,
) -> Action {
    Action::Accept(call::Accept {
        offer_ids: vec![offer.id.clone()],
        operations,
        filters: None,
    })
}

/// Launches a group of one task under the executor `pod`.
fn launch_pod(world: &mut World, scheduler: &Scheduler, offer: &v1::Offer, task: &str) {
    let tasks = vec![task_on(&offer.agent_id.value, task, "cpus:1;mem:64")];
    let pod = group(executor(scheduler, "pod"), tasks);
    world.call_accepted(scheduler, accept_all(offer, vec![pod]));
}

fn with(mut task: v1::TaskInfo, change: impl Fn(&mut v1::TaskInfo)) -> v1::TaskInfo {
    change(&mut task);
    task
}

fn unshared() -> v1::ContainerInfo {
    v1::ContainerInfo {
        r#type: v1::container_info::Type::Mesos.into(),
        linux_info: Some(v1::LinuxInfo {
            share_cgroups: Some(false),
            ..v1::LinuxInfo::default()
        }),
        ..v1::ContainerInfo::default()
    }
}

#[test]
fn task_group_is_sent_with_executor() {
    let (mut world, node, scheduler, offer) = begin();
    let tasks = vec![
        task(&node, "a", "cpus:1;mem:64"),
        task(&node, "b", "cpus:0.5;mem:32"),
    ];
    let pod = group(executor(&scheduler, "pod"), tasks);
    world.call_accepted(&scheduler, accept_all(&offer, vec![pod]));
    let sent = taken!(world, node.connection, RunTaskGroup);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].launch_executor);
    assert!(sent[0].accepted_time.is_some());
    assert_eq!(sent[0].executor.executor_id.value, "pod");
    for task in &sent[0].task_group.tasks {
        assert_eq!(task.executor.as_deref(), Some(&sent[0].executor));
    }
    let allocated = &sent[0].executor.resources[0].allocation_info;
    assert_eq!(allocated.as_ref().unwrap().role.as_deref(), Some("dev"));

    let snapshot = world.core.snapshot();
    let used = snapshot.agents[0].used_total().unallocate();
    assert_eq!(used, parse("cpus:1.6;mem:128;disk:8"));
    assert_eq!(snapshot.agents[0].executors.len(), 1);
    for record in snapshot.agents[0].tasks.values() {
        assert_eq!(record.state, TaskState::TaskStaging);
        assert_eq!(record.executor_id.as_ref().unwrap().as_str(), "pod");
    }

    // A second group under the same executor adds no executor resources.
    world.live(7 * SECOND, &[&node]);
    let offer = world.offers(&scheduler).pop().unwrap();
    assert_eq!(offer.executor_ids[0].value, "pod");
    let more = vec![task(&node, "c", "cpus:1;mem:64")];
    let pod = group(executor(&scheduler, "pod"), more);
    world.call(&scheduler, accept_all(&offer, vec![pod]));
    let sent = taken!(world, node.connection, RunTaskGroup);
    assert!(!sent[0].launch_executor);
    let used = world.core.snapshot().agents[0].used_total().unallocate();
    assert_eq!(used, parse("cpus:2.6;mem:192;disk:8"));
}

type Make<'a> = &'a dyn Fn(&Node) -> Vec<v1::TaskInfo>;

/// The messages for the tasks of a group that was refused as a whole.
struct Refused(Vec<String>);

impl Refused {
    #[track_caller]
    fn says(&self, text: &str) {
        for message in &self.0 {
            assert_says(message, text);
        }
    }
}

fn refused(executor: &v1::ExecutorInfo, tasks: Make<'_>) -> Refused {
    let (mut world, node, scheduler, offer) = begin();
    let tasks = tasks(&node);
    let count = tasks.len();
    let group = group(executor.clone(), tasks);
    world.call(&scheduler, accept_all(&offer, vec![group]));
    let updates = world.updates(&scheduler);
    assert_eq!(updates.len(), count);
    for status in &updates {
        assert_eq!(status.state(), TaskState::TaskError);
        assert_eq!(status.reason(), v1::task_status::Reason::TaskGroupInvalid);
    }
    let snapshot = world.core.snapshot();
    assert!(snapshot.agents[0].tasks.is_empty() && snapshot.agents[0].used.is_empty());
    Refused(
        updates
            .into_iter()
            .map(|one| one.message.unwrap())
            .collect(),
    )
}

#[test]
fn invalid_group_is_refused_with_reason() {
    let (_, _, probe, _) = begin();
    let good = executor(&probe, "pod");
    let changed = |change: &dyn Fn(&mut v1::ExecutorInfo)| {
        let mut executor = good.clone();
        change(&mut executor);
        executor
    };
    let two: Make<'_> = &|node| {
        vec![
            task(node, "a", "cpus:1;mem:64"),
            task(node, "b", "cpus:1;mem:64"),
        ]
    };
    let second = |change: &'static dyn Fn(&mut v1::TaskInfo)| {
        move |node: &Node| {
            vec![
                task(node, "a", "cpus:1;mem:64"),
                with(task(node, "b", "cpus:1;mem:64"), change),
            ]
        }
    };
    let bad_id = second(&|task| task.task_id.value = "x/y".to_owned());
    let twin = second(&|task| task.task_id.value = "a".to_owned());
    let other_executor = second(&|task| {
        task.executor = Some(Box::new(v1::ExecutorInfo {
            executor_id: executor_id("other"),
            ..v1::ExecutorInfo::default()
        }));
    });
    let docker = second(&|task| {
        task.container = Some(Box::new(v1::ContainerInfo {
            r#type: v1::container_info::Type::Docker.into(),
            docker: Some(v1::container_info::DockerInfo::default()),
            ..v1::ContainerInfo::default()
        }));
    });
    let own_groups = second(&|task| task.container = Some(Box::new(unshared())));
    let too_much = second(&|task| task.resources = wire("cpus:9;mem:64"));
    let own_network = second(&|task| {
        task.container = Some(Box::new(v1::ContainerInfo {
            r#type: v1::container_info::Type::Mesos.into(),
            network_infos: vec![v1::NetworkInfo::default()],
            ..v1::ContainerInfo::default()
        }));
        task.health_check = Some(Box::new(v1::HealthCheck {
            r#type: Some(v1::health_check::Type::Tcp.into()),
            tcp: Some(v1::health_check::TcpCheckInfo::default()),
            ..v1::HealthCheck::default()
        }));
    });
    let shared_executor = changed(&|executor| {
        let mut container = unshared();
        container.linux_info.as_mut().unwrap().share_cgroups = Some(true);
        executor.container = Some(Box::new(container));
    });
    let same_port = second(&|task| task.resources = wire("cpus:1;ports:[31000-31001]"));
    let with_port = changed(&|executor| {
        executor.resources.extend(wire("ports:[31001-31002]"));
    });
    refused(&with_port, &same_port)
        .says("There are overlapping resources in the task group's task resources {");
    refused(&good, &bad_id).says("Task 'x/y' is invalid: 'x/y' contains invalid characters");
    refused(&good, &twin).says("Task 'a' is invalid: Task has duplicate ID: a");
    refused(&good, &other_executor)
        .says("The `ExecutorInfo` of task 'b' is different from executor 'pod'");
    refused(&good, &docker)
        .says("Task 'b' is invalid: Docker ContainerInfo is not supported on the task");
    refused(&good, &own_groups).says("the value of 'share_cgroups' must be the same for all tasks");
    refused(&good, &too_much)
        .says("required by task group and its executor are more than available");
    refused(&good, &own_network).says("HTTP and TCP health checks are not supported for nested");
    refused(&changed(&|e| e.framework_id = None), two)
        .says("'ExecutorInfo.framework_id' must be set");
    refused(&changed(&|e| e.r#type = None), two).says("'ExecutorInfo.type' must be set");
    refused(&changed(&|e| e.r#type = Some(0)), two).says("Unknown executor type");
    refused(
        &changed(&|e| e.command = Some(v1::CommandInfo::default())),
        two,
    )
    .says("'ExecutorInfo.command' must not be set for 'DEFAULT' executor");
    refused(&changed(&|e| e.r#type = Some(2)), two)
        .says("'ExecutorInfo.command' must be set for 'CUSTOM' executor");
    refused(&changed(&|e| e.resources = wire("mem:32;disk:8")), two)
        .says("Executor 'pod' uses less CPUs (None) than the minimum required (0.01)");
    refused(
        &changed(&|e| e.resources = wire("cpus:0.1;mem:16;disk:8")),
        two,
    )
    .says("Executor 'pod' uses less memory (16MB) than the minimum required (32MB)");
    refused(&changed(&|e| e.resources = wire("cpus:0.1;mem:32")), two)
        .says("Executor 'pod' uses no disk");
    refused(&shared_executor, two)
        .says("The 'share_cgroups' field cannot be set to 'true' on executor containers");
}

#[test]
fn invalid_offers_drop_all_groups() {
    let (mut world, node, scheduler, offer) = begin();
    let pod = |name: &str| {
        group(
            executor(&scheduler, name),
            vec![task(&node, name, "cpus:1;mem:64")],
        )
    };
    let mut named = pod("a");
    named.id = Some(v1::OperationId {
        value: "op".to_owned(),
    });
    world.call(&scheduler, accept_all(&offer, vec![named]));
    let update = world.updates(&scheduler).pop().unwrap();
    assert_eq!(
        update.message(),
        "The `id` field cannot be set on LAUNCH_GROUP operations"
    );
    assert_eq!(update.reason(), v1::task_status::Reason::TaskGroupInvalid);

    world.call(&scheduler, accept_all(&offer, vec![pod("b")]));
    let update = world.updates(&scheduler).pop().unwrap();
    assert_eq!(update.state(), TaskState::TaskLost);
    assert_eq!(update.reason(), v1::task_status::Reason::InvalidOffers);
}

#[test]
fn reported_executors_survive_master_restart() {
    let (mut world, node, scheduler, offer) = begin();
    launch_pod(&mut world, &scheduler, &offer, "a");
    let sent = taken!(world, node.connection, RunTaskGroup).pop().unwrap();
    let mut reported = running(&node, &scheduler, "a", "cpus:1;mem:64", "dev");
    reported.executor_id = Some(executor_id("pod"));
    let info = info_of(&scheduler);
    let mut told = report(&node, vec![reported.clone()], vec![info.clone()]);
    told.executors = vec![sent.executor.clone()];

    let mut world = world.restart();
    let back = world.handshake(AgentMessage::Reregister(told));
    let scheduler = world.subscribe(info.clone());
    let snapshot = world.core.snapshot();
    assert_eq!(snapshot.agents[0].executors.len(), 1);
    let used = snapshot.agents[0].used_total().unallocate();
    assert_eq!(used, parse("cpus:1.1;mem:96;disk:8"));

    // The same executor still runs: a group for it needs no new one.
    let node = Node {
        connection: back,
        ..node
    };
    let offer = world.offers(&scheduler).pop().unwrap();
    launch_pod(&mut world, &scheduler, &offer, "b");
    let sent = taken!(world, back, RunTaskGroup).pop().unwrap();
    assert!(!sent.launch_executor);

    // The agent returns without the executor: its resources are free.
    world.reregister(&node, vec![reported], vec![info]);
    let snapshot = world.core.snapshot();
    assert!(snapshot.agents[0].executors.is_empty());
}

#[test]
fn idle_executors_learn_changed_framework() {
    let (mut world, node, scheduler, offer) = begin();
    launch_pod(&mut world, &scheduler, &offer, "a");
    world.update(&node, &scheduler, "a", TaskState::TaskFinished, 1);
    world.acknowledge(&node, &scheduler, "a", 1);
    world.take_frames(node.connection);
    let mut info = info_of(&scheduler);
    info.name = "renamed".to_owned();
    let update = Action::UpdateFramework(Box::new(Subscribe {
        info,
        suppressed_roles: Vec::new(),
        offer_constraints: None,
    }));
    world.call_done(&scheduler, update);
    let frames = world.take_frames(node.connection);
    assert!(frames.iter().any(|frame| matches!(
        frame,
        MasterMessage::UpdateFramework(update) if update.framework.name == "renamed"
    )));
}

/// The master sends each task of a group with the executor: a short call may become long messages.
#[test]
fn overlong_group_for_agent_is_refused() {
    let mut world = World::new();
    let mut register = register(5051, "cpus:64;mem:8192;disk:1024");
    register.frame_bytes_max = Some(1 << 20);
    let node = world.agent_that_says(register);
    let scheduler = world.subscribe(plain());
    let offer = world.offers(&scheduler).pop().unwrap();
    world.take_frames(node.connection);
    let pod = |count: usize| {
        let mut executor = executor(&scheduler, &format!("e{count}"));
        executor.data = Some(vec![0; 200 << 10]);
        let ids = (0..count).map(|number| format!("t{count}-{number}"));
        let tasks = ids.map(|id| task(&node, &id, "cpus:0.1;mem:32"));
        group(executor, tasks.collect())
    };
    world.call(&scheduler, accept_all(&offer, vec![pod(3), pod(6)]));
    let sent = taken!(world, node.connection, RunTaskGroup);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].executor.executor_id.value, "e3");
    let errors = world.updates(&scheduler);
    assert_eq!(errors.len(), 6);
    for status in errors {
        assert_eq!(status.state(), TaskState::TaskError);
        let text = status.message.unwrap_or_default();
        assert_says(&text, "1048576 bytes at most");
    }
    for (bytes, is_sent) in [(1 << 20, false), (1 << 10, true)] {
        let message = Action::Message(call::Message {
            agent_id: agent_id(&node.id),
            executor_id: executor_id("e3"),
            data: vec![0; bytes],
        });
        world.call(&scheduler, message);
        let sent = world.take_frames(node.connection);
        assert_eq!(sent.len(), usize::from(is_sent), "{bytes}");
    }
}
