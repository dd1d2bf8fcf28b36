//! Capabilities and system call filters, prepared before the clone and given up in the task.
//!
//! The supervisor turns the plan's numbers into the types of the crates, so that the task allocates nothing unless a step
//! fails. Order matters: the bounding set goes while the task may still change it, then the user changes, and the other sets
//! go last.

use std::io;

use caps::{CapSet, CapsHashSet};
use seccompiler::{BpfProgram, sock_filter};

use super::{CapabilitySets, SeccompProgram};

/// A task's capabilities, ready for use.
#[derive(Debug)]
pub(super) struct Capabilities {
    /// The capabilities to remove from the bounding set. The set never holds those that the kernel does not know.
    dropped: Vec<caps::Capability>,
    effective: CapsHashSet,
    none: CapsHashSet,
}

impl Capabilities {
    pub(super) fn new(sets: CapabilitySets) -> Self {
        let mut dropped: Vec<_> = caps::all().into_iter().collect();
        dropped.retain(|one| sets.bounding & one.bitmask() == 0);
        let held = caps::read(None, CapSet::Bounding).unwrap_or_default();
        dropped.retain(|one| held.contains(one));
        let effective = caps::all()
            .into_iter()
            .filter(|one| sets.effective & one.bitmask() != 0);
        Self {
            dropped,
            effective: effective.collect(),
            none: CapsHashSet::new(),
        }
    }

    /// Narrows the bounding set, and makes a change of user keep the capabilities that may be needed after it.
    pub(super) fn bound(&self) -> io::Result<()> {
        for one in &self.dropped {
            caps::drop(None, CapSet::Bounding, *one).map_err(last_error)?;
        }
        if self.effective.is_empty() {
            return Ok(());
        }
        caps::securebits::set_keepcaps(true).map_err(last_error)
    }

    /// Narrows the other sets. At exec root regains the capabilities that are both permitted and in the bounding set; others keep
    /// only the ambient ones.
    pub(super) fn reduce(&self, root: bool) -> io::Result<()> {
        // Kernels before 4.3 refuse this call: they have no ambient sets, so there is nothing to clear.
        let _ = caps::clear(None, CapSet::Ambient);
        // Each set is lowered before the set that bounds it, and raised after: effective stays within permitted at each step.
        let kept = caps::set(None, CapSet::Effective, &self.none)
            .and_then(|()| caps::set(None, CapSet::Permitted, &self.effective))
            .and_then(|()| caps::set(None, CapSet::Effective, &self.effective));
        kept.map_err(last_error)?;
        if root {
            return caps::set(None, CapSet::Inheritable, &self.none).map_err(last_error);
        }
        caps::set(None, CapSet::Inheritable, &self.effective).map_err(last_error)?;
        for one in &self.effective {
            caps::raise(None, CapSet::Ambient, *one).map_err(last_error)?;
        }
        Ok(())
    }
}

/// Returns the last error of the kernel, which the crate keeps only as text; no other call has been made since.
fn last_error(_: caps::errors::CapsError) -> io::Error {
    io::Error::last_os_error()
}

/// Converts a filter to the kernel's format.
pub(super) fn filter(program: &SeccompProgram) -> BpfProgram {
    let instruction = |number: &u64| {
        let [c0, c1, jt, jf, k0, k1, k2, k3] = number.to_le_bytes();
        sock_filter {
            code: u16::from_le_bytes([c0, c1]),
            jt,
            jf,
            k: u32::from_le_bytes([k0, k1, k2, k3]),
        }
    };
    program.0.iter().map(instruction).collect()
}

/// Reverses [`filter`], for the way through the launcher's socket.
pub(crate) fn pack(program: &[sock_filter]) -> SeccompProgram {
    let number = |one: &sock_filter| {
        let [c0, c1] = one.code.to_le_bytes();
        let [k0, k1, k2, k3] = one.k.to_le_bytes();
        u64::from_le_bytes([c0, c1, one.jt, one.jf, k0, k1, k2, k3])
    };
    SeccompProgram(program.iter().map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_survive_packing() {
        let program = vec![
            sock_filter {
                code: 0x15,
                jt: 1,
                jf: 255,
                k: 0x7fff_0000,
            },
            sock_filter {
                code: 0xffff,
                jt: 0,
                jf: 2,
                k: u32::MAX,
            },
        ];
        assert_eq!(filter(&pack(&program)), program);
    }

    #[test]
    fn capabilities_outside_bounding_are_dropped() {
        let held = caps::read(None, CapSet::Bounding).expect("readable");
        let kept = caps::Capability::CAP_CHOWN;
        let capabilities = Capabilities::new(CapabilitySets {
            bounding: kept.bitmask(),
            effective: 0,
        });
        assert!(!capabilities.dropped.contains(&kept));
        let others = held.len() - usize::from(held.contains(&kept));
        assert_eq!(capabilities.dropped.len(), others);
    }
}
