//! The program of a task, its resources, and its health check.

use std::collections::BTreeMap;

use super::super::fields::{PROBES, UNLIMITED};
use super::super::mistake::Collector;
use super::super::view::View;
use super::{is_fetched_to, is_within, only_one};
use crate::spec::template::{self, Reference};
use crate::spec::{CheckAddress, Command, HealthCheck, Probe, TaskTemplate, Uri};

/// Bytes of the names and values of a task's environment at most: each launch carries them.
const ENV_BYTES_MAX: usize = 64 * 1024;
/// Custom scalars that one task may request: each is looked up in each offer.
const CUSTOM_MAX: usize = 64;
/// Ports of one task at most: an offer's ranges are walked for each.
const PORTS_MAX: usize = 100;

pub(super) fn template(file: &View<'_>, mistakes: &mut Collector) -> TaskTemplate {
    let task = file.section("task");
    let ports = ports(file, mistakes);
    let requests = requests(file, mistakes);
    TaskTemplate {
        command: command(&task, mistakes),
        user: user(&task, mistakes),
        env: env(&task, &ports, mistakes),
        uris: uris(&task, mistakes),
        limits: limits(file, &requests, mistakes),
        requests,
        check: check(file, &ports, mistakes),
        ports,
        kill_grace: task.duration("kill_grace"),
    }
}

fn command(task: &View<'_>, mistakes: &mut Collector) -> Command {
    match only_one(task, &["command", "argv"], mistakes) {
        Some("argv") => {
            let items = task.texts("argv");
            for (at, text) in &items {
                check_no_nul(("an item of `argv`", text), *at, mistakes);
            }
            let argv: Vec<String> = items.into_iter().map(|(_, text)| text).collect();
            if argv.first().is_none_or(String::is_empty) {
                let cure = "write the program first, as `[\"/bin/date\", \"-u\"]`";
                mistakes.add(task.place("argv"), "`argv` names no program", cure);
            }
            Command::Argv(argv)
        }
        Some(_) => {
            let command = task.text("command").unwrap_or_default();
            check_no_nul(("`command`", &command), task.place("command"), mistakes);
            if command.trim().is_empty() {
                let cure = "write a line for the shell, as `command = \"exec ./server\"`";
                mistakes.add(task.place("command"), "`command` is empty", cure);
            }
            Command::Shell(command)
        }
        None => Command::Shell(String::new()),
    }
}

/// Reports a NUL byte, at which the argument of a program would end.
fn check_no_nul((name, text): (&str, &str), at: usize, mistakes: &mut Collector) {
    if text.contains('\0') {
        mistakes.add(at, format!("{name} has a NUL byte"), "remove it");
    }
}

fn user(task: &View<'_>, mistakes: &mut Collector) -> Option<String> {
    let user = task.text("user")?;
    if user.is_empty() || user.contains(char::is_control) {
        let message = format!("\"{}\" is not a user name", user.escape_debug());
        let cure = "write a user that the agents know, or leave `user` out";
        mistakes.add(task.place("user"), message, cure);
    }
    Some(user)
}

fn env(task: &View<'_>, ports: &[String], mistakes: &mut Collector) -> BTreeMap<String, String> {
    let written = task.written("env").map_or(&[][..], |node| node.entries());
    for entry in written {
        if mistakes.is_full() {
            break;
        }
        if entry.name.is_empty() || entry.name.contains(['=', '\0']) {
            let message = format!("\"{}\" is not a variable name", entry.name);
            mistakes.add(entry.at, message, "write a name without `=`");
        }
        let value = entry.node.text().unwrap_or_default();
        let variable = format!("`{}` of `env`", entry.name);
        check_no_nul((&variable, value), entry.node.at, mistakes);
        let Err(unknown) = template::references(value) else {
            let of = template::references(value).unwrap_or_default();
            for port in of.iter().filter_map(Reference::port) {
                check_port(port, ports, entry.node.at, mistakes);
            }
            continue;
        };
        let message = format!("`{}` has the unknown variable `{unknown}`", entry.name);
        let cure = "write `${index}`, `${attempt}`, `${port.NAME}` or `${hostname}`, or `$${` for a plain `${`";
        mistakes.add(entry.node.at, message, cure);
    }
    let env = task.text_map("env");
    let bytes: usize = env
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if bytes > ENV_BYTES_MAX {
        let message = format!("`env` has {bytes} bytes");
        let cure = format!("write {ENV_BYTES_MAX} at most, and fetch the rest with `uris`");
        mistakes.add(task.place("env"), message, cure);
    }
    env
}

fn uris(task: &View<'_>, mistakes: &mut Collector) -> Vec<Uri> {
    let uris = task.sections("uris").into_iter().map(|view| {
        let executable = view.flag("executable");
        // An executable file is not unpacked; to request both is a mistake.
        let may_be_unpacked = !executable || view.has("extract");
        Uri {
            uri: view
                .short()
                .map_or_else(|| view.text("uri").unwrap_or_default(), str::to_owned),
            extract: may_be_unpacked && view.flag("extract"),
            executable,
            cache: view.flag("cache"),
            output_file: view.text("output_file"),
        }
    });
    let uris: Vec<Uri> = uris.collect();
    for (uri, view) in uris.iter().zip(task.sections("uris")) {
        if uri.uri.is_empty() {
            mistakes.add(view.at(), "a URI is empty", "write where the file is");
        }
        let file = uri.output_file.as_deref();
        if let Some(file) = file.filter(|one| !is_fetched_to(one)) {
            let message = format!("\"{file}\" is not a path below the sandbox");
            let cure = "write a relative path without `..`, as `\"data.tar\"`";
            mistakes.add(view.place("output_file"), message, cure);
        }
        if uri.executable && uri.extract {
            let message = "a file cannot be both unpacked and made executable";
            mistakes.add(view.place("extract"), message, "write `extract = false`");
        }
    }
    uris
}

