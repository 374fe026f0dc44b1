//! Selects the implementation for a checkpoint: the native engine if it supports the checkpoint, otherwise
//! mistral.rs.
//!
//! In: a path and [`BackendOptions`]. Out: a loaded model. Without the feature `mistralrs` this module still
//! knows what mistral.rs would serve, so that errors can name it.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ntl_text::checkpoint::{CheckpointFiles, LoadError, architecture, architecture_field};
use ntl_text::gguf::{self, GgufFile};
use ntl_text::load_options::{KvCacheDtype, LoadOptions};

use crate::native::{self, LoadedModel};

/// Architectures that mistral.rs 0.8.1 loads, as `config.json` names them.
const MISTRALRS_ARCHITECTURES: [&str; 21] = [
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma2ForCausalLM",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GptOssForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "PhiForCausalLM",
    "PhiMoEForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "SmolLM3ForCausalLM",
    "Starcoder2ForCausalLM",
];

/// Architectures of GGUF files that mistral.rs 0.8.1 loads and the native engine does not.
const MISTRALRS_GGUF_ARCHITECTURES: [&str; 4] = ["mistral3", "phi2", "qwen3moe", "starcoder2"];

const CONFIG_FILE: &str = "config.json";

/// The value of `--backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BackendChoice {
    /// The native engine if it supports the checkpoint, otherwise mistral.rs.
    #[default]
    Auto,
    Native,
    Mistralrs,
}

/// The value of `--isq`: a type that mistral.rs 0.8.1 can quantise weights to at load on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Isq {
    Q2k,
    Q3k,
    Q4_0,
    Q4_1,
    Q4k,
    Q5_0,
    Q5_1,
    Q5k,
    Q6k,
    Q8_0,
    Q8_1,
    Q8k,
    Hqq4,
    Hqq8,
}

/// How to load a model with either implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackendOptions {
    pub backend: BackendChoice,
    pub isq: Option<Isq>,
    pub load: LoadOptions,
}

#[derive(Debug, PartialEq, Eq)]
enum Implementation {
    Native,
    Mistralrs,
}

/// The kind of a model path.
#[derive(Debug, PartialEq, Eq)]
enum ModelLocation {
    /// A folder as `save_pretrained` writes it.
    Folder,
    /// A GGUF file, or a folder that holds one.
    Gguf(PathBuf),
}

/// Loads a checkpoint folder, a GGUF file, or a folder that holds one GGUF file.
///
/// # Errors
/// When neither implementation serves the model or the chosen one does not (the message lists what is
/// served), when it needs mistral.rs and this program was built without it, and when a file is missing or
/// malformed.
pub fn load(
    path: &Path,
    chat_template: Option<String>,
    options: &BackendOptions,
) -> Result<LoadedModel, LoadError> {
    match locate(path)? {
        ModelLocation::Gguf(file) => load_gguf(&file, chat_template, options),
        ModelLocation::Folder => {
            load_files(&with_chat_template(CheckpointFiles::folder(path)?, chat_template), options)
        }
    }
}

/// Returns the files of a checkpoint for the native engine.
#[cfg(feature = "native")]
pub(crate) fn native_files(path: &Path) -> Result<CheckpointFiles, LoadError> {
    match locate(path)? {
        ModelLocation::Gguf(file) => gguf::checkpoint(&file),
        ModelLocation::Folder => CheckpointFiles::folder(path),
    }
}

fn load_gguf(
    file: &Path,
    chat_template: Option<String>,
    options: &BackendOptions,
) -> Result<LoadedModel, LoadError> {
    let refuse = |reason| Err(LoadError::malformed(file.display().to_string(), reason));
    if options.isq.is_some() {
        return refuse("--isq does not apply to GGUF files; leave it out");
    }
    if choose_for_gguf(file, options.backend)? == Implementation::Native {
        let files = with_chat_template(gguf::checkpoint(file)?, chat_template);
        return native::load(&files, options.load);
    }
    if options.load.kv_cache_dtype != KvCacheDtype::Auto {
        return refuse(KV_CACHE_DTYPE_IS_NATIVE);
    }
    if chat_template.is_some() {
        return refuse("on mistral.rs a GGUF file has its own chat template; leave out --chat-template");
    }
    load_mistralrs_gguf(file, options.load)
}

