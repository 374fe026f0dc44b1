//! The native engine, if this program was built with it.
//!
//! Without the feature `native`, nothing can be loaded, and all models are computed by other engines.

#[cfg(feature = "native")]
pub use ntl_models::{
    AdapterReader, LoadedModel, adapter_base, architectures, free_gpu_bytes, kernels_off, load,
};

#[cfg(not(feature = "native"))]
pub use absent::{
    AdapterReader, LoadedModel, adapter_base, architectures, free_gpu_bytes, kernels_off, load,
};

/// Why nothing can be loaded without the native engine.
pub(crate) const BUILT_WITHOUT: &str = "this program was built without the native engine and serves only models of other engines; \
     name one with --model NAME=http://HOST:PORT";

#[cfg(not(feature = "native"))]
mod absent {
    use std::sync::Arc;

    use ntl_core::contract::{Adapter, BatchModel};
    use ntl_core::decoding::Vocabulary;
    use ntl_text::checkpoint::{CheckpointFiles, LoadError};
    use ntl_text::load_options::{DeviceChoice, LoadOptions};
    use ntl_text::tokenizer::Tokenizer;

    pub struct LoadedModel {
        pub model: Box<dyn BatchModel>,
        pub tokenizer: Arc<Tokenizer>,
        pub vocabulary: Vocabulary,
        pub adapters: Option<AdapterReader>,
    }

    #[derive(Clone)]
    pub enum AdapterReader {}

    pub enum OpenAdapter {}

    impl AdapterReader {
        pub fn open(&self, _: &CheckpointFiles) -> Result<OpenAdapter, LoadError> {
            match *self {}
        }
    }

    impl OpenAdapter {
        pub fn bytes(&self) -> u64 {
            match *self {}
        }

        pub fn read(&self) -> Result<Adapter, LoadError> {
            match *self {}
        }
    }

    pub fn adapter_base(_: &CheckpointFiles) -> Result<Option<String>, LoadError> {
        Ok(None)
    }

    pub fn architectures() -> Vec<&'static str> {
        Vec::new()
    }

    pub fn free_gpu_bytes(_: DeviceChoice) -> Option<u64> {
        None
    }

    pub fn kernels_off() -> Vec<(&'static str, bool)> {
        Vec::new()
    }

    pub fn load(files: &CheckpointFiles, _: LoadOptions) -> Result<LoadedModel, LoadError> {
        Err(LoadError::malformed(files.place(), super::BUILT_WITHOUT))
    }
}
