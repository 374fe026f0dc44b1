//! The logits that a row requests and that a model returns: plain `f32` rows, complete or summarised.

use std::sync::Arc;

use crate::report::NextTokenReport;

/// The logits that a decoding needs after a row. A model may always return the full row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LogitsRequest {
    #[default]
    All,
    /// The most probable id.
    Best,
    /// The most probable id, the softmax denominator, and the logits of these ids (ascending).
    Ids(Arc<[u32]>),
    /// In place of logits, the vector that they would be computed from: a decoder's hidden states at the row
    /// after the last normalisation, or the pooled output of an encoder ([`ContextRequest::pooling`]).
    ///
    /// [`ContextRequest::pooling`]: crate::contract::ContextRequest::pooling
    Hidden,
}

/// The logits after one row.
#[derive(Debug, Clone, Copy)]
pub enum LogitsRow<'a> {
    /// Every logit, as wide as the output layer, which may have more ids than the tokenizer; or the vector
    /// that a [`LogitsRequest::Hidden`] requests.
    Full(&'a [f32]),
    /// Only the part that a [`LogitsRequest::Best`] or [`LogitsRequest::Ids`] requests.
    Summary(&'a LogitsSummary),
    /// The log-probabilities that another engine reports. Requested ids may be missing.
    Report(&'a NextTokenReport),
}

/// A device's summary of a row of logits, so that the row itself need not be copied to the host.
///
/// If a logit is NaN or `+inf`, or all are `-inf`, `total` is NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitsSummary {
    /// The id with the largest logit among those that the tokenizer knows. Ties go to the lowest id.
    pub best_id: u32,
    pub best_logit: f32,
    /// The largest logit of the whole row.
    pub max: f32,
    /// `sum(exp(logit - max))` over the whole row.
    pub total: f64,
    /// The requested ids, ascending. Shared by all rows of a request.
    pub ids: Arc<[u32]>,
    /// One logit for each of `ids`.
    pub logits: Vec<f32>,
}

impl LogitsSummary {
    /// Returns whether the row has a softmax.
    pub fn is_distribution(&self) -> bool {
        self.max.is_finite() && self.total.is_finite()
    }

    /// The logit of a requested id, or of the best one.
    pub fn logit(&self, id: u32) -> Option<f32> {
        if id == self.best_id {
            return Some(self.best_logit);
        }
        self.ids.binary_search(&id).ok().and_then(|place| self.logits.get(place)).copied()
    }
}

/// The values are not a whole number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{values} logits are not a whole number of rows of {vocab}")]
pub struct LogitsShape {
    pub values: usize,
    /// Width of a row.
    pub vocab: usize,
}

/// The logits after the rows of one step, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    rows: Vec<StoredRow>,
    /// Full rows, one after the other.
    values: Vec<f32>,
    vocab: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct StoredRow {
    content: RowContent,
    head_value: Option<f32>,
}

#[derive(Debug, Clone, PartialEq)]
enum RowContent {
    /// The full row of this number in `values`.
    Full(usize),
    Summary(Box<LogitsSummary>),
    Report(Box<NextTokenReport>),
    Hidden(Vec<f32>),
}

impl Logits {
    /// Full rows: `values` is `[rows, vocab]`.
    pub fn new(values: Vec<f32>, vocab: usize) -> Result<Self, LogitsShape> {
        let rows = values.len().checked_div(vocab).unwrap_or(0);
        Self::mixed(values, vocab, std::iter::repeat_n(None, rows))
    }

    /// One entry per row: its summary, or for `None` the next of the full rows in `values`
    /// (`[full rows, vocab]`).
    pub fn mixed(
        values: Vec<f32>,
        vocab: usize,
        rows: impl IntoIterator<Item = Option<LogitsSummary>>,
    ) -> Result<Self, LogitsShape> {
        let mut full = 0;
        let mut stored = Vec::new();
        for summary in rows {
            let content = match summary {
                Some(summary) => RowContent::Summary(Box::new(summary)),
                None => {
                    full += 1;
                    RowContent::Full(full - 1)
                }
            };
            stored.push(StoredRow { content, head_value: None });
        }
        if vocab == 0 || values.len() != full * vocab {
            return Err(LogitsShape { values: values.len(), vocab });
        }
        Ok(Self { rows: stored, values, vocab })
    }

    /// Rows that another engine reports.
    pub fn reported(reports: impl IntoIterator<Item = NextTokenReport>) -> Self {
        let mut rows = Vec::new();
        for report in reports {
            rows.push(StoredRow { content: RowContent::Report(Box::new(report)), head_value: None });
        }
        Self { rows, values: Vec::new(), vocab: 0 }
    }

    /// The same rows with the number that the model's number head predicts after each of them.
    pub fn with_head_values(mut self, values: Vec<f32>) -> Result<Self, LogitsShape> {
        if values.len() != self.rows() {
            return Err(LogitsShape { values: values.len(), vocab: 1 });
        }
        for (row, value) in self.rows.iter_mut().zip(values) {
            row.head_value = Some(value);
        }
        Ok(self)
    }

    /// The same rows, of which some have hidden states in place of logits.
    #[must_use]
    pub fn with_hidden(mut self, hidden: Vec<Option<Vec<f32>>>) -> Self {
        for (row, vector) in self.rows.iter_mut().zip(hidden) {
            if let Some(vector) = vector {
                row.content = RowContent::Hidden(vector);
            }
        }
        self
    }

    /// The number that the model's number head predicts after a row; `None` for models without such a head.
    #[inline]
    pub fn head_value(&self, index: usize) -> Option<f32> {
        self.rows[index].head_value
    }

    #[inline]
    pub fn get(&self, index: usize) -> LogitsRow<'_> {
        match &self.rows[index].content {
            RowContent::Full(place) => LogitsRow::Full(&self.values[place * self.vocab..][..self.vocab]),
            RowContent::Summary(summary) => LogitsRow::Summary(summary),
            RowContent::Report(report) => LogitsRow::Report(report),
            RowContent::Hidden(vector) => LogitsRow::Full(vector),
        }
    }

    /// Returns the full row of logits after a row that requested [`LogitsRequest::All`].
    ///
    /// # Panics
    /// If the model returned only a summary.
    #[expect(clippy::panic, reason = "models return the full row for `LogitsRequest::All`")]
    pub fn row(&self, index: usize) -> &[f32] {
        match self.get(index) {
            LogitsRow::Full(logits) => logits,
            LogitsRow::Summary(_) | LogitsRow::Report(_) => {
                panic!("row {index} did not request all logits")
            }
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> LogitsSummary {
        let ids = Arc::from([2, 5]);
        let logits = vec![-1.0, -2.0];
        let (best_id, best_logit) = (3, 4.0);
        LogitsSummary { best_id, best_logit, max: 4.0, total: 1.5, ids, logits }
    }

    #[test]
    fn full_and_summarised_rows_keep_their_order() {
        let rows = [None, Some(summary()), None];
        let logits = Logits::mixed(vec![1.0, 2.0, 3.0, 4.0], 2, rows).unwrap();
        assert_eq!(logits.rows(), 3);
        assert_eq!([logits.row(0), logits.row(2)], [&[1.0, 2.0], &[3.0, 4.0]]);
        assert!(matches!(logits.get(1), LogitsRow::Summary(found) if *found == summary()));
        assert!(logits.with_head_values(vec![1.0, 2.0]).is_err(), "a value is missing");
    }

    #[test]
    #[should_panic = "row 0 did not request all logits"]
    fn a_summarised_row_has_no_full_row() {
        let logits = Logits::mixed(Vec::new(), 2, [Some(summary())]).unwrap();
        logits.row(0);
    }

    #[test]
    fn values_that_are_not_whole_rows_are_rejected() {
        assert!(Logits::new(vec![0.0; 5], 2).is_err());
        assert!(Logits::new(vec![], 0).is_err());
        assert!(Logits::mixed(vec![0.0; 2], 2, [Some(summary())]).is_err());
        assert!(Logits::mixed(vec![0.0; 2], 2, [None, None]).is_err());
    }

    #[test]
    fn only_requested_logits_and_the_best_are_present() {
        let logits = [0, 2, 3, 5, 7].map(|id| summary().logit(id));
        assert_eq!(logits, [None, Some(-1.0), Some(4.0), Some(-2.0), None]);
        assert!(!LogitsSummary { total: f64::NAN, ..summary() }.is_distribution());
    }
}
