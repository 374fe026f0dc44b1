//! The loops of attention on the CPU, over rows that share their keys.
//!
//! Many rows take head after head, whose keys and values then stay in the nearest cache. A few rows read keys and values
//! about once, and so in the order of memory: a few positions at a time, for all heads. A row's result is the same to the
//! bit either way.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::attention::{AttentionRow, Heads, RelativeBias, Slices, Visible};
use super::cpu;

/// Rows from which on keys and values are gathered head by head.
const GATHERED_MIN: usize = 4;

/// Positions that are read at a time where they are not gathered: as many streams as a processor can foresee.
const POSITIONS: usize = 8;

/// All heads of some rows with the same keys.
pub(super) struct SomeRows<'a> {
    /// `[rows, H * D]`.
    pub(super) queries: &'a [f32],
    pub(super) before: &'a [Slices<'a>],
    pub(super) own: Slices<'a>,
    pub(super) rows: &'a [AttentionRow<'a>],
    pub(super) heads: Heads,
    pub(super) bias: Option<&'a RelativeBias>,
    /// `[rows, H * D]`.
    pub(super) out: &'a mut [f32],
}

impl WithSimd for SomeRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Rows that see the first positions see the beginning of the same list.
        let firsts = self.rows.iter().filter_map(|row| row.visible.first()).max();
        let shared = firsts.map_or_else(Vec::new, |count| self.seen(Visible::First(count)));
        let own: Vec<_> = self.rows.iter().map(|row| self.seen_alone(row)).collect();
        if self.rows.len() >= GATHERED_MIN {
            self.by_head(simd, &shared, &own);
        } else {
            for (index, own) in own.iter().enumerate() {
                let is_first = self.rows[index].visible.first().is_some();
                self.by_position(simd, index, if is_first { &shared } else { own });
            }
        }
    }
}

impl<'a> SomeRows<'a> {
    /// Width of a head.
    fn dim(&self) -> usize {
        self.queries.len() / self.rows.len() / self.heads.queries
    }

    /// Width of the queries of all heads.
    fn width(&self) -> usize {
        self.queries.len() / self.rows.len()
    }

    /// Width of the keys of all heads.
    fn key_width(&self) -> usize {
        self.dim() * self.heads.keys
    }

    /// Where a query head stands among those of its row, and its key among those of its position.
    fn lanes(&self, head: usize) -> (Range<usize>, Range<usize>) {
        let (dim, sharing) = (self.dim(), self.heads.queries / self.heads.keys);
        let (lane, key_lane) = (head * dim, head / sharing * dim);
        (lane..lane + dim, key_lane..key_lane + dim)
    }

    /// Positions that are seen at most, those out of sight included.
    pub(super) fn seen_max(&self) -> usize {
        let own = self.rows.iter().map(|row| row.visible.len()).max();
        self.before_len() + own.unwrap_or(0)
    }

    /// Which of the listed positions a row sees.
    fn in_sight(&self, row: &AttentionRow<'_>) -> Range<usize> {
        row.hidden..self.before_len() + row.visible.len()
    }

