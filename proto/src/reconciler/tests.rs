//! The reconciler alone, and against a master whose updates are lost, repeated and out of order.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Moment {
    Moment::ORIGIN + SECOND * u32::try_from(seconds).unwrap()
}

fn status(task: &str, state: TaskState) -> TaskStatus {
    TaskStatus {
        task_id: TaskId {
            value: task.to_owned(),
        },
        state: state.into(),
        agent_id: Some(AgentId {
            value: "a".to_owned(),
        }),
        ..TaskStatus::default()
    }
}

fn answer(task: &str, state: TaskState) -> TaskStatus {
    TaskStatus {
        reason: Some(Reason::Reconciliation.into()),
        ..status(task, state)
    }
}

fn asked(request: Option<Request>) -> Vec<String> {
    match request {
        Some(Request::Explicit(tasks)) => {
            tasks.into_iter().map(|task| task.task_id.value).collect()
        }
        other => panic!("not explicit: {other:?}"),
    }
}

#[test]
fn retries_unheard_tasks_with_doubling_pauses() {
    let mut reconciler = Reconciler::new(ReconcileIntervals::default());
    reconciler.track("a", Some("agent"));
    reconciler.track("b", None);
    assert_eq!(reconciler.poll(at(0)), None, "there is no stream yet");
    reconciler.start(at(10));
    assert_eq!(asked(reconciler.poll(at(10))), ["a", "b"]);
    assert_eq!(reconciler.poll(at(10)), None, "one at a time");
    assert_eq!(
        reconciler.observe(at(10), &answer("a", TaskState::TaskRunning)),
        Observation::State(TaskState::TaskRunning)
    );
    assert!(!reconciler.is_settled());
    let mut times = Vec::new();
    for second in 11..400 {
        while let Some(request) = reconciler.poll(at(second)) {
            if request != Request::Implicit {
                assert_eq!(asked(Some(request)), ["b"]);
                times.push(second);
            }
        }
    }
    assert_eq!(times, [11, 13, 17, 25, 41, 73, 133, 193, 253, 313, 373]);
    reconciler.observe(at(400), &answer("b", TaskState::TaskLost));
    assert_eq!(reconciler.poll(at(433)), None);
    assert!(reconciler.is_settled());
    // Fifteen minutes later a reconciliation begins again, with all tasks that the master knows.
    assert_eq!(reconciler.next_deadline(), Some(at(10 + 600)));
    assert_eq!(reconciler.poll(at(610)), Some(Request::Implicit));
    assert_eq!(reconciler.next_deadline(), Some(at(433 + 900)));
    assert_eq!(reconciler.poll(at(1333)), Some(Request::Implicit));
    assert_eq!(asked(reconciler.poll(at(1333))), ["a"]);
}

/// Regression: a new master knows only the tasks of agents that are back, so a running task that was unknown here stayed
/// unknown until the next period.
#[test]
fn full_reconciliation_repeats_after_subscription() {
    let mut reconciler = Reconciler::new(ReconcileIntervals::default());
    let all_asked = |reconciler: &mut Reconciler, seconds: std::ops::Range<u64>| {
        let asked = |second: &u64| reconciler.poll(at(*second)) == Some(Request::Implicit);
        seconds.filter(asked).collect::<Vec<_>>()
    };
    reconciler.start(at(0));
    assert_eq!(all_asked(&mut reconciler, 0..100), [30]);
    reconciler.start(at(100));
    // Three times, and then once in each period.
    assert_eq!(
        all_asked(&mut reconciler, 100..1_900),
        [130, 220, 700, 1_000]
    );
    reconciler.start(at(2_000));
    reconciler.disconnected();
    assert!(all_asked(&mut reconciler, 2_000..4_000).is_empty());
    // Several due requests become one.
    reconciler.start(at(4_000));
    assert_eq!(all_asked(&mut reconciler, 4_300..4_590), [4_300]);
    assert_eq!(reconciler.next_deadline(), Some(at(4_600)));
}

