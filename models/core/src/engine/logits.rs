//! What rows want to know of the logits behind them, and how a model answers: in plain `f32`, whole or reduced.

use std::sync::Arc;

use super::ModelError;

/// What a decoding needs of the logits behind a row. A model may always answer with all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Wanted {
    /// Every logit.
    #[default]
    All,
    /// The most probable id.
    Best,
    /// The most probable id, what the softmax divides by, and the logits of these ids, which rise.
    Ids(Arc<[u32]>),
}

/// What a model says behind one row.
#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// Every logit, as wide as the output layer (padding ids included). It answers whatever was wanted.
    Whole(&'a [f32]),
    /// What was wanted and no more.
    Reduced(&'a Reduced),
}

/// What [`Wanted::Best`] and [`Wanted::Ids`] ask for, worked out where the logits are.
///
/// Where a logit is NaN or infinitely large, or all are minus infinity, `total` is NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced {
    /// Ids from here on are padding.
    pub tokens: usize,
    /// The id with the largest logit below `tokens`, of equals the lowest, and this logit.
    pub best: (u32, f32),
    /// The largest logit of the whole row.
    pub max: f32,
    /// `sum(exp(logit - max))` of the whole row.
    pub total: f64,
    /// The same of padding alone.
    pub padding: f64,
    /// The ids that were asked for, rising.
    pub ids: Arc<[u32]>,
    /// Their logits.
    pub logits: Vec<f32>,
}

impl Reduced {
    /// Whether the row has a softmax.
    pub fn is_distribution(&self) -> bool {
        self.max.is_finite() && self.total.is_finite()
    }

    /// The logit of an id that was asked for, or of the best one.
    pub fn logit(&self, id: u32) -> Option<f32> {
        if id == self.best.0 {
            return Some(self.best.1);
        }
        self.ids.binary_search(&id).ok().and_then(|place| self.logits.get(place)).copied()
    }
}

/// What follows the rows of one step, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    rows: Vec<Kept>,
    /// Whole rows, one behind the other.
    values: Vec<f32>,
    vocab: usize,
    /// What a number head says at each row; empty for models without one.
    numbers: Vec<f32>,
}

/// How a row is answered.
#[derive(Debug, Clone, PartialEq)]
enum Kept {
    /// By the whole row of this number.
    Whole(usize),
    Reduced(Box<Reduced>),
}

impl Logits {
    /// Whole rows: `values` holds `rows * vocab` numbers, row by row.
    ///
    /// # Errors
    /// When `values` is not a whole number of rows.
    pub fn new(values: Vec<f32>, vocab: usize) -> Result<Self, ModelError> {
        let rows = values.len().checked_div(vocab).unwrap_or(0);
        Self::mixed(values, vocab, std::iter::repeat_n(None, rows))
    }

    /// One answer a row: what it was reduced to, or for `None` the next of the whole rows in `values`.
    ///
    /// # Errors
    /// When `values` does not hold exactly those rows.
    pub fn mixed(
        values: Vec<f32>,
        vocab: usize,
        answers: impl IntoIterator<Item = Option<Reduced>>,
    ) -> Result<Self, ModelError> {
        let mut whole = 0;
        let keep = |answer: Option<Reduced>| match answer {
            Some(reduced) => Kept::Reduced(Box::new(reduced)),
            None => {
                whole += 1;
                Kept::Whole(whole - 1)
            }
        };
        let rows = answers.into_iter().map(keep).collect();
        if vocab == 0 || values.len() != whole * vocab {
            return Err(ModelError::LogitsShape { values: values.len(), vocab });
        }
        Ok(Self { rows, values, vocab, numbers: Vec::new() })
    }

    /// The same rows with what the model's number head says at each of them.
    ///
    /// # Errors
    /// When there is not one number a row.
    pub fn with_numbers(self, numbers: Vec<f32>) -> Result<Self, ModelError> {
        if numbers.len() != self.rows() {
            return Err(ModelError::LogitsShape { values: numbers.len(), vocab: 1 });
        }
        Ok(Self { numbers, ..self })
    }

    /// What the model's number head says at a row: the number that may follow it. `None` without such a head.
    pub fn number(&self, index: usize) -> Option<f32> {
        self.numbers.get(index).copied()
    }

    /// What the model says at a row.
    pub fn answer(&self, index: usize) -> Answer<'_> {
        match &self.rows[index] {
            Kept::Whole(place) => Answer::Whole(&self.values[place * self.vocab..(place + 1) * self.vocab]),
            Kept::Reduced(reduced) => Answer::Reduced(reduced),
        }
    }

    /// The logits of one row, as wide as the model's output layer (padding ids included); none of a row that was
    /// answered by less.
    pub fn row(&self, index: usize) -> &[f32] {
        match self.answer(index) {
            Answer::Whole(logits) => logits,
            Answer::Reduced(_) => &[],
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced() -> Reduced {
        let (ids, logits) = (Arc::from([2, 5]), vec![-1.0, -2.0]);
        Reduced { tokens: 6, best: (3, 4.0), max: 4.0, total: 1.5, padding: 0.0, ids, logits }
    }

    #[test]
    fn whole_and_reduced_rows_keep_their_order() {
        let rows = [None, Some(reduced()), None];
        let logits = Logits::mixed(vec![1.0, 2.0, 3.0, 4.0], 2, rows).unwrap();
        assert_eq!(logits.rows(), 3);
        assert_eq!([logits.row(0), logits.row(1), logits.row(2)], [&[1.0, 2.0][..], &[], &[3.0, 4.0]]);
        assert!(matches!(logits.answer(1), Answer::Reduced(found) if *found == reduced()));
        assert!(logits.with_numbers(vec![1.0, 2.0]).is_err(), "a number is missing");
    }

    #[test]
    fn values_that_are_no_whole_rows_are_refused() {
        assert!(Logits::new(vec![0.0; 5], 2).is_err());
        assert!(Logits::new(vec![], 0).is_err());
        assert!(Logits::mixed(vec![0.0; 2], 2, [Some(reduced())]).is_err());
        assert!(Logits::mixed(vec![0.0; 2], 2, [None, None]).is_err());
    }

    #[test]
    fn only_logits_that_were_asked_for_and_the_best_are_there() {
        let logits = [0, 2, 3, 5, 7].map(|id| reduced().logit(id));
        assert_eq!(logits, [None, Some(-1.0), Some(4.0), Some(-2.0), None]);
        assert!(!Reduced { total: f64::NAN, ..reduced() }.is_distribution());
    }
}
