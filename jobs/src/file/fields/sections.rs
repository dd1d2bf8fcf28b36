//! The tables of a job file and their fields.

use super::{CHECK_ADDRESSES, Field, Form, KINDS, OVERLAPS, Presence, Section};
use crate::spec::{COUNT_MAX, PRIORITY_MAX};

const fn text(name: &'static str, presence: Presence, doc: &'static str) -> Field {
    Field {
        name,
        form: Form::Text,
        presence,
        doc,
    }
}

const fn duration(name: &'static str, default: &'static str, doc: &'static str) -> Field {
    Field {
        name,
        form: Form::Duration { may_be_zero: false },
        presence: Presence::Default(default),
        doc,
    }
}

const fn pause(name: &'static str, default: &'static str, doc: &'static str) -> Field {
    Field {
        name,
        form: Form::Duration { may_be_zero: true },
        presence: Presence::Default(default),
        doc,
    }
}

const fn integer(
    name: &'static str,
    (least, most): (i64, i64),
    presence: Presence,
    doc: &'static str,
) -> Field {
    Field {
        name,
        form: Form::Integer { least, most },
        presence,
        doc,
    }
}

const fn field(name: &'static str, form: Form, presence: Presence, doc: &'static str) -> Field {
    Field {
        name,
        form,
        presence,
        doc,
    }
}

const fn section(name: &'static str, section: &'static Section, presence: Presence) -> Field {
    Field {
        name,
        form: Form::Section(section),
        presence,
        doc: section.doc,
    }
}

const TASKS_MAX: i64 = COUNT_MAX as i64;

/// The top of the file.
pub(in crate::file) static JOB: Section = Section {
    title: "the job",
    doc: "One job: what runs, how often, where, and what happens when it ends.",
    fields: &[
        text(
            "name",
            Presence::Required,
            "Unique in its role: 1 to 100 of `a-z`, `0-9`, `-` and `.`; begins with a letter or digit. `ROLE/NAME` moves the job from that role.",
        ),
        field(
            "kind",
            Form::OneOf(&KINDS),
            Presence::Default("\"service\""),
            "`service` runs until it is stopped. Each task of a `batch` runs until it has \
             succeeded once. `cron` is a batch at each time of a schedule.",
        ),
        text(
            "role",
            Presence::Default("\"*\""),
            "The role whose share the tasks are taken from.",
        ),
        integer(
            "count",
            (1, TASKS_MAX),
            Presence::Default("1"),
            "The number of instances of a service, or of tasks of a batch or of one cron run \
             (the length of an array).",
        ),
        integer(
            "priority",
            (0, PRIORITY_MAX as i64),
            Presence::Default("50"),
            "The scheduler places jobs of one role with a higher priority first.",
        ),
        field(
            "after",
            Form::Texts,
            Presence::Default("[]"),
            "Jobs that must be healthy (service) or have succeeded (batch) before this one \
             starts: `NAME` in the same role, else in the only role with that job; or `ROLE/NAME`.",
        ),
        field(
            "best_effort",
            Form::Flag,
            Presence::Default("false"),
            "Runs on revocable CPUs. A preempted task starts again elsewhere.",
        ),
        field(
            "ports",
            Form::Texts,
            Presence::Default("[]"),
            "Names of the ports that each task gets from the offer; their numbers are in `PORT_NAME` (in capitals, `_` for `-`) and `${port.NAME}`.",
        ),
        field(
            "labels",
            Form::TextMap,
            Presence::Default("{}"),
            "Labels of each task.",
        ),
        section("task", &TASK, Presence::Required),
        section("resources", &RESOURCES, Presence::Optional),
        section("limits", &LIMITS, Presence::Optional),
        field(
            "constraints",
            Form::Sections {
                section: &CONSTRAINT,
                short: None,
            },
            Presence::Default("[]"),
            CONSTRAINT.doc,
        ),
        section("check", &CHECK, Presence::Optional),
        section("restart", &RESTART, Presence::Optional),
        section("update", &UPDATE, Presence::Optional),
        section("batch", &BATCH, Presence::Optional),
        section("cron", &CRON, Presence::Optional),
        section("gang", &GANG, Presence::Optional),
        section("volume", &VOLUME, Presence::Optional),
    ],
};

static TASK: Section = Section {
    title: "[task]",
    doc: "The program of a task. Write exactly one of `command` and `argv`.",
    fields: &[
        text("command", Presence::Optional, "A line for `/bin/sh -c`."),
        field(
            "argv",
            Form::Texts,
            Presence::Optional,
            "The program and its arguments, without a shell.",
        ),
        text(
            "user",
            Presence::Optional,
            "The task's user on the agent's machine; absent: the user of the scheduler's \
             framework.",
        ),
        field(
            "env",
            Form::TextMap,
            Presence::Default("{}"),
            "Environment. Values may contain `${index}` (from 0), `${attempt}`, `${port.NAME}` and `${hostname}`; `$${` stands for `${`.",
        ),
        field(
            "uris",
            Form::Sections {
                section: &URI,
                short: Some("uri"),
            },
            Presence::Default("[]"),
            "Files that the agent fetches into the sandbox before the task starts; a text means \
             `{ uri = \"...\" }`.",
        ),
        duration(
            "kill_grace",
            "\"5secs\"",
            "The time from SIGTERM to SIGKILL when the task is stopped.",
        ),
    ],
};

