//! Reads options: expands the tree of their prefixes, the most probable prefix first, until little mass is
//! open.
//!
//! Rows are computed ahead of need, as many as fit in a step, but are *counted* one by one in the order of
//! their probability. The result therefore does not depend on the number of rows in a step.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{Decoding, Progress, RowResult, StepResult};
use crate::contract::{
    EngineError, Event, LogitsRequest, NodeId, OpenMass, OptionsJob, OptionsOutcome, PathRow,
};
use crate::numbers::sorted_unique;

/// If at most this many prefixes are left, all of them are computed in one step.
const AHEAD_MAX: usize = 16;

pub(super) struct OptionsDecoding {
    job: OptionsJob,
    first_token: u32,
    /// Whether another engine reports the log-probabilities of requested ids. Its rows are expensive, and
    /// none is computed ahead.
    is_reported: bool,
    /// The state of each prefix.
    prefixes: Vec<PrefixState>,
    /// Number of prefixes that are not requested yet.
    left: usize,
    /// The prefixes of the rows that were requested last.
    requested: Vec<u32>,
    /// Prefixes whose probability is known and that are not counted yet.
    frontier: BinaryHeap<OpenRow>,
    /// The mass of the prefixes in `frontier`.
    expandable: f64,
    closed: Vec<f64>,
    closed_total: f64,
    unreported: Vec<OpenMass>,
    counted: usize,
}

#[derive(Debug, Clone, Default)]
struct PrefixState {
    node: Option<NodeId>,
    reading: Option<Reading>,
}