fn ports(file: &View<'_>, mistakes: &mut Collector) -> Vec<String> {
    let names = file.texts("ports");
    if !is_within(PORTS_MAX, "ports", names.len(), file, mistakes) {
        return Vec::new();
    }
    let mut ports: Vec<String> = Vec::new();
    for (at, port) in names {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if port.is_empty() || !port.chars().all(is_part) {
            let message = format!("\"{port}\" is not a port name");
            mistakes.add(at, message, "write `a-z`, `0-9` and `-`, as `\"http\"`");
        } else if ports.contains(&port) {
            let message = format!("`ports` has \"{port}\" twice");
            mistakes.add(at, message, "keep one of the two");
        }
        ports.push(port);
    }
    ports
}

fn check_port(port: &str, ports: &[String], at: usize, mistakes: &mut Collector) {
    if mistakes.is_full() || ports.iter().any(|known| known == port) {
        return;
    }
    let cure = match ports {
        [] => format!("add `ports = [\"{port}\"]` at the top of the file"),
        known => format!("write one of {}, or add it to `ports`", known.join(", ")),
    };
    mistakes.add(at, format!("port \"{port}\" does not exist"), cure);
}

fn requests(file: &View<'_>, mistakes: &mut Collector) -> BTreeMap<String, f64> {
    let resources = file.section("resources");
    let mut requests = BTreeMap::new();
    let mut put = |name: &str, amount: Option<f64>| {
        if let Some(amount) = amount {
            requests.insert(name.to_owned(), amount);
        }
    };
    put("cpus", resources.number("cpus"));
    put("mem", resources.size_mb("mem"));
    put("disk", resources.size_mb("disk"));
    put("gpus", resources.number("gpus"));
    let custom = resources.written("custom");
    let custom = custom.map_or(&[][..], |node| node.entries());
    if !is_within(CUSTOM_MAX, "custom", custom.len(), &resources, mistakes) {
        return requests;
    }
    for entry in custom {
        if ["cpus", "mem", "disk", "gpus", "ports"].contains(&entry.name.as_str()) {
            let message = format!("`{}` is not a custom resource", entry.name);
            let cure = match entry.name.as_str() {
                "ports" => "name ports in `ports` at the top of the file".to_owned(),
                name => format!("write `{name}` in [resources] itself"),
            };
            mistakes.add(entry.at, message, cure);
        } else if meseta_resources::ResourceName::new(&entry.name).is_err() {
            mistakes.add(entry.at, "a resource has no name", "write its name");
        }
        put(&entry.name, entry.node.number());
    }
    requests
}

fn limits(
    file: &View<'_>,
    requests: &BTreeMap<String, f64>,
    mistakes: &mut Collector,
) -> BTreeMap<String, f64> {
    let section = file.section("limits");
    let mut limits = BTreeMap::new();
    for (name, amount) in [
        ("cpus", section.number("cpus")),
        ("mem", section.size_mb("mem")),
    ] {
        let is_unlimited = section.text(name).as_deref() == Some(UNLIMITED);
        let Some(limit) = is_unlimited.then_some(f64::INFINITY).or(amount) else {
            continue;
        };
        if requests.get(name).is_some_and(|request| limit < *request) {
            let message = format!("the limit of `{name}` is below the guarantee");
            let cure = format!("raise it to `{name}` of [resources], or lower that");
            mistakes.add(section.place(name), message, cure);
        }
        limits.insert(name.to_owned(), limit);
    }
    limits
}

fn check(file: &View<'_>, ports: &[String], mistakes: &mut Collector) -> Option<HealthCheck> {
    file.written("check")?;
    let view = file.section("check");
    let probe = only_one(&view, &PROBES, mistakes)?;
    let target = view.section(probe);
    let port = target.text("port").unwrap_or_default();
    let address = target.text("address");
    let address = address.and_then(|text| {
        let mut all = [CheckAddress::V4, CheckAddress::V6].into_iter();
        all.find(|address| address.as_str() == text)
    });
    let probe = match probe {
        "http" => Probe::Http {
            path: target.text("path").unwrap_or_default(),
            port,
            address,
        },
        "tcp" => Probe::Tcp { port, address },
        _ => {
            let command = view.text("command").unwrap_or_default();
            check_no_nul(("`command`", &command), view.place("command"), mistakes);
            Probe::Command(command)
        }
    };
    match &probe {
        Probe::Http { port, path, .. } => {
            check_port(port, ports, target.place("port"), mistakes);
            if !path.starts_with('/') {
                let message = format!("the path \"{path}\" does not begin with `/`");
                mistakes.add(
                    target.place("path"),
                    message,
                    format!("write `\"/{path}\"`"),
                );
            }
        }
        Probe::Tcp { port, .. } => check_port(port, ports, target.place("port"), mistakes),
        Probe::Command(_) => {}
    }
    Some(HealthCheck {
        probe,
        delay: view.duration("delay"),
        interval: view.duration("interval"),
        timeout: view.duration("timeout"),
        failures: view.integer("failures").unwrap_or(1),
        grace: view.duration("grace"),
    })
}
