//! Samples of answers that name one of several options.

use super::binomial::probability_bounds;
use super::looks::Look;
use super::numbers::NumberSamples;
use crate::numbers::{Estimation, Interval};

/// The reading of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionReading {
    /// The option with this index.
    Option(usize),
    Invalid,
    /// The answer was cut before it named an option.
    Open,
}

/// Counts of options.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionSamples {
    counts: Vec<usize>,
    /// The indices of the options, as numbers.
    indices: NumberSamples,
    look: Look,
}

impl OptionSamples {
    /// `readings` has one entry for each sample of the look, in their order.
    pub fn new(readings: &[OptionReading], options: usize, look: Look) -> Self {
        let mut counts = vec![0; options];
        let mut indices = Vec::new();
        let mut open = 0;
        for reading in readings {
            match *reading {
                OptionReading::Option(index) => {
                    if let Some(count) = counts.get_mut(index) {
                        *count += 1;
                    }
                    indices.push(index as f64);
                }
                OptionReading::Invalid => {}
                OptionReading::Open => open += 1,
            }
        }
        let indices = NumberSamples::of_values(indices, open, look);
        Self { counts, indices, look }
    }

    /// Number of samples of each option.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.look.samples
    }

    /// The share of the samples that are open.
    pub fn open(&self) -> f64 {
        self.indices.open() as f64 / self.look.samples.max(1) as f64
    }

    /// Bounds of the probability of each option, given that an answer names one of them.
    pub fn probability_bounds(&self) -> Vec<Interval> {
        let open = self.indices.open();
        let known = self.counts.iter().sum::<usize>() + open;
        let mut bounds = Vec::with_capacity(self.counts.len());
        for &count in &self.counts {
            let low = probability_bounds(count, known, self.look.error).low;
            let high = probability_bounds(count + open, known, self.look.error).high;
            bounds.push(Interval { low, high });
        }
        bounds
    }

    /// Bounds of the expected index of an option, given that an answer names one of them.
    pub fn expected_index_bounds(&self) -> Interval {
        let last = self.counts.len().saturating_sub(1) as f64;
        let range = Interval { low: 0.0, high: last };
        let estimation = Estimation { trim: 0.0, normalize: true, range: Some(range) };
        self.indices.mean_bounds(&estimation).unwrap_or(range)
    }
}

#[cfg(test)]
mod tests {
    use super::super::looks::Looks;
    use super::*;

    fn samples(readings: &[OptionReading], options: usize) -> OptionSamples {
        let look = Looks::once(readings.len(), 1).iter().next().unwrap();
        OptionSamples::new(readings, options, look)
    }

    #[test]
    fn options_are_counted_given_that_one_is_named_and_open_answers_widen_the_bounds() {
        use OptionReading::{Invalid, Open, Option};
        let named = samples(&[[Option(1); 6], [Option(0); 6]].concat(), 3);
        assert_eq!((named.counts(), named.samples()), (&[6, 6, 0][..], 12));
        let bounds = named.probability_bounds();
        assert_eq!(bounds[0], probability_bounds(6, 12, 0.05));
        let with_invalid = samples(&[vec![Option(1); 6], vec![Option(0); 6], vec![Invalid; 9]].concat(), 3);
        assert_eq!(with_invalid.probability_bounds(), bounds);
        let with_open = samples(&[vec![Option(1); 6], vec![Option(0); 6], vec![Open; 4]].concat(), 3);
        assert!((with_open.open() - 0.25).abs() < 1e-12);
        for (wider, bounds) in with_open.probability_bounds().iter().zip(&bounds) {
            assert!(wider.low < bounds.low || bounds.low <= 0.0, "{wider:?} {bounds:?}");
            assert!(wider.high > bounds.high, "{wider:?} {bounds:?}");
        }
        let (index, wider) = (named.expected_index_bounds(), with_open.expected_index_bounds());
        assert!(index.low < 0.5 && 0.5 < index.high && wider.high > index.high, "{index:?} {wider:?}");
        let none = samples(&[Invalid; 3], 2);
        assert_eq!(none.probability_bounds(), [Interval { low: 0.0, high: 1.0 }; 2]);
        assert_eq!(none.expected_index_bounds(), Interval { low: 0.0, high: 1.0 });
    }
}
