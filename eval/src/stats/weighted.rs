//! Statistics of weighted items.
//!
//! `weights[i]` is how often item `i` counts, as drawn by the bootstrap. If all are one, the result is the
//! plain statistic. Every function takes time linear in the number of items: [`Sorted`] sorts once
//! beforehand.

use super::varies;

/// Number of running sums that fit into the registers of a CPU.
const LANES: usize = 8;

/// A statistic as a function of the weights. `None` if it is undefined.
pub type Weighted<'a> = Box<dyn Fn(&[f64]) -> Option<f64> + Sync + 'a>;

/// The mean of values with weights. `None` without values, or if the sum overflows.
pub type Mean = fn(values: &[f64], weights: &[f64]) -> Option<f64>;

/// Returns the mean of `(value, weight)` pairs, added in order.
pub fn mean(pairs: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    // The neutral element of `Iterator::sum`.
    let (mut sum, mut total) = (-0.0, 0.0);
    for (value, weight) in pairs {
        sum += value * weight;
        total += weight;
    }
    finite(sum / total)
}

/// [`mean`] of two slices.
pub fn mean_in_order(values: &[f64], weights: &[f64]) -> Option<f64> {
    mean(values.iter().copied().zip(weights.iter().copied()))
}

/// Like [`mean_in_order`], but with eight running sums: several times as fast, with different rounding.
pub fn mean_in_lanes(values: &[f64], weights: &[f64]) -> Option<f64> {
    let (value_chunks, value_rest) = values.as_chunks::<LANES>();
    let (weight_chunks, weight_rest) = weights.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    let mut totals = [0.0; LANES];
    for (values, weights) in value_chunks.iter().zip(weight_chunks) {
        for lane in 0..LANES {
            sums[lane] += values[lane] * weights[lane];
            totals[lane] += weights[lane];
        }
    }
    let rest: f64 = value_rest.iter().zip(weight_rest).map(|(value, weight)| value * weight).sum();
    let total = totals.iter().chain(weight_rest).sum::<f64>();
    finite((sums.iter().sum::<f64>() + rest) / total)
}

/// Returns `true` if the items with a weight above 0 differ.
fn vary(values: &[f64], weights: &[f64]) -> bool {
    varies(values.iter().zip(weights).filter(|&(_, &weight)| weight > 0.0).map(|(&value, _)| value))
}

/// Returns `1 - SS_res / SS_tot`, or `None` if the labels do not vary.
pub fn r2(squared_errors: &[f64], labels: &[f64], weights: &[f64], mean: Mean) -> Option<f64> {
    if !vary(labels, weights) {
        return None;
    }
    let centre = mean(labels, weights)?;
    let (mut residual, mut total) = (0.0, 0.0);
    for ((error, label), weight) in squared_errors.iter().zip(labels).zip(weights) {
        residual += error * weight;
        total += (label - centre).powi(2) * weight;
    }
    finite(1.0 - residual / total)
}

/// Returns the influence of each item on the square root of the mean of `squares`, or `None` if all are 0.
pub fn root_mean_terms(squares: &[f64], weights: &[f64], mean: Mean) -> Option<Vec<f64>> {
    let root = mean(squares, weights)?.sqrt();
    (root > 0.0).then(|| squares.iter().map(|square| square / (2.0 * root)).collect())
}

/// Returns the influence of each item on [`r2`], or `None` if the labels do not vary.
pub fn r2_terms(squared_errors: &[f64], labels: &[f64], weights: &[f64], mean: Mean) -> Option<Vec<f64>> {
    if !vary(labels, weights) {
        return None;
    }
    let centre = mean(labels, weights)?;
    let squares: Vec<f64> = labels.iter().map(|label| (label - centre).powi(2)).collect();
    let residual = mean(squared_errors, weights)?;
    let total = mean(&squares, weights)?;
    let mut terms = Vec::with_capacity(squares.len());
    for (error, square) in squared_errors.iter().zip(&squares) {
        terms.push((residual / total * square - error) / total);
    }
    Some(terms)
}

/// Returns the influence of each item on [`pearson`] (Devlin, Gnanadesikan and Kettenring 1975), or `None` if
/// either side does not vary.
pub fn pearson_terms(x: &[f64], y: &[f64], weights: &[f64], mean: Mean) -> Option<Vec<f64>> {
    let correlation = pearson(x, y, weights, mean)?;
    let x = standardised(x, weights, mean)?;
    let y = standardised(y, weights, mean)?;
    let mut terms = Vec::with_capacity(x.len());
    for (x, y) in x.iter().zip(&y) {
        terms.push(x * y - correlation * f64::midpoint(x * x, y * y));
    }
    Some(terms)
}