#[test]
fn many_tasks_split_into_several_requests() {
    let mut reconciler = Reconciler::new(ReconcileIntervals::default());
    let name = |index: usize| format!("t{index:06}");
    let count = 5 * ASKED_MAX;
    for index in 0..count {
        reconciler.track(&name(index), Some("agent"));
    }
    let poll_all = |reconciler: &mut Reconciler, now: u64| {
        let polled = std::iter::from_fn(|| reconciler.poll(at(now)));
        polled
            .map(|request| asked(Some(request)))
            .collect::<Vec<_>>()
    };
    for start in [0, 100] {
        reconciler.start(at(start));
        let requests = poll_all(&mut reconciler, start);
        let sizes: Vec<usize> = requests.iter().map(Vec::len).collect();
        assert_eq!(sizes, [ASKED_MAX; 5]);
        let all: Vec<String> = requests.concat();
        assert_eq!(all, (0..count).map(name).collect::<Vec<_>>());
        assert_eq!(reconciler.next_deadline(), Some(at(start + 1)));
    }
    // Updates of all others arrive between two requests without a pause.
    assert_eq!(asked(reconciler.poll(at(101))).len(), ASKED_MAX);
    for index in 1..count {
        reconciler.observe(at(101), &answer(&name(index), TaskState::TaskRunning));
    }
    assert_eq!(reconciler.poll(at(101)), None);
    assert!(!reconciler.is_settled());
    assert_eq!(asked(reconciler.poll(at(103))), [name(0)]);
}

#[test]
fn new_subscription_restarts_and_disconnect_stops() {
    let mut reconciler = Reconciler::new(ReconcileIntervals::default());
    reconciler.track("a", None);
    reconciler.start(at(0));
    for second in 0..20 {
        reconciler.poll(at(second));
    }
    reconciler.disconnected();
    assert_eq!(
        (reconciler.poll(at(100)), reconciler.next_deadline()),
        (None, None)
    );
    reconciler.start(at(200));
    assert_eq!(asked(reconciler.poll(at(200))), ["a"]);
    assert_eq!(
        asked(reconciler.poll(at(201))),
        ["a"],
        "the pause is short again"
    );
    // Updates from before the start do not count.
    reconciler.observe(at(202), &status("a", TaskState::TaskRunning));
    reconciler.start(at(203));
    assert_eq!(asked(reconciler.poll(at(203))), ["a"]);
}

#[test]
fn terminal_state_is_final_except_lost() {
    let mut reconciler = Reconciler::new(ReconcileIntervals::default());
    reconciler.track("a", None);
    reconciler.track("b", None);
    let now = at(1);
    assert_eq!(
        reconciler.observe(now, &status("a", TaskState::TaskFinished)),
        Observation::Ended(TaskState::TaskFinished)
    );
    for late in [
        TaskState::TaskRunning,
        TaskState::TaskFinished,
        TaskState::TaskLost,
    ] {
        assert_eq!(
            reconciler.observe(now, &status("a", late)),
            Observation::Known
        );
    }
    assert_eq!(reconciler.state("a"), Some(TaskState::TaskFinished));
    reconciler.observe(now, &status("b", TaskState::TaskLost));
    assert_eq!(
        reconciler.observe(now, &answer("b", TaskState::TaskRunning)),
        Observation::Recovered(TaskState::TaskRunning)
    );
    assert_eq!(reconciler.live().collect::<Vec<_>>(), ["b"]);
    assert_eq!(
        reconciler.observe(now, &status("b", TaskState::TaskUnreachable)),
        Observation::State(TaskState::TaskUnreachable)
    );
    assert_eq!(
        reconciler.observe(now, &answer("b", TaskState::TaskRunning)),
        Observation::Recovered(TaskState::TaskRunning)
    );
    assert_eq!(
        reconciler.observe(now, &status("b", TaskState::TaskStarting)),
        Observation::State(TaskState::TaskStarting)
    );
    assert_eq!(
        reconciler.state("b"),
        Some(TaskState::TaskRunning),
        "an older update came late"
    );
    assert_eq!(
        reconciler.observe(now, &answer("c", TaskState::TaskRunning)),
        Observation::Untracked
    );
    assert_eq!(
        reconciler.observe(now, &answer("c", TaskState::TaskUnknown)),
        Observation::Known
    );
    assert_eq!(
        reconciler.observe(now, &answer("b", TaskState::TaskUnknown)),
        Observation::Unknown
    );
}

/// The effect of a network on an answer.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// The answer arrives after this many others.
    Late(usize),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        3 => Just(Fate::Arrives),
        4 => Just(Fate::Lost),
        2 => Just(Fate::Twice),
        3 => (1_usize..20).prop_map(Fate::Late),
    ];
    proptest::collection::vec(fate, 1..60)
}

