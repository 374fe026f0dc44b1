//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter` with vLLM's bodies, on the operators'
//! port.
//!
//! Only directories within the directory of `--adapters-from` are loaded. Links are resolved before the
//! check, and not followed after it.

use std::path::{Path, PathBuf};

use axum::extract::State;
use ntl_api::{ErrorBody, LoadLoraAdapter, UnloadLoraAdapter};
use ntl_core::is_unprintable;

use super::body::ApiRequest;
use crate::blocking::run_blocking;
use crate::error::{AppError, ModelNotFound};
use crate::paths::{LOAD_LORA, UNLOAD_LORA};
use crate::served::AdapterFolder;
use crate::state::AppState;

/// Maximum length of the name of an adapter, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Loads a LoRA adapter, which is then served as a model.
#[utoipa::path(post, path = LOAD_LORA, tag = "operations", request_body = LoadLoraAdapter, responses(
    (status = 200, description = "The adapter is served", body = String, content_type = "text/plain"),
    (status = 400, description = "The name is taken, or the adapter cannot be used", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 503, description = "Loading or draining", body = ErrorBody),
))]
pub(crate) async fn load(
    State(app): State<AppState>,
    ApiRequest { body, requester, .. }: ApiRequest<LoadLoraAdapter>,
) -> Result<String, AppError> {
    let LoadLoraAdapter { lora_name: name, lora_path, load_inplace } = body;
    check_name(&name)?;
    // Reading files may block.
    run_blocking(requester.client.id, usize::MAX, move || {
        add(&app, &name, Path::new(&lora_path), load_inplace.unwrap_or(false))?;
        Ok(format!("Success: LoRA adapter '{name}' added successfully."))
    })
    .await
}

/// Reads an adapter and serves it. `replaces`: in place of an adapter of this name.
fn add(app: &AppState, name: &str, path: &Path, replaces: bool) -> Result<(), AppError> {
    let served = app.models.all();
    if let Some(model) = served.iter().find(|model| *model.name == *name)
        && !(replaces && model.lora.is_some())
    {
        return Err(taken(name));
    }
    let folder = allowed(app.settings.adapters_from.as_deref(), path)?;
    let model = app
        .models
        .adapted(name, None, &AdapterFolder::Checked(folder.clone()))
        .map_err(|error| AppError::invalid("lora_path", format!("`lora_path`: {error}")))?;
    app.models.add_adapter(model, replaces).map_err(|_| taken(name))?;
    tracing::info!(adapter = name, folder = %folder.display(), "an adapter was loaded");
    Ok(())
}

/// Stops serving a LoRA adapter. Requests that use it are completed.
#[utoipa::path(post, path = UNLOAD_LORA, tag = "operations", request_body = UnloadLoraAdapter, responses(
    (status = 200, description = "The adapter is no longer served", body = String, content_type = "text/plain"),
    (status = 400, description = "The name is the name of a model without an adapter", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No adapter of this name", body = ErrorBody),
    (status = 503, description = "Loading or draining", body = ErrorBody),
))]
pub(crate) async fn unload(
    State(app): State<AppState>,
    ApiRequest { body, .. }: ApiRequest<UnloadLoraAdapter>,
) -> Result<String, AppError> {
    let name = body.lora_name;
    if app.models.remove_adapter(&name) {
        tracing::info!(adapter = name, "an adapter was unloaded");
        return Ok(format!("Success: LoRA adapter '{name}' removed successfully."));
    }
    let served = app.models.all();
    if served.iter().any(|model| *model.name == *name) {
        return Err(AppError::field("lora_name", "is the name of a model without an adapter"));
    }
    let served = served.iter().map(|model| model.name.to_string()).collect();
    Err(ModelNotFound { name, served }.into())
}

fn check_name(name: &str) -> Result<(), AppError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(is_unprintable) {
        let message = format!("must have 1 to {NAME_BYTES_MAX} bytes and no control or direction characters");
        return Err(AppError::field("lora_name", message));
    }
    Ok(())
}

fn taken(name: &str) -> AppError {
    AppError::field("lora_name", format!("another model or adapter has the name `{name}`"))
}

/// Returns the resolved path of a directory, if it is within the allowed one. The error does not reveal
/// whether another path exists.
fn allowed(from: Option<&Path>, path: &Path) -> Result<PathBuf, AppError> {
    let root = from.and_then(|from| from.canonicalize().ok()).ok_or_else(outside)?;
    let folder = root.join(path).canonicalize().map_err(|_| outside())?;
    if folder.starts_with(&root) && folder.is_dir() { Ok(folder) } else { Err(outside()) }
}

fn outside() -> AppError {
    AppError::field("lora_path", "is not a directory within the directory of --adapters-from")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_within_the_allowed_one_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("allowed");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir(folder.path().join("allowed-not")).unwrap();
        std::fs::write(root.join("file"), b"").unwrap();
        std::os::unix::fs::symlink(folder.path().join("allowed-not"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("a"), root.join("inside")).unwrap();
        let found = |path: &str| allowed(Some(&root), Path::new(path)).ok();
        let absolute = root.join("a").display().to_string();
        for (path, want) in
            [("a", "a"), ("a/b", "a/b"), ("./a/../a", "a"), ("inside/b", "a/b"), (&absolute, "a")]
        {
            assert_eq!(found(path), Some(root.join(want)), "{path}");
        }
        let sibling = folder.path().join("allowed-not").display().to_string();
        for path in ["..", "a/../..", "../allowed-not", &sibling, "/", "/etc", "link", "file", "missing"] {
            assert_eq!(found(path), None, "{path}");
        }
        assert!(allowed(None, Path::new("a")).is_err());
    }

    #[test]
    fn names_are_short_and_printable() {
        assert!(check_name("org/adapter-1").is_ok());
        for name in ["", "a\nb", "a\u{202e}b", "a\u{2066}b", &"x".repeat(257)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
