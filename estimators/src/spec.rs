//! Parses an operator's text into an estimator or a controller.
//!
//! The text is `slack`, `max(slack,threshold)`, a module name of Mesos or Blue Yonder, or the address of a process that
//! serves one. Invariant: a built module has read all its parameters, and has recognized every one.

use std::fmt;

use crate::config::{ConfigError, ModuleParameters, Parameters, Suggestion};
use crate::estimator::{
    Fixed, MEMBERS_MAX, Max, NSigma, NSigmaConfig, Noop, ResourceEstimator, Slack, SlackConfig,
    Threshold, ThresholdConfig,
};
use crate::qos::{
    LoadConfig, LoadController, NoopController, PressureConfig, PressureController, QosController,
};

/// The maximum nesting of `max(...)`: deeper nesting is a mistake.
const DEPTH_MAX: usize = 4;
const REMOTE_PREFIXES: [&str; 3] = ["unix://", "http://", "https://"];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BuiltinEstimator {
    Noop,
    Fixed,
    Threshold,
    Slack,
    NSigma,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BuiltinController {
    Noop,
    Load,
    Pressure,
}

/// The names of each estimator, the shortest first.
const ESTIMATORS: [(&str, BuiltinEstimator); 7] = [
    (Noop::NAME, BuiltinEstimator::Noop),
    (Fixed::NAME, BuiltinEstimator::Fixed),
    (Threshold::NAME, BuiltinEstimator::Threshold),
    (Slack::NAME, BuiltinEstimator::Slack),
    (NSigma::NAME, BuiltinEstimator::NSigma),
    (
        "org_apache_mesos_FixedResourceEstimator",
        BuiltinEstimator::Fixed,
    ),
    (
        "com_blue_yonder_ThresholdResourceEstimator",
        BuiltinEstimator::Threshold,
    ),
];

const CONTROLLERS: [(&str, BuiltinController); 4] = [
    (NoopController::NAME, BuiltinController::Noop),
    (LoadController::NAME, BuiltinController::Load),
    (PressureController::NAME, BuiltinController::Pressure),
    (
        "org_apache_mesos_LoadQoSController",
        BuiltinController::Load,
    ),
];

/// The parsed value of `--resource_estimator`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EstimatorSpec {
    Builtin(BuiltinEstimator),
    /// The most cautious of several estimators.
    Max(Vec<Self>),
    /// An estimator in another process, at this address.
    Remote(String),
}

/// The parsed value of `--qos_controller`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerSpec {
    Builtin(BuiltinController),
    /// A controller in another process, at this address.
    Remote(String),
}

fn is_remote(text: &str) -> bool {
    REMOTE_PREFIXES
        .iter()
        .any(|prefix| text.starts_with(prefix))
}

fn lookup<K: Copy>(
    what: &'static str,
    name: &str,
    known: &[(&'static str, K)],
) -> Result<K, ConfigError> {
    if let Some((_, kind)) = known.iter().find(|(known, _)| *known == name) {
        return Ok(*kind);
    }
    let names = known.iter().map(|(name, _)| *name);
    let list: Vec<&str> = names.clone().collect();
    Err(ConfigError::UnknownName {
        what,
        name: name.to_owned(),
        suggestion: Suggestion::for_name(name, names),
        help: format!(
            "built in are {}; libraries cannot be loaded: serve your own module over gRPC and \
             give its address, unix:///path.sock or http://host:port",
            list.join(", ")
        ),
    })
}

/// The parameters under any of a module's names.
fn parameters_of<'a, K: Copy + PartialEq>(
    kind: K,
    known: &[(&'static str, K)],
    modules: &'a ModuleParameters,
    none: &'a Parameters,
) -> Result<&'a Parameters, ConfigError> {
    let mut found: Option<(&str, &Parameters)> = None;
    for (name, _) in known.iter().filter(|(_, candidate)| *candidate == kind) {
        match (modules.get(*name), found) {
            (Some(_), Some((first, _))) => {
                let (first, second) = (first.to_owned(), (*name).to_owned());
                return Err(ConfigError::Ambiguous { first, second });
            }
            (Some(parameters), None) => found = Some((name, parameters)),
            (None, _) => {}
        }
    }
    Ok(found.map_or(none, |(_, parameters)| parameters))
}

impl EstimatorSpec {
    /// # Errors
    /// When a name is unknown, or the text is not an expression.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_within(text, text, DEPTH_MAX)
    }

    fn parse_within(whole: &str, text: &str, depth: usize) -> Result<Self, ConfigError> {
        let text = text.trim();
        let wrong = |why: &str| ConfigError::Spec {
            spec: whole.to_owned(),
            why: why.to_owned(),
        };
        if is_remote(text) {
            return Ok(Self::Remote(text.to_owned()));
        }
        let Some((name, arguments)) = text.split_once('(') else {
            return match text {
                "" => Err(wrong("a name is missing")),
                "max" => Err(wrong("max needs members, as in max(slack,threshold)")),
                name => Ok(Self::Builtin(lookup(
                    "resource estimator",
                    name,
                    &ESTIMATORS,
                )?)),
            };
        };
        if name.trim() != Max::NAME {
            return Err(wrong("only max takes estimators in parentheses"));
        }
        if depth == 0 {
            return Err(wrong("parentheses are nested too deeply"));
        }
        let inner = arguments
            .strip_suffix(')')
            .ok_or_else(|| wrong("a ) is missing at the end"))?;
        let parts = split_arguments(inner).ok_or_else(|| wrong("parentheses do not match"))?;
        if parts.len() > MEMBERS_MAX {
            return Err(wrong("max has too many members"));
        }
        let members = parts
            .into_iter()
            .map(|part| Self::parse_within(whole, part, depth - 1));
        Ok(Self::Max(members.collect::<Result<_, _>>()?))
    }

    /// Builds a module that runs in this process.
    ///
    /// # Errors
    /// When a parameter is wrong, or a part of the module is served by another process.
    pub fn build(
        &self,
        modules: &ModuleParameters,
    ) -> Result<Box<dyn ResourceEstimator>, ConfigError> {
        let none = Parameters::default();
        let kind = match self {
            Self::Builtin(kind) => *kind,
            Self::Remote(address) => return Err(ConfigError::Remote(address.clone())),
            Self::Max(members) => {
                let members = members.iter().map(|member| member.build(modules));
                return Ok(Box::new(Max::new(members.collect::<Result<_, _>>()?)));
            }
        };
        let parameters = parameters_of(kind, &ESTIMATORS, modules, &none)?;
        Ok(match kind {
            BuiltinEstimator::Noop => Box::new(Noop::new(parameters)?),
            BuiltinEstimator::Fixed => Box::new(Fixed::new(parameters)?),
            BuiltinEstimator::Threshold => {
                Box::new(Threshold::new(ThresholdConfig::read(parameters)?))
            }
            BuiltinEstimator::Slack => Box::new(Slack::new(SlackConfig::read(parameters)?)),
            BuiltinEstimator::NSigma => Box::new(NSigma::new(NSigmaConfig::read(parameters)?)),
        })
    }
}

/// Splits at the commas outside parentheses; `None` for unbalanced parentheses.
fn split_arguments(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(text.get(start..index)?);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..)?);
    (depth == 0).then_some(parts)
}

