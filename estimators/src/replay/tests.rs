//! Traces, ratings, and the whole lineup on a made-up week.

use super::*;

/// A made-up week: work that follows the hours of the day, with bursts; a nightly batch job; and a mostly sleeping task.
/// Deterministic: the noise is a hash of the step.
fn week() -> String {
    let mut text = String::from("t_s,web,web2,batch,idle\nlimit,4,4,8,2\n");
    for step in 0..2016_u64 {
        let hour = count(usize::try_from(step % 288).unwrap()) / 12.0;
        let noise = |salt: u64| {
            let mixed = (step + salt * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            f64::from(u32::try_from(mixed).unwrap()) / f64::from(1 << 24)
        };
        let day = (((hour - 8.0) / 24.0 * std::f64::consts::TAU).sin() + 1.0) / 2.0;
        let web = 0.4 + 1.6 * day + 0.4 * noise(1);
        let web2 = 0.3 + 1.2 * day + 0.5 * noise(2);
        let batch = if (2.0..5.0).contains(&hour) {
            2.0 + noise(3)
        } else {
            0.05
        };
        let idle = if noise(4) > 0.98 { 1.0 } else { 0.02 };
        let _ = writeln!(
            text,
            "{},{web:.4},{web2:.4},{batch:.4},{idle:.4}",
            step * 300
        );
    }
    text
}

fn score<'a>(scores: &'a [Score], name: &str) -> &'a Score {
    scores
        .iter()
        .find(|score| score.name.contains(name))
        .unwrap()
}

#[test]
fn lineup_ranks_estimators_on_generated_week() {
    let trace = Trace::parse(&week(), None).unwrap();
    let scores = evaluate(&trace, &[vec![0, 1, 2, 3]], lineup);
    let oracle = score(&scores, "oracle, 10 min");
    assert_eq!(oracle.violations[0], Some(0.0));
    let ours = score(&scores, "slack**, predictor");
    let capped = score(&scores, "slack**, after");
    let borg = score(&scores, "borg");
    let koordinator = score(&scores, "Koordinator batch");
    assert!((borg.savings - 0.1).abs() < 1e-9);
    assert!(borg.churn < 1e-9);
    assert!(ours.savings < oracle.savings);
    assert!(ours.savings > koordinator.savings, "{ours:?}");
    assert!(ours.violations[0].unwrap() < score(&scores, "last sample").violations[0].unwrap());
    assert!(ours.violations[0].unwrap() < 0.01, "{ours:?}");
    assert!(capped.savings <= ours.savings && capped.violations[0] <= ours.violations[0]);
    for score in &scores {
        assert!((0.0..=1.0).contains(&score.savings), "{score:?}");
        assert!(score.churn.is_finite() && score.churn >= 0.0, "{score:?}");
    }
}

