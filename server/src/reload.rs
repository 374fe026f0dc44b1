//! Reloading on SIGHUP: the API keys, the certificate with its key, and the adapters are read again. Running
//! requests and open connections stay. The thread of the signals outlives the server, so it must not keep the
//! engines running.

use crate::listen::Certificate;
use crate::served::{AdapterError, AdapterFolder, LoraWeights, ServedModel, adapter_files};
use crate::state::{AppState, WeakAppState};

#[derive(Clone)]
pub struct Reloaded {
    pub app: WeakAppState,
    pub certificate: Option<Certificate>,
}

impl Reloaded {
    /// Reads the files again and logs the results. The present contents of a file or a directory that cannot
    /// be used stay.
    pub fn reload(&self) {
        let Some(app) = self.app.upgrade() else { return };
        let keys = &app.settings.api_keys;
        let models = app.models.all();
        let mut adapters = models.iter().filter(|model| model.lora.is_some()).peekable();
        if !keys.has_file() && self.certificate.is_none() && adapters.peek().is_none() {
            tracing::warn!(
                "SIGHUP reads adapters and the files of --api-key-file, --tls-cert and --tls-key again, but there are none"
            );
        }
        keys.reload();
        if let Some(certificate) = &self.certificate {
            certificate.reload();
        }
        adapters.for_each(|adapter| reload_adapter(&app, adapter));
    }
}

fn reload_adapter(app: &AppState, model: &ServedModel) {
    let Some(lora) = &model.lora else { return };
    let LoraWeights { folder, fingerprint, .. } = &lora.weights;
    let name = &*model.name;
    match changed_adapter(app, model, folder, fingerprint) {
        Ok(None) => tracing::info!(adapter = name, "the adapter has not changed"),
        Ok(Some(changed)) => {
            let had_calibrations = !model.profile.calibrations.is_empty();
            let fingerprint = changed.fingerprint();
            if app.models.replace_adapter(model, changed) {
                tracing::info!(adapter = name, fingerprint, "the adapter has changed and was read again");
            }
            if had_calibrations {
                tracing::warn!(adapter = name, "calibrations of the earlier adapter no longer apply");
            }
        }
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::error!(error, adapter = name, "the adapter was not read again; the present one stays");
        }
    }
}

/// Reads an adapter whose directory has changed.
fn changed_adapter(
    app: &AppState,
    model: &ServedModel,
    folder: &AdapterFolder,
    fingerprint: &str,
) -> Result<Option<ServedModel>, AdapterError> {
    if adapter_files(folder)?.fingerprint()? == fingerprint {
        return Ok(None);
    }
    app.models.adapted(&model.name, Some(&model.label), folder).map(Some)
}
