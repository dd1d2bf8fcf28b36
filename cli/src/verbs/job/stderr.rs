//! The last lines that a failed task wrote to its standard error, as its agent still has them.
//!
//! Best effort: if the master or the agent does not answer, or the caller may not read there, nothing is printed.

use serde_json::Value;

use super::super::sandbox::Tail;
use super::super::server::{self, AgentAddress};
use super::super::{items, text};
use super::api::Scheduler;
use crate::terminal;

/// Lines that are shown, and the characters of each.
const LINES_MAX: usize = 5;
const LINE_CHARS_MAX: usize = 200;

/// Prints the last lines of the task that failed last, if the job names one.
pub(super) fn say_last(scheduler: &Scheduler, job: &Value) {
    let Some(failure) = job.get("last_failure").filter(|one| one.is_object()) else {
        return;
    };
    let (task, agent) = (text(failure, "task_id"), text(failure, "agent_id"));
    let Ok(lines) = read(scheduler, &task, &agent) else {
        return;
    };
    if lines.is_empty() {
        return;
    }
    terminal::say(&format!("the last lines of stderr of {task}:"));
    for line in lines {
        terminal::say(&format!("  {line}"));
    }
}

fn read(scheduler: &Scheduler, task: &str, agent_id: &str) -> anyhow::Result<Vec<String>> {
    let subscription = scheduler.get("/v1/subscription")?;
    let [master, framework] = ["master", "framework_id"].map(|key| text(&subscription, key));
    let agents = server::get_json(&master, "/slaves")?;
    let mut agents = items(&agents, "slaves").iter();
    let agent = agents.find(|agent| text(agent, "id") == agent_id);
    let Some(address) = agent.and_then(AgentAddress::from_agent) else {
        return Ok(Vec::new());
    };
    let mut tail = Tail::new(&address, &framework, task, "stderr");
    let bytes = server::runtime()?.block_on(tail.last())?;
    Ok(last_lines(&bytes.unwrap_or_default()))
}

/// Returns the last non-empty lines of a text, each shortened.
fn last_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim_end);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let last = lines.len().saturating_sub(LINES_MAX);
    let shown = |line: &&str| line.chars().take(LINE_CHARS_MAX).collect();
    lines[last..].iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_few_and_short() {
        let long = "x".repeat(1_000);
        let text = format!("1\n2\n3\n\n4\r\n5\n6\n{long}\n\n");
        let lines = last_lines(text.as_bytes());
        assert_eq!(lines[..4], ["3", "4", "5", "6"]);
        assert_eq!((lines.len(), lines[4].len()), (LINES_MAX, LINE_CHARS_MAX));
        assert_eq!(last_lines(b"\xff\n").len(), 1);
        assert!(last_lines(b"").is_empty());
    }
}
