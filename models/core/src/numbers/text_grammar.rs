//! The grammar of numbers in text over token ids: what each id does to a number, for each way of spelling
//! digits.
//!
//! Built once per checkpoint. A step reads only the ids that can touch a number in its state; all others
//! share one probability, the rest of the softmax.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::decimal::Decimal;
use super::expansion::{Child, Expansion, NumberState, Refused, RefusedEnd, TokenEffect, Unreported};
use super::piece::NumberPiece;
use super::rules::{NumberRules, Terminator};
use super::softmax::Softmax;
use super::state::{GrammarLimits, Phase, PieceEffect, TextState};
use super::values::{AdmittedValues, NumberValues};

#[derive(Debug, Clone)]
pub(super) struct TextGrammar {
    /// By id; `None` for special tokens and for ids that are not complete characters.
    pieces: Vec<Option<NumberPiece>>,
    eos_ids: Vec<u32>,
    /// The number token of a number head.
    head: Option<u32>,
    /// See [`TextGrammar::is_point`].
    point: bool,
    /// For each [`Phase`], the ids that could continue a number there.
    touching: [Vec<u32>; Phase::ALL.len()],
    /// All of these, and the ends of a sequence: the ids that most requests read.
    read: Arc<[u32]>,
}

impl TextGrammar {
    /// `pieces`: what each id contributes to a number, in order of ids.
    pub(super) fn new<P: Into<NumberPiece>>(
        pieces: impl IntoIterator<Item = Option<P>>,
        eos_ids: Vec<u32>,
    ) -> Self {
        let pieces: Vec<_> = pieces.into_iter().map(|piece| piece.map(Into::into)).collect();
        let touching =
            Phase::ALL.map(|phase| touching_ids(&pieces, &eos_ids, phase, GrammarLimits::default()));
        let head = pieces.iter().position(|piece| matches!(piece, Some(NumberPiece::Head)));
        let head = head.map(|id| id as u32);
        let read = sorted_unique(touching.iter().flatten().chain(&eos_ids));
        Self { head, pieces, eos_ids, point: false, touching, read }
    }

    /// For a model that predicts labels.
    pub(super) fn point() -> Self {
        Self { point: true, ..Self::new(std::iter::empty::<Option<NumberPiece>>(), Vec::new()) }
    }

    /// Returns whether the model writes no tokens and predicts labels. The value of a single label is a
    /// number.
    pub(super) fn is_point(&self) -> bool {
        self.point
    }

    /// The number token of a number head.
    pub(super) fn head_id(&self) -> Option<u32> {
        self.head
    }

    /// Returns whether the model can write numbers.
    pub(super) fn spells_numbers(&self) -> bool {
        self.point || !self.touching[Phase::Start as usize].is_empty()
    }

    pub(super) fn rules(
        &self,
        limits: GrammarLimits,
        terminator: Terminator,
        values: NumberValues,
    ) -> NumberRules {
        let values = AdmittedValues::new(values);
        let mut ending = self.eos_ids.clone();
        if let Terminator::Texts(_) | Terminator::Json = &terminator {
            for id in self.ids() {
                if let Some(NumberPiece::Text(text)) = self.piece(id)
                    && terminator.is_text(text)
                {
                    ending.push(id);
                }
            }
            ending.sort_unstable();
            ending.dedup();
        }
        let separating =
            limits.has_thousands().then(|| touching_ids(&self.pieces, &self.eos_ids, Phase::Integer, limits));
        let read = match &terminator {
            Terminator::Any | Terminator::Eos if separating.is_none() => Arc::clone(&self.read),
            _ => sorted_unique(self.read.iter().chain(&ending).chain(separating.iter().flatten())),
        };
        NumberRules { limits, terminator, values, ending, separating, read, is_masked: true }
    }

