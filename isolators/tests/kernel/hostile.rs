//! An adverse machine: full, read-only, busy, without a right, with other users' processes in the way.
//!
//! Every fault is a real one of the kernel. Each test requires an error with the operation and its target, no leftovers of
//! the attempt, an unharmed neighbour, and success once the fault is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::time::Duration;

use libtest_mimic::Failed;
use meseta_isolators::cgroup::{Groups, KnobWrite};
use meseta_isolators::isolator::Observed;
use meseta_isolators::{
    ContainerSpec, Containers, Controller, Credentials, Demand, DestroyOptions, ExitCause, Host,
    Isolation, Isolator, Limit, Options, TaskIsolation,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Test;
use crate::test_node::{TestNode, chain, name, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    a_missing_controller_is_named,
    a_tree_that_cannot_be_written_costs_one_launch,
    a_refused_write_is_told_with_its_file,
    a_group_that_is_busy_is_removed_later,
    a_strangers_group_is_left_alone,
    a_full_runtime_folder_costs_one_launch,
    a_full_disk_costs_no_exit_record,
    a_missing_capability_is_named,
    limits_beyond_reason_are_clamped,
    nested_limits_stay_within_the_outer_ones,
];

const SLEEP: &str = "exec sleep 1000";

/// A mount that is undone on drop in any case.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn bind(dir: &Path) -> Result<Mounted, Failed> {
    mount(Some(dir), dir, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(Mounted(dir.to_owned()))
}

/// A process of another user; ends with this value.
struct Stranger(Child);

impl Stranger {
    fn new() -> Result<Self, Failed> {
        let child = Program::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    fn lives(&mut self) -> Result<bool, Failed> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that a failed launch leaves no group and no folder, and that its error contains all of these texts.
fn refused(test_node: &TestNode, spec: &ContainerSpec, says: &[&str]) -> Result<(), Failed> {
    let error = test_node.refusal(spec).ok_or("it was launched")?;
    let text = chain(&error);
    for part in says {
        check!(text.contains(part), "{text:?} lacks {part:?}");
    }
    let folder = test_node.with(|containers| containers.runtime_dir(&spec.name));
    check!(!folder.exists(), "{} is left", folder.display());
    Ok(())
}

fn gone(test_node: &TestNode, spec: &ContainerSpec) -> Result<(), Failed> {
    let groups = test_node.groups(&spec.name);
    check!(!groups.exist(), "groups are left: {groups:?}");
    Ok(())
}

fn runs_well(test_node: &TestNode, spec: &ContainerSpec) -> Result<(), Failed> {
    let launched = test_node.launch(spec)?;
    let record = test_node.wait_end(spec, &launched)?;
    same(record.cause, ExitCause::Exited(0))?;
    test_node.destroy(spec, &launched)?;
    test_node.forget(spec)
}

fn a_missing_controller_is_named(test_node: &TestNode) -> Result<(), Failed> {
    let mut host: Host = test_node.host().clone();
    host.v1
        .retain(|tree| !tree.controllers.contains(&Controller::Memory));
    if let Some(unified) = &mut host.unified {
        unified.controllers.retain(|one| *one != Controller::Memory);
    }
    let options = Options {
        isolation: Isolation::parse("cgroups/cpu,cgroups/mem")?,
        instance: name("other"),
        ..test_node.options()?
    };
    let Err(error) = Containers::open(host, options) else {
        return Err("opened without a memory controller".into());
    };
    let text = chain(&error);
    check!(text.contains("memory"), "{text}");
    Ok(())
}

/// The mounts of all trees in use.
fn trees(test_node: &TestNode) -> Vec<PathBuf> {
    let groups = test_node.groups(&name("c"));
    let mounts = test_node.host().trees().into_iter().map(|tree| tree.mount);
    let used = |mount: &PathBuf| groups.dirs.iter().any(|group| group.dir.starts_with(mount));
    mounts.filter(used).collect()
}

/// Makes one tree after the other read-only, and only below our own root.
fn a_tree_that_cannot_be_written_costs_one_launch(test_node: &TestNode) -> Result<(), Failed> {
    let (neighbour_spec, neighbour) = test_node.sleeper("neighbour")?;
    for tree in trees(test_node) {
        let spec = test_node.spec("c", "true");
        let (held_spec, held) = test_node.sleeper("held")?;
        let root = tree.join(test_node.root());
        let mounted = bind(&root)?;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &root, None::<&str>, flags, None::<&str>)?;
        refused(
            test_node,
            &spec,
            &["Read-only file system", &root.to_string_lossy()],
        )?;
        gone(test_node, &spec)?;
        check!(test_node.lives(&neighbour)?, "the neighbour ended");
        // The agent cannot remove the running processes; the destroy reports that and keeps the container.
        let quick = DestroyOptions {
            freeze: Duration::from_millis(50),
            empty: Duration::from_secs(10),
            remove: Duration::from_millis(50),
        };
        let supervisor = Some(&held.supervisor);
        let stuck =
            test_node.with(|containers| containers.destroy(&held_spec.name, supervisor, quick));
        let text = stuck.err().map(|error| chain(&error)).unwrap_or_default();
        check!(text.contains("Read-only file system"), "{text}");
        drop(mounted);
        test_node.destroy(&held_spec, &held)?;
        test_node.forget(&held_spec)?;
        runs_well(test_node, &spec)?;
    }
    check!(test_node.lives(&neighbour)?, "the neighbour ended");
    test_node.destroy(&neighbour_spec, &neighbour)
}

/// An isolator that requests a value which the kernel refuses.
#[derive(Debug)]
struct Unreasonable;

impl Isolator for Unreasonable {
    fn name(&self) -> &'static str {
        "site/unreasonable"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Pids]
    }

    fn plan(&self, demand: &Demand, _groups: &Groups, _observed: &Observed) -> Vec<KnobWrite> {
        // Only for containers that this demand marks.
        let asked = demand.cpus_millis == 777;
        let write = KnobWrite::new(Controller::Pids, "pids.max", "-7");
        asked.then_some(write).into_iter().collect()
    }
}

