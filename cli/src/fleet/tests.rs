//! The generated folder: its files, their owners, and its protection from overwriting.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use meseta_access::{Acls, Action, Authorizer, Credential, Credentials};

use super::*;

const NOW: Duration = Duration::from_secs(1_800_000_000);

fn init_in(dir: &Path, agents: &[&str], principals: &[&str]) -> anyhow::Result<String> {
    let options = InitOptions {
        dir: dir.to_owned(),
        master: names::machine("master.example=10.0.0.1").expect("a machine"),
        agents: agents
            .iter()
            .map(|text| names::machine(text).expect("a machine"))
            .collect(),
        added: added(principals, 365),
        authority_days: 3650,
    };
    init(&options, NOW)
}

fn added(principals: &[&str], days: u64) -> Added {
    Added {
        principals: principals
            .iter()
            .map(|text| names::principal(text).expect("a principal"))
            .collect(),
        scheduler: None,
        job_users: vec!["meseta".to_owned()],
        days,
    }
}

fn add_to(dir: &Path, agents: &[&str], principals: &[&str]) -> anyhow::Result<String> {
    let options = AddOptions {
        dir: dir.to_owned(),
        agents: agents
            .iter()
            .map(|text| names::machine(text).expect("a machine"))
            .collect(),
        added: added(principals, 365),
    };
    add(&options, NOW)
}

/// Returns every file and folder below, with its mode and text.
fn tree(dir: &Path) -> BTreeMap<String, (u32, Option<String>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = std::fs::metadata(&path).expect("metadata");
        let text = if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a folder");
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
            None
        } else {
            Some(std::fs::read_to_string(&path).expect("text"))
        };
        let name = path.strip_prefix(dir).expect("below").display().to_string();
        found.insert(name, (metadata.permissions().mode() & 0o7777, text));
    }
    found
}

fn text<'a>(tree: &'a BTreeMap<String, (u32, Option<String>)>, path: &str) -> &'a str {
    let found = tree.get(path).and_then(|(_, text)| text.as_deref());
    found.unwrap_or_else(|| panic!("no {path} among {:?}", tree.keys()))
}

#[test]
fn files_are_private_and_key_unique() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let said = init_in(&dir, &["node1.example=10.0.0.7"], &[]).expect("made");
    let tree = tree(&dir);
    for (path, (mode, text)) in &tree {
        let is_machine = path == "machines/master.example" || path == "machines/node1.example";
        let expected = match text {
            Some(_) if path.ends_with(".toml") => 0o644,
            Some(_) => 0o600,
            None if is_machine => 0o755,
            None => 0o700,
        };
        assert_eq!(*mode, expected, "{path}");
    }
    let key = text(&tree, "authority/ca.key");
    let holders = tree
        .iter()
        .filter(|(_, (_, text))| text.as_deref() == Some(key));
    assert_eq!(holders.count(), 1);
    // No secret and no key is printed, and each secret is in the place that needs it.
    for principal in names::BUILT_IN {
        let secret = text(&tree, &format!("principals/{principal}/secret")).trim_end();
        assert!(secret.len() >= 64 && !said.contains(secret));
        let holders: Vec<_> = tree
            .iter()
            .filter(|(_, (_, text))| text.as_deref().is_some_and(|text| text.contains(secret)))
            .map(|(path, _)| path.as_str())
            .collect();
        let mut expected = vec![format!("principals/{principal}/secret")];
        if principal == names::NODE {
            expected.insert(0, "machines/node1.example/agent/credential".to_owned());
        }
        assert_eq!(holders, expected);
    }
    assert!(!said.contains("PRIVATE KEY"), "{said}");
}

