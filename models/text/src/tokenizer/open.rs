//! Opens the tokenizer of a checkpoint.

use ntl_core::contract::NumberEncoding;

use crate::chat::ChatTemplate;
use crate::checkpoint::{CheckpointFiles, LoadError, TokenizerType};

use super::config::{CONFIG_FILE, TokenizerConfig};
use super::library::{LIBRARY_FILE, LibraryTokenizer};
use super::pieces::PieceTable;
use super::sentencepiece::PrefixIndex;
use super::slow::{MODEL_FILE, SlowTokenizer};
use super::{Source, Tokenizer, xval};

impl Tokenizer {
    /// Opens `tokenizer.json` if it exists, otherwise `spiece.model`. Tokenizers with a special number
    /// encoding prefer `spiece.model`, because they exist only as slow tokenizers.
    pub fn open(files: &CheckpointFiles) -> Result<Self, LoadError> {
        Self::open_as(files, None)
    }

    /// Like [`Tokenizer::open`], but `chosen` overrides the class in the files, unless that class is RT or
    /// xVal.
    pub fn open_as(files: &CheckpointFiles, chosen: Option<TokenizerType>) -> Result<Self, LoadError> {
        let config = TokenizerConfig::read(files)?;
        let numbers = match (config.number_encoding(), chosen) {
            (NumberEncoding::Text | NumberEncoding::Digits, Some(TokenizerType::Auto)) => {
                NumberEncoding::Text
            }
            (NumberEncoding::Text | NumberEncoding::Digits, Some(TokenizerType::Custom)) => {
                NumberEncoding::Digits
            }
            (encoding, _) => encoding,
        };
        let has_library = files.has(LIBRARY_FILE)?;
        let slow = files.has(MODEL_FILE)? && (numbers != NumberEncoding::Text || !has_library);
        let (source, table) = if slow {
            let (tokenizer, table) = SlowTokenizer::open(files, &config)?;
            (Source::Slow(Box::new(tokenizer)), table)
        } else if has_library {
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
        // T5 checkpoints that are older than these fields rely on the usual names.
        let id = |purpose: &str, usual| match config.named.get(purpose) {
            Some(name) => table.id(name),
            None if slow => table.id(usual),
            None => None,
        };
        Ok(Self {
            numbers,
            clean_up: config.clean_up,
            eos: id("eos_token", "</s>"),
            pad: id("pad_token", "<pad>"),
            unknown: table.id("<unk>"),
            special: PrefixIndex::new(
                (0..).zip(table.special_names()).map(|(id, name)| (name.to_owned(), id)),
            ),
            number_token: match numbers {
                NumberEncoding::Xval => table.id(xval::NUMBER_TOKEN),
                _ => None,
            },
            model_max_length: config.model_max_length,
            truncation_side: config.truncation_side,
            piece_bytes_max: table.bytes_max(),
            chat: ChatTemplate::open(files, config.named.clone())?,
            named: config.named,
            source,
            table,
        })
    }
}

/// Checks that the vocabulary has the tokens of the number encoding.
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
