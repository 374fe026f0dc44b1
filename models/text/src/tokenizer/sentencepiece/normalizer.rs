//! Normalises text for SentencePiece: applies the rules of the model file and marks spaces.
//!
//! It behaves like <https://github.com/google/sentencepiece/blob/v0.2.0/src/normalizer.cc>. Unlike in the
//! `tokenizers` crate, the longest rule wins at every position, regardless of grapheme clusters. Rules of a
//! malformed table do not apply, but never cause a panic.

use super::super::growth::{GROWTH_MAX, longest_string};
use super::index::PrefixIndex;
use super::proto;

/// Rewriting rules.
///
/// They are a double-array trie in the format of Darts-clone (<https://github.com/s-yata/darts-clone>). Its
/// values are offsets into zero-terminated strings.
#[derive(Debug)]
struct Rules {
    trie: Vec<u32>,
    replacements: String,
    /// Length of the longest replacement, in characters.
    growth: usize,
}

impl Rules {
    /// Parses `blob`, which consists of the trie's size in bytes, the trie, and the replacements.
    fn parse(blob: &[u8]) -> Result<Self, String> {
        let (size, rest) = blob.split_first_chunk().ok_or("normalization rules are cut off")?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) = rest.split_at_checked(size).ok_or("normalization rules are cut off")?;
        let (units, odd) = trie.as_chunks();
        if !odd.is_empty() {
            return Err("normalization rules have a broken size".into());
        }
        let replacements = str::from_utf8(replacements).map_err(|_| "normalization rules are not UTF-8")?;
        let growth = longest_string(replacements.as_bytes());
        if growth > GROWTH_MAX {
            return Err(format!("normalization rules make texts {growth} times as long"));
        }
        let trie = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Ok(Self { trie, replacements: replacements.to_owned(), growth })
    }

    /// Finds the longest prefix of `text` with a rule. Returns its length in bytes and its replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut longest = None;
        let mut node = offset(*self.trie.first()?);
        for (depth, byte) in text.bytes().enumerate() {
            node ^= u32::from(byte);
            let Some(&unit) = self.trie.get(node as usize) else { break };
            // A leaf has the top bit set, so it never equals a byte.
            if byte == 0 || unit & ((1 << 31) | 0xFF) != u32::from(byte) {
                break;
            }
            node ^= offset(unit);
            let has_leaf = unit & (1 << 8) != 0;
            if let (true, Some(leaf)) = (has_leaf, self.trie.get(node as usize)) {
                longest = Some((depth + 1, leaf & !(1 << 31)));
            }
        }
        let (length, value) = longest?;
        let tail = self.replacements.get(value as usize..)?;
        let replacement = tail.split('\0').next()?;
        text.is_char_boundary(length).then_some((length, replacement))
    }
}

/// The offset of a unit's children in the trie.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

#[derive(Debug)]
pub(super) struct Normalizer {
    rules: Option<Rules>,
    /// Words that stay unchanged.
    fixed: PrefixIndex,
    space: &'static str,
    mark_first: bool,
    mark_last: bool,
    squeeze: bool,
}

impl Normalizer {
    pub(super) fn new(
        spec: &proto::NormalizerSpec,
        space_last: bool,
        fixed: PrefixIndex,
    ) -> Result<Self, String> {
        let blob = spec.precompiled_charsmap.as_deref().filter(|blob| !blob.is_empty());
        let mark = spec.add_dummy_prefix.unwrap_or(true);
        Ok(Self {
            rules: blob.map(Rules::parse).transpose()?,
            fixed,
            space: if spec.escape_whitespaces.unwrap_or(true) { "▁" } else { " " },
            mark_first: mark && !space_last,
            mark_last: mark && space_last,
            squeeze: spec.remove_extra_whitespaces.unwrap_or(true),
        })
    }

    /// Returns the maximum factor by which it makes a text longer.
    pub(super) fn growth(&self) -> usize {
        self.rules.as_ref().map_or(1, |rules| rules.growth.max(1))
    }

