//! Job files: a file means its job, and a mistake has its place and its remedy.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::spec::*;

mod drawn;
mod wrong;

const WEB: &str = r#"
name = "web"
role = "shop"
count = 3
ports = ["http", "admin-ui"]

[task]
command = "exec ./web"
user = "www"
uris = ["https://example.com/web.tar.gz", { uri = "file:///etc/web.conf", extract = false, output_file = "conf" }]
[task.env]
LISTEN = "${hostname}:${port.http}"

[resources]
cpus = 0.5
mem = "256MB"
custom = { licences = 2 }

[limits]
cpus = "unlimited"
mem = "1GB"

[[constraints]]
attribute = "rack"
spread = true

[[constraints]]
attribute = "@hostname"
distinct = 2

[check]
http = { port = "http", path = "/health" }
interval = "500ms"

[update]
max_unavailable = 1
"#;

#[test]
fn service_file_means_its_fields() {
    let spec = from_toml(WEB).expect("a job");
    assert_eq!((spec.name.as_str(), spec.role.as_str()), ("web", "shop"));
    assert_eq!((spec.count, spec.priority), (3, 50));
    let task = &spec.task;
    assert_eq!(task.command, Command::Shell("exec ./web".to_owned()));
    assert_eq!(task.ports, ["http", "admin-ui"]);
    let requests = [("cpus", 0.5), ("mem", 256.0), ("licences", 2.0)];
    assert_eq!(
        task.requests,
        requests
            .map(|(name, amount)| (name.to_owned(), amount))
            .into()
    );
    assert_eq!(task.limits["cpus"], f64::INFINITY);
    assert_eq!(task.limits["mem"], 1024.0);
    let extracted: Vec<_> = task.uris.iter().map(|uri| uri.extract).collect();
    assert_eq!(extracted, [true, false]);
    let check = task.check.as_ref().expect("a check");
    assert_eq!(check.interval, Duration::from_millis(500));
    assert_eq!((check.timeout, check.failures), (Duration::from_secs(5), 3));
    let rules: Vec<_> = spec.constraints.iter().map(|one| &one.rule).collect();
    assert_eq!(rules, [&Rule::Spread, &Rule::Distinct(2)]);
    let Kind::Service(service) = &spec.kind else {
        panic!("{:?}", spec.kind);
    };
    assert_eq!(
        (service.update.max_unavailable, service.update.max_surge),
        (1, 1)
    );
    assert_eq!(service.restart.longest, Duration::from_secs(300));
}

#[test]
fn shortest_file_is_one_instance_service() {
    let spec = from_toml("name = \"a\"\n[task]\nargv = [\"/bin/true\"]\n").expect("a job");
    assert_eq!((spec.count, spec.role.as_str()), (1, "*"));
    assert_eq!(
        spec.task.requests,
        BTreeMap::from([("cpus".into(), 0.1), ("mem".into(), 64.0)])
    );
    assert!(matches!(spec.kind, Kind::Service(_)));
    assert_eq!(spec.gang, None);
}

#[test]
fn volume_update_replaces_in_place() {
    let text = "name = \"db\"\nrole = \"data\"\n[task]\ncommand = \"a\"\n[volume]\nsize = \"1GB\"\npath = \"data\"\n";
    let spec = from_toml(text).expect("a job");
    let Kind::Service(service) = spec.kind else {
        panic!("{:?}", spec.kind);
    };
    assert_eq!(
        (service.update.max_unavailable, service.update.max_surge),
        (1, 0)
    );
    assert_eq!(spec.volume.expect("a volume").size_mb, 1024.0);
}

#[test]
fn an_environment_has_a_most() {
    let text = |bytes| {
        format!(
            "name = \"a\"\n[task]\ncommand = \"b\"\nenv = {{ A = \"{}\" }}\n",
            "x".repeat(bytes)
        )
    };
    assert!(from_toml(&text(65_535)).is_ok());
    let told = from_toml(&text(65_536)).expect_err("a mistake").to_string();
    assert!(
        told.contains("`env` has 65537 bytes; write 65536 at most"),
        "{told}"
    );
}

#[test]
fn json_says_the_same() {
    let spec = from_toml(WEB).expect("a job");
    let json = serde_json::to_string_pretty(&to_json(&spec)).expect("JSON");
    assert_eq!(from_json(&json), Ok(spec.clone()));
    assert_eq!(from_text(&json), Ok(spec.clone()));
    assert_eq!(from_text(&to_toml(&spec)), Ok(spec));
}

/// Regression: such files were refused, which every agent fetches.
#[test]
fn file_reaches_each_path_in_sandbox() {
    let read = |file: &str| {
        from_toml(&format!(
            "name = \"a\"\n[task]\ncommand = \"b\"\nuris = [{{ uri = \"u\", output_file = \"{file}\" }}]\n"
        ))
    };
    for file in ["data.tar", "./data.tar", "a//b", "a/./b", "conf/", ""] {
        let spec = read(file).expect(file);
        assert_eq!(spec.task.uris[0].output_file.as_deref(), Some(file));
    }
    for file in ["/a", "..", "a/../b", ".", "./", "a\\u0000"] {
        assert!(read(file).is_err(), "{file:?}");
    }
}

