//! An isolated place for one test: folders, cgroups root, containers; and the check afterwards.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use meseta_isolators::cgroup::Groups;
use meseta_isolators::{
    Command, ContainerName, ContainerSpec, ContainerUsage, Containers, Controller, Credentials,
    Demand, Destination, DestroyOptions, ExitCause, ExitRecord, Host, Inside, Isolation, Isolator,
    LaunchError, LaunchStep, Launched, LimitEvent, Limitation, NodeOptions, Options, TaskIsolation,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

/// The longest wait of every test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The pause between two polls of a state that no descriptor signals.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The controllers that every test needs; a test may require further ones.
const REQUIRED: [Controller; 5] = [
    Controller::Cpu,
    Controller::Cpuacct,
    Controller::Memory,
    Controller::Pids,
    Controller::Freezer,
];

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct TestNode {
    dir: tempfile::TempDir,
    host: Host,
    root: PathBuf,
    grouped: bool,
    containers: RefCell<Option<Containers>>,
}

pub(crate) fn missing_controller(host: &Host) -> Option<&'static str> {
    REQUIRED
        .into_iter()
        .find(|one| !host.offers(*one))
        .map(Controller::name)
}

pub(crate) fn name(text: &str) -> ContainerName {
    ContainerName::new(text).expect("a test's own name is valid")
}

/// A copy of the specification with the isolation that the task requests.
pub(crate) fn isolated(spec: &ContainerSpec, task: &TaskIsolation) -> ContainerSpec {
    ContainerSpec {
        isolation: task.clone(),
        ..spec.clone()
    }
}

/// A copy of the specification in the namespaces of a running container.
pub(crate) fn entering(spec: &ContainerSpec, outer: &Launched) -> ContainerSpec {
    ContainerSpec {
        inside: Some(Inside {
            supervisor: outer.supervisor.clone(),
            stdin: None,
            terminal: false,
        }),
        ..spec.clone()
    }
}

