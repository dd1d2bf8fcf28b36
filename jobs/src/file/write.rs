//! A job in the form of a file, with every default written out.

use std::time::Duration;

use meseta_resources::ByteSize;
use serde_json::{Map, Value, json};

use super::fields::UNLIMITED;
use crate::spec::{
    Backoff, Batch, CheckAddress, Command, Constraint, Cron, HealthCheck, JobSpec, Kind, Overlap,
    Probe, Rule, Service, TaskTemplate, Update, Uri,
};

const BYTES_PER_MB: f64 = 1_048_576.0;

/// Returns the JSON form of the job.
#[must_use]
pub fn to_json(spec: &JobSpec) -> Value {
    let mut job = object(json!({
        "name": spec.name,
        "role": spec.role,
        "count": spec.count,
        "priority": spec.priority,
        "after": spec.after,
        "best_effort": spec.best_effort,
        "ports": spec.task.ports,
        "labels": spec.labels,
        "task": task(&spec.task),
        "resources": resources(&spec.task),
        "limits": limits(&spec.task),
        "constraints": spec.constraints.iter().map(constraint).collect::<Vec<_>>(),
    }));
    kind(&spec.kind, &mut job);
    if let Some(check) = &spec.task.check {
        job.insert("check".to_owned(), health_check(check));
    }
    if let Some(gang) = &spec.gang {
        let gang = json!({ "hold_at_most": duration(gang.hold_at_most) });
        job.insert("gang".to_owned(), gang);
    }
    if let Some(volume) = &spec.volume {
        let volume = json!({ "size": size(volume.size_mb), "path": volume.path });
        job.insert("volume".to_owned(), volume);
    }
    Value::Object(job)
}

/// Returns the TOML form of the job.
#[must_use]
pub fn to_toml(spec: &JobSpec) -> String {
    // A tree of texts, numbers, lists and tables always has a TOML form.
    toml::to_string(&to_json(spec)).unwrap_or_default()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn size(megabytes: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sizes are positive and at most 2^50 bytes"
    )]
    let bytes = (megabytes * BYTES_PER_MB).round() as u64;
    ByteSize::from_bytes(bytes).to_string()
}

/// Formats a duration in the largest unit that gives a whole number: the parser would cut off a fraction.
fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units = [
        ("weeks", 604_800_000_000_000),
        ("days", 86_400_000_000_000),
        ("hrs", 3_600_000_000_000),
        ("mins", 60_000_000_000),
        ("secs", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    if nanos == 0 {
        return "0secs".to_owned();
    }
    let whole = units.iter().find(|(_, unit)| nanos.is_multiple_of(*unit));
    let (name, unit) = whole.copied().unwrap_or(("ns", 1));
    format!("{}{name}", nanos / unit)
}

fn task(task: &TaskTemplate) -> Value {
    let mut table = object(json!({
        "env": task.env,
        "uris": task.uris.iter().map(uri).collect::<Vec<_>>(),
        "kill_grace": duration(task.kill_grace),
    }));
    match &task.command {
        Command::Shell(command) => table.insert("command".to_owned(), json!(command)),
        Command::Argv(argv) => table.insert("argv".to_owned(), json!(argv)),
    };
    if let Some(user) = &task.user {
        table.insert("user".to_owned(), json!(user));
    }
    Value::Object(table)
}

fn uri(uri: &Uri) -> Value {
    let mut table = object(json!({
        "uri": uri.uri,
        "extract": uri.extract,
        "executable": uri.executable,
        "cache": uri.cache,
    }));
    if let Some(file) = &uri.output_file {
        table.insert("output_file".to_owned(), json!(file));
    }
    Value::Object(table)
}

fn resources(task: &TaskTemplate) -> Value {
    let (mut table, mut custom) = (Map::new(), Map::new());
    for (name, amount) in &task.requests {
        match name.as_str() {
            "cpus" => table.insert(name.clone(), json!(amount)),
            "mem" | "disk" => table.insert(name.clone(), json!(size(*amount))),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a whole number of at most 1000"
            )]
            "gpus" => table.insert(name.clone(), json!(*amount as i64)),
            _ => custom.insert(name.clone(), json!(amount)),
        };
    }
    if !custom.is_empty() {
        table.insert("custom".to_owned(), Value::Object(custom));
    }
    Value::Object(table)
}