/// Chooses the implementation for a GGUF file. A file that neither loads is for the native engine, whose
/// error says what is wrong.
fn choose_for_gguf(file: &Path, choice: BackendChoice) -> Result<Implementation, LoadError> {
    match choice {
        BackendChoice::Native => Ok(Implementation::Native),
        BackendChoice::Mistralrs => Ok(Implementation::Mistralrs),
        BackendChoice::Auto => {
            let header = GgufFile::open(file)?;
            let name = header.text("general.architecture")?.unwrap_or_default();
            let is_mistralrs = MISTRALRS_GGUF_ARCHITECTURES.contains(&name);
            Ok(if is_mistralrs { Implementation::Mistralrs } else { Implementation::Native })
        }
    }
}

/// Returns the files with a chat template in place of theirs, if there is one.
pub(crate) fn with_chat_template(files: CheckpointFiles, chat_template: Option<String>) -> CheckpointFiles {
    match chat_template {
        Some(text) => files.with_chat_template(text),
        None => files,
    }
}

/// Loads the files of a checkpoint, as [`load`] does.
pub(crate) fn load_files(
    files: &CheckpointFiles,
    options: &BackendOptions,
) -> Result<LoadedModel, LoadError> {
    let name = architecture(files)?;
    let (file, field) = architecture_field(files)?;
    let backend = choose(&name, is_quantised(files)?, options)
        .map_err(|reason| LoadError::field(files.name_of(file), field, reason))?;
    match backend {
        Implementation::Native => native::load(files, options.load),
        Implementation::Mistralrs => load_folder(files, options),
    }
}

fn has_gguf_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// Decides by file names alone.
fn locate(path: &Path) -> Result<ModelLocation, LoadError> {
    if has_gguf_extension(path) && path.is_file() {
        return Ok(ModelLocation::Gguf(path.to_owned()));
    }
    let files = CheckpointFiles::folder(path)?;
    if files.has(CONFIG_FILE)? {
        return Ok(ModelLocation::Folder);
    }
    let names = files.names()?;
    let mut gguf_files = Vec::new();
    for name in &names {
        if has_gguf_extension(Path::new(name)) && !gguf::is_later_part(name) {
            gguf_files.push(name);
        }
    }
    match gguf_files[..] {
        [] => Ok(ModelLocation::Folder),
        [only] => {
            // A directory's links must not lead out of it.
            files.path_of(only)?;
            Ok(ModelLocation::Gguf(path.join(only)))
        }
        [first, ..] => {
            let reason =
                format!("it holds several GGUF files; name one of them, such as {}", files.name_of(first));
            Err(LoadError::malformed(files.place(), reason))
        }
    }
}

/// mistral.rs chooses the type of keys and values itself.
const KV_CACHE_DTYPE_IS_NATIVE: &str =
    "--kv-cache-dtype is for models that the native engine serves; leave it out";

/// Chooses the implementation for an architecture; `is_quantised` says that the stored weights are.
fn choose(name: &str, is_quantised: bool, options: &BackendOptions) -> Result<Implementation, String> {
    let native_architectures = native::architectures();
    let is_native = native_architectures.contains(&name);
    let is_mistralrs = MISTRALRS_ARCHITECTURES.contains(&name);
    let mistralrs_architectures = MISTRALRS_ARCHITECTURES.join(", ");
    match options.backend {
        BackendChoice::Native if options.isq.is_some() => {
            Err("--isq is for mistral.rs; the native engine quantises with --dtype int8, q8_0 or q4_k"
                .to_owned())
        }
        BackendChoice::Native => Ok(Implementation::Native),
        BackendChoice::Auto if is_native && options.isq.is_none() && !is_quantised => {
            Ok(Implementation::Native)
        }
        BackendChoice::Auto | BackendChoice::Mistralrs
            if is_mistralrs && options.load.kv_cache_dtype != KvCacheDtype::Auto =>
        {
            Err(KV_CACHE_DTYPE_IS_NATIVE.to_owned())
        }
        BackendChoice::Auto | BackendChoice::Mistralrs if is_mistralrs => Ok(Implementation::Mistralrs),
        BackendChoice::Mistralrs => {
            Err(format!("mistral.rs does not serve `{name}`; it serves {mistralrs_architectures}"))
        }
        BackendChoice::Auto if is_native => Err(format!(
            "the native engine serves `{name}` but no quantised weights; mistral.rs serves quantised \
             {mistralrs_architectures}"
        )),
        BackendChoice::Auto => Err(format!(
            "`{name}` is not served; the native engine serves {}; mistral.rs serves {mistralrs_architectures}",
            native_architectures.join(", ")
        )),
    }
}