/// Returns the distances of the values from their mean, in standard deviations.
fn standardised(values: &[f64], weights: &[f64], mean: Mean) -> Option<Vec<f64>> {
    let centre = mean(values, weights)?;
    let squares: Vec<f64> = values.iter().map(|value| (value - centre).powi(2)).collect();
    let deviation = mean(&squares, weights)?.sqrt();
    Some(values.iter().map(|value| (value - centre) / deviation).collect())
}

/// Returns Cohen's kappa with quadratic weights (Cohen 1968), `1 - E(x - y)^2 / E(x - y')^2`. Here `y'`
/// belongs to another item, drawn by the weights. For ratings on a scale this is the kappa over the classes
/// of the scale. Between the classes it is Lin's concordance correlation (1989). `None` if all numbers of
/// both sides are the same.
pub fn kappa(x: &[f64], y: &[f64], squared_errors: &[f64], weights: &[f64], mean: Mean) -> Option<f64> {
    let observed = mean(squared_errors, weights)?;
    if !vary(x, weights) && !vary(y, weights) {
        return (observed > 0.0).then_some(0.0);
    }
    let x_mean = mean(x, weights)?;
    let y_mean = mean(y, weights)?;
    let (mut squares, mut total) = (0.0, 0.0);
    for ((x, y), weight) in x.iter().zip(y).zip(weights) {
        squares += ((x - x_mean).powi(2) + (y - y_mean).powi(2)) * weight;
        total += weight;
    }
    finite(1.0 - observed / (squares / total + (x_mean - y_mean).powi(2)))
}

/// Returns Pearson's correlation, or `None` if either side does not vary.
pub fn pearson(x: &[f64], y: &[f64], weights: &[f64], mean: Mean) -> Option<f64> {
    if !vary(x, weights) || !vary(y, weights) {
        return None;
    }
    let x_mean = mean(x, weights)?;
    let y_mean = mean(y, weights)?;
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for ((x, y), weight) in x.iter().zip(y).zip(weights) {
        let dx = x - x_mean;
        let dy = y - y_mean;
        xx += dx * dx * weight;
        yy += dy * dy * weight;
        xy += dx * dy * weight;
    }
    correlation(xx, yy, xy)
}

/// Returns Spearman's rank correlation. Equal values share the mean of their ranks. `None` if either side
/// does not vary.
pub fn spearman(x: &Sorted, y: &Sorted, weights: &[f64]) -> Option<f64> {
    let (x_ranks, xx) = x.centred_ranks(weights);
    let (y_ranks, yy) = y.centred_ranks(weights);
    let pairs = x.places.iter().zip(&y.places).zip(weights);
    let xy: f64 = pairs.map(|((&x, &y), weight)| x_ranks[x] * y_ranks[y] * weight).sum();
    correlation(xx, yy, xy)
}

/// Returns the correlation from sums of squares and products of deviations. The product of `xx` and `yy`
/// could overflow even if their square roots do not.
fn correlation(xx: f64, yy: f64, xy: f64) -> Option<f64> {
    finite((xy / (xx.sqrt() * yy.sqrt())).clamp(-1.0, 1.0))
}

/// Values by rank: the distinct values in order, and the value of each item.
#[derive(Debug, Clone, PartialEq)]
pub struct Sorted {
    /// In ascending order.
    distinct: Vec<f64>,
    /// For each item, the index of its value in `distinct`.
    places: Vec<usize>,
}

impl Sorted {
    pub fn new(values: &[f64]) -> Self {
        let mut distinct = values.to_vec();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup_by(|a, b| a.total_cmp(b).is_eq());
        let mut places = Vec::with_capacity(values.len());
        for value in values {
            places.push(distinct.partition_point(|other| other.total_cmp(value).is_lt()));
        }
        Self { distinct, places }
    }

    /// Returns the total weight of each distinct value.
    fn counts(&self, weights: &[f64]) -> Vec<f64> {
        let mut counts = vec![0.0; self.distinct.len()];
        for (&place, weight) in self.places.iter().zip(weights) {
            counts[place] += weight;
        }
        counts
    }

    /// Returns the middle value, or the mean of the two middle values. `None` without values.
    pub fn median(&self, weights: &[f64]) -> Option<f64> {
        let counts = self.counts(weights);
        let half = counts.iter().sum::<f64>() / 2.0;
        let mut passed = 0.0;
        let mut lower = None;
        for (&value, count) in self.distinct.iter().zip(counts) {
            passed += count;
            // The middle values are the one that reaches half of all and the one that passes it.
            if passed > half {
                return finite(f64::midpoint(lower.unwrap_or(value), value));
            }
            if passed >= half && lower.is_none() {
                lower = Some(value);
            }
        }
        None
    }

