//! The number tree: exact expansion of all texts that are numbers, the most probable prefix first.
//!
//! Rows are *computed* ahead of need, as many as a step has room for. They are *counted* one by one, always
//! the most probable open prefix next. So the result does not depend on the batch: computing ahead costs rows
//! but never changes the result.
//!
//! Memory grows with the budget of nodes, not with the branches of the grammar. Each counted prefix costs one
//! node of the budget. Open prefixes beyond the remaining budget can never be counted, so the tree drops
//! them, and their mass stays open. To sample that mass, [`OpenPrefixes`] collects them.
//!
//! An answer of dedicated number tokens may have several numbers. The tree resolves one after the other and
//! continues all spellings of the earlier ones, so each distribution is marginal over them.

mod completions;
mod counted;
mod open_prefixes;
mod prefixes;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use self::completions::Completions;
use self::counted::{Counted, Output, coalesce};
use self::open_prefixes::{OpenPrefix, OpenPrefixes};
use self::prefixes::{Computed, Prefix, Prefixes, Ranked};
use super::super::{Decoding, Progress, RowResult, StepResult, Vocabulary};
use super::refused::{REFUSED_MAX, RefusedTexts};
use super::sought::Sought;
use super::{Root, logits_request};
use crate::contract::{
    Continuation, EngineError, Event, LogitsRequest, NumberOutcome, OpenDraws, PathRow, Precision,
};
use crate::numbers::{
    Child, ClosedNumber, Distribution, Interval, NumberGrammar, NumberRules, NumberState, NumberValue,
    OpenPart,
};

/// Maximum number of rows that a small tree requests in a step. Further rows would mostly be computed in
/// vain.
const WIDTH: usize = 16;

/// A large tree requests up to this share of its counted nodes, and at most this many rows: rows of one step
/// share the time that reading the weights takes, and few of many are computed in vain.
const WIDTH_SHARE: usize = 4;
const WIDTH_MAX: usize = 64;

/// Minimum number of prefixes that are kept, regardless of the budget.
const KEPT_MIN: usize = 16;

/// Maximum number of prefixes that are computed but not counted yet. A tree at this limit computes only the
/// next prefix to count, so its rows exceed its counted nodes by at most this number.
const AHEAD_MAX: usize = 256;

/// The least probable prefixes are pruned: their mass stays open. A whole tree prunes at most this share of
/// its tolerance.
const PRUNED_SHARE: f64 = 0.1;

/// Minimum probability of a prefix whose refused texts are reported. It keeps both prefixes and texts few.
const REFUSED_PREFIX_MIN: f64 = 0.01;

/// A tree also stops when the open mass that it could still reduce is at most this share of the unreported
/// mass, which it cannot reduce.
const UNREPORTED_SHARE: f64 = 0.1;

/// Minimum probability of a prefix, in multiples of the tolerance, whose most probable child another engine
/// computes ahead. The children of less probable prefixes mostly stay open.
const LIKELY_MIN: f64 = 10.0;

/// An open mass of at most this is rounding.
pub(super) const ROUNDING: f64 = 1e-12;

/// The limits at which a tree stops.
#[derive(Debug, Clone)]
pub(super) struct TreeLimits {
    pub(super) tolerance: f64,
    /// Whether `tolerance` is a share of the closed mass. Otherwise it is a probability.
    pub(super) is_conditional: bool,
    /// With a conditional tolerance, the open mass at which the tree stops regardless of the closed mass.
    pub(super) open_min: f64,
    pub(super) nodes_max: usize,
    /// A smaller number of nodes at which the tree ends. It changes nothing before.
    pub(super) search_nodes_max: usize,
    pub(super) precision: Option<Precision>,
    /// Since the first row is requested.
    pub(super) time_max: Option<Duration>,
}

pub(super) struct NumberTree {
    grammar: Arc<NumberGrammar>,
    rules: NumberRules,
    logits: LogitsRequest,
    limits: TreeLimits,
    /// When `time_max` will have passed; `None` before the first step.
    deadline: Option<Instant>,
    /// Whether it has ended the search.
    is_late: bool,
    prefixes: Prefixes,
    /// Prefixes whose logits are not computed yet, and some that have been dropped.
    to_compute: BinaryHeap<Ranked>,
    /// Prefixes that are not counted yet, but their parent is.
    to_count: BinaryHeap<Ranked>,
    in_step: Vec<u32>,
    /// Number of prefixes that are computed but not counted yet.
    ahead: usize,
    /// The open mass if everything computed so far were counted, without unreported mass.
    open_ahead: f64,
    /// The closed mass if everything computed so far were counted and all rows of the step closed.
    closed_ahead: f64,
    counted: Counted,
    /// Number of counted nodes at which the bounds are computed again.
    precision_checked_next: usize,
    /// Where the estimates of the precision may be.
    sought: Sought,
    forward_passes: usize,
    /// The texts that are not admitted numbers, if the job requests them.
    refused: Option<RefusedTexts>,
    /// See [`Root::is_reported`].
    is_reported: bool,
    /// The prefixes that will not be counted, if the open mass is to be sampled.
    open_prefixes: Option<OpenPrefixes>,
}

