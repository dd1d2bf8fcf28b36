//! Explanations: the reason why a framework or a role got no offer of an agent, and the agents excluded by offer
//! constraints.

use std::collections::{BTreeMap, BTreeSet};

use meseta_allocator::Explanation;
use meseta_proto::{Invalid, invalid};
use meseta_resources::time::Now;
use meseta_resources::{AgentId, FrameworkId, Role};

use crate::core::master::MasterCore;

/// The number of explanations in one answer; the answer omits further ones.
const EXPLANATIONS_MAX: usize = 1_000;

/// The subject of an explanation; a missing part means all.
#[derive(Clone, Debug, Default)]
pub struct ExplainQuery {
    pub framework_id: Option<String>,
    pub role: Option<String>,
    pub agent_id: Option<String>,
    /// The visible objects. Other objects get no explanation, and use no place among the explanations.
    pub visible: Option<Visible>,
}

/// The frameworks and roles that the caller may see.
#[derive(Clone, Debug, Default)]
pub struct Visible {
    pub frameworks: BTreeSet<FrameworkId>,
    pub roles: BTreeSet<Role>,
}

/// The subject of an explanation.
enum Subject<'a> {
    One(FrameworkId, Role),
    /// A framework in all its roles, or in these.
    Framework(FrameworkId, Option<Vec<&'a Role>>),
    /// A role with all its frameworks, or these.
    Role(Role, Option<BTreeSet<FrameworkId>>),
}

/// The number of excluded agents listed, of all frameworks together; the list omits further ones.
const EXCLUDED_MAX: usize = 200_000;

/// The agents excluded by a framework's offer constraints, by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    pub framework: FrameworkId,
    pub by_role: BTreeMap<Role, Vec<AgentId>>,
}

impl MasterCore {
    /// Explains each requested agent, ordered by id.
    ///
    /// # Errors
    /// For an unknown object in the query, as a message.
    pub fn explain(&self, now: Now, question: &ExplainQuery) -> Result<Vec<Explanation>, Invalid> {
        let Some(subject) = self.subject(question)? else {
            return Ok(Vec::new());
        };
        let agents: Vec<AgentId> = match &question.agent_id {
            Some(id) => match self.agents.get(id.as_str()) {
                Some(agent) => vec![agent.id().clone()],
                None => return Err(invalid!("There is no agent '{}'", id.escape_debug())),
            },
            None => self.agents.keys().cloned().collect(),
        };
        let mut answers = Vec::new();
        for agent in agents {
            let left = EXPLANATIONS_MAX - answers.len();
            if left == 0 {
                break;
            }
            answers.extend(self.explain_on(&agent, now, &subject, left)?);
        }
        Ok(answers)
    }

    /// The subject of a query; `None` if the caller may see no such object.
    fn subject<'a>(&self, question: &'a ExplainQuery) -> Result<Option<Subject<'a>>, Invalid> {
        let framework = question.framework_id.as_deref();
        let framework = framework.map(|id| self.known_framework(id)).transpose()?;
        let role = question.role.as_deref().map(Role::new).transpose();
        let role = role.map_err(Invalid::from_error)?;
        let visible = question.visible.as_ref();
        let sees_framework = |id| visible.is_none_or(|visible| visible.frameworks.contains(id));
        let sees_role = |role| visible.is_none_or(|visible| visible.roles.contains(role));
        let is_in = |id: &FrameworkId, role: &Role| {
            let framework = self.frameworks.get(id);
            framework.is_some_and(|framework| framework.terms.roles.contains(role))
        };
        if !framework.iter().all(sees_framework) || !role.iter().all(sees_role) {
            return Ok(None);
        }
        Ok(match (framework, role) {
            (Some(framework), Some(role)) => Some(Subject::One(framework, role)),
            (Some(framework), None) => {
                let roles = visible.map(|visible| {
                    let roles = visible.roles.iter();
                    roles.filter(|role| is_in(&framework, role)).collect()
                });
                Some(Subject::Framework(framework, roles))
            }
            (None, Some(role)) => {
                let frameworks: Option<BTreeSet<_>> = visible.map(|visible| {
                    let ids = visible.frameworks.iter();
                    ids.filter(|id| is_in(id, &role)).cloned().collect()
                });
                let is_about_somebody = frameworks.as_ref().is_none_or(|all| !all.is_empty());
                is_about_somebody.then_some(Subject::Role(role, frameworks))
            }
            (None, None) => {
                return Err(invalid!(
                    "Name a framework ('framework_id'), a role ('role') or both"
                ));
            }
        })
    }

    /// Explains one agent with at most `at_most` explanations.
    fn explain_on(
        &self,
        agent: &AgentId,
        now: Now,
        subject: &Subject<'_>,
        at_most: usize,
    ) -> Result<Vec<Explanation>, Invalid> {
        let (allocator, now) = (&self.allocator, now.moment);
        let answers = match subject {
            Subject::One(framework, role) => {
                let answer = allocator.explain(now, framework, role, agent);
                answer.map(|answer| vec![answer])
            }
            Subject::Framework(framework, None) => {
                allocator.explain_framework(now, framework, agent, at_most)
            }
            Subject::Framework(framework, Some(roles)) => roles
                .iter()
                .take(at_most)
                .map(|role| allocator.explain(now, framework, role, agent))
                .collect(),
            Subject::Role(role, frameworks) => {
                allocator.explain_role(now, role, frameworks.as_ref(), agent, at_most)
            }
        };
        answers.map_err(Invalid::from_error)
    }

    /// The excluded agents of every subscribed framework.
    #[must_use]
    pub fn excluded(&self) -> Vec<Excluded> {
        let mut left = EXCLUDED_MAX;
        let mut all = Vec::new();
        for id in self.frameworks.keys() {
            if left == 0 {
                break;
            }
            all.push(Excluded {
                framework: id.clone(),
                by_role: self.allocator.excluded(id, &mut left),
            });
        }
        all
    }

    fn known_framework(&self, id: &str) -> Result<FrameworkId, Invalid> {
        let known = self
            .frameworks
            .get(id)
            .map(|framework| framework.id.clone());
        known.ok_or_else(|| invalid!("There is no framework '{}'", id.escape_debug()))
    }
}
