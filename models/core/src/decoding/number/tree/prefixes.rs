//! The prefixes that may still be counted, and their places in queues.

use std::cmp::{Ordering, Reverse};

use crate::Token;
use crate::contract::NodeId;
use crate::numbers::{ClosedNumber, NumberState, Refused};

/// The prefixes that may still be counted, in slots that are reused.
#[derive(Default)]
pub(super) struct Prefixes {
    places: Vec<Option<Prefix>>,
    free: Vec<u32>,
    /// Prefixes ever inserted.
    inserted: u64,
}

pub(super) struct Prefix {
    /// Distinguishes this prefix from earlier ones in the same slot.
    pub(super) number: u64,
    pub(super) parent: Option<NodeId>,
    pub(super) token: Token,
    pub(super) state: NumberState,
    pub(super) probability: f64,
    pub(super) computed: Option<Box<Computed>>,
}

/// The continuations of a prefix. Probabilities are of the whole text, not conditional on the prefix.
pub(super) struct Computed {
    pub(super) children: Box<[Ranked]>,
    /// Complete numbers. The children contain those that another number follows.
    pub(super) closed: Box<[ClosedNumber]>,
    pub(super) invalid: f64,
    /// Mass of continuations that are too long, pruned or unreported.
    pub(super) left_open: f64,
    /// The unreported part of `left_open`.
    pub(super) unreported: f64,
    /// Conditional on the prefix.
    pub(super) refused: Box<[Refused]>,
}

/// A prefix in a queue. The most probable one in the first number of the answer is first; ties go to the one
/// queued first.
#[derive(Clone, Copy)]
pub(super) struct Ranked {
    pub(super) probability: f64,
    pub(super) order: Reverse<u64>,
    pub(super) place: u32,
    /// See [`NumberState::output`].
    pub(super) output: Reverse<u32>,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let probabilities = self.probability.total_cmp(&other.probability);
        self.output.cmp(&other.output).then(probabilities).then_with(|| self.order.cmp(&other.order))
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
    pub(super) fn insert(&mut self, prefix: Prefix) -> Ranked {
        let probability = prefix.probability;
        let output = Reverse(prefix.state.output() as u32);
        let number = self.inserted;
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
        Ranked { probability, order: Reverse(number), place, output }
    }

    /// The prefix at a place.
    pub(super) fn get(&mut self, place: u32) -> Option<&mut Prefix> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// The state of the prefix at a place.
    pub(super) fn state(&self, place: u32) -> Option<NumberState> {
        Some(self.places.get(place as usize)?.as_ref()?.state)
    }

    /// The prefix that was inserted as `ranked`, unless it is removed.
    pub(super) fn find(&mut self, ranked: &Ranked) -> Option<&mut Prefix> {
        self.get(ranked.place).filter(|prefix| prefix.number == ranked.order.0)
    }

    pub(super) fn remove(&mut self, place: u32) -> Option<Prefix> {
        let removed = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(removed)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
    /// Size of the slots in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Option<Prefix>>() + self.free.capacity() * size_of::<u32>()
    }
}
