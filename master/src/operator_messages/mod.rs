//! The cluster as messages of the operator API: the content of a snapshot, as far as its viewer may see it.
//!
//! - `stream`: events of the operators' stream

pub(crate) mod stream;

use std::sync::Arc;

use meseta_access::Approver;
use meseta_proto::convert;
use meseta_proto::mesos::v1::master::response::{self, get_agents, get_executors, get_frameworks};
use meseta_proto::mesos::v1::{self, ExecutorInfo, TimeInfo, value};
use meseta_resources::{AgentId, Resources, Role};
use prost::Message;

use crate::core::{
    AgentView, Drain, Format, FrameworkView, InverseOffer, Offer, Snapshot, TaskRecord,
    inverse_offer_to_wire, to_wire,
};
use crate::view_filter;
use crate::views;

/// The roles in use, with their amounts of the resources that every agent has.
pub(crate) fn roles(snapshot: &Snapshot) -> response::GetRoles {
    const NAMES: [&str; 4] = ["cpus", "disk", "gpus", "mem"];
    let role = |(role, tally): (Role, views::Tally<'_>)| {
        let allocated_and_offered = &tally.allocated + &tally.offered;
        let resource = |name: &str| {
            let amount = allocated_and_offered.get(name);
            amount.is_positive().then(|| v1::Resource {
                name: name.to_owned(),
                r#type: value::Type::Scalar.into(),
                scalar: Some(value::Scalar {
                    value: amount.to_f64(),
                }),
                ..v1::Resource::default()
            })
        };
        v1::Role {
            weight: snapshot.weights.get(&role).copied().unwrap_or(1.0),
            frameworks: tally.frameworks.iter().map(|id| (*id).into()).collect(),
            resources: NAMES.into_iter().filter_map(resource).collect(),
            name: role.to_string(),
        }
    };
    response::GetRoles {
        roles: views::tallies(snapshot)
            .into_iter()
            .filter(|(role, _)| snapshot.viewer_may_view_role(role))
            .map(role)
            .collect(),
    }
}

pub(crate) fn time(since: std::time::Duration) -> TimeInfo {
    TimeInfo {
        nanoseconds: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
    }
}

pub(crate) fn state(snapshot: &Snapshot) -> response::GetState {
    response::GetState {
        get_tasks: Some(tasks(snapshot)),
        get_executors: Some(executors(snapshot)),
        get_frameworks: Some(frameworks(snapshot)),
        get_agents: Some(agents(snapshot)),
    }
}

pub(crate) fn agents(snapshot: &Snapshot) -> response::GetAgents {
    let (agents, recovered) = (snapshot.agents.iter(), snapshot.recovered_agents.iter());
    let viewer = &snapshot.viewer;
    response::GetAgents {
        agents: agents.map(|view| agent(view, viewer)).collect(),
        recovered_agents: recovered
            .map(|(_, info)| filtered_info(info, viewer))
            .collect(),
    }
}

/// An agent's info, without the resources of roles that the viewer may not see.
pub(crate) fn filtered_info(info: &v1::AgentInfo, viewer: &Approver) -> v1::AgentInfo {
    let mut info = info.clone();
    if !viewer.allows_everything() {
        let all = convert::resources(&info.resources).unwrap_or_default();
        let seen = view_filter::resources(&all, viewer);
        info.resources = to_wire(&seen, Format::PostRefinement);
    }
    info
}

/// An agent as the viewer may see it.
pub(crate) fn agent(agent: &AgentView, viewer: &Approver) -> get_agents::Agent {
    let filtered = |resources: &Resources| {
        to_wire(&view_filter::resources(resources, viewer), Format::Endpoint)
    };
    let profile = &agent.profile;
    let draining = agent.deactivation.as_ref().filter(|d| d.drain.is_some());
    get_agents::Agent {
        agent_info: filtered_info(&profile.info, viewer),
        active: agent.is_active(),
        deactivated: Some(agent.deactivation.is_some()),
        drain_info: draining.and_then(|d| d.drain.as_ref()).map(Drain::to_wire),
        // Whole seconds, as in Mesos.
        estimated_drain_start_time: draining
            .map(|d| time(std::time::Duration::from_secs(d.since.as_secs()))),
        version: profile.version.clone(),
        pid: Some(profile.pid()),
        registered_time: Some(time(agent.registered)),
        reregistered_time: agent.reregistered.map(time),
        total_resources: filtered(&profile.total),
        allocated_resources: filtered(agent.used_total()),
        offered_resources: filtered(&agent.offered),
        capabilities: profile
            .capabilities
            .iter()
            .map(|kind| v1::agent_info::Capability {
                r#type: Some((*kind).into()),
            })
            .collect(),
        ..get_agents::Agent::default()
    }
}

pub(crate) fn frameworks(snapshot: &Snapshot) -> response::GetFrameworks {
    let all =
        |list: &[Arc<FrameworkView>]| list.iter().map(|view| framework(snapshot, view)).collect();
    response::GetFrameworks {
        frameworks: all(&snapshot.frameworks),
        completed_frameworks: all(&snapshot.completed_frameworks),
        ..response::GetFrameworks::default()
    }
}

