//! System call profiles in the container engines' JSON format.
//!
//! Supported: the default action, rules with names (or one name), actions, conditions on arguments, and the usual
//! restrictions (`includes`, `excludes`) to architectures, kernel versions and capabilities of the container. A system
//! call unknown to this architecture is skipped in a rule that allows it, and refused in a rule that forbids it.

use meseta_isolators::{
    CapabilityCondition, CapabilitySet, SeccompAction, SeccompArgument, SeccompComparison,
    SeccompProfile,
};
use meseta_proto::Invalid;
use serde::Deserialize;

/// The errno of a refusal without its own.
const EPERM: u16 = 1;
/// The most rules of one profile.
const RULES_MAX: usize = 4096;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    default_errno_ret: Option<u16>,
    #[serde(default)]
    syscalls: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    names: Vec<String>,
    name: Option<String>,
    action: String,
    errno_ret: Option<u16>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    #[serde(default)]
    includes: Condition,
    #[serde(default)]
    excludes: Condition,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(default)]
    arches: Vec<String>,
    #[serde(default)]
    caps: Vec<String>,
    /// The oldest kernel for which the condition holds.
    min_kernel: Option<String>,
}

/// Major and minor number of a kernel.
type KernelVersion = (u32, u32);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    #[serde(default)]
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Reads a profile, or fails with the reason why it is unusable.
pub(crate) fn parse(json: &[u8]) -> Result<SeccompProfile, Invalid> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let kernel = kernel_version(&release).ok_or_else(|| format!("unknown kernel {release:?}"))?;
    parse_for(json, kernel)
}

fn parse_for(json: &[u8], kernel: KernelVersion) -> Result<SeccompProfile, Invalid> {
    let profile: Profile = serde_json::from_slice(json).map_err(Invalid::from_error)?;
    let otherwise = action(&profile.default_action, profile.default_errno_ret)?;
    let mut result = SeccompProfile::from_otherwise(otherwise);
    let mut rules = 0;
    for entry in &profile.syscalls {
        if !applies(entry, kernel)? {
            continue;
        }
        let capable = CapabilityCondition {
            all_of: capabilities(&entry.includes)?,
            none_of: capabilities(&entry.excludes)?,
        };
        let action = action(&entry.action, entry.errno_ret)?;
        let arguments = entry.args.iter().flatten().map(argument);
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        for name in entry.names.iter().chain(&entry.name) {
            rules += 1;
            if rules > RULES_MAX {
                return Err(format!("it has more than {RULES_MAX} rules").into());
            }
            if action == otherwise {
                continue;
            }
            if meseta_isolators::isolator::syscall_number(name).is_none() {
                if action == SeccompAction::Allow {
                    continue;
                }
                return Err(format!("it forbids the unknown system call {name:?}").into());
            }
            let added = result.when_capable(capable, name, &arguments, action);
            result = added.map_err(|error| format!("{name}: {error}"))?;
        }
    }
    for set in [CapabilitySet::EMPTY, CapabilitySet::standard()] {
        let profile = result.for_capabilities(set).map_err(Invalid::from_error)?;
        profile.compile().map_err(Invalid::from_error)?;
    }
    Ok(result)
}

/// Reads the first two numbers of a version and ignores the rest.
fn kernel_version(text: &str) -> Option<KernelVersion> {
    let (major, rest) = text.split_once('.')?;
    let end = rest.find(|one: char| !one.is_ascii_digit());
    let minor = rest.get(..end.unwrap_or(rest.len()))?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn capabilities(condition: &Condition) -> Result<CapabilitySet, Invalid> {
    CapabilitySet::from_names(condition.caps.iter().map(String::as_str))
        .map_err(Invalid::from_error)
}

/// Returns whether the kernel is as new as a condition requires, or `None` if the condition names no kernel.
fn is_new_enough(condition: &Condition, kernel: KernelVersion) -> Result<Option<bool>, Invalid> {
    let Some(text) = &condition.min_kernel else {
        return Ok(None);
    };
    let least = kernel_version(text)
        .ok_or_else(|| format!("minKernel {text:?} is not a version; write for example 4.8"))?;
    Ok(Some(kernel >= least))
}

fn applies(entry: &Entry, kernel: KernelVersion) -> Result<bool, Invalid> {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let named = |arches: &[String]| {
        arches
            .iter()
            .any(|one| one == here || one == std::env::consts::ARCH)
    };
    let included = entry.includes.arches.is_empty() || named(&entry.includes.arches);
    let is_of_kernel = is_new_enough(&entry.includes, kernel)? != Some(false)
        && is_new_enough(&entry.excludes, kernel)? != Some(true);
    let is_of_machine = included && !named(&entry.excludes.arches);
    Ok(is_of_kernel && is_of_machine)
}

fn action(name: &str, errno: Option<u16>) -> Result<SeccompAction, Invalid> {
    match name {
        "SCMP_ACT_ALLOW" => Ok(SeccompAction::Allow),
        "SCMP_ACT_ERRNO" => Ok(SeccompAction::Errno(errno.unwrap_or(EPERM))),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" | "SCMP_ACT_KILL_PROCESS" => {
            Ok(SeccompAction::Kill)
        }
        "SCMP_ACT_LOG" => Ok(SeccompAction::Log),
        other => Err(format!(
            "the action {other:?} is unknown; known are SCMP_ACT_ALLOW, SCMP_ACT_ERRNO, \
             SCMP_ACT_KILL, SCMP_ACT_KILL_PROCESS and SCMP_ACT_LOG"
        )
        .into()),
    }
}

