//! Timers: heartbeats, pings, failovers, allocations, clean-up.

use std::time::Duration;

use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::scheduler::event;
use meseta_resources::time::Moment;
use meseta_resources::{AgentId, FrameworkId};

use super::frameworks::teardown::RemovalReason;
use crate::core::config::HEARTBEAT_INTERVAL;
use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::absent_agents::Retention;
use crate::core::state::framework::Link;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::{Mutation, UnreachableRecord};
use crate::core::state::silent_agents::Census;
use crate::core::timers::Timer;
use crate::core::wire::event_of;

impl MasterCore {
    pub(super) fn fire_timers(&mut self) {
        while let Some(timer) = self.timers.pop(self.now.moment) {
            self.fire(timer);
        }
    }

    fn fire(&mut self, timer: Timer) {
        if !matches!(
            timer,
            Timer::Allocation | Timer::Heartbeat { .. } | Timer::Ping { .. }
        ) {
            self.readers.mark_dirty();
        }
        match timer {
            Timer::Allocation => {
                self.allocator.make_next_a_tick();
                self.allocate_due = true;
                self.tell_more();
                self.timers.set(
                    self.now.moment + self.config.allocation_interval,
                    Timer::Allocation,
                );
            }
            Timer::Heartbeat {
                framework,
                connection,
            } => self.heartbeat(framework, connection),
            Timer::Failover {
                framework,
                generation,
            } => self.failover_expired(&framework, generation),
            Timer::Overdue {
                framework,
                generation,
            } => self.framework_overdue(&framework, generation),
            Timer::Ping { agent, generation } => self.ping(&agent, generation),
            Timer::Reregister => {
                self.silent_agents.begin_return_check();
                self.reregistration_expired();
            }
            Timer::Offer { offer } => self.rescind(&offer),
            Timer::InverseOffer { offer } => self.rescind_inverse(&offer),
            Timer::PartialReregistration { connection } => {
                self.check_partial_reregistration(connection)
            }
            Timer::RegistryGc => self.collect_registry_garbage(),
        }
    }

    fn heartbeat(&mut self, framework: FrameworkId, connection: ConnectionId) {
        let live = self
            .frameworks
            .get(&framework)
            .and_then(|framework| framework.connection());
        if live == Some(connection) {
            self.beat(framework, connection);
        }
    }

    /// Sends a heartbeat to a scheduler, and plans the next.
    pub(in crate::core) fn beat(&mut self, framework: FrameworkId, connection: ConnectionId) {
        self.event_to(connection, event_of(event::Type::Heartbeat));
        self.timers.set(
            self.now.moment + HEARTBEAT_INTERVAL,
            Timer::Heartbeat {
                framework,
                connection,
            },
        );
    }

    fn failover_expired(&mut self, id: &FrameworkId, generation: u64) {
        let Some(framework) = self.frameworks.get(id) else {
            return;
        };
        let is_away = matches!(framework.link, Link::Disconnected | Link::Recovered);
        if is_away && framework.generation == generation {
            self.remove_framework(id, RemovalReason::FailoverTimeout);
        }
    }

    /// Expects no acknowledgement any more of a framework that has not come back.
    fn framework_overdue(&mut self, id: &FrameworkId, generation: u64) {
        let Some(framework) = self.frameworks.get_mut(id) else {
            return;
        };
        if framework.link != Link::Recovered || framework.generation != generation {
            return;
        }
        framework.is_overdue = true;
        self.recheck_drains_of(id);
    }

    /// Counts an unanswered ping and sends the next.
    fn ping(&mut self, id: &AgentId, generation: u64) {
        let interval = self.config.agent_ping_timeout;
        // A master that was itself stopped or starved has read no answers, so this ping does not count.
        let overslept = self.timers.is_settling();
        let max = self.config.max_agent_ping_timeouts;
        let Some(agent) = self.agents.get_mut_keeping_view(id) else {
            return;
        };
        if agent.generation != generation || agent.removal_pending {
            return;
        }
        if agent.ping_sequence > 0 && agent.pong_sequence >= agent.ping_sequence {
            agent.missed_pings = 0;
        } else if agent.ping_sequence > 0 && !overslept {
            agent.missed_pings += 1;
        }
        let missed = agent.missed_pings;
        // Agents that fell silent together get their pings one after the other: the last of them is one ping behind.
        if missed + 1 >= max && missed > 0 {
            self.silent_agents.add(id.clone());
        }
        let mut again = interval;
        let census = self.census();
        if missed >= max && !overslept && !self.silent_agents.suspect_silence(census) {
            let interval = self.config.agent_removal_interval;
            if self.silent_agents.take_turn(self.now.moment, interval) {
                self.mark_unreachable(id);
                return;
            }
            // The agent may still answer until its turn.
            let turn = self.silent_agents.next_removal();
            again = turn.saturating_since(self.now.moment);
        }
        let Some(agent) = self.agents.get_mut_keeping_view(id) else {
            return;
        };
        agent.ping_sequence += 1;
        let ping = meseta::Ping {
            sequence: agent.ping_sequence,
            connected: true,
        };
        if let Some(connection) = agent.connection {
            self.frame_to(connection, master_frame::Message::Ping(ping));
        }
        self.set_ping(id.clone(), generation, again);
    }

