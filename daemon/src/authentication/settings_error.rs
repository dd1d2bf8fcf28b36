//! Why a daemon must not start with the authentication that it was told to have.

use meseta_access::exposure::ExposureError;
use meseta_access::{AclError, CredentialError, browser};

use crate::error_chain;
use crate::tls::{FileError, TlsError};

/// Why a daemon must not start as it was told to.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("--ip: {0}")]
    Exposed(ExposureError),
    #[error("--{flag}: {source}")]
    Credentials {
        flag: &'static str,
        source: CredentialError,
    },
    #[error("--{flag}: {}", error_chain::chain(source))]
    File {
        flag: &'static str,
        source: FileError,
    },
    #[error(
        "--{flag}: give the path of a file: secrets on a command line are seen by everybody on the machine"
    )]
    Inline { flag: &'static str },
    #[error("--acls: {0}")]
    Acls(AclError),
    #[error(
        "--firewall_rules: expected {{\"disabled_endpoints\": {{\"paths\": [\"/path\", ...]}}}}: {0}"
    )]
    Firewall(String),
    #[error("--{flag} needs --{credentials}: a file of credentials")]
    NoCredentials {
        flag: &'static str,
        credentials: &'static str,
    },
    #[error("--{flag}: {source}")]
    Page {
        flag: &'static str,
        source: browser::ParseError,
    },
    #[error("--ssl_cert_file and --ssl_key_file go together: give both or none")]
    HalfAPair,
    #[error("--ssl_ca_file needs --ssl_cert_file and --ssl_key_file")]
    AuthoritiesAlone,
    #[error("--ssl_cert_file, --ssl_key_file, --ssl_ca_file: {}", error_chain::chain(.0))]
    Tls(TlsError),
}
