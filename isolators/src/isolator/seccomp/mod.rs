//! linux/seccomp: the system calls that a container may make.
//!
//! An allow-list, at least as strict as that of container engines. A call outside the list fails with EPERM, a call that is
//! newer than the table of known calls with ENOSYS. The agent compiles a profile before it clones anything; the task only
//! installs it. Calls of another architecture's table (32-bit programs) end the process. A filter needs no_new_privs, which
//! this isolator therefore sets too.

mod table;
mod unknown;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction as Action, SeccompCmpArgLen as Length, SeccompCmpOp as Operator,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule, TargetArch,
};

use super::{CapabilitySet, ContainerSpec, Isolator, NodeOptions};
use crate::launcher::{LaunchIsolation, SeccompProgram, pack_filter};

/// Every `CLONE_NEW*` flag of clone: a namespace of its own, a user namespace above all, would give a task rights that the
/// kernel has failed to confine there.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// Socket families that are refused: packets, kernel cryptography, the hypervisor.
const FAMILIES_REFUSED: [u64; 3] = [17, 38, 40];

/// Terminal calls that type into another program's input.
const TERMINAL_CALLS_REFUSED: [u64; 2] = [0x5412, 0x541c];

/// Execution domains that are plain Linux, with or without a 32-bit layout; the last value queries the present one.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Calls without which a capability would be useless.
const WITH_CAPABILITY: [(&str, &[&str]); 7] = [
    ("SYS_CHROOT", &["chroot"]),
    (
        "SYS_PTRACE",
        &[
            "kcmp",
            "pidfd_getfd",
            "process_madvise",
            "process_vm_readv",
            "process_vm_writev",
        ],
    ),
    ("SYS_NICE", &["get_mempolicy", "mbind", "set_mempolicy"]),
    ("SYS_TIME", &["clock_settime", "settimeofday"]),
    ("SYSLOG", &["syslog"]),
    ("PERFMON", &["perf_event_open"]),
    (
        "DAC_READ_SEARCH",
        &["name_to_handle_at", "open_by_handle_at"],
    ),
];

fn usual() -> impl Iterator<Item = &'static (&'static str, libc::c_long)> {
    let named = table::USUAL.iter().chain(table::USUAL_OLD);
    named.chain(table::USUAL_UNNAMED)
}

/// The number of a system call on this architecture.
pub fn syscall_number(name: &str) -> Option<i64> {
    usual()
        .chain(table::REFUSED)
        .chain(table::REFUSED_OLD)
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
}

/// The reaction to a system call that is not allowed.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum SeccompAction {
    Allow,
    Errno(u16),
    /// The process ends by SIGSYS.
    Kill,
    /// Allows the call and writes it to the kernel's log: for finding out the needs of a program.
    Log,
}

/// Errors of building a profile.
#[derive(Clone, Debug, thiserror::Error, Eq, PartialEq)]
pub enum SeccompError {
    #[error("unknown system call {0:?}")]
    Unknown(String),
    #[error("failed to compile the system call filter: {0}")]
    Compile(String),
}

/// The allowed system calls.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeccompProfile {
    /// The allowed calls by number, with their permitted arguments.
    allowed: BTreeMap<i64, Arguments>,
    /// Calls with an action of their own, stricter than that of allowed calls.
    exceptions: Vec<(i64, Arguments, SeccompAction)>,
    /// Rules that apply to containers with certain capabilities only.
    conditional: Vec<ConditionalRule>,
    otherwise: SeccompAction,
}

/// A rule of [`SeccompProfile::when_capable`].
#[derive(Clone, Debug, Eq, PartialEq)]
struct ConditionalRule {
    condition: CapabilityCondition,
    name: String,
    conditions: Vec<SeccompArgument>,
    action: SeccompAction,
}

/// The effective capabilities for which a rule applies.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct CapabilityCondition {
    /// The container must have all of these.
    pub all_of: CapabilitySet,
    /// The container must have none of these.
    pub none_of: CapabilitySet,
}

impl CapabilityCondition {
    fn holds(self, effective: CapabilitySet) -> bool {
        self.all_of.is_within(effective)
            && effective.without(self.none_of).bits() == effective.bits()
    }
}