    /// Normalises a text. The result is empty if the text consists of spaces.
    pub(super) fn normalize(&self, text: &str) -> String {
        let mut rest = text;
        if self.squeeze {
            while let (" ", length) = self.next(rest) {
                rest = &rest[length..];
            }
        }
        let mut normalized = String::with_capacity(text.len() + 8);
        if rest.is_empty() {
            return normalized;
        }
        if self.mark_first {
            normalized.push_str(self.space);
        }
        let mut after_space = self.squeeze;
        while !rest.is_empty() {
            let (chunk, length) = self.next(rest);
            let chunk = if after_space { chunk.trim_start_matches(' ') } else { chunk };
            normalized.push_str(&chunk.replace(' ', self.space));
            // A dropped chunk of spaces does not end a run of spaces.
            if !chunk.is_empty() {
                after_space = self.squeeze && chunk.ends_with(' ');
            }
            rest = &rest[length..];
        }
        if self.squeeze {
            let kept = normalized.trim_end_matches(self.space).len();
            normalized.truncate(kept);
        }
        if self.mark_last {
            normalized.push_str(self.space);
        }
        normalized
    }

    /// Returns the replacement of the next chunk of `rest` and that chunk's length in bytes, or `("", 0)` at
    /// the end.
    fn next<'a>(&'a self, rest: &'a str) -> (&'a str, usize) {
        if let Some((length, _)) = self.fixed.longest(rest) {
            return (&rest[..length], length);
        }
        if let Some((length, replacement)) = self.rules.as_ref().and_then(|rules| rules.longest(rest)) {
            return (replacement, length);
        }
        let length = rest.chars().next().map_or(0, char::len_utf8);
        (&rest[..length], length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalizer(change: impl FnOnce(&mut proto::NormalizerSpec), space_last: bool) -> Normalizer {
        let mut spec = proto::NormalizerSpec::default();
        change(&mut spec);
        Normalizer::new(&spec, space_last, PrefixIndex::default()).unwrap()
    }

    #[test]
    fn spaces_are_squeezed_and_marked() {
        let usual = normalizer(|_| {}, false);
        for (text, want) in
            [("a b", "▁a▁b"), ("  a   b ", "▁a▁b"), ("", ""), ("   ", ""), ("a\tb", "▁a\tb"), ("▁", "")]
        {
            assert_eq!(usual.normalize(text), want, "{text:?}");
        }
    }

    #[test]
    fn every_switch_of_the_model_file_has_an_effect() {
        let all_spaces = normalizer(|spec| spec.remove_extra_whitespaces = Some(false), false);
        assert_eq!(all_spaces.normalize("  a "), "▁▁▁a▁");
        let bare = normalizer(|spec| spec.add_dummy_prefix = Some(false), false);
        assert_eq!(bare.normalize(" a b"), "a▁b");
        let unmarked = normalizer(|spec| spec.escape_whitespaces = Some(false), false);
        assert_eq!(unmarked.normalize("a b"), " a b");
        assert_eq!(normalizer(|_| {}, true).normalize("a b"), "a▁b▁");
    }

    /// A trie with the single rule `a` -> `bc`. The root's offset is 0x100, and its child by `a` is at 0x100
    /// ^ 0x61.
    fn one_rule() -> Vec<u32> {
        let mut trie = vec![0; 0x200];
        trie[0] = 0x100 << 10;
        trie[0x161] = (0x1 << 10) | (1 << 8) | 0x61;
        trie[0x160] = 1 << 31;
        trie
    }

    fn blob(trie: &[u32], replacements: &[u8]) -> Vec<u8> {
        let size = (trie.len() as u32 * 4).to_le_bytes();
        [&size[..], &trie.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<_>>(), replacements]
            .concat()
    }

    #[test]
    fn rules_replace_text() {
        let with_rule =
            normalizer(|spec| spec.precompiled_charsmap = Some(blob(&one_rule(), b"bc\0")), false);
        assert_eq!(with_rule.normalize("xa a"), "▁xbc▁bc");
    }

    #[test]
    fn broken_rules_are_rejected_or_do_not_apply() {
        let whole = blob(&one_rule(), b"bc\0");
        for (bytes, want) in [
            (&whole[..3], "normalization rules are cut off"),
            (&whole[..40], "normalization rules are cut off"),
            (&[0xFF; 4], "normalization rules are cut off"),
            (&[1, 0, 0, 0, 9], "normalization rules have a broken size"),
            (&[0, 0, 0, 0, 0xFF], "normalization rules are not UTF-8"),
            (&blob(&one_rule(), &[b'x'; 129]), "normalization rules make texts 129 times as long"),
        ] {
            assert_eq!(Rules::parse(bytes).unwrap_err(), want);
        }
        for (trie, replacements) in
            [(vec![], &b""[..]), (vec![u32::MAX; 4], b""), (one_rule(), b""), (vec![0x100 << 10], b"x")]
        {
            let rules = Rules::parse(&blob(&trie, replacements)).unwrap();
            assert!(rules.longest("a").is_none_or(|(_, replacement)| replacement.is_empty()));
        }
    }
}
