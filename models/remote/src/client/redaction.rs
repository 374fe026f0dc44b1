//! Removes secrets from the responses of an engine, which may repeat the key of a request in an error or in a
//! text.
//!
//! In: bytes of a message or of a response. Out: the same bytes with [`MASK`] in place of every occurrence of
//! a secret. Secrets are also found in base64, alone or within a longer text (`user:KEY`), and if some of
//! their characters are written as `%41` or, in JSON, as `\u0041` or `\/`.

use std::fmt;

/// Stands for a secret.
const MASK: &str = "***";

/// A key with fewer bytes, such as `EMPTY`, is removed from errors only: it may be a word of a text.
const KEY_BYTES_MIN: usize = 8;

/// Texts in base64 with fewer characters are likely to be something else.
const BASE64_CHARS_MIN: usize = 4;

/// The forms of secrets that are removed.
pub(super) struct Redaction {
    /// From errors.
    from_errors: Vec<Vec<u8>>,
    /// From texts and other content of successful responses.
    from_content: Vec<Vec<u8>>,
}

impl Redaction {
    /// `paths`: parts of URLs that errors do not show.
    pub(super) fn new<'a>(key: Option<&str>, paths: impl Iterator<Item = &'a str>) -> Self {
        let key_forms = key.map(forms).unwrap_or_default();
        let is_long = key.is_some_and(|key| key.len() >= KEY_BYTES_MIN);
        let from_content = if is_long { key_forms.clone() } else { Vec::new() };
        let paths = paths.filter(|path| !path.is_empty()).map(|path| path.as_bytes().to_vec());
        Self { from_errors: key_forms.into_iter().chain(paths).collect(), from_content }
    }

    /// Returns an engine's message without secrets.
    pub(super) fn message(&self, text: &str) -> String {
        masked(&self.from_errors, text.as_bytes())
    }

    /// Returns a whole text of a successful response without secrets.
    pub(super) fn content(&self, text: &str) -> String {
        masked(&self.from_content, text.as_bytes())
    }

    /// Begins to remove secrets from a body that arrives in parts.
    pub(super) fn stream(&self) -> RedactedStream {
        RedactedStream { forms: self.from_content.clone(), held: Vec::new() }
    }
}

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redaction(…)")
    }
}

/// A body that arrives in parts, which may cut a secret.
pub(super) struct RedactedStream {
    forms: Vec<Vec<u8>>,
    /// The end of the last part, if a secret may have begun in it.
    held: Vec<u8>,
}

impl RedactedStream {
    /// Returns the part, and what was held back before, without secrets and without a beginning of one at the
    /// end.
    pub(super) fn push(&mut self, part: Vec<u8>) -> Vec<u8> {
        if self.forms.is_empty() {
            return part;
        }
        self.held.extend(part);
        let (redacted, read) = redact(&self.forms, &self.held, false);
        self.held.drain(..read);
        redacted
    }

    /// Returns the bytes that were held back, since nothing follows.
    pub(super) fn end(&mut self) -> Vec<u8> {
        redact(&self.forms, &std::mem::take(&mut self.held), true).0
    }
}

fn masked(forms: &[Vec<u8>], bytes: &[u8]) -> String {
    String::from_utf8_lossy(&redact(forms, bytes, true).0).into_owned()
}