    /// Returns the effect of one token after `state`. [`TextGrammar::expand`] does the same for all tokens
    /// together.
    pub(super) fn effect(&self, state: TextState, id: u32, rules: &NumberRules) -> TokenEffect {
        let value = match self.piece_effect(state, id, rules) {
            Some(PieceEffect::Continues(next)) if rules.values.are_reached_from(next) => {
                return TokenEffect::Continues(NumberState::Text(next));
            }
            Some(PieceEffect::Continues(_)) => None,
            Some(PieceEffect::TooLong) if self.may_be_admitted(state, id, rules) => {
                return TokenEffect::TooLong;
            }
            Some(PieceEffect::TooLong) => None,
            Some(PieceEffect::Completes(value)) => rules.value_of(value),
            Some(PieceEffect::Leaves { state, rest }) => rules.value_before(state, rest),
            None => {
                let ends = match rules.terminator {
                    Terminator::Any => true,
                    Terminator::Eos | Terminator::Texts(_) | Terminator::Json => rules.ending.contains(&id),
                };
                if ends { rules.value_at_end(state) } else { None }
            }
        };
        closing(value)
    }

    /// Splits the probability after `state`. Prunes the least probable tokens that touch the number, which
    /// have at most `prune` together.
    pub(super) fn expand(
        &self,
        state: TextState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
        prune: f64,
    ) -> Expansion {
        let mut expansion = Expansion::default();
        let mut seen = 0.0;
        let touching = self.touching(state.phase, rules).iter();
        let touching: Vec<(u32, f64)> =
            touching.filter_map(|&id| Some((id, softmax.reported(id)?))).collect();
        let least = prune_below(&touching, prune);
        for (id, probability) in touching {
            if probability < least {
                expansion.left_open += probability;
                seen += probability;
                continue;
            }
            match self.piece_effect(state, id, rules) {
                Some(PieceEffect::Continues(next)) if rules.values.are_reached_from(next) => {
                    expansion.children.push(Child::new(id, NumberState::Text(next), probability));
                }
                Some(PieceEffect::Continues(_)) => expansion.invalid += probability,
                Some(PieceEffect::TooLong) if self.may_be_admitted(state, id, rules) => {
                    expansion.left_open += probability;
                }
                Some(PieceEffect::TooLong) => expansion.invalid += probability,
                Some(PieceEffect::Completes(value)) => {
                    expansion.close(rules.value_of(value).map(Into::into), probability)
                }
                Some(PieceEffect::Leaves { state, rest }) => {
                    expansion.close(rules.value_before(state, rest).map(Into::into), probability);
                }
                None => continue,
            }
            seen += probability;
        }
        self.end(state, softmax, rules, seen, &mut expansion);
        expansion
    }

    /// Returns the ids whose effect may differ from [`Unreported::effect`] in any state, ascending: those
    /// that are worth a request to another engine. A word after a space, for example, begins no number, like
    /// all other words; vocabularies have tens of thousands of them.
    pub(super) fn distinct_ids(&self, rules: &NumberRules) -> Arc<[u32]> {
        let mut distinct = Vec::new();
        for &id in rules.read.iter() {
            let ends = self.eos_ids.contains(&id) || rules.ending.binary_search(&id).is_ok();
            if ends || Phase::ALL.iter().any(|&phase| self.is_distinct_in(phase, id, rules)) {
                distinct.push(id);
            }
        }
        distinct.into()
    }

    fn is_distinct_in(&self, phase: Phase, id: u32, rules: &NumberRules) -> bool {
        match self.piece_effect(TextState::at(phase), id, rules) {
            Some(PieceEffect::Leaves { rest, .. }) => match (self.piece(id), &rules.terminator) {
                // Without a digit the value stays, or there is none.
                (Some(NumberPiece::Text(text)), Terminator::Any | Terminator::Eos) => {
                    text[..text.len() - rest.len()].chars().any(char::is_numeric)
                }
                (Some(NumberPiece::Text(text)), Terminator::Texts(_) | Terminator::Json) => {
                    !matches!(phase, Phase::Start | Phase::Space | Phase::Sign)
                        || text[..text.len() - rest.len()].chars().any(char::is_numeric)
                }
                _ => true,
            },
            effect => effect.is_some(),
        }
    }

