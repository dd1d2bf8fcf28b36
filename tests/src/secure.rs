//! Certificates, credentials and ACLs for a secured cluster, and a client that uses them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_access::{SecretHash, basic};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::http::{Answer, answer};

/// The time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A certificate authority with its folder.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate, with its private key.
#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pair {
    /// Returns the flags of a daemon that serves the certificate.
    pub fn flags(&self) -> [String; 2] {
        [
            format!("--ssl_cert_file={}", self.certificate.display()),
            format!("--ssl_key_file={}", self.key.display()),
        ]
    }
}

impl Authority {
    pub fn new(dir: &Path) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        std::fs::create_dir_all(dir).expect("a folder");
        std::fs::write(dir.join("ca.pem"), &pem).expect("a file");
        Self {
            dir: dir.to_owned(),
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Returns the file with the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Signs a certificate for these hosts.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let params = CertificateParams::new(hosts).expect("names of hosts");
        let signed = params.signed_by(&key, &self.issuer).expect("a signature");
        let pair = Pair {
            certificate: self.dir.join(format!("{name}.pem")),
            key: self.dir.join(format!("{name}.key")),
        };
        std::fs::write(&pair.certificate, signed.pem()).expect("a file");
        write_private(&pair.key, &key.serialize_pem());
        pair
    }

    /// Sends a GET or POST as a principal, over TLS.
    pub fn ask(
        &self,
        method: &str,
        url: &str,
        who: Option<(&str, &str)>,
        body: &str,
    ) -> Result<Answer, ureq::Error> {
        Client::new(self.pem.as_bytes()).ask(method, url, who, body)
    }
}

/// A client that trusts one authority and follows no redirection.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
}

impl Client {
    /// Creates a client that trusts the authority with this certificate, in PEM form.
    pub fn new(authority: &[u8]) -> Self {
        let root = Certificate::from_pem(authority).expect("a certificate");
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&[root]))
            .build();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(TIMEOUT))
            .tls_config(tls)
            .build();
        Self {
            agent: config.into(),
        }
    }

    /// Sends a GET or POST as a principal, over TLS.
    pub fn ask(
        &self,
        method: &str,
        url: &str,
        who: Option<(&str, &str)>,
        body: &str,
    ) -> Result<Answer, ureq::Error> {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if let Some((principal, secret)) = who {
            headers.push(("authorization", basic::header(principal, secret.as_bytes())));
        }
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        self.send(method, url, &headers, body)
    }

    /// Sends a request with exactly these headers.
    pub fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, ureq::Error> {
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_owned()).map_err(ureq::Error::from)?;
        answer(self.agent.run(request)?)
    }
}

/// Writes a file that is readable by its owner only.
pub fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("a mode");
}

/// Writes a file of credentials with these principals and their secrets.
pub fn credentials(path: &Path, principals: &[(&str, &str)]) {
    let lines = principals.iter().map(|(principal, secret)| {
        let hash = SecretHash::from_secret(secret.as_bytes(), [9; 16]).expect("a hash");
        format!("{principal} {hash}\n")
    });
    write_private(path, &lines.collect::<String>());
}
