//! Frameworks, with everything that is theirs.

use meseta_proto::mesos::v1::framework_info::capability::Type as Capability;
use meseta_proto::mesos::v1::resource::AllocationInfo;
use meseta_proto::mesos::v1::scheduler::OfferConstraints;
use meseta_proto::mesos::v1::{CommandInfo, ExecutorInfo, Label};
use meseta_proto::v0::Summary;
use prost::Message;
use serde::Serialize;

use super::super::output::List;
use super::agent::Owned;
use super::task::Task;
use super::{Index, OfFramework, tasks_on};
use crate::core::{ExecutorRecord, FrameworkView, Offer, Snapshot};

/// What every list of frameworks shows.
#[derive(Debug, Serialize)]
pub(super) struct Short<'a> {
    id: &'a str,
    name: &'a str,
    used_resources: Owned,
    offered_resources: Owned,
    capabilities: Vec<&'static str>,
    hostname: &'a str,
    webui_url: &'a str,
    active: bool,
    connected: bool,
    recovered: bool,
}

impl<'a> Short<'a> {
    pub(super) fn of(framework: &'a FrameworkView, index: &Index<'a>) -> Self {
        let entry = index.get(&framework.id);
        let info = &framework.info;
        Self {
            id: framework.id.as_str(),
            name: &info.name,
            used_resources: Owned(entry.map(|entry| entry.used.clone()).unwrap_or_default()),
            offered_resources: Owned(entry.map(|entry| entry.offered.clone()).unwrap_or_default()),
            capabilities: info
                .capabilities
                .iter()
                .filter_map(|capability| Capability::try_from(capability.r#type?).ok())
                .map(|kind| kind.as_str_name())
                .collect(),
            hostname: info.hostname.as_deref().unwrap_or_default(),
            webui_url: info.webui_url.as_deref().unwrap_or_default(),
            active: framework.active,
            connected: framework.connected,
            recovered: framework.recovered,
        }
    }
}

#[derive(Serialize)]
#[serde(bound = "")]
struct Whole<'a, T: Serialize, U: Serialize, C: Serialize, E: Serialize> {
    #[serde(flatten)]
    short: Short<'a>,
    user: &'a str,
    failover_timeout: f64,
    checkpoint: bool,
    registered_time: f64,
    unregistered_time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    resources: Owned,
    #[serde(skip_serializing_if = "Option::is_none")]
    reregistered_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    roles: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    tasks: T,
    unreachable_tasks: U,
    completed_tasks: C,
    offers: Vec<OfferView<'a>>,
    executors: E,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a [Label]>,
    offer_constraints: OfferConstraints,
}

/// One framework, whole.
pub(super) struct Framework;

impl Framework {
    pub(super) fn of<'a>(
        framework: &'a FrameworkView,
        index: &'a Index<'a>,
    ) -> impl Serialize + 'a {
        static NOTHING: &[&crate::core::AgentView] = &[];
        let entry = index.get(&framework.id);
        let agents = entry.map_or(NOTHING, |entry| entry.agents.as_slice());
        let info = &framework.info;
        let multi_role = framework.capabilities.multi_role;
        let held = entry
            .map(|entry| &entry.used + &entry.offered)
            .unwrap_or_default();
        Whole {
            short: Short::of(framework, index),
            user: &info.user,
            failover_timeout: info.failover_timeout.unwrap_or_default(),
            checkpoint: info.checkpoint.unwrap_or_default(),
            registered_time: framework.registered.as_secs_f64(),
            unregistered_time: framework.unregistered.unwrap_or_default().as_secs_f64(),
            principal: info.principal.as_deref(),
            resources: Owned(held),
            reregistered_time: framework.reregistered.map(|time| time.as_secs_f64()),
            roles: multi_role.then(|| info.roles.iter().map(String::as_str).collect()),
            role: (!multi_role).then(|| info.role.as_deref().unwrap_or("*")),
            tasks: List(move || {
                agents
                    .iter()
                    .flat_map(|agent| tasks_on(agent, &framework.id))
                    .map(Task::of)
            }),
            unreachable_tasks: List(|| framework.unreachable.iter().map(|task| Task::of(task))),
            completed_tasks: List(|| framework.completed.iter().map(|task| Task::of(task))),
            offers: offers(entry),
            executors: List(move || {
                agents
                    .iter()
                    .flat_map(|agent| agent.executors.values())
                    .filter(|executor| executor.framework_id == framework.id)
                    .map(|executor| ExecutorView::of(executor))
            }),
            labels: info.labels.as_ref().map(|labels| labels.labels.as_slice()),
            offer_constraints: framework
                .offer_constraints
                .as_ref()
                .map(|constraints| (**constraints).clone())
                .unwrap_or_default(),
        }
    }
}

#[derive(Debug, Serialize)]
struct OfferView<'a> {
    id: &'a str,
    framework_id: &'a str,
    allocation_info: AllocationInfo,
    slave_id: &'a str,
    resources: Summary<'a>,
}

fn offers<'a>(entry: Option<&OfFramework<'a>>) -> Vec<OfferView<'a>> {
    let offers: &[&'a Offer] = entry.map_or(&[], |entry| &entry.offers);
    offers
        .iter()
        .map(|offer| OfferView {
            id: offer.id.as_str(),
            framework_id: offer.framework_id.as_str(),
            allocation_info: AllocationInfo {
                role: Some(offer.role.to_string()),
            },
            slave_id: offer.agent_id.as_str(),
            resources: Summary(&offer.resources),
        })
        .collect()
}

#[derive(Debug, Serialize)]
struct ExecutorView<'a> {
    executor_id: &'a str,
    name: String,
    framework_id: &'a str,
    command: CommandInfo,
    resources: Summary<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<Label>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    slave_id: &'a str,
}

impl<'a> ExecutorView<'a> {
    fn of(record: &'a ExecutorRecord) -> Self {
        let info = ExecutorInfo::decode(record.info.clone()).unwrap_or_default();
        let kind = info.r#type.map(|_| info.r#type().as_str_name());
        let role = record
            .resources
            .iter()
            .find_map(|resource| resource.allocation_role());
        Self {
            executor_id: record.executor_id.as_str(),
            name: info.name.unwrap_or_default(),
            framework_id: record.framework_id.as_str(),
            command: info.command.unwrap_or_default(),
            resources: Summary(&record.resources),
            role: role.map(ToString::to_string),
            labels: info.labels.map(|labels| labels.labels),
            r#type: kind,
            slave_id: record.agent_id.as_str(),
        }
    }
}

/// `/frameworks`.
pub(in super::super) fn frameworks<'a>(
    snapshot: &'a Snapshot,
    index: &'a Index<'a>,
    id: Option<&'a str>,
) -> impl Serialize + 'a {
    #[derive(Serialize)]
    #[serde(bound = "")]
    struct Frameworks<F: Serialize, C: Serialize> {
        frameworks: F,
        completed_frameworks: C,
        unregistered_frameworks: [(); 0],
    }
    let wanted = move |framework: &FrameworkView| id.is_none_or(|id| framework.id.as_str() == id);
    Frameworks {
        frameworks: List(move || {
            let all = snapshot.frameworks.iter();
            all.filter(move |framework| wanted(framework))
                .map(|framework| Framework::of(framework, index))
        }),
        completed_frameworks: List(move || {
            let all = snapshot.completed_frameworks.iter();
            all.filter(move |framework| wanted(framework))
                .map(|framework| Framework::of(framework, index))
        }),
        unregistered_frameworks: [],
    }
}
