//! What a SIGHUP reads again: the API keys, and the certificate with its key. Running requests and open
//! connections stay.

use crate::keys::ApiKeys;
use crate::listen::Certificate;

#[derive(Clone)]
pub struct Reloaded {
    pub keys: ApiKeys,
    pub certificate: Option<Certificate>,
}

impl Reloaded {
    /// Reads the files again and logs the results. The present contents of a file that cannot be used stay.
    pub fn reload(&self) {
        if !self.keys.has_file() && self.certificate.is_none() {
            tracing::warn!(
                "SIGHUP reads the files of --api-key-file, --tls-cert and --tls-key again, but there are none"
            );
        }
        self.keys.reload();
        if let Some(certificate) = &self.certificate {
            certificate.reload();
        }
    }
}
