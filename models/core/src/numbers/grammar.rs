//! The number grammar over token ids: what each id does to a number, for each way of writing numbers.
//!
//! [`TextGrammar`] reads numbers in text, [`TokenNotation`] those of dedicated tokens, and [`ListedGrammar`]
//! the values that a JSON schema lists, each as its index.

use std::sync::Arc;

use super::distribution::OpenPart;
use super::expansion::{Expansion, NumberState, Refused, TokenEffect, Unreported};
use super::listed::{ListedGrammar, ListedValues};
use super::piece::NumberPiece;
use super::rules::{NumberRules, Terminator};
use super::softmax::Softmax;
use super::state::GrammarLimits;
use super::text_grammar::TextGrammar;
use super::token_notation::TokenNotation;
use super::values::NumberValues;
use crate::sampling::SamplingParams;

#[derive(Debug, Clone)]
pub struct NumberGrammar(Notation);

#[derive(Debug, Clone)]
enum Notation {
    Text(Box<TextGrammar>),
    Tokens(Arc<TokenNotation>),
    Listed(Arc<ListedGrammar>),
}

impl NumberGrammar {
    /// `pieces`: what each id contributes to a number, in order of ids.
    pub fn new<P: Into<NumberPiece>>(pieces: impl IntoIterator<Item = Option<P>>, eos_ids: Vec<u32>) -> Self {
        Self(Notation::Text(Box::new(TextGrammar::new(pieces, eos_ids))))
    }

    /// For a model that predicts labels.
    pub fn point() -> Self {
        Self(Notation::Text(Box::new(TextGrammar::point())))
    }

    /// For a vocabulary of dedicated number tokens.
    pub fn of_tokens(notation: Arc<TokenNotation>) -> Self {
        Self(Notation::Tokens(notation))
    }

    /// For the values that a JSON schema lists. `may_follow_space`: whether a space may precede them.
    pub fn of_listed(values: &ListedValues, may_follow_space: bool, eos_ids: &[u32]) -> Self {
        Self(Notation::Listed(Arc::new(ListedGrammar::new(values, may_follow_space, eos_ids))))
    }

    /// Returns whether an expansion may read any id.
    pub(crate) fn reads_all_ids(&self) -> bool {
        matches!(self.0, Notation::Listed(_))
    }

    /// The notation of dedicated number tokens.
    pub fn notation(&self) -> Option<&Arc<TokenNotation>> {
        match &self.0 {
            Notation::Text(_) | Notation::Listed(_) => None,
            Notation::Tokens(notation) => Some(notation),
        }
    }

    /// Returns whether the model writes no tokens and predicts labels. The value of a single label is a
    /// number.
    pub fn is_point(&self) -> bool {
        self.text().is_some_and(TextGrammar::is_point)
    }

    /// The number token of a number head.
    pub fn head_id(&self) -> Option<u32> {
        self.text().and_then(TextGrammar::head_id)
    }

    /// Returns whether the model can write numbers.
    pub fn spells_numbers(&self) -> bool {
        self.text().is_none_or(TextGrammar::spells_numbers)
    }

    /// Number of numbers that an answer consists of.
    pub fn outputs(&self) -> usize {
        self.notation().map_or(1, |notation| notation.outputs())
    }

    /// The state before the first token.
    pub fn start(&self) -> NumberState {
        match &self.0 {
            Notation::Text(_) => NumberState::START,
            Notation::Tokens(_) => NumberState::Tokens(Default::default()),
            Notation::Listed(listed) => NumberState::Listed(listed.start()),
        }
    }

    pub fn rules(&self, limits: GrammarLimits, terminator: Terminator, values: NumberValues) -> NumberRules {
        match &self.0 {
            Notation::Text(text) => text.rules(limits, terminator, values),
            Notation::Tokens(notation) => notation.rules(limits, terminator, values),
            Notation::Listed(_) => NumberRules::listed(limits),
        }
    }

    /// Returns the effect of one token after `state`. [`NumberGrammar::expand`] does the same for all tokens
    /// together.
    pub fn effect(&self, state: NumberState, id: u32, rules: &NumberRules) -> TokenEffect {
        match (&self.0, state) {
            (Notation::Text(text), NumberState::Text(state)) => text.effect(state, id, rules),
            (Notation::Tokens(notation), NumberState::Tokens(state)) => notation.effect(state, id, rules),
            (Notation::Listed(listed), NumberState::Listed(prefix)) => listed.effect(prefix, id),
            _ => TokenEffect::Invalid,
        }
    }