fn truths() -> impl Strategy<Value = Vec<TaskState>> {
    let state = proptest::sample::select(vec![
        TaskState::TaskStaging,
        TaskState::TaskRunning,
        TaskState::TaskKilling,
        TaskState::TaskUnreachable,
        TaskState::TaskFinished,
        TaskState::TaskLost,
        TaskState::TaskGone,
    ]);
    proptest::collection::vec(state, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For any losses and delays of answers and of earlier updates: once some arrive, the framework knows the true state of every
    /// task, and has sent no more requests than its pace allows.
    #[test]
    fn reconciliation_converges_once_messages_pass(
        truths in truths(),
        fates in fates(),
        noise in proptest::collection::vec((0_usize..25, 0_usize..3), 0..40),
    ) {
        let intervals = ReconcileIntervals { first_pause: SECOND, longest_pause: SECOND * 8, period: SECOND * 3600 };
        let mut reconciler = Reconciler::new(intervals);
        let name = |index: usize| format!("t{index}");
        for index in 0..truths.len() {
            reconciler.track(&name(index), None);
        }
        // Old updates, in any order, from before the reconciliation: the earlier states of each task.
        let past = [TaskState::TaskStaging, TaskState::TaskStarting, TaskState::TaskRunning];
        for (task, which) in noise {
            if task < truths.len() {
                reconciler.observe(at(0), &status(&name(task), past[which]));
            }
        }
        reconciler.start(at(1));
        let mut fates = fates.into_iter().cycle();
        let mut late: Vec<(usize, TaskStatus)> = Vec::new();
        let mut requests = 0_u32;
        let mut last_request = None;
        let mut second = 1;
        // The network may fail in any way for ten minutes, and then works.
        while !reconciler.is_settled() || requests == 0 {
            prop_assert!(second < 1_200, "not settled: {:?}", reconciler);
            let now = at(second);
            let request = std::iter::from_fn(|| reconciler.poll(now)).find(|one| *one != Request::Implicit);
            if let Some(request) = request {
                requests += 1;
                let tasks = asked(Some(request));
                prop_assert!(tasks.iter().all(|task| reconciler.live().any(|live| live == task)));
                if let Some(last) = last_request {
                    prop_assert!(second - last >= u64::from((1 << (requests - 2).min(3)).min(8_u32)));
                }
                last_request = Some(second);
                for task in tasks {
                    let index: usize = task[1..].parse().unwrap();
                    let told = answer(&task, truths[index]);
                    let fate = if second > 600 { Fate::Arrives } else { fates.next().unwrap() };
                    match fate {
                        Fate::Arrives => { reconciler.observe(now, &told); }
                        Fate::Lost => {}
                        Fate::Twice => {
                            reconciler.observe(now, &told);
                            reconciler.observe(now, &told);
                        }
                        Fate::Late(by) => late.push((by, told)),
                    }
                }
            }
            for (left, told) in &mut late {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    reconciler.observe(now, told);
                }
            }
            late.retain(|(left, _)| *left > 0);
            second += 1;
        }
        for (index, truth) in truths.iter().enumerate() {
            prop_assert_eq!(reconciler.state(&name(index)), Some(*truth));
        }
    }

    /// No sequence of updates revives an ended task, or loses a task.
    #[test]
    fn every_task_is_live_or_ended(
        updates in proptest::collection::vec((0_usize..4, 0_i32..16, any::<bool>()), 0..80),
    ) {
        let mut reconciler = Reconciler::new(ReconcileIntervals::default());
        let name = |index: usize| format!("t{index}");
        for index in 0..3 {
            reconciler.track(&name(index), None);
        }
        let mut ends: BTreeMap<String, TaskState> = BTreeMap::new();
        for (index, state, is_answer) in updates {
            let mut told = status(&name(index), TaskState::TaskRunning);
            told.state = state;
            if is_answer {
                told.reason = Some(Reason::Reconciliation.into());
            }
            let seen = reconciler.observe(at(1), &told);
            match seen {
                Observation::Ended(state) => { ends.insert(name(index), state); }
                Observation::Recovered(_) => {
                    let end = ends.remove(&name(index));
                    prop_assert!(end.is_none_or(|end| end == TaskState::TaskLost));
                }
                Observation::Untracked => prop_assert_eq!(index, 3),
                Observation::State(_) | Observation::Known | Observation::Unknown => {}
            }
            for index in 0..3 {
                let is_live = reconciler.live().any(|live| live == name(index));
                prop_assert_ne!(is_live, ends.contains_key(&name(index)));
                if let Some(end) = ends.get(&name(index)) {
                    prop_assert_eq!(reconciler.state(&name(index)), Some(*end));
                }
            }
        }
    }
}