    /// The agents that the master knows now.
    pub(super) fn census(&self) -> Census {
        Census {
            registered: self.agents.len(),
            expected: self.absent_agents.expected().len(),
            percent_max: self.config.agent_removal_percent,
            patience: self.config.time_to_be_heard(),
            clock: self.timers.clock(),
        }
    }

    /// Updates the number of missing agents: see [`SilentAgents::count`].
    ///
    /// [`SilentAgents::count`]: crate::core::state::silent_agents::SilentAgents::count
    pub(super) fn count_missing(&mut self) {
        let census = self.census();
        self.silent_agents.count(census);
    }

    pub(super) fn set_ping(&mut self, agent: AgentId, generation: u64, after: Duration) {
        self.timers
            .set(self.now.moment + after, Timer::Ping { agent, generation });
    }

    /// Records in the registry that an agent does not answer.
    pub(super) fn mark_unreachable(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        if agent.removal_pending {
            return;
        }
        if self.effects.is_busy() {
            let generation = agent.generation;
            self.set_ping(id.clone(), generation, self.config.agent_ping_timeout);
            return;
        }
        agent.removal_pending = true;
        let hostname = agent.profile.info.hostname.clone();
        self.counters.agent_unreachable_scheduled += 1;
        let since = self.now.unix;
        self.effects.persist(
            Mutation::MarkUnreachable(UnreachableRecord {
                agent_id: id.to_string(),
                since,
                hostname,
            }),
            Pending::Unreachable {
                agent: id.clone(),
                since,
            },
        );
    }

    /// Schedules the check for agents that have not come back, keeping the earlier deadline.
    pub(super) fn expect_returns_until(&mut self, at: Moment) {
        self.silent_agents
            .expect_returns_until(at, &mut self.timers);
    }

    /// Marks agents of the former master that have not come back.
    fn reregistration_expired(&mut self) {
        let since = self.now.unix;
        let expected = self.absent_agents.expected();
        let missing: Vec<AgentId> = expected.map(|(id, _)| id.clone()).collect();
        if missing.is_empty() {
            return;
        }
        let census = self.census();
        if self.silent_agents.suspect_absence(census) {
            self.expect_returns_until(self.now.moment + self.config.agent_ping_timeout);
            return;
        }
        let mutations_left = self.effects.room();
        if missing.len() > mutations_left {
            self.expect_returns_until(self.now.moment + Duration::from_secs(1));
        }
        for agent in missing.into_iter().take(mutations_left) {
            if !self.absent_agents.is_removable(&agent) {
                continue;
            }
            let interval = self.config.agent_removal_interval;
            if !self.silent_agents.take_turn(self.now.moment, interval) {
                self.expect_returns_until(self.silent_agents.next_removal());
                break;
            }
            tracing::warn!(agent_id = %agent, "agent did not come back after the master's restart");
            self.counters.recovery_agent_removals += 1;
            let expected = self.absent_agents.begin_removal(&agent);
            let hostname = expected.map(|expected| expected.info.hostname.clone());
            self.effects.persist(
                Mutation::MarkUnreachable(UnreachableRecord {
                    agent_id: agent.to_string(),
                    since,
                    hostname: hostname.unwrap_or_default(),
                }),
                Pending::RecoveredUnreachable { agent, since },
            );
        }
    }

    /// Drops the oldest entries of the lists of lost agents, by number and by age.
    fn collect_registry_garbage(&mut self) {
        self.timers.set(
            self.now.moment + self.config.registry_gc_interval,
            Timer::RegistryGc,
        );
        let grace = self.config.registry_max_agent_age;
        let is_known = |id: &FrameworkId| self.frameworks.contains_key(id);
        let effects = &mut self.effects;
        self.framework_deadlines
            .drop_old(self.now.unix, grace, is_known, effects);
        self.collect_owners();
        let names = |agents: &[AgentId]| agents.iter().map(ToString::to_string).collect();
        let retention = Retention {
            agents_max: self.config.registry_max_agent_count,
            age_max: self.config.registry_max_agent_age,
            now: self.now.unix,
        };
        let agents = self.absent_agents.find_old_unreachable(retention);
        if !agents.is_empty() && !self.effects.is_busy() {
            let agent_ids = names(&agents);
            self.effects.persist(
                Mutation::PruneUnreachable { agent_ids },
                Pending::Prune { agents },
            );
        }
        let agents = self.absent_agents.find_old_gone(retention);
        if !agents.is_empty() && !self.effects.is_busy() {
            let agent_ids = names(&agents);
            self.effects.persist(
                Mutation::PruneGone { agent_ids },
                Pending::PruneGone { agents },
            );
        }
    }
}
