//! Text to token ids and back, exactly as the checkpoint's own Python tokenizer.
//!
//! In: a checkpoint with a `tokenizer.json`, or with the `spiece.model` of a slow T5 tokenizer. Out: [`Tokenizer`].

mod cleanup;
mod config;
mod decode;
mod library;
mod open;
mod pieces;
mod rt;
mod sentencepiece;
mod slow;
mod xval;

use std::collections::BTreeMap;

use ntl_core::Prompt;
use ntl_core::engine::NumberEncoding;
use ntl_core::numbers::{NumberPiece, python};

use crate::chat::ChatTemplate;

#[cfg(test)]
pub(crate) use config::TokenizerConfig;

use library::LibraryTokenizer;
use pieces::{PieceKind, PieceTable, SPACE_MARK, Segment};
use sentencepiece::PrefixIndex;
use slow::SlowTokenizer;
use xval::ExtractedNumbers;

/// Why a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The vocabulary of a `tokenizer.json` has no token for a part of it.
    #[error("text cannot be tokenized")]
    Library(#[source] tokenizers::Error),
    /// It contains the placeholder of numbers, for which it has no value.
    #[error("text must not contain `{0}`, the placeholder of numbers in this model")]
    NumberMark(&'static str),
    /// A number in it is longer than any prompt, or beyond single precision. The string is its beginning.
    #[error("the number {0} is too large for this model")]
    NumberTooLarge(String),
}

impl EncodeError {
    fn too_large(number: &str) -> Self {
        const SHOWN: usize = 40;
        let mut shown: String = number.chars().take(SHOWN).collect();
        if shown.len() < number.len() {
            shown.push('…');
        }
        Self::NumberTooLarge(shown)
    }
}

pub struct Tokenizer {
    source: Source,
    table: PieceTable,
    numbers: NumberEncoding,
    clean_up: bool,
    eos: Option<u32>,
    pad: Option<u32>,
    unknown: Option<u32>,
    /// Names of special tokens, which the search for numbers skips.
    special: PrefixIndex,
    /// Special tokens by purpose, such as `bos_token`.
    named: BTreeMap<String, String>,
    /// xVal: the token that has a value.
    number_token: Option<u32>,
    model_max_length: Option<usize>,
    /// Bytes of the longest piece.
    piece_bytes_max: usize,
    chat: Option<ChatTemplate>,
}

enum Source {
    Library(Box<LibraryTokenizer>),
    Slow(Box<SlowTokenizer>),
}

impl Tokenizer {
    /// The ids of `text`. `add_special_tokens` adds those that the checkpoint was trained with at the ends (`</s>` of T5,
    /// `<s>` of Llama). Names of special tokens inside the text become those tokens.
    ///
    /// # Errors
    /// When the vocabulary has no token for a part of the text, not even an unknown one.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        Ok(self.encode_prompt(text, add_special_tokens)?.ids().collect())
    }

    /// As [`encode`](Self::encode), with the values of xVal's number tokens.
    ///
    /// # Errors
    /// RT and xVal: also when a number is too large; xVal: when the text contains the placeholder of numbers.
    pub fn encode_prompt(&self, text: &str, add_special_tokens: bool) -> Result<Prompt, EncodeError> {
        match (self.numbers, self.number_token) {
            (NumberEncoding::Rt, _) => {
                let mut too_long = None;
                let spelled = self.replace_numbers(text, &mut |number| {
                    rt::spelled(number).unwrap_or_else(|| {
                        too_long = Some(EncodeError::too_large(number));
                        String::new()
                    })
                });
                too_long.map_or(Ok(()), Err)?;
                Ok(self.pieces(&spelled, add_special_tokens)?.into())
            }
            (NumberEncoding::Xval, Some(number_token)) => {
                let extracted = ExtractedNumbers::new(text, |number| self.replace_numbers(text, number))?;
                let ids = self.pieces(extracted.text(), add_special_tokens)?;
                Ok(extracted.tokens(&ids, number_token))
            }
            _ => Ok(self.pieces(text, add_special_tokens)?.into()),
        }
    }

    /// The ids of a text in which numbers are already tokens.
    fn pieces(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        let tokens = match &self.source {
            Source::Library(tokenizer) => tokenizer.encode(text, add_special_tokens)?,
            Source::Slow(tokenizer) => tokenizer.encode(text, add_special_tokens),
        };
        Ok(match self.numbers {
            NumberEncoding::Digits => tokens.iter().flat_map(|token| self.split_digits(token)).collect(),
            _ => tokens.iter().map(|token| token.id).collect(),
        })
    }

    /// Replaces every number (digits, with an optional point and more digits), but not in names of special tokens.
    fn replace_numbers(&self, text: &str, number: &mut dyn FnMut(&str) -> String) -> String {
        let digits_len = |text: &str| {
            text.find(|character| python::digit_value(character).is_none()).unwrap_or(text.len())
        };
        let (mut replaced, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(character) = rest.chars().next() {
            let mut length = digits_len(rest);
            if length > 0 {
                let decimals = rest[length..].strip_prefix('.').map_or(0, digits_len);
                length += if decimals > 0 { 1 + decimals } else { 0 };
                replaced.push_str(&number(&rest[..length]));
            } else {
                length = self.special.longest(rest).map_or(character.len_utf8(), |(length, _)| length);
                replaced.push_str(&rest[..length]);
            }
            rest = &rest[length..];
        }
        replaced
    }

    /// The largest id plus one. Logits at and beyond it are padding.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn number_encoding(&self) -> NumberEncoding {
        self.numbers
    }

    /// The text that a piece adds in the middle of a sequence, such as ` 12` for `▁12` and `5` for `<0x35>`.
    ///
    /// `None` for special tokens, for ids without a piece, and for pieces that are not whole characters.
    pub fn piece_text(&self, id: u32) -> Option<String> {
        self.table.text(id)
    }

    /// The part of a number that an id is, for the number grammar.
    pub fn number_piece(&self, id: u32) -> Option<NumberPiece> {
        if self.number_token == Some(id) {
            return Some(NumberPiece::Head);
        }
        match self.rt_place(id) {
            Some((digit, place)) => Some(NumberPiece::Place { digit, place }),
            None => self.piece_text(id).map(NumberPiece::from),
        }
    }

    /// xVal: the token that has a value.
    pub fn number_token(&self) -> Option<u32> {
        self.number_token
    }

    /// The bytes that a piece adds in the middle of a sequence; `None` for special tokens and for ids without a piece.
    pub fn piece_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.table.get(id).filter(|piece| piece.kind != PieceKind::Special)?;
        self.table.bytes(id)
    }

    /// The value of a number token as Number Token Loss defines it for this tokenizer; always finite.
    ///
    /// With digit splitting these are the ten bare digits; with RT its number tokens, whose value is their digit without the
    /// power of ten; else all pieces that Python's `float` reads once the space marks before them are removed. `None` for
    /// every other id, and for xVal.
    pub fn number_value(&self, id: u32) -> Option<f64> {
        let piece = self.table.get(id).filter(|piece| piece.kind != PieceKind::Special)?;
        match self.numbers {
            NumberEncoding::Digits => {
                let digit = piece.name.parse::<u8>().ok()?;
                (piece.name.len() == 1).then_some(f64::from(digit))
            }
            NumberEncoding::Rt => rt::place(&piece.name).map(|(digit, _)| f64::from(digit)),
            NumberEncoding::Xval => None,
            NumberEncoding::Text => python::parse_float(piece.name.trim_start_matches(SPACE_MARK)),
        }
    }

    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    pub fn pad_id(&self) -> Option<u32> {
        self.pad
    }

    pub fn unknown_id(&self) -> Option<u32> {
        self.unknown
    }

    /// A special token by its purpose, such as `bos_token`.
    pub fn special_token(&self, purpose: &str) -> Option<&str> {
        let ends = || self.eos.filter(|_| purpose == "eos_token").and_then(|id| self.token(id));
        self.named.get(purpose).map(String::as_str).or_else(ends)
    }

    /// The name of a piece in the vocabulary, such as `▁12` or `</s>`.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.table.get(id).map(|piece| piece.name.as_str())
    }

    /// The id of a piece by its name in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.table.id(token)
    }

    /// The longest text that the checkpoint recommends.
    pub fn model_max_length(&self) -> Option<usize> {
        self.model_max_length
    }

    /// Most bytes of text that one token stands for. Tokenizers normalise text first: letters of three bytes may become one
    /// byte. A number of xVal is one token however long it is.
    pub fn token_text_bytes_max(&self) -> usize {
        const SHORTENED: usize = 4;
        const NUMBER_BYTES: usize = 64;
        self.piece_bytes_max.max(NUMBER_BYTES).saturating_mul(SHORTENED)
    }

    /// The bytes of one token, which may be a part of a character; those of the name for a special token.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.table.bytes(id).unwrap_or_default()
    }

    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Splits a segment with a digit into its characters. One without a piece becomes `<unk>`, or is dropped if there is
    /// none.
    fn split_digits(&self, token: &Segment) -> Vec<u32> {
        let has_digit = token.text.chars().any(|character| python::digit_value(character).is_some());
        if !has_digit || token.text.starts_with("<extra_id_") {
            return vec![token.id];
        }
        let id = |character: char| self.table.id(character.encode_utf8(&mut [0; 4])).or(self.unknown);
        token.text.chars().filter_map(id).collect()
    }
}

#[cfg(test)]
mod tests;
