//! Facts that a model needs but its `config.json` does not contain.
//!
//! Sources, in order: the command line ([`Choices`]), `ntl.json` in the checkpoint's directory, and the
//! `config.yaml` that the paper's trainer writes into its output directory, which is this directory or its
//! parent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use super::{CONFIG_FILE, CheckpointFiles, LoadError, OWN_FILE, yaml};

/// A setting with a few named values.
trait Named: Copy + PartialEq + 'static {
    /// All values with their names in the paper's trainer; messages show the first name of a value.
    const NAMES: &'static [(&'static str, Self)];

    fn parse(text: &str) -> Result<Self, String> {
        let lower = text.to_lowercase();
        let known = Self::NAMES.iter().find(|(name, _)| *name == lower);
        known.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|&(name, _)| name).collect();
            format!("`{text}` is none of {}", names.join(", "))
        })
    }

    #[expect(clippy::expect_used, reason = "NAMES lists every value")]
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).expect("every value has a name").0
    }
}

impl Named for bool {
    const NAMES: &'static [(&'static str, Self)] = &[("true", true), ("false", false)];
}

const TRAINER_FILE: &str = "config.yaml";

/// `tokenizer_type` of the paper's trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerType {
    /// Pieces are used unchanged.
    Auto,
    /// Pieces with digits are split into their characters.
    Custom,
}

impl Named for TokenizerType {
    const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("default", Self::Auto), ("custom", Self::Custom)];
}

impl FromStr for TokenizerType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

/// `number_encoding` of the paper's trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedEncoding {
    /// Text.
    None,
    /// Text, and a head that predicts one number.
    NoneRegressionHead,
    /// One token for each digit at each place value.
    Rt,
    /// One token. Its embedding is scaled by the number.
    Xval,
}

impl Named for TrainedEncoding {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("none_regression_head", Self::NoneRegressionHead),
        ("rt", Self::Rt),
        ("xval", Self::Xval),
    ];
}

/// The end at which a prompt that is too long is truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationSide {
    /// Drops the first tokens.
    Left,
    /// Drops the last tokens.
    Right,
}

impl Named for TruncationSide {
    const NAMES: &'static [(&'static str, Self)] = &[("left", Self::Left), ("right", Self::Right)];
}

impl FromStr for TruncationSide {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

/// Facts from the command line or `ntl.json`, which override the other files of the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choices {
    /// Whether numbers went through a logarithm before they were embedded (`rt`, `xval`) or predicted
    /// (regression head).
    pub log_scale_embeddings: Option<bool>,
    pub tokenizer_type: Option<TokenizerType>,
    pub number_encoding: Option<TrainedEncoding>,
}

fn named<'de, D: Deserializer<'de>, T: Named>(deserializer: D) -> Result<Option<T>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| T::parse(&name)).transpose().map_err(serde::de::Error::custom)
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag,
    /// `ntl.json` or the trainer's `config.yaml`, with its path.
    File(String),
    /// The trainer's default, because its `config.yaml` (with its path) does not contain the setting.
    TrainerDefault(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice<T> {
    pub value: T,
    pub origin: Origin,
}

/// `ntl.json`: the choices, the side that training truncated, and questions that show what the model can do.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OwnFile {
    log_scale_embeddings: Option<bool>,
    #[serde(deserialize_with = "named")]
    tokenizer_type: Option<TokenizerType>,
    #[serde(deserialize_with = "named")]
    number_encoding: Option<TrainedEncoding>,
    #[serde(deserialize_with = "named")]
    truncation_side: Option<TruncationSide>,
    examples: Vec<String>,
}

/// The fields of `ntl.json` that do not depend on whether it also describes the whole checkpoint.
#[derive(Deserialize)]
struct Described {
    format: Option<String>,
    #[serde(default)]
    examples: Vec<String>,
}

/// The facts of one checkpoint.
pub struct CheckpointFacts<'a> {
    files: &'a CheckpointFiles,
    flags: Choices,
    /// `ntl.json`.
    own: Choices,
    truncation_side: Option<TruncationSide>,
    examples: Vec<String>,
}

impl<'a> CheckpointFacts<'a> {
    /// Reads `ntl.json`. `flags` override the files.
    pub fn open(files: &'a CheckpointFiles, flags: Choices) -> Result<Self, LoadError> {
        let described = if files.has(CONFIG_FILE)? { None } else { files.json::<Described>(OWN_FILE)? };
        let own = match described {
            Some(Described { format: Some(_), examples }) => OwnFile { examples, ..OwnFile::default() },
            _ => files.json(OWN_FILE)?.unwrap_or_default(),
        };
        let OwnFile { log_scale_embeddings, tokenizer_type, number_encoding, truncation_side, examples } =
            own;
        let own = Choices { log_scale_embeddings, tokenizer_type, number_encoding };
        Ok(Self { files, flags, own, truncation_side, examples })
    }

    /// The side at which training truncated prompts, if `ntl.json` states it.
    pub fn truncation_side(&self) -> Option<TruncationSide> {
        self.truncation_side
    }