/// A comparison of one argument of a system call, for rules of [`SeccompProfile::when`].
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SeccompArgument {
    /// The position of the argument, from 0 to 5.
    pub index: u8,
    pub comparison: SeccompComparison,
    pub value: u64,
}

/// The operator of a comparison.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum SeccompComparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// The argument is equal in the bits of this mask.
    Masked(u64),
}

/// The permitted arguments of an allowed call.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Arguments {
    Any,
    /// The arguments must meet at least one of these lists of conditions; all conditions of a list must hold.
    When(Vec<Vec<SeccompArgument>>),
    NoNamespaces,
    UsualFamilies,
    NoTerminalInput,
    UsualPersonalities,
}

impl SeccompProfile {
    /// The calls that programs need, and those that these capabilities make useful.
    pub fn standard(capabilities: CapabilitySet) -> Self {
        let mut allowed: BTreeMap<i64, Arguments> = usual()
            .map(|(name, number)| (*number, arguments_of(name)))
            .collect();
        for (capability, names) in WITH_CAPABILITY {
            if capabilities.has(capability) {
                let numbers = names.iter().filter_map(|name| syscall_number(name));
                allowed.extend(numbers.map(|number| (number, Arguments::Any)));
            }
        }
        Self {
            allowed,
            exceptions: Vec::new(),
            conditional: Vec::new(),
            otherwise: SeccompAction::Errno(EPERM),
        }
    }

    /// A profile of only these calls, with any arguments. `execve` and `write` must be among them, since the launch itself still
    /// needs both.
    pub fn only<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, SeccompError> {
        let empty = Self::from_otherwise(SeccompAction::Errno(EPERM));
        names.into_iter().try_fold(empty, Self::allow)
    }

    /// A profile with this action for every call.
    pub fn from_otherwise(otherwise: SeccompAction) -> Self {
        Self {
            allowed: BTreeMap::new(),
            exceptions: Vec::new(),
            conditional: Vec::new(),
            otherwise,
        }
    }

    /// Adds a rule for a call whose arguments must all meet the conditions; without conditions any arguments match. Several rules
    /// for one call are independent. The strictest matching rule applies, except that an allowed call needs to match only one of
    /// its rules.
    pub fn when(
        mut self,
        name: &str,
        conditions: &[SeccompArgument],
        action: SeccompAction,
    ) -> Result<Self, SeccompError> {
        let number = number_of(name)?;
        if let Some(bad) = conditions.iter().find(|one| one.index > 5) {
            return Err(SeccompError::Compile(format!(
                "system calls have no argument {}",
                bad.index
            )));
        }
        let arguments = if conditions.is_empty() {
            Arguments::Any
        } else {
            Arguments::When(vec![conditions.to_vec()])
        };
        // The list lets an exception through to the filter with its rule.
        if action == SeccompAction::Allow || self.otherwise != SeccompAction::Allow {
            let both = match (self.allowed.remove(&number), arguments.clone()) {
                (Some(Arguments::When(mut one)), Arguments::When(other)) => {
                    one.extend(other);
                    Arguments::When(one)
                }
                (None, other) => other,
                _ => Arguments::Any,
            };
            self.allowed.insert(number, both);
        }
        if action != SeccompAction::Allow {
            self.exceptions.push((number, arguments, action));
        }
        Ok(self)
    }

    /// Adds a rule as [`Self::when`] does, for containers whose capabilities meet the condition.
    pub fn when_capable(
        mut self,
        condition: CapabilityCondition,
        name: &str,
        conditions: &[SeccompArgument],
        action: SeccompAction,
    ) -> Result<Self, SeccompError> {
        if condition == CapabilityCondition::default() {
            return self.when(name, conditions, action);
        }
        self.conditional.push(ConditionalRule {
            condition,
            name: name.to_owned(),
            conditions: conditions.to_vec(),
            action,
        });
        Ok(self)
    }

    /// The profile of a container with these capabilities: it has no conditional rules.
    pub fn for_capabilities(&self, effective: CapabilitySet) -> Result<Self, SeccompError> {
        let rules = self.conditional.iter();
        let mut rules = rules.filter(|rule| rule.condition.holds(effective));
        let unconditional = Self {
            conditional: Vec::new(),
            ..self.clone()
        };
        rules.try_fold(unconditional, |profile, rule| {
            profile.when(&rule.name, &rule.conditions, rule.action)
        })
    }

