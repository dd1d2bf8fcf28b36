//! Plans: resolution, refusals, and the round trip through bytes.

use super::super::{MountSource, Rlimit};
use super::*;
use crate::demand::Demand;
use crate::identity::ContainerName;
use crate::isolator::{ContainerSpec, TaskIsolation};
use std::ffi::OsString;

fn spec() -> ContainerSpec {
    ContainerSpec {
        name: ContainerName::new("c1").expect("valid"),
        command: Command::Argv {
            program: "prog".into(),
            args: vec!["p".into(), "x".into()],
        },
        env: vec![("PATH".into(), "/a::/b".into()), ("K".into(), "v=w".into())],
        working_dir: "/sandbox".into(),
        credentials: Some(Credentials {
            uid: 7,
            gid: 8,
            groups: vec![8, 9],
        }),
        stdout: Destination::file("/sandbox".as_ref(), "stdout"),
        stderr: Destination::Endpoint("/run/pipe".into()),
        hostname: None,
        rlimits: Vec::new(),
        demand: Demand::default(),
        isolation: TaskIsolation::default(),
        inside: None,
    }
}

fn isolation() -> LaunchIsolation {
    LaunchIsolation {
        pid_namespace: true,
        mount_namespace: true,
        uts_namespace: true,
        hostname: Some("h".into()),
        v1_groups: vec!["/cg/cpu/m/i/c".into()],
        v2_group: Some("/cg/u/m/i/c/leaf".into()),
        rlimits: vec![Rlimit {
            resource: 7,
            soft: 1,
            hard: u64::MAX,
        }],
        no_new_privs: true,
        oom_score_adj: Some(-5),
        network_namespace: true,
        mounts: vec![
            MountStep {
                path: "/sys".into(),
                action: MountAction::ReadOnlyTree,
            },
            MountStep {
                path: "/dev/shm".into(),
                action: MountAction::Tmpfs { bytes: 4096 },
            },
            MountStep {
                path: "data".into(),
                action: MountAction::Bind {
                    source: MountSource {
                        by_user: true,
                        beneath: Some("/outer".into()),
                        path: "shared".into(),
                    },
                    beneath: Some("/sandbox".into()),
                    writable: true,
                },
            },
            MountStep {
                path: "/mnt".into(),
                action: MountAction::Unmount { beneath: None },
            },
        ],
        capabilities: Some(CapabilitySets {
            bounding: 3,
            effective: 1,
        }),
        seccomp: vec![SeccompProgram(vec![u64::MAX, 0])],
        stdin: Some("/sandbox/in".into()),
        terminal: true,
        ..LaunchIsolation::default()
    }
}

fn resolve(container: &ContainerSpec) -> Result<TaskPlan, LaunchError> {
    let spec = LaunchSpec {
        name: &container.name,
        command: &container.command,
        env: &container.env,
        working_dir: &container.working_dir,
        credentials: container.credentials.as_ref(),
        stdout: &container.stdout,
        stderr: &container.stderr,
        status_dir: "/run/x".into(),
        isolation: isolation(),
    };
    TaskPlan::new(&spec, &BootId::from_text("boot"))
}

#[test]
fn plan_goes_through_bytes_whole() {
    let plan = resolve(&spec()).expect("resolves");
    assert_eq!(
        plan.programs,
        [c"/a/prog".to_owned(), c"/b/prog".to_owned()]
    );
    assert_eq!(plan.env, [c"PATH=/a::/b".to_owned(), c"K=v=w".to_owned()]);
    assert_eq!(plan.v1_tasks, [c"/cg/cpu/m/i/c/tasks".to_owned()]);
    let bytes = plan.encode();
    assert_eq!(TaskPlan::namespaces_of(&bytes), Some(plan.namespaces));
    assert_eq!(TaskPlan::decode(&bytes), Some(plan));
}

/// Regression: an error showed a name of seventy letters as seventy numbers.
#[test]
fn step_details_are_readable_text() {
    let plan = resolve(&spec()).expect("resolves");
    for (step, expected) in [
        (LaunchStep::Hostname, "h"),
        (
            LaunchStep::Rlimit,
            "number 7, soft 1, hard 18446744073709551615",
        ),
        (
            LaunchStep::Credentials,
            "user 7, group 8, further groups [8, 9]",
        ),
    ] {
        assert_eq!(plan.detail(step, 0), expected);
    }
    assert_eq!(plan.detail(LaunchStep::Rlimit, 9), "");
}

#[test]
fn no_damaged_plan_decodes() {
    let bytes = resolve(&spec()).expect("resolves").encode();
    for end in 0..bytes.len() {
        assert_eq!(TaskPlan::decode(&bytes[..end]), None, "cut at {end}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(TaskPlan::decode(&longer), None);
    assert_eq!(TaskPlan::decode(&[0xff; 64]), None);
}

#[test]
fn arguments_invalid_for_exec_are_refused() {
    let zero = || OsString::from("a\0b");
    let bad: [fn(&mut ContainerSpec, OsString); 5] = [
        |spec, zero| spec.command = Command::Shell(zero.into_string().expect("text")),
        |spec, zero| spec.env.push(("X".into(), zero)),
        |spec, _| spec.env.push(("A=B".into(), "x".into())),
        |spec, zero| spec.working_dir = zero.into(),
        |spec, _| {
            spec.command = Command::Argv {
                program: "".into(),
                args: vec![],
            }
        },
    ];
    for spoil in bad {
        let mut spec = spec();
        spoil(&mut spec, zero());
        assert!(
            matches!(resolve(&spec), Err(LaunchError::Invalid { .. })),
            "{spec:?}"
        );
    }
}

fn programs_of(path: String, program: String) -> Result<Vec<CString>, LaunchError> {
    let command = Command::Argv {
        program: program.into(),
        args: Vec::new(),
    };
    let spec = ContainerSpec {
        command,
        env: vec![("PATH".into(), path.into())],
        ..spec()
    };
    resolve(&spec).map(|plan| plan.programs)
}

/// Regression: half a megabyte of PATH times half a megabyte of program took 137 GB of the agent's memory.
#[test]
fn oversized_path_product_is_refused() {
    let refused = |path: String, program: String| match programs_of(path, program) {
        Err(LaunchError::Invalid { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let many = "a:".repeat(50_000);
    assert!(refused(many.clone(), "x".repeat(50_000)).contains("50000 bytes, more than 4095"));
    // 200 MB of paths that the kernel would accept.
    assert!(refused(many.clone(), "x".repeat(4_000)).contains("more than 4194304 bytes of paths"));
    assert!(refused("/a".into(), "x".repeat(4_093)).contains("longer than 4095 bytes in each"));
    assert_eq!(refused("::".into(), "x".into()), "the task's PATH is empty");
    let found = programs_of(many, "x".into()).expect("little");
    assert_eq!(found.len(), 50_000);
}

#[test]
fn too_long_program_path_is_skipped() {
    let long = "/l".repeat(2_047);
    let found = programs_of(format!("{long}:/a:{long}b:/b"), "p".into()).expect("some are short");
    assert_eq!(found, [c"/a/p".to_owned(), c"/b/p".to_owned()]);
    let longest = format!("{}/p", &long[..4_093]);
    let found = programs_of(long[..4_093].to_owned(), "p".into()).expect("it fits");
    assert_eq!(found, [CString::new(longest).expect("text")]);
}
