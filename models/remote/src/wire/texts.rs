//! The ids of texts, for engines that report tokens as texts. Invariant: a text has an id only if no other
//! token can have the same text.

use std::collections::HashMap;

use ntl_text::tokenizer::Tokenizer;

/// The bytes of each token of a vocabulary.
#[derive(Debug, Default)]
pub struct TokenTexts {
    /// `None` if several tokens have the text.
    ids: HashMap<Vec<u8>, Option<u32>>,
    /// Engines decode a token alone. If their decoder drops a space at the beginning of a text, both ` 5` and
    /// `5` may be reported as `5`.
    drops_first_space: bool,
}

impl TokenTexts {
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let ids = (0_u32..).take(tokenizer.len());
        Self::of(ids.map(|id| (id, tokenizer.token_bytes(id))), tokenizer.drops_first_space())
    }

    fn of(tokens: impl IntoIterator<Item = (u32, Vec<u8>)>, drops_first_space: bool) -> Self {
        let mut texts = Self { ids: HashMap::new(), drops_first_space };
        for (id, bytes) in tokens {
            let key = texts.key(&bytes).to_vec();
            texts.ids.entry(key).and_modify(|known| *known = None).or_insert(Some(id));
        }
        texts
    }

    /// Returns the only token with this text.
    pub fn id(&self, text: &[u8]) -> Option<u32> {
        // Decoders write this character in place of the parts of others.
        let is_partial = text.windows(REPLACEMENT.len()).any(|part| part == REPLACEMENT);
        if text.is_empty() || is_partial {
            return None;
        }
        self.ids.get(self.key(text)).copied().flatten()
    }

    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        match bytes {
            [b' ', rest @ ..] if self.drops_first_space => rest,
            _ => bytes,
        }
    }
}

/// U+FFFD in UTF-8.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(drops_first_space: bool) -> TokenTexts {
        let tokens = ["5", " 5", "\n", "a", "a", " ", "\u{fffd}", " b"];
        let tokens = (0..).zip(tokens.map(|text| text.as_bytes().to_vec()));
        TokenTexts::of(tokens, drops_first_space)
    }

    #[test]
    fn a_text_has_an_id_only_if_one_token_has_it() {
        let exact = texts(false);
        let ids =
            ["5", " 5", "\n", "a", " ", "\u{fffd}", "", "c", "b", " b"].map(|text| exact.id(text.as_bytes()));
        assert_eq!(ids, [Some(0), Some(1), Some(2), None, Some(5), None, None, None, None, Some(7)]);
    }

    #[test]
    fn where_decoders_drop_a_first_space_texts_with_and_without_it_are_the_same() {
        let loose = texts(true);
        let ids = ["5", " 5", "\n", " b", "b"].map(|text| loose.id(text.as_bytes()));
        assert_eq!(ids, [None, None, Some(2), Some(7), Some(7)]);
    }
}