    /// Allows a call with any arguments.
    pub fn allow(mut self, name: &str) -> Result<Self, SeccompError> {
        self.allowed.insert(number_of(name)?, Arguments::Any);
        Ok(self)
    }

    /// Removes this system call from the profile.
    pub fn refuse(mut self, name: &str) -> Result<Self, SeccompError> {
        self.allowed.remove(&number_of(name)?);
        Ok(self)
    }

    /// Replaces the action for calls that are not allowed.
    pub fn otherwise(self, otherwise: SeccompAction) -> Self {
        Self { otherwise, ..self }
    }

    /// Whether a call is allowed, at least with some arguments.
    pub fn allows(&self, name: &str) -> bool {
        let refused = |number: i64| {
            let mut exceptions = self.exceptions.iter();
            exceptions.any(|(one, arguments, _)| *one == number && *arguments == Arguments::Any)
        };
        syscall_number(name).is_some_and(|number| {
            let listed =
                self.otherwise == SeccompAction::Allow || self.allowed.contains_key(&number);
            listed && !refused(number)
        })
    }

    /// The filters, in the order of their installation. Conditional rules have no part in them; see
    /// [`Self::for_capabilities`].
    pub fn compile(&self) -> Result<Vec<SeccompProgram>, SeccompError> {
        let programs = self.assemble()?;
        Ok(programs.iter().map(|one| pack_filter(one)).collect())
    }

    fn assemble(&self) -> Result<Vec<BpfProgram>, SeccompError> {
        let mut programs = Vec::new();
        let head = self.head();
        if self.otherwise != SeccompAction::Allow {
            let mut rules = BTreeMap::new();
            for (number, arguments) in &self.allowed {
                rules.insert(*number, arguments.rules()?);
            }
            let otherwise = self.otherwise.action();
            programs.push(program(&head, rules, otherwise, Action::Allow)?);
        }
        for (action, rules) in self.exceptions_by_action()? {
            programs.push(program(&head, rules, Action::Allow, action.action())?);
        }
        // The flags of clone3 are behind a pointer, where no filter can read them. Libraries take ENOSYS as "use clone", whose
        // flags a filter can check; so ENOSYS comes before the list would allow the call.
        let clone3 = syscall_number("clone3").filter(|number| {
            self.allowed.contains_key(number)
                && syscall_number("clone").and_then(|clone| self.allowed.get(&clone))
                    == Some(&Arguments::NoNamespaces)
        });
        if let Some(clone3) = clone3 {
            let rules = BTreeMap::from([(clone3, Vec::new())]);
            programs.push(program(&[], rules, Action::Allow, Action::Errno(ENOSYS))?);
        }
        Ok(programs)
    }

    /// The instructions before the rules of each filter: they answer ENOSYS to numbers that no rule can name.
    ///
    /// If unlisted calls fail, these are all numbers outside the table. If unlisted calls are allowed, these are the
    /// numbers of the x32 interface, under which the kernel would carry out a forbidden call. A profile that kills for
    /// an unlisted call kills for an unknown call too.
    fn head(&self) -> Vec<seccompiler::sock_filter> {
        match self.otherwise {
            SeccompAction::Kill => Vec::new(),
            SeccompAction::Allow | SeccompAction::Log => unknown::reject(&[unknown::X32]),
            SeccompAction::Errno(_) => {
                let all = usual().chain(table::REFUSED).chain(table::REFUSED_OLD);
                let numbers = all.filter_map(|(_, number)| u32::try_from(*number).ok());
                unknown::reject(&unknown::gaps(numbers))
            }
        }
    }

