//! How a task starts: its output, what it executes, and what it does not inherit from the agent.

use std::fs;
use std::io::Write as _;

use libtest_mimic::Failed;

use crate::Test;
use crate::launching::both_ways;
use crate::test_node::{TestNode, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![truncated_output_continues_at_its_end];

/// A file that somebody truncates, or writes to, is continued at its end, without a hole.
fn truncated_output_continues_at_its_end(test_node: &TestNode) -> Result<(), Failed> {
    let gate = test_node.gate()?;
    for (number, task) in both_ways().into_iter().enumerate() {
        let command = "echo before; cat gate; echo after; cat gate; echo last";
        let spec = test_node.spec(&format!("c{number}"), command);
        let launched = test_node.launch_with(&spec, &task)?;
        test_node.wait_output(&spec, "before")?;
        let output = fs::File::options().write(true).open(spec.stdout.path())?;
        output.set_len(0)?;
        fs::write(&gate, "")?;
        test_node.wait_output(&spec, "after")?;
        same(test_node.output(&spec), "after\n")?;
        let mut output = fs::File::options().append(true).open(spec.stdout.path())?;
        output.write_all(b"between\n")?;
        fs::write(&gate, "")?;
        test_node.wait_end(&spec, &launched)?;
        same(test_node.output(&spec), "after\nbetween\nlast\n")?;
    }
    Ok(())
}
