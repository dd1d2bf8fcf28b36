//! The check of server certificates by a client: the check of rustls, with an optional second name, and with a record of
//! the certificate.
//!
//! A server may be known by two names, as an agent is by its address and by its host name. Invariant: rustls alone decides
//! about everything else that makes a certificate valid.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::daemon_kind::ExpectedServer;
use super::validity;

/// The certificate of the last server that a client connected to; the server need not have proven its key. Clones share the
/// certificate.
#[derive(Clone, Debug, Default)]
pub struct ShownCertificate(Arc<Mutex<Option<CertificateDer<'static>>>>);

impl ShownCertificate {
    /// Returns the end of the shown certificate, since the Unix epoch; `None` if the server showed none, or its end is
    /// unreadable.
    #[must_use]
    pub fn end(&self) -> Option<Duration> {
        let shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref().and_then(|one| validity::end(one))
    }

    fn set(&self, certificate: &CertificateDer<'_>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Some(certificate.clone().into_owned());
    }
}

/// A verifier of servers' certificates.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    pub(super) usual: Arc<WebPkiServerVerifier>,
    pub(super) judgement: Judgement,
}

/// The demands of a client on a server beside a valid certificate.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    /// A second name: a certificate for this name is valid like one for the name in the address.
    pub(super) other_name: Option<ServerName<'static>>,
    /// Receives each certificate, valid or not.
    pub(super) shown: Option<ShownCertificate>,
    /// The daemons to which the client may send secrets.
    pub(super) expected: Option<ExpectedServer>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(shown) = &self.judgement.shown {
            shown.set(end_entity);
        }
        let verify = |name: &ServerName<'_>| {
            self.usual
                .verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        let verified = match (verify(server_name), &self.judgement.other_name) {
            (
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                )),
                Some(other),
            ) => verify(other),
            (result, _) => result,
        }?;
        if let Some(expected) = &self.judgement.expected {
            expected.check(end_entity).map_err(|wrong| {
                let wrong = rustls::OtherError(Arc::new(wrong));
                Error::InvalidCertificate(CertificateError::Other(wrong))
            })?;
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
