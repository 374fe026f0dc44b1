//! The models of the command line: their names, their sources, their LoRA adapters.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ntl_text::tools::ToolFormat;

use super::remote::{RemoteModel, RemoteModelError, is_url};
use super::{AttachmentError, ConfigError};
use crate::demo;
use crate::hub::{HubReference, Location};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The embedded checkpoint.
    Demo,
    /// A folder, or a GGUF file.
    Path(PathBuf),
    /// A repository of the hub, or a GGUF file in it.
    Hub(HubReference),
    /// Another server computes it.
    Remote(Box<RemoteModel>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// The name in requests.
    pub name: String,
    pub source: ModelSource,
    /// Files with calibrations of its intervals.
    pub calibrations: Vec<PathBuf>,
    pub tool_parser: ToolParserChoice,
    /// File with the chat template in place of the checkpoint's.
    pub chat_template: Option<PathBuf>,
    /// File with the template of decisions, in place of the built-in one.
    pub decision_template: Option<PathBuf>,
}

/// A LoRA adapter, which is served as a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterConfig {
    /// The name in requests.
    pub name: String,
    pub folder: Location,
    /// Files with calibrations of its intervals.
    pub calibrations: Vec<PathBuf>,
}

/// The value of `--tool-parser`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolParserChoice {
    /// The format that the chat template teaches.
    #[default]
    Auto,
    /// Tools are rejected.
    None,
    Format(ToolFormat),
}

impl ModelConfig {
    fn new(name: String, source: ModelSource) -> Self {
        let tool_parser = ToolParserChoice::default();
        Self {
            name,
            source,
            calibrations: Vec::new(),
            tool_parser,
            chat_template: None,
            decision_template: None,
        }
    }
}

/// The models of `--model`, or the demo without any.
pub(super) fn model_configs(flags: &[String]) -> Result<Vec<ModelConfig>, ConfigError> {
    if flags.is_empty() {
        let name = demo::NAME.to_owned();
        return Ok(vec![ModelConfig::new(name, ModelSource::Demo)]);
    }
    let mut models: Vec<ModelConfig> = Vec::new();
    for text in flags {
        match models.last_mut() {
            Some(ModelConfig { name, source: ModelSource::Remote(remote), .. }) if is_url(text) => {
                remote.add_replica(name, text)?;
            }
            _ => models.push(model_config(text)?),
        }
    }
    let mut names = BTreeSet::new();
    match models.iter().find(|model| !names.insert(&model.name)) {
        Some(twice) => Err(ConfigError::DuplicateModel(twice.name.clone())),
        None => Ok(models),
    }
}

fn model_config(text: &str) -> Result<ModelConfig, ConfigError> {
    if is_url(text) {
        return Err(RemoteModelError::NoName.into());
    }
    let (name, folder) = split_name(text);
    if let Some(name) = name.filter(|name| !name.is_empty() && is_url(folder)) {
        let source = ModelSource::Remote(Box::new(RemoteModel::new(folder)?));
        return Ok(ModelConfig::new(name.to_owned(), source));
    }
    if folder.is_empty() {
        return Err(ConfigError::ModelWithoutFolder(text.to_owned()));
    }
    let (source, usual_name) = if HubReference::is_meant_by(folder) {
        let reference: HubReference =
            folder.parse().map_err(|problem| ConfigError::Hub("--model", problem))?;
        let name = reference.model_name().to_owned();
        (ModelSource::Hub(reference), Some(name))
    } else {
        (ModelSource::Path(folder.into()), folder_name(Path::new(folder)))
    };
    let name = name.map(str::to_owned).or(usual_name).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ConfigError::UnnamedModel(text.to_owned()))?;
    Ok(ModelConfig::new(name, source))
}

/// Splits `[NAME=]DIR`. A path that contains an equals sign needs a name, or must begin with `.` or `/`.
pub(super) fn split_name(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, folder)) if !text.starts_with(['.', '/']) => (Some(name), folder),
        _ => (None, text),
    }
}