    /// Example prompts from `ntl.json` that show what the model can do.
    pub fn examples(&self) -> &[String] {
        &self.examples
    }

    /// Returns whether numbers went through a logarithm. If the trainer's `config.yaml` lacks the setting,
    /// they did not.
    ///
    /// # Errors
    /// [`LoadError::Undecided`] if no source contains the setting. Also fails if a file cannot be read or has
    /// a value of another type.
    pub fn log_scale_embeddings(&self) -> Result<Choice<bool>, LoadError> {
        const NAME: &str = "log_scale_embeddings";
        if let Some(choice) = self.find(NAME, |choices| choices.log_scale_embeddings)? {
            return Ok(choice);
        }
        let origin = match self.number_encoding()? {
            Some(Choice { origin: Origin::File(file), .. }) if file.ends_with(TRAINER_FILE) => {
                Origin::TrainerDefault(file)
            }
            _ => return Err(LoadError::Undecided { place: self.files.place().to_owned(), choice: NAME }),
        };
        Ok(Choice { value: false, origin })
    }

    pub fn tokenizer_type(&self) -> Result<Option<Choice<TokenizerType>>, LoadError> {
        self.find("tokenizer_type", |choices| choices.tokenizer_type)
    }

    /// The tokenizer type from the command line or `ntl.json`. Only these override the class in the
    /// tokenizer's own files, which the trainer always writes.
    pub fn chosen_tokenizer_type(&self) -> Option<TokenizerType> {
        self.flags.tokenizer_type.or(self.own.tokenizer_type)
    }

    pub fn number_encoding(&self) -> Result<Option<Choice<TrainedEncoding>>, LoadError> {
        self.find("number_encoding", |choices| choices.number_encoding)
    }

    /// Returns all facts that a source contains, by name, with the names of their values.
    pub fn all(&self) -> Result<Vec<(&'static str, Choice<&'static str>)>, LoadError> {
        let mut all = Vec::new();
        match self.log_scale_embeddings() {
            Ok(choice) => all.push(("log_scale_embeddings", shown(choice))),
            Err(LoadError::Undecided { .. }) => {}
            Err(error) => return Err(error),
        }
        all.extend(self.tokenizer_type()?.map(|choice| ("tokenizer_type", shown(choice))));
        all.extend(self.number_encoding()?.map(|choice| ("number_encoding", shown(choice))));
        if let Some(side) = self.truncation_side {
            let origin = Origin::File(self.files.name_of(OWN_FILE));
            all.push(("truncation_side", Choice { value: side.name(), origin }));
        }
        Ok(all)
    }

    fn find<T: Named>(
        &self,
        name: &str,
        of: impl Fn(&Choices) -> Option<T>,
    ) -> Result<Option<Choice<T>>, LoadError> {
        if let Some(value) = of(&self.flags) {
            return Ok(Some(Choice { value, origin: Origin::Flag }));
        }
        if let Some(value) = of(&self.own) {
            return Ok(Some(Choice { value, origin: Origin::File(self.files.name_of(OWN_FILE)) }));
        }
        let Some((bytes, file)) = self.trainer_file()? else { return Ok(None) };
        let text = str::from_utf8(&bytes).map_err(|error| LoadError::malformed(&file, error))?;
        let Some(value) = yaml::find(text, name).map_err(|error| LoadError::malformed(&file, error))? else {
            return Ok(None);
        };
        match T::parse(&value) {
            Ok(value) => Ok(Some(Choice { value, origin: Origin::File(file) })),
            Err(reason) => Err(LoadError::field(file, name, reason)),
        }
    }

    fn trainer_file(&self) -> Result<Option<(Vec<u8>, String)>, LoadError> {
        match self.files.read(TRAINER_FILE)? {
            Some(bytes) => Ok(Some((bytes.into_owned(), self.files.name_of(TRAINER_FILE)))),
            None => self.files.read_above(TRAINER_FILE),
        }
    }
}