impl NumberTree {
    pub(super) fn new(vocabulary: &Vocabulary, rules: NumberRules, limits: TreeLimits, root: Root) -> Self {
        let mut prefixes = Prefixes::default();
        let logits = logits_request(vocabulary, &rules, &root);
        let is_reported = root.is_reported;
        let PathRow { parent, token, .. } = root.row;
        let prefix = Prefix { number: 0, parent, token, state: root.state, probability: 1.0, computed: None };
        let root = prefixes.insert(prefix);
        let outputs = vec![Output::default(); vocabulary.grammar.outputs()];
        let sought = Sought::new(limits.precision.as_ref());
        Self {
            grammar: Arc::clone(&vocabulary.grammar),
            logits,
            rules,
            limits,
            deadline: None,
            is_late: false,
            prefixes,
            to_compute: BinaryHeap::from([root]),
            to_count: BinaryHeap::from([root]),
            in_step: Vec::new(),
            ahead: 0,
            open_ahead: 1.0,
            closed_ahead: 0.0,
            counted: Counted { outputs, ..Counted::default() },
            precision_checked_next: 4,
            sought,
            forward_passes: 0,
            refused: None,
            is_reported,
            open_prefixes: None,
        }
    }

    /// Returns the same tree, whose open mass can be sampled.
    pub(super) fn sampling(self, open: OpenDraws, stream: u64) -> Self {
        Self { open_prefixes: Some(OpenPrefixes::new(open, stream)), ..self }
    }

    /// Draws open prefixes to complete if the tree ended before its tolerance. `found` is its outcome.
    pub(super) fn completions(&mut self, found: &NumberOutcome) -> Option<Completions> {
        let mut open = self.open_prefixes.take()?;
        if !found.truncated {
            return None;
        }
        for ranked in std::mem::take(&mut self.to_count) {
            if let Some(prefix) = self.open_prefix(&ranked) {
                open.push(prefix);
            }
        }
        let (grammar, rules) = (Arc::clone(&self.grammar), self.rules.clone());
        Some(Completions::new(grammar, rules, self.logits.clone(), open.into_draws()?))
    }

    /// A prefix that is not counted.
    fn open_prefix(&mut self, ranked: &Ranked) -> Option<OpenPrefix> {
        let part = self.open_part(ranked);
        let Prefix { parent, token, state, probability, .. } = *self.prefixes.get(ranked.place)?;
        let value = part.map_or_else(|| state.value_read(), |(_, part)| part.interval.low);
        Some(OpenPrefix { row: PathRow::new(parent, token), state, mass: probability, value })
    }

    /// Returns the same tree, which also reports the most probable texts that are not admitted numbers.
    pub(super) fn reporting_refused(self, vocabulary: &Vocabulary) -> Self {
        Self { refused: Some(RefusedTexts::new(Arc::clone(&vocabulary.decoder))), ..self }
    }

    /// Adds the prefix at a place to the step, unless it is computed.
    fn take_row(&mut self, place: u32) -> Option<PathRow> {
        let prefix = self.prefixes.get(place).filter(|prefix| prefix.computed.is_none())?;
        let needs_all = self.refused.is_some() && prefix.state.is_before_digits() && !self.is_reported;
        let logits = if needs_all { LogitsRequest::All } else { self.logits.clone() };
        let (state, probability) = (prefix.state, prefix.probability);
        let row = PathRow::new(prefix.parent, prefix.token).with_logits(logits);
        let continuation = self.continuation(state, probability);
        self.open_ahead -= probability;
        self.closed_ahead += probability;
        self.in_step.push(place);
        Some(PathRow { continuation, ..row })
    }

    /// The tokens with which another engine may continue a prefix on its own. Before the digits the most
    /// probable token mostly begins the number, so any token will do.
    fn continuation(&self, state: NumberState, probability: f64) -> Continuation {
        if !self.is_reported || state.is_before_digits() {
            return Continuation::Any;
        }
        if probability < LIKELY_MIN * self.limits.tolerance {
            return Continuation::Unlikely;
        }
        let ids = self.grammar.continuing_ids(state, &self.rules);
        if ids.is_empty() { Continuation::Unlikely } else { Continuation::Among(ids.into()) }
    }

