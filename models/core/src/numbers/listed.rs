//! The grammar of listed JSON values over token ids: what each id does to the beginning of a value, for every
//! way to divide its text into tokens.
//!
//! In: the texts of the values, and the bytes of all tokens. Out: effects in the terms of number trees, in
//! which the number of a value is its index in the list. Invariant: a token that writes the end of a value
//! and text that JSON allows after it closes the value.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::decimal::Decimal;
use super::expansion::{Child, Expansion, ListedPrefix, NumberState, TokenEffect, Unreported};
use super::rules::may_follow_json_value;
use super::softmax::Softmax;
use super::text_grammar::{prune_below, sorted_unique};
use super::value::NumberValue;

/// The bytes of all tokens of a vocabulary.
pub struct TokenBytes {
    tokens: Vec<Box<[u8]>>,
    /// The tokens that begin with each byte.
    beginning: Vec<Vec<u32>>,
    /// The tokens that can follow a value in JSON.
    following: Vec<u32>,
}

impl TokenBytes {
    /// `tokens`: the bytes of each id, in order of ids. A token that writes no text has none.
    pub fn new(tokens: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut all = Self { tokens: Vec::new(), beginning: vec![Vec::new(); 1 << 8], following: Vec::new() };
        for (id, bytes) in (0u32..).zip(tokens) {
            if let Some(&first) = bytes.first() {
                all.beginning[usize::from(first)].push(id);
            }
            if may_follow_json_value(&bytes) {
                all.following.push(id);
            }
            all.tokens.push(bytes.into());
        }
        all
    }

    /// Returns tokens that write `text`, each the longest that fits, or `None` if the vocabulary has none for
    /// a part of it. Single bytes, which a vocabulary lists first, are for characters without a token.
    pub fn spell(&self, text: &[u8]) -> Option<Vec<u32>> {
        let mut rest = text;
        let mut ids = Vec::new();
        while let Some(&first) = rest.first() {
            let fitting =
                self.beginning[usize::from(first)].iter().filter(|&&id| rest.starts_with(self.bytes(id)));
            let longest = *fitting.max_by_key(|&&id| self.bytes(id).len())?;
            ids.push(longest);
            rest = &rest[self.bytes(longest).len()..];
        }
        Some(ids)
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |bytes| bytes)
    }
}

/// The values that a JSON schema lists for one place of a text: strings, booleans and null.
#[derive(Clone)]
pub struct ListedValues {
    /// As JSON, in the order of the schema.
    texts: Vec<String>,
    tokens: Arc<TokenBytes>,
}

impl ListedValues {
    pub fn new(texts: Vec<String>, tokens: Arc<TokenBytes>) -> Self {
        Self { texts, tokens }
    }

    /// The values as JSON.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    pub fn tokens(&self) -> &TokenBytes {
        &self.tokens
    }

    /// The same without the values that `admits` rejects.
    pub fn admitted(&self, mut admits: impl FnMut(&str) -> bool) -> Self {
        let mut texts = self.texts.clone();
        texts.retain(|text| admits(text));
        Self { texts, tokens: Arc::clone(&self.tokens) }
    }
}

impl fmt::Debug for ListedValues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ListedValues").field(&self.texts).finish()
    }
}

impl PartialEq for ListedValues {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

/// The beginnings of all values, as a tree of bytes.
#[derive(Debug, Clone)]
pub(super) struct ListedGrammar {
    values: ListedValues,
    prefixes: Vec<Prefix>,
    start: ListedPrefix,
    eos_ids: Vec<u32>,
}

/// The beginning of some values.
#[derive(Debug, Clone, Default)]
struct Prefix {
    /// The beginnings that are one byte longer.
    next: BTreeMap<u8, u32>,
    /// The value that is complete.
    complete: Option<u32>,
    /// Whether it is complete regardless of the text after it: a string, whose last quote ends it.
    is_closed: bool,
}

const AFTER_SPACE: u32 = 0;
const BEFORE_SPACE: u32 = 1;

impl ListedGrammar {
    /// `may_follow_space`: whether a space may precede the value.
    pub(super) fn new(values: &ListedValues, may_follow_space: bool, eos_ids: &[u32]) -> Self {
        let mut prefixes = vec![Prefix::default()];
        prefixes.push(Prefix::default());
        for (index, text) in (0u32..).zip(&values.texts) {
            let mut at = AFTER_SPACE;
            for &byte in text.as_bytes() {
                let added = prefixes.len() as u32;
                at = *prefixes[at as usize].next.entry(byte).or_insert(added);
                if at == added {
                    prefixes.push(Prefix::default());
                }
            }
            prefixes[at as usize].complete = Some(index);
            prefixes[at as usize].is_closed = text.ends_with('"');
        }
        let mut first = prefixes[AFTER_SPACE as usize].next.clone();
        first.insert(b' ', AFTER_SPACE);
        prefixes[BEFORE_SPACE as usize].next = first;
        let start = ListedPrefix(if may_follow_space { BEFORE_SPACE } else { AFTER_SPACE });
        Self { values: values.clone(), prefixes, start, eos_ids: eos_ids.to_vec() }
    }

