//! Numbers drawn from the model as it is. Draws that begin alike share their rows.
//!
//! A draw goes through the whole vocabulary in the order of ids, so that a seed gives the same numbers wherever the model runs:
//! rows want all of their logits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::{Decoding, Progress, StepResult, not_a_distribution};
use super::Root;
use crate::engine::{EngineError, Event, NodeId, NumberOutcome, PathRow};
use crate::numbers::{Decimal, Distribution, Effect, NumberGrammar, NumberRules, NumberState, Softmax};

/// Draws numbers; each counts as one part of the mass.
pub(super) struct NumberSample {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    rng: ChaCha8Rng,
    /// One draw's share of the mass.
    share: f64,
    /// Beginnings that go on, first come, first served: so the order of draws is the same at any width.
    beginnings: VecDeque<Beginning>,
    in_step: usize,
    closed: HashMap<Decimal, f64>,
    invalid: f64,
    open: f64,
    nodes: usize,
    forward_passes: usize,
}

/// A text that some of the draws begin with.
struct Beginning {
    row: PathRow,
    state: NumberState,
    draws: u32,
}

impl NumberSample {
    /// `draws`: how many, seed, stream of random numbers.
    pub(super) fn new(
        grammar: Arc<NumberGrammar>,
        rules: NumberRules,
        draws: (u32, u64, u64),
        root: Root,
    ) -> Self {
        let (count, seed, stream) = draws;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self {
            grammar,
            rules,
            rng,
            share: 1.0 / f64::from(count.max(1)),
            beginnings: VecDeque::from([Beginning { row: root.row, state: root.state, draws: count }]),
            in_step: 0,
            closed: HashMap::new(),
            invalid: 0.0,
            open: 0.0,
            nodes: 0,
            forward_passes: 0,
        }
    }

    fn extend(&mut self, beginning: &Beginning, logits: &[f32], node: NodeId) -> Result<(), EngineError> {
        let softmax = Softmax::new(logits).ok_or_else(not_a_distribution)?;
        for (token, draws) in draw(&mut self.rng, &softmax, logits.len(), beginning.draws) {
            let mass = self.share * f64::from(draws);
            match self.grammar.effect(beginning.state, token, &self.rules) {
                Effect::Continues(state) => {
                    let row = PathRow::new(Some(node), token);
                    self.beginnings.push_back(Beginning { row, state, draws });
                }
                Effect::Closes(value) => *self.closed.entry(value).or_default() += mass,
                Effect::Invalid => self.invalid += mass,
                Effect::TooLong => self.open += mass,
            }
        }
        Ok(())
    }
}

/// Draws `count` tokens in one pass over the vocabulary; how often each came.
fn draw(rng: &mut ChaCha8Rng, softmax: &Softmax<'_>, vocab: usize, count: u32) -> BTreeMap<u32, u32> {
    let mut points: Vec<f64> = (0..count).map(|_| rng.random()).collect();
    points.sort_by(f64::total_cmp);
    let (mut drawn, mut below, mut next) = (BTreeMap::new(), 0.0, 0);
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
        self.in_step = self.beginnings.len().min(rows_max);
        self.beginnings.iter().take(self.in_step).map(|beginning| beginning.row.clone()).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        self.nodes += self.in_step;
        let stepped: Vec<Beginning> = self.beginnings.drain(..self.in_step).collect();
        for (row, beginning) in stepped.into_iter().enumerate() {
            let row = result.row(row);
            let state = beginning.state.with_head(row.head_value);
            self.extend(&Beginning { state, ..beginning }, row.full()?, row.node)?;
        }
        if !self.beginnings.is_empty() {
            return Ok(Progress::Running);
        }
        let distribution = Distribution::new(&self.closed, self.invalid, self.open);
        events.push(Event::Number(NumberOutcome::new(distribution, self.nodes, self.forward_passes)));
        Ok(Progress::Done)
    }
}
