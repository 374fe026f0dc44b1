//! Metrics of numeric answers.
//!
//! In: one [`Row`] per item. Out: every metric with how many rows it is over. Which estimate of a distribution
//! serves which metric is decided here: [`Estimates::mean`] for squared errors, [`Estimates::median`] for
//! absolute ones, [`Estimates::mode`] for exactness. Invariant: values are finite or missing, never NaN.

use std::collections::BTreeMap;

use serde::Serialize;

/// Two numbers count as the same when they differ by at most this share of the label. Wider than the rounding
/// of `f64`, and narrower than any two decimals of up to nine digits: unlike the `1e-5` of `numpy.isclose`, it
/// does not take 1000009 for 1000000.
pub const EXACT_TOLERANCE: f64 = 1e-9;

/// A prediction: the best answers to three questions, all equal where only one number is known. All finite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimates {
    /// For squared errors.
    pub mean: f64,
    /// For absolute errors.
    pub median: f64,
    /// For exact matches.
    pub mode: f64,
}

impl Estimates {
    /// One number for everything.
    pub fn point(value: f64) -> Self {
        Self { mean: value, median: value, mode: value }
    }
}

/// What came back for one item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer {
    /// A number.
    Read(Estimates),
    /// An answer without a number.
    Unparsed,
    /// No answer at all: the request failed.
    Failed,
}

/// One item: what came back, and the label.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// What came back.
    pub answer: Answer,
    /// The finite number that was asked for.
    pub label: f64,
}

impl Row {
    /// A row with one predicted number.
    pub fn read(prediction: f64, label: f64) -> Self {
        Self { answer: Answer::Read(Estimates::point(prediction)), label }
    }

    /// Whether the number is the label, within [`EXACT_TOLERANCE`].
    pub fn is_exact(&self) -> bool {
        matches!(self.answer, Answer::Read(numbers)
            if (numbers.mode - self.label).abs() <= EXACT_TOLERANCE * self.label.abs())
    }
}

/// The metrics, by the names that reports and gates use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// Share of all items whose number is exact; what was not read is wrong.
    Accuracy,
    /// Mean absolute error.
    Mae,
    /// Mean squared error.
    Mse,
    /// Its square root.
    Rmse,
    /// `1 - SS_res / SS_tot`.
    R2,
    /// Median absolute error.
    MedianAe,
    /// Mean absolute error of `sign(x) log10(|x| + 1)`.
    LogMae,
    /// R² of `sign(x) log10(|x| + 1)`.
    LogR2,
    /// Share of the answered items without a number.
    Unparsed,
}

impl Name {
    /// In the order of tables.
    pub const ALL: [Self; 9] = [
        Self::Accuracy,
        Self::Mae,
        Self::Mse,
        Self::Rmse,
        Self::R2,
        Self::MedianAe,
        Self::LogMae,
        Self::LogR2,
        Self::Unparsed,
    ];

    /// The name in reports and gates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Mae => "mae",
            Self::Mse => "mse",
            Self::Rmse => "rmse",
            Self::R2 => "r2",
            Self::MedianAe => "median_ae",
            Self::LogMae => "log_mae",
            Self::LogR2 => "log_r2",
            Self::Unparsed => "unparsed",
        }
    }

    /// The metric of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Which of [`Estimates`] it is computed from; `None` where no number takes part.
    pub fn estimate(self) -> Option<&'static str> {
        match self {
            Self::Accuracy => Some("mode"),
            Self::Mse | Self::Rmse | Self::R2 | Self::LogR2 => Some("mean"),
            Self::Mae | Self::MedianAe | Self::LogMae => Some("median"),
            Self::Unparsed => None,
        }
    }
}

/// A value with its interval and the number of rows behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Metric {
    /// The value; missing where it is not defined.
    pub value: Option<f64>,
    /// Lower end of the 95% interval; missing where there is no closed form.
    pub low: Option<f64>,
    /// Upper end of it.
    pub high: Option<f64>,
    /// How many rows it is over.
    pub n: usize,
}

impl Metric {
    fn plain(value: Option<f64>, n: usize) -> Self {
        Self { value: value.filter(|value| value.is_finite()), low: None, high: None, n }
    }

    /// A share with its Wilson score interval.
    fn share(hits: usize, n: usize) -> Self {
        if n == 0 {
            return Self::default();
        }
        let (share, n_f) = (hits as f64 / n as f64, n as f64);
        let z2 = Z_95 * Z_95;
        let centre = share + z2 / (2.0 * n_f);
        let spread = Z_95 * (share * (1.0 - share) / n_f + z2 / (4.0 * n_f * n_f)).sqrt();
        let end = |value: f64| Some((value / (1.0 + z2 / n_f)).clamp(0.0, 1.0));
        Self { value: Some(share), low: end(centre - spread), high: end(centre + spread), n }
    }
}

/// 97.5% quantile of the normal distribution.
const Z_95: f64 = 1.959_963_984_540_054;

