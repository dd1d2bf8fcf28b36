//! The command of a task in an image, by Mesos's table of `CommandInfo`, entrypoint and cmd.
//!
//! Pure. The table differs from Docker in a single row: with arguments and without entrypoint, the first word of the image's
//! cmd stays.
//!
//! | shell | value | arguments | entrypoint | cmd | result |
//! |---|---|---|---|---|---|
//! | yes | yes | ignored | ignored | ignored | `/bin/sh -c value` |
//! | yes | no | any | any | any | error |
//! | no | yes | any | ignored | ignored | `value`, with the arguments from the zeroth on |
//! | no | no | none | yes | any | entrypoint, cmd |
//! | no | no | none | no | yes | cmd |
//! | no | no | some | yes | ignored | entrypoint, arguments |
//! | no | no | some | no | yes | first word of cmd, arguments |
//! | no | no | any | no | no | error |

/// A task's own command.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TaskCommand {
    pub shell: bool,
    pub value: Option<String>,
    pub arguments: Vec<String>,
}

/// The process of a task in an image.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Process {
    /// A text that `/bin/sh -c` of the image runs.
    Shell(String),
    /// A program, looked up in the task's `PATH` inside the image, and its arguments from the zeroth on.
    Exec {
        program: String,
        arguments: Vec<String>,
    },
}

/// A command that names no program.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoCommand {
    #[error(
        "the task has shell=true without a value; set command.value, or shell=false for the image's own command"
    )]
    ShellWithoutValue,
    #[error(
        "neither the task nor the image has a command; set command.value, or build the image with ENTRYPOINT or CMD"
    )]
    Nothing,
}

/// Returns the process for a task's command and the entrypoint and cmd of its image.
pub fn choose_process(
    task: &TaskCommand,
    entrypoint: &[String],
    cmd: &[String],
) -> Result<Process, NoCommand> {
    match (task.shell, &task.value) {
        (true, Some(value)) => return Ok(Process::Shell(value.clone())),
        (true, None) => return Err(NoCommand::ShellWithoutValue),
        (false, Some(value)) => {
            let mut arguments = task.arguments.clone();
            if arguments.is_empty() {
                arguments.push(value.clone());
            }
            return Ok(Process::Exec {
                program: value.clone(),
                arguments,
            });
        }
        (false, None) => {}
    }
    let (first, second) = match (entrypoint, task.arguments.as_slice()) {
        ([], []) => (cmd, [].as_slice()),
        ([], arguments) => (cmd.get(..1).unwrap_or_default(), arguments),
        (entrypoint, []) => (entrypoint, cmd),
        (entrypoint, arguments) => (entrypoint, arguments),
    };
    let program = first.first().filter(|program| !program.is_empty());
    Ok(Process::Exec {
        program: program.ok_or(NoCommand::Nothing)?.clone(),
        arguments: [first, second].concat(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn exec(text: &str) -> Result<Process, NoCommand> {
        let arguments = words(text);
        Ok(Process::Exec {
            program: arguments[0].clone(),
            arguments,
        })
    }

    #[test]
    fn table_of_mesos_holds() {
        let nothing = Err(NoCommand::Nothing);
        for (arguments, entrypoint, cmd, expected) in [
            ("", "", "", nothing.clone()),
            ("", "", "c d", exec("c d")),
            ("", "e f", "", exec("e f")),
            ("", "e f", "c d", exec("e f c d")),
            ("x y", "", "", nothing),
            ("x y", "", "c d", exec("c x y")),
            ("x y", "e f", "", exec("e f x y")),
            ("x y", "e f", "c d", exec("e f x y")),
        ] {
            let task = TaskCommand {
                arguments: words(arguments),
                ..TaskCommand::default()
            };
            let chosen = choose_process(&task, &words(entrypoint), &words(cmd));
            assert_eq!(chosen, expected, "{arguments:?} {entrypoint:?} {cmd:?}");
        }
    }

    #[test]
    fn own_command_replaces_the_images() {
        let mut task = TaskCommand {
            shell: true,
            value: Some("v $X".to_owned()),
            arguments: words("x"),
        };
        let choose = |task: &TaskCommand| choose_process(task, &words("e"), &words("c"));
        assert_eq!(choose(&task), Ok(Process::Shell("v $X".to_owned())));
        task.shell = false;
        let own = |arguments: &str| {
            Ok(Process::Exec {
                program: "v $X".to_owned(),
                arguments: words(arguments),
            })
        };
        assert_eq!(choose(&task), own("x"));
        task.arguments.clear();
        let Ok(Process::Exec { arguments, .. }) = choose(&task) else {
            panic!("a program");
        };
        assert_eq!(arguments, ["v $X"]);
    }

    #[test]
    fn shell_needs_a_value() {
        let task = TaskCommand {
            shell: true,
            ..TaskCommand::default()
        };
        let chosen = choose_process(&task, &words("e"), &words("c"));
        assert_eq!(chosen, Err(NoCommand::ShellWithoutValue));
        let empty = choose_process(&TaskCommand::default(), &[String::new()], &[]);
        assert_eq!(empty, Err(NoCommand::Nothing));
    }
}
