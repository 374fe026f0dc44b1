//! Removes spaces before punctuation (Hugging Face's `clean_up_tokenization_spaces`), and determines which
//! part of a growing text can no longer change.
//!
//! Invariant: the settled part of a cleaned text is a prefix of every cleaned text that it can grow into.

use super::python;

/// Replacements, in order. Each is applied to the whole text
/// (`PreTrainedTokenizerBase.clean_up_tokenization`).
const REPLACEMENTS: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// If one of these is between a space and the end of a text, a replacement can still remove that space. Those
/// with a second space are needed because ` n ' t` first becomes ` n't`.
const PENDING: [&str; 8] = ["", "'", "'v", "'r", "n", "n ", "n'", "n '"];

pub(super) fn clean_up(text: &str) -> String {
    REPLACEMENTS.iter().fold(
        text.to_owned(),
        |text, (from, to)| {
            if text.contains(from) { text.replace(from, to) } else { text }
        },
    )
}

/// Returns the length, in bytes, of the part of a decoded text that cannot change any more. An unfinished
/// character, white space that a later piece may remove, and the text after such white space can change.
///
/// * `cleaned`: whether the text went through [`clean_up`]
/// * `stripped`: whether white space at its end was removed, so that it can reappear
pub(super) fn settled_len(text: &str, cleaned: bool, stripped: bool) -> usize {
    let whole = text.trim_end_matches('\u{FFFD}');
    let without_space = if stripped { whole.trim_end_matches(python::is_space) } else { whole };
    if cleaned { pending_from(without_space) } else { without_space.len() }
}

fn pending_from(text: &str) -> usize {
    // An apostrophe at the end may have been ` ' `. If a full stop follows, its second space is removed by
    // another replacement.
    let apostrophe = text.strip_suffix('\'').unwrap_or(text).len();
    let spaces = PENDING.iter().filter_map(|tail| {
        let before = text.strip_suffix(tail)?;
        let kept = before.trim_end_matches(' ').len();
        (kept < before.len()).then_some(kept)
    });
    spaces.fold(apostrophe, usize::min)
}

/// All characters of the replaced texts.
const REPLACED: &str = " .?!,'ntmsver";

/// Returns whether a text can be decoded in two parts: the cut splits no character and no number, and no
/// replacement crosses it. A replacement that crosses the cut would contain the characters on both sides.
pub(super) fn can_cut(before: &str, after: &str, cleaned: bool) -> bool {
    let (Some(left), Some(right)) = (before.chars().next_back(), after.chars().next()) else { return false };
    if right == '\u{FFFD}' || left.is_numeric() && right.is_numeric() {
        return false;
    }
    let may_be_replaced = REPLACED.contains(left) && REPLACED.contains(right);
    // ` n't` is the only replaced text that begins with a space and continues with a letter.
    !cleaned || !may_be_replaced || left == ' ' && right.is_alphabetic() && right != 'n'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_not_cut_inside_a_number_a_character_or_a_replacement() {
        for (before, after, cleaned, want) in [
            ("one ", "word", true, true),
            ("one ", "now", true, false),
            ("one ", "now", false, true),
            ("it", "'s", true, false),
            ("it", "'s", false, true),
            ("x.", "World", true, true),
            ("1", "2", false, false),
            ("1 ", "2", true, true),
            ("é", "\u{FFFD}", false, false),
            ("", "word", false, false),
        ] {
            assert_eq!(can_cut(before, after, cleaned), want, "{before:?} {after:?}");
        }
    }

    #[test]
    fn spaces_before_punctuation_are_removed() {
        for (text, want) in [
            ("5 .", "5."),
            ("what ? no !", "what? no!"),
            ("a , b", "a, b"),
            ("do n't , I 'm , it 's , we 've , you 're", "don't, I'm, it's, we've, you're"),
            ("rock ' n", "rock'n"),
            ("a  .", "a ."),
            ("a n ' t", "an't"),
            ("x .75", "x.75"),
        ] {
            assert_eq!(clean_up(text), want, "{text:?}");
        }
    }

    #[test]
    fn text_that_may_still_change_is_held_back() {
        for (text, cleaned, stripped, want) in [
            ("5", true, false, "5"),
            ("5 ", true, false, "5"),
            ("5 ", false, false, "5 "),
            ("5 ", false, true, "5"),
            ("it '", true, false, "it"),
            ("we 'v", true, false, "we"),
            ("do n", true, false, "do"),
            ("do n ", true, false, "do"),
            ("an", true, false, "an"),
            ("don'", true, false, "don"),
            ("1\u{FFFD}\u{FFFD}", false, false, "1"),
            ("it 's", true, false, "it 's"),
        ] {
            assert_eq!(&text[..settled_len(text, cleaned, stripped)], want, "{text:?}");
        }
    }

    /// Calls `check` with every text of `LENGTH` characters of the replacements, after an `a`.
    fn every_text(mut check: impl FnMut(&str)) {
        const LETTERS: [char; 7] = [' ', '\'', '.', 'n', 't', 'v', 'e'];
        const LENGTH: u32 = 6;
        for code in 0..LETTERS.len().pow(LENGTH) {
            let digits = (0..LENGTH).map(|place| code / LETTERS.len().pow(place) % LETTERS.len());
            check(&format!("a{}", digits.map(|digit| LETTERS[digit]).collect::<String>()));
        }
    }

    #[test]
    fn settled_text_is_a_prefix_of_every_continuation() {
        let decode = |text: &str, stripped: bool| clean_up(if stripped { text.trim() } else { text });
        every_text(|text| {
            for stripped in [false, true] {
                let end = decode(text, stripped);
                for length in 1..text.len() {
                    let now = decode(&text[..length], stripped);
                    let settled = &now[..settled_len(&now, true, stripped)];
                    assert!(
                        end.starts_with(settled),
                        "{text:?} after {length}: {settled:?} is not in {end:?}"
                    );
                }
            }
        });
    }
}
