//! Frameworks with all their objects.

use std::ops::Range;
use std::sync::Arc;

use meseta_proto::mesos::v1::framework_info::capability::Type as Capability;
use meseta_proto::mesos::v1::resource::AllocationInfo;
use meseta_proto::mesos::v1::scheduler::OfferConstraints;
use meseta_proto::mesos::v1::{CommandInfo, ExecutorInfo, Label};
use meseta_proto::v0::Summary;
use prost::Message;
use serde::Serialize;

use super::agent::Owned;
use super::task::{TASK_BYTES, Writer};
use super::{between_lists, write};
use crate::chunked_response::{Document, Items, Row, text};
use crate::core::{ExecutorRecord, FrameworkEntities, FrameworkView, Offer, Snapshot};

/// The fields of a framework in every list.
#[derive(Debug, Serialize)]
pub(super) struct FrameworkSummaryFields<'a> {
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

impl<'a> FrameworkSummaryFields<'a> {
    pub(super) fn from_framework(
        framework: &'a FrameworkView,
        has: Option<&FrameworkEntities>,
    ) -> Self {
        let info = &framework.info;
        Self {
            id: framework.id.as_str(),
            name: &info.name,
            used_resources: Owned(has.map(|has| has.used.clone()).unwrap_or_default()),
            offered_resources: Owned(has.map(|has| has.offered.clone()).unwrap_or_default()),
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

/// The part of a framework before its lists.
#[derive(Serialize)]
struct Head<'a> {
    #[serde(flatten)]
    short: FrameworkSummaryFields<'a>,
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
}

impl<'a> Head<'a> {
    fn from_framework(framework: &'a FrameworkView, has: Option<&FrameworkEntities>) -> Self {
        let info = &framework.info;
        let multi_role = framework.capabilities.multi_role;
        Self {
            short: FrameworkSummaryFields::from_framework(framework, has),
            user: &info.user,
            failover_timeout: info.failover_timeout.unwrap_or_default(),
            checkpoint: info.checkpoint.unwrap_or_default(),
            registered_time: framework.registered.as_secs_f64(),
            unregistered_time: framework.unregistered.unwrap_or_default().as_secs_f64(),
            principal: info.principal.as_deref(),
            resources: Owned(has.map(|has| &has.used + &has.offered).unwrap_or_default()),
            reregistered_time: framework.reregistered.map(|time| time.as_secs_f64()),
            roles: multi_role.then(|| info.roles.iter().map(String::as_str).collect()),
            role: (!multi_role).then(|| info.role.as_deref().unwrap_or("*")),
        }
    }
}

/// The part of a framework after its lists.
#[derive(Serialize)]
struct Tail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a [Label]>,
    offer_constraints: OfferConstraints,
}

impl<'a> Tail<'a> {
    fn from_framework(framework: &'a FrameworkView) -> Self {
        let labels = framework.info.labels.as_ref();
        let constraints = framework.offer_constraints.as_ref();
        Self {
            labels: labels.map(|labels| labels.labels.as_slice()),
            offer_constraints: constraints
                .map(|constraints| constraints.message().clone())
                .unwrap_or_default(),
        }
    }
}

/// The lists of a framework in their order.
const LISTS: [&str; 5] = [
    "tasks",
    "unreachable_tasks",
    "completed_tasks",
    "offers",
    "executors",
];

/// A framework as a row: its head, all elements of its lists, its tail.
struct FullFramework<'a> {
    /// Whether the tasks are shown; otherwise their lists are empty.
    has_tasks: bool,
    framework: &'a FrameworkView,
    has: Option<&'a FrameworkEntities>,
}

impl<'a> FullFramework<'a> {
    fn lens(&self) -> [usize; LISTS.len()] {
        let len = |list: fn(&FrameworkEntities) -> usize| self.has.map_or(0, list);
        let tasks = |len: usize| if self.has_tasks { len } else { 0 };
        [
            tasks(len(|has| has.tasks.len())),
            tasks(self.framework.unreachable.len()),
            tasks(self.framework.completed.len()),
            len(|has| has.offers.len()),
            len(|has| has.executors.len()),
        ]
    }

    fn len(&self) -> usize {
        1 + self.lens().iter().sum::<usize>() + 1
    }

    fn write(&self, range: Range<usize>, out: &mut Vec<u8>) {
        if range.start == 0 {
            write(out, &Head::from_framework(self.framework, self.has));
            out.pop();
            begin_list(LISTS[0], out);
        }
        let mut tasks = Writer::default();
        // The position at which the list begins.
        let mut begin = 1;
        for (position, len) in self.lens().into_iter().enumerate() {
            let end = begin + len;
            // The part that starts right after the last list's elements also starts this list.
            if position > 0 && range.contains(&begin) {
                out.push(b']');
                begin_list(LISTS[position], out);
            }
            for index in range.start.max(begin)..range.end.min(end) {
                if index > begin {
                    out.push(b',');
                }
                self.write_element(position, index - begin, &mut tasks, out);
            }
            begin = end;
        }
        if range.contains(&begin) {
            out.extend_from_slice(b"],");
            let tail = out.len();
            write(out, &Tail::from_framework(self.framework));
            // The opening brace belongs to the head.
            out.remove(tail);
        }
    }

