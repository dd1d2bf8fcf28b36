//! The user of this process, by the name that agents use for users.
//!
//! Entered through [`name`]. Invariant: the kernel's answer takes precedence over the environment, which often names the
//! user that started a shell or a service, and is inherited by programs that change their user.

/// Returns the name of the user of this process; if the machine has no name for the user, as in many containers, the value
/// of `USER`.
#[must_use]
pub fn name() -> Option<String> {
    let known = nix::unistd::User::from_uid(nix::unistd::geteuid());
    let known = known.ok().flatten().map(|user| user.name);
    let said = || std::env::var("USER").ok().filter(|name| !name.is_empty());
    known.or_else(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_the_process_user() {
        let told = std::process::Command::new("id").arg("-un").output();
        let told = told.expect("`id` is there").stdout;
        let expected = String::from_utf8(told).expect("a name");
        assert_eq!(name().as_deref(), Some(expected.trim()));
    }
}
