//! Characters that must not reach a log, a terminal or an error message as they are.

/// Returns whether a character controls how text is shown instead of being shown: control characters, line
/// and paragraph separators, and the characters that set the direction of text, which make a text look like
/// another one.
pub fn is_unprintable(character: char) -> bool {
    let is_separator = matches!(character, '\u{2028}' | '\u{2029}');
    let is_direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
    );
    character.is_control() || is_separator || is_direction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_and_line_ends_are_unprintable_and_text_of_all_scripts_is_not() {
        let hidden = "\n\u{7f}\u{9b}\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2028}\u{2066}\u{2069}";
        assert!(hidden.chars().all(is_unprintable));
        assert!(!"Grüße 日本 عربى עברית 👩\u{200d}👧 —".chars().any(is_unprintable));
    }
}
