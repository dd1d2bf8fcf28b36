//! The verbs of `meseta --help`, grouped by subject.

use clap::Command;

/// Headings and their verbs, in the order of the help.
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Daemons",
        &[
            "local",
            "master",
            "agent",
            "scheduler",
            "registry",
            "doctor",
        ],
    ),
    ("Jobs", &["run", "plan", "jobs", "job"]),
    (
        "Tasks",
        &[
            "execute",
            "tasks",
            "task",
            "logs",
            "exec",
            "kill",
            "frameworks",
            "teardown",
        ],
    ),
    (
        "Nodes",
        &[
            "agents",
            "drain",
            "deactivate",
            "reactivate",
            "mark-gone",
            "maintenance",
            "images",
        ],
    ),
    (
        "Shares",
        &[
            "roles",
            "quota",
            "weights",
            "reserve",
            "unreserve",
            "reservations",
            "volumes",
            "offers",
            "explain",
        ],
    ),
    ("Use and oversubscription", &["top", "estimate"]),
    (
        "Access and the shell",
        &["tls", "credential", "completions", "help"],
    ),
];

/// Lists the verbs under headings in the command's help.
pub(super) fn grouped(command: Command) -> Command {
    let mut list = String::new();
    for (heading, verbs) in GROUPS {
        list += &format!("{heading}:\n");
        for verb in verbs {
            let about = match command.find_subcommand(verb) {
                Some(sub) => sub.get_about().map(ToString::to_string).unwrap_or_default(),
                None => "Print this, or the help of a verb.".to_owned(),
            };
            list += &format!("  {verb:<12} {}\n", about.trim_end_matches('.'));
        }
        list.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_verb_stands_under_one_heading() {
        let command = super::super::Cli::command();
        let listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, verbs)| *verbs)
            .copied()
            .collect();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let times = listed
                .iter()
                .filter(|verb| **verb == sub.get_name())
                .count();
            assert_eq!(times, 1, "{}", sub.get_name());
        }
        for verb in listed.iter().filter(|verb| **verb != "help") {
            assert!(command.find_subcommand(verb).is_some(), "{verb}");
        }
        let help = grouped(command).term_width(80).render_help().to_string();
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("{heading}:\n")), "{help}");
        }
        assert!(
            help.contains("  drain        End an agent's tasks and send it no new ones\n"),
            "{help}"
        );
    }
}