fn a_refused_write_is_told_with_its_file(test_node: &TestNode) -> Result<(), Failed> {
    let isolation = Isolation::default_for(test_node.host());
    let custom: Vec<Box<dyn Isolator>> = vec![Box::new(Unreasonable)];
    test_node.open_custom(isolation, &Default::default(), custom)?;
    let (neighbour_spec, neighbour) = test_node.sleeper("neighbour")?;
    let mut spec = test_node.spec("c", "true");
    spec.demand.cpus_millis = 777;
    refused(test_node, &spec, &["pids.max", "-7", "Invalid argument"])?;
    gone(test_node, &spec)?;
    let updated =
        test_node.with(|containers| containers.update(&neighbour_spec.name, &spec.demand));
    let text = updated.err().map(|error| chain(&error)).unwrap_or_default();
    check!(
        text.contains("failed to resize container neighbour"),
        "{text}"
    );
    check!(test_node.lives(&neighbour)?, "the neighbour ended");
    test_node.with(|containers| containers.update(&neighbour_spec.name, &neighbour_spec.demand))?;
    spec.demand.cpus_millis = 100;
    runs_well(test_node, &spec)?;
    test_node.destroy(&neighbour_spec, &neighbour)
}

fn a_group_that_is_busy_is_removed_later(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let groups = test_node.groups(&spec.name);
    let dir = &groups.dirs.first().ok_or("no group")?.dir;
    // The kernel does not remove a folder under a mount.
    let mounted = bind(dir)?;
    let quick = DestroyOptions {
        remove: Duration::from_millis(100),
        ..DestroyOptions::default()
    };
    let supervisor = Some(&launched.supervisor);
    let stuck = test_node.with(|containers| containers.destroy(&spec.name, supervisor, quick));
    let text = stuck.err().map(|error| chain(&error)).unwrap_or_default();
    for part in [
        "failed to destroy container",
        &dir.to_string_lossy() as &str,
        "busy",
    ] {
        check!(text.contains(part), "{text:?} lacks {part:?}");
    }
    // This does not affect another container.
    runs_well(test_node, &test_node.spec("other", "true"))?;
    drop(mounted);
    test_node.destroy(&spec, &launched)
}

