//! Which implementation serves a checkpoint: the native engine wherever it can, else mistral.rs.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use ntl_models::checkpoint::{CheckpointFiles, LoadError, architecture};
use ntl_models::{LoadOptions, LoadedModel};

use crate::Isq;
#[cfg(feature = "mistralrs")]
use crate::backend::{load_folder, load_gguf};

/// What `config.json` calls the architectures that mistral.rs 0.8.1 loads.
pub const ARCHITECTURES: [&str; 21] = [
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

const CONFIG_FILE: &str = "config.json";

#[cfg(not(feature = "mistralrs"))]
const BUILT_WITHOUT: &str = "mistral.rs serves it, which this program was built without; build it with \
     `cargo build --release --package ntl-server --features mistralrs`";

/// Which implementation runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// The native engine for what it serves, mistral.rs for everything else.
    #[default]
    Auto,
    /// The native engine.
    Native,
    /// mistral.rs.
    Mistralrs,
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            "mistralrs" => Ok(Self::Mistralrs),
            _ => Err("expected auto, native or mistralrs".to_owned()),
        }
    }
}

/// How to load a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Which implementation runs it.
    pub backend: Backend,
    /// What its weights are quantised to while they are loaded.
    pub isq: Option<Isq>,
    /// Everything else.
    pub load: LoadOptions,
}

/// Where a model lies.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A folder as `save_pretrained` leaves it.
    Folder,
    /// One file with everything.
    Gguf(PathBuf),
}

/// Loads a checkpoint folder, a GGUF file, or a folder with one, with a LoRA adapter where there is one.
///
/// # Errors
/// When neither implementation serves it or the wanted one does not, when this program was built without mistral.rs and
/// needs it, and when the files are not what they should be. The message says what is served.
pub fn load(
    path: &Path,
    adapter: Option<&CheckpointFiles>,
    options: &Options,
) -> Result<LoadedModel, LoadError> {
    if let Place::Gguf(file) = place(path)? {
        let refuse = |reason| Err(LoadError::malformed(file.display().to_string(), reason));
        return match (options.backend, adapter, options.isq) {
            (Backend::Native, ..) => refuse("the native engine does not read GGUF files, mistral.rs does"),
            (_, Some(_), _) => refuse("adapters are not merged into GGUF files"),
            (.., Some(_)) => refuse("a GGUF file is quantised already; leave out --isq"),
            _ => load_gguf(&file, options),
        };
    }
    let files = CheckpointFiles::folder(path)?;
    let name = architecture(&files)?;
    let refuse = |reason| LoadError::field(files.name_of(CONFIG_FILE), "architectures", reason);
    match choose(&name, is_quantised(&files)?, options).map_err(refuse)? {
        Backend::Mistralrs => match adapter {
            None => load_folder(&files, options),
            Some(adapter) => {
                let reason =
                    "the native engine merges adapters, mistral.rs does not; merge it with PEFT first";
                Err(LoadError::malformed(adapter.place(), reason))
            }
        },
        Backend::Auto | Backend::Native => ntl_models::load_adapted(&files, adapter, options.load),
    }
}

/// Whether it is a folder of files or one GGUF file, by names alone.
fn place(path: &Path) -> Result<Place, LoadError> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension == "gguf");
    if is_gguf(path) && path.is_file() {
        return Ok(Place::Gguf(path.to_owned()));
    }
    let files = CheckpointFiles::folder(path)?;
    if files.has(CONFIG_FILE) {
        return Ok(Place::Folder);
    }
    let names = files.names()?;
    let found: Vec<&String> = names.iter().filter(|name| is_gguf(Path::new(name))).collect();
    match found[..] {
        [] => Ok(Place::Folder),
        [only] => Ok(Place::Gguf(files.path_of(only)?)),
        [first, ..] => {
            let reason =
                format!("it holds several GGUF files; name one of them, such as {}", files.name_of(first));
            Err(LoadError::malformed(files.place(), reason))
        }
    }
}

/// Which of the two serves an architecture; never [`Backend::Auto`].
fn choose(name: &str, is_quantised: bool, options: &Options) -> Result<Backend, String> {
    let native = ntl_models::architectures();
    let (ours, theirs) = (native.contains(&name), ARCHITECTURES.contains(&name));
    let plain = options.isq.is_none() && !is_quantised;
    match options.backend {
        Backend::Native if options.isq.is_some() => {
            Err("the native engine does not quantise at load; leave out --isq".to_owned())
        }
        Backend::Native => Ok(Backend::Native),
        Backend::Auto if ours && plain => Ok(Backend::Native),
        Backend::Auto | Backend::Mistralrs if theirs => Ok(Backend::Mistralrs),
        Backend::Mistralrs => {
            Err(format!("`{name}` is not served by mistral.rs; known are {}", ARCHITECTURES.join(", ")))
        }
        Backend::Auto if ours => Err(format!(
            "`{name}` is served by the native engine, which takes no quantised weights; quantised are {}",
            ARCHITECTURES.join(", ")
        )),
        Backend::Auto => {
            let (native, others) = (native.join(", "), ARCHITECTURES.join(", "));
            Err(format!(
                "`{name}` is not served; the native engine serves {native}; mistral.rs serves {others}"
            ))
        }
    }
}

