//! Random jobs: a written job reads back equal, and no text makes the reader panic.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::spec::pattern::Pattern;

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9][a-z0-9.-]{0,20}"
}

fn duration() -> impl Strategy<Value = Duration> {
    (1..=100_000_000_u64).prop_map(Duration::from_millis)
}

fn amount() -> impl Strategy<Value = f64> {
    (1..=1_000_000_u32).prop_map(|millis| f64::from(millis) / 1000.0)
}

fn backoff() -> impl Strategy<Value = Backoff> {
    (duration(), duration(), duration()).prop_map(|(first, more, reset_after)| Backoff {
        first,
        longest: first + more,
        reset_after,
    })
}

fn batch() -> impl Strategy<Value = Batch> {
    (0..=1000_u32, backoff(), option::of(duration())).prop_map(|(retries, backoff, timeout)| {
        Batch {
            retries,
            backoff,
            timeout,
        }
    })
}

fn cron() -> impl Strategy<Value = Kind> {
    let schedule = prop_oneof![Just("@daily"), Just("*/5 2-4 * jan,7 mon")];
    let zone = prop_oneof![Just("UTC"), Just("Europe/Berlin")];
    let overlap = prop_oneof![
        Just(Overlap::Skip),
        Just(Overlap::Replace),
        Just(Overlap::Allow)
    ];
    (batch(), schedule, zone, overlap, duration()).prop_map(
        |(batch, schedule, time_zone, overlap, start_within)| {
            Kind::Cron(Cron {
                batch,
                schedule: schedule.to_owned(),
                time_zone: time_zone.to_owned(),
                overlap,
                start_within,
            })
        },
    )
}

fn service() -> impl Strategy<Value = Kind> {
    let counts = (0..5_u32, 0..5_u32, 0..2_u32);
    (backoff(), counts, duration(), duration(), any::<bool>()).prop_map(
        |(restart, (max_unavailable, surge, canary), healthy_after, more, auto_revert)| {
            Kind::Service(Service {
                restart,
                update: Update {
                    max_unavailable,
                    max_surge: if max_unavailable == 0 {
                        surge + 1
                    } else {
                        surge
                    },
                    canary,
                    healthy_after,
                    pause: healthy_after,
                    progress_deadline: healthy_after * 2 + more,
                    auto_revert,
                },
            })
        },
    )
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        ".{0,8}".prop_map(Rule::Equals),
        ".{0,8}".prop_map(Rule::NotEquals),
        vec(".{0,8}", 1..4).prop_map(Rule::In),
        "[a-z.*]{0,3}[a-z]"
            .prop_filter_map("a pattern", |text| Pattern::parse(&text).ok())
            .prop_map(Rule::Matches),
        Just(Rule::Exists),
        Just(Rule::NotExists),
        (1..100_u32).prop_map(Rule::Distinct),
        Just(Rule::Spread),
    ]
}

fn constraint() -> impl Strategy<Value = Constraint> {
    let attribute = prop_oneof![Just("@zone".to_owned()), "[a-z]{1,8}"];
    (attribute, rule()).prop_map(|(attribute, rule)| Constraint { attribute, rule })
}

fn uri() -> impl Strategy<Value = Uri> {
    (
        ".{1,10}",
        any::<(bool, bool)>(),
        option::of(r"[^/.\x00]{1,5}(/[^/.\x00]{1,3})?"),
    )
        .prop_map(|(uri, (executable, cache), output_file)| Uri {
            uri,
            extract: !executable,
            executable,
            cache,
            output_file,
        })
}

fn address() -> impl Strategy<Value = Option<CheckAddress>> {
    prop_oneof![
        Just(None),
        Just(Some(CheckAddress::V4)),
        Just(Some(CheckAddress::V6)),
    ]
}

fn check() -> impl Strategy<Value = HealthCheck> {
    let probe = prop_oneof![
        r"[^\x00]{1,10}".prop_map(Probe::Command),
        ("/[a-z]{0,5}", address()).prop_map(|(path, address)| Probe::Http {
            port: "http".to_owned(),
            path,
            address,
        }),
        address().prop_map(|address| Probe::Tcp {
            port: "http".to_owned(),
            address,
        }),
    ];
    (probe, duration(), duration(), duration(), 1..1000_u32).prop_map(
        |(probe, delay, interval, timeout, failures)| HealthCheck {
            probe,
            delay,
            interval,
            timeout,
            failures,
            grace: delay,
        },
    )
}

