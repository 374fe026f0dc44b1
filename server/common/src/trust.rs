//! The certificates that HTTPS connections trust: Mozilla's, which are built in, the system's (or
//! `SSL_CERT_FILE` and `SSL_CERT_DIR`), and the ones in `--ca-file`.
//!
//! reqwest ignores a system file that it cannot read. A file that the user names must be readable instead.

use std::env;
use std::path::{Path, PathBuf};

use reqwest::{Certificate, Client, ClientBuilder};

use crate::regular_file::{self, SMALL_BYTES_MAX};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    #[error("{name}: could not read {}", .file.display())]
    Unreadable { name: &'static str, file: PathBuf, source: std::io::Error },
    #[error("{name}: {} has no certificates in PEM format", .file.display())]
    NoCertificates { name: &'static str, file: PathBuf },
    #[error("{name}: {} has an invalid certificate", .file.display())]
    Invalid { name: &'static str, file: PathBuf, source: reqwest::Error },
}

/// Returns a builder of clients that also trust the certificates of `ca_file`.
pub fn client_builder(ca_file: Option<&Path>) -> Result<ClientBuilder, TrustError> {
    const SSL_CERT_FILE: &str = "SSL_CERT_FILE";
    if let Some(file) = env::var_os(SSL_CERT_FILE) {
        read(SSL_CERT_FILE, Path::new(&file))?;
    }
    let certificates = ca_file.map_or(Ok(Vec::new()), |file| read("--ca-file", file))?;
    Ok(certificates.into_iter().fold(Client::builder(), ClientBuilder::add_root_certificate))
}

/// Returns at least one certificate.
fn read(name: &'static str, file: &Path) -> Result<Vec<Certificate>, TrustError> {
    let bytes = regular_file::read(file, SMALL_BYTES_MAX).map_err(|source| TrustError::Unreadable {
        name,
        file: file.to_owned(),
        source,
    })?;
    match parse(&bytes) {
        Ok(certificates) if certificates.is_empty() => {
            Err(TrustError::NoCertificates { name, file: file.to_owned() })
        }
        Ok(certificates) => Ok(certificates),
        Err(source) => Err(TrustError::Invalid { name, file: file.to_owned(), source }),
    }
}

fn parse(pem: &[u8]) -> reqwest::Result<Vec<Certificate>> {
    let certificates = Certificate::from_pem_bundle(pem)?;
    // Only a client reads the contents of the certificates.
    let mut client = Client::builder().tls_built_in_root_certs(false);
    for certificate in &certificates {
        client = client.add_root_certificate(certificate.clone());
    }
    client.build()?;
    Ok(certificates)
}
