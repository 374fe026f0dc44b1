//! Escapes control characters on their way to a terminal: answers, messages and names come from servers and
//! files, and must not be able to move the cursor or to forge a line.

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

/// Returns the text of one line with all control characters escaped, also line ends, tabs and the characters that
/// set the direction of text.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
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
}
