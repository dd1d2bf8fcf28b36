//! The findings of `meseta doctor` about one master: whether it answers and is trusted, its time and version, and its
//! certificate.
//!
//! [`ask`] reads, [`evaluate`] decides and is pure.

use std::path::Path;
use std::time::{Duration, SystemTime};

use meseta_agent::Finding;
use meseta_daemon::client::{Error, Reply};
use meseta_daemon::error_chain;
use meseta_master::STALE_HEADER;
use serde_json::Value;

use crate::verbs::{address, hints, identity};

/// The clock difference from which logs and times of maintenance are misleading.
const SKEW_WARNING: Duration = Duration::from_secs(5);
/// The skew above which new certificates are not valid yet.
const SKEW_PROBLEM: Duration = Duration::from_secs(300);
/// The precision of the master's time in its answer: whole seconds.
const DATE_PRECISION: Duration = Duration::from_secs(1);

/// The remedy if another server answers.
pub(super) const NO_MASTER: &str =
    "give the address of a master with --master; masters listen on port 5050 by default";

/// A master's answer, and the facts about the connection.
pub(super) struct Asked {
    pub(super) answer: Answer,
    /// The end of the certificate that the master has shown, trusted or not, since the Unix epoch.
    pub(super) certificate_end: Option<Duration>,
}

/// The result of a query to a master.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The master returned its version, and perhaps its time.
    Answered {
        version: Option<String>,
        skew: Option<Skew>,
        /// The reason why a leader may not act, if it may not.
        suspended: Option<String>,
    },
    /// Nothing listens, or no answer came.
    Silent(String),
    /// The server's certificate is not trusted, or the server speaks no TLS.
    NotTrusted { why: String, hint: &'static str },
    /// The server that answered is no master.
    Strange(String),
    /// The certificates or the secret of this side cannot be read.
    Unusable(String),
}

impl Answer {
    /// Whether a daemon of Meseta has responded.
    pub(super) const fn is_of_meseta(&self) -> bool {
        let Self::Answered { version, .. } = self else {
            return false;
        };
        version.is_some()
    }
}

/// The difference between the master's clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skew {
    pub(super) is_ahead: bool,
    /// The minimum skew: the delay and the precision are not counted.
    pub(super) by: Duration,
}

impl Skew {
    /// Returns the skew of a time that was read between two readings of our clock.
    fn between(told: SystemTime, asked: SystemTime, answered: SystemTime) -> Self {
        let ahead = told.duration_since(answered).unwrap_or_default();
        // The time is cut to whole seconds, so it was up to one second later.
        let latest = told + DATE_PRECISION;
        let behind = asked.duration_since(latest).unwrap_or_default();
        Self {
            is_ahead: !ahead.is_zero(),
            by: ahead.max(behind),
        }
    }
}

/// Queries a master for its version, which needs no permission. `trusted` is the authority that is trusted unless the verb
/// has another.
pub(super) async fn ask(address: &str, trusted: Option<&Path>) -> Asked {
    let url = address::url_with(identity::scheme_trusting(trusted), address, "/version");
    let client = identity::client_trusting(address, trusted, url.starts_with("https://"));
    let (client, shown) = match client {
        Ok(client) => client,
        Err(error) => {
            return Asked {
                answer: Answer::Unusable(format!("{error:#}")),
                certificate_end: None,
            };
        }
    };
    let asked = super::now();
    let answer = match client.get(&url).await {
        Ok(reply) => read(&reply, asked, super::now()),
        Err(error) => unanswered(&error),
    };
    Asked {
        answer,
        certificate_end: shown.end(),
    }
}

fn unanswered(error: &Error) -> Answer {
    let Error::Connect { source, .. } = error else {
        return Answer::Silent(error_chain::chain(error));
    };
    let why = error_chain::chain(source);
    match hints::of_certificate(source) {
        Some(hint) => Answer::NotTrusted { why, hint },
        None => Answer::Silent(why),
    }
}

fn read(reply: &Reply, asked: SystemTime, answered: SystemTime) -> Answer {
    let words = reply.text();
    if words.contains(hints::SPEAKS_TLS)
        && let Some(hint) = hints::after(reply.status, &words)
    {
        let why = words.trim().to_owned();
        return Answer::NotTrusted { why, hint };
    }
    if !reply.status.is_success() {
        return Answer::Strange(format!("{}: {}", reply.status, words.trim()));
    }
    let Ok(page) = serde_json::from_slice::<Value>(&reply.body) else {
        return Answer::Strange("an answer without JSON".to_owned());
    };
    let told = reply.header("date");
    let told = told.and_then(|date| httpdate::parse_http_date(date).ok());
    let version = page.get("meseta_version").and_then(Value::as_str);
    Answer::Answered {
        version: version.map(str::to_owned),
        skew: told.map(|told| Skew::between(told, asked, answered)),
        suspended: reply.header(STALE_HEADER).map(str::to_owned),
    }
}