fn a_strangers_group_is_left_alone(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "true");
    let groups = test_node.groups(&spec.name);
    let dir = groups.dirs.first().ok_or("no group")?.dir.clone();
    let inner = dir.join("theirs");
    fs::create_dir_all(&inner)?;
    site_fill(&dir)?;
    let mut stranger = Stranger::new()?;
    fs::write(inner.join("cgroup.procs"), stranger.0.id().to_string())?;
    refused(
        test_node,
        &spec,
        &["is in use already", &dir.to_string_lossy()],
    )?;
    check!(stranger.lives()?, "the stranger was killed");
    check!(inner.exists(), "the stranger's group is gone");
    drop(stranger);
    // Empty folders belong to nobody.
    test_node.eventually("the stranger's group is empty", || {
        fs::read_to_string(inner.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
    })?;
    runs_well(test_node, &spec)?;
    // A folder of the name in the runtime directory may hold another container's exit record: it is not overwritten.
    let folder = test_node.with(|containers| containers.runtime_dir(&spec.name));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("theirs"), "kept")?;
    let error = test_node.refusal(&spec);
    let text = chain(&error.ok_or("launched over somebody's folder")?);
    check!(text.contains("File exists"), "{text}");
    same(fs::read_to_string(folder.join("theirs"))?, "kept")?;
    test_node.forget(&spec)?;
    runs_well(test_node, &spec)
}

/// Gives a group of a cpuset tree its processors, without which it accepts no process.
fn site_fill(dir: &Path) -> Result<(), Failed> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let above = dir.parent().map(|above| above.join(file));
        let Some(Ok(value)) = above.map(fs::read_to_string) else {
            continue;
        };
        for dir in [dir.to_owned(), dir.join("theirs")] {
            if dir.join(file).exists() {
                fs::write(dir.join(file), value.trim())?;
            }
        }
    }
    Ok(())
}

/// A small filesystem of memory in the test's folder.
fn small_disk(test_node: &TestNode, options: &str) -> Result<(PathBuf, Mounted), Failed> {
    let dir = test_node.sandbox().join("small");
    fs::create_dir_all(&dir)?;
    let flags = MsFlags::empty();
    mount(Some("small"), &dir, Some("tmpfs"), flags, Some(options))?;
    Ok((dir.clone(), Mounted(dir)))
}

fn a_full_runtime_folder_costs_one_launch(test_node: &TestNode) -> Result<(), Failed> {
    let (dir, mounted) = small_disk(test_node, "size=1m,nr_inodes=40")?;
    test_node.open(|options| options.runtime_dir = dir.join("run"))?;
    let (neighbour_spec, neighbour) = test_node.sleeper("neighbour")?;
    let mut fillers = Vec::new();
    for number in 0.. {
        let filler = dir.join(format!("filler-{number}"));
        if fs::write(&filler, "").is_err() {
            break;
        }
        fillers.push(filler);
    }
    let spec = test_node.spec("c", "true");
    refused(
        test_node,
        &spec,
        &["No space left on device", "run/containers/c"],
    )?;
    gone(test_node, &spec)?;
    check!(test_node.lives(&neighbour)?, "the neighbour ended");
    for filler in fillers {
        fs::remove_file(filler)?;
    }
    runs_well(test_node, &spec)?;
    test_node.destroy(&neighbour_spec, &neighbour)?;
    test_node.forget(&neighbour_spec)?;
    test_node.close();
    drop(mounted);
    Ok(())
}

fn a_full_disk_costs_no_exit_record(test_node: &TestNode) -> Result<(), Failed> {
    let (dir, mounted) = small_disk(test_node, "size=256k")?;
    test_node.open(|options| options.runtime_dir = dir.join("run"))?;
    let gate = test_node.gate()?;
    let spec = test_node.spec("c", "read line < gate; exit 7");
    let launched = test_node.launch(&spec)?;
    let filler = dir.join("filler");
    let full = fs::write(&filler, vec![0; 1 << 20]).is_err();
    check!(full, "the disk has room for ever");
    fs::write(&gate, "\n")?;
    // The room for the record was reserved in advance.
    test_node.wait_cause(&spec, &launched, ExitCause::Exited(7))?;
    fs::remove_file(&filler)?;
    test_node.destroy(&spec, &launched)?;
    test_node.forget(&spec)?;
    test_node.close();
    drop(mounted);
    Ok(())
}