static URI: Section = Section {
    title: "[[task.uris]]",
    doc: "A file that the agent fetches into the sandbox.",
    fields: &[
        text("uri", Presence::Required, "The location of the file."),
        field(
            "extract",
            Form::Flag,
            Presence::Default("true"),
            "The agent unpacks an archive.",
        ),
        field(
            "executable",
            Form::Flag,
            Presence::Default("false"),
            "The agent makes the file executable instead of unpacking it.",
        ),
        field(
            "cache",
            Form::Flag,
            Presence::Default("false"),
            "The agent keeps the file for other tasks.",
        ),
        text(
            "output_file",
            Presence::Optional,
            "The file's name in the sandbox; absent: the last part of the URI.",
        ),
    ],
};

static RESOURCES: Section = Section {
    title: "[resources]",
    doc: "The guarantee of each task; the scheduler declines offers without it.",
    fields: &[
        field(
            "cpus",
            Form::Amount,
            Presence::Default("0.1"),
            "CPUs, in thousandths.",
        ),
        field("mem", Form::Size, Presence::Default("\"64MB\""), "Memory."),
        field(
            "disk",
            Form::Size,
            Presence::Optional,
            "Space of the sandbox.",
        ),
        integer("gpus", (1, 1000), Presence::Optional, "Whole GPUs."),
        field(
            "custom",
            Form::AmountMap,
            Presence::Default("{}"),
            "Custom scalar resources, by name.",
        ),
    ],
};

static LIMITS: Section = Section {
    title: "[limits]",
    doc: "The maximum usage of each task; absent: its guarantee.",
    fields: &[
        field(
            "cpus",
            Form::AmountLimit,
            Presence::Optional,
            "CPUs, at least `cpus` of `[resources]`, or `\"unlimited\"`.",
        ),
        field(
            "mem",
            Form::SizeLimit,
            Presence::Optional,
            "Memory, at least `mem` of `[resources]`, or `\"unlimited\"`.",
        ),
    ],
};

static CONSTRAINT: Section = Section {
    title: "[[constraints]]",
    doc: "The agents on which tasks may run, or the distribution of tasks. Write exactly one \
        rule beside `attribute`.",
    fields: &[
        text(
            "attribute",
            Presence::Required,
            "An attribute of agents, or `@hostname`, `@agent_id`, `@region`, `@zone`.",
        ),
        text(
            "equals",
            Presence::Optional,
            "The value is equal to this text.",
        ),
        text(
            "not_equals",
            Presence::Optional,
            "The value differs from this text, or is absent.",
        ),
        field(
            "in",
            Form::Texts,
            Presence::Optional,
            "The value is one of these texts.",
        ),
        text(
            "matches",
            Presence::Optional,
            "A regular expression matches the whole value.",
        ),
        field(
            "exists",
            Form::Flag,
            Presence::Optional,
            "`true`: a value exists; `false`: no value exists.",
        ),
        integer(
            "distinct",
            (1, TASKS_MAX),
            Presence::Optional,
            "The maximum number of the job's tasks on one value; agents without a value get no \
             tasks.",
        ),
        field(
            "spread",
            Form::Flag,
            Presence::Optional,
            "`true`: spread tasks evenly over the values, as far as offers allow; agents without \
             a value count as one value.",
        ),
    ],
};

static CHECK: Section = Section {
    title: "[check]",
    doc: "A health check. Write exactly one of `command`, `http` and `tcp`.",
    fields: &[
        text(
            "command",
            Presence::Optional,
            "A shell command that exits with 0.",
        ),
        section("http", &HTTP_PROBE, Presence::Optional),
        section("tcp", &TCP_PROBE, Presence::Optional),
        pause(
            "delay",
            "\"0secs\"",
            "The time from the start of the task to the first check.",
        ),
        duration("interval", "\"5secs\"", "The time between two checks."),
        duration(
            "timeout",
            "\"5secs\"",
            "A check that takes longer has failed.",
        ),
        integer(
            "failures",
            (1, 1000),
            Presence::Default("3"),
            "The number of failures in a row after which the agent kills the task.",
        ),
        pause(
            "grace",
            "\"10secs\"",
            "The time after the start in which failures do not count, until the first success.",
        ),
    ],
};