fn argument(one: &Argument) -> Result<SeccompArgument, Invalid> {
    let (comparison, value) = match one.op.as_str() {
        "SCMP_CMP_EQ" => (SeccompComparison::Equal, one.value),
        "SCMP_CMP_NE" => (SeccompComparison::NotEqual, one.value),
        "SCMP_CMP_LT" => (SeccompComparison::Less, one.value),
        "SCMP_CMP_LE" => (SeccompComparison::LessOrEqual, one.value),
        "SCMP_CMP_GT" => (SeccompComparison::Greater, one.value),
        "SCMP_CMP_GE" => (SeccompComparison::GreaterOrEqual, one.value),
        // The first value is the mask, the second the expected result.
        "SCMP_CMP_MASKED_EQ" => (SeccompComparison::Masked(one.value), one.value_two),
        other => return Err(format!("the comparison {other:?} is unknown").into()),
    };
    Ok(SeccompArgument {
        index: one.index,
        comparison,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_profiles_are_read() {
        let profile = parse(
            br#"{"defaultAction": "SCMP_ACT_ERRNO", "archMap": [{"architecture": "SCMP_ARCH_X86_64"}],
                "syscalls": [
                  {"names": ["read", "write", "execve", "not_a_call"], "action": "SCMP_ACT_ALLOW", "args": []},
                  {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
                   "args": [{"index": 0, "value": 8, "valueTwo": 0, "op": "SCMP_CMP_EQ"}]},
                  {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
                   "args": [{"index": 0, "value": 2114060288, "op": "SCMP_CMP_MASKED_EQ"}]},
                  {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
                  {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
                  {"names": ["openat"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390x"]}}]}"#,
        )
        .expect("sound");
        for (name, allowed) in [
            ("read", true),
            ("personality", true),
            ("clone", true),
            ("clone3", false),
            ("bpf", false),
            ("openat", false),
        ] {
            assert_eq!(profile.allows(name), allowed, "{name}");
        }
        let but_one = parse(
            br#"{"defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{"name": "uname", "action": "SCMP_ACT_ERRNO"}]}"#,
        )
        .expect("sound");
        assert!(but_one.allows("read") && !but_one.allows("uname"));
    }

    #[test]
    fn rules_depend_on_capabilities() {
        let profile = parse(
            br#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                {"names": ["bpf"], "action": "SCMP_ACT_ERRNO",
                 "excludes": {"caps": ["CAP_SYS_ADMIN", "CAP_BPF"]}},
                {"names": ["chroot"], "action": "SCMP_ACT_ERRNO",
                 "includes": {"caps": ["CAP_SYS_CHROOT", "CAP_SYS_ADMIN"]}}]}"#,
        )
        .expect("sound");
        for (names, bpf, chroot) in [
            (&[][..], false, true),
            (&["SYS_CHROOT"], false, true),
            (&["BPF"], true, true),
            (&["SYS_CHROOT", "SYS_ADMIN"], true, false),
        ] {
            let set = CapabilitySet::from_names(names.iter().copied()).expect("known");
            let profile = profile.for_capabilities(set).expect("sound");
            let allowed = (profile.allows("bpf"), profile.allows("chroot"));
            assert_eq!(allowed, (bpf, chroot), "{names:?}");
        }
    }

    #[test]
    fn rules_depend_on_the_kernel_version() {
        let json = br#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
            {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "excludes": {"minKernel": "5.10"}}]}"#;
        for (kernel, ptrace, chroot) in [
            ((4, 7), false, true),
            ((4, 8), true, true),
            ((5, 10), true, false),
            ((6, 1), true, false),
        ] {
            let profile = parse_for(json, kernel).expect("sound");
            let allowed = (profile.allows("ptrace"), profile.allows("chroot"));
            assert_eq!(allowed, (ptrace, chroot), "{kernel:?}");
        }
        for (text, version) in [
            ("6.18.5-generic", Some((6, 18))),
            ("4.19", Some((4, 19))),
            ("5", None),
            ("five.1", None),
        ] {
            assert_eq!(kernel_version(text), version, "{text}");
        }
    }

    #[test]
    fn unusable_profile_names_the_reason() {
        for (json, complaint) in [
            ("{", "EOF"),
            ("{}", "defaultAction"),
            (r#"{"defaultAction": "ALLOW"}"#, "unknown"),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [{"names": ["reboots"], "action": "SCMP_ACT_ERRNO"}]}"#,
                "unknown system call \"reboots\"",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ERRNO",
                    "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW",
                                  "includes": {"minKernel": "new"}}]}"#,
                "minKernel \"new\"",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [{"names": ["bpf"], "action": "SCMP_ACT_ERRNO",
                                  "includes": {"caps": ["CAP_ADMIN"]}}]}"#,
                "CAP_ADMIN",
            ),
            (
                r#"{"defaultAction": "SCMP_ACT_ERRNO",
                    "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW",
                                  "args": [{"index": 9, "op": "SCMP_CMP_EQ"}]}]}"#,
                "no argument 9",
            ),
        ] {
            let error = parse(json.as_bytes()).expect_err(json);
            assert!(error.to_string().contains(complaint), "{json}: {error}");
        }
    }
}
