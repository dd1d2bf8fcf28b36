//! Registration with a master, and the loss of a master.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskDropped, TaskLost, TaskRunning};
use meseta_proto::mesos::v1::task_status::Reason;

use meseta_resources::{ContainerId, ExecutorId, FrameworkId};

use super::simulation::{PING_TIMEOUT, Seen, Simulation, framework_id, registered, task, task_id};
use crate::core::{Exit, ExitReason, Input, State};

/// A task as it is reported.
fn task_of(encoded: &[u8]) -> pb::Task {
    prost::Message::decode(encoded).expect("a task")
}

#[test]
fn first_attempt_is_immediate_retries_wait() {
    let mut simulation = Simulation::new();
    assert_eq!(simulation.connects(), 1);
    let mut pauses = Vec::new();
    for attempt in 2..12 {
        simulation.link_down();
        let before = simulation.now.moment;
        while simulation.connects() < attempt {
            let next = simulation
                .core
                .next_deadline()
                .expect("another attempt is planned");
            simulation.advance(next.saturating_since(simulation.now.moment));
        }
        pauses.push(simulation.now.moment.saturating_since(before));
    }
    for (doublings, pause) in pauses.iter().enumerate() {
        let ceiling = Duration::from_secs(1 << doublings.min(10)).min(Duration::from_secs(15));
        assert!(
            *pause <= ceiling && *pause >= ceiling / 2,
            "{doublings}: {pause:?}"
        );
    }
    assert!(
        pauses.windows(2).any(|pair| pair[0] * 2 != pair[1]),
        "there is no jitter: {pauses:?}"
    );
}

#[test]
fn agent_registers_or_reregisters_by_id() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    assert!(
        matches!(&simulation.frames[..], [FromAgent::Register(register)]
        if register.agent_info.id.is_none())
    );
    simulation.tell(registered());
    simulation.running(task("t"));
    simulation.frames.clear();
    simulation.link_down();
    assert_eq!(simulation.core.state(), State::Disconnected);
    simulation.link_up();
    let [FromAgent::Reregister(told)] = &simulation.frames[..] else {
        panic!("{:?}", simulation.frames);
    };
    assert_eq!(
        told.register
            .agent_info
            .id
            .as_ref()
            .map(|id| id.value.as_str()),
        Some("S0")
    );
    assert_eq!(told.tasks.len(), 1);
    assert_eq!(task_of(&told.tasks[0]).state(), TaskRunning);
    assert_eq!(told.frameworks.len(), 1);
}

#[test]
fn terminal_task_is_resent_until_acknowledged() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.end(&container, crate::core::Exit::Code(0));
    simulation.link_down();
    simulation.frames.clear();
    simulation.link_up();
    let FromAgent::Reregister(told) = simulation.frames.remove(0) else {
        panic!("not a return");
    };
    assert_eq!(told.tasks.len(), 1);
    assert_eq!(task_of(&told.tasks[0]).state(), pb::TaskState::TaskFinished);
    simulation.tell(registered());
    simulation.acknowledge_all();
    simulation.link_down();
    simulation.frames.clear();
    simulation.link_up();
    assert!(
        matches!(&simulation.frames[..], [FromAgent::Reregister(told)] if told.tasks.is_empty())
    );
}

#[test]
fn lower_epoch_master_is_not_obeyed() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.tell_with_epoch(5, registered());
    simulation.tell_with_epoch(
        4,
        ToAgent::Shutdown(wire::Shutdown {
            reason: String::new(),
        }),
    );
    assert_eq!(simulation.core.state(), State::Running);
    simulation.link_down();
    simulation.link_up();
    simulation.tell_with_epoch(4, registered());
    assert_eq!(simulation.core.state(), State::Disconnected);
    simulation.advance(Duration::from_secs(2));
    simulation.link_up();
    simulation.tell_with_epoch(6, registered());
    assert_eq!(simulation.core.state(), State::Running);
}

