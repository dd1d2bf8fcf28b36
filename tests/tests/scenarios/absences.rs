//! Stopped agents: all of them at once cost nothing, and a single one is unreachable until it continues.

use meseta_tests::{Cluster, Setup, kernel};
use nix::sys::signal::Signal;

use crate::anywhere;
use crate::pauses::{TICKS, assert_nothing_lost, find, outlive, says};

meseta_tests::scenarios! {
    anywhere:
        mass_silence_marks_no_agent_unreachable;
}

/// The smallest number of agents whose common silence makes a master suspect itself.
const AGENTS: usize = 10;

fn mass_silence_marks_no_agent_unreachable() {
    // The agents' timeout is eight seconds.
    let limits = [
        "--agent_ping_timeout=2secs",
        "--max_agent_ping_timeouts=4",
        "--agent_removal_rate_limit=none",
    ];
    let cluster = Cluster::start(Setup {
        agents: AGENTS,
        master_flags: limits.map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let running = framework.run_task(&offer, "t", TICKS, &[("cpus", 0.1), ("mem", 32.0)]);
    let signal = |signal| {
        for agent in &cluster.agents {
            kernel::kill(agent.pid(), signal);
        }
    };
    signal(Signal::SIGSTOP);
    says(&cluster, "most agents are silent");
    outlive(&cluster, 10);
    assert_nothing_lost(&cluster);
    signal(Signal::SIGCONT);
    cluster.wait_for_agents(AGENTS);
    // The master trusts its clock again after the eight seconds and another thirty.
    outlive(&cluster, 42);
    assert_nothing_lost(&cluster);

    let ticks = find(cluster.dir.path(), "ticks").expect("what the task writes");
    let is_its = |index: &usize| ticks.starts_with(cluster.agent_dir(*index));
    let index = (0..AGENTS).find(is_its).expect("the agent of the task");
    let pid = cluster.agents[index].pid();
    kernel::kill(pid, Signal::SIGSTOP);
    let mut told = framework.update("t");
    // An agent that was stopped before it received the acknowledgement repeats the update.
    while told["uuid"] == running["uuid"] {
        told = framework.update("t");
    }
    assert_eq!(told["state"], "TASK_UNREACHABLE", "{told}");
    outlive(&cluster, 1);
    kernel::kill(pid, Signal::SIGCONT);
    let told = framework.update("t")["state"].clone();
    assert_eq!(told, "TASK_RUNNING");
    cluster.wait_for_agents(AGENTS);
    outlive(&cluster, 1);
}
