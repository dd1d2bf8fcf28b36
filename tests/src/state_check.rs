//! A consistency check of a live master: one snapshot of its state, whose sums must agree.

use meseta_proto::convert;
use meseta_proto::mesos::v1::master::response::GetState;
use meseta_proto::mesos::v1::master::response::get_agents::Agent;
use meseta_proto::mesos::v1::master::response::get_frameworks::Framework;
use meseta_proto::mesos::v1::master::{Call, Response, call};
use meseta_proto::mesos::v1::{self, Offer, Task, TaskState};
use meseta_resources::{ResourceQuantities, Resources, Role};
use prost::Message as _;

use crate::http;

/// The state of the master at one moment.
#[derive(Debug)]
pub struct StateCheck {
    state: GetState,
}

fn resources(messages: &[v1::Resource]) -> Resources {
    let resources = convert::resources(messages).expect("resources that make sense");
    resources.unallocate()
}

fn has_ended(task: &Task) -> bool {
    !matches!(
        task.state(),
        TaskState::TaskStaging
            | TaskState::TaskStarting
            | TaskState::TaskRunning
            | TaskState::TaskKilling
    )
}

impl StateCheck {
    /// Reads the master's state, or returns `None` if the master is away.
    pub fn read(url: &str) -> Option<Self> {
        let question = Call {
            r#type: Some(call::Type::GetState.into()),
            ..Call::default()
        };
        let media = "application/x-protobuf";
        let headers = [("content-type", media), ("accept", media)];
        let url = format!("{url}/api/v1");
        let answer = http::try_post(&url, &headers, &question.encode_to_vec()).ok()?;
        if answer.status != 200 {
            return None;
        }
        let response = Response::decode(answer.body.as_slice()).expect("a response");
        let state = response.get_state.expect("a state");
        Some(Self { state })
    }

    fn agents(&self) -> &[Agent] {
        let agents = self.state.get_agents.as_ref();
        agents.map_or(&[], |all| all.agents.as_slice())
    }

    fn frameworks(&self) -> &[Framework] {
        let frameworks = self.state.get_frameworks.as_ref();
        frameworks.map_or(&[], |all| all.frameworks.as_slice())
    }

    fn offers_of(&self, agent: &str) -> impl Iterator<Item = &Offer> {
        let offers = self.frameworks().iter().flat_map(|one| &one.offers);
        offers.filter(move |offer| offer.agent_id.value == agent)
    }

    fn tasks_on(&self, agent: &str) -> impl Iterator<Item = &Task> {
        let tasks = self.state.get_tasks.iter().flat_map(|all| &all.tasks);
        tasks.filter(move |task| task.agent_id.value == agent)
    }

    /// Panics unless used, offered and free resources add up on each agent, given its total, and each role is offered only
    /// resources that it may use.
    pub fn check(&self, capacity: &ResourceQuantities) {
        for agent in self.agents() {
            self.check_agent(agent, capacity);
        }
        for framework in self.frameworks() {
            for offer in &framework.offers {
                assert!(
                    framework.connected && framework.active,
                    "an offer of nobody: {framework:?}"
                );
                let role = offer
                    .allocation_info
                    .as_ref()
                    .and_then(|info| info.role.as_deref());
                let role = Role::new(role.expect("a role")).expect("a role");
                for resource in &resources(&offer.resources) {
                    assert!(
                        resource.is_allocatable_to(&role),
                        "{resource} is offered to {role}"
                    );
                }
            }
        }
    }

    fn check_agent(&self, agent: &Agent, capacity: &ResourceQuantities) {
        let id = agent
            .agent_info
            .id
            .as_ref()
            .map_or("", |id| id.value.as_str());
        let total = resources(&agent.total_resources);
        assert_eq!(
            total.quantities(),
            *capacity,
            "{id}: reservations and volumes move, they neither make nor lose: {total}"
        );
        let allocated = resources(&agent.allocated_resources);
        let offered = resources(&agent.offered_resources);
        let rest = total
            .checked_sub(&allocated)
            .and_then(|rest| rest.checked_sub(&offered));
        assert!(
            rest.is_ok(),
            "{id}: of {total} is used {allocated} and offered {offered}"
        );
        let of_offers: Resources = self
            .offers_of(id)
            .flat_map(|offer| {
                resources(&offer.resources)
                    .iter()
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(of_offers, offered, "{id}: offers and what is offered");
        if agent.deactivated() {
            assert!(
                of_offers.is_empty(),
                "{id} is deactivated and offers {of_offers}"
            );
        }
        let sum = |keep: fn(&Task) -> bool| -> Resources {
            let tasks = self.tasks_on(id).filter(|task| keep(task));
            tasks
                .flat_map(|task| {
                    resources(&task.resources)
                        .iter()
                        .cloned()
                        .collect::<Vec<_>>()
                })
                .collect()
        };
        let (live, all) = (sum(|task| !has_ended(task)), sum(|_| true));
        assert!(
            allocated.contains(&live) && all.contains(&allocated),
            "{id}: used is {allocated}; its live tasks have {live}, all that it shows {all}"
        );
    }

    /// Returns the resources that are neither reserved nor used nor offered, once all of this many agents are there.
    pub fn free(&self, agents: usize) -> Option<ResourceQuantities> {
        if self.agents().len() < agents {
            return None;
        }
        let mut free = ResourceQuantities::new();
        for agent in self.agents() {
            let taken = resources(&agent.allocated_resources);
            let offered = resources(&agent.offered_resources);
            let rest = resources(&agent.total_resources)
                .checked_sub(&taken)
                .and_then(|rest| rest.checked_sub(&offered));
            free += &rest.expect("checked before").unreserved().quantities();
        }
        Some(free)
    }
}
