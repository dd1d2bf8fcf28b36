//! The end, the restart and the replacement of a job.

use std::time::Duration;

use super::super::mistake::Collector;
use super::super::view::View;
use crate::spec::schedule::{Schedule, ScheduleError};
use crate::spec::{Backoff, Batch, Cron, Gang, Kind, Overlap, Service, Update};

/// The time that an instance runs before it counts as healthy, by default.
const HEALTHY_AFTER_MIN: Duration = Duration::from_secs(10);

pub(super) fn kind(file: &View<'_>, mistakes: &mut Collector) -> Kind {
    let kind = file.text("kind").unwrap_or_default();
    for (section, kinds) in [
        ("update", &["service"][..]),
        ("volume", &["service"]),
        ("batch", &["batch", "cron"]),
        ("cron", &["cron"]),
    ] {
        if file.has(section) && !kinds.contains(&kind.as_str()) {
            let message = format!("a {kind} has no [{section}]");
            let cure = format!("remove it, or write `kind = \"{}\"`", kinds[0]);
            mistakes.add(file.place(section), message, cure);
        }
    }
    match kind.as_str() {
        "batch" => Kind::Batch(batch(file, mistakes)),
        "cron" => Kind::Cron(cron(file, mistakes)),
        _ => Kind::Service(Service {
            restart: restart(file, mistakes),
            update: update(file, mistakes),
        }),
    }
}

pub(super) fn gang(file: &View<'_>) -> Option<Gang> {
    file.written("gang")?;
    Some(Gang {
        hold_at_most: file.section("gang").duration("hold_at_most"),
    })
}

fn restart(file: &View<'_>, mistakes: &mut Collector) -> Backoff {
    let view = file.section("restart");
    let backoff = Backoff {
        first: view.duration("first"),
        longest: view.duration("longest"),
        reset_after: view.duration("reset_after"),
    };
    if backoff.first > backoff.longest {
        mistakes.add(
            view.place(if view.has("longest") {
                "longest"
            } else {
                "first"
            }),
            "the first pause of [restart] is longer than the longest",
            "raise `longest` or lower `first`",
        );
    }
    backoff
}

fn update(file: &View<'_>, mistakes: &mut Collector) -> Update {
    let view = file.section("update");
    let has_volume = file.has("volume");
    let progress_deadline = view.duration("progress_deadline");
    let healthy_after = view.optional_duration("healthy_after");
    let healthy_after = healthy_after.unwrap_or_else(|| healthy_after_of(file, progress_deadline));
    let update = Update {
        max_unavailable: view
            .integer("max_unavailable")
            .unwrap_or_else(|| u32::from(has_volume)),
        max_surge: view
            .integer("max_surge")
            .unwrap_or_else(|| u32::from(!has_volume)),
        canary: view.integer("canary").unwrap_or_default(),
        healthy_after,
        pause: view.duration("pause"),
        progress_deadline,
        auto_revert: view.flag("auto_revert"),
    };
    let count = file.integer("count").unwrap_or(1);
    if update.max_surge == 0 && update.max_unavailable == 0 {
        let last = ["max_unavailable", "max_surge"]
            .into_iter()
            .rfind(|name| view.has(name));
        mistakes.add(
            view.place(last.unwrap_or("max_surge")),
            "an update with neither surge nor missing instances cannot begin",
            "write 1 or more in `max_surge` or `max_unavailable`",
        );
    }
    if has_volume && update.max_surge > 0 {
        mistakes.add(
            view.place("max_surge"),
            "a job with a volume cannot have instances beyond `count`",
            "write `max_surge = 0` and 1 or more in `max_unavailable`",
        );
    }
    if update.canary > count {
        let message = format!(
            "{} canaries are more than the {count} instances",
            update.canary
        );
        mistakes.add(
            view.place("canary"),
            message,
            "lower `canary` or raise `count`",
        );
    }
    if update.progress_deadline <= update.healthy_after.saturating_add(update.pause) {
        let at = ["progress_deadline", "healthy_after", "pause"]
            .into_iter()
            .find(|name| view.has(name));
        mistakes.add(
            view.place(at.unwrap_or("progress_deadline")),
            "no instance can be healthy before the update has failed",
            match update.pause.is_zero() {
                true => "write a `progress_deadline` longer than `healthy_after`",
                false => {
                    "write a `progress_deadline` longer than `healthy_after` and `pause` together"
                }
            },
        );
    }
    update
}

/// Returns the default time after which an instance counts as healthy: long enough for most faults of a start to appear,
/// and for a failing check to end the task.
fn healthy_after_of(file: &View<'_>, progress_deadline: Duration) -> Duration {
    let until_ended = file.written("check").map(|_| {
        let check = file.section("check");
        let failures = check.integer("failures").unwrap_or_default();
        let failing = check.duration("interval").saturating_mul(failures);
        let late = check
            .duration("delay")
            .saturating_add(check.duration("timeout"));
        failing.saturating_add(late)
    });
    let longest = progress_deadline / 2;
    HEALTHY_AFTER_MIN
        .max(until_ended.unwrap_or_default())
        .min(longest)
}

fn batch(file: &View<'_>, mistakes: &mut Collector) -> Batch {
    let view = file.section("batch");
    Batch {
        retries: view.integer("retries").unwrap_or_default(),
        backoff: restart(file, mistakes),
        timeout: view.optional_duration("timeout"),
    }
}

fn cron(file: &View<'_>, mistakes: &mut Collector) -> Cron {
    let view = file.section("cron");
    if !file.has("cron") {
        let cure = "add [cron] with a `schedule`";
        mistakes.add(file.place("kind"), "a cron job has no schedule", cure);
    }
    let schedule = view.text("schedule").unwrap_or_default();
    let time_zone = view.text("time_zone").unwrap_or_default();
    if file.has("cron")
        && let Err(error) = Schedule::parse(&schedule, &time_zone)
    {
        let at = match error {
            ScheduleError::UnknownTimeZone { .. } => view.place("time_zone"),
            _ => view.place("schedule"),
        };
        mistakes.add(at, error.to_string(), error.cure());
    }
    Cron {
        batch: batch(file, mistakes),
        schedule,
        time_zone,
        overlap: match view.text("overlap").as_deref() {
            Some("replace") => Overlap::Replace,
            Some("allow") => Overlap::Allow,
            _ => Overlap::Skip,
        },
        start_within: view.duration("start_within"),
    }
}
