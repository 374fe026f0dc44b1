//! Python's `random.Random(seed).sample`, with which lm-eval draws its shots.

use rand_mt::Mt;

/// lm-eval's default seed of few-shot draws.
pub(super) const SEED: u32 = 1234;

/// Python's `random.Random`.
pub(super) struct PythonRandom(Mt);

impl PythonRandom {
    pub(super) fn new(seed: u32) -> Self {
        Self(Mt::new_with_key([seed]))
    }

    /// Indices of `random.sample(population, count)` for a population of `size`; `count` is at most `size`.
    pub(super) fn sample(&mut self, size: usize, count: usize) -> Vec<usize> {
        if size <= pool_max(count) {
            return self.sample_pool(size, count);
        }
        let mut drawn = Vec::with_capacity(count);
        while drawn.len() < count {
            let index = self.below(size);
            if !drawn.contains(&index) {
                drawn.push(index);
            }
        }
        drawn
    }

    fn sample_pool(&mut self, size: usize, count: usize) -> Vec<usize> {
        let mut pool: Vec<usize> = (0..size).collect();
        (0..count)
            .map(|done| {
                let left = size - done;
                let index = self.below(left);
                let drawn = pool[index];
                pool[index] = pool[left - 1];
                drawn
            })
            .collect()
    }

    /// `_randbelow`: the top bits of 32, drawn again until small enough. `limit` is from 1 to 2^32 - 1.
    fn below(&mut self, limit: usize) -> usize {
        let bits = usize::BITS - limit.leading_zeros();
        loop {
            let drawn = (self.0.next_u32() >> (32 - bits)) as usize;
            if drawn < limit {
                return drawn;
            }
        }
    }
}

/// Returns the largest population from which Python draws with a list. From larger ones it draws with a set
/// of the drawn indices.
fn pool_max(count: usize) -> usize {
    if count <= 5 {
        return 21;
    }
    let power = (count as f64 * 3.0).log(4.0).ceil();
    21 + 4_usize.pow(power as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Python 3.11: `r = random.Random(1234)`, then `r.sample(range(size), count)` one after the other.
    #[test]
    fn draws_are_those_of_python() {
        let mut random = PythonRandom::new(1234);
        for (size, count, want) in [
            (7473, 5, vec![6374, 3610, 957, 61, 742]),
            (7473, 5, vec![7462, 6610, 4769, 286, 5501]),
            (7473, 8, vec![5677, 687, 806, 6279, 2905, 1939, 142, 252]),
            (10, 4, vec![0, 5, 7, 4]),
        ] {
            assert_eq!(random.sample(size, count), want, "{count} of {size}");
        }
    }
}
