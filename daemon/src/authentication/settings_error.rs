//! The errors in a daemon's authentication settings that prevent its start.

use meseta_access::exposure::ExposureError;
use meseta_access::{AclError, CredentialError, browser};

use crate::error_chain;
use crate::tls::{FileError, TlsError};

/// The reason why a daemon must not start with its settings. The message contains the cause, which is therefore no source:
/// it would be printed twice.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("--ip: {0}")]
    Exposed(ExposureError),
    #[error("--{flag}: {cause}")]
    Credentials {
        flag: &'static str,
        cause: CredentialError,
    },
    #[error("--{flag}: {}", error_chain::chain(cause))]
    File {
        flag: &'static str,
        cause: FileError,
    },
    #[error(
        "--{flag}: give the path of a file: all users of the machine can read secrets on a \
         command line"
    )]
    Inline { flag: &'static str },
    #[error("--acls: {0}")]
    Acls(AclError),
    #[error("--acls={0:?} is neither JSON nor file:///path to it")]
    NoAcls(String),
    #[error(
        "--firewall_rules: expected {{\"disabled_endpoints\": {{\"paths\": [\"/path\", ...]}}}}: {0}"
    )]
    Firewall(String),
    #[error("--{flag} needs --{credentials}: a file of credentials")]
    NoCredentials {
        flag: &'static str,
        credentials: &'static str,
    },
    #[error("--{flag}: {cause}")]
    Page {
        flag: &'static str,
        cause: browser::ParseError,
    },
    #[error("--ssl_cert_file and --ssl_key_file go together: give both or none")]
    HalfAPair,
    #[error("--ssl_ca_file needs --ssl_cert_file and --ssl_key_file")]
    AuthoritiesAlone,
    #[error("--ssl_cert_file, --ssl_key_file, --ssl_ca_file: {}", error_chain::chain(.0))]
    Tls(TlsError),
}
