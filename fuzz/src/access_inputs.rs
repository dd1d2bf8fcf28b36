//! Inputs of access control: ACLs, credentials as clients send them, rate limits.
//!
//! An accepted input gives the same value when read again; a refused one gives a reason.

use meseta_access::rate_limits::RateLimits;
use meseta_access::{Acls, Action, Authorizer, SecretHash, basic};

/// For any list, every question gets an answer.
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
