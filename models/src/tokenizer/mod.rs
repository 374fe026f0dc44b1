//! Text to token ids and back, exactly as the checkpoint's own Python tokenizer does it.
//!
//! In: a checkpoint with a `tokenizer.json`, or with the `spiece.model` that the slow T5 tokenizers leave.
//! Out: [`Tokenizer`]. Not here: the number grammar over pieces.

mod cleanup;
mod config;
mod human;
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
use ntl_core::text::TextDecoder;

use crate::chat::ChatTemplate;

pub use human::{Answer, Faults, HumanReadable};

use self::library::LibraryTokenizer;
use self::pieces::{PieceKind, PieceTable, SPACE_MARK, Token};
use self::sentencepiece::PrefixIndex;
use self::slow::SlowTokenizer;
use self::xval::Extracted;

/// A text that the tokenizer cannot write in its vocabulary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A `tokenizer.json` has no token for a part of it.
    #[error("text cannot be tokenized")]
    Library(#[source] tokenizers::Error),
    /// It holds what stands for numbers in this vocabulary, with no number to it.
    #[error("text must not contain `{0}`, which this model puts in the place of numbers")]
    NumberMark(&'static str),
    /// A number in it is longer than any prompt, or beyond single precision. Holds how it begins.
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

/// The tokenizer of a checkpoint.
pub struct Tokenizer {
    source: Source,
    table: PieceTable,
    numbers: NumberEncoding,
    clean_up: bool,
    eos: Option<u32>,
    pad: Option<u32>,
    unknown: Option<u32>,
    /// What is left alone when numbers are looked for.
    special: PrefixIndex,
    /// Special tokens by what they are for, as far as the files say it.
    named: BTreeMap<String, String>,
    /// The token beside which numbers stand (xVal).
    number_token: Option<u32>,
    model_max_length: Option<usize>,
    chat: Option<ChatTemplate>,
}

enum Source {
    Library(Box<LibraryTokenizer>),
    Slow(Box<SlowTokenizer>),
}

impl Tokenizer {
    /// The ids of `text`, with those special tokens that the checkpoint was trained with at the ends (`</s>` of
    /// T5, `<s>` of Llama) if asked for. The names of special tokens inside the text become those tokens.
    ///
    /// # Errors
    /// When a `tokenizer.json` has no token for a part of the text, not even an unknown one.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        Ok(self.encode_prompt(text, add_special_tokens)?.ids().collect())
    }

    /// The same with the value of each number token, where the checkpoint writes numbers so (xVal).
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; xVal: also when the text holds a mark of numbers, or too large a number.
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
                let extracted = Extracted::new(text, |number| self.replace_numbers(text, number))?;
                let ids = self.pieces(extracted.text(), add_special_tokens)?;
                Ok(extracted.tokens(&ids, number_token))
            }
            _ => Ok(self.pieces(text, add_special_tokens)?.into()),
        }
    }

    /// The ids of a text in which numbers are tokens already.
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

    /// Replaces every run of digits, with a point and more digits behind it if there are any; names of special
    /// tokens stay as they are.
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

    /// What an id contributes to a number, for the number grammar.
    pub fn number_piece(&self, id: u32) -> Option<NumberPiece> {
        if self.number_token == Some(id) {
            return Some(NumberPiece::Head);
        }
        match self.rt_place(id) {
            Some((digit, place)) => Some(NumberPiece::Place { digit, place }),
            None => self.piece_text(id).map(NumberPiece::from),
        }
    }

    /// The token beside which numbers stand (xVal).
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
    /// With digit splitting these are the ten bare digits, with RT its number tokens, each worth its digit whatever
    /// its power of ten, else all pieces that Python's `float` takes once the space marks before them are gone.
    /// `None` for every other id, and for xVal, whose numbers stand beside the token.
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

    /// The token that ends a text.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// The token that fills up batches.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad
    }

    /// The token that stands for what has no piece.
    pub fn unknown_id(&self) -> Option<u32> {
        self.unknown
    }

    /// A special token by what it is for, such as `bos_token`, where the checkpoint names it.
    pub fn special_token(&self, purpose: &str) -> Option<&str> {
        let ends = || self.eos.filter(|_| purpose == "eos_token").and_then(|id| self.token(id));
        self.named.get(purpose).map(String::as_str).or_else(ends)
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

    /// The bytes of one token, which may be a part of a character; those of the name for a special token.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.table.bytes(id).unwrap_or_default()
    }

    /// How the checkpoint writes conversations, if it does.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// The text of `ids` as Hugging Face decodes them, special tokens left out: RT and xVal show the names of their
    /// number tokens.
    pub fn decode_tokens(&self, ids: &[u32]) -> String {
        let text = match &self.source {
            Source::Slow(_) => slow::decode(&self.table, ids),
            Source::Library(tokenizer) => tokenizer
                .decode(ids)
                .unwrap_or_else(|| ids.iter().filter_map(|&id| self.table.text(id)).collect()),
        };
        if self.clean_up { cleanup::clean_up(&text) } else { text }
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
    /// RT: with its numbers as people read them.
    fn decode(&self, ids: &[u32]) -> String {
        match self.numbers {
            NumberEncoding::Rt => self.read_rt(ids).0,
            _ => self.decode_tokens(ids),
        }
    }

    fn decode_with_values(&self, tokens: &[ntl_core::Token]) -> String {
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        match self.numbers {
            NumberEncoding::Xval => {
                let numbers: Vec<f32> = tokens.iter().map(|token| token.value.unwrap_or(1.0)).collect();
                self.read_xval(&ids, &numbers)
            }
            _ => self.decode(&ids),
        }
    }

    /// A part of a character reads as `bytes:\xe2\x82`.
    fn token_text(&self, id: u32) -> String {
        String::from_utf8(self.token_bytes(id)).unwrap_or_else(|error| {
            let escaped = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", escaped.collect::<String>())
        })
    }

    /// RT: the digits of a number may change until something else follows them.
    fn settled_len(&self, text: &str) -> usize {
        let is_slow = matches!(self.source, Source::Slow(_));
        match self.numbers {
            NumberEncoding::Rt => {
                let may_change = |character: char| {
                    character.is_ascii_digit()
                        || ['.', '-'].contains(&character)
                        || python::is_space(character)
                };
                text.trim_end_matches('\u{FFFD}').trim_end_matches(may_change).len()
            }
            NumberEncoding::Xval => cleanup::settled_len(text, false, true),
            NumberEncoding::Text | NumberEncoding::Digits => {
                cleanup::settled_len(text, self.clean_up, is_slow)
            }
        }
    }

    fn can_cut(&self, before: &str, after: &str) -> bool {
        cleanup::can_cut(before, after, self.clean_up)
    }
}

#[cfg(test)]
mod tests;