fn shown<T: Named>(choice: Choice<T>) -> Choice<&'static str> {
    Choice { value: choice.value.name(), origin: choice.origin }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("command line"),
            Self::File(file) => f.write_str(file),
            Self::TrainerDefault(file) => write!(f, "default of the trainer that wrote {file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Creates an output directory with these files. Its subdirectory `checkpoint-1/` is the checkpoint.
    fn output(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = folder.path().join("checkpoint-1");
        fs::create_dir(&checkpoint).unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        (folder, checkpoint)
    }

    fn log_scale(files: &[(&str, &str)], chosen: Choices) -> Result<(bool, String), String> {
        let (folder, checkpoint) = output(files);
        let files = CheckpointFiles::folder(&checkpoint).unwrap();
        let facts = CheckpointFacts::open(&files, chosen);
        let choice = facts.and_then(|facts| facts.log_scale_embeddings());
        let place = |text: String| text.replace(&folder.path().display().to_string(), "OUT");
        choice
            .map(|choice| (choice.value, place(choice.origin.to_string())))
            .map_err(|error| place(error.to_string()))
    }

    const XVAL: (&str, &str) =
        ("config.yaml", "model_args:\n  number_encoding: xval\n  log_scale_embeddings: true\n");

    #[test]
    fn the_command_line_overrides_ntl_json_which_overrides_the_trainers_file() {
        let own = ("checkpoint-1/ntl.json", r#"{"log_scale_embeddings": false}"#);
        let flag = Choices { log_scale_embeddings: Some(true), ..Choices::default() };
        let said = |value, origin: &str| Ok((value, origin.to_owned()));
        assert_eq!(log_scale(&[XVAL, own], flag), said(true, "command line"));
        assert_eq!(log_scale(&[XVAL, own], Choices::default()), said(false, "OUT/checkpoint-1/ntl.json"));
        assert_eq!(log_scale(&[XVAL], Choices::default()), said(true, "OUT/checkpoint-1/../config.yaml"));
    }

    #[test]
    fn the_trainers_file_is_also_found_next_to_the_weights_of_a_finished_run() {
        let beside = ("checkpoint-1/config.yaml", "log_scale_embeddings: FALSE");
        let said = log_scale(&[XVAL, beside], Choices::default());
        assert_eq!(said, Ok((false, "OUT/checkpoint-1/config.yaml".to_owned())));
    }

    #[test]
    fn settings_that_the_trainers_file_lacks_have_the_trainers_default() {
        let silent = ("config.yaml", "model_args:\n  number_encoding: rt\n");
        let said = log_scale(&[silent], Choices::default());
        let origin = "default of the trainer that wrote OUT/checkpoint-1/../config.yaml";
        assert_eq!(said, Ok((false, origin.to_owned())));
    }

    #[test]
    fn the_error_names_a_missing_setting_or_an_invalid_value() {
        let own = |text| ("checkpoint-1/ntl.json", text);
        for (files, want) in [
            (
                vec![],
                "OUT/checkpoint-1 does not say `log_scale_embeddings`: \
                 give --log-scale-embeddings true or --log-scale-embeddings false, the value that the trainer used (its default \
                 is false), or write it to its ntl.json",
            ),
            (vec![("config.yaml", "unrelated: true")], "does not say `log_scale_embeddings`"),
            (vec![("config.yaml", "log_scale_embeddings: maybe")], "`maybe` is none of true, false"),
            (
                vec![("config.yaml", "number_encoding: roman")],
                "field `number_encoding`: `roman` is none of none, ",
            ),
            (vec![("config.yaml", "a: [1, 2")], "OUT/checkpoint-1/../config.yaml is not usable"),
            (vec![own("3")], "OUT/checkpoint-1/ntl.json is not usable"),
            (vec![own(r#"{"log_scale_embeding": true}"#)], "unknown field `log_scale_embeding`"),
            (vec![own(r#"{"truncation_side": "middle"}"#)], "`middle` is none of left, right"),
            (vec![own(r#"{"tokenizer_type": "fast"}"#)], "`fast` is none of auto, default, custom"),
        ] {
            let message = log_scale(&files, Choices::default()).unwrap_err();
            assert!(message.contains(want), "{message}");
        }
    }

    #[test]
    fn all_facts_with_a_source_can_be_listed() {
        let (_folder, checkpoint) = output(&[
            XVAL,
            ("checkpoint-1/ntl.json", r#"{"tokenizer_type": "custom", "truncation_side": "right"}"#),
        ]);
        let files = CheckpointFiles::folder(&checkpoint).unwrap();
        let facts = CheckpointFacts::open(&files, Choices::default()).unwrap();
        assert_eq!(facts.truncation_side(), Some(TruncationSide::Right));
        let all = facts.all().unwrap();
        let all: Vec<_> = all.iter().map(|(name, choice)| (*name, choice.value)).collect();
        let want = [
            ("log_scale_embeddings", "true"),
            ("tokenizer_type", "custom"),
            ("number_encoding", "xval"),
            ("truncation_side", "right"),
        ];
        assert_eq!(all, want);
    }

    #[test]
    fn examples_are_a_list_of_texts_of_ntl_json() {
        let (_folder, checkpoint) =
            output(&[("checkpoint-1/ntl.json", r#"{"examples": ["1 + 1", "2 + 2"]}"#)]);
        let files = CheckpointFiles::folder(&checkpoint).unwrap();
        let facts = CheckpointFacts::open(&files, Choices::default()).unwrap();
        assert_eq!(facts.examples(), ["1 + 1", "2 + 2"]);
        let (_folder, checkpoint) = output(&[("checkpoint-1/ntl.json", r#"{"examples": "1 + 1"}"#)]);
        let files = CheckpointFiles::folder(&checkpoint).unwrap();
        let error = CheckpointFacts::open(&files, Choices::default()).err().unwrap().to_string();
        assert!(error.contains("ntl.json") && error.contains("examples"), "{error}");
    }
}
