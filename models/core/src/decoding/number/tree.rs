//! The number tree: exact expansion of all texts that are numbers, the most probable prefix first.
//!
//! Rows are *computed* ahead of need, as many at once as a step has room for; they are *counted* strictly one by one,
//! always the most probable open prefix next. So the result does not depend on the batch: computing ahead costs rows but
//! never changes a digit.
//!
//! Memory grows with the budget of nodes, not with the branches of the grammar: of the open prefixes, only as many can
//! still be counted as the budget has nodes left, and the others are dropped. Their mass stays open.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::super::{Decoding, Progress, RowResult, StepResult, Vocabulary};
use super::Root;
use super::refused::{REFUSED_MAX, RefusedTexts};
use crate::Token;
use crate::engine::{EngineError, Event, LogitsRequest, NodeId, NumberOutcome, PathRow, Precision};
use crate::numbers::{
    Child, ClosedNumber, Decimal, Distribution, NumberGrammar, NumberRules, NumberState, Refused,
};

/// Most rows that one tree asks for in a step. Most rows beyond this would not be needed in the end.
const WIDTH: usize = 16;

/// Most prefixes that are computed but not counted yet. A tree at this limit computes only what it counts next, so its rows
/// exceed its counted nodes by no more.
const AHEAD_MAX: usize = 256;

/// The least probable prefixes are pruned: their mass stays open. A whole tree prunes at most this share of its tolerance.
const PRUNED_SHARE: f64 = 0.1;

/// Prefixes less probable than this tell no texts that are no number: so these are few, and the texts as well.
const REFUSED_PREFIX_MIN: f64 = 0.01;

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
    prefixes: Prefixes,
    /// Prefixes whose logits are not computed yet, and some that have been dropped.
    to_compute: BinaryHeap<Ranked>,
    /// Prefixes that are not counted yet, but their parent is.
    to_count: BinaryHeap<Ranked>,
    in_step: Vec<u32>,
    /// Number of prefixes that are computed but not counted yet.
    ahead: usize,
    /// The open mass if everything computed so far were counted.
    open_ahead: f64,
    counted: Counted,
    /// Number of counted nodes at which the bounds are computed again.
    precision_checked_next: usize,
    forward_passes: usize,
    /// Where the job asks for the texts that are no admitted number.
    refused: Option<RefusedTexts>,
}

/// The prefixes that may still be counted, in places that are used again.
#[derive(Default)]
struct Prefixes {
    places: Vec<Option<Prefix>>,
    free: Vec<u32>,
    /// Prefixes ever inserted.
    inserted: u64,
}

struct Prefix {
    /// Tells it from earlier prefixes at its place.
    number: u64,
    parent: Option<NodeId>,
    token: Token,
    state: NumberState,
    probability: f64,
    computed: Option<Box<Computed>>,
}

/// What follows a prefix. Probabilities are of the whole text, not conditional on the prefix.
struct Computed {
    children: Box<[Ranked]>,
    closed: Box<[ClosedNumber]>,
    invalid: f64,
    /// Too long, or pruned.
    left_open: f64,
    /// Conditional on the prefix.
    refused: Box<[Refused]>,
}

#[derive(Default)]
struct Counted {
    closed: HashMap<Decimal, f64>,
    invalid: f64,
    open: f64,
    nodes: usize,
    queued: u64,
}