/// Returns whether the weights are stored quantised, according to `config.json`.
fn is_quantised(files: &CheckpointFiles) -> Result<bool, LoadError> {
    let config: Option<serde_json::Value> = files.json(CONFIG_FILE)?;
    let stored = config.as_ref().and_then(|config| config.get("quantization_config"));
    Ok(stored.is_some_and(|config| !config.is_null()))
}

#[cfg(feature = "mistralrs")]
fn load_folder(files: &CheckpointFiles, options: &BackendOptions) -> Result<LoadedModel, LoadError> {
    let isq = options.isq.and_then(|isq| isq.to_possible_value());
    ntl_mistralrs::load_folder(files, isq.as_ref().map(|isq| isq.get_name()), options.load)
}

#[cfg(feature = "mistralrs")]
fn load_mistralrs_gguf(file: &Path, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    ntl_mistralrs::load_gguf(file, options)
}

#[cfg(not(feature = "mistralrs"))]
const BUILT_WITHOUT: &str = "mistral.rs serves it, but this program was built without mistral.rs; build it with \
     `cargo build --release --package ntl-server --features mistralrs`";

#[cfg(not(feature = "mistralrs"))]
fn load_folder(files: &CheckpointFiles, _: &BackendOptions) -> Result<LoadedModel, LoadError> {
    Err(LoadError::malformed(files.place(), BUILT_WITHOUT))
}