#[test]
fn new_registry_accepted_after_old_expires() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.tell(registered());
    simulation.running(task("t"));
    simulation.link_down();
    simulation.link_up();
    simulation.tell_with_epoch(3, registered());
    simulation.link_down();
    let mut refusals = 0;
    // The agent keeps trying; after some time it accepts the new registry.
    while simulation.core.state() != State::Running {
        simulation.link_up();
        simulation.tell_with_epoch(1, registered());
        if simulation.core.state() != State::Running {
            refusals += 1;
            simulation.advance(Duration::from_secs(16));
        }
        assert!(refusals < 10, "never taken");
    }
    assert!(refusals >= 3, "taken too soon");
    assert!(simulation.kills().is_empty());
}

/// Returns the log output of `work`.
fn logged(work: impl FnOnce()) -> String {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let writer = std::sync::Arc::new(log.reopen().expect("a writer"));
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(writer);
    tracing::subscriber::with_default(subscriber.finish(), work);
    std::fs::read_to_string(log.path()).expect("text")
}

/// The obeyed epoch in the agent's registration, and the start of the master.
fn told_epoch(simulation: &Simulation) -> Option<(String, u64, Option<String>)> {
    let told = match simulation.frames.last() {
        Some(FromAgent::Register(register)) => register.obeyed.clone(),
        Some(FromAgent::Reregister(report)) => report.register.obeyed.clone(),
        other => panic!("not a registration: {other:?}"),
    };
    told.map(|told| (told.cluster_id, told.epoch, told.master_id))
}

fn registered_by(master_id: &str) -> ToAgent {
    let ToAgent::Registered(registered) = registered() else {
        panic!("not that");
    };
    ToAgent::Registered(wire::Registered {
        master_info: Some(pb::MasterInfo {
            id: master_id.to_owned(),
            ..pb::MasterInfo::default()
        }),
        ..registered
    })
}

/// An agent that obeys epoch 5 of the cluster `a`, with the container of its task `t`.
fn obeying_five() -> (Simulation, ContainerId) {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.epoch = 5;
    simulation.tell_of(Some("a"), 5, registered_by("m5"));
    let container = simulation.running(task("t"));
    (simulation, container)
}

fn kill_of_t() -> ToAgent {
    ToAgent::KillTask(wire::KillTask {
        framework_id: framework_id(),
        task_id: task_id("t"),
        kill_policy: None,
    })
}

#[test]
fn lower_epoch_refused_after_restart() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    assert_eq!(told_epoch(&simulation), None);
    simulation.epoch = 5;
    simulation.tell_of(Some("a"), 5, registered_by("m5"));
    let container = simulation.running(task("t"));
    for _ in 0..2 {
        simulation.crash(false);
        simulation.link_up();
        let told = ("a".to_owned(), 5, Some("m5".to_owned()));
        assert_eq!(told_epoch(&simulation), Some(told));
        let end = || {
            ToAgent::Shutdown(wire::Shutdown {
                reason: "the agent was marked gone".to_owned(),
            })
        };
        simulation.tell_of(Some("a"), 4, end());
        assert_eq!(simulation.core.state(), State::Disconnected);
        for _ in 0..6 {
            simulation.advance(Duration::from_secs(16));
            simulation.link_up();
            simulation.tell_of(Some("a"), 4, registered_by("m4"));
            assert_eq!(simulation.core.state(), State::Disconnected);
        }
    }
    assert!(simulation.machine.contains_key(&container));
    assert!(simulation.kills().is_empty());
    simulation.advance(Duration::from_secs(16));
    simulation.link_up();
    simulation.tell_of(Some("a"), 6, registered_by("m6"));
    assert_eq!(simulation.core.state(), State::Running);
    simulation.crash(false);
    simulation.link_up();
    let told = ("a".to_owned(), 6, Some("m6".to_owned()));
    assert_eq!(told_epoch(&simulation), Some(told));
}

#[test]
fn refused_master_is_logged_once() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.tell_of(Some("a"), 5, registered_by("m5"));
    let text = logged(|| {
        for _ in 0..3 {
            simulation.tell_of(Some("a"), 4, ToAgent::Ping(wire::Ping::default()));
        }
    });
    assert_eq!(text.matches("whose epoch is lower").count(), 1, "{text}");
    let figures = "epoch=4 obeyed=5 cluster_id=\"a\"";
    assert!(text.contains(figures), "{text}");
    assert!(text.contains("restored from an older copy"), "{text}");
}

