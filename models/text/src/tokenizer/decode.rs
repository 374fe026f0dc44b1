//! Decodes token ids to text: like Hugging Face, or with the values of number tokens.

use ntl_core::Token;
use ntl_core::contract::NumberEncoding;
use ntl_core::numbers::python;
use ntl_core::text::TextDecoder;

use super::pieces::PieceKind;
use super::rt::{self, AnswerToken};
use super::slow::stripped;
use super::{Source, Tokenizer, cleanup, slow, xval};

/// The token for a minus sign in old RT vocabularies.
const RT_MINUS: &str = "[NEG]";

impl Tokenizer {
    /// Decodes `ids` like Hugging Face, without special tokens. The number tokens of RT and xVal appear as
    /// their names.
    pub fn decode_tokens(&self, ids: &[u32]) -> String {
        let text = match &self.source {
            Source::Slow(_) => slow::decode(&self.table, ids),
            Source::Library(tokenizer) => tokenizer.decode(ids).unwrap_or_else(|| self.joined_texts(ids)),
            Source::Characters(_) => self.joined_texts(ids),
        };
        if self.clean_up { cleanup::clean_up(&text) } else { text }
    }

    fn joined_texts(&self, ids: &[u32]) -> String {
        ids.iter().filter_map(|&id| self.table.text(id)).collect()
    }

    /// Returns whether decoding drops a space at the beginning of a text, like most decoders of SentencePiece
    /// vocabularies.
    pub fn drops_first_space(&self) -> bool {
        let space = self.first_token(|bytes| bytes.starts_with(b" "));
        let letters = self.first_token(|bytes| bytes.first().is_some_and(u8::is_ascii_alphabetic));
        let Some((space, letters)) = space.zip(letters) else { return false };
        !self.decode(&[space, letters]).starts_with(' ')
    }

    /// Returns the first token whose bytes meet a condition.
    fn first_token(&self, condition: fn(&[u8]) -> bool) -> Option<u32> {
        let mut ids = (0u32..).take(self.len());
        ids.find(|&id| self.piece_bytes(id).is_some_and(|bytes| condition(&bytes)))
    }

    /// Returns the digit of an RT number token and its power of ten.
    pub(super) fn rt_place(&self, id: u32) -> Option<(u8, i8)> {
        if self.numbers != NumberEncoding::Rt {
            return None;
        }
        rt::place(&self.table.get(id)?.name)
    }

    fn decode_rt(&self, ids: &[u32]) -> String {
        let tokens = ids.iter().map(|&id| match (self.rt_place(id), self.table.get(id)) {
            (Some((digit, place)), _) => AnswerToken::Place(place, digit),
            (None, Some(piece)) if piece.name == RT_MINUS => AnswerToken::Minus,
            (None, Some(piece)) if piece.kind != PieceKind::Special => {
                AnswerToken::Text(self.table.bytes(id).unwrap_or_default())
            }
            _ => AnswerToken::Hidden,
        });
        stripped(&rt::read(&tokens.collect::<Vec<_>>()))
    }

    /// Decodes xVal tokens. A number token without a value becomes 1.
    fn decode_xval(&self, tokens: &[Token]) -> String {
        let mut text = Vec::new();
        for token in tokens {
            if self.number_token == Some(token.id) {
                text.push(b' ');
                text.extend(xval::printed(token.value.unwrap_or(1.0)).bytes());
            } else if self.table.get(token.id).is_some_and(|piece| piece.kind != PieceKind::Special) {
                text.extend(self.table.bytes(token.id).unwrap_or_default());
            }
        }
        stripped(&text)
    }
}

impl TextDecoder for Tokenizer {
    /// Decodes `ids`. RT's number tokens become numbers.
    fn decode(&self, ids: &[u32]) -> String {
        match self.numbers {
            NumberEncoding::Rt => self.decode_rt(ids),
            _ => self.decode_tokens(ids),
        }
    }

    fn decode_with_values(&self, tokens: &[Token]) -> String {
        match self.numbers {
            NumberEncoding::Xval => self.decode_xval(tokens),
            _ => self.decode(&tokens.iter().map(|token| token.id).collect::<Vec<_>>()),
        }
    }

    /// Returns the text of a token. A part of a character becomes, for example, `bytes:\xe2\x82`.
    fn token_text(&self, id: u32) -> String {
        String::from_utf8(self.token_bytes(id)).unwrap_or_else(|error| {
            let escaped = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", escaped.collect::<String>())
        })
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.token_bytes(id)
    }

    /// Returns the length of the text that cannot change any more. With RT, a number can change until another
    /// token follows it.
    fn settled_len(&self, text: &str) -> usize {
        let is_slow = matches!(self.source, Source::Slow(_));
        match self.numbers {
            NumberEncoding::Rt => {
                text.trim_end_matches('\u{FFFD}').trim_end_matches(is_in_number_or_space).len()
            }
            NumberEncoding::Xval => cleanup::settled_len(text, false, true),
            NumberEncoding::Text
            | NumberEncoding::Digits
            | NumberEncoding::Ieee
            | NumberEncoding::P10
            | NumberEncoding::Normalized => cleanup::settled_len(text, self.clean_up, is_slow),
        }
    }

    fn can_cut(&self, before: &str, after: &str) -> bool {
        cleanup::can_cut(before, after, self.clean_up)
    }
}

fn is_in_number_or_space(character: char) -> bool {
    character.is_ascii_digit() || ['.', '-'].contains(&character) || python::is_space(character)
}
