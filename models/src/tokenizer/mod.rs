//! Text to token ids and back, exactly as the checkpoint's own Python tokenizer does it.
//!
//! In: a checkpoint with a `tokenizer.json`, or with the `spiece.model` that the slow T5 tokenizers leave.
//! Out: [`Tokenizer`]. Not here: the number grammar over pieces, and the tokenizers that write numbers in other
//! ways than text (`RtTokenizer`, `XvalTokenizer`), which are refused.

mod cleanup;
mod config;
mod library;
mod pieces;
mod sentencepiece;
mod slow;

use ntl_core::engine::NumberEncoding;
use ntl_core::numbers::python;
use ntl_core::text::TextDecoder;

use crate::checkpoint::{CheckpointFiles, LoadError, TokenizerType};

use self::config::TokenizerConfig;
use self::library::{LIBRARY_FILE, LibraryTokenizer};
use self::pieces::{PieceKind, PieceTable, SPACE_MARK, Token};
use self::slow::{MODEL_FILE, SlowTokenizer};

/// A text that the tokenizer cannot write in its vocabulary.
#[derive(Debug, thiserror::Error)]
#[error("text cannot be tokenized")]
pub struct EncodeError(#[source] tokenizers::Error);

/// The tokenizer of a checkpoint.
pub struct Tokenizer {
    source: Source,
    table: PieceTable,
    numbers: NumberEncoding,
    clean_up: bool,
    eos: Option<u32>,
    pad: Option<u32>,
    unknown: Option<u32>,
    model_max_length: Option<usize>,
}

enum Source {
    Library(Box<LibraryTokenizer>),
    Slow(Box<SlowTokenizer>),
}

impl Tokenizer {
    /// Opens the tokenizer of a checkpoint: its `tokenizer.json` where there is one, else its `spiece.model`.
    /// `T5Custom_Tokenizer` exists as a slow tokenizer only, so that it prefers the latter.
    ///
    /// # Errors
    /// When neither is there, a file is broken, or the class of tokenizer is not served.
    pub fn open(files: &CheckpointFiles) -> Result<Self, LoadError> {
        Self::open_as(files, None)
    }

    /// As [`Tokenizer::open`]; a type that was chosen by hand overrules the class in the files.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn open_as(files: &CheckpointFiles, chosen: Option<TokenizerType>) -> Result<Self, LoadError> {
        let config = TokenizerConfig::read(files)?;
        let numbers = match chosen {
            None => config.number_encoding(),
            Some(TokenizerType::Auto) => NumberEncoding::Text,
            Some(TokenizerType::Custom) => NumberEncoding::Digits,
        };
        let slow = files.has(MODEL_FILE) && (numbers == NumberEncoding::Digits || !files.has(LIBRARY_FILE));
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
            model_max_length: config.model_max_length,
            source,
            table,
        })
    }

    /// The ids of `text`, with those special tokens that the checkpoint was trained with at the ends (`</s>` of
    /// T5, `<s>` of Llama) if asked for. The names of special tokens inside the text become those tokens.
    ///
    /// # Errors
    /// When a `tokenizer.json` has no token for a part of the text, not even an unknown one.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        let tokens = match &self.source {
            Source::Library(tokenizer) => tokenizer.encode(text, add_special_tokens)?,
            Source::Slow(tokenizer) => tokenizer.encode(text, add_special_tokens),
        };
        Ok(match self.numbers {
            NumberEncoding::Digits => tokens.iter().flat_map(|token| self.split_digits(token)).collect(),
            _ => tokens.iter().map(|token| token.id).collect(),
        })
    }

    /// How many ids it knows: the largest and one. Logits at and beyond this are padding.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it knows no id at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the checkpoint writes numbers.
    pub fn number_encoding(&self) -> NumberEncoding {
        self.numbers
    }

    /// The text that a piece adds in the middle of a sequence, such as ` 12` for `▁12` and `5` for `<0x35>`.
    ///
    /// `None` for special tokens, for ids without a piece, and for pieces that are not whole characters.
    pub fn piece_text(&self, id: u32) -> Option<String> {
        self.table.text(id)
    }

    /// The value of a number token as Number Token Loss defines it for this tokenizer; always finite.
    ///
    /// With digit splitting these are the ten bare digits, else all pieces that Python's `float` takes once the
    /// space marks before them are gone. `None` for every other id.
    pub fn number_value(&self, id: u32) -> Option<f64> {
        let piece = self.table.get(id).filter(|piece| piece.kind != PieceKind::Special)?;
        match self.numbers {
            NumberEncoding::Digits => {
                let digit = piece.name.parse::<u8>().ok()?;
                (piece.name.len() == 1).then_some(f64::from(digit))
            }
            _ => python::parse_float(piece.name.trim_start_matches(SPACE_MARK)),
        }
    }

    /// The token that ends a text.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// The token that fills up batches.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad
    }

    /// A piece as the vocabulary writes it, such as `▁12` or `</s>`.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.table.get(id).map(|piece| piece.name.as_str())
    }

    /// The id of a piece as the vocabulary writes it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.table.id(token)
    }

    /// The most tokens of a text that the checkpoint's author provided for, if any.
    pub fn model_max_length(&self) -> Option<usize> {
        self.model_max_length
    }

    /// A token with a digit in it becomes its characters; one without a piece of its own becomes `<unk>`, or
    /// vanishes where there is none.
    fn split_digits(&self, token: &Token) -> Vec<u32> {
        let has_digit = token.text.chars().any(|character| python::digit_value(character).is_some());
        if !has_digit || token.text.starts_with("<extra_id_") {
            return vec![token.id];
        }
        let id = |character: char| self.table.id(character.encode_utf8(&mut [0; 4])).or(self.unknown);
        token.text.chars().filter_map(id).collect()
    }
}

impl TextDecoder for Tokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        let text = match &self.source {
            Source::Slow(_) => slow::decode(&self.table, ids),
            Source::Library(tokenizer) => tokenizer
                .decode(ids)
                .unwrap_or_else(|| ids.iter().filter_map(|&id| self.table.text(id)).collect()),
        };
        if self.clean_up { cleanup::clean_up(&text) } else { text }
    }

    /// A part of a character reads as `bytes:\xe2\x82`.
    fn token_text(&self, id: u32) -> String {
        let bytes = self.table.bytes(id).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_else(|error| {
            let escaped = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", escaped.collect::<String>())
        })
    }

    fn settled_len(&self, text: &str) -> usize {
        cleanup::settled_len(text, self.clean_up, matches!(self.source, Source::Slow(_)))
    }
}

#[cfg(test)]
mod tests;
