//! The build of the running program: its version, and its commit.
//!
//! The binary hands a [`BuildInfo`] to the daemons that it starts: only the binary is compiled again when the commit
//! changes. Invariant: facts that the build did not know are absent, or `unknown` where Mesos has a text; nothing is
//! guessed.

use meseta_proto::mesos::v1::VersionInfo;
use serde::Serialize;

use crate::calendar;

/// The value of Mesos's field for the user who built the program.
const BUILD_USER: &str = "meseta";

/// The version, commit and date of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The version of Meseta, not that of the Mesos interface.
    pub version: &'static str,
    /// The whole hash of the commit.
    pub commit: Option<&'static str>,
    /// The time of the commit, in seconds since the Unix epoch.
    pub time: Option<u64>,
}

impl Default for BuildInfo {
    /// Returns the build of a program that knows its version alone.
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: None,
            time: None,
        }
    }
}

impl BuildInfo {
    /// Returns the date in UTC in Mesos's form, `2026-11-22 13:05:06`, or `unknown`.
    pub fn date(&self) -> String {
        let Some(time) = self.time else {
            return "unknown".to_owned();
        };
        let (day, time) = calendar::day_and_time(time);
        format!("{day} {time}")
    }

    /// Returns the seconds since 1970; an unknown date is 0, for lack of another value in Mesos.
    fn seconds(&self) -> f64 {
        std::time::Duration::from_secs(self.time.unwrap_or_default()).as_secs_f64()
    }

    /// Returns the build's part of `/version` and `/state`.
    pub fn view(&self) -> BuildView {
        BuildView {
            build_date: self.date(),
            build_time: self.seconds(),
            build_user: BUILD_USER,
            git_sha: self.commit,
        }
    }

    /// Returns the response to `/version` for a daemon with this version of Mesos's interface.
    pub fn version_view<'a>(&self, interface: &'a str) -> VersionView<'a> {
        VersionView {
            build: self.view(),
            meseta_version: self.version,
            version: interface,
        }
    }

    /// Returns the response to the call GET_VERSION.
    pub fn version_info(&self, interface: &str) -> VersionInfo {
        VersionInfo {
            version: interface.to_owned(),
            build_date: Some(self.date()),
            build_time: Some(self.seconds()),
            build_user: Some(BUILD_USER.to_owned()),
            git_sha: self.commit.map(str::to_owned),
            ..VersionInfo::default()
        }
    }
}

/// The build, under Mesos's field names.
#[derive(Clone, Debug, Serialize)]
pub struct BuildView {
    build_date: String,
    build_time: f64,
    build_user: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_sha: Option<&'static str>,
}

/// The page `/version` of both daemons.
#[derive(Clone, Debug, Serialize)]
pub struct VersionView<'a> {
    #[serde(flatten)]
    build: BuildView,
    meseta_version: &'static str,
    version: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_build_facts_appear() {
        let known = BuildInfo {
            version: "1.2.3",
            commit: Some("cbc18e0"),
            time: Some(1_795_452_158),
        };
        let page = serde_json::to_value(known.version_view("1.12.0")).expect("JSON");
        let expected = serde_json::json!({
            "build_date": "2026-11-23 16:42:38", "build_time": 1_795_452_158.0, "build_user": "meseta",
            "git_sha": "cbc18e0", "meseta_version": "1.2.3", "version": "1.12.0",
        });
        assert_eq!(page, expected);
        assert_eq!(known.version_info("1.12.0").git_sha(), "cbc18e0");

        let page = serde_json::to_value(BuildInfo::default().version_view("1.12.0")).expect("JSON");
        assert_eq!(page["build_date"], "unknown");
        assert_eq!(page.get("git_sha"), None);
    }
}
