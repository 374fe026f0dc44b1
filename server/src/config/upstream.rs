//! The flags about models that another engine computes, such as `--upstream` and `--tokenizer`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ntl_remote::{ApiKey, EngineKind};

use super::args::UpstreamArgs;
use super::models::{ModelConfig, ModelSource};
use super::remote::{RemoteModel, RemoteModelError};
use crate::hub::Location;

/// Applies the flags about models on other servers. Each replica writes at most `texts_max` texts at a time.
pub(super) fn with_upstream_flags(
    mut models: Vec<ModelConfig>,
    flags: &UpstreamArgs,
    texts_max: usize,
) -> Result<Vec<ModelConfig>, RemoteModelError> {
    for model in &mut models {
        if let ModelSource::Remote(remote) = &mut model.source {
            remote.texts_max = texts_max.saturating_mul(remote.replicas.len());
        }
    }
    for text in &flags.upstreams {
        set(&mut models, "--upstream", text, kind, |model, kind| model.kind = kind)?;
    }
    for text in &flags.ca_files {
        set(&mut models, "--ca-file", text, PathBuf::from_str, |model, path| model.ca_file = Some(path))?;
    }
    for text in &flags.tokenizers {
        set(&mut models, "--tokenizer", text, Location::from_str, |model, location| {
            model.tokenizer = Some(location);
        })?;
    }
    for text in &flags.upstream_timeouts {
        set(&mut models, "--upstream-timeout", text, positive::<u64>, |model, seconds| {
            model.timeout = Duration::from_secs(seconds);
        })?;
    }
    for text in &flags.upstream_concurrencies {
        set(&mut models, "--upstream-concurrency", text, positive::<usize>, |model, count| {
            model.concurrency = count;
        })?;
    }
    for text in &flags.upstream_fields {
        set(&mut models, "--upstream-fields", text, field, |model, field| model.fields.push(field))?;
    }
    for text in &flags.upstream_api_keys {
        let (targets, key) = targets(&mut models, "--upstream-api-key", text)?;
        let key = ApiKey::new(key)?;
        targets.into_iter().for_each(|model| model.api_key = Some(key.clone()));
    }
    Ok(models)
}

fn set<T: Clone, E: ToString>(
    models: &mut [ModelConfig],
    flag: &'static str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
    set: impl Fn(&mut RemoteModel, T),
) -> Result<(), RemoteModelError> {
    let (targets, value) = targets(models, flag, text)?;
    let value = parse(value).map_err(|error| {
        let problem = error.to_string();
        RemoteModelError::Flag { flag, text: text.to_owned(), problem }
    })?;
    targets.into_iter().for_each(|model| set(model, value.clone()));
    Ok(())
}

/// The models that `[NAME=]VALUE` is about, and the value. Text before `=` that does not name a model belongs
/// to the value, since keys and paths may contain `=`.
fn targets<'a, 't>(
    models: &'a mut [ModelConfig],
    flag: &'static str,
    text: &'t str,
) -> Result<(Vec<&'a mut RemoteModel>, &'t str), RemoteModelError> {
    let named = text.split_once('=').filter(|(name, _)| models.iter().any(|model| model.name == *name));
    let mut targets = Vec::new();
    for model in models {
        if let ModelSource::Remote(remote) = &mut model.source
            && named.is_none_or(|(name, _)| model.name == name)
        {
            targets.push(&mut **remote);
        }
    }
    if targets.is_empty() {
        return Err(RemoteModelError::NoRemoteModel(flag));
    }
    Ok((targets, named.map_or(text, |(_, value)| value)))
}

/// Parses the kind of an engine. `auto` is `None`: the server's own description decides.
fn kind(text: &str) -> Result<Option<EngineKind>, &'static str> {
    let kinds = [
        EngineKind::Vllm,
        EngineKind::LlamaCpp,
        EngineKind::Ntl,
        EngineKind::Sglang,
        EngineKind::OpenAi,
        EngineKind::OpenAiChat,
    ];
    match kinds.into_iter().find(|kind| kind.name() == text) {
        None if text != "auto" => Err("must be auto, vllm, llama-cpp, ntl, sglang, openai or openai-chat"),
        kind => Ok(kind),
    }
}

fn field(text: &str) -> Result<String, &'static str> {
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_name { Ok(text.to_owned()) } else { Err("must be the name of a field, such as image_url") }
}

