//! The user of a container's processes.
//!
//! Entered through [`UserSwitching::credentials`]. Invariant: a container runs as the user that its task names, unless
//! the operator sets `--switch_user=false`.

use meseta_isolators::Credentials;

use crate::failure::Failure;

/// Whether the agent runs containers as the users that their tasks name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum UserSwitching {
    /// Each container runs as the user that its task names.
    On,
    /// `--switch_user=false`: all containers run as the agent's user.
    Off,
    /// The agent lacks the rights to switch: it runs containers of its own user only.
    Impossible,
}

impl UserSwitching {
    /// Reads `--switch_user` for an agent that has, or lacks, the rights of root.
    pub(crate) fn from_flag(switch_user: bool, privileged: bool) -> Self {
        match (switch_user, privileged) {
            (true, true) => Self::On,
            (true, false) => Self::Impossible,
            (false, _) => Self::Off,
        }
    }

    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }

    /// Returns the credentials that a container of this user switches to; `None` if it keeps those of the agent.
    pub(crate) fn credentials(self, user: &str) -> Result<Option<Credentials>, Failure> {
        match self {
            Self::On => Ok(Some(Credentials::lookup(user)?)),
            Self::Off => Ok(None),
            Self::Impossible => {
                let own_name = meseta_daemon::user::name();
                let own_uid = rustix::process::geteuid().as_raw();
                if own_name.as_deref() == Some(user) || Credentials::lookup(user)?.uid == own_uid {
                    return Ok(None);
                }
                let own = own_name.unwrap_or_else(|| format!("uid {own_uid}"));
                Err(Failure::new(format!(
                    "this agent runs as {own:?} without the rights to switch users and cannot run a task as {user:?}: \
                     name {own:?} as the user of the task, or start the agent as root with CAP_SYS_ADMIN, or with \
                     --switch_user=false to run all tasks as {own:?}"
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprivileged_agent_refuses_other_users() {
        let own = meseta_daemon::user::name().expect("a name");
        let other = if own == "nobody" { "root" } else { "nobody" };
        let impossible = UserSwitching::from_flag(true, false);
        assert_eq!(impossible.credentials(&own).expect("its own user"), None);
        let refused = impossible.credentials(other).expect_err("another user");
        let refused = refused.to_string();
        assert!(
            refused.contains(other) && refused.contains("--switch_user=false"),
            "{refused}"
        );
        let unknown = impossible
            .credentials("nobody-of-this-name")
            .expect_err("no user");
        assert!(
            unknown.to_string().contains("nobody-of-this-name"),
            "{unknown}"
        );
        let off = UserSwitching::from_flag(false, false);
        assert_eq!(off.credentials(other).expect("the agent's user"), None);
        let on = UserSwitching::from_flag(true, true);
        assert!(on.credentials(other).expect("known").is_some());
    }
}