#[test]
fn daemons_accept_credentials_and_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let ads = ["ads:role=ads:user=www-data"];
    init_in(&dir, &["node1.example=10.0.0.7"], &ads).expect("made");
    let tree = tree(&dir);
    let agent = "machines/node1.example/agent";
    let credentials = Credentials::parse(text(&tree, &format!("{agent}/credentials")));
    let credentials = credentials.expect("credentials");
    for principal in ["admin", "node", "prometheus", "ads"] {
        let secret = text(&tree, &format!("principals/{principal}/secret")).trim_end();
        let hash = credentials.find(principal).expect("a principal");
        assert!(hash.is_of(secret.as_bytes()), "{principal}");
    }
    let credential = Credential::parse(text(&tree, &format!("{agent}/credential")));
    assert_eq!(credential.expect("a credential").principal, "node");
    for (machine, daemon) in [("master.example", "master"), ("node1.example", "agent")] {
        let path = dir.join(format!("machines/{machine}/{daemon}.toml"));
        let args = ["meseta", daemon, &format!("--config={}", path.display())];
        let args = args.iter().map(std::ffi::OsString::from).collect();
        let view = crate::flags::parse(args).expect("understood").view;
        assert_eq!(view.get("hostname").map(String::as_str), Some(machine));
        let key = format!("/etc/meseta/{daemon}/key.pem");
        assert_eq!(view.get("ssl_key_file"), Some(&key));
        assert!(tree.contains_key(&format!("machines/{machine}/{daemon}/key.pem")));
    }
    let master = text(&tree, "machines/node1.example/agent.toml");
    assert!(master.contains("master = \"10.0.0.1:5050\""), "{master}");
    let env = text(&tree, "principals/admin/env");
    let ca = dir.join("principals/admin/ca.pem");
    assert!(
        env.contains(&format!("MESETA_CA='{}'", ca.display())),
        "{env}"
    );
}

#[test]
fn only_administrator_may_do_everything() {
    let mut rules = acls::basic();
    let ads = names::principal("ads:role=ads:user=www-data").expect("a principal");
    acls::allow(&mut rules, &ads).expect("rules");
    let acls = Acls::parse(&acls::pretty(&rules).expect("text")).expect("rules");
    // The daemons' own default must not change the result.
    let rules = Authorizer::new(acls, true);
    for action in Action::ALL {
        let by_admin = *action != Action::RegisterAgent;
        for object in [None, Some("/metrics"), Some("any")] {
            assert_eq!(
                rules.allows(Some("admin"), *action, object),
                by_admin,
                "{action:?}"
            );
            assert!(!rules.allows(None, *action, object), "{action:?}");
            let by_node = *action == Action::RegisterAgent;
            assert_eq!(
                rules.allows(Some("node"), *action, object),
                by_node,
                "{action:?}"
            );
        }
    }
    for (principal, action, object, expected) in [
        ("ads", Action::RegisterFramework, "ads", true),
        ("ads", Action::RegisterFramework, "ads/web", true),
        ("ads", Action::RegisterFramework, "eng", false),
        ("ads", Action::RunTask, "www-data", true),
        ("ads", Action::RunTask, "root", false),
        ("ads", Action::AccessSandbox, "www-data", true),
        ("ads", Action::AccessSandbox, "root", false),
        ("ads", Action::TeardownFramework, "ads", true),
        ("ads", Action::TeardownFramework, "other", false),
        ("ads", Action::UpdateQuota, "ads", false),
        ("ads", Action::GetEndpoint, "/metrics", false),
        ("prometheus", Action::GetEndpoint, "/metrics", true),
        ("prometheus", Action::GetEndpoint, "/logging/toggle", false),
        ("prometheus", Action::ViewTask, "www-data", false),
    ] {
        let allowed = rules.allows(Some(principal), action, Some(object));
        assert_eq!(allowed, expected, "{principal} {action:?} {object}");
    }
    assert!(!rules.allows(Some("ads"), Action::DrainAgent, None));
}

#[test]
fn existing_files_are_not_overwritten() {
    let dir = tempfile::tempdir().expect("a folder");
    let fleet = dir.path().join("fleet");
    init_in(&fleet, &["node1.example=10.0.0.7"], &[]).expect("made");
    let before = tree(&fleet);
    let error = init_in(&fleet, &[], &[]).expect_err("refused").to_string();
    assert!(error.contains("nothing in it is overwritten"), "{error}");
    assert!(error.contains("meseta tls add"), "{error}");
    let error = add_to(&fleet, &["node1.example=10.0.0.9"], &[]);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("meseta tls renew"), "{error}");
    assert_eq!(tree(&fleet), before);
    // A refused command leaves nothing behind.
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 1);
    let error = add_to(&dir.path().join("none"), &["a=10.0.0.9"], &[]);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("meseta tls init"), "{error}");
}