    /// Key and value of every position that a row sees, in order.
    fn seen(&self, visible: Visible<'_>) -> Vec<Slices<'a>> {
        let width = self.key_width();
        let mut seen = Vec::with_capacity(self.seen_max());
        for (keys, values) in self.before {
            seen.extend(keys.chunks_exact(width).zip(values.chunks_exact(width)));
        }
        let own = (0..visible.len()).map(|index| visible.at(index) * width);
        seen.extend(own.map(|at| (&self.own.0[at..at + width], &self.own.1[at..at + width])));
        seen
    }

    /// The same for a row that sees positions of its own; nothing for others.
    fn seen_alone(&self, row: &AttentionRow<'_>) -> Vec<Slices<'a>> {
        match row.visible {
            Visible::First(_) => Vec::new(),
            Visible::Nodes(_) => self.seen(row.visible),
        }
    }

    /// How many positions stand before all others.
    fn before_len(&self) -> usize {
        self.before.iter().map(|(keys, _)| keys.len()).sum::<usize>() / self.key_width()
    }

    /// Scores of one head to shares of one.
    #[inline(always)]
    fn share(&self, scores: &mut [f32], head: usize, row: &AttentionRow<'_>) {
        if let Some(bias) = self.bias {
            bias.add(scores, head, row);
        }
        cpu::softmax(scores);
    }

    /// One row after the other within each head.
    #[inline(always)]
    fn by_head<S: Simd>(&mut self, simd: S, shared: &[Slices<'_>], own: &[Vec<Slices<'_>>]) {
        let (dim, width) = (self.dim(), self.width());
        let mut weights = vec![0.0_f32; self.seen_max()];
        let mut gathered = Vec::new();
        for head in 0..self.heads.queries {
            let (lane, key_lane) = self.lanes(head);
            gather(shared, key_lane.clone(), &mut gathered);
            let (keys, values) = gathered.split_at(gathered.len() / 2);
            let shared: Vec<_> = keys.chunks_exact(dim).zip(values.chunks_exact(dim)).collect();
            for (index, (row, own)) in self.rows.iter().zip(own).enumerate() {
                let place = index * width + lane.start..index * width + lane.end;
                let own: Vec<_> =
                    own.iter().map(|(k, v)| (&k[key_lane.clone()], &v[key_lane.clone()])).collect();
                let seen = if row.visible.first().is_some() { &shared } else { &own };
                let seen = &seen[self.in_sight(row)];
                let (query, weights) = (&self.queries[place.clone()], &mut weights[..seen.len()]);
                for (weight, (key, _)) in weights.iter_mut().zip(seen) {
                    *weight = cpu::dot(simd, query, key) * self.heads.scale;
                }
                self.share(weights, head, row);
                let weighted = weights.iter().zip(seen).map(|(&weight, &(_, value))| (weight, value));
                let out = &mut self.out[place];
                out.fill(0.0);
                cpu::add_weighted(simd, weighted, out);
            }
        }
    }

    /// A few positions at a time, for all heads.
    #[inline(always)]
    fn by_position<S: Simd>(&mut self, simd: S, index: usize, seen: &[Slices<'_>]) {
        let (row, width) = (&self.rows[index], self.width());
        let seen = &seen[self.in_sight(row)];
        let query = &self.queries[index * width..(index + 1) * width];
        let mut weights = vec![0.0_f32; self.heads.queries * seen.len()];
        for (block, seen_now) in seen.chunks(POSITIONS).enumerate() {
            for (head, weights) in weights.chunks_exact_mut(seen.len()).enumerate() {
                let (lane, key_lane) = self.lanes(head);
                let weights = weights[block * POSITIONS..].iter_mut();
                for (weight, (key, _)) in weights.zip(seen_now) {
                    *weight = cpu::dot(simd, &query[lane.clone()], &key[key_lane.clone()]) * self.heads.scale;
                }
            }
        }
        for (head, weights) in weights.chunks_exact_mut(seen.len()).enumerate() {
            self.share(weights, head, row);
        }
        self.out[index * width..(index + 1) * width].fill(0.0);
        for (block, seen_now) in seen.chunks(POSITIONS).enumerate() {
            for (head, weights) in weights.chunks_exact(seen.len()).enumerate() {
                let (lane, key_lane) = self.lanes(head);
                let weights = weights[block * POSITIONS..].iter();
                let weighted =
                    weights.zip(seen_now).map(|(&weight, &(_, value))| (weight, &value[key_lane.clone()]));
                let out = &mut self.out[index * width + lane.start..index * width + lane.end];
                cpu::add_weighted(simd, weighted, out);
            }
        }
    }
}

/// Keys of one head, then its values, one behind the other: lanes of distant positions would push each other out of the
/// nearest cache.
fn gather(seen: &[Slices<'_>], lanes: Range<usize>, gathered: &mut Vec<f32>) {
    gathered.clear();
    seen.iter().for_each(|(keys, _)| gathered.extend_from_slice(&keys[lanes.clone()]));
    seen.iter().for_each(|(_, values)| gathered.extend_from_slice(&values[lanes.clone()]));
}