/// A program inherits the capabilities of the thread that executes it; the thread ends with this test.
fn a_missing_capability_is_named(test_node: &TestNode) -> Result<(), Failed> {
    let host = test_node.host().clone();
    let mut as_user = test_node.spec("user", "true");
    as_user.credentials = Some(Credentials::lookup("nobody")?);
    let as_root = test_node.spec("root", "true");
    let options = Options {
        instance: name("weak"),
        runtime_dir: test_node.sandbox().join("weak"),
        ..test_node.options()?
    };
    let weak = std::thread::spawn(move || -> Result<String, String> {
        caps::drop(None, caps::CapSet::Bounding, caps::Capability::CAP_SETUID)
            .map_err(|error| error.to_string())?;
        let containers = Containers::open(host, options).map_err(|error| chain(&error))?;
        let refused = containers.launch(&as_user).err();
        let launched = containers.launch(&as_root).map_err(|error| chain(&error))?;
        let supervisor = Some(&launched.supervisor);
        let _ = containers.destroy(&as_root.name, supervisor, DestroyOptions::default());
        let _ = containers.forget(&as_root.name);
        refused
            .map(|error| chain(&error))
            .ok_or_else(|| "launched without CAP_SETUID".to_owned())
    });
    let text = weak.join().map_err(|_| "the thread panicked")??;
    check!(text.contains("CAP_SETUID"), "{text}");
    Ok(())
}

fn limits_beyond_reason_are_clamped(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open(|options| options.enable_cfs = true)?;
    for (number, demand) in [
        Demand {
            cpus_limit: Some(Limit::At(0)),
            mem_bytes: Some(0),
            mem_limit: Some(Limit::At(0)),
            ..Demand::default()
        },
        Demand {
            cpus_millis: u64::MAX,
            cpus_limit: Some(Limit::At(u64::MAX)),
            mem_bytes: Some(u64::MAX),
            mem_limit: Some(Limit::At(u64::MAX)),
            pids_limit: Some(Limit::At(u64::MAX)),
            ..Demand::default()
        },
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = test_node.spec(&format!("c{number}"), "true");
        spec.demand = demand;
        runs_well(test_node, &spec)?;
    }
    Ok(())
}

fn nested_limits_stay_within_the_outer_ones(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open(|options| options.enable_cfs = true)?;
    let mut outer_spec = test_node.spec("outer", SLEEP);
    outer_spec.demand.cpus_millis = 500;
    outer_spec.demand.mem_bytes = Some(256 << 20);
    let outer = test_node.launch(&outer_spec)?;
    // Twice its own limit, half of the outer container's.
    let mut spec = test_node.spec(
        "outer+hog",
        "head -c 134217728 /dev/zero | tail >/dev/null; exit $?",
    );
    spec.demand.mem_bytes = Some(64 << 20);
    let own = TaskIsolation {
        own_limits: true,
        ..TaskIsolation::default()
    };
    let launched = test_node.launch_with(&spec, &own)?;
    same(
        test_node.with(|containers| containers.verify(&spec.name, &spec.demand))?,
        Vec::new(),
    )?;
    let record = test_node.wait_end(&spec, &launched)?;
    check!(!record.success(), "the greedy task succeeded");
    let told = test_node.limitation(&spec);
    let text = format!("{told:?}");
    check!(text.contains("Requested: 64MB"), "{text}");
    // The outer container is not affected.
    let outers = test_node.limitation(&outer_spec);
    same(outers, None)?;
    check!(test_node.lives(&outer)?, "the outer one ended");
    test_node.destroy(&spec, &launched)?;
    test_node.destroy(&outer_spec, &outer)
}