#[test]
fn node_and_framework_are_added_later() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    init_in(&dir, &["node1.example=10.0.0.7"], &[]).expect("made");
    let rules = dir.join("acls.json");
    let edited = std::fs::read_to_string(&rules).expect("text").replace(
        "\"prune_images\": [",
        "\"prune_images\": [\n    {\"principals\": {\"values\": [\"mine\"]}, \"images\": {\"type\": \"ANY\"}},",
    );
    std::fs::write(&rules, &edited).expect("written");
    let before = tree(&dir);
    let said = add_to(
        &dir,
        &["node2.example=10.0.0.8"],
        &["ads:role=ads:user=www-data"],
    );
    let said = said.expect("added");
    let after = tree(&dir);
    for path in [
        "authority/ca.key",
        "authority/ca.pem",
        "machines/node1.example/agent/key.pem",
        "machines/master.example/master/key.pem",
        "principals/admin/secret",
    ] {
        assert_eq!(text(&after, path), text(&before, path), "{path}");
    }
    for path in [
        "machines/node1.example/agent",
        "machines/node2.example/agent",
        "machines/master.example/master",
    ] {
        let acls = text(&after, &format!("{path}/acls.json"));
        assert!(
            acls.contains("\"ads\"") && acls.contains("\"mine\""),
            "{path}: {acls}"
        );
        let credentials = Credentials::parse(text(&after, &format!("{path}/credentials")));
        assert!(
            credentials.expect("credentials").find("ads").is_some(),
            "{path}"
        );
        let ca = text(&after, &format!("{path}/ca.pem"));
        assert_eq!(ca, text(&before, "authority/ca.pem"), "{path}");
    }
    let credential = "agent/credential";
    assert_eq!(
        text(&after, &format!("machines/node2.example/{credential}")),
        text(&after, &format!("machines/node1.example/{credential}"))
    );
    assert!(
        said.contains("root@10.0.0.8") && said.contains("root@10.0.0.1"),
        "{said}"
    );

    std::fs::remove_file(dir.join("authority/ca.key")).expect("removed");
    let error = add_to(&dir, &["node3.example=10.0.0.9"], &[]).expect_err("no key");
    assert!(format!("{error:#}").contains("put it back"), "{error:#}");
    let another = Authority::create("x", Validity::new(NOW, days(1))).expect("made");
    std::fs::write(dir.join("authority/ca.key"), another.1).expect("written");
    let error = add_to(&dir, &["node3.example=10.0.0.9"], &[]).expect_err("another key");
    assert!(
        format!("{error:#}").contains("does not belong to the certificate"),
        "{error:#}"
    );
}

#[test]
fn certificates_are_renewed_by_same_authority() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    init_in(&dir, &["node1.example=10.0.0.7"], &[]).expect("made");
    let before = tree(&dir);
    let options = |machines: &[&str]| RenewOptions {
        dir: dir.clone(),
        machines: machines.iter().map(|name| (*name).to_owned()).collect(),
        principals: Vec::new(),
        days: 30,
    };
    let said = renew(&options(&["node1.example"]), NOW).expect("renewed");
    let after = tree(&dir);
    let changed: Vec<_> = after
        .iter()
        .filter(|(path, entry)| before.get(*path) != Some(entry))
        .map(|(path, _)| path.as_str())
        .collect();
    let expected = [
        "machines/node1.example/agent/cert.pem",
        "machines/node1.example/agent/key.pem",
    ];
    assert_eq!(changed, expected);
    assert!(
        said.contains("root@10.0.0.7") && !said.contains("root@10.0.0.1"),
        "{said}"
    );
    let mut of_one = options(&[]);
    of_one.principals = vec!["admin".to_owned()];
    let said = renew(&of_one, NOW).expect("renewed");
    assert!(
        said.contains("principals/admin") && !said.contains("root@"),
        "{said}"
    );
    for name in ["cert.pem", "key.pem"] {
        let path = format!("principals/admin/{name}");
        assert_ne!(text(&tree(&dir), &path), text(&after, &path));
    }
    of_one.principals = vec!["node".to_owned()];
    let error = renew(&of_one, NOW).expect_err("it has none").to_string();
    assert!(error.contains("admin, prometheus"), "{error}");
    let error = renew(&options(&["node9"]), NOW)
        .expect_err("unknown")
        .to_string();
    assert!(error.contains("master.example, node1.example"), "{error}");
    let later = NOW + days(4000);
    let error = renew(&options(&[]), later)
        .expect_err("too late")
        .to_string();
    assert!(error.contains("has expired"), "{error}");
}

