//! The head of a filter, which answers ENOSYS to numbers that the table of calls does not know.
//!
//! A library tries a new call and falls back to an older call if the answer is ENOSYS; EPERM ends the program.
//! Entered through [`reject`]; pure. Invariant: a call that the table knows, and a call of another architecture,
//! reaches the rest of the filter.

use seccompiler::sock_filter;

/// The numbers of the x32 interface: this bit and the number of an ordinary call. No table has them.
pub(super) const X32: (u32, u32) = (0x4000_0000, u32::MAX);

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Instructions of classic BPF, as `linux/bpf_common.h` has them.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER: u16 = 0x25;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
/// Offsets of the number and the architecture in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const RETURN_ENOSYS: u32 = 0x0005_0000 | super::ENOSYS;

/// Instructions for each gap.
const PER_GAP: usize = 3;
/// The number of gaps over which one jump (at most 255 instructions) reaches.
const GAPS_MAX: usize = 84;

/// Returns the unknown numbers as ranges in ascending order.
///
/// If a filter has no room for all ranges, the lowest ones are left out: new calls have the highest numbers.
pub(super) fn gaps(known: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut known: Vec<u32> = known.into_iter().collect();
    known.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = 0;
    for number in known {
        if number > next {
            gaps.push((next, number - 1));
        }
        next = next.max(number.saturating_add(1));
    }
    gaps.push((next, u32::MAX));
    gaps.split_off(gaps.len().saturating_sub(GAPS_MAX))
}

/// Returns instructions that answer ENOSYS to numbers in these ranges.
pub(super) fn reject(ranges: &[(u32, u32)]) -> Vec<sock_filter> {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let over_all = u8::try_from(1 + PER_GAP * ranges.len()).unwrap_or(u8::MAX);
    let mut head = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_AT),
        instruction(JUMP_IF_EQUAL, 0, over_all, ARCHITECTURE),
        instruction(LOAD, 0, 0, NUMBER_AT),
    ];
    for (first, last) in ranges {
        head.extend([
            instruction(JUMP_IF_GREATER_OR_EQUAL, 0, 2, *first),
            instruction(JUMP_IF_GREATER, 1, 0, *last),
            instruction(RETURN, 0, 0, RETURN_ENOSYS),
        ]);
    }
    head
}

#[cfg(test)]
mod tests {
    use super::super::{SeccompAction, SeccompProfile, syscall_number};
    use super::*;

    const RETURN_ALLOW: u32 = 0x7fff_0000;

    /// Runs a program on a call without arguments. Returns the answer, or `None` if the program has none.
    fn run(program: &[sock_filter], architecture: u32, number: u32) -> Option<u32> {
        let (mut at, mut loaded) = (0, 0);
        while let Some(one) = program.get(at) {
            let jump = |is: bool| usize::from(if is { one.jt } else { one.jf });
            at += 1;
            match (one.code, one.k) {
                (LOAD, NUMBER_AT) => loaded = number,
                (LOAD, ARCHITECTURE_AT) => loaded = architecture,
                (LOAD, _) => loaded = 0,
                (JUMP_IF_EQUAL, value) => at += jump(loaded == value),
                (JUMP_IF_GREATER, value) => at += jump(loaded > value),
                (JUMP_IF_GREATER_OR_EQUAL, value) => at += jump(loaded >= value),
                (0x05, offset) => at += usize::try_from(offset).expect("fits"),
                (0x54, mask) => loaded &= mask,
                (RETURN, answer) => return Some(answer),
                (code, _) => panic!("unknown instruction {code:#x}"),
            }
        }
        assert_eq!(at, program.len(), "a jump leads out of the program");
        None
    }

    /// Runs all filters of a profile and returns the answer that the kernel would take.
    fn answer(profile: &SeccompProfile, number: u32) -> u32 {
        let programs = profile.assemble().expect("compiles");
        let answers = programs
            .iter()
            .map(|one| run(one, ARCHITECTURE, number).expect("an answer"));
        answers.min().unwrap_or(RETURN_ALLOW)
    }

    fn number(name: &str) -> u32 {
        u32::try_from(syscall_number(name).expect("known")).expect("positive")
    }

    #[test]
    fn unknown_numbers_are_missing() {
        let head = reject(&gaps([0, 1, 2, 5, 9, 8]));
        for number in [0, 1, 2, 5, 8, 9] {
            assert_eq!(run(&head, ARCHITECTURE, number), None, "{number}");
        }
        for number in [3, 4, 6, 7, 10, 500, X32.0, X32.0 | 1, u32::MAX] {
            let answered = run(&head, ARCHITECTURE, number);
            assert_eq!(answered, Some(RETURN_ENOSYS), "{number}");
            assert_eq!(run(&head, 0x4000_0003, number), None, "{number}");
        }
        let many = gaps((0..1_000).map(|number| number * 2));
        assert_eq!(many.len(), GAPS_MAX);
        assert_eq!(run(&reject(&many), ARCHITECTURE, 1_998), None);
    }

    #[test]
    fn x32_numbers_match_the_rules() {
        for otherwise in [SeccompAction::Allow, SeccompAction::Log] {
            let profile = SeccompProfile::from_otherwise(otherwise)
                .when("bpf", &[], SeccompAction::Errno(13))
                .expect("known");
            let allowed = answer(&profile, number("read"));
            assert!(allowed >= 0x7ffc_0000, "{allowed:#x}");
            assert_eq!(answer(&profile, number("bpf")), 0x0005_000d);
            // A call that is newer than the table is no x32 call.
            assert_eq!(answer(&profile, 4_000), allowed);
            assert_eq!(answer(&profile, X32.0 | number("bpf")), RETURN_ENOSYS);
        }
    }

    #[test]
    fn new_calls_fail_with_enosys() {
        let profile = SeccompProfile::only(["read"]).expect("known");
        assert_eq!(answer(&profile, number("read")), RETURN_ALLOW);
        for (number, answered) in [
            (number("bpf"), 0x0005_0001),
            (number("openat"), 0x0005_0001),
            (4_000, RETURN_ENOSYS),
            (X32.0 | number("read"), RETURN_ENOSYS),
        ] {
            assert_eq!(answer(&profile, number), answered, "{number}");
        }
        let deadly = profile.otherwise(SeccompAction::Kill);
        assert_eq!(answer(&deadly, 4_000), 0x8000_0000);
    }
}
