//! Numbers sampled from the model's own distribution. Samples with the same prefix share their rows.
//!
//! A draw goes through the whole vocabulary in the order of ids, so that a seed gives the same numbers on
//! every backend. Rows therefore request all logits. Dedicated number tokens are drawn as their reference
//! implementation does. In the reports of another engine, a draw goes through
//! the reported ids. The others have one effect on the number, or are open.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::{Decoding, Progress, RowResult, StepResult, Vocabulary};
use super::Root;
use crate::contract::{EngineError, Event, LogitsRequest, LogitsRow, NumberOutcome, PathRow};
use crate::numbers::{
    Distribution, NumberGrammar, NumberRules, NumberState, NumberValue, Softmax, TokenEffect,
};
use crate::sampling::SamplingParams;

/// Each sample has an equal share of the mass.
pub(super) struct NumberSample {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    logits: LogitsRequest,
    rng: ChaCha8Rng,
    /// One sample's share of the mass.
    share: f64,
    /// Open prefixes, first in, first out, so that the order of draws does not depend on the rows of a step.
    prefixes: VecDeque<SampledPrefix>,
    in_step: usize,
    sampling: SamplingParams,
    closed: HashMap<NumberValue, f64>,
    /// The numbers before the last one, if an answer consists of several.
    earlier: Vec<HashMap<NumberValue, f64>>,
    invalid: f64,
    open: f64,
    /// The part of `open` that another engine does not report.
    unreported: f64,
    nodes: usize,
    forward_passes: usize,
}

/// A text that some of the samples begin with.
struct SampledPrefix {
    row: PathRow,
    state: NumberState,
    draws: u32,
}

impl NumberSample {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        rules: NumberRules,
        count: u32,
        sampling: SamplingParams,
        stream: u64,
        root: Root,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        rng.set_stream(stream);
        let logits = if root.is_reported {
            LogitsRequest::Ids(Arc::clone(rules.read_ids()))
        } else {
            LogitsRequest::All
        };
        Self {
            grammar: Arc::clone(&vocabulary.grammar),
            logits,
            rules,
            rng,
            share: 1.0 / f64::from(count.max(1)),
            prefixes: VecDeque::from([SampledPrefix { row: root.row, state: root.state, draws: count }]),
            in_step: 0,
            sampling,
            closed: HashMap::new(),
            earlier: vec![HashMap::new(); vocabulary.grammar.outputs() - 1],
            invalid: 0.0,
            open: 0.0,
            unreported: 0.0,
            nodes: 0,
            forward_passes: 0,
        }
    }

    fn extend(&mut self, prefix: &SampledPrefix, row: RowResult<'_>) -> Result<(), EngineError> {
        let softmax = row.softmax()?;
        let mut points: Vec<f64> = (0..prefix.draws).map(|_| self.rng.random()).collect();
        points.sort_by(f64::total_cmp);
        let drawn = match row.logits {
            LogitsRow::Report(report) => {
                let ids = report.tokens().iter().map(|token| token.id);
                let drawn = draw(&points, probabilities(&softmax, ids));
                let unreported = self.grammar.unreported(prefix.state, &softmax, &self.rules);
                let other_end = drawn.mass + unreported.other_max;
                let others = drawn.left.iter().filter(|&&point| point < other_end).count();
                let mass = self.share * others as f64;
                self.open += mass;
                self.unreported += mass;
                self.count(unreported.effect, (drawn.left.len() - others) as u32);
                drawn
            }
            _ => {
                let logits = row.full()?;
                let weighed = self.grammar.draws(prefix.state, logits, &self.rules, &self.sampling);
                let mut drawn = match weighed {
                    Some(tokens) => draw(&points, tokens.into_iter()),
                    None => draw(&points, probabilities(&softmax, 0..logits.len() as u32)),
                };
                // Rounding may leave the whole a little below 1.
                match drawn.last_possible {
                    Some(last) if !drawn.left.is_empty() => {
                        *drawn.ids.entry(last).or_default() += drawn.left.len() as u32;
                    }
                    Some(_) => {}
                    None => self.count(TokenEffect::Invalid, drawn.left.len() as u32),
                }
                drawn
            }
        };
        for (token, draws) in drawn.ids {
            match self.grammar.effect(prefix.state, token, &self.rules) {
                TokenEffect::Continues(state) => self.follow(row, token, state, draws),
                TokenEffect::Completes { value, next } => {
                    if let Some(earlier) = self.earlier.get_mut(prefix.state.output()) {
                        *earlier.entry(value).or_default() += self.share * f64::from(draws);
                    }
                    self.follow(row, token, next, draws);
                }
                effect => self.count(effect, draws),
            }
        }
        Ok(())
    }

    /// Continues with a longer text.
    fn follow(&mut self, row: RowResult<'_>, token: u32, state: NumberState, draws: u32) {
        let row = PathRow::new(Some(row.node), token);
        self.prefixes.push_back(SampledPrefix { row, state, draws });
    }

    /// Counts draws of a token that ends the number.
    fn count(&mut self, effect: TokenEffect, draws: u32) {
        let mass = self.share * f64::from(draws);
        match effect {
            TokenEffect::Closes(value) if draws > 0 => *self.closed.entry(value).or_default() += mass,
            TokenEffect::Closes(_) => {}
            TokenEffect::Invalid => self.invalid += mass,
            TokenEffect::TooLong | TokenEffect::Continues(_) | TokenEffect::Completes { .. } => {
                self.open += mass;
            }
        }
    }

    fn outcome(&self) -> NumberOutcome {
        let last = Distribution::new(&self.closed, self.invalid, self.open);
        let earlier = self.earlier.iter().map(|closed| {
            // Every draw that completed no number is invalid.
            let invalid = (1.0 - closed.values().sum::<f64>()).max(0.0);
            Distribution::new(closed, invalid, 0.0)
        });
        let mut all = earlier.chain([last]);
        let first = all.next().unwrap_or_else(|| Distribution::average(&[]));
        let outcome = NumberOutcome::new(first, self.nodes, self.forward_passes);
        NumberOutcome { unreported: self.unreported, further: all.collect(), ..outcome }
    }
}