/// Regression: after a renewal, the printed lines restored the first configuration on every machine.
#[test]
fn installed_machine_keeps_its_configuration() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let agents = ["node1.example=10.0.0.7"];
    init_in(&dir, &agents, &[]).expect("made");
    let copies = |said: &str| -> Vec<String> {
        let prefix = format!("{}/machines/", dir.display());
        let lines = said.lines().filter(|line| line.contains("scp "));
        lines
            .map(|line| line.trim_start().replace(&prefix, ""))
            .collect()
    };
    let options = RenewOptions {
        dir: dir.clone(),
        machines: Vec::new(),
        principals: Vec::new(),
        days: 30,
    };
    let said = renew(&options, NOW).expect("renewed");
    let expected = [
        "scp -p master.example/master/cert.pem master.example/master/key.pem root@10.0.0.1:/etc/meseta/master/",
        "scp -p node1.example/agent/cert.pem node1.example/agent/key.pem root@10.0.0.7:/etc/meseta/agent/",
    ];
    assert_eq!(copies(&said), expected);
    // The command adds a framework, and an agent on the master's machine and on a new machine.
    let added = ["master.example=10.0.0.1", "node2.example=10.0.0.8"];
    let said = add_to(&dir, &added, &["ads:role=ads:user=www-data"]).expect("added");
    let expected = [
        "scp -p master.example/master/acls.json master.example/master/credentials root@10.0.0.1:/etc/meseta/master/",
        "scp -p node1.example/agent/acls.json node1.example/agent/credentials root@10.0.0.7:/etc/meseta/agent/",
        "scp -rp master.example/agent master.example/agent.toml root@10.0.0.1:/etc/meseta/",
        "scp -rp node2.example/. root@10.0.0.8:/etc/meseta/",
    ];
    assert_eq!(copies(&said), expected);
}

fn with_scheduler(machine: &str, users: &[&str]) -> Added {
    Added {
        scheduler: Some(names::machine(machine).expect("a machine")),
        job_users: users.iter().map(|user| (*user).to_owned()).collect(),
        ..added(&[], 365)
    }
}