fn positive<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, &'static str> {
    let value = text.parse().ok().filter(|value| *value >= T::from(1));
    value.ok_or("must be a whole number of at least 1")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::remote::CONCURRENCY;
    use crate::config::{Args, Config};

    fn models(flags: &[&str]) -> Result<Vec<RemoteModel>, String> {
        let args = Args::try_parse_from([&["ntl-server"], flags].concat()).unwrap();
        let config = Config::try_from(args).map_err(|error| error.to_string())?;
        let remote = |model: ModelConfig| match model.source {
            ModelSource::Remote(remote) => Some(*remote),
            ModelSource::Demo | ModelSource::Path(_) | ModelSource::Hub(_) => None,
        };
        Ok(config.models.into_iter().filter_map(remote).collect())
    }

    #[test]
    fn urls_separated_by_commas_are_replicas_of_one_model_and_the_name_of_the_model_follows_a_hash() {
        let found = models(&["--model", "a=http://h:1#m,https://h:2/v1,b=http://h:3,/models/c"]).unwrap();
        let replicas: Vec<Vec<String>> =
            found.iter().map(|model| model.replicas.iter().map(ToString::to_string).collect()).collect();
        assert_eq!(replicas, [vec!["h:1", "h:2"], vec!["h:3"]]);
        assert_eq!([&found[0].model, &found[1].model], [&Some("m".to_owned()), &None]);
        for (flags, want) in [
            (&["--model", "http://h:1"][..], "--model: the URL of a model needs a name; write NAME=URL"),
            (
                &["--model", "a=http://h:1#m,http://h:2#n"],
                "--model: the replicas of `a` name different models after `#`",
            ),
            (
                &["--model", "a=http://h:1/SECRETPATH?key=SECRET"],
                "--model: `http://h:1`: write it like http://127.0.0.1:8000, without a query",
            ),
            (
                &["--model", "a=http://me:SECRET@h:port/x"],
                "--model: `http://h:port`: invalid port number; write it like http://127.0.0.1:8000",
            ),
            (
                &["--model", "a=http://me:secret@h"],
                "--model: the URL contains a user or a password; give the key with --upstream-api-key",
            ),
            (
                &["--model", "a=http://h", "--adapter", "a=/x"],
                "--adapter: `a` is computed by another engine; load the adapter there",
            ),
        ] {
            assert_eq!(models(flags).unwrap_err(), want);
        }
    }

    #[test]
    fn a_flag_is_for_all_models_on_other_servers_or_for_the_one_that_it_names() {
        let base = ["--model", "a=http://h:1,b=http://h:2"];
        let with = |flags: &[&str]| models(&[&base, flags].concat());
        let found = with(&[
            "--upstream",
            "vllm",
            "--upstream",
            "b=llama-cpp",
            "--upstream-timeout=7",
            "--tokenizer",
            "a=/t",
            "--upstream-concurrency",
            "b=3",
            "--upstream-fields",
            "image_url,b=kv_transfer_params",
            "--upstream-api-key",
            "b=k=1",
        ])
        .unwrap();
        let kinds: Vec<_> = found.iter().map(|model| model.kind).collect();
        assert_eq!(kinds, [Some(EngineKind::Vllm), Some(EngineKind::LlamaCpp)]);
        assert!(found.iter().all(|model| model.timeout == Duration::from_secs(7)));
        let path = Location::Path("/t".into());
        assert_eq!((found[0].tokenizer.clone(), found[1].tokenizer.clone()), (Some(path), None));
        let found_on_hub = with(&["--tokenizer", "b=hf:o/n"]).unwrap()[1].tokenizer.clone();
        assert_eq!(found_on_hub, Some(Location::Hub("hf:o/n".parse().unwrap())));
        assert_eq!([found[0].concurrency, found[1].concurrency], [CONCURRENCY, 3]);
        assert_eq!(found[0].fields, ["image_url"]);
        assert_eq!(found[1].fields, ["image_url", "kv_transfer_params"]);
        assert_eq!((&found[0].api_key, &found[1].api_key), (&None, &Some(ApiKey::new("k=1").unwrap())));
        assert_eq!(with(&["--upstream", "auto"]).unwrap()[0].kind, None);
        for (flags, want) in [
            (
                &["--upstream", "a=tgi"][..],
                "--upstream a=tgi: must be auto, vllm, llama-cpp, ntl, sglang, openai or openai-chat",
            ),
            (
                &["--upstream-fields", "a=x.y"],
                "--upstream-fields a=x.y: must be the name of a field, such as image_url",
            ),
            (
                &["--tokenizer", "a=hf:o"],
                "--tokenizer a=hf:o: `hf:o`: write it like hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME/FILE.gguf",
            ),
            (&["--upstream-timeout", "0"], "--upstream-timeout 0: must be a whole number of at least 1"),
        ] {
            assert_eq!(with(flags).unwrap_err(), want);
        }
        let error = models(&["--upstream-timeout", "9"]).unwrap_err();
        assert_eq!(
            error,
            "--upstream-timeout is only for models that another engine computes: --model NAME=URL"
        );
    }

    #[test]
    fn a_key_is_shown_nowhere() {
        let found = models(&["--model", "a=http://h", "--upstream-api-key", "secret"]).unwrap();
        assert!(!format!("{found:?}").contains("secret"));
        let error = models(&["--model", "a=http://h", "--upstream-api-key", "secret\n"]).unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