    pub(super) fn start(&self) -> ListedPrefix {
        self.start
    }

    /// Returns the effect of one token after a prefix.
    pub(super) fn effect(&self, ListedPrefix(prefix): ListedPrefix, id: u32) -> TokenEffect {
        let mut at = prefix;
        if self.eos_ids.contains(&id) {
            return self.closing(at);
        }
        let bytes = self.values.tokens.bytes(id);
        for (read, byte) in bytes.iter().enumerate() {
            match self.prefixes[at as usize].next.get(byte) {
                Some(&next) => at = next,
                None if may_follow_json_value(&bytes[read..]) => return self.closing(at),
                None => return TokenEffect::Invalid,
            }
        }
        if bytes.is_empty() {
            TokenEffect::Invalid
        } else if self.prefixes[at as usize].is_closed {
            self.closing(at)
        } else {
            TokenEffect::Continues(NumberState::Listed(ListedPrefix(at)))
        }
    }

    fn closing(&self, prefix: u32) -> TokenEffect {
        match self.prefixes[prefix as usize].complete {
            Some(value) => TokenEffect::Closes(number(value)),
            None => TokenEffect::Invalid,
        }
    }

    /// Splits the probability after a prefix. Prunes the least probable tokens, which have at most `prune`
    /// together.
    pub(super) fn expand(&self, prefix: ListedPrefix, softmax: &Softmax<'_>, prune: f64) -> Expansion {
        let mut expansion = Expansion::default();
        let mut tokens = Vec::new();
        let mut seen = 0.0;
        for id in self.touching(prefix) {
            let Some(probability) = softmax.reported(id) else { continue };
            seen += probability;
            match self.effect(prefix, id) {
                TokenEffect::Invalid => expansion.invalid += probability,
                effect => tokens.push((id, probability, effect)),
            }
        }
        let probabilities: Vec<(u32, f64)> =
            tokens.iter().map(|&(id, probability, _)| (id, probability)).collect();
        let least = prune_below(&probabilities, prune);
        let mut closed: Vec<(NumberValue, f64)> = Vec::new();
        for (id, probability, effect) in tokens {
            match effect {
                _ if probability <= 0.0 => {}
                TokenEffect::Closes(value) => match closed.iter_mut().find(|(other, _)| *other == value) {
                    Some((_, sum)) => *sum += probability,
                    None => closed.push((value, probability)),
                },
                TokenEffect::Continues(state) if probability >= least => {
                    expansion.children.push(Child::new(id, state, probability));
                }
                _ => expansion.left_open += probability,
            }
        }
        for (value, probability) in closed {
            expansion.close(Some(value), probability);
        }
        let left = (1.0 - seen).max(0.0);
        let unreported = self.unreported(prefix, softmax).other_max.min(left);
        expansion.unreported += unreported;
        expansion.left_open += unreported;
        expansion.invalid += left - unreported;
        expansion
    }

    /// Returns the effect of the tokens that another engine does not report.
    pub(super) fn unreported(&self, prefix: ListedPrefix, softmax: &Softmax<'_>) -> Unreported {
        let mut others = 0;
        if softmax.is_partial() {
            for id in self.touching(prefix) {
                let is_valid = self.effect(prefix, id) != TokenEffect::Invalid;
                others += usize::from(is_valid && softmax.reported(id).is_none());
            }
        }
        Unreported { effect: TokenEffect::Invalid, other_max: softmax.unreported_max(others) }
    }

    /// Returns the ids that continue a value after a prefix, ascending.
    pub(super) fn continuing_ids(&self, prefix: ListedPrefix) -> Vec<u32> {
        let mut ids = self.touching(prefix);
        ids.retain(|&id| matches!(self.effect(prefix, id), TokenEffect::Continues(_)));
        ids
    }

    /// Returns the ids that continue or end a value after any prefix, ascending.
    pub(super) fn ids(&self) -> Arc<[u32]> {
        let mut ids = Vec::new();
        for prefix in (0u32..).map(ListedPrefix).take(self.prefixes.len()) {
            for id in self.touching(prefix) {
                if self.effect(prefix, id) != TokenEffect::Invalid {
                    ids.push(id);
                }
            }
        }
        sorted_unique(ids.iter())
    }

