//! Limits of the factor by which a tokenizer makes a text longer, so that a small prompt cannot need
//! gigabytes.

/// Maximum factor by which replacements may make a text longer. Real ones replace a character with one or a
/// few; the rules of NFKC replace one with 18.
pub(super) const GROWTH_MAX: usize = 128;

/// Returns the length of the longest of several zero-terminated strings, in characters.
pub(super) fn longest_string(strings: &[u8]) -> usize {
    let mut longest = 0;
    for string in strings.split(|&byte| byte == 0) {
        let characters = string.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
        longest = longest.max(characters);
    }
    longest
}