impl ControllerSpec {
    /// # Errors
    /// When the name is unknown.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let text = text.trim();
        if is_remote(text) {
            return Ok(Self::Remote(text.to_owned()));
        }
        Ok(Self::Builtin(lookup("QoS controller", text, &CONTROLLERS)?))
    }

    /// Builds a controller that runs in this process.
    ///
    /// # Errors
    /// When a parameter is wrong, or the controller is served by another process.
    pub fn build(&self, modules: &ModuleParameters) -> Result<Box<dyn QosController>, ConfigError> {
        let none = Parameters::default();
        let kind = match self {
            Self::Builtin(kind) => *kind,
            Self::Remote(address) => return Err(ConfigError::Remote(address.clone())),
        };
        let parameters = parameters_of(kind, &CONTROLLERS, modules, &none)?;
        Ok(match kind {
            BuiltinController::Noop => Box::new(NoopController::new(parameters)?),
            BuiltinController::Load => Box::new(LoadController::new(LoadConfig::read(parameters)?)),
            BuiltinController::Pressure => {
                Box::new(PressureController::new(PressureConfig::read(parameters)?))
            }
        })
    }
}

/// The names of all built-in modules.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    let estimators = ESTIMATORS.iter().map(|(name, _)| *name);
    estimators.chain(CONTROLLERS.iter().map(|(name, _)| *name))
}

/// Whether a module of this name is built in, so that `--modules` may give parameters for it.
#[must_use]
pub fn is_builtin(module: &str) -> bool {
    ESTIMATORS.iter().any(|(name, _)| *name == module)
        || CONTROLLERS.iter().any(|(name, _)| *name == module)
}

