//! The host's paths that tasks may mount as volumes, or fetch: according to the operator's list, and never the agent's
//! own files.
//!
//! Pure except [`HostPaths::new`], which resolves the paths on the machine. Paths are compared in the kernel's form,
//! without links.

use std::path::{Path, PathBuf};

use meseta_proto::Invalid;

/// Folders of the machine that contain kernel interfaces instead of files.
const KERNEL_FOLDERS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// The rules of one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostPaths {
    /// The paths that HOST_PATH volumes may mount; `None` allows everything.
    allowed: Option<Vec<PathBuf>>,
    /// The agent's own files and folders.
    own: Vec<PathBuf>,
}

/// Reads `--allowed_host_paths`. Without the flag everything is allowed on an agent that is as permissive as Mesos, and
/// nothing elsewhere.
pub(crate) fn allowed(given: Option<&str>, is_open: bool) -> Result<Option<Vec<PathBuf>>, Invalid> {
    let Some(given) = given else {
        return Ok((!is_open).then(Vec::new));
    };
    let mut paths = Vec::new();
    for path in given.split(':').filter(|path| !path.is_empty()) {
        let path = Path::new(path);
        let has_parent = path.components().any(|part| part.as_os_str() == "..");
        if !path.is_absolute() || has_parent {
            return Err(format!("{} is not an absolute path without '..'", path.display()).into());
        }
        paths.push(path.to_owned());
    }
    Ok(Some(paths))
}

impl HostPaths {
    /// Creates the rules from the operator's list, and the agent's own files and folders.
    pub(crate) fn new(allowed: Option<Vec<PathBuf>>, own: Vec<PathBuf>) -> Self {
        let where_they_are = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
            let real = |path: PathBuf| path.canonicalize().unwrap_or(path);
            paths.into_iter().map(real).collect()
        };
        Self {
            allowed: allowed.map(where_they_are),
            own: where_they_are(own),
        }
    }

    /// Checks that a HOST_PATH volume may mount this path.
    pub(crate) fn check_volume(&self, path: &Path) -> Result<(), Invalid> {
        self.check_own(path)?;
        let is_listed = |allowed: &Vec<PathBuf>| allowed.iter().any(|one| path.starts_with(one));
        if self.allowed.as_ref().is_none_or(is_listed) {
            return Ok(());
        }
        Err(format!(
            "{} is outside --allowed_host_paths of this agent: ask its operator to add the path, \
             or use a persistent volume or a sandbox volume",
            path.display()
        )
        .into())
    }

    /// Checks that a task may fetch this path, if its user may read it.
    pub(crate) fn check_fetch(&self, path: &Path) -> Result<(), Invalid> {
        self.check_own(path)?;
        match KERNEL_FOLDERS.iter().find(|one| path.starts_with(one)) {
            None => Ok(()),
            Some(folder) => Err(format!(
                "{} is in {folder}, which has no files to fetch",
                path.display()
            )
            .into()),
        }
    }

    fn check_own(&self, path: &Path) -> Result<(), Invalid> {
        if self.own.iter().any(|own| path.starts_with(own)) {
            return Err(format!(
                "{} is the agent's own (its work_dir, its runtime_dir or its credentials)",
                path.display()
            )
            .into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_list_follows_mesos_default() {
        assert_eq!(allowed(None, true), Ok(None));
        assert_eq!(allowed(None, false), Ok(Some(Vec::new())));
        let listed = Ok(Some(vec!["/a".into(), "/b/c".into()]));
        for is_open in [true, false] {
            assert_eq!(allowed(Some("/a:/b/c:"), is_open), listed);
        }
        for bad in ["a", "/a:b", "/a/../b"] {
            assert!(allowed(Some(bad), true).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_judged_by_whole_names() {
        let rules = HostPaths::new(
            Some(vec!["/srv/data".into(), "/none/such".into()]),
            vec!["/srv/data/agent".into()],
        );
        for allowed in ["/srv/data", "/srv/data/x/y", "/none/such"] {
            assert_eq!(rules.check_volume(Path::new(allowed)), Ok(()));
        }
        for (path, why) in [
            ("/srv", "--allowed_host_paths"),
            ("/srv/database", "--allowed_host_paths"),
            ("/etc/passwd", "--allowed_host_paths"),
            ("/srv/data/agent", "the agent's own"),
            ("/srv/data/agent/meta/x", "the agent's own"),
        ] {
            let error = rules.check_volume(Path::new(path)).expect_err(path);
            assert!(error.to_string().contains(why), "{error}");
        }
        // A fetch only needs the user's read permission; the list is for mounted paths.
        assert_eq!(rules.check_fetch(Path::new("/etc/passwd")), Ok(()));
        for path in ["/proc/1/status", "/sys/x", "/dev/null", "/srv/data/agent/x"] {
            assert!(rules.check_fetch(Path::new(path)).is_err(), "{path}");
        }
    }
}
