//! Manual pages of this command line, one for each verb, for packages to install.

use std::path::Path;

use anyhow::Context as _;

/// Writes `meseta.1`, `meseta-agent.1` and so on into a new folder.
pub(super) fn write(dir: &Path) -> anyhow::Result<()> {
    let in_dir = || format!("failed to write the manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(in_dir)?;
    // `meseta help VERB` is no verb, and has no page.
    let command = super::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir).with_context(in_dir)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn only_visible_verbs_have_pages() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path()).expect("written");
        for verb in super::super::Cli::command().get_subcommands() {
            let page = dir.path().join(format!("meseta-{}.1", verb.get_name()));
            assert_eq!(page.exists(), !verb.is_hide_set(), "{}", verb.get_name());
        }
        let agent = std::fs::read_to_string(dir.path().join("meseta-agent.1")).expect("a page");
        assert!(agent.contains(r"\-\-work_dir"), "{agent}");
        assert!(dir.path().join("meseta-quota-set.1").exists());
    }
}
