//! The number tree: exact expansion of all texts that are numbers, the most probable prefix first.
//!
//! Rows are *computed* ahead of need, as many at once as a step takes; they are *counted* strictly one by one,
//! always the most probable open prefix next. So the answer is the same for any batch and any width, and
//! computing ahead costs rows but never changes a digit.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::{Decoding, Progress, StepResult, not_a_distribution};
use crate::engine::{EngineError, Event, NodeId, NumberJob, NumberOutcome, PathRow};
use crate::numbers::{Closing, Decimal, Distribution, NumberGrammar, NumberRules, NumberState, Softmax};

/// Most rows that one tree asks for in a step. Beyond this most rows would be computed too early to be needed.
const WIDTH: usize = 16;

/// The most improbable prefixes are not even remembered, their mass stays open. All that a whole tree forgets is at
/// most this share of its tolerance.
const FORGET: f64 = 0.1;

/// Expands the tree of one request.
pub struct NumberTree {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    tolerance: f64,
    nodes_max: usize,
    nodes: Vec<Prefix>,
    /// What follows the prefixes that are computed but not counted yet.
    computed: HashMap<usize, Computed>,
    /// Prefixes whose logits are not computed yet, whatever became of their parents.
    to_compute: BinaryHeap<Ranked>,
    /// Prefixes whose parent is counted and that are not counted themselves.
    to_count: BinaryHeap<Ranked>,
    in_step: Vec<usize>,
    /// Open mass if everything computed so far were counted.
    open_ahead: f64,
    counted: Counted,
    forward_passes: usize,
}

/// A text that may become a number.
struct Prefix {
    row: PathRow,
    state: NumberState,
    probability: f64,
}

/// What follows a prefix. Probabilities are of the whole text, not given the prefix.
struct Computed {
    children: Vec<usize>,
    closed: Vec<Closing>,
    invalid: f64,
    /// Too long, or too improbable to be remembered.
    left_open: f64,
}

#[derive(Default)]
struct Counted {
    closed: HashMap<Decimal, f64>,
    invalid: f64,
    open: f64,
    nodes: usize,
    queued: usize,
}

/// A prefix in a queue: the most probable first, of equals the one that was queued first.
struct Ranked {
    probability: f64,
    order: Reverse<usize>,
    node: usize,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.probability.total_cmp(&other.probability).then(self.order.cmp(&other.order))
    }
}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Ranked {}

impl NumberTree {
    pub(super) fn new(job: &NumberJob, grammar: &Arc<NumberGrammar>, first_token: u32) -> Self {
        let root = Prefix {
            row: PathRow { parent: None, token: first_token },
            state: NumberState::START,
            probability: 1.0,
        };
        let ranked = || Ranked { probability: 1.0, order: Reverse(0), node: 0 };
        Self {
            grammar: Arc::clone(grammar),
            rules: grammar.rules(job.limits, job.terminator.clone()),
            tolerance: job.tolerance,
            nodes_max: job.nodes_max,
            nodes: vec![root],
            computed: HashMap::new(),
            to_compute: BinaryHeap::from([ranked()]),
            to_count: BinaryHeap::from([ranked()]),
            in_step: Vec::new(),
            open_ahead: 1.0,
            counted: Counted { open: 1.0, ..Counted::default() },
            forward_passes: 0,
        }
    }

    /// Splits the mass of one prefix and queues its children for computing.
    fn compute(&mut self, index: usize, row: (&[f32], NodeId)) -> Result<(), EngineError> {
        let softmax = Softmax::new(row.0).ok_or_else(not_a_distribution)?;
        let prefix = &self.nodes[index];
        let (probability, state) = (prefix.probability, prefix.state);
        let expansion = self.grammar.expand(state, &softmax, &self.rules);
        let mut left_open = expansion.too_long * probability;
        let least = self.tolerance * FORGET / (self.nodes_max * expansion.children.len()).max(1) as f64;
        let mut children = Vec::new();
        for (token, state, given) in expansion.children {
            let child = given * probability;
            if child <= least {
                left_open += child;
                continue;
            }
            let node = self.nodes.len();
            let row = PathRow { parent: Some(row.1), token };
            self.nodes.push(Prefix { row, state, probability: child });
            self.to_compute.push(Ranked { probability: child, order: Reverse(node), node });
            self.open_ahead += child;
            children.push(node);
        }
        self.open_ahead += left_open;
        let closed = expansion.closed.into_iter();
        let closed = closed.map(|c| Closing { probability: c.probability * probability, ..c }).collect();
        let invalid = expansion.invalid * probability;
        self.computed.insert(index, Computed { children, closed, invalid, left_open });
        Ok(())
    }

    /// Counts prefixes in strict order for as long as they are computed. True when the tree is finished.
    fn count(&mut self) -> bool {
        loop {
            if self.counted.open <= self.tolerance || self.counted.nodes >= self.nodes_max {
                return true;
            }
            let Some(top) = self.to_count.peek() else { return true };
            let node = top.node;
            let Some(computed) = self.computed.remove(&node) else { return false };
            self.to_count.pop();
            self.counted.add(&computed, self.nodes[node].probability);
            for child in computed.children {
                let probability = self.nodes[child].probability;
                self.counted.open += probability;
                self.counted.queued += 1;
                // Numbered here, not when computed: the order of equals must not depend on the width either.
                self.to_count.push(Ranked { probability, order: Reverse(self.counted.queued), node: child });
            }
        }
    }

    fn outcome(&self) -> NumberOutcome {
        let counted = &self.counted;
        // What rounding left of a mass that is all accounted for is not mass.
        let open = if counted.open < 1e-12 { 0.0 } else { counted.open };
        NumberOutcome {
            distribution: Distribution::new(&counted.closed, counted.invalid, open),
            nodes: counted.nodes,
            forward_passes: self.forward_passes,
            truncated: counted.nodes >= self.nodes_max && counted.open > self.tolerance,
        }
    }
}

impl Counted {
    fn add(&mut self, computed: &Computed, probability: f64) {
        self.nodes += 1;
        self.open += computed.left_open - probability;
        self.invalid += computed.invalid;
        for closing in &computed.closed {
            *self.closed.entry(closing.value).or_default() += closing.probability;
        }
    }
}

impl Decoding for NumberTree {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        let width = rows_max.min(WIDTH).min(self.nodes_max.saturating_sub(self.counted.nodes)).max(1);
        self.in_step.clear();
        // Even if all of these closed, would open mass be left? Then the next one is needed, too.
        while self.in_step.len() < width && (self.open_ahead > self.tolerance || self.in_step.is_empty()) {
            let Some(next) = self.to_compute.pop() else { break };
            self.open_ahead -= next.probability;
            self.in_step.push(next.node);
        }
        self.in_step.iter().map(|&node| self.nodes[node].row).collect()
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        for (row, node) in std::mem::take(&mut self.in_step).into_iter().enumerate() {
            self.compute(node, result.row(row))?;
        }
        if !self.count() {
            return Ok(Progress::Running);
        }
        events.push(Event::Number(self.outcome()));
        Ok(Progress::Done)
    }
}
