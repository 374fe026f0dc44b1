//! Kendall's rank correlation of weighted items.

/// Tau-b, prepared for any weights: the items in the order of `x`, and the ranks of their `y` among the
/// distinct values.
#[derive(Debug, Clone, PartialEq)]
pub struct Kendall {
    /// Items in the order of `x`, and whether the `x` of each differs from the previous item's.
    items: Vec<(usize, bool)>,
    /// For each item, the number of distinct values of `y` that are at most its own. The smallest is 1.
    places: Vec<usize>,
    distinct: usize,
}

impl Kendall {
    pub fn new(x: &[f64], y: &[f64]) -> Self {
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
        let mut items = Vec::with_capacity(order.len());
        for (at, &item) in order.iter().enumerate() {
            let starts = at == 0 || x[order[at - 1]].total_cmp(&x[item]).is_ne();
            items.push((item, starts));
        }
        let mut distinct = y.to_vec();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup_by(|a, b| a.total_cmp(b).is_eq());
        let mut places = Vec::with_capacity(y.len());
        for value in y {
            places.push(distinct.partition_point(|other| other.total_cmp(value).is_le()));
        }
        Self { items, places, distinct: distinct.len() }
    }

    /// Returns `(C - D) / sqrt((n0 - n1) (n0 - n2))` (Kendall 1945). An item with the weight `w` counts as
    /// `w` equal items. `None` if either side does not vary.
    pub fn tau(&self, weights: &[f64]) -> Option<f64> {
        let mut seen = RunningSums::new(self.distinct);
        let mut y_counts = vec![0.0; self.distinct + 1];
        let (mut total, mut concordance, mut x_ties, mut tied) = (0.0, 0.0, 0.0, 0.0);
        let mut group = 0;
        for (at, &(item, starts)) in self.items.iter().enumerate() {
            if starts {
                // Pairs with equal `x` do not count for each other.
                self.items[group..at]
                    .iter()
                    .filter(|(item, _)| weights[*item] > 0.0)
                    .for_each(|&(item, _)| seen.add(self.places[item], weights[item]));
                group = at;
                x_ties += pairs(tied);
                tied = 0.0;
            }
            let place = self.places[item];
            let weight = weights[item];
            if weight > 0.0 {
                let below = seen.up_to(place - 1);
                let up_to = seen.up_to(place);
                concordance += weight * (below - (total - tied - up_to));
            }
            y_counts[place] += weight;
            tied += weight;
            total += weight;
        }
        x_ties += pairs(tied);
        let y_ties: f64 = y_counts.into_iter().map(pairs).sum();
        let x = pairs(total) - x_ties;
        let y = pairs(total) - y_ties;
        (x > 0.0 && y > 0.0).then(|| (concordance / (x.sqrt() * y.sqrt())).clamp(-1.0, 1.0))
    }
}

/// Returns the number of pairs among `count` items.
fn pairs(count: f64) -> f64 {
    count * (count - 1.0) / 2.0
}

/// Sums up to each index, starting at 1. They are read and changed in logarithmic time (Fenwick 1994).
struct RunningSums(Vec<f64>);

impl RunningSums {
    fn new(places: usize) -> Self {
        Self(vec![0.0; places + 1])
    }

    fn add(&mut self, mut place: usize, value: f64) {
        while let Some(sum) = self.0.get_mut(place) {
            *sum += value;
            place += place & place.wrapping_neg();
        }
    }

    fn up_to(&self, mut place: usize) -> f64 {
        let mut sum = 0.0;
        while place > 0 {
            sum += self.0[place];
            place &= place - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Computes tau from all pairs.
    fn by_definition(x: &[f64], y: &[f64]) -> f64 {
        let sign = |a: f64, b: f64| if a > b { 1.0 } else { f64::from(-i8::from(a < b)) };
        let (mut score, mut x_pairs, mut y_pairs) = (0.0, 0.0, 0.0);
        for (i, j) in (0..x.len()).flat_map(|i| (0..i).map(move |j| (i, j))) {
            let dx = sign(x[i], x[j]);
            let dy = sign(y[i], y[j]);
            score += dx * dy;
            x_pairs += dx * dx;
            y_pairs += dy * dy;
        }
        score / f64::sqrt(x_pairs * y_pairs)
    }

    #[test]
    fn tau_matches_its_definition_even_with_ties() {
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        for round in 0..200 {
            let count = rng.random_range(5..40);
            let mut side = || (0..count).map(|_| f64::from(rng.random_range(-4..5))).collect::<Vec<f64>>();
            let x = side();
            let y = side();
            let found = Kendall::new(&x, &y).tau(&vec![1.0; count]);
            let want = by_definition(&x, &y);
            assert!((found.unwrap() - want).abs() < 1e-12, "{round}: {found:?} {want}");
        }
    }

    /// `scipy.stats.kendalltau` of scipy 1.17.
    #[test]
    fn tau_agrees_with_scipy() {
        let x = [12.0, 2.0, 1.0, 12.0, 2.0];
        let y = [1.0, 4.0, 7.0, 1.0, 0.0];
        assert!((Kendall::new(&x, &y).tau(&[1.0; 5]).unwrap() - -0.47140452079103173).abs() < 1e-12);
    }

    #[test]
    fn a_side_that_does_not_vary_has_no_tau() {
        assert_eq!(Kendall::new(&[1.0, 1.0], &[1.0, 2.0]).tau(&[1.0, 1.0]), None);
        assert_eq!(Kendall::new(&[1.0, 2.0], &[1.0, 2.0]).tau(&[2.0, 0.0]), None);
        assert_eq!(Kendall::new(&[], &[]).tau(&[]), None);
    }
}
