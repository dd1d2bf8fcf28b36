//! Why a framework or a role got no offer of an agent; whom offer constraints rule out.

use std::collections::BTreeMap;

use meseta_allocator::Explanation;
use meseta_proto::{Invalid, invalid};
use meseta_resources::time::Now;
use meseta_resources::{AgentId, FrameworkId, Role};

use crate::core::master::MasterCore;

/// Answers to one question; what is beyond is left out.
pub const EXPLANATIONS_MAX: usize = 1_000;

/// Who asks about whom; what is not given means all.
#[derive(Clone, Debug, Default)]
pub struct ExplainQuery {
    pub framework_id: Option<String>,
    pub role: Option<String>,
    pub agent_id: Option<String>,
}

/// Agents that are listed as excluded, of all frameworks together; what is beyond is left out.
const EXCLUDED_MAX: usize = 200_000;

/// The agents that a framework's offer constraints rule out, by its roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    pub framework: FrameworkId,
    pub by_role: BTreeMap<Role, Vec<AgentId>>,
}

impl MasterCore {
    /// Answers for every agent that is meant, by the order of their ids.
    ///
    /// # Errors
    /// When what the question names is not known, in words.
    pub fn explain(&self, now: Now, question: &ExplainQuery) -> Result<Vec<Explanation>, Invalid> {
        let framework = question.framework_id.as_deref();
        let framework = framework.map(|id| self.known_framework(id)).transpose()?;
        let role = question.role.as_deref().map(Role::new).transpose();
        let role = role.map_err(Invalid::of)?;
        if framework.is_none() && role.is_none() {
            return Err(invalid!(
                "Name a framework ('framework_id'), a role ('role') or both"
            ));
        }
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
            let moment = now.moment;
            let of_agent = match (&framework, &role) {
                (Some(framework), Some(role)) => {
                    let answer = self.allocator.explain(moment, framework, role, &agent);
                    answer.map(|answer| vec![answer])
                }
                (Some(framework), None) => self
                    .allocator
                    .explain_framework(moment, framework, &agent, left),
                (None, Some(role)) => self.allocator.explain_role(moment, role, &agent, left),
                (None, None) => Ok(Vec::new()),
            };
            answers.extend(of_agent.map_err(Invalid::of)?);
        }
        Ok(answers)
    }

    /// What [`Excluded`] says, of every subscribed framework.
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
