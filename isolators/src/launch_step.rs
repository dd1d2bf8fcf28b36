//! The steps of a launch, as reported and recorded for a failed launch.

use std::io;

/// The failed step of a launch, roughly in order of execution; later additions are last. The number of a step is its code,
/// which is stored.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum LaunchStep {
    CloneSupervisor = 1,
    MountPropagation,
    MountProc,
    Hostname,
    RecordIdentity,
    OpenStdio,
    CloneTask,
    JoinCgroup,
    Setsid,
    OomScore,
    Rlimit,
    Credentials,
    WorkingDir,
    NoNewPrivs,
    CloseFds,
    Exec,
    Loopback,
    Mount,
    Capabilities,
    Seccomp,
    JoinNamespaces,
    Terminal,
    CgroupNamespace,
}

impl LaunchStep {
    /// All steps in the order of their codes, which are stored: append only.
    const ALL: [Self; 23] = [
        Self::CloneSupervisor,
        Self::MountPropagation,
        Self::MountProc,
        Self::Hostname,
        Self::RecordIdentity,
        Self::OpenStdio,
        Self::CloneTask,
        Self::JoinCgroup,
        Self::Setsid,
        Self::OomScore,
        Self::Rlimit,
        Self::Credentials,
        Self::WorkingDir,
        Self::NoNewPrivs,
        Self::CloseFds,
        Self::Exec,
        Self::Loopback,
        Self::Mount,
        Self::Capabilities,
        Self::Seccomp,
        Self::JoinNamespaces,
        Self::Terminal,
        Self::CgroupNamespace,
    ];

    /// The code of the step, from 1 on. Async-signal-safe.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let place = usize::from(code).checked_sub(1)?;
        Self::ALL.get(place).copied()
    }

    /// The name of the capability that this step needs, if the kernel refused the step; for a message.
    pub(crate) fn lacking(self, source: &io::Error) -> &'static str {
        if source.kind() != io::ErrorKind::PermissionDenied {
            return "";
        }
        match self {
            Self::CloneSupervisor
            | Self::MountPropagation
            | Self::MountProc
            | Self::Hostname
            | Self::Mount
            | Self::JoinNamespaces
            | Self::CgroupNamespace => " (needs CAP_SYS_ADMIN)",
            Self::Rlimit | Self::OomScore => " (needs CAP_SYS_RESOURCE)",
            Self::Credentials => " (needs CAP_SETUID and CAP_SETGID)",
            Self::Capabilities => " (needs CAP_SETPCAP)",
            Self::Loopback => " (needs CAP_NET_ADMIN)",
            Self::RecordIdentity
            | Self::OpenStdio
            | Self::CloneTask
            | Self::JoinCgroup
            | Self::Setsid
            | Self::WorkingDir
            | Self::NoNewPrivs
            | Self::CloseFds
            | Self::Exec
            | Self::Seccomp
            | Self::Terminal => "",
        }
    }

    /// The description of the step for an error message.
    pub fn doing(self) -> &'static str {
        match self {
            Self::CloneSupervisor => "cloning the supervisor",
            Self::MountPropagation => "detaching the mount namespace",
            Self::MountProc => "mounting /proc",
            Self::Hostname => "setting the host name",
            Self::RecordIdentity => "recording the supervisor",
            Self::OpenStdio => "opening standard input, output or error",
            Self::CloneTask => "cloning the task",
            Self::JoinCgroup => "joining its cgroup",
            Self::Setsid => "starting its session",
            Self::OomScore => "setting its OOM score",
            Self::Rlimit => "setting a resource limit",
            Self::Credentials => "changing its user and groups",
            Self::WorkingDir => "entering its working directory",
            Self::NoNewPrivs => "giving up new privileges",
            Self::CloseFds => "closing descriptors",
            Self::Exec => "executing its program",
            Self::Loopback => "bringing its loopback interface up",
            Self::Mount => "changing its mounts",
            Self::Capabilities => "giving up capabilities",
            Self::Seccomp => "installing its system call filter",
            Self::JoinNamespaces => "entering its container's namespaces",
            Self::Terminal => "taking its terminal",
            Self::CgroupNamespace => "hiding the cgroups around its own",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_unique_code() {
        for (step, code) in LaunchStep::ALL.into_iter().zip(1..) {
            assert_eq!(step.code(), code);
            assert_eq!(LaunchStep::from_code(code), Some(step));
        }
        assert_eq!(LaunchStep::from_code(0), None);
        assert_eq!(LaunchStep::from_code(24), None);
    }
}
