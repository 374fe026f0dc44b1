//! The TLS certificate and key, read from PEM files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ntl_common::regular_file::{SMALL_BYTES_MAX, read};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

use super::certificate::not_after;

/// How long before its end the server warns of a certificate.
const EXPIRY_WARNING: jiff::SignedDuration = jiff::SignedDuration::from_hours(14 * 24);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate first, then the rest of its chain.
    pub certificate: PathBuf,
    /// The private key: PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("cannot read {what} from `{file}`")]
    Unreadable {
        what: &'static str,
        file: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("there is no {what} in `{file}`")]
    Missing { what: &'static str, file: PathBuf },
    /// Key and certificate do not match, or are of an unknown kind.
    #[error("cannot use the key in `{key}` with the certificate in `{certificate}`")]
    Unusable {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// The server's certificate with its key, as new connections get them. Clones share it.
#[derive(Debug, Clone)]
pub struct Certificate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: TlsFiles,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(files.read()?));
        Ok(Self(Arc::new(Shared { files, current })))
    }

    /// Reads the files again, and logs the result. If they cannot be used, the present certificate stays.
    pub(crate) fn reload(&self) {
        let Shared { files, current } = &*self.0;
        match files.read() {
            Ok(key) => {
                let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
                let has_changed = current.cert != key.cert;
                *current = Arc::new(key);
                let file = files.certificate.display();
                if has_changed {
                    tracing::info!(%file, "the certificate has changed and was read again");
                } else {
                    tracing::info!(%file, "the certificate has not changed");
                }
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "the certificate was not read again; the present one stays");
            }
        }
    }

    /// TLS 1.2 and 1.3, for HTTP/2 and HTTP/1.1.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| self.0.files.unusable(source))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.0) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Shared {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl TlsFiles {
    fn read(&self) -> Result<CertifiedKey, TlsError> {
        let certificates = certificates(&self.certificate)?;
        self.warn_of_expiry(certificates.first());
        let key = read(&self.key, SMALL_BYTES_MAX)
            .map_err(pem::Error::Io)
            .and_then(|text| PrivateKeyDer::from_pem_slice(&text))
            .map_err(|error| wrong("private key", &self.key, error))?;
        CertifiedKey::from_der(certificates, key, &ring::default_provider())
            .map_err(|source| self.unusable(source))
    }

    fn unusable(&self, source: rustls::Error) -> TlsError {
        TlsError::Unusable { certificate: self.certificate.clone(), key: self.key.clone(), source }
    }

    /// Logs that the server's certificate has expired, or will soon: clients then refuse the connection.
    fn warn_of_expiry(&self, certificate: Option<&CertificateDer<'_>>) {
        let Some(not_after) = certificate.and_then(|certificate| not_after(certificate)) else { return };
        #[expect(clippy::disallowed_methods, reason = "certificates expire at a date")]
        let now = jiff::Timestamp::now();
        let file = self.certificate.display();
        if not_after < now {
            tracing::warn!(%file, %not_after, "the certificate has expired");
        } else if not_after.duration_since(now) < EXPIRY_WARNING {
            tracing::warn!(%file, %not_after, "the certificate expires soon");
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    const WHAT: &str = "certificate";
    let pem = read(file, SMALL_BYTES_MAX).map_err(|error| wrong(WHAT, file, pem::Error::Io(error)))?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(WHAT, file, error))?;
    if certificates.is_empty() {
        return Err(wrong(WHAT, file, pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn wrong(what: &'static str, file: &Path, error: pem::Error) -> TlsError {
    match error {
        pem::Error::NoItemsFound => TlsError::Missing { what, file: file.to_owned() },
        source => TlsError::Unreadable { what, file: file.to_owned(), source },
    }
}