    /// Splits the mass of one prefix and queues its children to be computed.
    fn compute(&mut self, place: u32, row: RowResult<'_>) -> Result<(), EngineError> {
        let Some(prefix) = self.prefixes.get(place) else { return Ok(()) };
        let probability = prefix.probability;
        let state = prefix.state.with_head_value(row.head_value);
        // Each of at most `nodes_max` nodes may prune an equal part.
        let prune =
            self.limits.open_max(0.0) * PRUNED_SHARE / self.limits.nodes_max.max(1) as f64 / probability;
        let softmax = row.softmax()?;
        let expansion = self.grammar.expand(state, &softmax, &self.rules, prune);
        let refused = if self.refused.is_some() && probability >= REFUSED_PREFIX_MIN {
            self.grammar.refused(state, &softmax, &self.rules, REFUSED_MAX).into_boxed_slice()
        } else {
            Box::default()
        };
        let left_open = expansion.left_open * probability;
        let unreported = expansion.unreported * probability;
        let parent = Some(row.node);
        let mut closed = Vec::with_capacity(expansion.closed.len());
        let mut ended = 0.0;
        for closing in &expansion.closed {
            let probability = closing.probability * probability;
            ended += probability;
            closed.push(ClosedNumber { value: closing.value, probability });
        }
        let mut children = Vec::with_capacity(expansion.children.len());
        for Child { token, state, probability: given, completed, .. } in expansion.children {
            let probability = given * probability;
            if let Some(value) = completed {
                closed.push(ClosedNumber { value, probability });
            }
            let token = token.into();
            let child = Prefix { number: 0, parent, token, state, probability, computed: None };
            let child = self.prefixes.insert(child);
            self.to_compute.push(child);
            self.open_ahead += child.probability;
            children.push(child);
        }
        self.open_ahead += left_open - unreported;
        self.closed_ahead += ended - probability;
        let invalid = expansion.invalid * probability;
        if let Some(prefix) = self.prefixes.get(place) {
            let (children, closed) = (children.into(), closed.into());
            let computed = Computed { children, closed, invalid, left_open, unreported, refused };
            prefix.computed = Some(Box::new(computed));
            self.ahead += 1;
        }
        Ok(())
    }

