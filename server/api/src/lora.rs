//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An adapter to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadLoraAdapter {
    /// The name in requests.
    pub lora_name: String,
    /// Directory of the adapter, within the directory of `--adapters-from`. A relative path begins there.
    pub lora_path: String,
    /// Whether the adapter may replace a loaded one with the same name. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_inplace: Option<bool>,
}

/// An adapter to unload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnloadLoraAdapter {
    /// The name in requests.
    pub lora_name: String,
    /// Accepted for clients of vLLM, and changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_int_id: Option<i64>,
}
