//! The state of the core: tables and their rules, without [`super::master::MasterCore`], sockets or clocks.
//!
//! - `absent_agents`: agents that are expected, unreachable or gone
//! - `agent`: the master's record of an agent
//! - `agent_connections`: the connections of agents
//! - `agent_info_usage`: memory taken by agent infos, by host
//! - `allocator_adapter`: the allocator's calls with the core's types
//! - `cached_view_map`: a map with a cached view of each entry
//! - `constraints`: a framework's offer constraints
//! - `counters`: counters of the core
//! - `deactivation`: agents that get no more work
//! - `epochs`: the epoch of this master, and its raises
//! - `framework`: the master's record of a framework
//! - `framework_counters`: counters of each framework
//! - `framework_info_usage`: memory taken by framework infos, by principal
//! - `history`: completed and unreachable tasks
//! - `inverse_offers`: outstanding inverse offers
//! - `locations`: registered agents by host and address
//! - `maintenance`: the maintenance schedule by machine
//! - `names`: states and kinds in the names of metrics
//! - `offer`: an outstanding offer
//! - `operation`: an operation until its final status is acknowledged
//! - `operation_memory`: memory taken by operations on all agents, by framework
//! - `operation_usage`: operations on one agent, by framework
//! - `operations`: ids and memory of the operations on all agents
//! - `ownership`: owners of framework ids
//! - `paced_messages`: messages for many receivers, sent in portions
//! - `partial_reregistrations`: reregistrations in parts
//! - `pending`: actions that wait for a durable mutation
//! - `persisted`: the content of the registry
//! - `policies`: quotas, weights, maintenance and deactivated agents
//! - `reconciliations`: unanswered reconciliation requests
//! - `rejection`: the reason for refusing an agent, and whether it may retry
//! - `removals`: ids of removed frameworks
//! - `resource_size`: size limits of resources, and the size of an agent's reservations
//! - `silent_agents`: agents about to be marked unreachable, and the pace of that
//! - `suspicion`: detection of a master that is itself cut off
//! - `task`: tasks and executors
//! - `unknown_task_updates`: updates of tasks that the master does not know
//! - `usage`: resource usage of containers, as agents report it

pub(super) mod absent_agents;
pub(super) mod agent;
pub(super) mod agent_connections;
pub(super) mod agent_info_usage;
pub(super) mod allocator_adapter;
pub(super) mod cached_view_map;
pub(super) mod constraints;
pub(super) mod counters;
pub(super) mod deactivation;
pub(super) mod epochs;
pub(super) mod framework;
pub(super) mod framework_counters;
pub(super) mod framework_info_usage;
pub(super) mod history;
pub(super) mod inverse_offers;
pub(super) mod locations;
pub(super) mod maintenance;
pub(super) mod names;
pub(super) mod offer;
pub(super) mod operation;
pub(super) mod operation_memory;
pub(super) mod operation_usage;
pub(super) mod operations;
pub(super) mod ownership;
pub(super) mod paced_messages;
pub(super) mod partial_reregistrations;
pub(super) mod pending;
pub(super) mod persisted;
pub(super) mod policies;
pub(super) mod reconciliations;
pub(super) mod rejection;
pub(super) mod removals;
pub(super) mod resource_size;
pub(super) mod silent_agents;
pub(super) mod suspicion;
pub(super) mod task;
pub(super) mod unknown_task_updates;
pub(super) mod usage;