    /// The ids that may continue or end a value after a prefix, ascending.
    fn touching(&self, ListedPrefix(prefix): ListedPrefix) -> Vec<u32> {
        let Prefix { next, complete, .. } = &self.prefixes[prefix as usize];
        let tokens = &self.values.tokens;
        let mut ids = Vec::new();
        for &byte in next.keys() {
            ids.extend(&tokens.beginning[usize::from(byte)]);
        }
        if complete.is_some() {
            ids.extend(tokens.following.iter().chain(&self.eos_ids));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The number of a value: its index.
fn number(value: u32) -> NumberValue {
    Decimal::of_units(value.into(), 0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [&str; 19] = [
        "", "\"", " \"", "red", "re", "d", "\"red\"", "d\",", "\"}", "den", "true", "t", " ", "}", "rue",
        ",\"", "1", "x", "2 ]",
    ];

    fn grammar(texts: &[&str], may_follow_space: bool) -> ListedGrammar {
        let tokens = TokenBytes::new(TOKENS.map(|token| token.as_bytes().to_vec()));
        let texts = texts.iter().map(|&text| text.to_owned()).collect();
        ListedGrammar::new(&ListedValues::new(texts, Arc::new(tokens)), may_follow_space, &[0])
    }

    /// All ways to write a value under one distribution after every prefix: the value, and the tokens.
    fn all(grammar: &ListedGrammar, prefix: ListedPrefix, path: &str, ways: &mut Vec<(u32, String)>) {
        for id in 0..TOKENS.len() as u32 {
            let path = format!("{path}|{}", TOKENS[id as usize]);
            match grammar.effect(prefix, id) {
                TokenEffect::Continues(NumberState::Listed(next)) => all(grammar, next, &path, ways),
                TokenEffect::Closes(value) => ways.push((value.to_f64() as u32, path)),
                TokenEffect::Invalid => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn ways(texts: &[&str], may_follow_space: bool) -> Vec<(u32, String)> {
        let grammar = grammar(texts, may_follow_space);
        let mut ways = Vec::new();
        all(&grammar, grammar.start(), "", &mut ways);
        ways.sort();
        ways
    }

    #[test]
    fn every_division_of_a_value_into_tokens_is_found_with_the_text_after_it() {
        let found = ways(&["\"red\"", "true", "1", "12", "\"redden\""], false);
        let of = |value: u32| {
            let of = found.iter().filter(|(own, _)| *own == value);
            of.map(|(_, way)| way.trim_start_matches('|')).collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["\"red\"", "\"|red|\"", "\"|red|\"}", "\"|re|d\",", "\"|re|d|\"", "\"|re|d|\"}"]);
        assert_eq!(of(1).len(), 4 * 2, "{:?}: `}}`, `,\"`, ` ` and the end after `true` and `t|rue`", of(1));
        assert_eq!(of(2), ["1|", "1| ", "1|,\"", "1|}"]);
        assert_eq!(of(3), ["1|2 ]"]);
        assert_eq!(of(4), ["\"|red|den|\"", "\"|red|den|\"}", "\"|re|d|den|\"", "\"|re|d|den|\"}"]);
        let with_space = ways(&["\"red\""], true);
        assert_eq!(
            with_space.len(),
            6 + 6 + 5,
            "each also after ` `, all but one with ` \"`: {with_space:?}"
        );
    }

    #[test]
    fn an_expansion_has_the_effects_of_single_tokens() {
        let grammar = grammar(&["\"red\"", "true", "1", "12"], true);
        let logits: Vec<f32> = (0..TOKENS.len()).map(|id| (id * 7 % 5) as f32 / 3.0).collect();
        let softmax = Softmax::new(&logits).unwrap();
        for prefix in (0u32..).map(ListedPrefix).take(grammar.prefixes.len()) {
            let expansion = grammar.expand(prefix, &softmax, 0.0);
            let mut closed = 0.0;
            let mut invalid = 0.0;
            let mut children = Vec::new();
            for id in 0..TOKENS.len() as u32 {
                let probability = softmax.probability(id);
                match grammar.effect(prefix, id) {
                    TokenEffect::Continues(state) => children.push(Child::new(id, state, probability)),
                    TokenEffect::Closes(_) => closed += probability,
                    _ => invalid += probability,
                }
            }
            assert_eq!(expansion.children, children);
            let sum: f64 = expansion.closed.iter().map(|closing| closing.probability).sum();
            assert!(
                (sum - closed).abs() < 1e-9 && (expansion.invalid - invalid).abs() < 1e-9,
                "{expansion:?}"
            );
            assert!(expansion.left_open.abs() < 1e-12);
        }
    }

    #[test]
    fn a_value_is_spelled_with_the_longest_tokens() {
        let values = grammar(&["true"], false).values;
        let spelled = |text: &str| {
            let ids = values.tokens().spell(text.as_bytes())?;
            Some(ids.into_iter().map(|id| TOKENS[id as usize]).collect::<Vec<_>>())
        };
        assert_eq!(spelled("\"red\""), Some(vec!["\"red\""]));
        assert_eq!(spelled(" \"redden"), Some(vec![" \"", "red", "den"]));
        assert_eq!(spelled("\"blue"), None);
    }
}