    /// Returns the ranks of the distinct values minus the mean rank of all items, and their sum of squares
    /// over all items.
    fn centred_ranks(&self, weights: &[f64]) -> (Vec<f64>, f64) {
        let counts = self.counts(weights);
        // The ranks 1 to n have this mean, with or without ties.
        let mean = f64::midpoint(counts.iter().sum(), 1.0);
        let (mut passed, mut squares) = (0.0, 0.0);
        let mut ranks = Vec::with_capacity(counts.len());
        for count in counts {
            let rank = passed + f64::midpoint(count, 1.0) - mean;
            passed += count;
            squares += rank * rank * count;
            ranks.push(rank);
        }
        (ranks, squares)
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [f64; 6] = [3.0, -1.0, 4.0, 1.0, 5.0, 1.0];
    const Y: [f64; 6] = [2.0, 0.5, 3.0, 3.0, 9.0, -2.0];
    const ONCE: [f64; 6] = [1.0; 6];
    const WEIGHTS: [f64; 6] = [2.0, 0.0, 1.0, 3.0, 0.0, 1.0];

    /// Repeats every value as often as its weight says.
    fn repeated(values: &[f64]) -> Vec<f64> {
        values
            .iter()
            .zip(WEIGHTS)
            .flat_map(|(&value, weight)| std::iter::repeat_n(value, weight as usize))
            .collect()
    }

    /// Checks that both kinds of sums agree, and returns their result.
    fn either(of: impl Fn(Mean) -> Option<f64>) -> Option<f64> {
        let in_order = of(mean_in_order);
        let in_lanes = of(mean_in_lanes);
        let off = in_order.unwrap_or_default() - in_lanes.unwrap_or_default();
        assert!(in_order.is_some() == in_lanes.is_some() && off.abs() < 1e-12, "{in_order:?} {in_lanes:?}");
        in_order
    }

    fn mean(values: &[f64], weights: &[f64]) -> Option<f64> {
        either(|mean| mean(values, weights))
    }

    fn r2(squared_errors: &[f64], labels: &[f64], weights: &[f64]) -> Option<f64> {
        either(|mean| super::r2(squared_errors, labels, weights, mean))
    }

    fn kappa(x: &[f64], y: &[f64], weights: &[f64]) -> Option<f64> {
        let errors: Vec<f64> = x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).collect();
        either(|mean| super::kappa(x, y, &errors, weights, mean))
    }

    fn pearson(x: &[f64], y: &[f64], weights: &[f64]) -> Option<f64> {
        either(|mean| super::pearson(x, y, weights, mean))
    }

    fn spearman(x: &[f64], y: &[f64], weights: &[f64]) -> Option<f64> {
        super::spearman(&Sorted::new(x), &Sorted::new(y), weights)
    }

    #[test]
    fn plain_statistics_match_numpy_and_scipy() {
        // np.mean(x), np.median(x), pearsonr(x, y)[0], spearmanr(x, y)[0], 1 - ((x - y)**2).sum() / ((y -
        // y.mean())**2).sum()
        let errors: Vec<f64> = X.iter().zip(Y).map(|(x, y)| (x - y).powi(2)).collect();
        let got = [
            mean(&X, &ONCE),
            Sorted::new(&X).median(&ONCE),
            pearson(&X, &Y, &ONCE),
            spearman(&X, &Y, &ONCE),
            r2(&errors, &Y, &ONCE),
        ];
        let want = [2.1666666666666665, 2.0, 0.7322917319169049, 0.7500000000000001, 0.5052696838189707];
        for (got, want) in got.into_iter().zip(want) {
            assert!((got.unwrap() - want).abs() < 1e-12, "{got:?}, not {want}");
        }
        // rankdata(x) - 3.5, and the sum of its squares
        let sorted = Sorted::new(&X);
        let (ranks, squares) = sorted.centred_ranks(&ONCE);
        let of_items: Vec<f64> = sorted.places.iter().map(|&place| ranks[place]).collect();
        assert_eq!((of_items, squares), (vec![0.5, -2.5, 1.5, -1.0, 2.5, -1.0], 17.0));
    }

    #[test]
    fn weights_equal_repeated_items() {
        let x = repeated(&X);
        let y = repeated(&Y);
        let ones = vec![1.0; x.len()];
        let pairs = [
            (mean(&X, &WEIGHTS), mean(&x, &ones)),
            (pearson(&X, &Y, &WEIGHTS), pearson(&x, &y, &ones)),
            (spearman(&X, &Y, &WEIGHTS), spearman(&x, &y, &ones)),
            (r2(&X, &Y, &WEIGHTS), r2(&x, &y, &ones)),
            (kappa(&X, &Y, &WEIGHTS), kappa(&x, &y, &ones)),
            (Sorted::new(&X).median(&WEIGHTS), Sorted::new(&x).median(&ones)),
        ];
        for (got, want) in pairs {
            assert!((got.unwrap() - want.unwrap()).abs() < 1e-12, "{got:?}, not {want:?}");
        }
    }

