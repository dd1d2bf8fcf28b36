//! The device program of a v2 group: built by hand, loaded and attached through bpf(2).
//!
//! The kernel runs it whenever a process of the group opens or makes a device node, and denies access if it returns 0. It is
//! a chain of comparisons, one block per rule, so the verifier has no loop and no memory to check.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{made, result};
use crate::device_rule::{DeviceKind, DeviceRule};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
/// Allows programs on groups above as well; a node must pass all of them.
const BPF_F_ALLOW_MULTI: u32 = 2;

const ACCESS_MKNOD: u32 = 1;
const ACCESS_READ: u32 = 2;
const ACCESS_WRITE: u32 = 4;
const TYPE_BLOCK: u32 = 1;
const TYPE_CHARACTER: u32 = 2;

/// Registers: the result and scratch, the context, then the values read from it.
const R0: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const MOVE: u8 = 0xb4;
const MOVE_REGISTER: u8 = 0xbc;
const JUMP_IF_NOT: u8 = 0x55;
const EXIT: u8 = 0x95;

/// Encodes an instruction as the kernel's `bpf_insn`.
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: u32) -> u64 {
    let [o0, o1] = offset.to_le_bytes();
    let [v0, v1, v2, v3] = value.to_le_bytes();
    u64::from_le_bytes([code, to | (from << 4), o0, o1, v0, v1, v2, v3])
}

/// Builds a program that allows the accesses of the rules, and denies all others.
fn program(rules: &[DeviceRule]) -> Vec<u64> {
    let mut code = vec![
        // `struct bpf_cgroup_dev_ctx`: access << 16 | kind, major, minor.
        instruction(LOAD_WORD, KIND, CONTEXT, 0, 0),
        instruction(MOVE_REGISTER, ACCESS, KIND, 0, 0),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules {
        code.extend(block(rule));
    }
    code.push(instruction(MOVE, R0, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

fn block(rule: &DeviceRule) -> Vec<u64> {
    let kind = match rule.kind {
        DeviceKind::Block => TYPE_BLOCK,
        DeviceKind::Character => TYPE_CHARACTER,
    };
    let access = [
        (rule.mknod, ACCESS_MKNOD),
        (rule.read, ACCESS_READ),
        (rule.write, ACCESS_WRITE),
    ];
    let allowed = access
        .iter()
        .filter(|(on, _)| *on)
        .fold(0, |all, (_, one)| all | one);
    // Each test jumps behind the block if it fails; the distance is filled in below.
    let mut code = vec![
        instruction(JUMP_IF_NOT, KIND, 0, 0, kind),
        instruction(MOVE_REGISTER, R0, ACCESS, 0, 0),
        instruction(AND, R0, 0, 0, !allowed),
        instruction(JUMP_IF_NOT, R0, 0, 0, 0),
    ];
    if let Some(major) = rule.major {
        code.push(instruction(JUMP_IF_NOT, MAJOR, 0, 0, major));
    }
    if let Some(minor) = rule.minor {
        code.push(instruction(JUMP_IF_NOT, MINOR, 0, 0, minor));
    }
    code.push(instruction(MOVE, R0, 0, 0, 1));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    let length = code.len();
    for (place, one) in code.iter_mut().enumerate() {
        let [op, registers, _, _, v0, v1, v2, v3] = one.to_le_bytes();
        if op == JUMP_IF_NOT {
            let [o0, o1] = u16::try_from(length - place - 1).unwrap_or(0).to_le_bytes();
            *one = u64::from_le_bytes([op, registers, o0, o1, v0, v1, v2, v3]);
        }
    }
    code
}

/// The part of `union bpf_attr` for loading.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for attaching.
#[repr(C)]
struct AttachAttributes {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Attaches a program with these rules to a v2 group; it stays as long as the group.
pub(crate) fn attach_device_program(group: &Path, rules: &[DeviceRule]) -> io::Result<()> {
    let group = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open(group)?;
    let program = load(&program(rules))?;
    attach(&group, &program)
}

fn load(code: &[u64]) -> io::Result<OwnedFd> {
    let attributes = LoadAttributes {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(code.len()).map_err(io::Error::other)?,
        instructions: address(code.as_ptr().cast()),
        license: address(c"Apache-2.0".as_ptr().cast()),
        ..LoadAttributes::default()
    };
    // SAFETY: the attributes are a valid prefix of `union bpf_attr` with its size; the code and the
    // license live over the call.
    made(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            &raw const attributes,
            mem::size_of::<LoadAttributes>(),
        )
    })
}

fn attach(group: &File, program: &OwnedFd) -> io::Result<()> {
    let attributes = AttachAttributes {
        target: group.as_raw_fd().unsigned_abs(),
        program: program.as_raw_fd().unsigned_abs(),
        kind: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
    };
    // SAFETY: as for loading; both descriptors are open over the call.
    result(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_ATTACH,
            &raw const attributes,
            mem::size_of::<AttachAttributes>(),
        )
    })
}

fn address(pointer: *const libc::c_void) -> u64 {
    u64::try_from(pointer.addr()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does, restricted to the instructions in use.
    fn run(code: &[u64], kind: u32, access: u32, major: u32, minor: u32) -> u32 {
        let context = [(access << 16) | kind, major, minor];
        let mut registers = [0_u32; 6];
        let mut place = 0;
        loop {
            let [op, both, o0, o1, v0, v1, v2, v3] = code[place].to_le_bytes();
            let (to, from) = (usize::from(both & 15), usize::from(both >> 4));
            let offset = usize::from(u16::from_le_bytes([o0, o1]));
            let value = u32::from_le_bytes([v0, v1, v2, v3]);
            place += 1;
            match op {
                LOAD_WORD => registers[to] = context[offset / 4],
                AND => registers[to] &= value,
                SHIFT_RIGHT => registers[to] >>= value,
                MOVE => registers[to] = value,
                MOVE_REGISTER => registers[to] = registers[from],
                JUMP_IF_NOT if registers[to] != value => place += offset,
                JUMP_IF_NOT => {}
                EXIT => return registers[0],
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn bpf_program_allows_only_its_rules() {
        let rules = ["c 1:3 rw", "b 8:* r", "c *:* m"].map(|text| text.parse().expect("good"));
        let code = program(&rules);
        for (kind, access, major, minor, expected) in [
            (TYPE_CHARACTER, ACCESS_READ, 1, 3, 1),
            (TYPE_CHARACTER, ACCESS_READ | ACCESS_WRITE, 1, 3, 1),
            (TYPE_CHARACTER, ACCESS_READ, 1, 4, 0),
            (TYPE_BLOCK, ACCESS_READ, 1, 3, 0),
            (TYPE_BLOCK, ACCESS_READ, 8, 17, 1),
            (TYPE_BLOCK, ACCESS_WRITE, 8, 17, 0),
            (TYPE_BLOCK, ACCESS_MKNOD, 8, 17, 0),
            (TYPE_CHARACTER, ACCESS_MKNOD, 77, 1, 1),
            (TYPE_CHARACTER, ACCESS_MKNOD | ACCESS_WRITE, 1, 3, 0),
        ] {
            let found = run(&code, kind, access, major, minor);
            assert_eq!(found, expected, "{kind} {access} {major}:{minor}");
        }
        assert_eq!(run(&program(&[]), TYPE_CHARACTER, ACCESS_READ, 1, 3), 0);
    }
}