    fn write_element(
        &self,
        position: usize,
        index: usize,
        tasks: &mut Writer<'a>,
        out: &mut Vec<u8>,
    ) {
        let task = match position {
            0 => self.has.and_then(|has| has.tasks.get(index)),
            1 => self.framework.unreachable.get(index),
            2 => self.framework.completed.get(index),
            _ => None,
        };
        if let Some(task) = task {
            return tasks.write(out, task);
        }
        let Some(has) = self.has else { return };
        if position == 3 {
            write(
                out,
                &has.offers
                    .get(index)
                    .map(|offer| OfferView::from_offer(offer)),
            );
        } else {
            let executor = has.executors.get(index);
            write(
                out,
                &executor.map(|executor| ExecutorView::from_record(executor)),
            );
        }
    }
}

fn begin_list(name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":[");
}

/// Frameworks with all their objects. One framework may have a hundred thousand tasks and another none, so the row
/// counts the objects, not the frameworks.
pub(super) struct Frameworks {
    snapshot: Arc<Snapshot>,
    frameworks: Vec<Arc<FrameworkView>>,
    has_tasks: bool,
    /// The start position of each framework's row; one more entry than frameworks.
    begins: Vec<usize>,
}

impl Frameworks {
    /// Builds the row. Slow for many objects. With `has_tasks` false the lists of tasks are empty.
    pub(super) fn row(
        snapshot: &Arc<Snapshot>,
        frameworks: Vec<Arc<FrameworkView>>,
        has_tasks: bool,
    ) -> Row {
        let mut row = Self {
            snapshot: snapshot.clone(),
            frameworks,
            has_tasks,
            begins: vec![0],
        };
        let mut end = 0;
        for framework in &row.frameworks {
            end += row.full_framework(framework).len();
            row.begins.push(end);
        }
        Arc::new(row)
    }

    fn full_framework<'a>(&'a self, framework: &'a FrameworkView) -> FullFramework<'a> {
        FullFramework {
            has_tasks: self.has_tasks,
            framework,
            has: self.snapshot.by_framework().get(&framework.id),
        }
    }
}

impl Items for Frameworks {
    fn len(&self) -> usize {
        self.begins.last().copied().unwrap_or_default()
    }

    fn bytes_each(&self) -> usize {
        TASK_BYTES
    }

    fn render(&self, range: Range<usize>, out: &mut Vec<u8>) {
        let first = self.begins.partition_point(|begin| *begin <= range.start) - 1;
        let bounds = self.begins.windows(2).zip(&self.frameworks).enumerate();
        for (position, (bounds, framework)) in bounds.skip(first) {
            let &[begin, end] = bounds else { return };
            if begin >= range.end {
                return;
            }
            if position > 0 && range.contains(&begin) {
                out.push(b',');
            }
            let inside = range.start.max(begin) - begin..range.end.min(end) - begin;
            self.full_framework(framework).write(inside, out);
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

impl<'a> OfferView<'a> {
    fn from_offer(offer: &'a Offer) -> Self {
        Self {
            id: offer.id.as_str(),
            framework_id: offer.framework_id.as_str(),
            allocation_info: AllocationInfo {
                role: Some(offer.role.to_string()),
            },
            slave_id: offer.agent_id.as_str(),
            resources: Summary(&offer.resources),
        }
    }
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
    fn from_record(record: &'a ExecutorRecord) -> Self {
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

/// Answers requests for `/frameworks`. With `has_tasks` false the lists of tasks are empty.
pub(crate) fn frameworks(snapshot: &Arc<Snapshot>, id: Option<&str>, has_tasks: bool) -> Document {
    let requested = |all: &[Arc<FrameworkView>]| -> Vec<Arc<FrameworkView>> {
        let requested = all.iter();
        let requested =
            requested.filter(|framework| id.is_none_or(|id| framework.id.as_str() == id));
        requested.cloned().collect()
    };
    let frameworks = requested(&snapshot.frameworks);
    let completed = requested(&snapshot.completed_frameworks);
    let snapshot = snapshot.clone();
    let rest = move || {
        vec![
            Frameworks::row(&snapshot, frameworks, has_tasks),
            between_lists("completed_frameworks"),
            Frameworks::row(&snapshot, completed, has_tasks),
            text("],\"unregistered_frameworks\":[]}"),
        ]
    };
    Document {
        first: vec![text("{\"frameworks\":[")],
        rest: Some(Box::new(rest)),
    }
}
