//! The cost of answers, as servers report it.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The cost of the requests for one answer. A figure that the server does not report is missing.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// Decoder positions of numbers, including those of draws.
    pub positions: Option<u64>,
    /// Draws of the open mass of numbers.
    pub draws: Option<u64>,
    /// Model steps that computed the positions.
    pub passes: Option<u64>,
    /// Requests of the server to another engine.
    pub requests: Option<u64>,
    /// Tokens of their prompts and answers.
    pub engine_tokens: Option<u64>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

impl Cost {
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the cost of two requests. It has the figures that are known for both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Self {
            positions: sum(self.positions, other.positions),
            draws: sum(self.draws, other.draws),
            passes: sum(self.passes, other.passes),
            requests: sum(self.requests, other.requests),
            engine_tokens: sum(self.engine_tokens, other.engine_tokens),
            prompt_tokens: sum(self.prompt_tokens, other.prompt_tokens),
            completion_tokens: sum(self.completion_tokens, other.completion_tokens),
        }
    }

    fn figures(self) -> [(&'static str, Option<u64>); 7] {
        [
            ("positions", self.positions),
            ("draws", self.draws),
            ("passes", self.passes),
            ("requests", self.requests),
            ("engine_tokens", self.engine_tokens),
            ("prompt_tokens", self.prompt_tokens),
            ("completion_tokens", self.completion_tokens),
        ]
    }
}

/// A figure of the cost of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CostFigure {
    pub per_item: f64,
    pub total: u64,
    /// Number of items with this figure.
    pub n: usize,
}

/// Adds up the costs of items, by the name of the figure. Figures that are 0 for all items are left out.
pub fn total(costs: impl Iterator<Item = Cost>) -> IndexMap<String, CostFigure> {
    let mut figures: IndexMap<String, CostFigure> = IndexMap::new();
    for (name, value) in costs.flat_map(Cost::figures) {
        let figure = figures.entry(name.to_owned()).or_default();
        if let Some(value) = value {
            figure.total = figure.total.saturating_add(value);
            figure.n += 1;
        }
    }
    figures.retain(|_, figure| figure.total > 0);
    for figure in figures.values_mut() {
        figure.per_item = figure.total as f64 / figure.n as f64;
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_covers_the_items_that_have_it() {
        let tokens = |count| Cost { prompt_tokens: Some(count), ..Cost::default() };
        let number = Cost { positions: Some(7), draws: Some(0), ..tokens(3) };
        let figures = total([number, tokens(5), Cost::default(), number.plus(tokens(4))].into_iter());
        let want = [
            ("positions".to_owned(), CostFigure { per_item: 7.0, total: 7, n: 1 }),
            ("prompt_tokens".to_owned(), CostFigure { per_item: 5.0, total: 15, n: 3 }),
        ];
        assert_eq!(figures.into_iter().collect::<Vec<_>>(), want);
    }
}