    /// The influence of an item is the derivative by its weight, centred.
    #[test]
    fn terms_are_the_derivatives_by_the_weights() {
        let errors: Vec<f64> = X.iter().zip(Y).map(|(x, y)| (x - y).powi(2)).collect();
        type Function<'a> = Box<dyn Fn(&[f64]) -> f64 + 'a>;
        let root: Function<'_> = Box::new(|weights| mean(&errors, weights).unwrap().sqrt());
        let explained: Function<'_> = Box::new(|weights| r2(&errors, &Y, weights).unwrap());
        let correlation: Function<'_> = Box::new(|weights| pearson(&X, &Y, weights).unwrap());
        for weights in [ONCE, WEIGHTS] {
            let terms = [
                (&root, root_mean_terms(&errors, &weights, mean_in_order)),
                (&explained, r2_terms(&errors, &Y, &weights, mean_in_order)),
                (&correlation, pearson_terms(&X, &Y, &weights, mean_in_order)),
            ];
            for (function, terms) in terms {
                let terms = terms.unwrap();
                let total: f64 = weights.iter().sum();
                let centre = super::mean_in_order(&terms, &weights).unwrap();
                for item in 0..X.len() {
                    let moved = |by: f64| {
                        let mut weights = weights;
                        weights[item] += by;
                        function(&weights)
                    };
                    let slope = if weights[item] > 0.0 {
                        (moved(1e-5) - moved(-1e-5)) / 2e-5
                    } else {
                        (moved(1e-6) - moved(0.0)) / 1e-6
                    };
                    let influence = (terms[item] - centre) / total;
                    assert!(
                        (influence - slope).abs() < 1e-4 * (1.0 + slope.abs()),
                        "{item}: {influence} {slope}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_even_number_of_items_has_its_median_between_two() {
        let four = Sorted::new(&[8.0, 1.0, 2.0, 4.0]);
        assert_eq!(four.median(&[1.0; 4]), Some(3.0));
        assert_eq!(four.median(&[2.0, 0.0, 2.0, 0.0]), Some(5.0));
        assert_eq!(Sorted::new(&[]).median(&[]), None);
    }

    /// `cohen_kappa_score(x, y, weights="quadratic")` of scikit-learn 1.9.
    #[test]
    fn kappa_of_ratings_matches_scikit_learn() {
        let x = [1.0, 2.0, 5.0, 4.0, 3.0, 3.0, 5.0, 1.0];
        let y = [1.0, 3.0, 4.0, 4.0, 1.0, 3.0, 5.0, 2.0];
        assert!((kappa(&x, &y, &[1.0; 8]).unwrap() - 0.7878787878787878).abs() < 1e-12);
        assert_eq!(kappa(&[1.0; 2], &[2.0; 2], &[1.0; 2]), Some(0.0));
        assert_eq!(kappa(&[2.0; 2], &[2.0; 2], &[1.0; 2]), None);
    }

    #[test]
    fn every_item_counts_for_any_number_of_items() {
        for n in [1, 7, 8, 9, 16, 21] {
            let values: Vec<f64> = (0..n).map(f64::from).collect();
            let weights: Vec<f64> = (0..n).map(|index| f64::from(index % 3)).collect();
            let [sum, total] = [&values, &vec![1.0; values.len()]]
                .map(|values| values.iter().zip(&weights).map(|(value, weight)| value * weight).sum::<f64>());
            let got = mean(&values, &weights);
            assert!(got.map_or(n == 1, |got| (got - sum / total).abs() < 1e-12), "{n}: {got:?}");
        }
    }

    #[test]
    fn constant_values_have_no_correlation_and_no_r2() {
        assert_eq!(pearson(&[1.0, 1.0], &[1.0, 2.0], &[1.0, 1.0]), None);
        assert_eq!(spearman(&[1.0, 1.0], &[1.0, 2.0], &[1.0, 1.0]), None);
        assert_eq!(r2(&[0.0, 1.0], &[3.0, 3.0], &[1.0, 1.0]), None);
        // The mean of three times 0.1 is not 0.1 in floating point.
        let x = [1.0, 2.0, 4.0];
        let tenths = [0.1, 0.1, 0.7];
        let weights = [1.0, 2.0, 0.0];
        assert_eq!((pearson(&x, &tenths, &weights), r2(&x, &tenths, &weights)), (None, None));
        assert_eq!(mean(&[], &[]), None);
    }
}