#[test]
fn epoch_is_durable_before_its_effects() {
    let (mut simulation, container) = obeying_five();
    simulation.quick_disk = false;
    for sequence in 0..3 {
        let ping = wire::Ping {
            sequence,
            connected: true,
        };
        simulation.tell_of(None, 6, ToAgent::Ping(ping));
    }
    assert_eq!(simulation.unwritten_epochs(), [6]);
    simulation.tell_of(None, 7, kill_of_t());
    assert_eq!(simulation.unwritten_epochs(), [6, 7]);
    assert!(simulation.killed.is_empty());
    simulation.flush(1);
    let record = simulation.image().agent.and_then(|agent| agent.record);
    let obeyed = record.and_then(|record| record.obeyed);
    assert_eq!(obeyed.map(|obeyed| obeyed.epoch), Some(6));
    simulation.flush(usize::MAX);
    assert_eq!(simulation.killed, [container]);
}

/// The master may read the message long after it was written: meanwhile the agent must not obey a lower epoch.
#[test]
fn leader_epoch_is_durable_before_sending() {
    let (mut simulation, container) = obeying_five();
    simulation.link_down();
    simulation.quick_disk = false;
    let frames = simulation.frames.len();
    simulation.link_up_with("a", 6);
    assert_eq!(simulation.unwritten_epochs(), [6]);
    assert_eq!(simulation.frames.len(), frames, "sent before it is durable");
    simulation.flush(usize::MAX);
    assert_eq!(told_epoch(&simulation), Some(("a".to_owned(), 6, None)));
    simulation.crash(false);
    simulation.quick_disk = true;
    simulation.link_up_with("a", 5);
    simulation.tell_of(Some("a"), 5, registered_by("m5"));
    simulation.tell_of(Some("a"), 5, kill_of_t());
    assert_eq!(simulation.core.state(), State::Disconnected);
    assert!(simulation.machine.contains_key(&container));
    assert!(simulation.killed.is_empty());
}

/// A hung disk must not make the next master consider the agent lost.
#[test]
fn registration_waits_thirty_seconds_for_epoch() {
    let (mut simulation, container) = obeying_five();
    simulation.link_down();
    simulation.quick_disk = false;
    let frames = simulation.frames.len();
    simulation.link_up_with("a", 6);
    let text = logged(|| simulation.advance(Duration::from_secs(31)));
    assert!(text.contains("waits for the disk"), "{text}");
    assert_eq!(simulation.frames.len(), frames, "sent too soon");
    simulation.advance(Duration::from_secs(2));
    simulation.link_up_with("a", 6);
    assert_eq!(told_epoch(&simulation), Some(("a".to_owned(), 6, None)));
    simulation.tell_of(Some("a"), 6, registered_by("m6"));
    assert_eq!(simulation.core.state(), State::Running);
    // Once more, while the start of that master is not written either.
    simulation.link_down();
    let frames = simulation.frames.len();
    simulation.link_up_with("a", 6);
    assert!(simulation.frames.len() > frames, "not sent");
    simulation.tell_of(Some("a"), 5, kill_of_t());
    assert!(simulation.killed.is_empty());
    assert!(simulation.machine.contains_key(&container));
}

/// Regression: the larger description of a reconfigured agent was recorded only after its restart, so that the agent
/// was considered lost.
#[test]
fn registration_skips_already_accepted_writes() {
    let (mut simulation, _) = obeying_five();
    simulation.configured = "cpus:8;mem:1024;disk:100";
    simulation.crash(false);
    simulation.link_up_with("a", 5);
    simulation.quick_disk = false;
    simulation.tell_of(Some("a"), 5, registered_by("m5"));
    assert_eq!(simulation.core.state(), State::Running);
    simulation.advance(Duration::from_secs(31));
    simulation.link_down();
    let frames = simulation.frames.len();
    simulation.link_up_with("a", 5);
    assert!(simulation.frames.len() > frames, "not sent");
}

