//! Hints after a refusal, in the terms of this command line: the master's message uses the terms of its API.

use http::StatusCode;

const AGENTS: &str = "`meseta agents` lists the agents by id and host name";
const FRAMEWORKS: &str = "`meseta frameworks` lists the subscribed frameworks";

const ANOTHER_DAEMON: &str = "a server of another kind seems to answer there: --master \
    (MESETA_MASTER) names a \
    master, --scheduler (MESETA_SCHEDULER) the scheduler of jobs, and agents listen on ports of their own";

/// The text of a daemon's answer to clients that wrongly use no TLS.
pub(super) const SPEAKS_TLS: &str = "speaks TLS";

/// The texts that identify a master's message, and the hints for them.
const BY_WORDS: &[(&str, &str)] = &[
    (
        "use 'force'",
        "--force overrides; `meseta quota` shows the usage, `meseta agents` the capacity",
    ),
    ("No agent found", AGENTS),
    ("Unknown agent", AGENTS),
    ("There is no agent", AGENTS),
    ("there is no job", "`meseta jobs` lists the jobs"),
    (
        "is not being updated",
        "`meseta job status NAME` shows its state",
    ),
    (
        "has no version",
        "`meseta job history NAME` lists the versions",
    ),
    // Every daemon of its kind has the endpoints that verbs use.
    ("404 Not Found.", ANOTHER_DAEMON),
    ("/openapi.json says what there is", ANOTHER_DAEMON),
    ("Failed to parse body into Call protobuf", ANOTHER_DAEMON),
    ("No framework found", FRAMEWORKS),
    ("There is no framework", FRAMEWORKS),
    (
        "There is no role",
        "`meseta roles` lists the roles that are in use",
    ),
    (
        "Unknown role",
        "the master accepts only the roles in its --roles",
    ),
    ("has no quota set", "`meseta quota` lists the quotas"),
    (
        "quota hierarchy would not be sound",
        "the guarantee of a role must cover the guarantees of the roles below: set the upper role first, and remove the lower roles first",
    ),
    (
        "is not deactivated",
        "the agent is active: `meseta agents` shows the state of each agent",
    ),
    (
        "still in the DRAINING state",
        "`meseta drain AGENT --wait` returns when it is drained; reactivate it then",
    ),
    (
        "not part of a maintenance schedule",
        "schedule it first: `meseta maintenance schedule HOST`; the host name and address are those of \
         `meseta agents`",
    ),
    (
        "is not in DOWN mode",
        "only machines that are down can be brought up; `meseta maintenance` lists them",
    ),
    (
        "is not in DRAINING mode",
        "only scheduled machines can be taken down; `meseta maintenance` lists them",
    ),
    (
        "Agent is part of a maintenance schedule",
        "`meseta maintenance` shows the schedule, `meseta maintenance clear` cancels it",
    ),
    (
        SPEAKS_TLS,
        "give --ca=FILE (or MESETA_CA), the authority that signed its certificate: verbs then \
         use TLS",
    ),
    (
        "does not match a reserved resource",
        "give the --principal=NAME under which the cluster knows you, or leave it out",
    ),
];

/// Returns the hint, if there is one.
pub(super) fn after(status: StatusCode, words: &str) -> Option<&'static str> {
    let by_words = BY_WORDS.iter().find(|(known, _)| words.contains(known));
    if let Some((_, hint)) = by_words {
        return Some(hint);
    }
    Some(match status {
        StatusCode::UNAUTHORIZED => {
            "give a valid --principal=NAME and --secret-file=FILE; agents get only the \
             certificate of --cert=FILE and --key=FILE, unless --secret-to-agents sends them the \
             secret"
        }
        StatusCode::FORBIDDEN => {
            "the daemon's --acls forbid this: use other credentials with --principal and --secret-file, or ask for the permission"
        }
        StatusCode::NOT_FOUND => {
            "not found, or gone: `meseta agents`, `frameworks`, `tasks` and `roles` list the existing objects"
        }
        StatusCode::CONFLICT => {
            "the request conflicts with the present state: look at `meseta agents`, \
             `roles` and `tasks`, and try again"
        }
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::URI_TOO_LONG => "request less at a time",
        StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::NOT_ACCEPTABLE
        | StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            "is it a Meseta daemon of this version? compare `meseta --version` with its /version"
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => "try again in a moment",
        status if status.is_client_error() => "see the verb's --help",
        _ => return None,
    })
}

/// Returns the hint for an untrusted certificate of the other side; `None` for other errors.
pub(super) fn of_certificate(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let words = meseta_daemon::error_chain::chain(error);
    if !words.contains("invalid peer certificate") {
        // The answer of a daemon without TLS is no TLS record.
        return words.contains("InvalidContentType").then_some(
            "the server does not use TLS: leave --ca (and MESETA_CA) and `https://` \
                out",
        );
    }
    Some(if words.contains("not valid for name") {
        "use the host name in its certificate, or give it a certificate for this address \
         (`meseta tls` makes one)"
    } else if words.contains("xpired") {
        "its certificate has expired: make a new certificate (`meseta tls renew`)"
    } else if words.contains("not valid yet") || words.contains("NotValidYet") {
        "its certificate is not valid yet: synchronize the clocks of both machines (`timedatectl \
         set-ntp true`)"
    } else if words.contains("names no") || words.contains("is not marked for a") {
        "verbs send secrets to masters and schedulers only, and its certificate does not mark it \
         as such: renew the certificate with `meseta tls renew`"
    } else if words.contains("UnknownIssuer") || words.contains("BadSignature") {
        "another authority signed its certificate: give that authority with --ca (or MESETA_CA)"
    } else {
        "give it a certificate for servers and clients (`meseta tls` makes one)"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_error_has_a_hint() {
        for code in 400..500 {
            let status = StatusCode::from_u16(code).expect("a code");
            assert!(after(status, "").is_some(), "{code}");
        }
        assert_eq!(after(StatusCode::INTERNAL_SERVER_ERROR, ""), None);
    }

    /// Regression: every fault besides the name or the end was blamed on the authority.
    #[test]
    fn certificate_faults_are_distinguished() {
        for (words, part) in [
            ("certificate not valid for name \"a\"", "use the host name"),
            ("certificate expired: verified at time 2", "has expired"),
            (
                "certificate not valid yet: verification time 1",
                "synchronize the clocks",
            ),
            ("UnknownIssuer", "--ca"),
            ("BadSignature", "--ca"),
            ("InvalidPurpose", "for servers and clients"),
        ] {
            let error = std::io::Error::other(format!("invalid peer certificate: {words}"));
            let hint = of_certificate(&error).expect("a hint");
            assert!(hint.contains(part), "{words}: {hint}");
        }
        assert_eq!(of_certificate(&std::io::Error::other("refused")), None);
    }

    #[test]
    fn master_message_precedes_status_code() {
        let hint = after(
            StatusCode::BAD_REQUEST,
            "too much (use 'force' flag to bypass this check)",
        );
        assert!(hint.is_some_and(|hint| hint.starts_with("--force")));
    }
}
