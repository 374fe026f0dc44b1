//! The mass of the counted prefixes of each number of an answer.

use std::collections::HashMap;

use super::super::sought::Sought;
use super::prefixes::Computed;
use crate::numbers::{Interval, NumberValue, OpenPart};

#[derive(Default)]
pub(super) struct Counted {
    /// The numbers of an answer: one, except for models with several outputs.
    pub(super) outputs: Vec<Output>,
    /// The number whose prefixes are counted.
    pub(super) current: usize,
    /// Prefixes that will not be counted, and the numbers that they are in, if these have bounds.
    pub(super) dropped: Vec<(usize, OpenPart)>,
    /// The part of the open mass that another engine does not report.
    pub(super) unreported: f64,
    pub(super) nodes: usize,
    pub(super) queued: u64,
}

/// The mass of one number of an answer. The three parts add up to 1.
#[derive(Clone)]
pub(super) struct Output {
    pub(super) closed: HashMap<NumberValue, f64>,
    /// The mass of all numbers in `closed`.
    pub(super) closed_mass: f64,
    /// Without the mass of values that are not numbers.
    pub(super) invalid: f64,
    pub(super) open: f64,
}

impl Default for Output {
    fn default() -> Self {
        Self { closed: HashMap::new(), closed_mass: 0.0, invalid: 0.0, open: 1.0 }
    }
}

impl Counted {
    /// The open mass of the present number.
    pub(super) fn open(&self) -> f64 {
        self.outputs[self.current].open
    }

    /// Adds a prefix of the present number.
    pub(super) fn add(&mut self, computed: &Computed, probability: f64) {
        self.nodes += 1;
        self.unreported += computed.unreported;
        let (present, later) = self.outputs[self.current..].split_at_mut(1);
        for output in &mut *present {
            output.invalid += computed.invalid;
            output.open += computed.left_open - probability;
            let longer = computed.children.iter().filter(|child| child.output.0 == self.current as u32);
            for child in longer {
                output.open += child.probability;
            }
            for closing in &computed.closed {
                *output.closed.entry(closing.value).or_default() += closing.probability;
                if !closing.value.is_special() {
                    output.closed_mass += closing.probability;
                }
            }
        }
        for output in later {
            output.invalid += computed.invalid;
            output.open -= computed.invalid;
        }
    }
}

/// Minimum number of parts that [`coalesce`] keeps.
const PARTS_MIN: usize = 16;

/// Joins neighbouring intervals of each number while there are more than `max` parts, but none on different
/// sides of a quantile: the joined part would contain the quantile, and widen its bounds.
pub(super) fn coalesce(parts: &mut Vec<(usize, OpenPart)>, max: usize, sought: &Sought) {
    let max = max.max(PARTS_MIN);
    let mut before = usize::MAX;
    while parts.len() > max && parts.len() < before {
        before = parts.len();
        let mut grouped = Vec::with_capacity(parts.len());
        for &(output, part) in &*parts {
            grouped.push(((output, part.is_certain, sought.sides(&part)), (output, part)));
        }
        grouped.sort_by(|(a, (_, left)), (b, (_, right))| {
            a.cmp(b).then(left.interval.low.total_cmp(&right.interval.low))
        });
        let groups = grouped.chunk_by(|(a, _), (b, _)| a == b);
        *parts = groups.flat_map(|group| group.chunks(2)).filter_map(join).collect();
    }
}

/// Returns a part with all numbers and the probability of the given ones, which are of one number.
fn join<G>(parts: &[(G, (usize, OpenPart))]) -> Option<(usize, OpenPart)> {
    parts.iter().map(|(_, part)| *part).reduce(|(output, left), (_, right)| {
        let low = left.interval.low.min(right.interval.low);
        let high = left.interval.high.max(right.interval.high);
        let probability = left.probability + right.probability;
        let is_certain = left.is_certain && right.is_certain;
        (output, OpenPart { interval: Interval { low, high }, probability, is_certain })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Precision;
    use crate::numbers::{Estimation, Objective};

    #[test]
    fn parts_are_joined_with_neighbours_on_the_same_side_of_a_quantile() {
        let median =
            Precision { width: 0.0, objectives: vec![Objective::Median], estimation: Estimation::default() };
        let mut sought = Sought::new(Some(&median));
        sought.narrow(&[Some(Interval { low: 4.5, high: 4.5 })], &median);
        let part = |low: u32| {
            let interval = Interval { low: f64::from(low), high: f64::from(low) + 0.25 };
            (0, OpenPart { interval, probability: 1.0, is_certain: true })
        };
        // Five below the median, and 95 above.
        let mut parts: Vec<_> = (0..100).map(part).collect();
        coalesce(&mut parts, PARTS_MIN, &sought);
        let below = parts.iter().filter(|(_, part)| part.interval.high < 4.5);
        assert!(parts.len() <= PARTS_MIN);
        assert_eq!(below.map(|(_, part)| part.probability as usize).sum::<usize>(), 5);
        assert!(parts.iter().all(|(_, part)| part.interval.high < 4.5 || part.interval.low > 4.5));
    }
}
