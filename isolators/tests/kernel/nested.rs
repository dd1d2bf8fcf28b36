//! Containers inside containers: their groups, their end, and processes that enter a running container.

use libtest_mimic::Failed;
use meseta_isolators::cgroup::Version;
use meseta_isolators::{
    CapabilityRequest, CapabilitySet, Controller, DestroyOptions, ExitCause, LaunchError, Launched,
    NodeOptions, Rlimit, TaskIsolation,
};

use crate::Test;
use crate::test_node::{TestNode, chain, entering, name};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    nested_ends_alone,
    nested_ends_with_the_outer_one,
    nested_shares_the_limit,
    a_kill_within_is_seen_while_the_nested_one_goes_on,
    inside_sees_what_the_container_sees,
    nested_rights_are_its_own,
    nothing_nests_in_nothing,
    killers_within_cost_no_launcher,
    sessions_of_a_killed_agent_leave_no_folder,
];

const OUTER: &str = "exec sleep 1000";

/// Launches into a container that kills every process that it can.
const ATTEMPTS_MAX: u32 = 5_000;

fn destroy(test_node: &TestNode, container: &str, launched: &Launched) -> Result<(), Failed> {
    let name = name(container);
    let options = DestroyOptions::default();
    let destroyed =
        test_node.with(|containers| containers.destroy(&name, Some(&launched.supervisor), options));
    destroyed.map_err(|error| chain(&error))?;
    test_node.with(|containers| containers.forget(&name))?;
    Ok(())
}

fn nested_ends_alone(test_node: &TestNode) -> Result<(), Failed> {
    let outer = test_node.launch(&test_node.spec("outer", OUTER))?;
    let one = test_node.launch(&test_node.spec("outer+one", OUTER))?;
    let two = test_node.launch(&test_node.spec("outer+two", OUTER))?;
    let of_outer = test_node.groups(&name("outer"));
    let of_one = test_node.groups(&name("outer+one"));
    for (outer, inner) in of_outer.dirs.iter().zip(&of_one.dirs) {
        check!(inner.dir.starts_with(&outer.dir), "{inner:?}");
        check!(inner.dir.exists(), "{inner:?} is not there");
    }
    destroy(test_node, "outer+one", &one)?;
    check!(!of_one.exist(), "its groups are left over");
    check!(test_node.lives(&outer)?, "the outer one ended too");
    check!(test_node.lives(&two)?, "its sibling ended too");
    destroy(test_node, "outer+two", &two)?;
    destroy(test_node, "outer", &outer)
}

fn nested_ends_with_the_outer_one(test_node: &TestNode) -> Result<(), Failed> {
    let outer = test_node.launch(&test_node.spec("outer", OUTER))?;
    let spec = test_node.spec("outer+in", OUTER);
    let inner = test_node.launch(&spec)?;
    destroy(test_node, "outer", &outer)?;
    test_node.wait_cause(&spec, &inner, ExitCause::Signaled(9))?;
    destroy(test_node, "outer+in", &inner)
}

fn nested_shares_the_limit(test_node: &TestNode) -> Result<(), Failed> {
    let outer = test_node.launch(&test_node.spec("outer", OUTER))?;
    // Three times the 64 MB of the outer container.
    let hog = "head -c 209715200 /dev/zero | tail >/dev/null; exit $?";
    let spec = test_node.spec("outer+hog", hog);
    let inner = test_node.launch(&spec)?;
    let record = test_node.wait_end(&spec, &inner)?;
    check!(record.cause != ExitCause::Exited(0), "{record:?}");
    check!(
        test_node.limitation(&spec).is_some(),
        "nobody knows why it ended"
    );
    destroy(test_node, "outer+hog", &inner)?;
    destroy(test_node, "outer", &outer)
}

fn a_kill_within_is_seen_while_the_nested_one_goes_on(test_node: &TestNode) -> Result<(), Failed> {
    let outer_spec = test_node.spec("outer", OUTER);
    let outer = test_node.launch(&outer_spec)?;
    let hog = "head -c 209715200 /dev/zero | tail >/dev/null; exec sleep 1000";
    let spec = test_node.spec("outer+hog", hog);
    let inner = test_node.launch(&spec)?;
    test_node.eventually("a kill that counts for the outer one", || {
        test_node.limitation(&outer_spec).is_some()
    })?;
    if test_node
        .groups(&spec.name)
        .get(Controller::Memory)
        .is_some_and(|one| one.version == Version::V1)
    {
        check!(test_node.lives(&inner)?, "the nested one ended too");
    }
    destroy(test_node, "outer+hog", &inner)?;
    destroy(test_node, "outer", &outer)
}