struct Drawn<'a> {
    /// The number of draws of each id.
    ids: BTreeMap<u32, u32>,
    /// The probability of all ids.
    mass: f64,
    /// The points at and beyond `mass`.
    left: &'a [f64],
    /// The last id that has a probability.
    last_possible: Option<u32>,
}

fn probabilities(softmax: &Softmax<'_>, ids: impl Iterator<Item = u32>) -> impl Iterator<Item = (u32, f64)> {
    ids.map(|id| (id, softmax.probability(id)))
}

/// Draws one of the tokens for each point (ascending).
fn draw(points: &[f64], tokens: impl Iterator<Item = (u32, f64)>) -> Drawn<'_> {
    let mut drawn = Drawn { ids: BTreeMap::new(), mass: 0.0, left: points, last_possible: None };
    for (id, probability) in tokens {
        drawn.mass += probability;
        drawn.last_possible = if probability > 0.0 { Some(id) } else { drawn.last_possible };
        let reached = drawn.left.iter().take_while(|&&point| point < drawn.mass).count();
        if reached > 0 {
            *drawn.ids.entry(id).or_default() += reached as u32;
            drawn.left = &drawn.left[reached..];
        }
    }
    drawn
}

impl Decoding for NumberSample {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step = self.prefixes.len().min(rows_max);
        let prefixes = self.prefixes.iter().take(self.in_step);
        prefixes.map(|prefix| prefix.row.clone().with_logits(self.logits.clone())).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        self.nodes += self.in_step;
        let stepped: Vec<SampledPrefix> = self.prefixes.drain(..self.in_step).collect();
        for (row, prefix) in stepped.into_iter().enumerate() {
            let row = result.row(row);
            let state = prefix.state.with_head_value(row.head_value);
            self.extend(&SampledPrefix { state, ..prefix }, row)?;
        }
        if !self.prefixes.is_empty() {
            return Ok(Progress::Running);
        }
        events.push(Event::Number(self.outcome()));
        Ok(Progress::Done)
    }
}
