//! The certificate that a server shows, kept to be looked at whether or not it is believed.
//!
//! Invariant: what is believed is rustls's own judgement alone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use super::validity;

/// The certificate of the last server that a client connected to, whose key it need not have. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct ShownCertificate(Arc<Mutex<Option<CertificateDer<'static>>>>);

impl ShownCertificate {
    /// When it ends, since 1970; nothing if none was shown, or it does not say it.
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

/// Keeps each certificate before it is verified.
#[derive(Debug)]
pub(super) struct Recording {
    inner: Arc<WebPkiServerVerifier>,
    shown: ShownCertificate,
}

impl Recording {
    pub(super) const fn new(inner: Arc<WebPkiServerVerifier>, shown: ShownCertificate) -> Self {
        Self { inner, shown }
    }
}

impl ServerCertVerifier for Recording {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.shown.set(end_entity);
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