    /// Returns the ids of the tokens that continue a number after `state`, ascending.
    pub(super) fn continuing_ids(&self, state: TextState, rules: &NumberRules) -> Vec<u32> {
        let mut ids = self.touching(state.phase, rules).to_vec();
        ids.retain(|&id| matches!(self.effect(state, id, rules), TokenEffect::Continues(_)));
        ids
    }

    /// Returns the effect of the tokens that another engine does not report.
    pub(super) fn unreported(
        &self,
        state: TextState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
    ) -> Unreported {
        let (effect, ending): (_, &[u32]) = match rules.terminator {
            Terminator::Any => (closing(rules.value_at_end(state)), &[]),
            Terminator::Eos | Terminator::Texts(_) | Terminator::Json => {
                (TokenEffect::Invalid, &rules.ending)
            }
        };
        if !softmax.is_partial() {
            return Unreported { effect, other_max: 0.0 };
        }
        let is_other =
            |&&id: &&u32| softmax.reported(id).is_none() && self.effect(state, id, rules) != effect;
        let touching = self.touching(state.phase, rules);
        let only_ending = ending.iter().filter(|&id| touching.binary_search(id).is_err());
        let others = touching.iter().filter(is_other).count() + only_ending.filter(is_other).count();
        Unreported { effect, other_max: softmax.unreported_max(others) }
    }

    /// Returns the most probable ways from `state` to a text that is not an admitted number, at most `count`,
    /// best first. Before the digits, this needs the logits of all tokens.
    pub(super) fn refused(
        &self,
        state: TextState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
        count: usize,
    ) -> Vec<Refused> {
        if state.is_before_digits() {
            return self.refused_tokens(self.ids(), state, softmax, rules, count);
        }
        let touching = self.touching(state.phase, rules);
        let mut best = self.refused_tokens(touching.iter().copied(), state, softmax, rules, count);
        let seen = touching.iter().map(|&id| softmax.probability(id)).sum();
        let mut rest = Expansion::default();
        self.end(state, softmax, rules, seen, &mut rest);
        let is_value = state.value_before_punctuation().is_some() && rules.terminator == Terminator::Any;
        let end = if is_value { RefusedEnd::Value } else { RefusedEnd::Others };
        offer(&mut best, Refused { end, probability: rest.invalid }, count);
        best
    }

    /// Returns the most probable of these tokens that are invalid, at most `count`, best first.
    fn refused_tokens(
        &self,
        ids: impl Iterator<Item = u32>,
        state: TextState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
        count: usize,
    ) -> Vec<Refused> {
        let mut best = Vec::new();
        for id in ids {
            let probability = softmax.probability(id);
            // The effect takes longer to find than the probability.
            if probability > least(&best, count) && self.effect(state, id, rules) == TokenEffect::Invalid {
                offer(&mut best, Refused { end: RefusedEnd::Token(id), probability }, count);
            }
        }
        best
    }

    /// Adds the tokens that do not touch the number: they end it or are invalid. `seen`: probability of the
    /// others.
    fn end(
        &self,
        state: TextState,
        softmax: &Softmax<'_>,
        rules: &NumberRules,
        seen: f64,
        expansion: &mut Expansion,
    ) {
        let left = (1.0 - seen).max(0.0);
        let unreported = self.unreported(state, softmax, rules).other_max.min(left);
        let left = left - unreported;
        expansion.unreported += unreported;
        expansion.left_open += unreported;
        let ended = match rules.terminator {
            // Also ids that the tokenizer does not know: another engine reports them as a part of the rest.
            Terminator::Any => left,
            Terminator::Eos | Terminator::Texts(_) | Terminator::Json => {
                let ended = rules.ending.iter().filter(|&&id| self.piece_effect(state, id, rules).is_none());
                ended.map(|&id| softmax.probability(id)).sum::<f64>().min(left)
            }
        };
        expansion.close(rules.value_at_end(state).map(Into::into), ended);
        expansion.invalid += left - ended;
    }

