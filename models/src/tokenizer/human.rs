//! Answers as people read them, and how many of their numbers are wrong: `decode_into_human_readable` of the Number
//! Token Loss paper's four tokenizers.
//!
//! Its faults are reproduced where [`Faults::Kept`] asks for it, as the paper's scores rest on them.

use ntl_core::engine::NumberEncoding;
use ntl_core::text::TextDecoder;

use super::pieces::{PieceKind, SPACE_MARK};
use super::rt::{self, AnswerToken};
use super::{Tokenizer, python, xval};

/// The old sign of numbers in RT vocabularies.
const RT_MINUS: &str = "[NEG]";

/// The id that the original takes for `[NUM]` in every vocabulary.
const XVAL_ORIGINAL_ID: u32 = 32100;

/// One answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Its tokens.
    pub ids: &'a [u32],
    /// The number beside each of them (xVal); what is missing is 1.
    pub numbers: &'a [f32],
}

/// What becomes of the faults of the original code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Each answer is read for itself.
    Mended,
    /// RT and xVal: where one answer begins with a piece that is no number and has no space mark, *all* answers
    /// are empty. xVal: an answer has a number if it has the id 32100, whatever the vocabulary.
    Kept,
}

/// Answers as people read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HumanReadable {
    /// One text an answer.
    pub texts: Vec<String>,
    /// Numbers that are not well formed: with commas or several points; RT: with powers of ten left out. Always 0
    /// for xVal.
    pub invalid_numbers: usize,
    /// Answers without any number.
    pub without_number: usize,
}

impl Tokenizer {
    /// Reads a batch of answers.
    pub fn human_readable(&self, answers: &[Answer<'_>], faults: Faults) -> HumanReadable {
        let read: Vec<Read> = answers.iter().map(|answer| self.read(answer, faults)).collect();
        let emptied = faults == Faults::Kept && read.iter().any(|one| one.breaks_batch);
        let sum = |part: fn(&Read) -> usize| read.iter().map(part).sum();
        let (invalid_numbers, without_number) =
            (sum(|one| one.invalid), sum(|one| usize::from(!one.has_number)));
        let text = |one: Read| if emptied { String::new() } else { one.text };
        HumanReadable { texts: read.into_iter().map(text).collect(), invalid_numbers, without_number }
    }

    fn read(&self, answer: &Answer<'_>, faults: Faults) -> Read {
        let (text, invalid, has_number) = match self.numbers {
            NumberEncoding::Rt => {
                let (text, invalid) = self.read_rt(answer.ids);
                (text, invalid, answer.ids.iter().any(|&id| self.rt_place(id).is_some()))
            }
            NumberEncoding::Xval => {
                let id = match faults {
                    Faults::Mended => self.number_token,
                    Faults::Kept => Some(XVAL_ORIGINAL_ID),
                };
                let has_number = id.is_some_and(|id| answer.ids.contains(&id));
                (self.read_xval(answer.ids, answer.numbers), 0, has_number)
            }
            NumberEncoding::Text | NumberEncoding::Digits => {
                let text = self.decode(answer.ids);
                let (numbers, invalid) = check_numbers(&text);
                (text, invalid, numbers > 0)
            }
        };
        Read { text, invalid, has_number, breaks_batch: self.breaks_batch(answer.ids) }
    }

    /// Whether the original fails at an answer: it cannot join pieces if the first one that is shown comes straight
    /// from the vocabulary, that is, is no number and has no space mark to be cut off.
    fn breaks_batch(&self, ids: &[u32]) -> bool {
        if !matches!(self.numbers, NumberEncoding::Rt | NumberEncoding::Xval) {
            return false;
        }
        let hidden = |id: &&u32| self.table.get(**id).is_none_or(|piece| piece.kind == PieceKind::Special);
        let first = ids.iter().find(|id| !hidden(id)).and_then(|&id| Some((id, self.table.get(id)?)));
        first.is_some_and(|(id, piece)| !self.is_number_token(id) && !piece.name.starts_with(SPACE_MARK))
    }

    fn is_number_token(&self, id: u32) -> bool {
        self.number_token == Some(id) || self.rt_place(id).is_some()
    }

    /// The digit of a number token and its power of ten.
    pub(super) fn rt_place(&self, id: u32) -> Option<(u8, i8)> {
        let piece = self.table.get(id).filter(|_| self.numbers == NumberEncoding::Rt)?;
        rt::place(&piece.name)
    }

    /// The text of RT tokens, and how many numbers are not well formed.
    pub(super) fn read_rt(&self, ids: &[u32]) -> (String, usize) {
        let bytes: Vec<Vec<u8>> = ids.iter().map(|&id| self.table.bytes(id).unwrap_or_default()).collect();
        let token = |(&id, bytes)| match (self.rt_place(id), self.table.get(id)) {
            (Some((digit, place)), _) => AnswerToken::Place(place, digit),
            (None, Some(piece)) if piece.name == RT_MINUS => AnswerToken::Minus,
            (None, Some(piece)) if piece.kind != PieceKind::Special => AnswerToken::Text(bytes),
            _ => AnswerToken::Hidden,
        };
        let tokens: Vec<_> = ids.iter().zip(bytes.iter().map(Vec::as_slice)).map(token).collect();
        let (text, invalid) = rt::read(&tokens);
        (stripped(&text), invalid)
    }

    /// The text of xVal tokens with the numbers beside them.
    pub(super) fn read_xval(&self, ids: &[u32], numbers: &[f32]) -> String {
        let mut text = Vec::new();
        for (&id, number) in ids.iter().zip(numbers.iter().copied().chain(std::iter::repeat(1.0))) {
            let shown = self.table.get(id).is_some_and(|piece| piece.kind != PieceKind::Special);
            if self.number_token == Some(id) {
                text.push(b' ');
                text.extend(xval::printed(number).bytes());
            } else if shown {
                text.extend(self.table.bytes(id).unwrap_or_default());
            }
        }
        stripped(&text)
    }
}

/// An answer that was read.
struct Read {
    text: String,
    invalid: usize,
    has_number: bool,
    breaks_batch: bool,
}

fn stripped(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_matches(python::is_space).to_owned()
}

/// How many numbers a text has, and how many of those are none to Python: the original takes the longest runs of
/// digits, commas and points with an optional sign that end in a digit.
fn check_numbers(text: &str) -> (usize, usize) {
    let is_digit = |character| python::digit_value(character).is_some();
    let (mut numbers, mut invalid) = (0, 0);
    for run in text.split(|character| !(is_digit(character) || [',', '.'].contains(&character))) {
        let number = run.trim_end_matches([',', '.']);
        numbers += usize::from(!number.is_empty());
        invalid += usize::from(number.contains(',') || number.matches('.').count() > 1);
    }
    (numbers, invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_commas_or_several_points_are_no_numbers() {
        for (text, want) in [
            ("", (0, 0)),
            ("no, none.", (0, 0)),
            ("-5 and +7.25.", (2, 0)),
            (".5", (1, 0)),
            ("1,234", (1, 1)),
            ("1.2.3 4", (2, 1)),
            ("..5", (1, 1)),
            ("1,", (1, 0)),
            ("٣", (1, 0)),
            ("3-4", (2, 0)),
        ] {
            assert_eq!(check_numbers(text), want, "{text:?}");
        }
    }
}