    /// Counts prefixes in strict order, up to the first one that is not computed yet. Returns `true` if the
    /// tree is finished.
    fn count(&mut self) -> bool {
        loop {
            if self.counted.open() - self.counted.unreported <= self.open_max() {
                if self.is_last_output() {
                    return true;
                }
                self.begin_next_output();
                continue;
            }
            if self.counted.nodes >= self.limits.nodes_end() || (self.is_precision_due() && self.narrow()) {
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
            let (children, aside): (Vec<Ranked>, Vec<Ranked>) =
                computed.children.into_iter().partition(|child| self.may_matter(child));
            self.drop_all(aside);
            for child in children {
                self.counted.queued += 1;
                // Children are numbered when they are counted, so that the order of ties does not depend on
                // the batch either.
                self.to_count.push(Ranked { order: Reverse(self.counted.queued), ..child });
            }
            self.drop_hopeless();
        }
    }

    /// Leaves the rest of the present number open, and continues with the next one.
    fn begin_next_output(&mut self) {
        let present = Reverse(self.counted.current as u32);
        let queue = std::mem::take(&mut self.to_count).into_vec();
        let (left, queue): (Vec<Ranked>, Vec<Ranked>) =
            queue.into_iter().partition(|ranked| ranked.output == present);
        self.to_count = queue.into();
        self.drop_all(left);
        self.counted.current += 1;
    }

    /// Drops the open prefixes that can no longer be counted. Each counted node removes the first prefix of
    /// the queue, so only as many prefixes as the budget has nodes left can be counted.
    fn drop_hopeless(&mut self) {
        let left = self.limits.nodes_max.saturating_sub(self.counted.nodes);
        if self.to_count.len() <= 2 * left.max(KEPT_MIN) {
            return;
        }
        let mut queue = std::mem::take(&mut self.to_count).into_vec();
        queue.select_nth_unstable_by_key(left, |ranked| Reverse(*ranked));
        let hopeless = queue.split_off(left);
        self.to_count = queue.into();
        self.drop_all(hopeless);
        if self.to_compute.len() > 2 * self.prefixes.len() {
            let mut to_compute = std::mem::take(&mut self.to_compute);
            to_compute.retain(|ranked| self.prefixes.find(ranked).is_some());
            to_compute.shrink_to_fit();
            self.to_compute = to_compute;
        }
    }

    /// Drops prefixes, whose mass stays open.
    fn drop_all(&mut self, dropped: Vec<Ranked>) {
        for ranked in dropped {
            let part = self.open_part(&ranked);
            self.counted.dropped.extend(part);
            let prefix = if self.open_prefixes.is_some() { self.open_prefix(&ranked) } else { None };
            if let (Some(open), Some(prefix)) = (&mut self.open_prefixes, prefix) {
                open.push(prefix);
            }
            self.drop_subtree(ranked.place);
        }
        coalesce(&mut self.counted.dropped, self.limits.nodes_max, &self.sought);
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

    /// Returns whether to compute the bounds again. They cost a pass over all numbers found, so the tree does
    /// this only after another tenth of its counted nodes. This must not depend on steps.
    fn is_precision_due(&mut self) -> bool {
        let nodes = self.counted.nodes;
        let due = nodes >= self.precision_checked_next;
        if due {
            self.precision_checked_next = nodes + (nodes / 10).max(1);
        }
        due
    }

    /// Returns `true` if the tree is as precise as requested. Otherwise drops the prefixes of the last number
    /// on which its estimates do not depend.
    fn narrow(&mut self) -> bool {
        let Some(precision) = &self.limits.precision else { return false };
        let bounds = self.precision_bounds(precision);
        if precision.is_reached_by_all(&bounds) {
            return true;
        }
        if self.is_last_output()
            && let Some(last) = bounds.last()
        {
            self.sought.narrow(last, precision);
            let queue = std::mem::take(&mut self.to_count).into_vec();
            let (queue, aside): (Vec<Ranked>, Vec<Ranked>) =
                queue.into_iter().partition(|ranked| self.may_matter(ranked));
            self.to_count = queue.into();
            self.drop_all(aside);
        }
        false
    }

    /// The bounds of each estimate of each number.
    fn precision_bounds(&self, precision: &Precision) -> Vec<Vec<Option<Interval>>> {
        let mut bounds = Vec::with_capacity(self.counted.outputs.len());
        for output in 0..self.counted.outputs.len() {
            let found = self.distribution(output);
            let objectives = precision.objectives.iter().copied();
            bounds.push(objectives.map(|one| found.estimate_bounds(one, &precision.estimation)).collect());
        }
        bounds
    }

    fn is_last_output(&self) -> bool {
        self.counted.current + 1 == self.counted.outputs.len()
    }

    /// Returns whether a prefix must be expanded for the estimates of the precision. The numbers after the
    /// present one need all of its prefixes.
    fn may_matter(&self, ranked: &Ranked) -> bool {
        !self.is_last_output()
            || self.open_part(ranked).is_none_or(|(_, part)| self.sought.may_depend_on(&part))
    }

    /// The open mass, without unreported mass, at which the expansion stops.
    fn open_max(&self) -> f64 {
        let Counted { outputs, current, unreported, .. } = &self.counted;
        // The mass that this number leaves open is open for the numbers after it, too.
        let share = (current + 1) as f64 / outputs.len() as f64;
        let open_max = share * self.limits.open_max(outputs[*current].closed_mass);
        open_max.max(UNREPORTED_SHARE * unreported)
    }

    /// The open mass at which the expansion would stop if all rows of the step closed.
    fn open_max_ahead(&self) -> f64 {
        self.open_max().max(self.limits.open_max(self.closed_ahead))
    }

    /// The distribution of one number of the answer, regardless of the numbers before it.
    fn distribution(&self, output: usize) -> Distribution {
        let Output { closed, invalid, open, .. } = &self.counted.outputs[output];
        let open = if *open < ROUNDING { 0.0 } else { *open };
        Distribution::new(closed, *invalid, open).with_open_parts(self.open_parts(output))
    }

    /// The open prefixes that do not contain the whole number `output`.
    fn open_parts(&self, output: usize) -> Vec<OpenPart> {
        let queued = self.to_count.iter().filter_map(|ranked| self.open_part(ranked));
        let dropped = self.counted.dropped.iter().copied();
        let mut parts = Vec::new();
        for (reached, part) in queued.chain(dropped) {
            match reached.cmp(&output) {
                // Earlier numbers say nothing about this one.
                Ordering::Less => {
                    let start = self.grammar.start();
                    parts.extend(self.grammar.open_part(start, output, part.probability, &self.rules));
                }
                Ordering::Equal => parts.push(part),
                Ordering::Greater => {}
            }
        }
        parts
    }

    /// A prefix that is not counted, and the number that it is in. `None` if its numbers have no bounds.
    fn open_part(&self, ranked: &Ranked) -> Option<(usize, OpenPart)> {
        let state = self.prefixes.state(ranked.place)?;
        let output = state.output();
        let part = self.grammar.open_part(state, output, ranked.probability, &self.rules)?;
        Some((output, part))
    }

    /// Takes the logits of the rows of the last step. Returns the outcome once the tree has ended.
    pub(super) fn step(&mut self, result: StepResult<'_>) -> Result<Option<NumberOutcome>, EngineError> {
        self.forward_passes += 1;
        for (row, place) in std::mem::take(&mut self.in_step).into_iter().enumerate() {
            self.compute(place, result.row(row))?;
        }
        if !self.count() {
            self.is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if !self.is_late {
                return Ok(None);
            }
        }
        Ok(Some(self.outcome()))
    }

    fn outcome(&self) -> NumberOutcome {
        let reducible = self.counted.open() - self.counted.unreported;
        let is_spent = self.is_late || self.counted.nodes >= self.limits.nodes_end();
        let found = NumberOutcome::new(self.distribution(0), self.counted.nodes, self.forward_passes);
        let refused = self.refused.as_ref().map(RefusedTexts::most_probable).unwrap_or_default();
        let is_precise =
            |precision: &Precision| precision.is_reached_by_all(&self.precision_bounds(precision));
        NumberOutcome {
            truncated: is_spent
                && reducible > self.open_max()
                && !self.limits.precision.as_ref().is_some_and(is_precise),
            unreported: self.counted.unreported,
            refused,
            further: (1..self.counted.outputs.len()).map(|output| self.distribution(output)).collect(),
            ..found
        }
    }
}

impl TreeLimits {
    /// The number of counted nodes at which the tree ends.
    fn nodes_end(&self) -> usize {
        self.nodes_max.min(self.search_nodes_max)
    }

    /// The open mass at which a tree with this closed mass stops.
    fn open_max(&self, closed: f64) -> f64 {
        if self.is_conditional { (self.tolerance * closed).max(self.open_min) } else { self.tolerance }
    }
}

impl Decoding for NumberTree {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        let nodes = self.counted.nodes;
        let time_max = self.limits.time_max;
        if self.deadline.is_none() {
            self.deadline = time_max.and_then(|time_max| Instant::now().checked_add(time_max));
        }
        let mut width = (nodes / WIDTH_SHARE).clamp(WIDTH, WIDTH_MAX);
        // With a precision or a maximum time the tree may end at any time, so a step at most doubles the
        // number of computed rows.
        if self.limits.precision.is_some() || time_max.is_some() {
            width = width.min(1 + nodes);
        }
        let nodes_left = self.limits.nodes_end().saturating_sub(nodes);
        let room = AHEAD_MAX.saturating_sub(self.ahead);
        let width = width.min(rows_max).min(nodes_left).min(room).max(1);
        self.in_step.clear();
        let mut rows = Vec::with_capacity(width);
        if room == 0 {
            // Among equally probable prefixes, only the next one to count keeps the limit.
            rows.extend(self.to_count.peek().copied().and_then(|next| self.take_row(next.place)));
        }
        // Take another row while too much open mass would be left even if all rows taken so far closed.
        while self.in_step.len() < width
            && (self.open_ahead > self.open_max_ahead() || self.in_step.is_empty())
        {
            let Some(next) = self.to_compute.pop() else { break };
            if self.prefixes.find(&next).is_some() && self.may_matter(&next) {
                rows.extend(self.take_row(next.place));
            }
        }
        rows
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        let Some(outcome) = self.step(result)? else { return Ok(Progress::Running) };
        events.push(Event::Number(outcome));
        Ok(Progress::Done)
    }

    fn search_bytes(&self) -> usize {
        let ranked = self.to_compute.capacity() + self.to_count.capacity();
        // A hash map has one byte and room for an entry in each place.
        let closed = self.counted.outputs.iter().map(|output| output.closed.capacity()).sum::<usize>();
        let closed = closed * 8 / 7 * (size_of::<(NumberValue, f64)>() + 1);
        let dropped = self.counted.dropped.capacity() * size_of::<(usize, OpenPart)>();
        let open = self.open_prefixes.as_ref().map_or(0, OpenPrefixes::bytes);
        ranked * size_of::<Ranked>() + self.prefixes.bytes() + closed + dropped + open
    }
}