    /// Splits the probability after `state`. In text, prunes the least probable tokens that touch the number,
    /// which have at most `prune` together.
    pub fn expand(
        &self,
        state: NumberState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
        prune: f64,
    ) -> Expansion {
        match (&self.0, state) {
            (Notation::Text(text), NumberState::Text(state)) => text.expand(state, softmax, rules, prune),
            (Notation::Tokens(notation), NumberState::Tokens(state)) => {
                notation.expand(state, softmax, rules)
            }
            (Notation::Listed(listed), NumberState::Listed(prefix)) => listed.expand(prefix, softmax, prune),
            _ => Expansion { invalid: 1.0, ..Expansion::default() },
        }
    }

    /// Returns the probabilities with which the reference implementation draws the next of dedicated number
    /// tokens, or `None` for text. They are empty if the cut-offs leave no token that may follow.
    pub fn draws(
        &self,
        state: NumberState,
        logits: &[f32],
        rules: &NumberRules,
        sampling: &SamplingParams,
    ) -> Option<Vec<(u32, f64)>> {
        match (&self.0, state) {
            (Notation::Tokens(notation), NumberState::Tokens(state)) => {
                Some(notation.draws(state, logits, rules, sampling))
            }
            _ => None,
        }
    }

    /// Returns the ids that are worth a request to another engine: those whose effect may differ from
    /// [`Unreported::effect`] in any state, ascending.
    pub fn distinct_ids(&self, rules: &NumberRules) -> Arc<[u32]> {
        match &self.0 {
            Notation::Text(text) => text.distinct_ids(rules),
            Notation::Tokens(_) => Arc::clone(rules.read_ids()),
            Notation::Listed(listed) => listed.ids(),
        }
    }

    /// Returns the ids of the tokens that continue a number in text or a listed value after `state`,
    /// ascending.
    pub fn continuing_ids(&self, state: NumberState, rules: &NumberRules) -> Vec<u32> {
        match (&self.0, state) {
            (Notation::Text(text), NumberState::Text(state)) => text.continuing_ids(state, rules),
            (Notation::Listed(listed), NumberState::Listed(prefix)) => listed.continuing_ids(prefix),
            _ => Vec::new(),
        }
    }

    /// Returns the effect of the tokens that another engine does not report.
    pub fn unreported(&self, state: NumberState, softmax: &Softmax<'_>, rules: &NumberRules) -> Unreported {
        match (&self.0, state) {
            (Notation::Text(text), NumberState::Text(state)) => text.unreported(state, softmax, rules),
            (Notation::Listed(listed), NumberState::Listed(prefix)) => listed.unreported(prefix, softmax),
            _ => Unreported { effect: TokenEffect::Invalid, other_max: 0.0 },
        }
    }

    /// Returns the most probable ways from `state` to a text that is not an admitted number, at most `count`,
    /// best first. Before the digits, this needs the logits of all tokens.
    pub fn refused(
        &self,
        state: NumberState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
        count: usize,
    ) -> Vec<Refused> {
        match (&self.0, state) {
            (Notation::Text(text), NumberState::Text(state)) => text.refused(state, softmax, rules, count),
            _ => Vec::new(),
        }
    }

    /// Returns where the output `index` of all answers that begin with a prefix lies, or `None` if nothing
    /// bounds it. The prefix has this probability, and must not contain the whole output.
    pub fn open_part(
        &self,
        state: NumberState,
        index: usize,
        probability: f64,
        rules: &NumberRules,
    ) -> Option<OpenPart> {
        match (&self.0, state) {
            (Notation::Tokens(notation), NumberState::Tokens(state)) => {
                Some(notation.open_part(state, index, probability, rules))
            }
            _ => None,
        }
    }

    fn text(&self) -> Option<&TextGrammar> {
        match &self.0 {
            Notation::Text(text) => Some(text),
            Notation::Tokens(_) | Notation::Listed(_) => None,
        }
    }
}