/// The last part of a path, also of `.` and `..`; of a GGUF file without its extension.
fn folder_name(folder: &Path) -> Option<String> {
    let name = match folder.file_name() {
        Some(name) => name.to_owned(),
        None => folder.canonicalize().ok()?.file_name()?.to_owned(),
    };
    let name = name.to_string_lossy();
    Some(name.strip_suffix(".gguf").unwrap_or(&name).to_owned())
}

/// The adapters of `--adapter [NAME=]DIR`.
pub(super) fn adapter_configs(
    flags: &[String],
    models: &[ModelConfig],
) -> Result<Vec<AdapterConfig>, ConfigError> {
    let has_own = models.iter().any(|model| !matches!(model.source, ModelSource::Remote(_)));
    if let (Some(model), false, false) = (models.first(), flags.is_empty(), has_own) {
        return Err(RemoteModelError::Adapter(model.name.clone()).into());
    }
    let mut names: BTreeSet<String> = models.iter().map(|model| model.name.clone()).collect();
    let mut adapters = Vec::with_capacity(flags.len());
    for text in flags {
        let (name, folder) = split_name(text);
        let location: Location = folder.parse().map_err(|problem| ConfigError::Hub("--adapter", problem))?;
        let usual_name = match &location {
            Location::Path(path) => folder_name(path),
            Location::Hub(reference) => Some(reference.model_name().to_owned()),
        };
        let name = name.map(str::to_owned).or(usual_name);
        let name = name.filter(|name| !name.is_empty() && !folder.is_empty());
        let name = name.ok_or_else(|| ConfigError::UnnamedAdapter(text.clone()))?;
        if !names.insert(name.clone()) {
            return Err(ConfigError::DuplicateAdapter(name));
        }
        adapters.push(AdapterConfig { name, folder: location, calibrations: Vec::new() });
    }
    Ok(adapters)
}

/// The models and adapters with the calibrations of `--calibration [NAME=]FILE`.
pub(super) fn with_calibrations(
    mut models: Vec<ModelConfig>,
    mut adapters: Vec<AdapterConfig>,
    flags: &[String],
) -> Result<(Vec<ModelConfig>, Vec<AdapterConfig>), ConfigError> {
    let of_models = models.iter().map(|model| &model.name);
    let of_adapters = adapters.iter().map(|adapter| &adapter.name);
    let names: Vec<String> = of_models.chain(of_adapters).cloned().collect();
    attach_each("--calibration", flags, |text| {
        let (index, file) = attached(&names, text)?;
        match index.checked_sub(models.len()) {
            None => models[index].calibrations.push(file),
            Some(index) => adapters[index].calibrations.push(file),
        }
        Ok(())
    })?;
    Ok((models, adapters))
}

/// Attaches every value of a flag.
fn attach_each(
    flag: &'static str,
    values: &[String],
    mut attach: impl FnMut(&str) -> Result<(), AttachmentError>,
) -> Result<(), ConfigError> {
    for text in values {
        attach(text).map_err(|problem| ConfigError::Unattached { flag, text: text.clone(), problem })?;
    }
    Ok(())
}

/// Returns the index of the name in `[NAME=]FILE`, or of the only one if the name is missing, and the file.
fn attached(names: &[String], text: &str) -> Result<(usize, PathBuf), AttachmentError> {
    let (name, file) = split_name(text);
    let index = match name {
        None if names.len() == 1 => 0,
        None => return Err(AttachmentError::NoName { models: names.to_vec() }),
        Some(name) => names
            .iter()
            .position(|known| known == name)
            .ok_or_else(|| AttachmentError::UnknownName { name: name.to_owned(), models: names.to_vec() })?,
    };
    if file.is_empty() { Err(AttachmentError::NoPath) } else { Ok((index, file.into())) }
}