/// Regression: the command line's JSON of such a file said that it is unpacked too, and was refused.
#[test]
fn file_is_executable_instead_of_unpacked() {
    let text = |fields| {
        format!(
            "name = \"a\"\n[task]\ncommand = \"b\"\nuris = [{{ uri = \"/bin/b\", {fields} }}]\n"
        )
    };
    let spec = from_toml(&text("executable = true")).expect("a job");
    assert!(spec.task.uris[0].executable && !spec.task.uris[0].extract);
    assert_eq!(from_json(&to_json(&spec).to_string()), Ok(spec));
    let both = from_toml(&text("executable = true, extract = true")).expect_err("a mistake");
    assert!(both.to_string().contains("write `extract = false`"));
}

#[test]
fn mistakes_of_json_have_their_places() {
    let text =
        "{\n  \"name\": \"a\",\n  \"task\": {\n    \"command\": 3\n  },\n  \"count\": null\n}";
    let told = from_json(text).expect_err("mistakes").to_string();
    assert_eq!(
        told,
        "4:16: `command` is a whole number, not a text; write `command = \"...\"`\n\
         6:12: `count` is null, not a whole number; write a whole number from 1 to 1000000"
    );
}

#[test]
fn a_file_may_have_several_jobs() {
    let two = "[[jobs]]\nname = \"a\"\n[jobs.task]\ncommand = \"true\"\n[[jobs]]\nname = \"b\"\nafter = [\"a\"]\n\
               [jobs.task]\ncommand = \"true\"\n[jobs.resources]\ncpus = 0.2\n";
    let specs = all_from_text(two).expect("two jobs");
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(specs[1].after, ["a"]);
    assert_eq!(specs[1].task.requests["cpus"], 0.2);
    let list: Vec<_> = specs.iter().map(to_json).collect();
    let json = serde_json::json!({ "jobs": list }).to_string();
    assert_eq!(all_from_text(&json), Ok(specs));
    assert_eq!(all_from_text(WEB).expect("one job").len(), 1);
    for (text, expected) in [
        (
            two.replace("cpus = 0.2", "cpu = 1"),
            "11:1: [resources] has no field `cpu`; write `cpus`",
        ),
        (
            two.replace("\"b\"", "\"a\"")
                .replace("after = [\"a\"]\n", ""),
            "5:1: two jobs have the name \"a\"; rename one of the two",
        ),
        (
            format!("count = 1\n{two}"),
            "1:1: `count` is outside the list `jobs`; move it into one of the jobs",
        ),
        (
            "jobs = 3".to_owned(),
            "1:8: `jobs` is not a list of jobs; write one or more jobs, each as [[jobs]]",
        ),
    ] {
        let told = all_from_text(&text).expect_err("a mistake").to_string();
        assert_eq!(told, expected, "{text}");
    }
}

#[test]
fn every_example_is_a_job() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/jobs");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the examples") {
        let path = entry.expect("an example").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let specs = all_from_text(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let stem = path.file_stem().and_then(|name| name.to_str());
        let stem = stem.expect("a name");
        assert!(specs.iter().all(|spec| spec.name.starts_with(stem)));
        names.push(stem.to_owned());
    }
    names.sort();
    let expected = [
        "array-gang",
        "dask",
        "database",
        "filler",
        "hello",
        "nightly",
        "web",
    ];
    assert_eq!(names, expected);
}

#[test]
fn healthy_after_lets_faults_appear() {
    let healthy_after = |rest: &str| {
        let text = format!("name = \"a\"\n{rest}[task]\ncommand = \"true\"\n");
        let spec = from_toml(&text).expect("a job");
        let Kind::Service(service) = spec.kind else {
            panic!("a service");
        };
        service.update.healthy_after.as_secs_f64()
    };
    let expect = |rest: &str, seconds: f64| {
        let found = healthy_after(rest);
        assert!((found - seconds).abs() < 0.001, "{rest}: {found}");
    };
    expect("", 10.0);
    expect("[update]\nhealthy_after = \"1secs\"\n", 1.0);
    expect("[update]\nprogress_deadline = \"8secs\"\n", 4.0);
    // Three failures have five seconds between them, and the last takes five.
    expect("[check]\ncommand = \"true\"\n", 20.0);
    expect(
        "[check]\ncommand = \"true\"\ndelay = \"1mins\"\ninterval = \"1secs\"\n",
        68.0,
    );
    expect("[check]\ncommand = \"true\"\ninterval = \"1hrs\"\n", 300.0);
}
