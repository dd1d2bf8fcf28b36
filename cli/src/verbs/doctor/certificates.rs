//! How long certificates in files are valid, of this machine's agent and of who asks the masters.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use meseta_agent::Finding;
use meseta_daemon::calendar::day_and_time;
use meseta_daemon::error_chain::chain;
use meseta_daemon::tls::{self, END_WARNING, TlsError};

const RENEW: &str = "`meseta tls renew` makes new ones of its own, another authority signs its own: before that day, for then \
                     nobody believes it";

/// A finding of each file, once, at this time since 1970.
pub(super) fn check<'a>(
    files: impl Iterator<Item = &'a Path>,
    now: Duration,
) -> impl Iterator<Item = Finding> {
    let files: BTreeSet<&Path> = files.collect();
    let each = files.into_iter();
    each.map(move |path| evaluate(path, tls::end_of(path), now))
}

fn evaluate(path: &Path, end: Result<Option<Duration>, TlsError>, now: Duration) -> Finding {
    let path = path.display();
    let end = match end {
        Ok(Some(end)) => end,
        Ok(None) => {
            return Finding::warning(
                format!("nothing in {path} says how long it is valid"),
                "give a file of certificates in PEM form",
            );
        }
        Err(error) => {
            return Finding::warning(
                format!("certificates are not looked at: {}", chain(&error)),
                "run this as the user that the file belongs to",
            );
        }
    };
    let (day, _) = day_and_time(end.as_secs());
    match end.checked_sub(now) {
        Some(left) if left > END_WARNING => {
            Finding::fine(format!("the certificate in {path} is valid until {day}"))
        }
        Some(left) => {
            let days = left.as_secs() / (24 * 60 * 60);
            let what = format!("the certificate in {path} ends in {days} days, on {day}");
            Finding::warning(what, RENEW)
        }
        None => Finding::problem(
            format!("the certificate in {path} has ended on {day}"),
            RENEW,
        ),
    }
}

#[cfg(test)]
mod tests {
    use meseta_agent::Severity;

    use super::*;

    #[test]
    fn a_certificate_that_ends_soon_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cert.pem");
        let mut params = rcgen::CertificateParams::new(vec!["n1".to_owned()]).expect("names");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        let signed = params.self_signed(&key).expect("signed");
        std::fs::write(&path, signed.pem()).expect("written");
        let day = Duration::from_secs(24 * 60 * 60);
        let end = tls::end_of(&path).expect("read").expect("an end");
        for (now, severity, part) in [
            (end - 31 * day, Severity::Fine, "until 2027-01-01"),
            (end - 10 * day, Severity::Warning, "in 10 days"),
            (end + day, Severity::Problem, "has ended on 2027-01-01"),
        ] {
            // Named twice, as that of an agent is which is also shown, it is looked at once.
            let both = [path.as_path(), path.as_path()].into_iter();
            let found: Vec<Finding> = check(both, now).collect();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].severity, severity, "{}", found[0]);
            assert!(found[0].what.contains(part), "{}", found[0]);
        }
        let missing = dir.path().join("none");
        let found: Vec<Finding> = check([missing.as_path()].into_iter(), end).collect();
        assert_eq!(found[0].severity, Severity::Warning);
    }
}
