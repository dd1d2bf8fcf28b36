//! The start of a task: its output, the program, and the properties that it must not inherit from the agent.

use std::fs;
use std::io::Write as _;

use libtest_mimic::Failed;

use crate::Test;
use crate::launching::both_ways;
use crate::probe;
use crate::test_node::{TestNode, argv, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    truncated_output_continues_at_its_end,
    scripts_without_interpreter_line_run,
    tasks_inherit_no_priority_and_no_limits,
    tasks_inherit_no_attributes,
];

/// A file that another process truncates or extends is continued at its end, without a hole.
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

/// Scripts run as with `execvp`.
fn scripts_without_interpreter_line_run(test_node: &TestNode) -> Result<(), Failed> {
    let script = test_node.sandbox().join("script");
    fs::write(&script, "echo \"$0\" \"$#\" \"$1\" \"$2\"\n")?;
    let executable: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, executable)?;
    let path = script.display();
    let mut by_path = test_node.spec("path", "");
    by_path.command = argv(&script, &["own name", "one", "two words"]);
    test_node.prints(&by_path, &format!("{path} 2 one two words\n"))?;
    let mut by_name = test_node.spec("name", "");
    let folders = format!("/nonexistent:{}", test_node.sandbox().display());
    by_name.env = vec![("PATH".into(), folders.into())];
    by_name.command = argv("script", &["script"]);
    test_node.prints(&by_name, &format!("{path} 0  \n"))
}

/// The limits that the kernel gives its first process, unless the hard limit is lower.
fn tasks_inherit_no_priority_and_no_limits(test_node: &TestNode) -> Result<(), Failed> {
    const STACK: u64 = 8 << 20;
    let command = "nice; ionice; nproc; umask; cat /proc/self/timerslack_ns /proc/self/coredump_filter; \
                   cat /proc/self/limits";
    let launcher = test_node.launcher()?.as_raw();
    let limits = fs::read_to_string(format!("/proc/{launcher}/limits"))?;
    let hard = |name: &str| -> Result<u64, Failed> {
        let line = limits.lines().find(|line| line.starts_with(name));
        let word = line.and_then(|line| line[name.len()..].split_whitespace().nth(1));
        let word = word.ok_or_else(|| format!("no {name} in {limits}"))?;
        Ok(word.parse().unwrap_or(u64::MAX))
    };
    let (processes, memory) = (hard("Max processes")?, hard("Max locked memory")?);
    let (size, queue) = (hard("Max file size")?, hard("Max pending signals")?);
    let stack = hard("Max stack size")?;
    for (resource, soft, hard) in [
        (libc::RLIMIT_STACK, 1 << 20, stack),
        (libc::RLIMIT_NPROC, 4_000, processes),
        (libc::RLIMIT_MEMLOCK, 4_096, memory),
        (libc::RLIMIT_FSIZE, 1 << 30, size),
    ] {
        probe::set_limit_of(launcher, resource, soft, hard)?;
    }
    probe::hold_back(launcher)?;
    fs::write(format!("/proc/{launcher}/timerslack_ns"), "1000000")?;
    fs::write(format!("/proc/{launcher}/coredump_filter"), "0x7f")?;
    let (_, output) = test_node.run(&test_node.spec("c", command))?;
    let processors = std::thread::available_parallelism()?;
    let head = format!("0\nnone: prio 0\n{processors}\n0022\n50000\n00000033\n");
    check!(output.starts_with(&head), "{output} instead of {head}");
    let text = |limit: u64| match limit {
        u64::MAX => "unlimited".to_owned(),
        limit => limit.to_string(),
    };
    for (name, soft, hard) in [
        ("Max stack size", STACK.min(stack), stack),
        ("Max processes", processes, processes),
        ("Max locked memory", memory.min(8 << 20), memory),
        ("Max file size", size, size),
        ("Max nice priority", 0, 0),
        ("Max realtime priority", 0, 0),
        (
            "Max pending signals",
            queue.min(8_192) / 2,
            queue.min(8_192) / 2,
        ),
    ] {
        let line = output.lines().find_map(|line| line.strip_prefix(name));
        let line = line.ok_or_else(|| format!("no {name} in {output}"))?;
        let found: Vec<_> = line.split_whitespace().take(2).collect();
        check!(found == [text(soft), text(hard)], "{name}: {found:?}");
    }
    Ok(())
}

fn tasks_inherit_no_attributes(test_node: &TestNode) -> Result<(), Failed> {
    {
        let _peculiar = probe::Peculiar::begin()?;
        test_node.open(|_| ())?;
    }
    let mut spec = test_node.spec("c", "");
    spec.command = argv(test_node.probe()?, &["probe", probe::MARK, "inherited"]);
    let (_, output) = test_node.run(&spec)?;
    let (found, keyring) = output.split_once('\n').ok_or("nothing is told")?;
    same(found, "personality 0 policy 0 thp 0 securebits 0")?;
    let own = probe::own_keyring().to_string();
    check!(keyring.trim() != own, "the keyring {own} is the agent's");
    Ok(())
}