    /// Returns `None` if the id contains no part of the number.
    fn piece_effect(&self, state: TextState, id: u32, rules: &NumberRules) -> Option<PieceEffect<'_>> {
        if self.eos_ids.contains(&id) {
            return None;
        }
        state.read_piece(self.piece(id)?, rules.limits)
    }

    /// Returns whether an admitted number may begin with a prefix that is longer than the limits.
    fn may_be_admitted(&self, state: TextState, id: u32, rules: &NumberRules) -> bool {
        let read = self.piece(id).and_then(|piece| state.read_piece(piece, rules.limits.largest()));
        match read {
            Some(PieceEffect::Continues(next)) => rules.values.are_reached_from(next),
            _ => true,
        }
    }

    /// The ids that could continue a number in this phase.
    fn touching<'a>(&'a self, phase: Phase, rules: &'a NumberRules) -> &'a [u32] {
        match &rules.separating {
            Some(ids) if phase == Phase::Integer => ids,
            _ => &self.touching[phase as usize],
        }
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        (0u32..).take(self.pieces.len())
    }

    fn piece(&self, id: u32) -> Option<&NumberPiece> {
        self.pieces.get(id as usize)?.as_ref()
    }
}

pub(crate) fn sorted_unique<'a>(ids: impl Iterator<Item = &'a u32>) -> Arc<[u32]> {
    ids.copied().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The probability that a text must exceed to be among the `count` best.
fn least(best: &[Refused], count: usize) -> f64 {
    best.get(count - 1).map_or(0.0, |last| last.probability)
}

/// Adds a text to the `count` best if it is one of them.
fn offer(best: &mut Vec<Refused>, refused: Refused, count: usize) {
    if refused.probability > least(best, count) {
        let at = best.partition_point(|better| better.probability >= refused.probability);
        best.insert(at, refused);
        best.truncate(count);
    }
}

fn closing(value: Option<Decimal>) -> TokenEffect {
    value.map_or(TokenEffect::Invalid, |value| TokenEffect::Closes(value.into()))
}

/// A probability below which all tokens together have at most `mass`.
pub(super) fn prune_below(tokens: &[(u32, f64)], mass: f64) -> f64 {
    // The first candidate is the mass that one token alone could have. At the last one, no number of tokens
    // reaches it.
    let mut least = mass;
    for _ in 0..12 {
        let below: f64 = tokens.iter().map(|&(_, p)| if p < least { p } else { 0.0 }).sum();
        if below <= mass {
            return least;
        }
        least /= 4.0;
    }
    0.0
}

/// Ids that begin with something that belongs to a number in this phase, in rising order.
fn touching_ids(
    pieces: &[Option<NumberPiece>],
    eos_ids: &[u32],
    phase: Phase,
    limits: GrammarLimits,
) -> Vec<u32> {
    let mut ids = Vec::new();
    for (id, piece) in (0u32..).zip(pieces) {
        if let Some(piece) = piece
            && TextState::at(phase).read_piece(piece, limits).is_some()
            && !eos_ids.contains(&id)
        {
            ids.push(id);
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: [Option<&str>; 14] = [
        None, // 0: padding
        None, // 1: end of sequence
        Some("5"),
        Some("12"),
        Some(" 7"),
        Some(" -"),
        Some("-3"),
        Some("."),
        Some(".5"),
        Some(" "),
        Some("\n"),
        Some("0 eggs"),
        Some("x"),
        Some("５"),
    ];

    fn grammar() -> TextGrammar {
        TextGrammar::new(PIECES.map(|text| text.map(str::to_owned)), vec![1])
    }

    /// Expands after `prefix` under a uniform distribution over 14 tokens and two ids that the tokenizer does
    /// not know.
    fn expand(prefix: &str, terminator: Terminator) -> (Vec<u32>, Vec<(String, f64)>, f64, f64) {
        let grammar = grammar();
        let rules = grammar.rules(GrammarLimits::new(3, 2, true).unwrap(), terminator, NumberValues::All);
        let PieceEffect::Continues(state) = TextState::START.read(prefix, rules.limits) else {
            panic!("{prefix} is no beginning of a number")
        };
        let logits = [0.0_f32; 16];
        let expansion = grammar.expand(state, &Softmax::new(&logits).unwrap(), &rules, 0.0);
        let children: f64 = expansion.children.iter().map(|child| child.probability).sum();
        let closed: f64 = expansion.closed.iter().map(|closing| closing.probability).sum();
        let total = children + closed + expansion.invalid + expansion.left_open;
        assert!((total - 1.0).abs() < 1e-12, "{prefix:?}: {total}");
        assert_same_one_by_one(&expansion, |id| grammar.effect(state, id, &rules));
        (
            expansion.children.iter().map(|child| child.token).collect(),
            expansion.closed.iter().map(|c| (c.value.to_string(), (c.probability * 16.0).round())).collect(),
            (expansion.invalid * 16.0).round(),
            (expansion.left_open * 16.0).round(),
        )
    }

    /// Under a uniform distribution over 16 ids, the effects of single tokens add up to the expansion.
    fn assert_same_one_by_one(expansion: &Expansion, effect: impl Fn(u32) -> TokenEffect) {
        let mut closed = 0.0;
        let mut invalid = 0.0;
        let mut too_long = 0.0;
        let mut children = Vec::new();
        for id in 0..16 {
            match effect(id) {
                TokenEffect::Continues(next) => children.push((id, next)),
                TokenEffect::Closes(_) => closed += 1.0 / 16.0,
                TokenEffect::Invalid => invalid += 1.0 / 16.0,
                TokenEffect::TooLong => too_long += 1.0 / 16.0,
                TokenEffect::Completes { .. } => panic!("a text is one number"),
            }
        }
        let expanded: Vec<_> = expansion.children.iter().map(|child| (child.token, child.state)).collect();
        assert_eq!(children, expanded);
        let sum: f64 = expansion.closed.iter().map(|closing| closing.probability).sum();
        for (one_by_one, at_once) in
            [(closed, sum), (invalid, expansion.invalid), (too_long, expansion.left_open)]
        {
            assert!((one_by_one - at_once).abs() < 1e-9, "{one_by_one} {at_once}");
        }
    }

    fn closed(rows: &[(&str, f64)]) -> Vec<(String, f64)> {
        rows.iter().map(|&(text, weight)| (text.to_owned(), weight)).collect()
    }

    #[test]
    fn a_number_begins_with_a_digit_a_space_or_a_minus() {
        let (children, ended, invalid, too_long) = expand("", Terminator::Any);
        assert_eq!(children, [2, 3, 4, 5, 6, 9]);
        assert_eq!(ended, closed(&[("0", 1.0)]), "`0 eggs` is the number 0 and what ends it");
        assert_eq!((invalid, too_long), (9.0, 0.0));
    }

    #[test]
    fn another_engine_is_asked_only_about_tokens_that_differ_from_all_others() {
        let pieces =
            ["5", " the", " 5 eggs", ".", ".The", "- ", "x", "0 eggs"].map(|text| Some(text.to_owned()));
        let grammar = TextGrammar::new(pieces, vec![9]);
        for terminator in [Terminator::Any, Terminator::Eos] {
            let rules = grammar.rules(GrammarLimits::default(), terminator, NumberValues::All);
            assert_eq!(grammar.distinct_ids(&rules)[..], [0, 2, 3, 7, 9]);
            assert_eq!(rules.read_ids().len(), 8, "all but `x`");
        }
        let texts = Terminator::Texts(vec!["T".to_owned()]);
        let rules = grammar.rules(GrammarLimits::default(), texts, NumberValues::All);
        assert_eq!(grammar.distinct_ids(&rules)[..], [0, 2, 3, 4, 7, 9]);
    }

    #[test]
    fn any_other_id_ends_a_complete_number_also_one_that_the_tokenizer_does_not_know() {
        let (children, ended, invalid, too_long) = expand("4", Terminator::Any);
        assert_eq!(children, [2, 3, 7, 8]);
        assert_eq!(ended, closed(&[("40", 1.0), ("4", 11.0)]));
        assert_eq!((invalid, too_long), (0.0, 0.0));
    }

    #[test]
    fn only_the_end_of_sequence_ends_a_number_if_requested() {
        let (_, ended, invalid, _) = expand("4", Terminator::Eos);
        assert_eq!((ended, invalid), (closed(&[("4", 1.0)]), 11.0));
        let (_, ended, invalid, _) = expand("4.", Terminator::Eos);
        assert_eq!((ended, invalid), (vec![], 14.0), "`4.` is not complete");
    }

    #[test]
    fn listed_texts_end_a_number_also_inside_a_token() {
        let texts = |texts: &[&str]| Terminator::Texts(texts.iter().map(|&text| text.to_owned()).collect());
        assert_eq!(expand("4", texts(&["\n"])).1, closed(&[("4", 2.0)]));
        assert_eq!(expand("4", texts(&[" "])).1, closed(&[("40", 1.0), ("4", 4.0)]));
        assert_eq!(expand("4", texts(&["."])).0, [2, 3, 7, 8], "what can continue a number does");
    }

    #[test]
    fn in_json_white_space_ends_a_number_and_a_word_after_it_does_not() {
        let ends = |text: &str| Terminator::Json.is_text(text);
        assert!([",", "}", "]", " ", "\n\t ", " ,", "\n}", ",\""].into_iter().all(ends));
        assert!(!["", "x", " x", ".", "%", " 4", ";"].into_iter().any(ends));
    }

    #[test]
    fn a_full_stop_ends_a_sentence_only_if_anything_may_follow() {
        assert_eq!(expand("4.", Terminator::Any).1, closed(&[("4", 1.0), ("4", 13.0)]), "`4.0 eggs`, `4. `");
    }

    #[test]
    fn the_least_probable_tokens_are_forgotten_only_while_they_are_few() {
        let tokens: Vec<(u32, f64)> = (0..100).map(|id| (id, f64::from(id) * 1e-4)).collect();
        for mass in [0.0, 1e-4, 1e-3, 0.05, 1.0] {
            let least = prune_below(&tokens, mass);
            let forgotten: f64 = tokens.iter().filter(|token| token.1 < least).map(|token| token.1).sum();
            assert!(forgotten <= mass, "{forgotten} of {mass}");
            assert!(mass < 1e-3 || forgotten > mass / 20.0, "only {forgotten} of {mass}");
        }
    }

    #[test]
    fn a_space_continues_digits_only_if_it_separates_thousands() {
        let grammar = grammar();
        let limits = GrammarLimits::default();
        for (limits, continues) in [(limits, false), (limits.with_thousands(' ').unwrap(), true)] {
            let rules = grammar.rules(limits, Terminator::Any, NumberValues::All);
            let Some(NumberState::Text(state)) = rules.state_after("4") else { panic!("4") };
            let effect = grammar.effect(state, 4, &rules);
            assert_eq!(matches!(effect, TokenEffect::Continues(_)), continues, "` 7` after `4`: {effect:?}");
        }
    }

    #[test]
    fn digits_beyond_the_limits_stay_open() {
        let (children, _, _, too_long) = expand("123", Terminator::Any);
        assert_eq!((children, too_long), (vec![7, 8], 3.0), "`5`, `12` and `0 eggs` would be a fourth digit");
        let (children, _, _, too_long) = expand("1.2", Terminator::Any);
        assert_eq!((children, too_long), (vec![2], 1.0), "`12` has one decimal too many");
    }
}