/// A prefix in a queue: the most probable first, of equals the one that was queued first.
#[derive(Clone, Copy)]
struct Ranked {
    probability: f64,
    order: Reverse<u64>,
    place: u32,
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

impl Prefixes {
    fn insert(&mut self, prefix: Prefix) -> Ranked {
        let (probability, number) = (prefix.probability, self.inserted);
        self.inserted += 1;
        let prefix = Some(Prefix { number, ..prefix });
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = prefix;
                place
            }
            None => {
                self.places.push(prefix);
                self.places.len() as u32 - 1
            }
        };
        Ranked { probability, order: Reverse(number), place }
    }

    /// The prefix at a place.
    fn get(&mut self, place: u32) -> Option<&mut Prefix> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// The prefix that was inserted as `ranked`, unless it is removed.
    fn find(&mut self, ranked: &Ranked) -> Option<&mut Prefix> {
        self.get(ranked.place).filter(|prefix| prefix.number == ranked.order.0)
    }

    fn remove(&mut self, place: u32) -> Option<Prefix> {
        let removed = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(removed)
    }

    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl NumberTree {
    pub(super) fn new(vocabulary: &Vocabulary, rules: NumberRules, limits: TreeLimits, root: Root) -> Self {
        let mut prefixes = Prefixes::default();
        let PathRow { parent, token, .. } = root.row;
        let prefix = Prefix { number: 0, parent, token, state: root.state, probability: 1.0, computed: None };
        let root = prefixes.insert(prefix);
        Self {
            grammar: Arc::clone(&vocabulary.grammar),
            logits: vocabulary.logits_request(&rules),
            rules,
            limits,
            prefixes,
            to_compute: BinaryHeap::from([root]),
            to_count: BinaryHeap::from([root]),
            in_step: Vec::new(),
            ahead: 0,
            open_ahead: 1.0,
            counted: Counted { open: 1.0, ..Counted::default() },
            precision_checked_next: 4,
            forward_passes: 0,
            refused: None,
        }
    }

    /// The same tree, which also tells the most probable texts that are no admitted number.
    pub(super) fn reporting_refused(self, vocabulary: &Vocabulary) -> Self {
        Self { refused: Some(RefusedTexts::new(Arc::clone(&vocabulary.decoder))), ..self }
    }

    /// Adds the prefix at a place to the step, unless it is computed.
    fn take_row(&mut self, place: u32) -> Option<PathRow> {
        let prefix = self.prefixes.get(place).filter(|prefix| prefix.computed.is_none())?;
        let needs_all = self.refused.is_some() && prefix.state.is_before_digits();
        let logits = if needs_all { LogitsRequest::All } else { self.logits.clone() };
        let row = PathRow::new(prefix.parent, prefix.token).with_logits(logits);
        self.open_ahead -= prefix.probability;
        self.in_step.push(place);
        Some(row)
    }

    /// Splits the mass of one prefix and queues its children to be computed.
    fn compute(&mut self, place: u32, row: RowResult<'_>) -> Result<(), EngineError> {
        let Some(prefix) = self.prefixes.get(place) else { return Ok(()) };
        let (probability, state) = (prefix.probability, prefix.state.with_head_value(row.head_value));
        // Each of at most `nodes_max` nodes may prune an equal part.
        let prune = self.limits.tolerance * PRUNED_SHARE / self.limits.nodes_max.max(1) as f64 / probability;
        let softmax = row.softmax()?;
        let expansion = self.grammar.expand(state, &softmax, &self.rules, prune);
        let refused = self.refused.as_ref().filter(|_| probability >= REFUSED_PREFIX_MIN);
        let refused = refused.map(|_| self.grammar.refused(state, &softmax, &self.rules, REFUSED_MAX));
        let refused = refused.unwrap_or_default().into_boxed_slice();
        let left_open = expansion.left_open * probability;
        let parent = Some(row.node);
        let child = |Child { token, state, probability: given }| {
            let (token, probability) = (token.into(), given * probability);
            let child = Prefix { number: 0, parent, token, state, probability, computed: None };
            let child = self.prefixes.insert(child);
            self.to_compute.push(child);
            self.open_ahead += child.probability;
            child
        };
        let children = expansion.children.into_iter().map(child).collect();
        self.open_ahead += left_open;
        let closed = expansion.closed.into_iter();
        let closed = closed.map(|c| ClosedNumber { probability: c.probability * probability, ..c }).collect();
        let invalid = expansion.invalid * probability;
        if let Some(prefix) = self.prefixes.get(place) {
            prefix.computed = Some(Box::new(Computed { children, closed, invalid, left_open, refused }));
            self.ahead += 1;
        }
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
            let Some(&Ranked { place, probability, .. }) = self.to_count.peek() else { return true };
            let computed = self.prefixes.get(place).and_then(|prefix| prefix.computed.take());
            let Some(computed) = computed else { return false };
            self.to_count.pop();
            let prefix = self.prefixes.remove(place);
            self.ahead -= 1;
            self.counted.add(&computed, probability);
            if let (Some(refused), Some(prefix)) = (&mut self.refused, prefix) {
                refused.add(prefix.state, probability, &computed.refused);
            }
            for child in computed.children {
                self.counted.open += child.probability;
                self.counted.queued += 1;
                // Numbered here, not when computed: the order of equals must not depend on the batch either.
                self.to_count.push(Ranked { order: Reverse(self.counted.queued), ..child });
            }
            self.drop_hopeless();
        }
    }

    /// Drops the open prefixes that cannot be counted any more: each counted node takes the first of the queue, so that the
    /// budget reaches no further down than it has nodes left.
    fn drop_hopeless(&mut self) {
        let left = self.limits.nodes_max.saturating_sub(self.counted.nodes);
        if self.to_count.len() <= 2 * left.max(WIDTH) {
            return;
        }
        let mut queue = std::mem::take(&mut self.to_count).into_vec();
        queue.select_nth_unstable_by_key(left, |ranked| Reverse(*ranked));
        for hopeless in queue.drain(left..) {
            self.drop_subtree(hopeless.place);
        }
        self.to_count = queue.into();
        if self.to_compute.len() > 2 * self.prefixes.len() {
            let mut to_compute = std::mem::take(&mut self.to_compute);
            to_compute.retain(|ranked| self.prefixes.find(ranked).is_some());
            to_compute.shrink_to_fit();
            self.to_compute = to_compute;
        }
    }

    /// Drops a prefix and all that is computed after it.
    fn drop_subtree(&mut self, place: u32) {
        let mut places = vec![place];
        while let Some(place) = places.pop() {
            let Some(Prefix { computed: Some(computed), .. }) = self.prefixes.remove(place) else { continue };
            self.ahead -= 1;
            places.extend(computed.children.iter().map(|child| child.place));
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
        let refused = self.refused.as_ref().map(RefusedTexts::most_probable).unwrap_or_default();
        NumberOutcome { truncated: spent && !self.is_precise(), refused, ..found }
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
        let room = AHEAD_MAX.saturating_sub(self.ahead);
        let width = rows_max.min(WIDTH).min(ahead).min(nodes_left).min(room).max(1);
        self.in_step.clear();
        let mut rows = Vec::with_capacity(width);
        if room == 0 {
            // Of equally probable prefixes, only the one that is counted next keeps to the limit.
            rows.extend(self.to_count.peek().copied().and_then(|next| self.take_row(next.place)));
        }
        // Take another row while open mass would be left even if all of these closed.
        while self.in_step.len() < width
            && (self.open_ahead > self.limits.tolerance || self.in_step.is_empty())
        {
            let Some(next) = self.to_compute.pop() else { break };
            if self.prefixes.find(&next).is_some() {
                rows.extend(self.take_row(next.place));
            }
        }
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.forward_passes += 1;
        for (row, place) in std::mem::take(&mut self.in_step).into_iter().enumerate() {
            self.compute(place, result.row(row))?;
        }
        if !self.count() {
            return Ok(Progress::Running);
        }
        events.push(Event::Number(self.outcome()));
        Ok(Progress::Done)
    }

    fn search_bytes(&self) -> usize {
        let ranked = self.to_compute.capacity() + self.to_count.capacity();
        let prefixes = self.prefixes.places.capacity() * size_of::<Option<Prefix>>()
            + self.prefixes.free.capacity() * size_of::<u32>();
        // A hash map has one byte and room for an entry in each place.
        let closed = self.counted.closed.capacity() * 8 / 7 * (size_of::<(Decimal, f64)>() + 1);
        ranked * size_of::<Ranked>() + prefixes + closed
    }
}
