//! What stands at the door: lists of rights, credentials as callers send them, rates.
//!
//! What is read is read the same again; what cannot be is refused with the reason.

use meseta_access::rate_limits::RateLimits;
use meseta_access::{Acls, Action, Authorizer, SecretHash, basic};

/// Every body with seeds.
pub const ALL: &[(&str, fn(&[u8]), &[&[u8]])] = &[
    ("acls", acls, ACLS),
    ("basic_credentials", basic_credentials, CLAIMS),
    ("rate_limits", rate_limits, RATES),
];

const ACLS: &[&[u8]] = &[
    br#"{"permissive":false,"register_frameworks":[{"principals":{"values":["a"]},"roles":{"values":["r","a/%"]}}]}"#,
    br#"{"run_tasks":[{"principals":{"type":"ANY"},"users":{"type":"NONE"}}],"teardown_frameworks":[]}"#,
];

const CLAIMS: &[&[u8]] = &[
    b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
    b"Basic Tm9uZTpOb25l",
    b"$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA",
];

const RATES: &[&[u8]] = &[
    br#"{"limits":[{"principal":"a","qps":5.5,"capacity":10},{"principal":"b"}],"aggregate_default_qps":2}"#,
];

/// Whatever the list says, asking about anything gets an answer.
pub fn acls(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match Acls::parse(text) {
        Ok(acls) => {
            for permissive in [false, true] {
                let authorizer = Authorizer::new(acls.clone(), permissive);
                for object in [None, Some(""), Some("a/b"), Some(text)] {
                    let _either = authorizer.allows(Some("a"), Action::RunTask, object);
                    let _either = authorizer.allows(None, Action::RegisterFramework, object);
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub fn basic_credentials(data: &[u8]) {
    if let Some(claim) = basic::claim(data) {
        let again = basic::claim(basic::header(&claim.principal, &claim.secret).as_bytes());
        let again = again.expect("our own header");
        assert_eq!(again.principal, claim.principal);
        assert_eq!(*again.secret, *claim.secret);
    }
    let text = String::from_utf8_lossy(data);
    let _refused = SecretHash::parse(&text).map_err(|why| assert!(!why.is_empty()));
}

pub fn rate_limits(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _refused = RateLimits::parse(text).map_err(|error| assert!(!error.to_string().is_empty()));
}