/// Twenty mostly idle services with short bursts, like business machines.
fn fleet() -> String {
    let mut text = String::from("t_s");
    (0..20).for_each(|task| write!(text, ",s{task}").unwrap());
    text.push_str("\nlimit");
    (0..20).for_each(|task| write!(text, ",{}", 1 + task % 4).unwrap());
    for step in 0..2016_u64 {
        write!(text, "\n{}", step * 300).unwrap();
        for task in 0..20_u64 {
            let mixed = (step * 31 + task * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
            let noise = count(usize::try_from(mixed).unwrap()) / f64::from(1 << 20);
            let hour = count(usize::try_from((step + task * 10) % 288).unwrap()) / 12.0;
            let day = (hour / 24.0 * std::f64::consts::TAU).sin().max(0.0);
            let limit = count(usize::try_from(1 + task % 4).unwrap());
            let share = if noise > 0.97 {
                0.6
            } else {
                0.02 + 0.1 * day + 0.03 * noise
            };
            write!(text, ",{:.4}", share * limit).unwrap();
        }
    }
    text + "\n"
}

/// The required results of the estimator, on a trace that allows them.
#[test]
fn slack_meets_bars_on_idle_fleet() {
    let trace = Trace::parse(&fleet(), None).unwrap();
    let tasks: Vec<usize> = (0..20).collect();
    let ours = |trace: &Trace| lineup(trace).into_iter().skip(12).collect();
    for seed in 1..=3 {
        let scores = evaluate(&trace, &machines(&tasks, 3, 10, seed), ours);
        let predictor = score(&scores, "slack**, predictor");
        assert!(predictor.savings >= 0.70, "{}", table(&scores));
        assert!(
            predictor.violations[0].unwrap() <= 0.001,
            "{}",
            table(&scores)
        );
        assert!(
            predictor.violations[1].unwrap() <= 0.005,
            "{}",
            table(&scores)
        );
    }
}

#[test]
fn means_are_over_judgements() {
    let score = |savings, violations| Score {
        name: "a".into(),
        savings,
        violations: [Some(violations), Some(0.5), None],
        churn: 2.0 * savings,
    };
    let mean = mean(&[vec![score(0.2, 0.0)], vec![score(0.6, 1.0)]]);
    assert!((mean[0].savings - 0.4).abs() < 1e-9 && (mean[0].churn - 0.8).abs() < 1e-9);
    assert_eq!(mean[0].violations, [Some(0.5), Some(0.5), None]);
    assert!(super::mean(&[]).is_empty());
}

#[test]
fn same_trace_and_seed_score_equally() {
    let trace = Trace::parse(&week(), None).unwrap();
    let few = |_: &Trace| lineup(&trace).into_iter().take(3).collect();
    let run = |seed| evaluate(&trace, &machines(&[0, 1, 2, 3], 2, 2, seed), few);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn machines_hold_no_task_twice() {
    let tasks: Vec<usize> = (0..35).collect();
    for dealt in machines(&tasks, 12, 10, 1) {
        let mut sorted = dealt.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 10, "{dealt:?}");
    }
    assert_eq!(machines(&[3, 4], 1, 10, 1)[0].len(), 2);
    assert_ne!(machines(&tasks, 12, 10, 1), machines(&tasks, 12, 10, 2));
}

#[test]
fn future_peak_excludes_current_step() {
    assert_eq!(
        highest_ahead(&[9.0, 1.0, 2.0, 5.0, 3.0], 2),
        [2.0, 5.0, 5.0]
    );
    assert_eq!(highest_ahead(&[1.0, 2.0], 2), [0.0; 0]);
}

#[test]
fn limits_table_may_use_another_unit() {
    let usage = "t_s,a,b\n0,100,0\n300,2600,50\n";
    let limits = "vm,cpu_count,cpu_capacity_mhz\nb,3,7800\na,1,2600\n";
    let trace = Trace::parse(usage, Some(limits)).unwrap();
    let (a, b) = (trace.task(0).unwrap(), trace.task(1).unwrap());
    assert_eq!((a.limit, b.limit), (1.0, 3.0));
    assert_eq!(a.used[1], Some(1.0));
    assert_eq!(
        (trace.len(), trace.tasks(), trace.step()),
        (2, 2, Duration::from_secs(300))
    );
}

#[test]
fn tasks_come_go_and_are_missed() {
    let usage = "t_s,a,b\nlimit,1,1\n0,,0.5\n1,0.5,0.5\n2,,0.5\n3,0.5,\n4,,\n";
    let trace = Trace::parse(usage, None).unwrap();
    let mut machine = Machine::new(&trace, &[0, 1]);
    let mut seen = Vec::new();
    while let Some(step) = machine.step() {
        let read = step
            .sample
            .containers
            .iter()
            .filter(|task| task.cpu_time.is_some())
            .count();
        seen.push((step.sample.containers.len(), read, step.used));
    }
    assert_eq!(
        seen,
        [
            (1, 1, 0.5),
            (2, 2, 1.0),
            (2, 1, 1.0),
            (1, 1, 0.5),
            (0, 0, 0.0)
        ]
    );
}

#[test]
fn malformed_trace_is_refused() {
    let cases = [
        ("", TraceError::Empty, "the trace is empty"),
        (
            "t_s,a\nlimit,1\n0,1\n",
            TraceError::TooShort,
            "the trace has fewer than two steps",
        ),
        (
            "t_s,a\n0,1\n1,1\n",
            TraceError::NoLimit("a".into()),
            "task \"a\" has no limit",
        ),
        (
            "t_s,a\nlimit,1\n0,1,2\n",
            TraceError::Cells {
                line: 3,
                cells: 3,
                expected: 2,
            },
            "line 3: 3 cells where the first line has 2",
        ),
        (
            "t_s,a\nlimit,1\n0,-1\n",
            TraceError::Number {
                line: 3,
                text: "-1".into(),
            },
            "line 3: \"-1\" is not a number of at least 0",
        ),
        (
            "t_s,a\nlimit,1\n0,NaN\n",
            TraceError::Number {
                line: 3,
                text: "NaN".into(),
            },
            "line 3: \"NaN\" is not a number of at least 0",
        ),
        (
            "t_s,a\nlimit,1\n0,1\n5,1\n9,1\n",
            TraceError::Step {
                line: 5,
                step: 5.0,
                found: 4.0,
            },
            "line 5: steps are 5 s apart before, and 4 s here",
        ),
    ];
    for (text, error, words) in cases {
        assert_eq!(error.to_string(), words);
        assert_eq!(Trace::parse(text, None), Err(error));
    }
    let missing = Trace::parse("t_s,a\n0,1\n1,1\n", Some("task,limit\nb,1\n"));
    assert_eq!(missing, Err(TraceError::NoLimit("a".into())));
}
