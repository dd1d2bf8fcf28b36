//! The authority of a small fleet: creates itself, and signs certificates for machines and principals.
//!
//! Invariant: a machine's certificate is for its name and for each of its addresses, for servers and for clients; a
//! principal's certificate is for clients only and for no host; neither ends after its authority.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use meseta_daemon::tls::{DaemonKind, principal_uri};

use super::names::Machine;

/// The time before their creation from which certificates are valid: the clocks of a fleet differ.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 60);

/// The begin and end of a validity, since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    from: Duration,
    until: Duration,
}

impl Validity {
    pub(super) fn new(now: Duration, length: Duration) -> Self {
        Self {
            from: now.saturating_sub(CLOCK_SLACK),
            until: now + length,
        }
    }

    /// Limits the validity to that of the fleet's authority, which ends at this Unix time.
    pub(super) fn within(self, authority_end: Duration) -> Self {
        Self {
            until: self.until.min(authority_end),
            ..self
        }
    }

    /// Returns the last day of validity, as `2030-12-31`.
    pub(super) fn last_day(self) -> String {
        (rcgen::date_time_ymd(1970, 1, 1) + self.until)
            .date()
            .to_string()
    }

    fn limit(self, params: &mut CertificateParams) {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + self.from;
        params.not_after = epoch + self.until;
    }
}

/// A certificate and its key, both in PEM form.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The key and certificate that sign others.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// Creates an authority, with its key in PEM form.
    pub(super) fn create(name: &str, validity: Validity) -> anyhow::Result<(Self, String)> {
        let key = KeyPair::generate().context("failed to make a key")?;
        let text = key.serialize_pem();
        let mut params = params(name)?;
        validity.limit(&mut params);
        let certificate = params
            .self_signed(&key)
            .context("failed to make the authority's certificate")?;
        let authority = Self {
            issuer: Issuer::new(params, key),
            pem: certificate.pem(),
        };
        Ok((authority, text))
    }

    /// Loads an authority that [`Self::create`] made under this name.
    pub(super) fn load(name: &str, certificate: &str, key: &str) -> anyhow::Result<Self> {
        let key = KeyPair::from_pem(key).context("the key is not in PEM format")?;
        ensure!(
            holds(certificate, key.public_key_raw()),
            "the key does not belong to the certificate"
        );
        Ok(Self {
            issuer: Issuer::new(params(name)?, key),
            pem: certificate.to_owned(),
        })
    }

    /// Returns the authority's own certificate in PEM form.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Signs a certificate for a daemon on a machine.
    pub(super) fn sign(
        &self,
        machine: &Machine,
        daemon: DaemonKind,
        validity: Validity,
    ) -> anyhow::Result<Pair> {
        let addresses = machine.addresses.iter().map(ToString::to_string);
        let hosts: Vec<String> = [machine.name.clone()]
            .into_iter()
            .chain(addresses)
            .collect();
        let mut params = CertificateParams::new(hosts)
            .with_context(|| format!("failed to prepare a certificate for {}", machine.name))?;
        let mark = daemon.uri().try_into()?;
        params.subject_alt_names.push(SanType::URI(mark));
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.finish(params, &machine.name, validity)
    }

    /// Signs a client certificate for a principal.
    pub(super) fn sign_principal(&self, name: &str, validity: Validity) -> anyhow::Result<Pair> {
        let uri = principal_uri(name)
            .try_into()
            .with_context(|| format!("failed to prepare a certificate for {name}"))?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.finish(params, name, validity)
    }

    fn finish(
        &self,
        mut params: CertificateParams,
        name: &str,
        validity: Validity,
    ) -> anyhow::Result<Pair> {
        params.distinguished_name = called(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        validity.limit(&mut params);
        let key = KeyPair::generate().context("failed to make a key")?;
        let signed = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("failed to sign the certificate of {name}"))?;
        Ok(Pair {
            certificate: signed.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn called(name: &str) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

/// Returns the parameters of an authority that signs for machines and for no further authority.
fn params(name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = called(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Whether a certificate contains these bytes, such as its public key or its names.
fn holds(certificate: &str, part: &[u8]) -> bool {
    use base64::Engine as _;
    let body: String = certificate
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .map(str::trim)
        .collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(body);
    bytes.is_ok_and(|bytes| bytes.windows(part.len()).any(|found| found == part))
}

#[cfg(test)]
mod tests {
    use super::super::days;
    use super::*;

    #[test]
    fn certificate_covers_name_and_every_address() {
        let validity = Validity::new(Duration::from_secs(1_800_000_000), days(1));
        let (authority, _) = Authority::create("x", validity).expect("made");
        let machine = Machine {
            name: "node.example".to_owned(),
            addresses: ["10.0.0.7", "192.0.2.9"]
                .map(|address| address.parse().expect("an address"))
                .into(),
        };
        let pair = authority
            .sign(&machine, DaemonKind::Agent, validity)
            .expect("signed");
        assert!(holds(&pair.certificate, b"meseta:daemon:agent"));
        // RFC 5280 encodes names like this: 2 is a DNS name, 7 an address, each with its length.
        let name = b"\x82\x0cnode.example";
        assert!(holds(&pair.certificate, name));
        for address in [[10, 0, 0, 7], [192, 0, 2, 9]] {
            let tagged = [&[0x87, 4], &address[..]].concat();
            assert!(holds(&pair.certificate, &tagged), "{address:?}");
        }
    }
}