/// Regression: a closed cluster could run jobs only with an open scheduler.
#[test]
fn job_scheduler_gets_everything_it_needs() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let options = InitOptions {
        dir: dir.clone(),
        master: names::machine("master.example=10.0.0.1").expect("a machine"),
        agents: vec![names::machine("node1.example=10.0.0.7").expect("a machine")],
        added: with_scheduler("master.example=10.0.0.1", &["www-data", "batch"]),
        authority_days: 3650,
    };
    let said = init(&options, NOW).expect("made");
    let start = "ssh root@10.0.0.1 'chown -R meseta-scheduler: /etc/meseta/scheduler && systemctl restart meseta-scheduler'";
    assert!(said.contains(start), "{said}");
    assert_eq!(said.matches("scp ").count(), 2, "{said}");
    let tree = tree(&dir);
    let own = "machines/master.example/scheduler";
    let path = dir.join(format!("{own}.toml"));
    let args = [
        "meseta",
        "scheduler",
        &format!("--config={}", path.display()),
    ];
    let args = args.iter().map(std::ffi::OsString::from).collect();
    let view = crate::flags::parse(args).expect("understood").view;
    for (flag, value) in [
        ("master", "10.0.0.1:5050"),
        ("ip", "10.0.0.1"),
        ("user", "www-data"),
        ("work_dir", "/var/lib/meseta/scheduler"),
    ] {
        assert_eq!(view.get(flag).map(String::as_str), Some(value), "{flag}");
    }
    for flag in [
        "credential",
        "http_credentials",
        "ssl_ca_file",
        "ssl_cert_file",
        "ssl_key_file",
    ] {
        let name = view[flag].strip_prefix("/etc/meseta/").expect("there");
        assert!(
            tree.contains_key(&format!("machines/master.example/{name}")),
            "{flag}: {name}"
        );
    }
    let credential = Credential::parse(text(&tree, &format!("{own}/credential")));
    assert_eq!(credential.expect("a credential").principal, "jobs");
    let env = text(&tree, "principals/admin/env");
    assert!(
        env.contains("export MESETA_SCHEDULER=10.0.0.1:5070\n"),
        "{env}"
    );
    for daemon in ["master", "scheduler"] {
        let acls = format!("machines/master.example/{daemon}/acls.json");
        let acls = Acls::parse(text(&tree, &acls)).expect("rules");
        let rules = Authorizer::new(acls, true);
        for (action, object, expected) in [
            (Action::RegisterFramework, "any/role", true),
            (Action::RunTask, "batch", true),
            (Action::RunTask, "root", false),
            (Action::CreateVolume, "eng", true),
            (Action::DestroyVolume, "jobs", true),
            (Action::DestroyVolume, "other", false),
            (Action::UpdateQuota, "eng", false),
        ] {
            let allowed = rules.allows(Some("jobs"), action, Some(object));
            assert_eq!(allowed, expected, "{daemon}: {action:?} {object}");
        }
    }
    let options = AddOptions {
        dir: dir.clone(),
        agents: Vec::new(),
        added: with_scheduler("node9=10.0.0.9", &["meseta"]),
    };
    let error = add(&options, NOW).expect_err("there is one").to_string();
    assert!(error.contains("master.example"), "{error}");
    let error = add_to(&dir, &[], &["jobs:role=x:user=y"]).expect_err("its principal");
    assert!(error.to_string().contains("scheduler"), "{error:#}");
}

/// Regression: a tenant saw the secrets of others, whose tasks ran as its user, but nothing of its own jobs.
#[test]
fn jobs_run_as_user_of_principal() {
    for scheduler_first in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().join("fleet");
        let tenants = ["ads:role=ads:user=ads", "shop:role=shop:user=shop"];
        let with = |users| with_scheduler("master.example=10.0.0.1", users);
        let options = |added| AddOptions {
            dir: dir.clone(),
            agents: Vec::new(),
            added,
        };
        if scheduler_first {
            init_in(&dir, &["node1.example=10.0.0.7"], &[]).expect("made");
            add(&options(with(&["nobody"])), NOW).expect("a scheduler");
            add_to(&dir, &[], &tenants).expect("principals");
        } else {
            init_in(&dir, &["node1.example=10.0.0.7"], &tenants).expect("made");
            add(&options(with(&["nobody"])), NOW).expect("a scheduler");
        }
        let tree = tree(&dir);
        let acls = Acls::parse(text(&tree, "acls.json")).expect("rules");
        let rules = Authorizer::new(acls, true);
        for (principal, action, object, expected) in [
            ("jobs", Action::RunTask, "ads", true),
            ("jobs", Action::RunTask, "shop", true),
            ("jobs", Action::RunTask, "root", false),
            ("ads", Action::RunTask, "ads", true),
            ("ads", Action::RunTask, "shop", false),
            ("ads", Action::RunTask, "nobody", false),
            ("ads", Action::ViewFramework, "nobody", true),
            ("ads", Action::ViewTask, "ads", true),
            ("ads", Action::ViewTask, "nobody", false),
            ("ads", Action::AccessSandbox, "shop", false),
            ("ads", Action::ViewExecutor, "shop", false),
        ] {
            let allowed = rules.allows(Some(principal), action, Some(object));
            assert_eq!(allowed, expected, "{principal}: {action:?} {object}");
        }
    }
}

