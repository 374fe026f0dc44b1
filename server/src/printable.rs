//! Texts from files and requests in the form that terminals and logs can show.

use std::borrow::Cow;

use ntl_core::is_unprintable;

/// Returns a text with its control characters and those for the direction of text escaped, so that it can neither
/// forge a line, nor control a terminal, nor look like another text.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unprintable(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Returns a text of at most `chars_max` characters, the last of which is an ellipsis if the text is longer.
pub(crate) fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
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
    fn control_characters_are_escaped_and_all_others_stay() {
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