/// The key itself, and its parts in base64 that do not depend on the bytes around it.
fn forms(key: &str) -> Vec<Vec<u8>> {
    if key.is_empty() {
        return Vec::new();
    }
    let mut forms = vec![key.as_bytes().to_vec()];
    for alphabet in [STANDARD, URL_SAFE] {
        for bytes_before in 0..3 {
            let form = base64_part(alphabet, key.as_bytes(), bytes_before);
            if form.len() >= BASE64_CHARS_MIN && !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The characters of base64 that consist of bits of `secret` only, if this many bytes (modulo 3) come before
/// it.
fn base64_part(alphabet: &[u8; 64], secret: &[u8], bytes_before: usize) -> Vec<u8> {
    let first_bit = (8 * bytes_before).next_multiple_of(6) - 8 * bytes_before;
    let mut characters = Vec::new();
    for start in (first_bit..).step_by(6).take_while(|start| start + 6 <= 8 * secret.len()) {
        let next = secret.get(start / 8 + 1).copied().unwrap_or(0);
        let bits = u16::from_be_bytes([secret[start / 8], next]) << (start % 8) >> 10;
        characters.push(alphabet[usize::from(bits)]);
    }
    characters
}

/// Replaces all forms in `bytes`. Returns the result, and how many bytes it stands for: without `is_end`, a
/// last part that may begin a form stays for later.
fn redact(forms: &[Vec<u8>], bytes: &[u8], is_end: bool) -> (Vec<u8>, usize) {
    let mut redacted = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut longest = 0;
        let mut may_begin = false;
        for form in forms {
            match occurrence(form, rest) {
                Occurrence::Whole(length) => longest = longest.max(length),
                Occurrence::Cut => may_begin = true,
                Occurrence::None => {}
            }
        }
        if may_begin && !is_end {
            break;
        }
        if longest > 0 {
            redacted.extend(MASK.bytes());
            at += longest;
        } else {
            redacted.push(bytes[at]);
            at += 1;
        }
    }
    (redacted, at)
}

/// Whether bytes begin with a secret.
enum Occurrence {
    /// In this many bytes.
    Whole(usize),
    /// The bytes end before it does.
    Cut,
    None,
}

fn occurrence(form: &[u8], bytes: &[u8]) -> Occurrence {
    let mut read = 0;
    for &byte in form {
        let rest = &bytes[read..];
        if rest.is_empty() {
            return Occurrence::Cut;
        }
        match spelling(byte, rest) {
            Occurrence::Whole(length) => read += length,
            other => return other,
        }
    }
    Occurrence::Whole(read)
}

/// Returns whether bytes begin with `byte`: as it is, or escaped as in a URL or in JSON.
fn spelling(byte: u8, bytes: &[u8]) -> Occurrence {
    if bytes[0] == byte {
        return Occurrence::Whole(1);
    }
    let spellings = match bytes[0] {
        b'%' => vec![format!("%{byte:02x}")],
        b'\\' => vec![format!("\\u00{byte:02x}"), format!("\\{}", char::from(byte))],
        _ => Vec::new(),
    };
    for spelling in spellings {
        let length = spelling.len().min(bytes.len());
        if bytes[..length].eq_ignore_ascii_case(&spelling.as_bytes()[..length]) {
            return if length == spelling.len() { Occurrence::Whole(length) } else { Occurrence::Cut };
        }
    }
    Occurrence::None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-UPSTREAM/secret+777";

    fn base64(text: &[u8], alphabet: &[u8; 64]) -> String {
        let mut padded = text.to_vec();
        padded.resize(text.len().next_multiple_of(3), 0);
        let characters = (8 * text.len()).div_ceil(6);
        String::from_utf8(base64_part(alphabet, &padded, 0)[..characters].to_vec()).unwrap()
    }

    #[test]
    fn a_key_is_removed_in_all_forms_that_it_may_be_repeated_in() {
        let redaction = Redaction::new(Some(KEY), std::iter::empty());
        let percent: String = KEY.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let unicode: String = KEY.bytes().map(|byte| format!("\\u{:04x}", byte)).collect();
        for form in [
            KEY.to_owned(),
            percent.clone(),
            percent.to_lowercase(),
            "sk-UPSTREAM%2Fsecret%2b777".to_owned(),
            "sk-UPSTREAM\\/secret+777".to_owned(),
            unicode,
        ] {
            let text = format!("invalid key: Bearer {form}, and {form}{form}.");
            assert_eq!(redaction.message(&text), "invalid key: Bearer ***, and ******.");
            assert_eq!(redaction.content(&text), redaction.message(&text));
        }
        for before in ["", "a", "user:", "Bearer ", "Authorization: Bearer "] {
            for alphabet in [STANDARD, URL_SAFE] {
                for after in ["", "x", "\\r\\n"] {
                    let form = base64(format!("{before}{KEY}{after}").as_bytes(), alphabet);
                    let shown = redaction.message(&format!("got {form}!"));
                    assert!(shown.contains(MASK), "{form}: {shown}");
                    let inner = base64_part(alphabet, KEY.as_bytes(), before.len() % 3);
                    assert!(!shown.contains(std::str::from_utf8(&inner).unwrap()), "{shown}");
                    assert!(shown.len() < form.len() - KEY.len() + 12, "{form}: {shown}");
                }
            }
        }
        assert_eq!(
            redaction.message("no secret here: sk-UPSTREAM/secre"),
            "no secret here: sk-UPSTREAM/secre"
        );
    }

    #[test]
    fn a_key_is_removed_from_a_stream_regardless_of_how_it_is_cut_and_other_bytes_are_not_delayed() {
        let redaction = Redaction::new(Some(KEY), std::iter::empty());
        let text = format!("data: {{\"a\": \"{KEY}\"}}\n\ndata: sk-UP sk-UPSTREAM%2Fsecret%2B777 sk");
        let want = "data: {\"a\": \"***\"}\n\ndata: sk-UP *** sk";
        for size in 1..text.len() {
            let mut stream = redaction.stream();
            let mut shown = Vec::new();
            for part in text.as_bytes().chunks(size) {
                shown.extend(stream.push(part.to_vec()));
            }
            shown.extend(stream.end());
            assert_eq!(String::from_utf8(shown).unwrap(), want, "parts of {size} bytes");
        }
        assert_eq!(
            redaction.stream().push(b"data: {\"text\": \"a\"}\n\n".to_vec()),
            b"data: {\"text\": \"a\"}\n\n"
        );
    }

    #[test]
    fn short_keys_and_paths_are_removed_from_errors_only() {
        let redaction = Redaction::new(Some("EMPTY"), ["/SECRETPATH", ""].into_iter());
        assert_eq!(redaction.message("EMPTY: no /SECRETPATH/v1/models"), "***: no ***/v1/models");
        assert_eq!(redaction.content("EMPTY /SECRETPATH"), "EMPTY /SECRETPATH");
        let none = Redaction::new(None, std::iter::empty());
        assert_eq!(none.message("anything"), "anything");
    }

    #[test]
    fn the_longest_form_is_removed_and_nothing_of_it_stays() {
        let redaction = Redaction::new(Some("aaaaaaaa"), std::iter::empty());
        assert_eq!(redaction.message("aaaaaaaaaaaaaaaa a"), "****** a");
        assert_eq!(Redaction::new(Some("%25%41aaa"), std::iter::empty()).message("%25%41aaa"), MASK);
        assert_eq!(Redaction::new(Some(""), std::iter::empty()).message("x"), "x");
    }
}