#[test]
fn job_scheduler_is_added_and_renewed() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    init_in(&dir, &["node1.example=10.0.0.7"], &[]).expect("made");
    let options = AddOptions {
        dir: dir.clone(),
        agents: Vec::new(),
        added: with_scheduler("node1.example=10.0.0.7", &["meseta"]),
    };
    let said = add(&options, NOW).expect("added");
    let lines: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .map(|line| line.replace(&format!("{}/machines/", dir.display()), ""))
        .collect();
    let expected = [
        "scp -p master.example/master/acls.json master.example/master/credentials root@10.0.0.1:/etc/meseta/master/",
        "scp -p node1.example/agent/acls.json node1.example/agent/credentials root@10.0.0.7:/etc/meseta/agent/",
        "ssh root@10.0.0.1 chown -R meseta-master: /etc/meseta/master",
        "scp -rp node1.example/scheduler node1.example/scheduler.toml root@10.0.0.7:/etc/meseta/",
        "ssh root@10.0.0.7 'chown -R meseta-scheduler: /etc/meseta/scheduler && systemctl restart meseta-scheduler'",
    ];
    assert_eq!(lines, expected);
    let before = tree(&dir);
    let options = RenewOptions {
        dir: dir.clone(),
        machines: vec!["node1.example".to_owned()],
        principals: Vec::new(),
        days: 30,
    };
    let said = renew(&options, NOW).expect("renewed");
    let after = tree(&dir);
    for daemon in ["agent", "scheduler"] {
        let path = format!("machines/node1.example/{daemon}/cert.pem");
        assert_ne!(text(&after, &path), text(&before, &path));
        let copied = format!("root@10.0.0.7:/etc/meseta/{daemon}/");
        assert!(said.contains(&copied), "{said}");
    }
    assert!(said.contains("chown -R meseta-scheduler:"), "{said}");
}

/// Regression: the printed commands for the new machine replaced the files of the other one.
#[test]
fn an_address_is_of_one_agent() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let machines = |all: &[&str]| -> Vec<_> {
        let machines = all.iter().map(|text| names::machine(text));
        machines.collect::<Result<_, _>>().expect("machines")
    };
    let init_with = |agents: &[&str]| {
        let options = InitOptions {
            dir: dir.clone(),
            master: names::machine("m=10.0.0.1").expect("a machine"),
            agents: machines(agents),
            added: with_scheduler("s=10.0.0.7", &["meseta"]),
            authority_days: 3650,
        };
        init(&options, NOW)
    };
    let said = |outcome: anyhow::Result<String>| outcome.expect_err("refused").to_string();
    let error = said(init_with(&["n1=10.0.0.7", "n2=10.0.0.8,10.0.0.7"]));
    assert!(
        error.contains("10.0.0.7 is already an address of agent n1"),
        "{error}"
    );
    assert!(!dir.exists(), "nothing is left");
    // A master and a scheduler have separate folders on a machine, under any name.
    init_with(&["n0=10.0.0.1", "n1=10.0.0.7"]).expect("made");
    let before = tree(&dir);
    let error = said(add_to(&dir, &["n9=10.0.0.7"], &[]));
    assert!(error.contains("give n9 another address"), "{error}");
    assert_eq!(tree(&dir), before);
    // Each machine has its own loopback address, which its certificate may contain.
    for agent in ["n8=10.0.0.8,127.0.0.1", "n9=10.0.0.9,127.0.0.1"] {
        add_to(&dir, &[agent], &[]).expect("added");
    }
}