fn template() -> impl Strategy<Value = TaskTemplate> {
    let command = prop_oneof![
        "[a-z]\\PC{0,20}".prop_map(Command::Shell),
        vec("[^\0]{1,9}", 1..4).prop_map(Command::Argv),
    ];
    let env = btree_map("[A-Z_]{1,8}", r"[^$\x00]{0,9}", 0..3);
    let extra = (
        option::of(amount()),
        option::of(1..9_u8),
        option::of(amount()),
    );
    let limits = (0..3_u8, 0..3_u8);
    (
        command,
        option::of("[a-z]{1,8}"),
        env,
        vec(uri(), 0..3),
        amount(),
        1..5000_u32,
        extra,
        limits,
        option::of(check()),
        duration(),
    )
        .prop_map(
            |(
                command,
                user,
                env,
                uris,
                cpus,
                mem,
                (disk, gpus, custom),
                limits,
                check,
                kill_grace,
            )| {
                let mut requests = BTreeMap::from([
                    ("cpus".to_owned(), cpus),
                    ("mem".to_owned(), f64::from(mem)),
                ]);
                requests.extend(disk.map(|disk| ("disk".to_owned(), disk.ceil())));
                requests.extend(gpus.map(|gpus| ("gpus".to_owned(), f64::from(gpus))));
                requests.extend(custom.map(|custom| ("licences".to_owned(), custom)));
                let limit = |kind: u8, request: f64| {
                    [None, Some(request), Some(f64::INFINITY)][usize::from(kind)]
                };
                let cpus = limit(limits.0, cpus).map(|limit| ("cpus".to_owned(), limit));
                let mem = limit(limits.1, f64::from(mem)).map(|limit| ("mem".to_owned(), limit));
                TaskTemplate {
                    command,
                    user,
                    env,
                    uris,
                    requests,
                    limits: cpus.into_iter().chain(mem).collect(),
                    ports: vec!["http".to_owned()],
                    check,
                    kill_grace,
                }
            },
        )
}

fn job() -> impl Strategy<Value = JobSpec> {
    let kind = prop_oneof![service(), batch().prop_map(Kind::Batch), cron()];
    let hold = option::of(duration());
    let labels = btree_map(".{0,8}", ".{0,8}", 0..3);
    (
        name(),
        kind,
        1..=COUNT_MAX,
        0..=PRIORITY_MAX,
        template(),
        vec(constraint(), 0..4),
        hold,
        any::<bool>(),
        labels,
    )
        .prop_map(
            |(name, kind, count, priority, task, constraints, hold, best_effort, labels)| JobSpec {
                after: (name != "before")
                    .then(|| "before".to_owned())
                    .into_iter()
                    .collect(),
                name,
                role: "a/b".to_owned(),
                kind,
                count,
                priority,
                task,
                constraints,
                gang: hold
                    .filter(|_| count <= GANG_MAX)
                    .map(|hold_at_most| Gang { hold_at_most }),
                best_effort,
                volume: None,
                labels,
            },
        )
}

proptest! {
    #[test]
    fn written_job_reads_back_equal(spec in job()) {
        let json = to_json(&spec).to_string();
        prop_assert_eq!(from_json(&json).map_err(|e| e.to_string()), Ok(spec.clone()));
        let toml = to_toml(&spec);
        prop_assert_eq!(from_toml(&toml).map_err(|e| format!("{e}\n{toml}")), Ok(spec));
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC*", at in 0..400_usize) {
        let _ = from_text(&text);
        let mut damaged = WEB.to_owned();
        let at = (0..=at.min(damaged.len())).rfind(|at| damaged.is_char_boundary(*at)).unwrap_or(0);
        damaged.insert_str(at, text.get(..1).unwrap_or_default());
        let _ = from_text(&damaged);
        let json = format!("{{{text}}}");
        let _ = from_json(&json);
    }
}