#[test]
fn registration_waits_for_other_writes() {
    let (mut simulation, container) = obeying_five();
    simulation.link_down();
    simulation.quick_disk = false;
    simulation.link_up_with("a", 6);
    simulation.end(&container, Exit::Code(0));
    let frames = simulation.frames.len();
    for _ in 0..4 {
        simulation.advance(Duration::from_secs(33));
        simulation.link_up_with("a", 6);
    }
    assert_eq!(simulation.frames.len(), frames, "an end is told too soon");
}

#[test]
fn lower_leader_gets_the_obeyed_epoch() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.tell_of(Some("a"), 5, registered_by("m5"));
    simulation.link_down();
    let text = logged(|| simulation.link_up_with("a", 3));
    assert_eq!(text, "");
    let told = ("a".to_owned(), 5, Some("m5".to_owned()));
    assert_eq!(told_epoch(&simulation), Some(told));
    // The registry of this master was restored from an older copy; the master has raised its epoch.
    simulation.tell_of(Some("a"), 6, registered_by("m6"));
    assert_eq!(simulation.core.state(), State::Running);
}

/// A full disk delays launches and updates, but must not make the agent appear lost.
#[test]
fn heartbeats_wait_for_no_disk() {
    let mut simulation = Simulation::registered();
    simulation.quick_disk = false;
    simulation.run(task("t"));
    simulation.frames.clear();
    simulation.ping(7);
    let answered = |frame: &FromAgent| matches!(frame, FromAgent::Pong(pong) if pong.sequence == 7);
    assert!(simulation.frames.iter().any(answered));
    let launched = |seen: &Seen| matches!(seen, Seen::Launch(_));
    assert!(
        !simulation.seen.iter().any(launched),
        "an intent is durable first"
    );
}

/// An update that waits for a full disk is sent once, however long the disk takes.
#[test]
fn update_awaiting_disk_is_sent_once() {
    let (mut simulation, container) = Simulation::launching();
    simulation.quick_disk = false;
    simulation.start(&container);
    for sequence in 0..240 {
        simulation.advance(Duration::from_secs(15));
        simulation.ping(sequence);
    }
    simulation.flush(usize::MAX);
    assert_eq!(simulation.take_updates().len(), 1);
}

#[test]
fn silent_master_is_given_up() {
    let mut simulation = Simulation::registered();
    for sequence in 0..20 {
        simulation.advance(Duration::from_secs(15));
        simulation.ping(sequence);
    }
    let pongs = simulation
        .frames
        .iter()
        .filter(|frame| matches!(frame, FromAgent::Pong(_)));
    assert_eq!(pongs.count(), 20);
    assert_eq!(simulation.core.state(), State::Running);
    let before = simulation.connects();
    simulation.advance(PING_TIMEOUT);
    assert_eq!(simulation.core.state(), State::Disconnected);
    assert_eq!(simulation.connects(), before + 1);
}

#[test]
fn disconnected_ping_triggers_reregistration() {
    let mut simulation = Simulation::registered();
    let before = simulation.connects();
    simulation.tell(ToAgent::Ping(wire::Ping {
        sequence: 1,
        connected: false,
    }));
    assert_eq!(simulation.connects(), before + 1);
    simulation.register();
}

#[test]
fn unresponsive_master_is_retried() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    let before = simulation.connects();
    simulation.advance(Duration::from_secs(40));
    assert!(simulation.connects() > before);
}

#[test]
fn different_id_ends_agent_not_tasks() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.link_down();
    simulation.link_up();
    simulation.tell(ToAgent::Registered(wire::Registered {
        agent_id: pb::AgentId {
            value: "S1".to_owned(),
        },
        ..wire::Registered::default()
    }));
    assert!(matches!(
        simulation.seen.last(),
        Some(Seen::Exit(ExitReason::Refused(_)))
    ));
    assert_eq!(simulation.machine.len(), 1);
    assert!(simulation.kills().is_empty());
}

#[test]
fn only_permanent_refusal_ends_agent() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    let logged = logged(|| {
        simulation.tell(ToAgent::Refused(wire::Refused {
            reason: "busy".to_owned(),
            permanent: false,
        }));
    });
    let line = "the master refused this agent reason=\"busy\" permanent=false";
    assert!(logged.contains(line), "{logged}");
    let before = simulation.connects();
    simulation.advance(Duration::from_secs(61));
    assert_eq!(simulation.connects(), before + 1);
    simulation.link_up();
    simulation.tell(ToAgent::Refused(wire::Refused {
        reason: "gone".to_owned(),
        permanent: true,
    }));
    assert!(
        matches!(simulation.seen.last(), Some(Seen::Exit(ExitReason::Refused(why))) if why == "gone")
    );
}

