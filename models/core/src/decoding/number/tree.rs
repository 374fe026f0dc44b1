//! The number tree: exact expansion of all texts that are numbers, the most probable prefix first.
//!
//! Rows are *computed* ahead of need, as many at once as a step has room for; they are *counted* strictly one by one,
//! always the most probable open prefix next. So the result does not depend on the batch: computing ahead costs rows but
//! never changes a digit.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::super::{Decoding, Progress, RowResult, StepResult, Vocabulary};
use super::Root;
use crate::engine::{EngineError, Event, LogitsRequest, NumberOutcome, PathRow, Precision};
use crate::numbers::{Child, ClosedNumber, Decimal, Distribution, NumberGrammar, NumberRules, NumberState};

/// Most rows that one tree asks for in a step. Most rows beyond this would not be needed in the end.
const WIDTH: usize = 16;

/// The least probable prefixes are pruned: their mass stays open. A whole tree prunes at most this share of its tolerance.
const PRUNED_SHARE: f64 = 0.1;

/// When a tree is expanded far enough.
#[derive(Debug, Clone)]
pub(super) struct TreeLimits {
    pub(super) tolerance: f64,
    pub(super) nodes_max: usize,
    pub(super) precision: Option<Precision>,
}

pub(super) struct NumberTree {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    logits: LogitsRequest,
    limits: TreeLimits,
    nodes: Vec<Prefix>,
    /// Prefixes that are computed but not counted yet.
    computed: HashMap<usize, Computed>,
    /// Prefixes whose logits are not computed yet.
    to_compute: BinaryHeap<Ranked>,
    /// Prefixes that are not counted yet, but their parent is.
    to_count: BinaryHeap<Ranked>,
    in_step: Vec<usize>,
    /// The open mass if everything computed so far were counted.
    open_ahead: f64,
    counted: Counted,
    /// Number of counted nodes at which the bounds are computed again.
    precision_checked_next: usize,
    forward_passes: usize,
}

struct Prefix {
    row: PathRow,
    state: NumberState,
    probability: f64,
}

/// What follows a prefix. Probabilities are of the whole text, not conditional on the prefix.
struct Computed {
    children: Vec<usize>,
    closed: Vec<ClosedNumber>,
    invalid: f64,
    /// Too long, or pruned.
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
    pub(super) fn new(vocabulary: &Vocabulary, rules: NumberRules, limits: TreeLimits, root: Root) -> Self {
        let prefix = Prefix { row: root.row, state: root.state, probability: 1.0 };
        let ranked = || Ranked { probability: 1.0, order: Reverse(0), node: 0 };
        Self {
            grammar: Arc::clone(&vocabulary.grammar),
            logits: vocabulary.logits_request(&rules),
            rules,
            limits,
            nodes: vec![prefix],
            computed: HashMap::new(),
            to_compute: BinaryHeap::from([ranked()]),
            to_count: BinaryHeap::from([ranked()]),
            in_step: Vec::new(),
            open_ahead: 1.0,
            counted: Counted { open: 1.0, ..Counted::default() },
            precision_checked_next: 4,
            forward_passes: 0,
        }
    }

    /// Splits the mass of one prefix and queues its children to be computed.
    fn compute(&mut self, index: usize, row: RowResult<'_>) -> Result<(), EngineError> {
        let prefix = &self.nodes[index];
        let (probability, state) = (prefix.probability, prefix.state.with_head_value(row.head_value));
        // Each of at most `nodes_max` nodes may prune an equal part.
        let prune = self.limits.tolerance * PRUNED_SHARE / self.limits.nodes_max.max(1) as f64 / probability;
        let expansion = self.grammar.expand(state, &row.softmax()?, &self.rules, prune);
        let left_open = expansion.left_open * probability;
        let mut children = Vec::new();
        for Child { token, state, probability: given } in expansion.children {
            let child = given * probability;
            let next = self.nodes.len();
            self.nodes.push(Prefix { row: PathRow::new(Some(row.node), token), state, probability: child });
            self.to_compute.push(Ranked { probability: child, order: Reverse(next), node: next });
            self.open_ahead += child;
            children.push(next);
        }
        self.open_ahead += left_open;
        let closed = expansion.closed.into_iter();
        let closed = closed.map(|c| ClosedNumber { probability: c.probability * probability, ..c }).collect();
        let invalid = expansion.invalid * probability;
        self.computed.insert(index, Computed { children, closed, invalid, left_open });
        Ok(())
    }

    /// Counts prefixes in strict order as far as they are computed. True when the tree is finished.
    fn count(&mut self) -> bool {
        loop {
            if self.counted.open <= self.limits.tolerance
                || self.counted.nodes >= self.limits.nodes_max
                || (self.is_precision_due() && self.is_precise())
            {
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
                // Numbered here, not when computed: the order of equals must not depend on the batch either.
                self.to_count.push(Ranked { probability, order: Reverse(self.counted.queued), node: child });
            }
        }
    }

    /// Whether to compute the bounds again. They cost a pass over all numbers found, so this is due only at numbers of counted
    /// nodes that are a tenth apart; it must not depend on steps.
    fn is_precision_due(&mut self) -> bool {
        let nodes = self.counted.nodes;
        let due = nodes >= self.precision_checked_next;
        if due {
            self.precision_checked_next = nodes + (nodes / 10).max(1);
        }
        due
    }

    fn is_precise(&self) -> bool {
        let Some(precision) = &self.limits.precision else { return false };
        let bounds = self.distribution().estimate_bounds(precision.objective, &precision.estimation);
        bounds.is_some_and(|bounds| bounds.high - bounds.low <= precision.width)
    }

    fn distribution(&self) -> Distribution {
        // An open mass this small is rounding.
        let open = if self.counted.open < 1e-12 { 0.0 } else { self.counted.open };
        Distribution::new(&self.counted.closed, self.counted.invalid, open)
    }

    fn outcome(&self) -> NumberOutcome {
        let spent = self.counted.nodes >= self.limits.nodes_max && self.counted.open > self.limits.tolerance;
        let found = NumberOutcome::new(self.distribution(), self.counted.nodes, self.forward_passes);
        NumberOutcome { truncated: spent && !self.is_precise(), ..found }
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
        // With a precision the tree may end at any time: at most double what is computed.
        let ahead = if self.limits.precision.is_some() { 1 + self.counted.nodes } else { WIDTH };
        let nodes_left = self.limits.nodes_max.saturating_sub(self.counted.nodes);
        let width = rows_max.min(WIDTH).min(ahead).min(nodes_left).max(1);
        self.in_step.clear();
        // Take another row while open mass would be left even if all of these closed.
        while self.in_step.len() < width
            && (self.open_ahead > self.limits.tolerance || self.in_step.is_empty())
        {
            let Some(next) = self.to_compute.pop() else { break };
            self.open_ahead -= next.probability;
            self.in_step.push(next.node);
        }
        let row = |&node: &usize| self.nodes[node].row.clone().with_logits(self.logits.clone());
        self.in_step.iter().map(row).collect()
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
