//! Domains in operators' texts: the location of a daemon, by region and zone.

use crate::json;
use crate::mesos::v1::DomainInfo;

/// A valid domain, for errors.
const EXAMPLE: &str = r#"{"fault_domain":{"region":{"name":"eu"},"zone":{"name":"rack1"}}}"#;

/// The error of parsing a domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; write it as {EXAMPLE}")]
pub struct DomainTextError {
    reason: String,
}

/// Parses a domain in JSON, which must name a region and a zone.
pub fn parse_domain(text: &str) -> Result<DomainInfo, DomainTextError> {
    let error = |reason: String| DomainTextError { reason };
    let domain: DomainInfo =
        json::from_slice(text.as_bytes()).map_err(|reason| error(reason.to_string()))?;
    let Some(fault_domain) = &domain.fault_domain else {
        return Err(error("`fault_domain` is missing".to_owned()));
    };
    if fault_domain.region.name.is_empty() || fault_domain.zone.name.is_empty() {
        return Err(error("region and zone need a name".to_owned()));
    }
    Ok(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_parses_or_error_shows_example() {
        let domain = parse_domain(EXAMPLE).unwrap().fault_domain.unwrap();
        assert_eq!((&*domain.region.name, &*domain.zone.name), ("eu", "rack1"));
        for text in [
            "",
            "eu",
            "{}",
            r#"{"fault_domain":{"region":{"name":"eu"}}}"#,
            r#"{"fault_domain":{"region":{"name":""},"zone":{"name":"z"}}}"#,
        ] {
            let error = parse_domain(text).unwrap_err().to_string();
            assert!(error.ends_with(EXAMPLE), "{error}");
        }
    }
}