/// The probabilities after one prefix, given the prefix.
#[derive(Debug, Clone)]
struct Reading {
    /// The probability of each longer prefix; `None` if another engine does not report it.
    next: Vec<Option<f64>>,
    /// The reported probability that the answer ends here.
    end: f64,
    /// The maximum probability of the continuations that another engine does not report.
    unreported: f64,
    /// Whether the end is one of them.
    is_end_unreported: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct OpenRow {
    probability: f64,
    row: u32,
}

impl Eq for OpenRow {}

impl Ord for OpenRow {
    /// The most probable is the largest. Ties go to the first prefix.
    fn cmp(&self, other: &Self) -> Ordering {
        self.probability.total_cmp(&other.probability).then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for OpenRow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl OptionsDecoding {
    pub(super) fn new(job: &OptionsJob, first_token: u32) -> Self {
        Self {
            job: job.clone(),
            first_token,
            is_reported: false,
            prefixes: vec![PrefixState::default(); job.rows().len()],
            left: job.rows().len(),
            requested: Vec::new(),
            frontier: BinaryHeap::from([OpenRow { probability: 1.0, row: 0 }]),
            expandable: 1.0,
            closed: vec![0.0; job.options()],
            closed_total: 0.0,
            unreported: Vec::new(),
            counted: 0,
        }
    }

    /// Returns the same decoding over reports of another engine.
    pub(super) fn over_reports(self) -> Self {
        Self { is_reported: true, ..self }
    }

    /// The prefixes to compute next: all that are left if they are few, otherwise the most probable ones
    /// whose expansion may be needed. A prefix comes after its parent.
    fn wanted(&self, rows_max: usize) -> Vec<u32> {
        if self.left <= AHEAD_MAX && !self.is_reported {
            let all = 0..self.prefixes.len() as u32;
            return all.filter(|&row| self.is_new(row)).take(rows_max).collect();
        }
        let mut rows = Vec::new();
        let mut open = self.expandable;
        let mut frontier = self.frontier.clone();
        while let Some(prefix) = frontier.pop() {
            // All requested mass may turn out to be closed.
            let closed_max = self.closed_total + (self.expandable - open);
            let may_suffice = open <= self.job.tolerance() * closed_max;
            if rows.len() == rows_max || (may_suffice && !rows.is_empty()) {
                break;
            }
            open -= prefix.probability;
            if self.is_new(prefix.row) {
                rows.push(prefix.row);
            }
        }
        rows
    }

    /// Returns whether a prefix is not computed yet.
    fn is_new(&self, row: u32) -> bool {
        self.prefixes[row as usize].node.is_none()
    }

    /// The row of a prefix, with a request for the ids that [`Self::read`] reads.
    fn row(&self, row: u32) -> PathRow {
        let prefix = &self.job.rows()[row as usize];
        let parent = prefix.parent.and_then(|parent| self.prefixes[parent as usize].node);
        let mut ids = Vec::with_capacity(prefix.next.len());
        for &next in &prefix.next {
            ids.extend(self.job.rows()[next as usize].token.map(|token| token.id));
        }
        if prefix.complete.is_some() {
            ids.extend(self.job.ends());
        }
        let token = prefix.token.unwrap_or(self.first_token.into());
        PathRow::new(parent, token).with_logits(LogitsRequest::Ids(sorted_unique(ids.iter())))
    }

    fn read(&self, row: u32, result: RowResult<'_>) -> Result<Reading, EngineError> {
        let softmax = result.softmax()?;
        let prefix = &self.job.rows()[row as usize];
        let mut next = Vec::with_capacity(prefix.next.len());
        let mut missing = 0;
        for &child in &prefix.next {
            let id = self.job.rows()[child as usize].token.map_or(0, |token| token.id);
            let probability = softmax.reported(id);
            missing += usize::from(probability.is_none());
            next.push(probability);
        }
        let mut end = 0.0;
        let mut missing_ends = 0;
        if prefix.complete.is_some() {
            for &id in self.job.ends() {
                match softmax.reported(id) {
                    Some(probability) => end += probability,
                    None => missing_ends += 1,
                }
            }
        }
        let unreported = match missing + missing_ends {
            0 => 0.0,
            ids => softmax.unreported_max(ids),
        };
        Ok(Reading { next, end, unreported, is_end_unreported: missing_ends > 0 })
    }

    /// Counts prefixes in the order of their probability, up to the first one that is not computed. Returns
    /// `true` once little enough mass is open.
    fn count(&mut self) -> bool {
        loop {
            if self.expandable <= self.job.tolerance() * self.closed_total {
                return true;
            }
            let Some(&OpenRow { probability, row }) = self.frontier.peek() else { return true };
            let Some(reading) = self.prefixes[row as usize].reading.take() else { return false };
            self.frontier.pop();
            self.counted += 1;
            self.expand(row, probability, &reading);
            // Added up again, so that rounding does not accumulate: it must reach 0.
            self.expandable = self.frontier.iter().map(|open| open.probability).sum();
        }
    }

    fn expand(&mut self, row: u32, probability: f64, reading: &Reading) {
        let prefix = &self.job.rows()[row as usize];
        let mut unreported: Vec<u32> = Vec::new();
        if let Some(option) = prefix.complete {
            self.closed[option as usize] = probability * reading.end;
            self.closed_total += probability * reading.end;
            unreported.extend(reading.is_end_unreported.then_some(option));
        }
        for (&row, next) in prefix.next.iter().zip(&reading.next) {
            match next {
                Some(next) if probability * next > 0.0 => {
                    self.frontier.push(OpenRow { probability: probability * next, row });
                }
                Some(_) => {}
                None => unreported.extend(&*self.job.rows()[row as usize].options),
            }
        }
        let mass = probability * reading.unreported;
        if mass > 0.0 {
            self.unreported.push(OpenMass { mass, options: sorted_unique(unreported.iter()) });
        }
    }

    fn outcome(&mut self) -> OptionsOutcome {
        let mut open = std::mem::take(&mut self.unreported);
        let mut left: Vec<OpenRow> = std::mem::take(&mut self.frontier).into_vec();
        left.sort_unstable();
        for OpenRow { probability, row } in left {
            let options = self.job.rows()[row as usize].options.clone();
            open.push(OpenMass { mass: probability, options });
        }
        OptionsOutcome { closed: std::mem::take(&mut self.closed), open, nodes: self.counted, answers: None }
    }
}

impl Decoding for OptionsDecoding {
    fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
        self.requested = self.wanted(rows_max);
        let first = (self.prefixes.len() - self.left) as u32;
        let mut paths = Vec::with_capacity(self.requested.len());
        for (index, row) in self.requested.clone().into_iter().enumerate() {
            // Nodes are numbered in the order of their rows, so that a later row of this step can name its
            // parent.
            self.prefixes[row as usize].node = Some(NodeId(first + index as u32));
            paths.push(self.row(row));
        }
        self.left -= paths.len();
        paths
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        for (index, &row) in self.requested.iter().enumerate() {
            let reading = self.read(row, result.row(index))?;
            self.prefixes[row as usize].reading = Some(reading);
        }
        if !self.count() {
            return Ok(Progress::Running);
        }
        events.push(Event::Options(self.outcome()));
        Ok(Progress::Done)
    }
}
