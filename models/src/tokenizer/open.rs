//! Which tokenizer a checkpoint has, and whether all that it needs is there.

use ntl_core::engine::NumberEncoding;

use crate::chat::{ChatTemplate, special_tokens};
use crate::checkpoint::{CheckpointFiles, LoadError, TokenizerType};

use super::config::{CONFIG_FILE, TokenizerConfig};
use super::library::{LIBRARY_FILE, LibraryTokenizer};
use super::pieces::PieceTable;
use super::sentencepiece::PrefixIndex;
use super::slow::{MODEL_FILE, SlowTokenizer};
use super::{Source, Tokenizer, xval};

impl Tokenizer {
    /// Opens the tokenizer of a checkpoint: its `tokenizer.json` where there is one, else its `spiece.model`.
    /// The tokenizers that write numbers in ways of their own exist as slow ones only, so that they prefer the latter.
    ///
    /// # Errors
    /// When neither is there, a file is broken, or the class of tokenizer is not served.
    pub fn open(files: &CheckpointFiles) -> Result<Self, LoadError> {
        Self::open_as(files, None)
    }

    /// As [`Tokenizer::open`]; a type that was chosen by hand overrules the class in the files, but for tokenizers that
    /// write numbers in ways of their own.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn open_as(files: &CheckpointFiles, chosen: Option<TokenizerType>) -> Result<Self, LoadError> {
        let config = TokenizerConfig::read(files)?;
        let numbers = match (config.number_encoding(), chosen) {
            (NumberEncoding::Text | NumberEncoding::Digits, Some(TokenizerType::Auto)) => {
                NumberEncoding::Text
            }
            (NumberEncoding::Text | NumberEncoding::Digits, Some(TokenizerType::Custom)) => {
                NumberEncoding::Digits
            }
            (said, _) => said,
        };
        let slow = files.has(MODEL_FILE) && (numbers != NumberEncoding::Text || !files.has(LIBRARY_FILE));
        let (source, table) = if slow {
            let (tokenizer, table) = SlowTokenizer::open(files, &config)?;
            (Source::Slow(Box::new(tokenizer)), table)
        } else if files.has(LIBRARY_FILE) {
            let (tokenizer, table) = LibraryTokenizer::open(files)?;
            (Source::Library(Box::new(tokenizer)), table)
        } else {
            return Err(LoadError::MissingFile {
                place: files.place().to_owned(),
                file: LIBRARY_FILE.to_owned(),
                hint: format!("; a SentencePiece {MODEL_FILE} would do as well"),
            });
        };
        check_number_tokens(numbers, &table)
            .map_err(|reason| LoadError::field(files.name_of(CONFIG_FILE), "tokenizer_class", reason))?;
        // Checkpoints older than the configuration fields rely on T5's own names.
        let id = |name: Option<&str>, usual| match name {
            Some(name) => table.id(name),
            None => table.id(usual).filter(|_| slow),
        };
        Ok(Self {
            numbers,
            clean_up: config.clean_up,
            eos: id(config.eos.as_deref(), "</s>"),
            pad: id(config.pad.as_deref(), "<pad>"),
            unknown: table.id("<unk>"),
            special: PrefixIndex::new(
                (0..).zip(table.special_names()).map(|(id, name)| (name.to_owned(), id)),
            ),
            named: special_tokens(files)?,
            number_token: table.id(xval::NUMBER_TOKEN).filter(|_| numbers == NumberEncoding::Xval),
            model_max_length: config.model_max_length,
            chat: ChatTemplate::open(files)?,
            source,
            table,
        })
    }
}

/// Whether the tokens that a class of tokenizers writes numbers with are in the vocabulary.
fn check_number_tokens(numbers: NumberEncoding, table: &PieceTable) -> Result<(), &'static str> {
    match numbers {
        NumberEncoding::Rt if table.id("_1_0_").is_none() => {
            Err("RtTokenizer needs tokens such as `_1_0_`, which are missing")
        }
        NumberEncoding::Xval if table.id(xval::NUMBER_TOKEN).is_none() => {
            Err("XvalTokenizer needs a token `[NUM]`, which is missing")
        }
        _ => Ok(()),
    }
}
