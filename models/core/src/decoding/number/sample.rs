//! Numbers sampled from the model's own distribution. Samples with the same prefix share their rows.
//!
//! A draw goes through the whole vocabulary in the order of ids, so that a seed gives the same numbers on
//! every backend. Rows therefore request all logits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::{Decoding, Progress, StepResult, not_a_distribution};
use super::Root;
use crate::contract::{EngineError, Event, NodeId, NumberOutcome, PathRow};
use crate::numbers::{Decimal, Distribution, NumberGrammar, NumberRules, NumberState, Softmax, TokenEffect};

/// Each sample has an equal share of the mass.
pub(super) struct NumberSample {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    rng: ChaCha8Rng,
    /// One sample's share of the mass.
    share: f64,
    /// Open prefixes, first in, first out, so that the order of draws does not depend on the rows of a step.
    prefixes: VecDeque<SampledPrefix>,
    in_step: usize,
    closed: HashMap<Decimal, f64>,
    invalid: f64,
    open: f64,
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
        grammar: Arc<NumberGrammar>,
        rules: NumberRules,
        count: u32,
        seed: u64,
        stream: u64,
        root: Root,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self {
            grammar,
            rules,
            rng,
            share: 1.0 / f64::from(count.max(1)),
            prefixes: VecDeque::from([SampledPrefix { row: root.row, state: root.state, draws: count }]),
            in_step: 0,
            closed: HashMap::new(),
            invalid: 0.0,
            open: 0.0,
            nodes: 0,
            forward_passes: 0,
        }
    }

    fn extend(&mut self, prefix: &SampledPrefix, logits: &[f32], node: NodeId) -> Result<(), EngineError> {
        let softmax = Softmax::new(logits).ok_or_else(not_a_distribution)?;
        for (token, draws) in draw(&mut self.rng, &softmax, logits.len(), prefix.draws) {
            let mass = self.share * f64::from(draws);
            match self.grammar.effect(prefix.state, token, &self.rules) {
                TokenEffect::Continues(state) => {
                    let row = PathRow::new(Some(node), token);
                    self.prefixes.push_back(SampledPrefix { row, state, draws });
                }
                TokenEffect::Closes(value) => *self.closed.entry(value).or_default() += mass,
                TokenEffect::Invalid => self.invalid += mass,
                TokenEffect::TooLong => self.open += mass,
            }
        }
        Ok(())
    }
}

/// Draws `count` tokens in one pass over the vocabulary. Returns how often each was drawn.
fn draw(rng: &mut ChaCha8Rng, softmax: &Softmax<'_>, vocab: usize, count: u32) -> BTreeMap<u32, u32> {
    let mut points: Vec<f64> = (0..count).map(|_| rng.random()).collect();
    points.sort_by(f64::total_cmp);
    let mut drawn = BTreeMap::new();
    let mut below = 0.0;
    let mut next = 0;
    let mut last_possible = 0;
    for id in 0..vocab as u32 {
        let probability = softmax.probability(id);
        below += probability;
        last_possible = if probability > 0.0 { id } else { last_possible };
        let reached = points[next..].iter().take_while(|&&point| point < below).count();
        if reached > 0 {
            *drawn.entry(id).or_default() += reached as u32;
            next += reached;
        }
    }
    // Rounding may leave the whole a little below 1.
    if next < points.len() {
        *drawn.entry(last_possible).or_default() += (points.len() - next) as u32;
    }
    drawn
}

impl Decoding for NumberSample {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step = self.prefixes.len().min(rows_max);
        self.prefixes.iter().take(self.in_step).map(|prefix| prefix.row.clone()).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        self.nodes += self.in_step;
        let stepped: Vec<SampledPrefix> = self.prefixes.drain(..self.in_step).collect();
        for (row, prefix) in stepped.into_iter().enumerate() {
            let row = result.row(row);
            let state = prefix.state.with_head_value(row.head_value);
            self.extend(&SampledPrefix { state, ..prefix }, row.full()?, row.node)?;
        }
        if !self.prefixes.is_empty() {
            return Ok(Progress::Running);
        }
        let distribution = Distribution::new(&self.closed, self.invalid, self.open);
        events.push(Event::Number(NumberOutcome::new(distribution, self.nodes, self.forward_passes)));
        Ok(Progress::Done)
    }
}
