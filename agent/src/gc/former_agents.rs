//! Removes the checkpoints of former agents of the work directory, after the last of their sandboxes.
//!
//! An agent gets a new id, for example, after an operator has removed `meta/slaves/latest`. Until the agent has that id
//! nothing is removed: the operator may restore the link.

use std::io::ErrorKind;
use std::path::Path;

use meseta_isolators::beneath::Folder;
use meseta_resources::AgentId;
use tracing::{info, warn};

use super::{LATEST, folders_in};
use crate::checkpoint::Layout;

/// The ids in the work directory other than the present one, at the agent's start.
pub(super) fn former_agents(layout: &Layout, present: Option<&AgentId>) -> Vec<AgentId> {
    let folders = folders_in(&layout.agents()).unwrap_or_default();
    let names = folders
        .iter()
        .filter_map(|folder| folder.file_name()?.to_str());
    // Names with a dot are those of links that are being made.
    let names = names.filter(|name| *name != LATEST && !name.starts_with('.'));
    let mut ids: Vec<_> = names.filter_map(|name| AgentId::new(name).ok()).collect();
    ids.retain(|id| Some(id) != present);
    ids.sort();
    ids
}

/// The recorded id. `None` for a link that names no agent here, such as one written by hand.
fn recorded(layout: &Layout) -> Option<AgentId> {
    let latest = std::fs::read_link(layout.latest_agent()).ok()?;
    let id = AgentId::new(latest.to_str()?).ok()?;
    layout.agent_info(&id).is_file().then_some(id)
}

/// Removes the former agents without sandboxes; returns the others.
pub(super) fn without_sandboxes(layout: &Layout, mut former: Vec<AgentId>) -> Vec<AgentId> {
    let recorded = recorded(layout);
    former.retain(|id| {
        let is_succeeded = recorded.as_ref().is_some_and(|recorded| recorded != id);
        let sandboxes = layout.sandboxes().join(id.as_str());
        let has_none = sandboxes
            .symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if !is_succeeded || !has_none {
            return true;
        }
        let removed =
            Folder::open(&layout.agents()).and_then(|agents| agents.remove(Path::new(id.as_str())));
        match removed {
            Ok(()) => info!(agent_id = %id, "removed the checkpoints of a former agent"),
            Err(error) => {
                warn!(agent_id = %id, %error, "failed to remove the checkpoints of a former \
                    agent; retrying");
                return true;
            }
        }
        false
    });
    former
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the checkpoints of former agents stayed for ever.
    #[test]
    fn former_agents_checkpoints_go_last() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let id = |text: &str| AgentId::new(text).expect("an id");
        for name in ["S1", "S2", "S3"] {
            let run = layout
                .agent(&id(name))
                .join("frameworks/F/executors/E/runs/c");
            std::fs::create_dir_all(&run).expect("made");
            std::fs::write(run.join("executor.info"), "x").expect("written");
        }
        let sandboxes = layout.sandboxes().join("S2");
        std::fs::create_dir_all(&sandboxes).expect("made");
        let former = former_agents(&layout, Some(&id("S3")));
        assert_eq!(former, [id("S1"), id("S2")]);
        // The successor is not known yet, and links that name no agent here do not determine it.
        let link = |target: &Path| {
            let _ = std::fs::remove_file(layout.latest_agent());
            std::os::unix::fs::symlink(target, layout.latest_agent()).expect("linked");
        };
        let mut former = without_sandboxes(&layout, former);
        for target in [&layout.agent(&id("S1")), Path::new("S1/"), Path::new("S9")] {
            link(target);
            former = without_sandboxes(&layout, former);
            assert_eq!(former.len(), 2, "{}", target.display());
        }
        link(Path::new("S3"));
        std::fs::write(layout.agent_info(&id("S3")), "x").expect("written");
        assert_eq!(former_agents(&layout, None).len(), 3, "the link is none");
        let former = without_sandboxes(&layout, former);
        assert_eq!(former, [id("S2")]);
        assert!(!layout.agent(&id("S1")).exists());
        std::fs::remove_dir(&sandboxes).expect("removed");
        assert_eq!(without_sandboxes(&layout, former), []);
        assert!(!layout.agent(&id("S2")).exists());
        // An agent that an operator has linked again is not a former agent.
        assert_eq!(without_sandboxes(&layout, vec![id("S3")]), [id("S3")]);
        assert!(layout.agent(&id("S3")).exists());
    }
}
