//! What the core keeps: tables and their rules, without [`super::master::MasterCore`], sockets or clocks.
//!
//! - `agent`: an agent as the master keeps it
//! - `agent_info_usage`: memory taken by agent infos, by host
//! - `allocator_adapter`: the allocator in the core's words
//! - `cached_view_map`: a map with a cached view of each entry
//! - `constraints`: a framework's offer constraints
//! - `counters`: what the core counts
//! - `deactivation`: agents that get no more work
//! - `framework`: a framework as the master keeps it
//! - `framework_counters`: what is counted of each framework
//! - `framework_info_usage`: memory taken by framework infos, by principal
//! - `history`: tasks that are over or lost
//! - `inverse_offers`: outstanding inverse offers
//! - `locations`: registered agents by host and address
//! - `maintenance`: the schedule of maintenance by machine
//! - `names`: states and kinds in the names of metrics
//! - `offer`: an outstanding offer
//! - `operation`: an operation until its end is acknowledged
//! - `operation_memory`: what operations on all agents take, by framework
//! - `operator_settings`: what operators have set
//! - `operation_usage`: what an agent has of operations, by framework
//! - `ownership`: whose framework ids are
//! - `paced_messages`: what many are to be told at once
//! - `partial_reregistrations`: reregistrations in parts
//! - `pending`: what happens once a mutation is durable
//! - `persisted`: what the registry keeps
//! - `reconciliations`: questions about tasks that are still to be answered
//! - `rejection`: why an agent is sent away, and whether it may come again
//! - `removals`: ids of frameworks that were removed
//! - `resource_size`: how much resources may say of themselves, and what an agent's take
//! - `suspicion`: whether it may be this master that is cut off
//! - `task`: tasks and executors
//! - `unknown_task_updates`: updates of tasks that the master does not know
//! - `usage`: what containers use, as agents report it

pub(super) mod agent;
pub(super) mod agent_info_usage;
pub(super) mod allocator_adapter;
pub(super) mod cached_view_map;
pub(super) mod constraints;
pub(super) mod counters;
pub(super) mod deactivation;
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
pub(super) mod operator_settings;
pub(super) mod ownership;
pub(super) mod paced_messages;
pub(super) mod partial_reregistrations;
pub(super) mod pending;
pub(super) mod persisted;
pub(super) mod reconciliations;
pub(super) mod rejection;
pub(super) mod removals;
pub(super) mod resource_size;
pub(super) mod suspicion;
pub(super) mod task;
pub(super) mod unknown_task_updates;
pub(super) mod usage;