/// Whether the weights are stored in a quantised form, as `config.json` says.
fn is_quantised(files: &CheckpointFiles) -> Result<bool, LoadError> {
    let config: serde_json::Value = serde_json::from_slice(&files.require(CONFIG_FILE)?)
        .map_err(|error| LoadError::malformed(files.name_of(CONFIG_FILE), error))?;
    Ok(config.get("quantization_config").is_some_and(|config| !config.is_null()))
}

#[cfg(not(feature = "mistralrs"))]
fn load_folder(files: &CheckpointFiles, _: &Options) -> Result<LoadedModel, LoadError> {
    Err(LoadError::malformed(files.place(), BUILT_WITHOUT))
}

#[cfg(not(feature = "mistralrs"))]
fn load_gguf(file: &Path, _: &Options) -> Result<LoadedModel, LoadError> {
    Err(LoadError::malformed(file.display().to_string(), BUILT_WITHOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str, backend: &str, isq: Option<&str>) -> Result<Backend, String> {
        let isq = isq.map(|name| name.parse().unwrap());
        choose(name, false, &Options { backend: backend.parse().unwrap(), isq, ..Options::default() })
    }

    #[test]
    fn auto_is_native_where_that_serves_the_architecture_unquantised() {
        assert_eq!(chosen("LlamaForCausalLM", "auto", None), Ok(Backend::Native));
        assert_eq!(chosen("T5ForConditionalGeneration", "auto", None), Ok(Backend::Native));
        assert_eq!(chosen("Gemma2ForCausalLM", "auto", None), Ok(Backend::Mistralrs));
        assert_eq!(chosen("LlamaForCausalLM", "auto", Some("q4k")), Ok(Backend::Mistralrs));
        assert_eq!(chosen("LlamaForCausalLM", "mistralrs", None), Ok(Backend::Mistralrs));
        let stored = choose("LlamaForCausalLM", true, &Options::default());
        assert_eq!(stored, Ok(Backend::Mistralrs));
    }

    #[test]
    fn what_neither_serves_is_refused_with_the_lists_of_both() {
        let error = chosen("BloomForCausalLM", "auto", None).unwrap_err();
        for served in
            ["`BloomForCausalLM`", "T5ForConditionalGeneration", "GPT2LMHeadModel", "Phi3ForCausalLM"]
        {
            assert!(error.contains(served), "{error}");
        }
        for (name, backend, isq, want) in [
            ("GPT2LMHeadModel", "mistralrs", None, "is not served by mistral.rs; known are Deepseek"),
            ("GPT2LMHeadModel", "auto", Some("q8_0"), "takes no quantised weights"),
            ("LlamaForCausalLM", "native", Some("q8_0"), "leave out --isq"),
        ] {
            let error = chosen(name, backend, isq).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_gguf_file_is_found_by_itself_or_alone_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().canonicalize().unwrap().join("m.gguf");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(place(&file).unwrap(), Place::Gguf(file.clone()));
        assert_eq!(place(folder.path()).unwrap(), Place::Gguf(file.clone()));
        std::fs::write(folder.path().join("n.gguf"), b"").unwrap();
        let error = place(folder.path()).unwrap_err().to_string();
        assert!(error.contains("several GGUF files") && error.ends_with("m.gguf"), "{error}");
        std::fs::write(folder.path().join(CONFIG_FILE), b"{}").unwrap();
        assert_eq!(place(folder.path()).unwrap(), Place::Folder);
        let native = Options { backend: Backend::Native, ..Options::default() };
        let error = load(&file, None, &native).err().unwrap().to_string();
        assert!(error.contains("does not read GGUF files"), "{error}");
    }

    #[cfg(not(feature = "mistralrs"))]
    #[test]
    fn what_needs_mistralrs_says_how_to_build_with_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG_FILE), br#"{"architectures": ["GemmaForCausalLM"]}"#)
            .unwrap();
        let gguf = folder.path().join("m.gguf");
        std::fs::write(&gguf, b"").unwrap();
        for path in [folder.path(), &gguf] {
            let error = load(path, None, &Options::default()).err().unwrap().to_string();
            assert!(error.contains("--package ntl-server --features mistralrs"), "{error}");
        }
    }
}
