//! The number tokens of a vocabulary: by id for looking up, with ranks for distances in ranks.

/// The ids that are numbers to a loss.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NumberTokens {
    /// The tokens, sorted by id.
    tokens: Vec<NumberToken>,
    /// See [`Self::gap`].
    gap: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NumberToken {
    pub(super) id: u32,
    pub(super) value: f64,
    /// Its place among the others in the order of values.
    pub(super) rank: usize,
    /// Whether its text is one digit.
    pub(super) is_digit: bool,
}

impl NumberTokens {
    /// Creates number tokens that are ranked by their values. Tokens whose values are not finite are left
    /// out. If an id is given twice, the last value counts.
    ///
    /// The paper's code keeps pieces such as `inf` and `nan` if a vocabulary has them, after which all its
    /// losses are infinite or NaN.
    pub fn new(values: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let finite = values.into_iter().filter(|(_, value)| value.is_finite());
        let by_id: std::collections::BTreeMap<u32, f64> = finite.collect();
        let gap = smallest_gap(by_id.values().copied().collect());
        let mut tokens = Vec::with_capacity(by_id.len());
        for (id, value) in by_id {
            tokens.push(NumberToken { id, value, rank: 0, is_digit: false });
        }
        Self { tokens, gap }.ranked_by(|_, value| value)
    }

    /// Returns the same tokens, ranked by `key` of their ids and values. The tokens of the Regression
    /// Transformer, whose values are digits, are ranked by digit times ten to the place.
    ///
    /// Tokens of one key are ranked by id. The paper's code leaves them in the arbitrary order of an unstable
    /// sort.
    pub fn ranked_by(mut self, key: impl Fn(u32, f64) -> f64) -> Self {
        // Adding 0 turns -0 into 0.
        let keys: Vec<f64> = self.tokens.iter().map(|token| key(token.id, token.value) + 0.0).collect();
        let mut order: Vec<usize> = (0..self.tokens.len()).collect();
        order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
        for (rank, index) in order.into_iter().enumerate() {
            self.tokens[index].rank = rank;
        }
        self
    }

    /// Returns the same tokens, of which those with these ids are digits.
    pub fn with_digits(mut self, is_digit: impl Fn(u32) -> bool) -> Self {
        for token in &mut self.tokens {
            token.is_digit = is_digit(token.id);
        }
        self
    }

    /// The value of an id that is a number.
    pub fn value(&self, id: u32) -> Option<f64> {
        self.index(id).map(|index| self.tokens[index].value)
    }

    /// Returns `true` if no id is a number.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Ids and values, by id.
    pub fn values(&self) -> impl Iterator<Item = (u32, f64)> {
        self.tokens.iter().map(|token| (token.id, token.value))
    }

    pub(super) fn all(&self) -> &[NumberToken] {
        &self.tokens
    }

    pub(super) fn index(&self, id: u32) -> Option<usize> {
        self.tokens.binary_search_by_key(&id, |token| token.id).ok()
    }

    /// The smallest difference between two values that differ, or 0 if there are none.
    pub(super) fn gap(&self) -> f64 {
        self.gap
    }

    /// The largest difference between two values, or 0 if there are none.
    pub(super) fn span(&self) -> f64 {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        for token in &*self.tokens {
            low = low.min(token.value);
            high = high.max(token.value);
        }
        if self.tokens.is_empty() { 0.0 } else { high - low }
    }
}

fn smallest_gap(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let mut gap = f64::INFINITY;
    for pair in values.windows(2) {
        let difference = pair[1] - pair[0];
        if difference > 0.0 {
            gap = gap.min(difference);
        }
    }
    if gap.is_finite() { gap } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(tokens: &NumberTokens) -> Vec<(u32, usize)> {
        tokens.all().iter().map(|token| (token.id, token.rank)).collect()
    }

    #[test]
    fn tokens_are_ranked_by_value_then_id_or_by_a_key() {
        let tokens =
            NumberTokens::new([(7, 5.0), (3, 0.0), (9, 5.0), (8, -1.0), (4, f64::NAN), (5, f64::INFINITY)]);
        assert_eq!(ranks(&tokens), [(3, 1), (7, 2), (8, 0), (9, 3)]);
        let tokens =
            tokens.ranked_by(|id, _| [9, 3, 7, 8].iter().position(|&other| other == id).unwrap() as f64);
        assert_eq!(ranks(&tokens), [(3, 1), (7, 2), (8, 3), (9, 0)]);
        assert_eq!((tokens.value(7), tokens.value(4)), (Some(5.0), None));
        let zeros = NumberTokens::new([(1, 0.0), (2, -0.0), (3, -1.0)]);
        assert_eq!(ranks(&zeros), [(1, 1), (2, 2), (3, 0)]);
    }

    #[test]
    fn the_span_is_the_largest_difference_and_the_gap_the_smallest() {
        for (values, span, gap) in [
            (&[][..], 0.0, 0.0),
            (&[4.0], 0.0, 0.0),
            (&[4.0, 4.0], 0.0, 0.0),
            (&[4.0, -1.0, 4.5, 4.0], 5.5, 0.5),
        ] {
            let tokens = NumberTokens::new((0..).zip(values.iter().copied()));
            assert!((tokens.span() - span).abs() < 1e-12, "{values:?}");
            assert!((tokens.gap() - gap).abs() < 1e-12, "{values:?}");
        }
        assert!(NumberTokens::new([]).is_empty());
    }
}
