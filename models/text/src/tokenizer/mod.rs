//! Converts text to token ids and back, exactly like the checkpoint's own Python tokenizer.
//!
//! In: a checkpoint with a `tokenizer.json`, or with the `spiece.model` of a slow T5 tokenizer, or one of
//! RegressLM's vocabularies. Out: [`Tokenizer`].

mod cleanup;
mod config;
mod decode;
mod growth;
mod library;
mod open;
mod pieces;
mod rt;
mod sentencepiece;
mod slow;
mod vocabularies;
mod xval;

use std::collections::BTreeMap;

use ntl_core::Prompt;
use ntl_core::contract::NumberEncoding;
use ntl_core::numbers::{NumberPiece, python};

use crate::chat::ChatTemplate;
use crate::checkpoint::TruncationSide;

#[cfg(test)]
pub(crate) use config::TokenizerConfig;

use library::LibraryTokenizer;
use pieces::{PieceKind, PieceTable, SPACE_MARK, Segment};
use sentencepiece::PrefixIndex;
use slow::SlowTokenizer;
pub use vocabularies::VocabularySource;
use xval::ExtractedNumbers;

/// The reason why a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The vocabulary of a `tokenizer.json` has no token for a part of the text.
    #[error("text cannot be tokenized")]
    Library(#[source] tokenizers::Error),
    /// The text contains the placeholder of numbers, for which there is no value.
    #[error("text must not contain `{0}`, the placeholder of numbers in this model")]
    NumberMark(&'static str),
    /// A number in the text is longer than any prompt, or beyond single precision. The string is the number's
    /// beginning.
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
    truncation_side: Option<TruncationSide>,
    /// Length of the longest piece, in bytes.
    piece_bytes_max: usize,
    chat: Option<ChatTemplate>,
}

enum Source {
    Library(Box<LibraryTokenizer>),
    Slow(Box<SlowTokenizer>),
    Characters(vocabularies::Characters),
}

impl Tokenizer {
    /// Returns the ids of `text`. `add_special_tokens` adds the special tokens that training added at the
    /// ends (T5's `</s>`, Llama's `<s>`). Names of special tokens inside the text become those tokens.
    ///
    /// # Errors
    /// If the vocabulary has no token for a part of the text, not even an unknown one.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        Ok(self.encode_prompt(text, add_special_tokens)?.ids().collect())
    }

    /// Like [`encode`](Self::encode), with the values of xVal's number tokens.
    ///
    /// # Errors
    /// RT and xVal: also if a number is too large. xVal: also if the text contains the placeholder of
    /// numbers.
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

    /// Returns two texts as one prompt, with the special tokens and segments of training. If the tokenizer
    /// has no rules for pairs, the prompt is both texts with their special tokens.
    ///
    /// # Errors
    /// If [`encode_prompt`](Self::encode_prompt) rejects one of the texts.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Prompt, EncodeError> {
        if let (Source::Library(tokenizer), NumberEncoding::Text) = (&self.source, self.numbers) {
            return tokenizer.encode_pair(first, second);
        }
        let mut prompt = self.encode_prompt(first, true)?;
        prompt.tokens.extend(self.encode_prompt(second, true)?.tokens);
        Ok(prompt)
    }

    /// Returns the ids of a text whose numbers are already replaced by tokens.
    fn pieces(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
        let tokens = match &self.source {
            Source::Library(tokenizer) => tokenizer.encode(text, add_special_tokens)?,
            Source::Slow(tokenizer) => tokenizer.encode(text, add_special_tokens),
            Source::Characters(characters) => characters.encode(text, &self.table),
        };
        Ok(match self.numbers {
            NumberEncoding::Digits => tokens.iter().flat_map(|token| self.split_digits(token)).collect(),
            _ => tokens.iter().map(|token| token.id).collect(),
        })
    }

    /// Returns the maximum factor by which encoding makes a text longer before it splits the text into
    /// tokens.
    pub fn growth(&self) -> usize {
        match &self.source {
            Source::Library(tokenizer) => tokenizer.growth(),
            Source::Slow(tokenizer) => tokenizer.growth(),
            Source::Characters(_) => 1,
        }
    }

    /// Replaces every number (digits, optionally followed by a point and more digits), except in names of
    /// special tokens.
    fn replace_numbers(&self, text: &str, number: &mut dyn FnMut(&str) -> String) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
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

    /// Returns the largest id plus one. Logits from there on are padding.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn number_encoding(&self) -> NumberEncoding {
        self.numbers
    }

    /// Returns the text that a piece adds in the middle of a sequence, such as ` 12` for `▁12` and `5` for
    /// `<0x35>`.
    ///
    /// Returns `None` for special tokens, for ids without a piece, and for pieces that are not whole
    /// characters.
    pub fn piece_text(&self, id: u32) -> Option<String> {
        self.table.text(id)
    }

    /// Returns the part of a number that an id represents, for the number grammar.
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

    /// Returns the bytes that a piece adds in the middle of a sequence, or `None` for special tokens and ids
    /// without a piece.
    pub fn piece_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.table.get(id).filter(|piece| piece.kind != PieceKind::Special)?;
        self.table.bytes(id)
    }

    /// Returns the value of a number token, as Number Token Loss defines it for this tokenizer. It is always
    /// finite.
    ///
    /// * With digit splitting, the number tokens are the ten bare digits.
    /// * With RT, they are RT's number tokens. Their value is the digit without the power of ten.
    /// * With xVal, no token has a value here.
    /// * Otherwise they are all pieces that Python's `float` parses after leading space marks are removed.
    ///
    /// Returns `None` for every other id.
    pub fn number_value(&self, id: u32) -> Option<f64> {
        let piece = self.table.get(id).filter(|piece| piece.kind != PieceKind::Special)?;
        match self.numbers {
            NumberEncoding::Digits => {
                let digit = piece.name.parse::<u8>().ok()?;
                (piece.name.len() == 1).then_some(f64::from(digit))
            }
            NumberEncoding::Rt => rt::place(&piece.name).map(|(digit, _)| f64::from(digit)),
            NumberEncoding::Xval
            | NumberEncoding::Ieee
            | NumberEncoding::P10
            | NumberEncoding::Normalized => None,
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

    /// Returns a special token by its purpose, such as `bos_token`.
    pub fn special_token(&self, purpose: &str) -> Option<&str> {
        match self.named.get(purpose) {
            Some(name) => Some(name.as_str()),
            None if purpose == "eos_token" => self.token(self.eos?),
            None => None,
        }
    }

    /// Returns the ids of all special tokens, which decoding omits.
    pub fn special_ids(&self) -> impl Iterator<Item = u32> {
        self.table.special_ids()
    }

    /// Returns the name of a piece in the vocabulary, such as `▁12` or `</s>`.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.table.get(id).map(|piece| piece.name.as_str())
    }

    /// Returns the id of a piece by its name in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.table.id(token)
    }

    /// Maximum number of tokens that the checkpoint recommends for a text.
    pub fn model_max_length(&self) -> Option<usize> {
        self.model_max_length
    }

    /// The `truncation_side` of `tokenizer_config.json`.
    pub fn truncation_side(&self) -> Option<TruncationSide> {
        self.truncation_side
    }

    /// Truncates `prompt` to at most `tokens_max` tokens. Keeps the special tokens that encoding adds at both
    /// ends of a text, and prefers those at the end if not all of them fit.
    #[must_use]
    pub fn truncate(&self, mut prompt: Prompt, tokens_max: usize, side: TruncationSide) -> Prompt {
        let surplus = prompt.len().saturating_sub(tokens_max);
        if surplus == 0 {
            return prompt;
        }
        let (before, after) = self.special_ends();
        let ids: Vec<u32> = prompt.ids().collect();
        let after = if ids.ends_with(&after) { after.len().min(tokens_max) } else { 0 };
        let before = if ids.starts_with(&before) { before.len().min(tokens_max - after) } else { 0 };
        let start = match side {
            TruncationSide::Left => before,
            TruncationSide::Right => tokens_max - after,
        };
        prompt.tokens.drain(start..start + surplus);
        if let Some(second) = &mut prompt.second_segment
            && *second > start
        {
            *second = second.saturating_sub(surplus).max(start);
        }
        prompt
    }

    /// Returns the special tokens that encoding adds before and after a text.
    fn special_ends(&self) -> (Vec<u32>, Vec<u32>) {
        let mut whole = self.encode("a", true).unwrap_or_default();
        let bare = self.encode("a", false).unwrap_or_default();
        let before = whole.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(0);
        let after = whole.split_off(whole.len().min(before + bare.len()));
        whole.truncate(before);
        (whole, after)
    }

    /// Returns the maximum length of the text of one token, in bytes. It exceeds the length of the piece,
    /// because tokenizers normalise text first, and letters of three bytes may become one byte. In xVal a
    /// number of any length is one token.
    pub fn token_text_bytes_max(&self) -> usize {
        const SHORTENED: usize = 4;
        const NUMBER_BYTES: usize = 64;
        self.piece_bytes_max.max(NUMBER_BYTES).saturating_mul(SHORTENED)
    }

    /// Returns the bytes of a token, which may be a part of a character, or the bytes of the name for a
    /// special token.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.table.bytes(id).unwrap_or_default()
    }

    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Splits a segment that contains a digit into its characters. A character without a piece becomes
    /// `<unk>`, or is dropped if there is no `<unk>`.
    fn split_digits(&self, token: &Segment) -> Vec<u32> {
        let has_digit = token.text.chars().any(|character| python::digit_value(character).is_some());
        if !has_digit || token.text.starts_with("<extra_id_") {
            return vec![token.id];
        }
        let mut ids = Vec::new();
        for character in token.text.chars() {
            let id = self.table.id(character.encode_utf8(&mut [0; 4]));
            ids.extend(id.or(self.unknown));
        }
        ids
    }
}

/// Returns the length of the digits at the beginning of a text, in bytes.
fn digits_len(text: &str) -> usize {
    text.find(|character| python::digit_value(character).is_none()).unwrap_or(text.len())
}

#[cfg(test)]
mod tests;