impl TestNode {
    pub(crate) fn new(host: Host, grouped: bool) -> Result<Self, Failed> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = PathBuf::from(format!("meseta-test-{}-{number}", std::process::id()));
        let dir = tempfile::tempdir()?;
        // The task's user must be able to enter it.
        let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(dir.path(), open)?;
        fs::create_dir(dir.path().join("sandbox"))?;
        let test_node = Self {
            dir,
            host,
            root,
            grouped,
            containers: RefCell::new(None),
        };
        test_node.open(|_| ())?;
        Ok(test_node)
    }

    /// Opens the instance again, as an agent after its restart.
    pub(crate) fn open(&self, adjust: impl FnOnce(&mut Options)) -> Result<(), Failed> {
        let mut options = self.options()?;
        adjust(&mut options);
        self.open_as(options, &NodeOptions::default(), Vec::new())
    }

    /// The default options of a test.
    pub(crate) fn options(&self) -> Result<Options, Failed> {
        let isolation = if self.grouped {
            Isolation::default_for(&self.host)
        } else {
            Isolation::parse("posix/cpu,posix/mem,posix/rlimits,linux/nnp")?
        };
        Ok(Options {
            runtime_dir: self.dir.path().join("run"),
            cgroups_root: self.root.clone(),
            instance: name("agent"),
            isolation,
            enable_cfs: false,
            revocable_cpu_low_priority: true,
            limit_swap: false,
            pids_limit: None,
            launch_timeout: PATIENCE,
        })
    }

    /// Opens with these isolators, by name, besides the default ones.
    pub(crate) fn open_more(&self, names: &str, node: &NodeOptions) -> Result<(), Failed> {
        let usual: Vec<_> = Isolation::default_for(&self.host).names().collect();
        let isolation = Isolation::parse(&format!("{},{names}", usual.join(",")))?;
        self.open_custom(isolation, node, Vec::new())
    }

    pub(crate) fn open_custom(
        &self,
        isolation: Isolation,
        node: &NodeOptions,
        custom: Vec<Box<dyn Isolator>>,
    ) -> Result<(), Failed> {
        let mut options = None;
        self.open(|usual| {
            usual.isolation = isolation;
            options = Some(usual.clone());
        })?;
        self.open_as(options.ok_or("not opened")?, node, custom)
    }

    fn open_as(
        &self,
        options: Options,
        node: &NodeOptions,
        custom: Vec<Box<dyn Isolator>>,
    ) -> Result<(), Failed> {
        self.close();
        let opened = Containers::open_with(self.host.clone(), options, node, custom);
        let opened = opened.map_err(|error| chain(&error))?;
        // Changes that a test makes to the host then cannot affect a launcher that is still starting.
        opened.ready().map_err(|error| chain(&error))?;
        *self.containers.borrow_mut() = Some(opened);
        Ok(())
    }

    /// A copy of the test program that every user can execute.
    pub(crate) fn probe(&self) -> Result<PathBuf, Failed> {
        let path = self.sandbox().join("probe");
        if !path.exists() {
            fs::copy(std::env::current_exe()?, &path)?;
        }
        Ok(path)
    }

    pub(crate) fn run_with(
        &self,
        spec: &ContainerSpec,
        task: &TaskIsolation,
    ) -> Result<(ExitRecord, String), Failed> {
        let launched = self.launch_with(spec, task)?;
        let record = self.wait_end(spec, &launched)?;
        Ok((record, self.output(spec)))
    }

    pub(crate) fn launch_with(
        &self,
        spec: &ContainerSpec,
        task: &TaskIsolation,
    ) -> Result<Launched, Failed> {
        self.launch(&isolated(spec, task))
    }

    /// The error of its launch, if the launch fails.
    pub(crate) fn refusal(&self, spec: &ContainerSpec) -> Option<LaunchError> {
        self.with(|containers| containers.launch(spec)).err()
    }

    /// Runs a container to its end in the namespaces of a running one.
    pub(crate) fn run_inside(
        &self,
        spec: &ContainerSpec,
        outer: &Launched,
    ) -> Result<Launched, Failed> {
        let inner = self.launch(&entering(spec, outer))?;
        self.wait_end(spec, &inner)?;
        Ok(inner)
    }

    /// A container that runs until it is killed.
    pub(crate) fn sleeper(&self, name: &str) -> Result<(ContainerSpec, Launched), Failed> {
        let spec = self.spec(name, "exec sleep 1000");
        let launched = self.launch(&spec)?;
        Ok((spec, launched))
    }

    /// Launches a container and waits until it has printed this text.
    pub(crate) fn launch_until(
        &self,
        command: &str,
        text: &str,
    ) -> Result<(ContainerSpec, Launched), Failed> {
        let spec = self.spec("c", command);
        let launched = self.launch(&spec)?;
        self.wait_output(&spec, text)?;
        Ok((spec, launched))
    }

    /// A pipe in the sandbox that a task waits for.
    pub(crate) fn gate(&self) -> Result<PathBuf, Failed> {
        let gate = self.sandbox().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU)?;
        Ok(gate)
    }

    pub(crate) fn launcher(&self) -> Result<Pid, Failed> {
        let pid = self.with(|containers| containers.launcher_pid());
        Ok(Pid::from_raw(i32::try_from(pid.ok_or("no launcher")?)?))
    }

    /// Leaves the state after an agent's end: the containers, without their launcher.
    pub(crate) fn close(&self) {
        if let Some(containers) = self.containers.borrow_mut().take() {
            containers.close();
        }
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&Containers) -> T) -> T {
        act(self
            .containers
            .borrow()
            .as_ref()
            .expect("the test has it open"))
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn sandbox(&self) -> PathBuf {
        self.dir.path().join("sandbox")
    }

    /// A shell command with small resources.
    pub(crate) fn spec(&self, container: &str, command: &str) -> ContainerSpec {
        ContainerSpec {
            name: name(container),
            command: Command::Shell(command.to_owned()),
            env: vec![("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())],
            working_dir: self.sandbox(),
            credentials: None,
            stdout: Destination::file(&self.sandbox(), &format!("{container}.out")),
            stderr: Destination::file(&self.sandbox(), &format!("{container}.err")),
            hostname: None,
            rlimits: Vec::new(),
            demand: Demand {
                cpus_millis: 100,
                mem_bytes: Some(64 << 20),
                ..Demand::default()
            },
            isolation: TaskIsolation::default(),
            inside: None,
        }
    }

    pub(crate) fn launch(&self, spec: &ContainerSpec) -> Result<Launched, Failed> {
        self.with(|containers| containers.launch(spec))
            .map_err(|error| chain(&error).into())
    }

    /// Launches, waits for the end, and returns the record and the output.
    pub(crate) fn run(&self, spec: &ContainerSpec) -> Result<(ExitRecord, String), Failed> {
        let launched = self.launch(spec)?;
        let record = self.wait_end(spec, &launched)?;
        Ok((record, self.output(spec)))
    }

    /// Launches and waits for the end; checks the complete output.
    pub(crate) fn prints(&self, spec: &ContainerSpec, expected: &str) -> Result<(), Failed> {
        same(self.run(spec)?.1, expected)
    }

    pub(crate) fn output(&self, spec: &ContainerSpec) -> String {
        fs::read_to_string(spec.stdout.path()).unwrap_or_default()
    }

    /// The present usage, as far as the container's groups show it.
    pub(crate) fn usage(&self, spec: &ContainerSpec) -> Result<ContainerUsage, Failed> {
        Ok(self.with(|containers| containers.usage(&spec.name, None, Duration::ZERO))?)
    }

    /// The limit that the container has run into, if any.
    pub(crate) fn limitation(&self, spec: &ContainerSpec) -> Option<Limitation> {
        let limitation = self.with(|containers| containers.limitation(&spec.name, &spec.demand));
        limitation.ok().flatten()
    }

    /// Whether the container's supervisor lives.
    pub(crate) fn lives(&self, launched: &Launched) -> Result<bool, Failed> {
        let watched = self.with(|containers| containers.watch(&launched.supervisor))?;
        Ok(watched.is_some())
    }

    pub(crate) fn forget(&self, spec: &ContainerSpec) -> Result<(), Failed> {
        Ok(self.with(|containers| containers.forget(&spec.name))?)
    }

    pub(crate) fn groups(&self, name: &ContainerName) -> Groups {
        self.with(|containers| containers.groups(name))
    }

    /// Waits for the end of the container; checks its cause.
    pub(crate) fn wait_cause(
        &self,
        spec: &ContainerSpec,
        launched: &Launched,
        cause: ExitCause,
    ) -> Result<(), Failed> {
        same(self.wait_end(spec, launched)?.cause, cause)
    }

    /// Waits for the supervisor's end and reads its exit record.
    pub(crate) fn wait_end(
        &self,
        spec: &ContainerSpec,
        launched: &Launched,
    ) -> Result<ExitRecord, Failed> {
        if let Some(pidfd) = self.with(|containers| containers.watch(&launched.supervisor))? {
            wait_pidfd(&pidfd)?;
        }
        let record = self.with(|containers| containers.exit_record(&spec.name))?;
        record.ok_or_else(|| "the supervisor ended without an exit record".into())
    }

    /// Waits until the task has printed this text.
    pub(crate) fn wait_output(&self, spec: &ContainerSpec, text: &str) -> Result<(), Failed> {
        self.eventually(text, || self.output(spec).contains(text))
    }

    /// Polls until a condition holds.
    pub(crate) fn eventually(&self, what: &str, so: impl Fn() -> bool) -> Result<(), Failed> {
        let deadline = Instant::now() + PATIENCE;
        while !so() {
            if Instant::now() > deadline {
                return Err(format!("not within {PATIENCE:?}: {what}").into());
            }
            let pause = PollTimeout::try_from(LOOK_AGAIN).unwrap_or(PollTimeout::ZERO);
            poll(&mut [], pause)?;
        }
        Ok(())
    }

    pub(crate) fn destroy(&self, spec: &ContainerSpec, launched: &Launched) -> Result<(), Failed> {
        let supervisor = Some(&launched.supervisor);
        self.with(|containers| {
            containers.destroy(&spec.name, supervisor, DestroyOptions::default())
        })?;
        let groups = self.with(|containers| containers.groups(&spec.name));
        if groups.exist() {
            Err("groups are left after destroy".into())
        } else {
            Ok(())
        }
    }

    /// Destroys the test's leftovers, and reports failures and unexpected leftovers.
    pub(crate) fn finish(self) -> Result<(), String> {
        let mut left = String::new();
        if self.containers.borrow().is_none() {
            self.open(|_| ()).map_err(|error| format!("{error:?}"))?;
        }
        self.with(|containers| {
            for container in containers.recover().unwrap_or_default() {
                let supervisor = container.supervisor.as_ref();
                let destroyed =
                    containers.destroy(&container.name, supervisor, DestroyOptions::default());
                if let Err(error) = destroyed {
                    left.push_str(&chain(&error));
                }
                if let Err(error) = containers.forget(&container.name) {
                    left.push_str(&chain(&error));
                }
            }
        });
        self.close();
        let mounts = self.host.v1.iter().map(|tree| &tree.mount);
        let mounts = mounts.chain(self.host.unified.as_ref().map(|tree| &tree.mount));
        for mount in mounts {
            let root = mount.join(&self.root);
            if root.exists() {
                left.push_str(&format!(" {}", root.display()));
            }
        }
        let needle = self.dir.path().to_string_lossy().into_owned();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if table.contains(&needle) {
            left.push_str(" a mount");
        }
        for pid in processes_naming(&needle) {
            left.push_str(&format!(" process {pid}"));
        }
        if left.is_empty() { Ok(()) } else { Err(left) }
    }
}

/// Processes whose working directory is the test's sandbox: its tasks.
fn processes_naming(folder: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let inside = entries.filter(|entry| {
        fs::read_link(entry.path().join("cwd"))
            .is_ok_and(|cwd| cwd.to_string_lossy().starts_with(folder))
    });
    inside
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Waits until a limit event is ready.
pub(crate) fn wait_event(event: &LimitEvent) -> Result<(), Failed> {
    let flags = match event.is_priority() {
        true => PollFlags::POLLPRI,
        false => PollFlags::POLLIN,
    };
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(event.as_fd(), flags)], patience)? {
        0 => Err(format!("no event within {PATIENCE:?}").into()),
        _ => Ok(event.take()?),
    }
}

pub(crate) fn wait_pidfd(pidfd: &OwnedFd) -> Result<(), Failed> {
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    match poll(
        &mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)],
        patience,
    )? {
        0 => Err(format!("a process lives on after {PATIENCE:?}").into()),
        _ => Ok(()),
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// A program and its arguments, the zeroth first.
pub(crate) fn argv(program: impl Into<OsString>, args: &[&str]) -> Command {
    Command::Argv {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
    }
}

pub(crate) fn nobody() -> Credentials {
    Credentials {
        uid: 65534,
        gid: 65534,
        groups: Vec::new(),
    }
}

/// Fails unless the launch failed in this step.
pub(crate) fn expect_step(failed: Option<LaunchError>, expected: LaunchStep) -> Result<(), Failed> {
    let told = matches!(&failed, Some(LaunchError::Step { step, .. }) if *step == expected);
    check!(told, "{failed:?}");
    Ok(())
}

/// Fails unless both are equal.
pub(crate) fn same<T, U>(found: T, expected: U) -> Result<(), Failed>
where
    T: PartialEq<U> + std::fmt::Debug,
    U: std::fmt::Debug,
{
    check!(found == expected, "found {found:?}, expected {expected:?}");
    Ok(())
}