/// The models with the files of `--chat-template [NAME=]FILE`.
pub(super) fn with_chat_templates(
    mut models: Vec<ModelConfig>,
    flags: &[String],
) -> Result<Vec<ModelConfig>, ConfigError> {
    attach_each("--chat-template", flags, |text| {
        let (index, file) = attached(&names(&models), text)?;
        let model = &mut models[index];
        if matches!(model.source, ModelSource::Remote(_)) {
            return Err(AttachmentError::Remote);
        }
        if model.chat_template.replace(file).is_some() {
            return Err(AttachmentError::Twice);
        }
        Ok(())
    })?;
    Ok(models)
}

fn names(models: &[ModelConfig]) -> Vec<String> {
    models.iter().map(|model| model.name.clone()).collect()
}

/// The models with the formats of `--tool-parser [NAME=]FORMAT`. Without a name, a format is for all models.
pub(super) fn with_tool_parsers(
    mut models: Vec<ModelConfig>,
    flags: &[String],
) -> Result<Vec<ModelConfig>, ConfigError> {
    for text in flags {
        set_tool_parser(&mut models, text)
            .map_err(|problem| ConfigError::ToolParser { text: text.clone(), problem })?;
    }
    Ok(models)
}

fn set_tool_parser(models: &mut [ModelConfig], text: &str) -> Result<(), &'static str> {
    let (name, format) = match text.split_once('=') {
        Some((name, format)) => (Some(name), format),
        None => (None, text),
    };
    let Some(choice) = tool_parser(format) else {
        return Err("the format must be auto, none, hermes, llama3_json, mistral or granite");
    };
    let named = named_models(models, name);
    if named.is_empty() {
        return Err("no model has this name");
    }
    for model in named {
        model.tool_parser = choice;
    }
    Ok(())
}

/// Returns the models with this name, or all of them if there is no name.
fn named_models<'a>(models: &'a mut [ModelConfig], name: Option<&str>) -> Vec<&'a mut ModelConfig> {
    models.iter_mut().filter(|model| name.is_none_or(|name| model.name == name)).collect()
}

/// The models with the files of `--decision-template [NAME=]FILE`. Without a name, a file is for all models.
pub(super) fn with_decision_templates(
    mut models: Vec<ModelConfig>,
    flags: &[String],
) -> Result<Vec<ModelConfig>, ConfigError> {
    attach_each("--decision-template", flags, |text| {
        let (name, file) = split_name(text);
        if file.is_empty() {
            return Err(AttachmentError::NoPath);
        }
        let all = names(&models);
        let named = named_models(&mut models, name);
        if named.is_empty() {
            let name = name.unwrap_or_default().to_owned();
            return Err(AttachmentError::UnknownName { name, models: all });
        }
        for model in named {
            model.decision_template = Some(file.into());
        }
        Ok(())
    })?;
    Ok(models)
}

