//! The table of all capabilities of the kernel: their effects, and the affected users.
//!
//! This table alone decides which capabilities a task other than root's may request without a grant of the operator's: those
//! that affect only the task ([`Reach::Task`]). A capability that is not in the table, because the kernel is newer, counts as
//! one that affects the node. `docs/isolation.md` shows the table.

/// The users whom a capability affects, in a container that sees the host's files and, unless isolated, its network.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Reach {
    Task,
    /// Affects files, processes, messages or sessions of other users, root among them.
    Users,
    /// Affects the node: its kernel, devices, clock, memory, processors or network.
    Node,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct CapabilityEntry {
    /// The name without `CAP_`.
    pub name: &'static str,
    /// The actions that the capability allows.
    pub grants: &'static str,
    pub reach: Reach,
}

const fn entry(name: &'static str, reach: Reach, grants: &'static str) -> CapabilityEntry {
    CapabilityEntry {
        name,
        grants,
        reach,
    }
}

use Reach::{Node, Task, Users};

/// All capabilities, each at its number in the kernel.
pub const CAPABILITIES: [CapabilityEntry; 41] = [
    entry("CHOWN", Users, "give any file to any user"),
    entry("DAC_OVERRIDE", Users, "read and write every file"),
    entry(
        "DAC_READ_SEARCH",
        Users,
        "read every file, and open files by their handles",
    ),
    entry(
        "FOWNER",
        Users,
        "change modes and attributes of every user's files",
    ),
    entry(
        "FSETID",
        Users,
        "keep set-id bits on files that it writes to or that are of other groups",
    ),
    entry("KILL", Users, "signal processes of every user"),
    entry("SETGID", Users, "become every group"),
    entry("SETUID", Users, "become every user, root too"),
    entry(
        "SETPCAP",
        Users,
        "pass capabilities on, and change what root's programs get",
    ),
    entry(
        "LINUX_IMMUTABLE",
        Node,
        "make files that nobody, the agent included, can remove",
    ),
    entry("NET_BIND_SERVICE", Task, "listen on ports below 1024"),
    entry("NET_BROADCAST", Task, "nothing: kernels do not ask for it"),
    entry(
        "NET_ADMIN",
        Node,
        "change interfaces, routes and filters of its network",
    ),
    entry(
        "NET_RAW",
        Users,
        "read and forge packets of everybody on its network",
    ),
    entry("IPC_LOCK", Node, "keep any amount of memory from reclaim"),
    entry(
        "IPC_OWNER",
        Users,
        "read and write System V objects of every user",
    ),
    entry("SYS_MODULE", Node, "load code into the kernel"),
    entry(
        "SYS_RAWIO",
        Node,
        "reach memory and devices past the kernel",
    ),
    entry(
        "SYS_CHROOT",
        Users,
        "change what programs that trust their root folder see",
    ),
    entry(
        "SYS_PTRACE",
        Users,
        "read and change processes of every user",
    ),
    entry(
        "SYS_PACCT",
        Node,
        "switch the accounting of processes on and off",
    ),
    entry("SYS_ADMIN", Node, "mount, enter namespaces, and much else"),
    entry(
        "SYS_BOOT",
        Node,
        "restart the machine, or load another kernel",
    ),
    entry(
        "SYS_NICE",
        Node,
        "run before all others, and set the priority of every user's processes",
    ),
    entry(
        "SYS_RESOURCE",
        Node,
        "exceed quotas, limits and the reserved space on disks",
    ),
    entry("SYS_TIME", Node, "set the clock"),
    entry("SYS_TTY_CONFIG", Users, "hang up terminals of every user"),
    entry("MKNOD", Node, "make device nodes"),
    entry("LEASE", Users, "hold up opens of every user's files"),
    entry("AUDIT_WRITE", Node, "write into the kernel's audit log"),
    entry("AUDIT_CONTROL", Node, "change what the kernel audits"),
    entry("SETFCAP", Users, "give capabilities to programs"),
    entry("MAC_OVERRIDE", Node, "pass a security module's rules"),
    entry("MAC_ADMIN", Node, "change a security module's rules"),
    entry("SYSLOG", Node, "read and clear the kernel's log"),
    entry("WAKE_ALARM", Node, "wake the machine up"),
    entry("BLOCK_SUSPEND", Node, "keep the machine from sleeping"),
    entry("AUDIT_READ", Node, "read the kernel's audit log"),
    entry("PERFMON", Users, "observe all processes and the kernel"),
    entry(
        "BPF",
        Node,
        "load programs into the kernel that see and change others' data",
    ),
    entry(
        "CHECKPOINT_RESTORE",
        Users,
        "choose process numbers, and read links of every user's processes",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_kernels() {
        let known = caps::all();
        assert_eq!(known.len(), CAPABILITIES.len());
        for one in known {
            let number = usize::from(one.index());
            let name = one.to_string();
            assert_eq!(name, format!("CAP_{}", CAPABILITIES[number].name));
        }
    }

    #[test]
    fn the_page_shows_the_table() {
        let page = include_str!("../../../../docs/isolation.md");
        for one in CAPABILITIES {
            let reach = match one.reach {
                Task => "the task",
                Users => "users",
                Node => "the node",
            };
            let row = format!("| {} | {} | {reach} |\n", one.name, one.grants);
            assert!(page.contains(&row), "docs/isolation.md lacks {row}");
        }
    }
}