fn limits(task: &TaskTemplate) -> Value {
    let limit = |(name, amount): (&String, &f64)| {
        let value = match name.as_str() {
            _ if amount.is_infinite() => json!(UNLIMITED),
            "mem" => json!(size(*amount)),
            _ => json!(amount),
        };
        (name.clone(), value)
    };
    Value::Object(task.limits.iter().map(limit).collect())
}

fn constraint(constraint: &Constraint) -> Value {
    let (name, value) = match &constraint.rule {
        Rule::Equals(value) => ("equals", json!(value)),
        Rule::NotEquals(value) => ("not_equals", json!(value)),
        Rule::In(values) => ("in", json!(values)),
        Rule::Matches(pattern) => ("matches", json!(pattern.as_str())),
        Rule::Exists => ("exists", json!(true)),
        Rule::NotExists => ("exists", json!(false)),
        Rule::Distinct(most) => ("distinct", json!(most)),
        Rule::Spread => ("spread", json!(true)),
    };
    json!({ "attribute": constraint.attribute, name: value })
}

fn kind(kind: &Kind, job: &mut Map<String, Value>) {
    let name = match kind {
        Kind::Service(service) => {
            let Service {
                restart: backoff,
                update: how,
            } = service;
            job.insert("restart".to_owned(), restart(backoff));
            job.insert("update".to_owned(), update(how));
            "service"
        }
        Kind::Batch(of) => {
            batch(of, job);
            "batch"
        }
        Kind::Cron(of) => {
            batch(&of.batch, job);
            job.insert("cron".to_owned(), cron(of));
            "cron"
        }
    };
    job.insert("kind".to_owned(), json!(name));
}

fn restart(backoff: &Backoff) -> Value {
    json!({
        "first": duration(backoff.first),
        "longest": duration(backoff.longest),
        "reset_after": duration(backoff.reset_after),
    })
}

fn update(update: &Update) -> Value {
    json!({
        "max_unavailable": update.max_unavailable,
        "max_surge": update.max_surge,
        "canary": update.canary,
        "healthy_after": duration(update.healthy_after),
        "pause": duration(update.pause),
        "progress_deadline": duration(update.progress_deadline),
        "auto_revert": update.auto_revert,
    })
}

fn batch(batch: &Batch, job: &mut Map<String, Value>) {
    let mut table = object(json!({ "retries": batch.retries }));
    if let Some(timeout) = batch.timeout {
        table.insert("timeout".to_owned(), json!(duration(timeout)));
    }
    job.insert("batch".to_owned(), Value::Object(table));
    job.insert("restart".to_owned(), restart(&batch.backoff));
}

fn cron(cron: &Cron) -> Value {
    json!({
        "schedule": cron.schedule,
        "time_zone": cron.time_zone,
        "overlap": match cron.overlap {
            Overlap::Skip => "skip",
            Overlap::Replace => "replace",
            Overlap::Allow => "allow",
        },
        "start_within": duration(cron.start_within),
    })
}

/// Adds the address to the target of a check, if the job names one.
fn with_address(target: Value, address: Option<CheckAddress>) -> Value {
    let mut table = object(target);
    if let Some(address) = address {
        table.insert("address".to_owned(), json!(address.as_str()));
    }
    Value::Object(table)
}

fn health_check(check: &HealthCheck) -> Value {
    let mut table = object(json!({
        "delay": duration(check.delay),
        "interval": duration(check.interval),
        "timeout": duration(check.timeout),
        "failures": check.failures,
        "grace": duration(check.grace),
    }));
    match &check.probe {
        Probe::Command(command) => table.insert("command".to_owned(), json!(command)),
        Probe::Http {
            port,
            path,
            address,
        } => {
            let target = json!({ "port": port, "path": path });
            table.insert("http".to_owned(), with_address(target, *address))
        }
        Probe::Tcp { port, address } => {
            let target = json!({ "port": port });
            table.insert("tcp".to_owned(), with_address(target, *address))
        }
    };
    Value::Object(table)
}
