//! The encoding of a plan that the agent sends to the launcher, and its decoding.
//!
//! Numbers are little-endian. An optional value follows a flag, and a list follows a count. Invariant: a count reserves no
//! memory, so that a wrong count costs no more than the received bytes.

use std::ffi::CString;

use super::super::{CapabilitySets, LogFile, SeccompProgram};
use super::{PlannedAction, PlannedMount, PlannedOutput, TaskPlan};

impl TaskPlan {
    /// Encodes the plan; the namespaces come first, where [`TaskPlan::namespaces_of`] finds them.
    pub(in crate::launcher) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4096);
        self.write(&mut out);
        out
    }

    /// The namespace flags of an encoded plan, which the launcher needs before the rest.
    pub(in crate::launcher) fn namespaces_of(mut bytes: &[u8]) -> Option<u64> {
        u64::read(&mut bytes)
    }

    /// Decodes the output of [`TaskPlan::encode`].
    pub(in crate::launcher) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let plan = Self::read(&mut bytes)?;
        bytes.is_empty().then_some(plan)
    }
}

/// A type that can be part of a plan.
trait Field: Sized {
    fn write(&self, out: &mut Vec<u8>);
    /// Reads a value of [`Field::write`] from the front.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

/// Implements [`Field`] for a structure: its fields in this order.
macro_rules! fields {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl Field for $name {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)+
            }

            fn read(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Field::read(from)?),+ })
            }
        }
    };
}

fields!(TaskPlan {
    namespaces,
    boot_id,
    status_dir,
    hostname,
    stdout,
    stderr,
    v1_tasks,
    v2_group,
    oom_score_adj,
    rlimits,
    no_new_privs,
    mounts,
    capabilities,
    seccomp,
    stdout_log,
    stderr_log,
    credentials,
    working_dir,
    programs,
    args,
    env,
    join,
    stdin,
    terminal,
    cgroup_namespace,
});
fields!(PlannedOutput { beneath, path });
fields!(PlannedMount {
    path,
    beneath,
    action
});
fields!(CapabilitySets {
    bounding,
    effective
});
fields!(LogFile { bytes, files });

/// Implements [`Field`] for an enumeration: the number of the variant, then its fields.
macro_rules! variants {
    ($name:ident { $($number:literal => $variant:ident { $($field:ident),* }),+ $(,)? }) => {
        impl Field for $name {
            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        u8::write(&$number, out);
                        $($field.write(out);)*
                    })+
                }
            }

            fn read(from: &mut &[u8]) -> Option<Self> {
                Some(match u8::read(from)? {
                    $($number => Self::$variant { $($field: Field::read(from)?),* },)+
                    _ => return None,
                })
            }
        }
    };
}

variants!(PlannedAction {
    0 => ReadOnlyTree {},
    1 => ReadOnlyPath {},
    2 => MaskFile {},
    3 => Tmpfs { options, writable },
    4 => Bind { beneath, path, by_user, writable },
    5 => Unmount {},
    6 => CgroupTree { controllers },
});

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Field for $number {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(from: &mut &[u8]) -> Option<Self> {
                let (head, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_le_bytes(*head))
            }
        }
    )+};
}

numbers!(u8, u32, u64);

impl Field for bool {
    fn write(&self, out: &mut Vec<u8>) {
        u8::from(*self).write(out);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        u8::read(from).map(|number| number != 0)
    }
}

impl<T: Field> Field for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        self.iter().for_each(|one| one.write(out));
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        match bool::read(from)? {
            true => T::read(from).map(Some),
            false => Some(None),
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        u64::try_from(self.len()).unwrap_or(u64::MAX).write(out);
        self.iter().for_each(|one| one.write(out));
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        (0..u64::read(from)?).map(|_| T::read(from)).collect()
    }
}

impl<const N: usize> Field for [u64; N] {
    fn write(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|one| one.write(out));
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u64::read(from)?;
        }
        Some(numbers)
    }
}

impl Field for CString {
    fn write(&self, out: &mut Vec<u8>) {
        let bytes = self.as_bytes();
        u64::try_from(bytes.len()).unwrap_or(u64::MAX).write(out);
        out.extend_from_slice(bytes);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        let length = usize::try_from(u64::read(from)?).ok()?;
        Self::new(from.split_off(..length)?).ok()
    }
}

impl Field for SeccompProgram {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Field::read(from).map(Self)
    }
}

impl<A: Field, B: Field, C: Field> Field for (A, B, C) {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
        self.2.write(out);
    }

    fn read(from: &mut &[u8]) -> Option<Self> {
        Some((A::read(from)?, B::read(from)?, C::read(from)?))
    }
}
