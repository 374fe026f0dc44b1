//! Finds all words in a list that are prefixes of a text.

/// Words in byte order, each with a number. A search narrows a range of the list byte by byte. Its time is
/// proportional to the length of the longest match.
#[derive(Debug, Default)]
pub(in super::super) struct PrefixIndex {
    sorted: Vec<(String, u32)>,
}

impl PrefixIndex {
    /// Builds the index. Omits empty words, which would match everywhere.
    pub(in super::super) fn new(words: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut sorted: Vec<_> = words.into_iter().filter(|(word, _)| !word.is_empty()).collect();
        sorted.sort();
        sorted.dedup_by(|later, first| later.0 == first.0);
        Self { sorted }
    }

    /// Calls `on_match` for every word that is a prefix of `text`, with its length in bytes and its number,
    /// shortest first.
    pub(in super::super) fn prefixes(&self, text: &str, mut on_match: impl FnMut(usize, u32)) {
        let mut range = &self.sorted[..];
        for (depth, byte) in text.bytes().enumerate() {
            let start = range.partition_point(|(word, _)| word.as_bytes().get(depth) < Some(&byte));
            let end = range.partition_point(|(word, _)| word.as_bytes().get(depth) <= Some(&byte));
            range = &range[start..end];
            match range.first() {
                None => return,
                Some((word, number)) if word.len() == depth + 1 => on_match(depth + 1, *number),
                Some(_) => {}
            }
        }
    }

    /// Returns the length in bytes and the number of the longest word that is a prefix of `text`.
    pub(in super::super) fn longest(&self, text: &str) -> Option<(usize, u32)> {
        let mut longest = None;
        self.prefixes(text, |length, number| longest = Some((length, number)));
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_if_they_are_prefixes_of_the_text() {
        let words = ["ab", "a", "abcd", "b", "", "▁", "▁1"];
        let index = PrefixIndex::new(words.map(str::to_owned).into_iter().zip(0..));
        for (text, want) in [
            ("abcx", vec![(1, 1), (2, 0)]),
            ("abcd", vec![(1, 1), (2, 0), (4, 2)]),
            ("▁12", vec![(3, 5), (4, 6)]),
            ("c", vec![]),
            ("", vec![]),
        ] {
            let mut found = Vec::new();
            index.prefixes(text, |length, number| found.push((length, number)));
            assert_eq!(found, want, "{text:?}");
            assert_eq!(index.longest(text), want.last().copied());
        }
    }
}