/// Every metric of one set of rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Metrics(BTreeMap<Name, Metric>);

impl Metrics {
    /// Accuracy is over all rows, `unparsed` over the answered ones, the rest over rows with a number.
    pub fn of(rows: &[Row]) -> Self {
        let read: Vec<(Estimates, f64)> = rows.iter().filter_map(read_row).collect();
        let failed = rows.iter().filter(|row| row.answer == Answer::Failed).count();
        let answered = rows.len() - failed;
        let by_mean: Vec<(f64, f64)> = read.iter().map(|(numbers, label)| (numbers.mean, *label)).collect();
        let by_median: Vec<(f64, f64)> =
            read.iter().map(|(numbers, label)| (numbers.median, *label)).collect();
        let errors: Vec<f64> = by_median.iter().map(absolute_error).collect();
        let log_errors: Vec<f64> =
            by_median.iter().map(logarithmic).map(|pair| absolute_error(&pair)).collect();
        let log_by_mean: Vec<(f64, f64)> = by_mean.iter().map(logarithmic).collect();
        let mse = mean(by_mean.iter().map(squared_error));
        let n = read.len();
        let all = Name::ALL.map(|name| {
            let metric = match name {
                Name::Accuracy => Metric::share(rows.iter().filter(|row| row.is_exact()).count(), rows.len()),
                Name::Unparsed => Metric::share(answered - n, answered),
                Name::Mae => Metric::plain(mean(errors.iter().copied()), n),
                Name::Mse => Metric::plain(mse, n),
                Name::Rmse => Metric::plain(mse.map(f64::sqrt), n),
                Name::R2 => Metric::plain(r2(&by_mean), n),
                Name::MedianAe => Metric::plain(median(errors.clone()), n),
                Name::LogMae => Metric::plain(mean(log_errors.iter().copied()), n),
                Name::LogR2 => Metric::plain(r2(&log_by_mean), n),
            };
            (name, metric)
        });
        Self(all.into_iter().collect())
    }

    /// One of them.
    pub fn get(&self, name: Name) -> Metric {
        self.0.get(&name).copied().unwrap_or_default()
    }
}

/// What constant answers would reach on the same labels.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Baselines {
    /// Always the median of the labels.
    pub constant_median: ConstantMedian,
    /// Always the mean of the labels.
    pub constant_mean: ConstantMean,
}

/// The best constant for absolute errors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConstantMedian {
    /// The constant.
    pub value: Option<f64>,
    /// Its mean absolute error.
    pub mae: Metric,
}

/// The best constant for squared errors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConstantMean {
    /// The constant.
    pub value: Option<f64>,
    /// Its root mean squared error.
    pub rmse: Metric,
}

impl Baselines {
    /// Over all rows, whatever came back for them.
    pub fn of(rows: &[Row]) -> Self {
        let labels = || rows.iter().map(|row| row.label);
        let scored = |value: Option<f64>, name| {
            let constant =
                value.map(|value| labels().map(|label| Row::read(value, label)).collect::<Vec<_>>());
            Metrics::of(&constant.unwrap_or_default()).get(name)
        };
        let (middle, centre) = (median(labels().collect()), mean(labels()));
        Self {
            constant_median: ConstantMedian { value: middle, mae: scored(middle, Name::Mae) },
            constant_mean: ConstantMean { value: centre, rmse: scored(centre, Name::Rmse) },
        }
    }
}

fn read_row(row: &Row) -> Option<(Estimates, f64)> {
    match row.answer {
        Answer::Read(numbers) => Some((numbers, row.label)),
        Answer::Unparsed | Answer::Failed => None,
    }
}

fn absolute_error((prediction, label): &(f64, f64)) -> f64 {
    (prediction - label).abs()
}

fn squared_error((prediction, label): &(f64, f64)) -> f64 {
    (prediction - label).powi(2)
}

/// `sign(x) log10(|x| + 1)` of both.
fn logarithmic((prediction, label): &(f64, f64)) -> (f64, f64) {
    let signed_log = |x: f64| x.signum() * (x.abs() + 1.0).log10();
    (signed_log(*prediction), signed_log(*label))
}

/// `None` of nothing, or where the sum overflows.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_usize), |(sum, count), value| (sum + value, count + 1));
    let mean = sum / count as f64;
    mean.is_finite().then_some(mean)
}

/// The middle value, or the mean of the two middle ones; `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(lower / 2.0 + upper / 2.0)
}

/// `None` where the labels do not vary: there is no variance to explain.
fn r2(pairs: &[(f64, f64)]) -> Option<f64> {
    let centre = mean(pairs.iter().map(|(_, label)| *label))?;
    let total: f64 = pairs.iter().map(|(_, label)| squared_error(&(centre, *label))).sum();
    let left: f64 = pairs.iter().map(squared_error).sum();
    (total > 0.0).then_some(1.0 - left / total)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