fn tool_parser(text: &str) -> Option<ToolParserChoice> {
    match text {
        "auto" => Some(ToolParserChoice::Auto),
        "none" => Some(ToolParserChoice::None),
        name => {
            let format = ToolFormat::ALL.into_iter().find(|format| format.name() == name);
            format.map(ToolParserChoice::Format)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapters(models: &[&str], flags: &[&str]) -> Result<Vec<(String, String)>, String> {
        let model = |name: &&str| ModelConfig::new((*name).to_owned(), ModelSource::Path((*name).into()));
        let flags: Vec<String> = flags.iter().map(|&text| text.to_owned()).collect();
        let adapters = adapter_configs(&flags, &models.iter().map(model).collect::<Vec<_>>());
        let pair = |adapter: AdapterConfig| match adapter.folder {
            Location::Path(path) => (adapter.name, path.display().to_string()),
            Location::Hub(reference) => (adapter.name, reference.to_string()),
        };
        adapters.map(|all| all.into_iter().map(pair).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_adapter_is_called_after_its_folder_unless_named_and_no_name_is_used_twice() {
        let found = adapters(&["a"], &["x/y", "z=/x=1", "/x=2", "hf:o/l@v1"]).unwrap();
        let want = [("y", "x/y"), ("z", "/x=1"), ("x=2", "/x=2"), ("l", "hf:o/l@v1")];
        assert_eq!(found, want.map(|(name, folder)| (name.to_owned(), folder.to_owned())));
        for (flags, part) in [
            (&["a=x"][..], "has the name `a`"),
            (&["x", "y/x"], "has the name `x`"),
            (&["b="], "--adapter b=: write NAME=DIR"),
            (&["=x"], "--adapter =x: write NAME=DIR"),
            (&["hf:o"], "--adapter: `hf:o`: write it like hf:ORG/NAME"),
            (&["x=hf:o/l/f.gguf"], "--adapter: `hf:o/l/f.gguf`: a single file is only for --model"),
        ] {
            let error = adapters(&["a"], flags).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_format_of_calls_is_for_all_models_or_for_the_one_it_names() {
        let parsers = |flags: &[&str]| {
            let model = |name: &str| ModelConfig::new(name.to_owned(), ModelSource::Demo);
            let flags: Vec<String> = flags.iter().map(|&text| text.to_owned()).collect();
            let models = with_tool_parsers(vec![model("a"), model("b")], &flags);
            let parsers =
                |models: Vec<ModelConfig>| models.iter().map(|model| model.tool_parser).collect::<Vec<_>>();
            models.map(parsers).map_err(|error| error.to_string())
        };
        use ToolParserChoice::{Auto, Format, None};
        assert_eq!(parsers(&[]), Ok(vec![Auto, Auto]));
        assert_eq!(parsers(&["none", "b=llama3_json"]), Ok(vec![None, Format(ToolFormat::Llama3Json)]));
        for (flag, want) in [
            ("c=none", "--tool-parser c=none: no model has this name"),
            (
                "xml",
                "--tool-parser xml: the format must be auto, none, hermes, llama3_json, mistral or granite",
            ),
        ] {
            assert_eq!(parsers(&[flag]), Err(want.to_owned()));
        }
    }

    #[test]
    fn a_model_has_the_chat_template_that_names_it() {
        let models = || vec![model_config("a=x").unwrap(), model_config("b=http://h:1").unwrap()];
        let attached = |models: Vec<ModelConfig>, flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
            let models = with_chat_templates(models, &flags).map_err(|error| error.to_string())?;
            Ok::<_, String>(models.into_iter().map(|model| model.chat_template).collect::<Vec<_>>())
        };
        assert_eq!(attached(models(), &["a=1.jinja"]), Ok(vec![Some("1.jinja".into()), None]));
        assert_eq!(attached(models()[..1].to_vec(), &["1.jinja"]), Ok(vec![Some("1.jinja".into())]));
        for (flags, want) in [
            (&["c=1.jinja"][..], "c=1.jinja: no model has the name `c`; the models are `a`, `b`"),
            (&["1.jinja"], "1.jinja: write NAME=PATH with the name of a model; the models are `a`, `b`"),
            (&["a="], "a=: the path is missing after `=`"),
            (&["b=1.jinja"], "b=1.jinja: the engine of a model on another server has its own template"),
            (&["a=1", "a=2"], "a=2: the model has another one already"),
        ] {
            assert_eq!(attached(models(), flags), Err(format!("--chat-template {want}")));
        }
    }

    #[test]
    fn a_template_of_decisions_is_for_all_models_or_for_the_one_it_names() {
        let templates = |flags: &[&str]| {
            let models = vec![model_config("a=x").unwrap(), model_config("b=y").unwrap()];
            let flags: Vec<String> = flags.iter().map(|&text| text.to_owned()).collect();
            let models = with_decision_templates(models, &flags).map_err(|error| error.to_string())?;
            Ok(models.into_iter().map(|model| model.decision_template).collect::<Vec<_>>())
        };
        let path = |name: &str| Some(PathBuf::from(name));
        assert_eq!(templates(&["1.jinja", "b=2.jinja"]), Ok(vec![path("1.jinja"), path("2.jinja")]));
        let error: Result<Vec<Option<PathBuf>>, String> = templates(&["c=1.jinja"]);
        assert!(error.unwrap_err().starts_with("--decision-template c=1.jinja: no model has the name `c`"));
    }

    #[test]
    fn a_model_has_the_calibrations_that_name_it() {
        let models = || vec![model_config("a=x").unwrap(), model_config("b=y").unwrap()];
        let flags = |flags: &[&str]| flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>();
        let adapters = || adapter_configs(&flags(&["c=z"]), &models()).unwrap();
        let attached = |calibrations: &[&str]| with_calibrations(models(), adapters(), &flags(calibrations));
        let (found, of_adapters) = attached(&["b=1.json", "b=2.json", "c=3.json"]).unwrap();
        assert!(found[0].calibrations.is_empty());
        assert_eq!(found[1].calibrations, [PathBuf::from("1.json"), PathBuf::from("2.json")]);
        assert_eq!(of_adapters[0].calibrations, [PathBuf::from("3.json")]);
        let only = with_calibrations(models()[..1].to_vec(), Vec::new(), &flags(&["1.json"])).unwrap().0;
        assert_eq!(only[0].calibrations, [PathBuf::from("1.json")]);
        for (flag, want) in [
            ("d=1.json", "no model has the name `d`; the models are `a`, `b`, `c`"),
            ("1.json", "write NAME=PATH with the name of a model; the models are `a`, `b`, `c`"),
            ("a=", "the path is missing after `=`"),
        ] {
            let error = attached(&[flag]).unwrap_err().to_string();
            assert_eq!(error, format!("--calibration {flag}: {want}"));
        }
    }

    #[test]
    fn models_are_called_after_their_folders_unless_named() {
        let here = std::env::current_dir().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        for (text, name, folder) in [
            ("/models/t5-base", "t5-base", "/models/t5-base"),
            ("/models/t5-base/", "t5-base", "/models/t5-base/"),
            ("/models/llama.Q4.gguf", "llama.Q4", "/models/llama.Q4.gguf"),
            ("small=/models/t5", "small", "/models/t5"),
            ("org/small=models/t5", "org/small", "models/t5"),
            ("/run/lr=0.1/t5", "t5", "/run/lr=0.1/t5"),
            ("a=/run/lr=0.1/t5", "a", "/run/lr=0.1/t5"),
            (".", here.as_str(), "."),
        ] {
            let model = model_config(text).unwrap();
            assert_eq!(
                (model.name.as_str(), model.source),
                (name, ModelSource::Path(folder.into())),
                "{text}"
            );
        }
        for (text, name, hub) in [
            ("hf:o/n", "n", "hf:o/n"),
            ("a=hf:o/n@v1", "a", "hf:o/n@v1"),
            ("hf:o/n/m.gguf", "m", "hf:o/n/m.gguf"),
        ] {
            let model = model_config(text).unwrap();
            assert_eq!((model.name.as_str(), model.source), (name, ModelSource::Hub(hub.parse().unwrap())));
        }
        let error = model_config("a=hf:o/../n").unwrap_err().to_string();
        assert!(error.starts_with("--model: `hf:o/../n`: write it like hf:ORG/NAME"), "{error}");
        for (wrong, missing) in [("=/models/t5", "name"), ("a=", "folder"), ("", "folder")] {
            let error = model_config(wrong).unwrap_err().to_string();
            assert!(error.starts_with(&format!("no {missing} for the model")), "{wrong:?}: {error}");
        }
    }
}