    /// Builds one filter per action, since a filter has only one action besides "allow".
    fn exceptions_by_action(&self) -> Result<Vec<(SeccompAction, Rules)>, SeccompError> {
        let mut filters: Vec<(SeccompAction, Rules)> = Vec::new();
        for (number, arguments, action) in &self.exceptions {
            let at = filters.iter().position(|(one, _)| one == action);
            let at = at.unwrap_or_else(|| {
                filters.push((*action, Rules::new()));
                filters.len() - 1
            });
            let rules = arguments.rules()?;
            let whole = &mut filters[at].1;
            match whole.get_mut(number) {
                // Without a rule the call has no condition, which no further rule can widen.
                Some(known) if rules.is_empty() => known.clear(),
                Some(known) if known.is_empty() => {}
                Some(known) => known.extend(rules),
                None => {
                    whole.insert(*number, rules);
                }
            }
        }
        Ok(filters)
    }
}

/// The calls of a filter and their matching arguments; an empty list matches any arguments.
type Rules = BTreeMap<i64, Vec<Rule>>;

impl SeccompAction {
    fn action(self) -> Action {
        match self {
            Self::Allow => Action::Allow,
            Self::Errno(errno) => Action::Errno(u32::from(errno)),
            Self::Kill => Action::KillProcess,
            Self::Log => Action::Log,
        }
    }
}

impl SeccompArgument {
    fn condition(self) -> Result<Condition, SeccompError> {
        let operator = match self.comparison {
            SeccompComparison::Equal => Operator::Eq,
            SeccompComparison::NotEqual => Operator::Ne,
            SeccompComparison::Less => Operator::Lt,
            SeccompComparison::LessOrEqual => Operator::Le,
            SeccompComparison::Greater => Operator::Gt,
            SeccompComparison::GreaterOrEqual => Operator::Ge,
            SeccompComparison::Masked(mask) => Operator::MaskedEq(mask),
        };
        Condition::new(self.index, Length::Qword, operator, self.value).map_err(failed)
    }
}

/// The kernel's limit on the length of a filter (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;

const EPERM: u16 = 1;
const ENOSYS: u32 = 38;

fn number_of(name: &str) -> Result<i64, SeccompError> {
    syscall_number(name).ok_or_else(|| SeccompError::Unknown(name.to_owned()))
}

fn arguments_of(name: &str) -> Arguments {
    match name {
        "clone" => Arguments::NoNamespaces,
        "socket" => Arguments::UsualFamilies,
        "ioctl" => Arguments::NoTerminalInput,
        "personality" => Arguments::UsualPersonalities,
        _ => Arguments::Any,
    }
}

impl Arguments {
    /// The rules of the call, each of which allows it; an empty list allows it without a condition.
    fn rules(&self) -> Result<Vec<Rule>, SeccompError> {
        let is = |argument, length, operator, value| {
            Condition::new(argument, length, operator, value).map_err(failed)
        };
        let none_of = |argument, values: &[u64]| {
            let conditions = values
                .iter()
                .map(|value| is(argument, Length::Dword, Operator::Ne, *value));
            let rule = Rule::new(conditions.collect::<Result<_, _>>()?);
            Ok(vec![rule.map_err(failed)?])
        };
        match self {
            Self::Any => Ok(Vec::new()),
            Self::When(ways) => ways
                .iter()
                .map(|way| {
                    let conditions = way.iter().map(|one| one.condition());
                    Rule::new(conditions.collect::<Result<_, _>>()?).map_err(failed)
                })
                .collect(),
            Self::NoNamespaces => {
                let mask = Operator::MaskedEq(CLONE_NAMESPACES);
                let condition = is(0, Length::Qword, mask, 0)?;
                Ok(vec![Rule::new(vec![condition]).map_err(failed)?])
            }
            Self::UsualFamilies => none_of(0, &FAMILIES_REFUSED),
            Self::NoTerminalInput => none_of(1, &TERMINAL_CALLS_REFUSED),
            Self::UsualPersonalities => PERSONALITIES
                .iter()
                .map(|value| {
                    let condition = is(0, Length::Dword, Operator::Eq, *value)?;
                    Rule::new(vec![condition]).map_err(failed)
                })
                .collect(),
        }
    }
}

fn program(
    head: &[seccompiler::sock_filter],
    rules: Rules,
    otherwise: Action,
    matched: Action,
) -> Result<BpfProgram, SeccompError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, architecture).map_err(failed)?;
    let rules: BpfProgram = filter.try_into().map_err(failed)?;
    let program = [head, &rules].concat();
    if program.len() > INSTRUCTIONS_MAX {
        return Err(failed("it has too many rules for the kernel"));
    }
    Ok(program)
}

