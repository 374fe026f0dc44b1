//! Completes drawn prefixes with tokens drawn from the model.
//!
//! A draw begins with the weight 1. At each of its prefixes, the numbers that end there get their share of
//! the weight. One longer prefix, drawn in proportion to its probability, gets the rest. So sums over numbers
//! are unbiased, and the weights of a draw add up to 1. Draws at the same prefix share its row. They use
//! random numbers in the order of prefixes, so results do not depend on the rows of a step.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::super::{Progress, RowResult, StepResult};
use super::open_prefixes::{Draw, DrawnPrefix, DrawnPrefixes};
use crate::contract::{Continuation, EngineError, LogitsRequest, NumberOutcome, PathRow};
use crate::numbers::{
    Child, Distribution, DrawnNumber, Expansion, NumberGrammar, NumberRules, NumberState, NumberValue,
    SampledDistribution,
};

/// Minimum weight with which a draw continues in any case. If less would be left, the draw continues with the
/// probability of longer prefixes and keeps its weight, so that draws are not much longer than numbers.
const WEIGHT_MIN: f64 = 0.1;

/// A part of a draw that is a number.
struct Completed {
    draw: Draw,
    /// Which of the numbers of an answer it is.
    output: usize,
    value: NumberValue,
}

pub(in super::super) struct Completions {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    logits: LogitsRequest,
    rng: ChaCha8Rng,
    /// First in, first out.
    prefixes: VecDeque<DrawnPrefix>,
    /// See [`DrawnPrefixes::outputs`].
    outputs: Vec<usize>,
    /// The mass of each draw.
    share: f64,
    in_step: usize,
    completed: Vec<Completed>,
    /// The weight of texts that are too long or not reported.
    open: f64,
    nodes: usize,
    forward_passes: usize,
}

impl Completions {
    pub(super) fn new(
        grammar: Arc<NumberGrammar>,
        rules: NumberRules,
        logits: LogitsRequest,
        drawn: DrawnPrefixes,
    ) -> Self {
        let DrawnPrefixes { prefixes, outputs, share, rng } = drawn;
        Self {
            grammar,
            rules,
            logits,
            rng,
            prefixes,
            outputs,
            share,
            in_step: 0,
            completed: Vec::new(),
            open: 0.0,
            nodes: 0,
            forward_passes: 0,
        }
    }

    pub(in super::super) fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.in_step = self.prefixes.len().min(rows_max);
        let mut rows = Vec::with_capacity(self.in_step);
        for prefix in self.prefixes.iter().take(self.in_step) {
            let row = prefix.row.clone().with_logits(self.logits.clone());
            rows.push(PathRow { continuation: Continuation::Unlikely, ..row });
        }
        rows
    }

    /// Takes the logits of the rows of the last step.
    pub(in super::super) fn step(&mut self, result: StepResult<'_>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        self.nodes += self.in_step;
        let stepped: Vec<DrawnPrefix> = self.prefixes.drain(..self.in_step).collect();
        for (row, prefix) in stepped.into_iter().enumerate() {
            self.extend(prefix, result.row(row))?;
        }
        Ok(if self.prefixes.is_empty() { Progress::Done } else { Progress::Running })
    }

    fn extend(&mut self, prefix: DrawnPrefix, row: RowResult<'_>) -> Result<(), EngineError> {
        let state = prefix.state.with_head_value(row.head_value);
        let expansion = self.grammar.expand(state, &row.softmax()?, &self.rules, 0.0);
        let longer: f64 = expansion.children.iter().map(|child| child.probability).sum();
        let mut followed: BTreeMap<usize, Vec<Draw>> = BTreeMap::new();
        for draw in prefix.draws {
            let point = self.rng.random::<f64>();
            let rest = draw.weight * longer;
            let (ended, left) = if rest >= WEIGHT_MIN {
                (draw.weight, rest)
            } else if point < longer {
                (0.0, draw.weight)
            } else {
                (draw.weight / (1.0 - longer), 0.0)
            };
            self.end(&expansion, state, Draw { weight: ended, ..draw });
            if left > 0.0 {
                let child = chosen(&expansion.children, self.rng.random::<f64>() * longer);
                followed.entry(child).or_default().push(Draw { weight: left, ..draw });
            }
        }
        for (child, draws) in followed {
            let Child { token, state: next, completed, .. } = expansion.children[child];
            if let Some(value) = completed {
                let output = state.output();
                self.completed.extend(draws.iter().map(|&draw| Completed { draw, output, value }));
            }
            let row = PathRow::new(Some(row.node), token);
            self.prefixes.push_back(DrawnPrefix { row, state: next, draws });
        }
        Ok(())
    }

    /// Adds the numbers that end after `state`.
    fn end(&mut self, expansion: &Expansion, state: NumberState, draw: Draw) {
        self.open += draw.weight * expansion.left_open;
        if draw.weight > 0.0 {
            for closing in &expansion.closed {
                let draw = Draw { weight: draw.weight * closing.probability, ..draw };
                self.completed.push(Completed { draw, output: state.output(), value: closing.value });
            }
        }
    }

    /// Size in memory, in bytes.
    pub(in super::super) fn bytes(&self) -> usize {
        let draws: usize = self.prefixes.iter().map(|prefix| prefix.draws.capacity()).sum();
        self.prefixes.capacity() * size_of::<DrawnPrefix>()
            + draws * size_of::<Draw>()
            + self.outputs.capacity() * size_of::<usize>()
            + self.completed.capacity() * size_of::<Completed>()
    }

    /// Adds the draws to the outcome of the tree. Masses and bounds stay as they are.
    pub(in super::super) fn outcome(&self, found: NumberOutcome) -> NumberOutcome {
        let distributions = std::iter::once(&found.distribution).chain(&found.further);
        let each = distributions.enumerate().map(|(output, found)| self.sampled(output, found));
        NumberOutcome {
            sampled: each.collect(),
            nodes: found.nodes + self.nodes,
            forward_passes: found.forward_passes + self.forward_passes,
            ..found
        }
    }

    /// The distribution of one number of the answer.
    fn sampled(&self, output: usize, found: &Distribution) -> SampledDistribution {
        let own = self.completed.iter().filter(|completed| completed.output == output);
        let drawn = own.map(|Completed { draw, value, .. }| DrawnNumber {
            draw: draw.number,
            value: *value,
            mass: self.share * draw.weight,
        });
        // The other draws are of prefixes that contain the whole number, which the tree has found.
        let draws = self.outputs.iter().filter(|&&begun| begun <= output).count();
        let left = found.mass().open - self.share * draws as f64;
        // Only numbers in text can be too long, and these are the only ones of their answers.
        let open = left.max(0.0) + self.share * self.open;
        SampledDistribution::new(found, drawn.collect(), draws as u32, open)
    }
}

/// The index of the child at a point of their probabilities.
fn chosen(children: &[Child], point: f64) -> usize {
    let mut below = 0.0;
    let reached = children.iter().position(|child| {
        below += child.probability;
        point < below
    });
    reached.unwrap_or(children.len() - 1)
}
