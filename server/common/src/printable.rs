//! Texts from servers, files and requests in the form that terminals and logs can show: they must not be able
//! to move the cursor or to forge a line.

use std::borrow::Cow;
use std::io::{Result, Write};

use ntl_core::is_unprintable;

/// Writes text with its control characters escaped, except line ends and tabs.
pub struct Printable<W> {
    out: W,
    /// Whether the last byte was the first one of a character that may be a control character (U+0080 to
    /// U+009F).
    is_c1_open: bool,
}

const C1_FIRST: u8 = 0xc2;

impl<W: Write> Printable<W> {
    pub fn new(out: W) -> Self {
        Self { out, is_c1_open: false }
    }
}

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut escaped = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            let is_continued = std::mem::take(&mut self.is_c1_open);
            match byte {
                0x80..=0x9f if is_continued => escaped.extend(format!("\\u{{{byte:x}}}").bytes()),
                _ => {
                    escaped.extend(is_continued.then_some(C1_FIRST));
                    match byte {
                        C1_FIRST => self.is_c1_open = true,
                        b'\n' | b'\t' => escaped.push(byte),
                        0..0x20 | 0x7f => escaped.extend(char::from(byte).escape_default().map(|c| c as u8)),
                        _ => escaped.push(byte),
                    }
                }
            }
        }
        self.out.write_all(&escaped)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush()
    }
}

/// Returns a text with its control characters and those for the direction of text escaped, also line ends and
/// tabs, so that it can neither forge a line, nor control a terminal, nor look like another text.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unprintable(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Returns a text of at most `chars_max` characters, the last of which is an ellipsis if the text is longer.
pub fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    // A character has at least one byte.
    if text.len() <= chars_max || text.chars().nth(chars_max).is_none() {
        return Cow::Borrowed(text);
    }
    let end = text.char_indices().nth(chars_max.saturating_sub(1)).map_or(0, |(end, _)| end);
    Cow::Owned(format!("{}…", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_wherever_a_text_is_cut() {
        let text = "Grüße\t\u{1b}[2J\u{9b}2J\u{7f}\r\u{a0}½\n";
        for cut in 0..=text.len() {
            let mut shown = Printable::new(Vec::new());
            let (first, second) = text.as_bytes().split_at(cut);
            shown.write_all(first).unwrap();
            shown.write_all(second).unwrap();
            let want = "Grüße\t\\u{1b}[2J\\u{9b}2J\\u{7f}\\r\u{a0}½\n";
            assert_eq!(String::from_utf8(shown.out).unwrap(), want, "cut at {cut}");
        }
    }

    #[test]
    fn all_other_characters_stay() {
        assert_eq!(printable("Grüße \"7\" \\"), "Grüße \"7\" \\");
        assert_eq!(printable("a\n\u{1b}[2J\u{9b}b\u{202e}c"), "a\\n\\u{1b}[2J\\u{9b}b\\u{202e}c");
    }

    #[test]
    fn long_texts_end_with_an_ellipsis() {
        for (text, chars_max, want) in [("abc", 3, "abc"), ("ééé", 3, "ééé"), ("éééé", 3, "éé…"), ("", 1, "")]
        {
            assert_eq!(shortened(text, chars_max), want);
        }
    }
}