#[cfg(not(feature = "mistralrs"))]
fn load_mistralrs_gguf(file: &Path, _: LoadOptions) -> Result<LoadedModel, LoadError> {
    Err(LoadError::malformed(file.display().to_string(), BUILT_WITHOUT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use BackendChoice::{Auto, Mistralrs, Native};

    fn chosen(name: &str, backend: BackendChoice, isq: Option<Isq>) -> Result<Implementation, String> {
        choose(name, false, &BackendOptions { backend, isq, ..BackendOptions::default() })
    }

    #[test]
    fn auto_is_native_where_that_serves_the_architecture_unquantised() {
        assert_eq!(chosen("LlamaForCausalLM", Auto, None), Ok(Implementation::Native));
        assert_eq!(chosen("T5ForConditionalGeneration", Auto, None), Ok(Implementation::Native));
        assert_eq!(chosen("GemmaForCausalLM", Auto, None), Ok(Implementation::Mistralrs));
        assert_eq!(chosen("LlamaForCausalLM", Auto, Some(Isq::Q4k)), Ok(Implementation::Mistralrs));
        assert_eq!(chosen("LlamaForCausalLM", Mistralrs, None), Ok(Implementation::Mistralrs));
        let stored = choose("LlamaForCausalLM", true, &BackendOptions::default());
        assert_eq!(stored, Ok(Implementation::Mistralrs));
    }

    #[test]
    fn what_neither_serves_is_refused_with_the_lists_of_both() {
        let error = chosen("BloomForCausalLM", Auto, None).unwrap_err();
        for served in
            ["`BloomForCausalLM`", "T5ForConditionalGeneration", "GPT2LMHeadModel", "Phi3ForCausalLM"]
        {
            assert!(error.contains(served), "{error}");
        }
        for (name, backend, isq, want) in [
            (
                "GPT2LMHeadModel",
                Mistralrs,
                None,
                "mistral.rs does not serve `GPT2LMHeadModel`; it serves Deepseek",
            ),
            ("GPT2LMHeadModel", Auto, Some(Isq::Q8_0), "but no quantised weights"),
            ("LlamaForCausalLM", Native, Some(Isq::Q8_0), "--isq is for mistral.rs"),
        ] {
            let error = chosen(name, backend, isq).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_type_of_keys_and_values_is_for_the_native_engine() {
        let load = LoadOptions { kv_cache_dtype: KvCacheDtype::Bf16, ..LoadOptions::default() };
        let options = BackendOptions { load, ..BackendOptions::default() };
        assert_eq!(choose("LlamaForCausalLM", false, &options), Ok(Implementation::Native));
        let error = choose("PhiForCausalLM", false, &options).unwrap_err();
        assert!(error.contains("--kv-cache-dtype is for models that the native engine serves"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        std::fs::write(&file, b"").unwrap();
        let options = BackendOptions { backend: Mistralrs, ..options };
        let Err(error) = super::load(&file, None, &options) else { panic!("it was loaded") };
        assert!(error.to_string().contains("--kv-cache-dtype"), "{error}");
    }

    #[test]
    fn a_gguf_file_is_found_by_itself_or_alone_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(locate(&file).unwrap(), ModelLocation::Gguf(file.clone()));
        assert_eq!(locate(folder.path()).unwrap(), ModelLocation::Gguf(file.clone()));
        std::fs::write(folder.path().join("m-00002-of-00002.gguf"), b"").unwrap();
        assert_eq!(locate(folder.path()).unwrap(), ModelLocation::Gguf(file.clone()), "a later part");
        std::fs::write(folder.path().join("n.gguf"), b"").unwrap();
        let error = locate(folder.path()).unwrap_err().to_string();
        assert!(error.contains("several GGUF files") && error.ends_with("m.gguf"), "{error}");
        std::fs::write(folder.path().join(CONFIG_FILE), b"{}").unwrap();
        assert_eq!(locate(folder.path()).unwrap(), ModelLocation::Folder);
        let native = BackendOptions { backend: Native, ..BackendOptions::default() };
        let error = load(&file, None, &native).err().unwrap().to_string();
        assert!(error.contains("m.gguf is not usable: the file is cut off"), "{error}");
    }

    fn tiny_gguf() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/gguf/llama-ntl.gguf")
    }

    #[test]
    fn a_gguf_file_is_served_natively_and_with_native_options() {
        let template = Some("{{ messages[0].content }}!".to_owned());
        let load = LoadOptions { kv_cache_dtype: KvCacheDtype::Bf16, ..LoadOptions::default() };
        let options = BackendOptions { load, ..BackendOptions::default() };
        let loaded = super::load(&tiny_gguf(), template, &options).unwrap();
        let info = loaded.model.info();
        assert_eq!(
            (&*info.kind, info.backend.name(), info.eos_ids.as_slice()),
            ("llama", "native", &[2][..])
        );
        assert!(loaded.tokenizer.chat_template().is_some());
        let options = BackendOptions { isq: Some(Isq::Q4k), ..options };
        let error = super::load(&tiny_gguf(), None, &options).err().unwrap().to_string();
        assert!(error.contains("--isq does not apply to GGUF files"), "{error}");
    }

    #[test]
    fn the_demo_takes_no_option_of_mistralrs() {
        let files = crate::demo::files().unwrap();
        for (backend, isq, want) in [
            (Mistralrs, None, "mistral.rs does not serve `T5ForConditionalGeneration`"),
            (Auto, Some(Isq::Q4k), "but no quantised weights"),
        ] {
            let options = BackendOptions { backend, isq, ..BackendOptions::default() };
            let error = load_files(&files, &options).err().unwrap().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert!(load_files(&files, &BackendOptions::default()).is_ok());
    }

    #[cfg(not(feature = "mistralrs"))]
    #[test]
    fn what_needs_mistralrs_says_how_to_build_with_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), br#"{"architectures": ["GemmaForCausalLM"]}"#)
            .unwrap();
        let gguf = folder.path().join("m.gguf");
        std::fs::write(&gguf, b"").unwrap();
        for (path, backend) in [(folder.path(), Auto), (&gguf, Mistralrs)] {
            let options = BackendOptions { backend, ..BackendOptions::default() };
            let error = load(path, None, &options).err().unwrap().to_string();
            assert!(error.contains("--package ntl-server --features mistralrs"), "{error}");
        }
    }

    #[cfg(feature = "mistralrs")]
    #[test]
    fn mistralrs_loads_what_the_native_engine_does_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.gguf"), b"GGUF").unwrap();
        let error = load(folder.path(), None, &BackendOptions::default()).err().unwrap().to_string();
        assert!(error.contains("m.gguf is not usable"), "{error}");
    }
}