/// Evaluates a response; `own` is the version of this program.
pub(super) fn evaluate(address: &str, answer: &Answer, own: &str) -> Vec<Finding> {
    let (version, skew, suspended) = match answer {
        Answer::Answered {
            version,
            skew,
            suspended,
        } => (version, skew, suspended),
        Answer::Silent(why) => {
            return vec![Finding::problem(
                format!("master {address} does not answer: {why}"),
                "start it (`systemctl start meseta-master`, `meseta local`), open its port between here and there, or \
                 correct --master",
            )];
        }
        Answer::NotTrusted { why, hint } => {
            return vec![Finding::problem(
                format!("master {address} is not trusted: {why}"),
                *hint,
            )];
        }
        Answer::Strange(what) => {
            return vec![Finding::problem(
                format!("{address} answers, but is not a master: {what}"),
                NO_MASTER,
            )];
        }
        Answer::Unusable(why) => {
            return vec![Finding::problem(
                format!("failed to query master {address}: {why}"),
                "give readable files with --ca, --cert, --key and --secret-file",
            )];
        }
    };
    let mut findings = vec![Finding::fine(format!("master {address} answers"))];
    findings.push(evaluate_version(address, version.as_deref(), own));
    findings.extend(skew.map(|skew| evaluate_skew(address, skew)));
    findings.extend(suspended.iter().map(|why| {
        Finding::problem(
            format!("master {address} leads and cannot write changes: {why}"),
            "repair etcd (`etcdctl endpoint health`, `etcdctl alarm list`): the master continues \
            once it can write to etcd again",
        )
    }));
    findings
}

fn evaluate_version(address: &str, version: Option<&str>, own: &str) -> Finding {
    let Some(version) = version else {
        return Finding::warning(
            format!("master {address} reports no version of Meseta"),
            format!("it is Mesos, or an older Meseta: upgrade it to {own}"),
        );
    };
    let (Some(theirs), Some(ours)) = (release(version), release(own)) else {
        return Finding::warning(
            format!(
                "master {address} has version {version:?}, which is not a release; this is {own}"
            ),
            "use releases: masters, agents and verbs of two consecutive minor versions work together",
        );
    };
    let is_near = theirs.0 == ours.0 && theirs.1.abs_diff(ours.1) <= 1;
    if is_near {
        return Finding::fine(format!(
            "master {address} has version {version}, this is {own}"
        ));
    }
    let mend = if theirs < ours {
        format!("upgrade the master, one minor version after the other, to {own}")
    } else {
        format!("upgrade this machine, one minor version after the other, to {version}")
    };
    Finding::problem(
        format!(
            "master {address} has version {version}, this is {own}: only consecutive minor \
            versions work together"
        ),
        mend,
    )
}