impl fmt::Display for EstimatorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(address) => f.write_str(address),
            Self::Builtin(kind) => {
                let name = ESTIMATORS.iter().find(|(_, known)| known == kind);
                f.write_str(name.map_or("", |(name, _)| name))
            }
            Self::Max(members) => {
                write!(f, "{}(", Max::NAME)?;
                for (index, member) in members.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{member}")?;
                }
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gate, UsageSample};

    fn modules(module: &str, pairs: &[(&str, &str)]) -> ModuleParameters {
        [(module.to_owned(), pairs.iter().copied().collect())]
            .into_iter()
            .collect()
    }

    #[test]
    fn specs_are_read_and_printed_alike() {
        for text in [
            "noop",
            "slack",
            "max(slack,threshold)",
            "max(slack,max(nsigma,fixed))",
        ] {
            assert_eq!(EstimatorSpec::parse(text).unwrap().to_string(), text);
        }
        let spaced = EstimatorSpec::parse(" max( slack , threshold ) ").unwrap();
        assert_eq!(spaced.to_string(), "max(slack,threshold)");
        let remote = EstimatorSpec::parse("unix:///run/estimator.sock").unwrap();
        assert_eq!(
            remote,
            EstimatorSpec::Remote("unix:///run/estimator.sock".into())
        );
        assert!(matches!(
            remote.build(&ModuleParameters::new()),
            Err(ConfigError::Remote(_))
        ));
        let remote = ControllerSpec::parse("http://127.0.0.1:9000").unwrap();
        assert_eq!(
            remote,
            ControllerSpec::Remote("http://127.0.0.1:9000".into())
        );
    }

    #[test]
    fn malformed_spec_is_refused() {
        for text in [
            "",
            "max",
            "max(",
            "max()",
            "max(slack",
            "max(slack,)",
            "max(slack))",
            "min(slack)",
            "slack()",
            "max(slack),noop",
            "max(max(max(max(max(slack)))))",
            "max(noop,noop,noop,noop,noop,noop,noop,noop,noop)",
        ] {
            EstimatorSpec::parse(text).unwrap_err();
        }
    }

    #[test]
    fn unknown_name_error_suggests_a_fix() {
        let error = EstimatorSpec::parse("slak").unwrap_err().to_string();
        assert!(error.starts_with("unknown resource estimator \"slak\", did you mean \"slack\"?"));
        assert!(error.contains("unix:///path.sock"), "{error}");
        let error = ControllerSpec::parse("com_intel_Serenity")
            .unwrap_err()
            .to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    /// The command lines of the oversubscription document.
    #[test]
    fn mesos_module_names_select_builtin_modules() {
        let name = "org_apache_mesos_FixedResourceEstimator";
        let modules = modules(name, &[("resources", "cpus:14")]);
        let mut fixed = EstimatorSpec::parse(name).unwrap().build(&modules).unwrap();
        let answer = fixed.estimate(&UsageSample::default(), Gate::Open);
        assert_eq!(
            answer.oversubscribable.unwrap().cpus().unwrap().to_f64(),
            14.0
        );
        // The parameters are under one name of the module, and the spec uses the other.
        assert_eq!(
            EstimatorSpec::parse("fixed")
                .unwrap()
                .build(&modules)
                .unwrap()
                .name(),
            "fixed"
        );

        let name = "org_apache_mesos_LoadQoSController";
        let pairs = [("load_threshold_5min", "6"), ("load_threshold_15min", "4")];
        let modules = super::tests::modules(name, &pairs);
        let load = ControllerSpec::parse(name)
            .unwrap()
            .build(&modules)
            .unwrap();
        assert_eq!(load.name(), "load");
        assert!(is_builtin(name) && !is_builtin("com_example_Foo"));
    }

    #[test]
    fn max_members_take_their_own_parameters() {
        let mut all = modules("threshold", &[("resources", "cpus:2")]);
        all.extend(modules("slack", &[("mem", "true")]));
        let spec = EstimatorSpec::parse("max(slack,threshold)").unwrap();
        assert_eq!(spec.build(&all).unwrap().name(), "max");
        all.extend(modules("slack", &[("resources", "cpus:2")]));
        assert!(matches!(
            spec.build(&all),
            Err(ConfigError::UnknownKey { .. })
        ));
    }

    #[test]
    fn one_module_under_two_names_refused() {
        let mut all = modules("fixed", &[("resources", "cpus:2")]);
        let other = "org_apache_mesos_FixedResourceEstimator";
        all.extend(modules(other, &[("resources", "cpus:3")]));
        let error = EstimatorSpec::parse("fixed")
            .unwrap()
            .build(&all)
            .unwrap_err();
        assert!(matches!(error, ConfigError::Ambiguous { .. }), "{error}");
    }

    #[test]
    fn mesos_needs_its_parameters_too() {
        let none = ModuleParameters::new();
        assert!(EstimatorSpec::parse("fixed").unwrap().build(&none).is_err());
        assert!(ControllerSpec::parse("load").unwrap().build(&none).is_err());
        assert!(
            ControllerSpec::parse("pressure")
                .unwrap()
                .build(&none)
                .is_ok()
        );
    }

    /// The reference page names every parameter of every module, and every module.
    #[test]
    fn the_page_is_complete() {
        let page = include_str!("../../docs/estimators.md");
        let bogus: Parameters = [("?", "")].into_iter().collect();
        let names = ESTIMATORS.iter().map(|(name, _)| *name);
        for name in names.chain(CONTROLLERS.iter().map(|(name, _)| *name)) {
            assert!(page.contains(&format!("`{name}`")), "{name}");
            let modules: ModuleParameters =
                [(name.to_owned(), bogus.clone())].into_iter().collect();
            let errors = [
                EstimatorSpec::parse(name).and_then(|spec| spec.build(&modules).map(drop)),
                ControllerSpec::parse(name).and_then(|spec| spec.build(&modules).map(drop)),
            ];
            let known = errors.into_iter().filter_map(|error| match error {
                Err(ConfigError::UnknownKey { known, .. }) => Some(known),
                _ => None,
            });
            for key in
                known.flat_map(|known| known.split(", ").map(str::to_owned).collect::<Vec<_>>())
            {
                assert!(
                    key == "none" || page.contains(&format!("`{key}`")),
                    "{name}: {key}"
                );
            }
        }
    }
}
