//! The validity of certificates: those in files, of this machine's daemons and of the user, and those that masters show.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_agent::{Finding, Severity};
use meseta_daemon::calendar::day_and_time;
use meseta_daemon::error_chain::chain;
use meseta_daemon::tls::{self, END_WARNING, TlsError};

const RENEW: &str = "renew it before that day: `meseta tls renew` renews certificates of `meseta \
    tls`, and your own authority renews others";

/// The purpose of the certificates in a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The first certificate is presented, and the others lead to an authority.
    Shown,
    /// A set of authorities, of which one valid certificate is sufficient.
    Authorities,
}

/// Returns a finding for each file, once, at this time since 1970.
pub(super) fn check(
    files: impl Iterator<Item = (PathBuf, Kind)>,
    now: Duration,
) -> impl Iterator<Item = Finding> {
    let files: BTreeSet<(PathBuf, Kind)> = files.collect();
    let each = files.into_iter();
    each.map(move |(path, kind)| evaluate(&path, kind, tls::ends_of(&path), now))
}

/// Returns a finding for the certificate that a master has presented, which ends at this time.
pub(super) fn of_master(address: &str, end: Duration, now: Duration) -> Finding {
    judge(
        &format!("the certificate that master {address} shows"),
        end,
        now,
    )
}

fn evaluate(
    path: &Path,
    kind: Kind,
    ends: Result<Vec<Option<Duration>>, TlsError>,
    now: Duration,
) -> Finding {
    let path = path.display();
    let ends = match ends {
        Ok(ends) => ends,
        Err(error) => {
            return Finding::warning(
                format!("certificates not checked: {}", chain(&error)),
                "run this as root, or as the owner of the file",
            );
        }
    };
    let (what, end) = match kind {
        Kind::Shown => ("certificate", ends.first().copied().flatten()),
        Kind::Authorities => ("last authority", ends.iter().copied().flatten().max()),
    };
    let Some(end) = end else {
        return Finding::warning(
            format!("no certificate in {path} has an expiry date"),
            "give a file of certificates in PEM form",
        );
    };
    let found = judge(&format!("the {what} in {path}"), end, now);
    let others = ends.iter().copied().flatten().min();
    match others {
        // A client that knows another authority trusts the certificate without the others.
        Some(first) if kind == Kind::Shown && found.severity == Severity::Fine => {
            let way = format!("a further certificate in {path}");
            let of_way = judge(&way, first, now);
            if of_way.severity == Severity::Fine {
                return found;
            }
            Finding::warning(of_way.what, RENEW)
        }
        _ => found,
    }
}

/// Returns the finding for a certificate with this end.
fn judge(what: &str, end: Duration, now: Duration) -> Finding {
    let (day, _) = day_and_time(end.as_secs());
    match end.checked_sub(now) {
        Some(left) if left > END_WARNING => Finding::fine(format!("{what} is valid until {day}")),
        Some(left) => {
            let days = left.as_secs() / (24 * 60 * 60);
            Finding::warning(format!("{what} expires in {days} days, on {day}"), RENEW)
        }
        None => Finding::problem(format!("{what} expired on {day}"), RENEW),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a certificate of loopback that ends with that year, with its key, in PEM form.
    pub(in super::super) fn ending(year: i32) -> (String, String) {
        let mut params =
            rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year + 1, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        (pem, key.serialize_pem())
    }

    /// Regression: an expired authority was a problem even beside its successor.
    #[test]
    fn one_valid_authority_suffices() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, ending(2024).0 + &ending(2026).0).expect("written");
        let ends = tls::ends_of(&path).expect("read");
        let day = Duration::from_secs(24 * 60 * 60);
        let (first, last) = (ends[0].expect("an end"), ends[1].expect("an end"));
        let severity = |kind, now| {
            let found: Vec<Finding> = check([(path.clone(), kind)].into_iter(), now).collect();
            assert_eq!(found.len(), 1);
            found[0].severity
        };
        for (now, expected) in [
            (first - day, Severity::Fine),
            (first + day, Severity::Fine),
            (last - day, Severity::Warning),
            (last + day, Severity::Problem),
        ] {
            assert_eq!(severity(Kind::Authorities, now), expected);
        }
        assert_eq!(severity(Kind::Shown, first + day), Severity::Problem);
        // The path through the expired authority is not the only one.
        std::fs::write(&path, ending(2026).0 + &ending(2024).0).expect("written");
        assert_eq!(severity(Kind::Shown, first - 31 * day), Severity::Fine);
        assert_eq!(severity(Kind::Shown, first + day), Severity::Warning);
        assert_eq!(severity(Kind::Shown, last + day), Severity::Problem);
    }

    #[test]
    fn expiring_certificate_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cert.pem");
        std::fs::write(&path, ending(2026).0).expect("written");
        let day = Duration::from_secs(24 * 60 * 60);
        let end = tls::ends_of(&path).expect("read")[0].expect("an end");
        for (now, severity, part) in [
            (end - 31 * day, Severity::Fine, "until 2027-01-01"),
            (end - 10 * day, Severity::Warning, "in 10 days"),
            (end + day, Severity::Problem, "expired on 2027-01-01"),
        ] {
            // A certificate listed twice, as an agent's that is also shown, is checked once.
            let both = [(path.clone(), Kind::Shown), (path.clone(), Kind::Shown)];
            let mut found: Vec<Finding> = check(both.into_iter(), now).collect();
            assert_eq!(found.len(), 1);
            found.push(of_master("m:5050", end, now));
            assert!(found[1].what.contains("master m:5050 shows"));
            assert_eq!(found[1].severity, severity);
            assert!(found[1].what.contains(part), "{}", found[1]);
            assert_eq!(found[0].severity, severity, "{}", found[0]);
            assert!(found[0].what.contains(part), "{}", found[0]);
        }
        let missing = dir.path().join("none");
        let missing = [(missing, Kind::Authorities)].into_iter();
        let found: Vec<Finding> = check(missing, end).collect();
        assert_eq!(found[0].severity, Severity::Warning);
    }
}