static HTTP_PROBE: Section = Section {
    title: "[check] http",
    doc: "GET answers 200 to 399.",
    fields: &[
        text("port", Presence::Required, "One of `ports`."),
        text(
            "path",
            Presence::Default("\"/\""),
            "The path of the request.",
        ),
        CHECK_ADDRESS,
    ],
};

static TCP_PROBE: Section = Section {
    title: "[check] tcp",
    doc: "A connection succeeds.",
    fields: &[
        text("port", Presence::Required, "One of `ports`."),
        CHECK_ADDRESS,
    ],
};

/// The address of a check over the network.
const CHECK_ADDRESS: Field = field(
    "address",
    Form::OneOf(&CHECK_ADDRESSES),
    Presence::Optional,
    "`127.0.0.1` or `::1`, for a server that listens on only one of these addresses. Unset: \
     127.0.0.1; ::1 where the task has no 127.0.0.1.",
);

static RESTART: Section = Section {
    title: "[restart]",
    doc: "The pause before a failed task starts again.",
    fields: &[
        duration(
            "first",
            "\"1secs\"",
            "The first pause; each further pause is twice as long.",
        ),
        duration("longest", "\"5mins\"", "The maximum length of a pause."),
        duration(
            "reset_after",
            "\"10mins\"",
            "The time in good health after which the next pause is `first` again.",
        ),
    ],
};

static UPDATE: Section = Section {
    title: "[update]",
    doc: "The replacement of instances when a service changes; for `service` only.",
    fields: &[
        integer(
            "max_unavailable",
            (0, TASKS_MAX),
            Presence::Optional,
            "The number of instances that may be missing below `count` during the update; 0 by \
             default, 1 with a volume.",
        ),
        integer(
            "max_surge",
            (0, TASKS_MAX),
            Presence::Optional,
            "The number of instances that may exist above `count` during the update; 1 by \
             default, 0 with a volume.",
        ),
        integer(
            "canary",
            (0, TASKS_MAX),
            Presence::Default("0"),
            "New instances that run alone until `meseta job promote`; 0 for none.",
        ),
        field(
            "healthy_after",
            Form::Duration { may_be_zero: true },
            Presence::Optional,
            "An instance counts as healthy after this long running without a failed check; absent: 10secs, with a `[check]` at least the time until a failing check ends the task; at most half of `progress_deadline`.",
        ),
        pause(
            "pause",
            "\"0secs\"",
            "The time from the health of a new instance to the start of the next instance. A \
             version is good once all its instances have been healthy for the longer \
             of `healthy_after` and `pause`.",
        ),
        duration(
            "progress_deadline",
            "\"10mins\"",
            "An update that makes no progress for this long has failed.",
        ),
        field(
            "auto_revert",
            Form::Flag,
            Presence::Default("true"),
            "A failed update goes back to the last good version, if there is one.",
        ),
    ],
};

static BATCH: Section = Section {
    title: "[batch]",
    doc: "The end of tasks; for `batch` and `cron` only.",
    fields: &[
        integer(
            "retries",
            (0, 1000),
            Presence::Default("3"),
            "The number of further runs of a task that fails.",
        ),
        field(
            "timeout",
            Form::Duration { may_be_zero: false },
            Presence::Optional,
            "The maximum time of one run of a task. The scheduler then kills the task, which \
             counts as failed; absent: no maximum.",
        ),
    ],
};

static CRON: Section = Section {
    title: "[cron]",
    doc: "The times of the batch; required for `cron`, and for `cron` only.",
    fields: &[
        text(
            "schedule",
            Presence::Required,
            "Five fields as in crontab(5), or `@hourly`, `@daily`, `@weekly`, `@monthly`, \
             `@yearly`.",
        ),
        text(
            "time_zone",
            Presence::Default("\"UTC\""),
            "A name in the IANA database, such as `Europe/Berlin`.",
        ),
        field(
            "overlap",
            Form::OneOf(&OVERLAPS),
            Presence::Default("\"skip\""),
            "The action if the previous run has not ended: `skip` the new run, `replace` the \
             previous run, or `allow` both.",
        ),
        duration(
            "start_within",
            "\"5mins\"",
            "A run that could not start within this long of its time is skipped.",
        ),
    ],
};

static GANG: Section = Section {
    title: "[gang]",
    doc: "Either all tasks start together, or none; an empty table is enough.",
    fields: &[duration(
        "hold_at_most",
        "\"30secs\"",
        "The maximum time for which the scheduler holds offers while it collects the rest, at \
         most 10mins. Then it declines all offers. The pause before the next attempt doubles \
         each time, up to an hour.",
    )],
};

static VOLUME: Section = Section {
    title: "[volume]",
    doc: "A persistent volume for each instance, which returns to its volume; for `service` \
        only, in a role other than `*`.",
    fields: &[
        field(
            "size",
            Form::Size,
            Presence::Required,
            "The size of the volume.",
        ),
        text(
            "path",
            Presence::Required,
            "The path of the volume, relative to the sandbox and below it.",
        ),
    ],
};
