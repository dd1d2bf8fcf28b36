//! Shell completion: command lines, and the ids and roles of a master.
//!
//! The script for flags and verbs is generated; for bash and fish it also queries a master for the completion of an id.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

/// Verbs whose argument is an id, by the kind of the id.
pub(super) const ARGUMENTS: [(&str, &[&str]); 3] = [
    (
        "agents",
        &[
            "drain",
            "deactivate",
            "reactivate",
            "mark-gone",
            "reserve",
            "unreserve",
        ],
    ),
    ("tasks", &["task", "logs", "exec", "kill"]),
    ("frameworks", &["teardown"]),
];
/// Flags whose value is a name, by the kind of the name.
const FLAGS: [(&str, &str); 3] = [
    ("roles", "role"),
    ("frameworks", "framework"),
    ("agents", "agent"),
];

/// Returns the whole completion script.
pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "meseta", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script += &bash(),
        Shell::Fish => script += &fish(),
        _ => {}
    }
    script
}

fn bash() -> String {
    let mut cases = String::new();
    for (kind, verbs) in ARGUMENTS {
        cases += &format!("        {}) kind={kind} ;;\n", verbs.join("|"));
    }
    let mut flags = String::new();
    for (kind, flag) in FLAGS {
        flags += &format!("        --{flag}) kind={kind} ;;\n");
    }
    format!(
        r#"
_meseta_names() {{
    _meseta "$@"
    local kind= word="$2" before="$3"
    if [ "$before" = "=" ]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}    esac
    case "$before" in
{flags}        --*) kind= ;;
    esac
    if [ -n "$kind" ] && [ "${{word#-}}" = "$word" ]; then
        COMPREPLY+=($(compgen -W "$(meseta names "$kind" 2>/dev/null)" -- "${{word#=}}"))
    fi
}}
complete -F _meseta_names -o nosort -o bashdefault -o default meseta
"#
    )
}

fn fish() -> String {
    let mut script = String::new();
    for (kind, verbs) in ARGUMENTS {
        script += &format!(
            "complete -c meseta -n '__fish_seen_subcommand_from {}' -f -a '(meseta names {kind} 2>/dev/null)'\n",
            verbs.join(" ")
        );
    }
    for (kind, flag) in FLAGS {
        script +=
            &format!("complete -c meseta -l {flag} -x -a '(meseta names {kind} 2>/dev/null)'\n");
    }
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn completed_id_verbs_exist() {
        let command = Cli::command();
        for (_, verbs) in ARGUMENTS {
            for verb in verbs {
                let found = command.find_subcommand(verb);
                let sub = found.unwrap_or_else(|| panic!("{verb} is no verb"));
                assert!(
                    sub.get_positionals().next().is_some(),
                    "{verb} takes no argument"
                );
            }
        }
    }

    #[test]
    fn bash_and_fish_ask_for_names() {
        let bash = script(Shell::Bash);
        assert!(bash.contains("task|logs|exec|kill) kind=tasks"), "{bash}");
        assert!(bash.ends_with("meseta\n"));
        assert!(script(Shell::Fish).contains("(meseta names roles 2>/dev/null)"));
        assert!(script(Shell::Zsh).contains("#compdef meseta"));
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for word in ["unreserve", "max_grace_period"] {
                assert!(script.contains(word), "{word} for {shell}");
            }
        }
    }
}