/// A master sends a shutdown to an agent that was marked gone, and refuses it right after.
#[test]
fn refusal_after_shutdown_waits_for_tasks() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.link_down();
    simulation.link_up();
    let reason = "the agent was marked gone".to_owned();
    let shutdown = wire::Shutdown {
        reason: reason.clone(),
    };
    simulation.tell(ToAgent::Shutdown(shutdown));
    simulation.tell(ToAgent::Refused(wire::Refused {
        reason,
        permanent: true,
    }));
    simulation.link_down();
    assert_eq!(simulation.kills().len(), 1);
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Exit(_))));
    simulation.end(&container, Exit::Signal(15));
    let exits = simulation.seen.iter().filter_map(|seen| match seen {
        Seen::Exit(reason) => Some(reason),
        _ => None,
    });
    let exits: Vec<_> = exits.collect();
    assert!(
        matches!(&exits[..], [ExitReason::Shutdown(why)] if why.contains("gone")),
        "{exits:?}"
    );
}

#[test]
fn undelivered_tasks_are_reconciled() {
    for (partition_aware, expected) in [(true, TaskDropped), (false, TaskLost)] {
        let mut simulation = Simulation::new();
        simulation.link_up();
        let unknown = wire::TaskToReconcile {
            framework_id: framework_id(),
            task_id: task_id("lost"),
            partition_aware,
        };
        let ToAgent::Registered(mut registered) = registered() else {
            panic!("not that");
        };
        registered.unknown_tasks.push(unknown);
        simulation.tell(ToAgent::Registered(registered));
        simulation.assert_only_told(expected, Reason::Reconciliation);
    }
}

#[test]
fn orders_before_the_registration_are_dropped() {
    let mut simulation = Simulation::new();
    simulation.link_up();
    simulation.run(task("early"));
    simulation.tell(registered());
    assert!(simulation.take_updates().is_empty());
    assert!(!simulation.saw(|seen| matches!(seen, Seen::Launch(_))));
}

#[test]
fn oversized_registration_is_split() {
    let mut simulation = Simulation::registered();
    for number in 0..3 {
        let mut task = task(&format!("t{number}"));
        let label = pb::Label {
            key: "x".repeat(3 << 20),
            value: None,
        };
        task.labels = Some(pb::Labels {
            labels: vec![label],
        });
        simulation.running(task);
    }
    simulation.frames.clear();
    simulation.link_down();
    simulation.link_up();
    let mut told = 0;
    let frames = std::mem::take(&mut simulation.frames);
    let count = frames.len();
    for (number, frame) in frames.into_iter().enumerate() {
        match frame {
            FromAgent::ReregisterPart(part) => {
                assert_eq!(part.register.is_some(), number == 0);
                told += part.tasks.len();
            }
            FromAgent::Reregister(report) => {
                assert_eq!(number + 1, count, "the return comes last");
                assert!(report.tasks.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((told, count), (3, 4));
    simulation.tell(registered());
    assert_eq!(simulation.core.state(), State::Running);
}

/// Regression: the message waited for the disk together with the registration. The master got it as the first message,
/// and refused the agent permanently.
#[test]
fn executor_message_dropped_while_unregistered() {
    let mut simulation = Simulation::registered();
    simulation.link_down();
    simulation.frames.clear();
    for connects in [false, true] {
        if connects {
            simulation.link_up();
        }
        simulation.step(Input::ExecutorMessage {
            framework: FrameworkId::new("f").expect("an id"),
            executor: ExecutorId::new("e").expect("an id"),
            data: Vec::new(),
            permit: Default::default(),
        });
    }
    assert!(matches!(simulation.frames[..], [FromAgent::Reregister(_)]));
    let counters = simulation.core.snapshot().counters;
    assert_eq!(counters.invalid_framework_messages, 2);
}