fn inside_sees_what_the_container_sees(test_node: &TestNode) -> Result<(), Failed> {
    let seen = "readlink /proc/self/ns/mnt /proc/self/ns/ipc /proc/self/ns/pid";
    let outer_spec = test_node.spec("outer", &format!("{seen}; exec sleep 1000"));
    let outer = test_node.launch(&outer_spec)?;
    let spec = test_node.spec("outer+debug", &format!("{seen}; cat /proc/1/comm"));
    let launched = test_node.run_inside(&spec, &outer)?;
    test_node.wait_cause(&spec, &launched, ExitCause::Exited(0))?;
    test_node.eventually("the container has told", || {
        test_node.output(&outer_spec).lines().count() == 3
    })?;
    let seen = test_node.output(&outer_spec);
    let printed = test_node.output(&spec);
    check!(
        printed == format!("{seen}meseta-init\n"),
        "{printed:?} is not what the container sees: {seen:?}"
    );
    destroy(test_node, "outer+debug", &launched)?;
    destroy(test_node, "outer", &outer)
}

/// Capabilities and limits per process are those of the nested container's request, not those of the outer container.
fn nested_rights_are_its_own(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("linux/capabilities", &NodeOptions::default())?;
    let told = "ulimit -n; grep CapEff /proc/self/status; echo done";
    let limit = |files| Rlimit {
        resource: 7,
        soft: files,
        hard: files,
    };
    let mut outer_spec = test_node.spec("outer", &format!("{told}; exec sleep 1000"));
    outer_spec.rlimits = vec![limit(321)];
    let outer = test_node.launch(&outer_spec)?;
    let mut spec = test_node.spec("outer+in", told);
    spec.rlimits = vec![limit(123)];
    let task = TaskIsolation {
        capabilities: CapabilityRequest {
            bounding: None,
            effective: Some(CapabilitySet::from_names(["KILL"])?),
            ..CapabilityRequest::default()
        },
        ..TaskIsolation::default()
    };
    let (_, output) = test_node.run_with(&spec, &task)?;
    let expected = "123\nCapEff:\t0000000000000020\ndone\n";
    check!(output == expected, "{output}");
    test_node.wait_output(&outer_spec, "done")?;
    let output = test_node.output(&outer_spec);
    check!(output.starts_with("321\n"), "{output}");
    check!(!output.contains("0000000000000020"), "{output}");
    destroy(test_node, "outer", &outer)
}

fn nothing_nests_in_nothing(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("gone+in", OUTER);
    let error = test_node.refusal(&spec).ok_or("it was launched")?;
    let text = chain(&error);
    check!(text.contains("parent container does not exist"), "{text}");
    Ok(())
}

/// Regression: a container that kills every entering process. Each kill before an exec cost the launcher, and the waiting
/// launches of others.
fn killers_within_cost_no_launcher(test_node: &TestNode) -> Result<(), Failed> {
    // The script does not fork: the next pid belongs to the next process to arrive.
    let killer =
        "echo up; while :; do read -r a b c d last < /proc/loadavg; kill -9 $((last + 1)); done";
    let outer_spec = test_node.spec("outer", &format!("{{ {killer}; }} 2>/dev/null"));
    let outer = test_node.launch(&outer_spec)?;
    test_node.wait_output(&outer_spec, "up")?;
    let launcher = test_node.launcher()?;
    let mut killed = 0;
    for number in 0..ATTEMPTS_MAX {
        let spec = test_node.spec(&format!("outer+{number}"), "exec true");
        match test_node.with(|containers| containers.launch(&entering(&spec, &outer))) {
            Ok(launched) => destroy(test_node, &format!("outer+{number}"), &launched)?,
            Err(LaunchError::Killed { .. }) => killed += 1,
            Err(error) => return Err(chain(&error).into()),
        }
        if killed == 3 {
            break;
        }
    }
    // The scheduler decides how often the killer guesses right.
    check!(killed > 0, "none was killed before its exec");
    check!(test_node.launcher()? == launcher, "the launcher is another");
    test_node.prints(&test_node.spec("third", "echo well"), "well\n")?;
    destroy(test_node, "outer", &outer)
}

fn sessions_of_a_killed_agent_leave_no_folder(test_node: &TestNode) -> Result<(), Failed> {
    let session = test_node.with(|containers| containers.sessions_dir(&name("outer+session")));
    std::fs::create_dir_all(&session)?;
    nix::unistd::mkfifo(&session.join("in"), nix::sys::stat::Mode::S_IRWXU)?;
    test_node.open(|_| ())?;
    let sessions = session.parent().ok_or("no folder above")?;
    check!(!sessions.exists(), "{} is left", sessions.display());
    // An empty folder keeps no part of the instance.
    std::fs::create_dir(sessions)?;
    test_node.close();
    let runtime_dir = sessions.parent().ok_or("no folder above")?;
    check!(!runtime_dir.exists(), "{} is left", runtime_dir.display());
    Ok(())
}