fn failed(error: impl std::fmt::Display) -> SeccompError {
    SeccompError::Compile(error.to_string())
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum SeccompChoice {
    #[default]
    Node,
    /// No filter. The caller decides whether a task may request this.
    Unconfined,
    Profile(SeccompProfile),
}

#[derive(Debug)]
pub(super) struct Seccomp {
    /// The operator's profile for containers whose task has no profile.
    configured: Option<SeccompProfile>,
    /// Compiled filters of such containers, by the capabilities that most containers have.
    usual: Vec<(CapabilitySet, Compiled)>,
}

type Compiled = Result<Vec<SeccompProgram>, SeccompError>;

impl Seccomp {
    pub(super) fn new(node: &NodeOptions) -> Self {
        let configured = node.seccomp.clone();
        let sets = [CapabilitySet::EMPTY, node.capabilities];
        let usual = sets.map(|set| (set, compile(configured.as_ref(), set)));
        Self {
            usual: usual.into(),
            configured,
        }
    }

    fn programs(&self, choice: &SeccompChoice, effective: CapabilitySet) -> Compiled {
        match choice {
            SeccompChoice::Unconfined => Ok(Vec::new()),
            SeccompChoice::Profile(profile) => compile(Some(profile), effective),
            SeccompChoice::Node => {
                let mut usual = self.usual.iter();
                match usual.find(|(set, _)| set.bits() == effective.bits()) {
                    Some((_, compiled)) => compiled.clone(),
                    None => compile(self.configured.as_ref(), effective),
                }
            }
        }
    }
}

/// Compiles a profile, or the standard profile, for a container with these capabilities.
fn compile(profile: Option<&SeccompProfile>, effective: CapabilitySet) -> Compiled {
    match profile {
        Some(profile) => profile.for_capabilities(effective)?.compile(),
        None => SeccompProfile::standard(effective).compile(),
    }
}

impl Isolator for Seccomp {
    fn name(&self) -> &'static str {
        "linux/seccomp"
    }

    /// Runs after `linux/capabilities`, whose result it reads.
    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        let effective = launch.capabilities.map_or(CapabilitySet::EMPTY, |sets| {
            CapabilitySet::from_bits(sets.effective)
        });
        let programs = self.programs(&spec.isolation.seccomp, effective);
        launch.seccomp = programs.map_err(|error| error.to_string())?;
        launch.no_new_privs |= !launch.seccomp.is_empty();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_syscalls_are_not_allowed() {
        let profile = SeccompProfile::standard(CapabilitySet::standard());
        for (name, _) in table::REFUSED.iter().chain(table::REFUSED_OLD) {
            assert_eq!(profile.allows(name), *name == "chroot", "{name}");
        }
        for name in ["read", "execve", "clone", "futex", "socket", "openat"] {
            assert!(profile.allows(name), "{name}");
        }
        assert!(!SeccompProfile::standard(CapabilitySet::EMPTY).allows("chroot"));
    }

    #[test]
    fn usual_and_refused_syscalls_are_disjoint() {
        let usual: Vec<_> = usual().collect();
        let refused = table::REFUSED.iter().chain(table::REFUSED_OLD);
        for (name, number) in refused {
            assert!(!usual.iter().any(|(_, one)| one == number), "{name}");
        }
        for (capability, names) in WITH_CAPABILITY {
            assert!(
                CapabilitySet::from_names([capability]).is_ok(),
                "{capability}"
            );
            assert!(
                names.iter().all(|name| syscall_number(name).is_some()),
                "{names:?}"
            );
        }
    }

    #[test]
    fn profiles_are_built_from_names() {
        let profile = SeccompProfile::only(["read", "write", "execve"]).expect("known");
        assert!(profile.allows("read") && !profile.allows("openat"));
        let profile = profile.allow("openat").and_then(|one| one.refuse("read"));
        let profile = profile.expect("known");
        assert!(profile.allows("openat") && !profile.allows("read"));
        // Without clone there is no fallback, so one filter is enough.
        assert_eq!(profile.compile().map(|programs| programs.len()), Ok(1));
        assert_eq!(
            SeccompProfile::only(["reed"]),
            Err(SeccompError::Unknown("reed".to_owned()))
        );
    }

    #[test]
    fn syscalls_support_conditions_and_actions() {
        let equal = |index, value| SeccompArgument {
            index,
            comparison: SeccompComparison::Equal,
            value,
        };
        let but_uname = SeccompProfile::from_otherwise(SeccompAction::Allow)
            .when("uname", &[], SeccompAction::Errno(EPERM))
            .and_then(|one| one.when("personality", &[equal(0, 8)], SeccompAction::Errno(EPERM)))
            .and_then(|one| one.when("bpf", &[], SeccompAction::Kill))
            .expect("known");
        assert!(but_uname.allows("read") && !but_uname.allows("uname"));
        assert!(but_uname.allows("personality"));
        // One filter per action.
        assert_eq!(but_uname.compile().map(|programs| programs.len()), Ok(2));
        let listed = SeccompProfile::from_otherwise(SeccompAction::Errno(EPERM))
            .when("socket", &[equal(0, 1)], SeccompAction::Allow)
            .and_then(|one| one.when("socket", &[equal(0, 2)], SeccompAction::Allow))
            .and_then(|one| one.when("clone3", &[], SeccompAction::Errno(38)))
            .expect("known");
        assert!(listed.allows("socket") && !listed.allows("clone3") && !listed.allows("read"));
        assert_eq!(listed.compile().map(|programs| programs.len()), Ok(2));
        let beyond = listed.when("read", &[equal(6, 0)], SeccompAction::Allow);
        assert!(
            matches!(beyond, Err(SeccompError::Compile(_))),
            "{beyond:?}"
        );
    }

    #[test]
    fn rules_depend_on_capabilities() {
        let admin = CapabilitySet::from_names(["SYS_ADMIN"]).expect("known");
        let with = CapabilityCondition {
            all_of: admin,
            ..CapabilityCondition::default()
        };
        let without = CapabilityCondition {
            none_of: admin,
            ..CapabilityCondition::default()
        };
        let profile = SeccompProfile::from_otherwise(SeccompAction::Errno(EPERM))
            .when_capable(with, "bpf", &[], SeccompAction::Allow)
            .and_then(|one| one.when_capable(without, "ptrace", &[], SeccompAction::Allow))
            .expect("known");
        for (set, bpf, ptrace) in [(CapabilitySet::EMPTY, false, true), (admin, true, false)] {
            let profile = profile.for_capabilities(set).expect("known");
            let allowed = (profile.allows("bpf"), profile.allows("ptrace"));
            assert_eq!(allowed, (bpf, ptrace), "{set}");
        }
        let isolator = Seccomp::new(&NodeOptions {
            seccomp: Some(profile.clone()),
            ..NodeOptions::default()
        });
        for choice in [SeccompChoice::Node, SeccompChoice::Profile(profile.clone())] {
            let programs = |set| isolator.programs(&choice, set).expect("compiles");
            assert_ne!(programs(CapabilitySet::EMPTY), programs(admin));
        }
    }

    #[test]
    fn the_standard_profile_fits_the_kernel() {
        let programs = SeccompProfile::standard(CapabilitySet::EMPTY).compile();
        let programs = programs.expect("compiles");
        assert_eq!(programs.len(), 2);
        for program in programs {
            assert!((1..=4096).contains(&program.0.len()), "{}", program.0.len());
        }
    }

    #[test]
    fn task_profile_replaces_node_profile() {
        let isolator = Seccomp::new(&NodeOptions::default());
        let programs = |choice| isolator.programs(&choice, CapabilitySet::EMPTY);
        assert_eq!(programs(SeccompChoice::Unconfined), Ok(Vec::new()));
        let own = SeccompProfile::only(["execve", "write"]).expect("known");
        assert_eq!(programs(SeccompChoice::Profile(own.clone())), own.compile());
        let node = programs(SeccompChoice::Node);
        assert_eq!(
            node,
            SeccompProfile::standard(CapabilitySet::EMPTY).compile()
        );
    }
}