/// Regression: files were made for both addresses, but copied to one of them.
#[test]
fn a_machine_has_not_two_addresses() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let init_with = |agents: &[&str], scheduler: &str| {
        let mut options = InitOptions {
            dir: dir.clone(),
            master: names::machine("m=10.0.0.1,192.0.2.1").expect("a machine"),
            agents: Vec::new(),
            added: with_scheduler(scheduler, &["meseta"]),
            authority_days: 3650,
        };
        let agents = agents.iter().map(|text| names::machine(text));
        options.agents = agents.collect::<Result<_, _>>().expect("machines");
        init(&options, NOW)
    };
    let said = |outcome: anyhow::Result<String>| outcome.expect_err("refused").to_string();
    for (agents, scheduler, lines) in [
        (
            &["m=10.0.0.2"][..],
            "n1=10.0.0.7",
            "master m=10.0.0.1,192.0.2.1 and agent m=10.0.0.2 ",
        ),
        (
            &["n1=10.0.0.7", "N1=10.0.0.8"],
            "m=10.0.0.1",
            "agent n1=10.0.0.7 and agent n1=10.0.0.8 ",
        ),
        (
            &["n1=10.0.0.7"],
            "n1=10.0.0.9,fd00::9",
            "agent n1=10.0.0.7 and scheduler n1=10.0.0.9,fd00::9 ",
        ),
    ] {
        let error = said(init_with(agents, scheduler));
        assert!(error.contains(lines), "{error}");
        assert!(!dir.exists(), "nothing is left");
    }
    // An address among several also belongs to the machine.
    init_with(&["m=192.0.2.1", "n1=10.0.0.7"], "n1=10.0.0.8,10.0.0.7").expect("made");
    let before = tree(&dir);
    let error = said(add_to(&dir, &["m=10.0.0.3"], &[]));
    assert!(error.contains("agent m=10.0.0.3 "), "{error}");
    assert_eq!(tree(&dir), before);
    add_to(&dir, &["n2=10.0.0.3"], &[]).expect("added");
}

/// Regression: no principal got the users, without any message.
#[test]
fn users_of_jobs_need_the_scheduler() {
    let parse = |line: &str| {
        let line = line.split(' ').map(std::ffi::OsString::from).collect();
        crate::flags::parse(line).map_err(|refusal| refusal.to_string())
    };
    for line in [
        "meseta tls init --dir=d --master=m=10.0.0.1",
        "meseta tls add --dir=d",
    ] {
        let error = parse(&format!("{line} --job-user=www-data")).expect_err("refused");
        assert!(error.contains("--scheduler"), "{error}");
        parse(line).expect("the default alone asks for nothing");
        let with = format!("{line} --job-user=www-data --scheduler=m=10.0.0.1");
        parse(&with).expect("understood");
    }
}

#[test]
fn nothing_outlives_its_authority() {
    let fleet = Fleet {
        format: layout::FORMAT,
        authority: "a".to_owned(),
        authority_ends: (NOW + days(10)).as_secs(),
        master: names::machine("m=10.0.0.1").expect("a machine"),
        agents: Vec::new(),
        scheduler: None,
        job_user: None,
        principals: Vec::new(),
    };
    let short = Validity::new(NOW, days(5));
    assert_eq!(short.within(fleet.authority_end()), short);
    let long = Validity::new(NOW, days(365)).within(fleet.authority_end());
    assert_eq!(long, Validity::new(NOW, days(10)));
    assert_eq!(short.last_day(), "2027-01-20");
}

#[test]
fn machine_and_principal_names_differ() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("fleet");
    let ads = "ads:role=ads:user=nobody";
    for (agent, principals) in [
        ("admin=10.0.0.2", &[][..]),
        ("Node=10.0.0.2", &[]),
        ("ads=10.0.0.2", &[ads]),
        ("n1=10.0.0.2", &["master.example:role=x:user=nobody"]),
    ] {
        let refused = init_in(&dir, &[agent], principals).expect_err("refused");
        assert!(
            refused.to_string().contains("both a machine and"),
            "{refused:#}"
        );
        assert!(!dir.exists(), "nothing is left");
    }
    init_in(&dir, &["n1=10.0.0.2"], &[ads]).expect("made");
    let before = tree(&dir);
    add_to(&dir, &["ads=10.0.0.3"], &[]).expect_err("refused");
    add_to(&dir, &[], &["n1:role=x:user=nobody"]).expect_err("refused");
    assert_eq!(tree(&dir), before);
}
