//! Operators: quota, weights, reservations, agents drained and gone, maintenance, frameworks ended.
//!
//! Acknowledged changes are durable, and the next master knows all durable changes: see [`Cluster::check_acknowledged`] and
//! [`Cluster::settings_after_start`].

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_access::Approver;
use meseta_daemon::authentication::Caller;
use meseta_master::core::{Administration, Input, OperationUuid, ReplyId, Request};
use meseta_proto::convert::{self, Format, to_resource};
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaRequest};
use meseta_proto::mesos::v1::{self as pb, MachineId};
use meseta_resources::{Operation as Change, Resources, Role};

use crate::agent::{RESOURCES, hostname};
use crate::behaviour::{reserve, volume_on};
use crate::checks::Broken;
use crate::cluster::Cluster;
use crate::framework::Kind;
use crate::names;
use crate::plan::Feature;

const ROLES: [&str; 6] = ["a", "b", "c", "c/d", "e", "jobs"];

/// A request to a master.
#[derive(Debug)]
pub(crate) enum Asked {
    Call {
        framework: usize,
        name: &'static str,
        /// Tasks in a question about tasks.
        asked: Vec<String>,
        /// The call uses the name of another framework.
        foreign: bool,
    },
    Administration {
        request: Administration,
        /// The role of the administrative call, if any.
        role: Option<String>,
    },
    Other {
        /// The framework to remove, if any.
        framework: Option<usize>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Operators {
    /// The unanswered requests, with the process that received them.
    pub(crate) replies: BTreeMap<u64, (u64, Asked)>,
    /// Operations that have ended.
    finished: Vec<OperationUuid>,
    volumes: u64,
}

impl Operators {
    /// Forgets the replies of an ended process.
    pub(crate) fn forget_replies(&mut self, master: u64) {
        self.replies.retain(|_, (asked, _)| *asked != master);
    }

    pub(crate) fn finished(&mut self, uuid: OperationUuid) {
        self.finished.push(uuid);
    }

    /// Whether another request about the quota of a role has no response yet.
    fn is_in_doubt(&self, role: &str) -> bool {
        self.replies.values().any(|(_, asked)| {
            matches!(asked, Asked::Administration { role: Some(other), .. } if other == role)
        })
    }
}

impl Cluster {
    /// Makes an operator act.
    pub(crate) fn operate(&mut self) {
        let feature = match self.rng.u32(..20) {
            0..4 => Feature::Quota,
            4..6 => Feature::Weights,
            6..11 => Feature::OperatorReservations,
            11..15 => Feature::Drain,
            15 => Feature::Gone,
            16..19 => Feature::Maintenance,
            _ => Feature::Teardown,
        };
        let leader = self.leader();
        if !self.has(feature) || !self.is_running(leader) {
            return;
        }
        match feature {
            Feature::Quota => self.change_quota(leader),
            Feature::Weights => {
                let role = ROLES[self.rng.usize(..ROLES.len())];
                let weight = f64::from(self.rng.u32(1..20)) / 4.0;
                let weights = vec![(role.to_owned(), weight)];
                self.administer(leader, Administration::UpdateWeights(weights), None);
            }
            Feature::OperatorReservations => self.change_agent(leader),
            Feature::Drain => self.drain(leader),
            Feature::Gone if self.rng.u32(..6) == 0 => {
                if let Some(agent_id) = self.some_known_agent(leader) {
                    let gone = Administration::MarkAgentGone { agent_id };
                    // Impatient operators repeat the request while it is on its way to the registry.
                    if self.rng.bool() {
                        self.administer(leader, gone.clone(), None);
                    }
                    self.administer(leader, gone, None);
                }
            }
            Feature::Maintenance => self.maintain(leader),
            Feature::Teardown if self.rng.u32(..8) == 0 => self.tear_down(leader),
            _ => {}
        }
    }

    pub(crate) fn administer(
        &mut self,
        master: u64,
        request: Administration,
        role: Option<String>,
    ) {
        let reply = self.number();
        let name = names::of_administration(&request);
        self.story.note(("operator", name), [reply, master], || {
            format!("of master {master}: {request:?}")
        });
        let administration = Box::new(request.clone());
        let asked = Asked::Administration { request, role };
        self.operators.replies.insert(reply, (master, asked));
        let request = Request::Administer {
            administration,
            approver: Approver::default(),
        };
        let reply = ReplyId(reply);
        self.step_master(master, Input::Request { reply, request });
    }

    fn change_quota(&mut self, leader: u64) {
        let role = ROLES[self.rng.usize(..ROLES.len())].to_owned();
        let cpus = f64::from(self.rng.u32(1..12)) / 2.0;
        let mem = f64::from(self.rng.u32(1..8)) * 128.0;
        let force = self.rng.u32(..3) == 0;
        let scalar = |value| pb::value::Scalar { value };
        let request = match self.rng.u32(..4) {
            0 => Administration::RemoveQuota { role: role.clone() },
            1 => Administration::SetQuota(Box::new(QuotaRequest {
                force: Some(force),
                role: Some(role.clone()),
                guarantee: [("cpus", cpus), ("mem", mem)]
                    .map(|(name, value)| pb::Resource {
                        name: name.to_owned(),
                        r#type: pb::value::Type::Scalar.into(),
                        scalar: Some(scalar(value)),
                        ..pb::Resource::default()
                    })
                    .to_vec(),
            })),
            _ => {
                let amounts = [
                    ("cpus".to_owned(), scalar(cpus)),
                    ("mem".to_owned(), scalar(mem)),
                ];
                let more = [
                    ("cpus".to_owned(), scalar(cpus + 1.0)),
                    ("mem".to_owned(), scalar(mem + 128.0)),
                ];
                let guarantees = self.rng.bool();
                Administration::UpdateQuota {
                    force,
                    configs: vec![QuotaConfig {
                        role: role.clone(),
                        guarantees: guarantees
                            .then_some(amounts)
                            .into_iter()
                            .flatten()
                            .collect(),
                        limits: more.into_iter().collect(),
                    }],
                }
            }
        };
        self.administer(leader, request, Some(role));
    }

    /// Returns an agent that the master has.
    fn some_agent(&mut self, master: u64) -> Option<String> {
        let snapshot = self.master(master)?.core.snapshot();
        let at = self.rng.usize(..snapshot.agents.len().max(1));
        let agent = snapshot.agents.get(at)?;
        Some(agent.id().to_string())
    }

    /// Returns an agent that the master has, or equally often one that it expects or has marked unreachable.
    fn some_known_agent(&mut self, master: u64) -> Option<String> {
        if self.rng.bool() {
            return self.some_agent(master);
        }
        let snapshot = self.master(master)?.core.snapshot();
        let expected = snapshot.recovered_agents.iter().map(|(id, _)| id);
        let unreachable = snapshot.unreachable_agents.iter().map(|(id, _)| id);
        let away: Vec<_> = expected.chain(unreachable).collect();
        let at = self.rng.usize(..away.len().max(1));
        Some((*away.get(at)?).to_string())
    }

    fn drain(&mut self, leader: u64) {
        let Some(agent_id) = self.some_agent(leader) else {
            return;
        };
        if self.rng.u32(..12) == 0 {
            let agent_id = format!("nobody-{agent_id}");
            return self.administer(leader, Administration::MarkAgentGone { agent_id }, None);
        }
        let request = match self.rng.u32(..8) {
            0 => Administration::DrainAgent {
                agent_id,
                max_grace: Some(Duration::from_secs(1)),
                mark_gone: false,
            },
            1 => Administration::DeactivateAgent { agent_id },
            _ => Administration::ReactivateAgent { agent_id },
        };
        self.administer(leader, request, None);
    }

    fn maintain(&mut self, leader: u64) {
        let at = self.rng.usize(..RESOURCES.len());
        let others = (0..RESOURCES.len()).filter(|_| self.rng.u32(..3) == 0);
        let mut machines: Vec<_> = others.filter(|one| *one != at).map(machine).collect();
        machines.push(machine(at));
        let request = match self.rng.u32(..12) {
            0..3 => {
                let start = self
                    .masters
                    .last()
                    .map(|master| master.clock.now(self.time));
                let start = start.unwrap_or_default().unix + Duration::from_secs(100);
                match machines.len() {
                    1 => Administration::AddWindow(Box::new(window(machines, start))),
                    _ => schedule(vec![window(machines, start)]),
                }
            }
            3..6 => Administration::StartMaintenance(vec![machine(at)]),
            6..10 => Administration::StopMaintenance(vec![machine(at)]),
            _ => schedule(Vec::new()),
        };
        self.administer(leader, request, None);
    }

    fn tear_down(&mut self, leader: u64) {
        let ending = [Kind::Greedy, Kind::Slow, Kind::Old, Kind::Malicious];
        let at = self.rng.usize(..self.frameworks.len());
        let framework = &self.frameworks[at];
        let Some(framework_id) = framework
            .id
            .clone()
            .filter(|_| ending.contains(&framework.kind))
        else {
            return;
        };
        let caller = Caller::default();
        let request = Request::Teardown {
            framework_id,
            caller,
        };
        self.request(leader, "teardown", request, Some(at));
    }

    fn request(
        &mut self,
        master: u64,
        name: &'static str,
        request: Request,
        framework: Option<usize>,
    ) {
        let reply = self.number();
        self.story.note(("operator", name), [reply, master], || {
            format!("of master {master}: {request:?}")
        });
        let asked = Asked::Other { framework };
        self.operators.replies.insert(reply, (master, asked));
        let reply = ReplyId(reply);
        self.step_master(master, Input::Request { reply, request });
    }

    /// Reserves, unreserves, creates or destroys resources of an agent for an operator.
    fn change_agent(&mut self, leader: u64) {
        let Some(master) = self.master(leader) else {
            return;
        };
        let snapshot = master.core.snapshot();
        let at = self.rng.usize(..snapshot.agents.len().max(1));
        let Some(agent) = snapshot.agents.get(at) else {
            return;
        };
        let agent_id = agent.id().to_string();
        let total = agent.profile.total.clone();
        if let Some(operation) = self.some_operation(&total) {
            let request = Request::Operate {
                agent_id,
                operation: Box::new(operation),
                principal: None,
            };
            self.request(leader, "operate", request, None);
        }
    }

    fn some_operation(&mut self, total: &Resources) -> Option<Operation> {
        let at = self.rng.usize(..total.len().max(1));
        let resource = total.iter().nth(at)?.clone();
        let is_volume = resource.is_persistent_volume();
        self.operators.volumes += 1;
        if is_volume {
            return Some(convert::to_operation(&Change::Destroy(vec![resource])));
        }
        if resource.is_dynamically_reserved() {
            let is_disk = resource.name().as_str() == "disk";
            return match self.rng.bool() && is_disk {
                true => volume_on(&resource, &format!("o{}", self.operators.volumes), None),
                false => Some(convert::to_operation(&Change::Unreserve(vec![resource]))),
            };
        }
        if resource.is_reserved() || resource.is_revocable() {
            return None;
        }
        let amount = match resource.name().as_str() {
            "cpus" => 0.5,
            "mem" => 64.0,
            "disk" => 10.0,
            _ => return None,
        };
        let mut message = to_resource(&resource, Format::PostRefinement).ok()?;
        message.scalar = Some(pb::value::Scalar { value: amount });
        let role = Role::new(ROLES[self.rng.usize(..ROLES.len())]).ok()?;
        reserve(&message, &role, None)
    }

    /// Checks that a successful change is in the registry, unless another request came meanwhile.
    pub(crate) fn check_acknowledged(
        &mut self,
        master: u64,
        request: &Administration,
        role: Option<&str>,
    ) {
        if !self.registry.is_led_by(master) {
            return;
        }
        let wrong = match request {
            Administration::MarkAgentGone { agent_id } => !self.registry.gone.contains(agent_id),
            Administration::SetQuota(_) | Administration::UpdateQuota { .. } => {
                let role = role.unwrap_or_default();
                !self.operators.is_in_doubt(role) && self.registry.quota(role).is_none()
            }
            Administration::RemoveQuota { role } => {
                !self.operators.is_in_doubt(role) && self.registry.quota(role).is_some()
            }
            _ => false,
        };
        if wrong {
            let name = names::of_administration(request);
            let what = format!("{name} is acknowledged and is not in the registry");
            self.broken.push(Broken::new("I40", what));
        }
    }

    /// Notes that a starting master knows all durable settings.
    pub(crate) fn settings_after_start(&mut self, number: u64) {
        let content = self.registry.content.clone();
        let Some(master) = self.master(number) else {
            return;
        };
        let snapshot = master.core.snapshot();
        let quotas = content.quotas.iter();
        let has_quotas = quotas.clone().count() == snapshot.quotas.len()
            && quotas
                .into_iter()
                .all(|(role, quota)| snapshot.quotas.get(role) == Some(quota));
        let gone = snapshot.gone_agents.iter().map(|(id, _)| id.as_str());
        let gone: Vec<_> = gone.collect();
        let has_gone = content
            .gone
            .iter()
            .all(|(id, _)| gone.contains(&id.as_str()));
        if !has_quotas || !has_gone {
            let what = format!("master {number} does not know what the registry has");
            self.broken.push(Broken::new("I40", what));
        }
    }

    /// Removes all settings that keep the cluster from working, as operators do.
    pub(crate) fn undo(&mut self) {
        let leader = self.leader();
        let Some(master) = self.master(leader) else {
            return;
        };
        let snapshot = master.core.snapshot();
        let deactivated = snapshot.agents.iter();
        let deactivated = deactivated.filter(|agent| agent.deactivation.is_some());
        let deactivated: Vec<_> = deactivated.map(|agent| agent.id().to_string()).collect();
        let quotas: Vec<_> = snapshot
            .quotas
            .keys()
            .map(|role| role.to_string())
            .collect();
        for at in 0..RESOURCES.len() {
            let up = Administration::StopMaintenance(vec![machine(at)]);
            self.administer(leader, up, None);
        }
        self.administer(leader, schedule(Vec::new()), None);
        for agent_id in deactivated {
            self.administer(leader, Administration::ReactivateAgent { agent_id }, None);
        }
        for role in quotas.into_iter().rev() {
            let request = Administration::RemoveQuota { role: role.clone() };
            self.administer(leader, request, Some(role));
        }
    }
}

fn machine(at: usize) -> MachineId {
    MachineId {
        hostname: Some(hostname(at)),
        ip: Some(format!("10.0.0.{}", at + 1)),
    }
}

fn window(machine_ids: Vec<MachineId>, start: Duration) -> Window {
    Window {
        machine_ids,
        unavailability: pb::Unavailability {
            start: pb::TimeInfo {
                nanoseconds: i64::try_from(start.as_nanos()).unwrap_or(i64::MAX),
            },
            duration: Some(pb::DurationInfo {
                nanoseconds: 3_600_000_000_000,
            }),
        },
    }
}

fn schedule(windows: Vec<Window>) -> Administration {
    Administration::UpdateSchedule(Box::new(Schedule { windows }))
}