/// Returns the major and the minor number of `1.2.3`.
fn release(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn evaluate_skew(address: &str, skew: Skew) -> Finding {
    const MEND: &str = "synchronize the clocks of both machines (`timedatectl set-ntp true`, \
        chrony or systemd-timesyncd)";
    let direction = if skew.is_ahead { "ahead of" } else { "behind" };
    let seconds = skew.by.as_secs();
    let text = format!("the clock of master {address} is {seconds} s {direction} this one");
    if skew.by > SKEW_PROBLEM {
        Finding::problem(format!("{text}: certificates may be invalid"), MEND)
    } else if skew.by > SKEW_WARNING {
        Finding::warning(text, MEND)
    } else {
        Finding::fine(format!(
            "the clock of master {address} agrees with this machine's clock"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::{HeaderMap, HeaderValue, StatusCode};
    use meseta_agent::Severity;
    use meseta_daemon::server;
    use meseta_daemon::tls::{Files, Served};
    use tokio_util::sync::CancellationToken;

    use super::*;

    const OWN: &str = "0.3.1";

    fn answered(version: Option<&str>, is_ahead: bool, by: u64) -> Answer {
        Answer::Answered {
            version: version.map(str::to_owned),
            skew: Some(Skew {
                is_ahead,
                by: Duration::from_secs(by),
            }),
            suspended: None,
        }
    }

    /// Returns the worst finding about an answer.
    fn worst(answer: &Answer) -> (Severity, String) {
        let findings = evaluate("m:5050", answer, OWN).into_iter();
        let worst = findings.max_by_key(|one| one.severity).expect("a finding");
        assert_eq!(worst.severity == Severity::Fine, worst.mend.is_empty());
        (worst.severity, worst.to_string())
    }

    #[test]
    fn healthy_master_has_no_finding() {
        assert_eq!(worst(&answered(Some("0.3.0"), true, 0)).0, Severity::Fine);
        assert_eq!(worst(&answered(Some("0.4.9"), false, 5)).0, Severity::Fine);
    }

    #[test]
    fn each_connection_fault_names_its_remedy() {
        let not_trusted = Answer::NotTrusted {
            why: "invalid peer certificate: UnknownIssuer".to_owned(),
            hint: "--ca names the authority",
        };
        for (answer, severity, mend) in [
            (
                Answer::Silent("refused".to_owned()),
                Severity::Problem,
                "systemctl start",
            ),
            (not_trusted, Severity::Problem, "--ca"),
            (
                Answer::Strange("404".to_owned()),
                Severity::Problem,
                "port 5050",
            ),
            (
                Answer::Unusable("no file".to_owned()),
                Severity::Problem,
                "--ca",
            ),
            (answered(Some(OWN), true, 6), Severity::Warning, "set-ntp"),
            (
                answered(Some(OWN), false, 301),
                Severity::Problem,
                "set-ntp",
            ),
            (
                answered(Some("0.1.0"), false, 0),
                Severity::Problem,
                "upgrade the master",
            ),
            (
                answered(Some("0.5.0"), false, 0),
                Severity::Problem,
                "upgrade this machine",
            ),
            (
                answered(Some("1.3.0"), false, 0),
                Severity::Problem,
                "upgrade this machine",
            ),
            (
                answered(Some("new"), false, 0),
                Severity::Warning,
                "releases",
            ),
            (answered(None, false, 0), Severity::Warning, "older Meseta"),
        ] {
            let (found, text) = worst(&answer);
            assert_eq!(found, severity, "{text}");
            assert!(text.contains(mend), "{text}");
        }
    }

    #[test]
    fn clock_skew_excludes_delay_and_rounding() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let skew = |told: u64| Skew::between(at(told), at(100), at(102));
        for told in 99..=102 {
            assert!(skew(told).by.is_zero(), "{told}");
        }
        let ahead = Skew {
            is_ahead: true,
            by: Duration::from_secs(8),
        };
        assert_eq!(skew(110), ahead);
        let behind = Skew {
            is_ahead: false,
            by: Duration::from_secs(9),
        };
        assert_eq!(skew(90), behind);
    }

    /// Regression: only the master's own metric and log showed the end of its certificate.
    #[tokio::test]
    async fn untrusted_server_certificate_is_still_seen() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a folder");
        let own = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        let mut urls = Vec::new();
        for year in [2020, 2400] {
            let (pem, key) = super::super::certificates::tests::ending(year);
            std::fs::write(&own.0, pem).expect("written");
            std::fs::write(&own.1, key).expect("written");
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&own.1, private).expect("private");
            let served = Served::load(Files {
                certificate: own.0.clone(),
                key: own.1.clone(),
                authorities: None,
            });
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("a port");
            let address = listener.local_addr().expect("its address");
            urls.push(format!("https://{address}"));
            tokio::spawn(server::serve_with(
                listener,
                Default::default(),
                server::Options::default(),
                Some(served.expect("served")),
                CancellationToken::new(),
            ));
        }
        // The last certificate is the trusted one, and signs itself.
        let ended = ask(&urls[0], Some(&own.0)).await;
        assert!(matches!(ended.answer, Answer::NotTrusted { .. }));
        // The date 2021-01-01.
        let end = Duration::from_secs(1_609_459_200);
        assert_eq!(ended.certificate_end, Some(end));
        let valid = ask(&urls[1], Some(&own.0)).await;
        assert!(matches!(valid.answer, Answer::Strange(_)), "no page");
        assert!(valid.certificate_end > Some(end));
        let unreadable = ask(&urls[1], Some(dir.path())).await;
        assert!(matches!(unreadable.answer, Answer::Unusable(_)));
    }

    #[test]
    fn page_includes_date_and_suspension() {
        let reply = |status: StatusCode, body: &'static str| Reply {
            status,
            headers: HeaderMap::from_iter([(
                http::header::DATE,
                HeaderValue::from_static("Thu, 01 Jan 1970 00:01:50 GMT"),
            )]),
            body: body.into(),
        };
        let at = UNIX_EPOCH + Duration::from_secs(100);
        let read = |status, body| read(&reply(status, body), at, at);
        let well = read(StatusCode::OK, r#"{"meseta_version": "0.1.0"}"#);
        assert_eq!(well, answered(Some("0.1.0"), true, 10));
        let mut stale = reply(StatusCode::OK, r#"{"meseta_version": "0.3.1"}"#);
        let why = HeaderValue::from_static("its lease is not renewed");
        stale.headers.insert(STALE_HEADER, why);
        let suspended = super::read(&stale, at, at);
        let (severity, text) = worst(&suspended);
        assert_eq!(severity, Severity::Problem, "{text}");
        assert!(text.contains("lease is not renewed"), "{text}");
        let page = read(StatusCode::OK, "<html>");
        assert!(matches!(page, Answer::Strange(_)), "{page:?}");
        let gone = read(StatusCode::NOT_FOUND, "");
        assert!(matches!(gone, Answer::Strange(_)), "{gone:?}");
        let encrypted = read(StatusCode::FORBIDDEN, "This port speaks TLS: use https://");
        assert!(matches!(encrypted, Answer::NotTrusted { hint, .. } if hint.contains("--ca=FILE")));
    }
}