/// A framework without the parts that need a whole snapshot.
pub(crate) fn lone_framework(framework: &FrameworkView) -> get_frameworks::Framework {
    get_frameworks::Framework {
        framework_info: (*framework.info).clone(),
        active: framework.active,
        connected: framework.connected,
        recovered: framework.recovered,
        registered_time: Some(time(framework.registered)),
        reregistered_time: Some(time(framework.reregistered.unwrap_or(framework.registered))),
        unregistered_time: Some(time(framework.unregistered.unwrap_or_default())),
        ..get_frameworks::Framework::default()
    }
}

pub(crate) fn framework(
    snapshot: &Snapshot,
    framework: &FrameworkView,
) -> get_frameworks::Framework {
    let entry = snapshot.by_framework().get(&framework.id);
    let nothing = Resources::new();
    let constraints = framework.offer_constraints.as_ref();
    let constraints = constraints.map(|constraints| constraints.message());
    get_frameworks::Framework {
        unregistered_time: framework.unregistered.map(time),
        offers: entry
            .map_or(&[][..], |entry| entry.offers.as_slice())
            .iter()
            .map(|found| offer(snapshot, found))
            .collect(),
        inverse_offers: entry
            .map_or(&[][..], |entry| entry.inverse_offers.as_slice())
            .iter()
            .filter_map(|found| inverse_offer(snapshot, found))
            .collect(),
        allocated_resources: to_wire(
            entry.map_or(&nothing, |entry| &entry.used),
            Format::Endpoint,
        ),
        offered_resources: to_wire(
            entry.map_or(&nothing, |entry| &entry.offered),
            Format::Endpoint,
        ),
        offer_constraints: Some(constraints.cloned().unwrap_or_default()),
        ..lone_framework(framework)
    }
}

fn agent_of<'a>(snapshot: &'a Snapshot, id: &AgentId) -> Option<&'a AgentView> {
    // Agents are ordered by id.
    let index = snapshot.agents.binary_search_by(|agent| agent.id().cmp(id));
    snapshot.agents.get(index.ok()?).map(|agent| &**agent)
}

/// An inverse offer as its framework sees it.
fn inverse_offer(snapshot: &Snapshot, offer: &InverseOffer) -> Option<v1::InverseOffer> {
    let agent = agent_of(snapshot, &offer.agent_id)?;
    Some(inverse_offer_to_wire(offer, &agent.profile))
}

/// An offer as its framework sees it.
pub(crate) fn offer(snapshot: &Snapshot, offer: &Offer) -> v1::Offer {
    let agent = agent_of(snapshot, &offer.agent_id);
    let profile = agent.map(|agent| &agent.profile);
    let info = profile.map(|profile| &profile.info);
    let executors = agent.into_iter().flat_map(|agent| agent.executors.keys());
    let own = executors.filter(|(framework, _)| *framework == offer.framework_id);
    v1::Offer {
        id: (&offer.id).into(),
        framework_id: (&offer.framework_id).into(),
        agent_id: (&offer.agent_id).into(),
        hostname: info.map(|info| info.hostname.clone()).unwrap_or_default(),
        url: profile.map(|profile| profile.url()),
        domain: info.and_then(|info| info.domain.clone()),
        resources: to_wire(&offer.resources, Format::PostRefinement),
        attributes: info.map(|info| info.attributes.clone()).unwrap_or_default(),
        executor_ids: own.map(|(_, executor)| executor.into()).collect(),
        allocation_info: Some(v1::resource::AllocationInfo {
            role: Some(offer.role.to_string()),
        }),
        unavailability: offer.unavailability,
    }
}

pub(crate) fn executors(snapshot: &Snapshot) -> response::GetExecutors {
    let executors = snapshot
        .agents
        .iter()
        .flat_map(|agent| agent.executors.values());
    response::GetExecutors {
        executors: executors
            .map(|executor| get_executors::Executor {
                executor_info: ExecutorInfo::decode(executor.info.clone()).unwrap_or_default(),
                agent_id: (&executor.agent_id).into(),
            })
            .collect(),
        ..response::GetExecutors::default()
    }
}

pub(crate) fn tasks(snapshot: &Snapshot) -> response::GetTasks {
    let live = snapshot
        .agents
        .iter()
        .flat_map(|agent| agent.tasks.values());
    let frameworks = || {
        snapshot
            .frameworks
            .iter()
            .chain(&snapshot.completed_frameworks)
    };
    response::GetTasks {
        tasks: live.map(|record| task(record)).collect(),
        unreachable_tasks: frameworks()
            .flat_map(|framework| framework.unreachable.iter())
            .map(|record| task(record))
            .collect(),
        completed_tasks: frameworks()
            .flat_map(|framework| framework.completed.iter())
            .map(|record| task(record))
            .collect(),
        ..response::GetTasks::default()
    }
}

pub(crate) fn task(record: &TaskRecord) -> v1::Task {
    let mut task = record.to_wire();
    task.resources = to_wire(&record.resources, Format::PostRefinement);
    task
}
