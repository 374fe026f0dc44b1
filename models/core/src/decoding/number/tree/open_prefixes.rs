//! The open prefixes of a tree that its budget ended, and draws of them in proportion to their mass.
//!
//! Invariant: memory is bounded. If there are too many prefixes, a stratified sample replaces them. Each of
//! its prefixes represents an equal part of their mass, so sums stay unbiased.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::contract::{OpenDraws, PathRow};
use crate::numbers::NumberState;

/// A sample replaces more prefixes than twice this number.
const KEPT: u32 = 1024;

/// A prefix that the tree does not expand.
pub(super) struct OpenPrefix {
    pub(super) row: PathRow,
    pub(super) state: NumberState,
    /// The mass that it represents.
    pub(super) mass: f64,
    /// Sorts the prefixes of a number roughly by their values.
    pub(super) value: f64,
}

/// A prefix of some of the draws.
pub(super) struct DrawnPrefix {
    pub(super) row: PathRow,
    pub(super) state: NumberState,
    pub(super) draws: Vec<Draw>,
}

#[derive(Clone, Copy)]
pub(super) struct Draw {
    /// Its stratum.
    pub(super) number: u32,
    pub(super) weight: f64,
}

/// Collects open prefixes.
pub(super) struct OpenPrefixes {
    prefixes: Vec<OpenPrefix>,
    rng: ChaCha8Rng,
    draws: u32,
}

/// Prefixes to complete.
pub(super) struct DrawnPrefixes {
    pub(super) prefixes: VecDeque<DrawnPrefix>,
    /// The number of the answer that the prefix of each draw is in, in the order of the strata.
    pub(super) outputs: Vec<usize>,
    /// The mass of each draw.
    pub(super) share: f64,
    pub(super) rng: ChaCha8Rng,
}

impl OpenPrefixes {
    /// `stream` gives each of several trees of one request its own random numbers.
    pub(super) fn new(open: OpenDraws, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(open.seed);
        rng.set_stream(stream);
        Self { prefixes: Vec::new(), rng, draws: open.draws }
    }

    pub(super) fn push(&mut self, prefix: OpenPrefix) {
        self.prefixes.push(prefix);
        if self.prefixes.len() > 2 * KEPT as usize {
            self.thin_out();
        }
    }

    fn thin_out(&mut self) {
        let share = self.mass() / f64::from(KEPT);
        let drawn = self.draw(KEPT);
        let prefixes = std::mem::take(&mut self.prefixes).into_iter().zip(drawn);
        let kept = prefixes.filter(|(_, draws)| !draws.is_empty());
        let kept = kept.map(|(prefix, draws)| OpenPrefix { mass: share * draws.len() as f64, ..prefix });
        self.prefixes = kept.collect();
    }

    fn mass(&self) -> f64 {
        self.prefixes.iter().map(|prefix| prefix.mass).sum()
    }

    /// Sorts the prefixes, cuts their mass into strata of equal mass, and draws one prefix of each. Returns
    /// the numbers of each prefix's strata.
    fn draw(&mut self, strata: u32) -> Vec<Vec<u32>> {
        self.prefixes.sort_by(|a, b| {
            let by_output = a.state.output().cmp(&b.state.output());
            by_output.then_with(|| a.value.total_cmp(&b.value))
        });
        let share = self.mass() / f64::from(strata);
        let mut drawn = vec![Vec::new(); self.prefixes.len()];
        let mut index = 0;
        // The mass up to the end of the prefix at `index`.
        let mut end = self.prefixes.first().map_or(0.0, |prefix| prefix.mass);
        for stratum in 0..strata {
            let point = (f64::from(stratum) + self.rng.random::<f64>()) * share;
            while end <= point
                && let Some(next) = self.prefixes.get(index + 1)
            {
                end += next.mass;
                index += 1;
            }
            drawn[index].push(stratum);
        }
        drawn
    }

    /// Draws the prefixes to complete. `None` if there are none.
    pub(super) fn into_draws(mut self) -> Option<DrawnPrefixes> {
        let share = self.mass() / f64::from(self.draws.max(1));
        if share <= 0.0 {
            return None;
        }
        let drawn = self.draw(self.draws);
        let mut outputs = Vec::with_capacity(self.draws as usize);
        let mut prefixes = VecDeque::new();
        for (OpenPrefix { row, state, .. }, strata) in self.prefixes.into_iter().zip(drawn) {
            outputs.extend(strata.iter().map(|_| state.output()));
            let draws: Vec<Draw> = strata.into_iter().map(|number| Draw { number, weight: 1.0 }).collect();
            if !draws.is_empty() {
                prefixes.push_back(DrawnPrefix { row, state, draws });
            }
        }
        Some(DrawnPrefixes { prefixes, outputs, share, rng: self.rng })
    }

    /// Size in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.prefixes.capacity() * size_of::<OpenPrefix>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::NodeId;

    fn prefix(value: u32, mass: f64) -> OpenPrefix {
        let row = PathRow::new(Some(NodeId(0)), value);
        OpenPrefix { row, state: NumberState::START, mass, value: f64::from(value) }
    }

    #[test]
    fn each_stratum_draws_a_prefix_in_proportion_to_its_mass() {
        let mut drawn = [0_u32; 3];
        for seed in 0..200 {
            let mut open = OpenPrefixes::new(OpenDraws { search_nodes_max: 1, draws: 4, seed }, 0);
            // In any order; sorted, the first one fills the strata 0 and 1 and a fifth of stratum 2.
            for (value, mass) in [(2, 0.05), (0, 0.11), (1, 0.04)] {
                open.push(prefix(value, mass));
            }
            let draws = open.into_draws().unwrap();
            assert!((draws.share - 0.05).abs() < 1e-12);
            for DrawnPrefix { row, draws, .. } in draws.prefixes {
                drawn[row.token.id as usize] += draws.len() as u32;
                let strata: Vec<u32> = draws.iter().map(|draw| draw.number).collect();
                assert!(row.token.id != 0 || strata.starts_with(&[0, 1]));
            }
        }
        // 2.2, 0.8 and 1 of 4 draws are expected.
        let [first, second, third] = drawn;
        assert!((420..=460).contains(&first) && (140..=180).contains(&second) && third == 200, "{drawn:?}");
    }

    #[test]
    fn prefixes_beyond_the_limit_are_thinned_out_to_the_same_mass() {
        let open = OpenDraws { search_nodes_max: 1, draws: 64, seed: 1 };
        let mut prefixes = OpenPrefixes::new(open, 0);
        let count = 10 * KEPT;
        let (mut mass, mut moment) = (0.0, 0.0);
        for value in 0..count {
            let own = 1.0 + f64::from(value % 7);
            mass += own;
            moment += own * f64::from(value);
            prefixes.push(prefix(value, own));
        }
        assert!(prefixes.prefixes.len() <= 2 * KEPT as usize);
        assert!((prefixes.mass() / mass - 1.0).abs() < 1e-9);
        let kept: f64 = prefixes.prefixes.iter().map(|prefix| prefix.mass * prefix.value).sum();
        assert!((kept / moment - 1.0).abs() < 1e-3, "{kept} of {moment}");
        assert_eq!(prefixes.into_draws().unwrap().outputs, vec![0; 64]);
    }
}
