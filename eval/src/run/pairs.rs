//! Combines the two answers of a judge on a pair, which it sees in both orders, into one.
//!
//! The scores of the other order are mirrored, so that all scores use the scale of the first order. The
//! distribution of the pair is the mean of the two distributions, so the position in which an answer is shown
//! has no effect.

use ntl_api::{IntervalMethod, NumberInterval};

use crate::metrics::judgement::Orders;
use crate::metrics::same;
use crate::run::reply::{Answer, PredictedNumber};
use crate::settings::number::RatingScale;
use crate::stats::weighted;

/// Returns the answer for a pair. Its number has the expected score in each order if both orders have one.
pub fn both_orders(
    first: Result<Answer, String>,
    swapped: Result<Answer, String>,
    scale: RatingScale,
) -> Result<Answer, String> {
    let first = first?;
    let swapped = swapped.map_err(|reason| format!("in the other order: {reason}"))?;
    let numbers = first.number.as_ref().zip(swapped.number.as_ref());
    let number = numbers.map(|(first, swapped)| merge(first, swapped, scale));
    let text = format!("{}\n\n[other order]\n{}", first.text, swapped.text);
    let cost = first.cost.plus(swapped.cost);
    Ok(Answer { text, number, cost, ..first })
}

fn merge(first: &PredictedNumber, swapped: &PredictedNumber, scale: RatingScale) -> PredictedNumber {
    let masses = PredictedNumber {
        mass_closed: f64::midpoint(first.mass_closed, swapped.mass_closed),
        mass_open: f64::midpoint(first.mass_open, swapped.mass_open),
        ..PredictedNumber::default()
    };
    let Some((own, other)) = first.estimates.zip(swapped.estimates) else {
        let other = swapped.reason.as_ref().map(|reason| format!("in the other order: {reason}"));
        return PredictedNumber { reason: first.reason.clone().or(other), ..masses };
    };
    let values = scale.values();
    let shares = values
        .iter()
        .zip(values.iter().rev())
        .map(|(&value, &mirrored)| (value, f64::midpoint(share(first, value), share(swapped, mirrored))));
    let shares: Vec<(f64, f64)> = shares.collect();
    let orders = Orders {
        first: own[0],
        swapped: scale.ends().low + scale.ends().high - other[0],
        middle: f64::midpoint(scale.ends().low, scale.ends().high),
    };
    let mode = shares.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(own[2], |(value, _)| *value);
    let mean = weighted::mean(shares.iter().copied()).unwrap_or(orders.middle);
    let interval = first.interval.as_ref().and_then(|interval| {
        let coverage = interval.coverage;
        let low = f64::midpoint(0.0, 1.0 - coverage);
        let high = f64::midpoint(1.0, coverage);
        let ends = quantile(&shares, low).zip(quantile(&shares, high));
        let method = IntervalMethod::Quantiles;
        ends.map(|(low, high)| NumberInterval { low, high, coverage, method, reason: None })
    });
    PredictedNumber {
        estimates: Some([mean, quantile(&shares, 0.5).unwrap_or(mean), mode]),
        plain_mean: Some(mean),
        quantiles: first.quantiles.iter().map(|(q, _)| (*q, quantile(&shares, *q))).collect(),
        interval,
        support: shares
            .into_iter()
            .filter(|(_, share)| *share > 0.0)
            .map(|(value, share)| (value, share * masses.mass_closed))
            .collect(),
        orders: Some(orders),
        ..masses
    }
}

/// Returns the share of a value in the probability of all scores.
fn share(number: &PredictedNumber, value: f64) -> f64 {
    let total: f64 = number.support.iter().map(|(_, probability)| probability).sum();
    let own = number.support.iter().filter(|(other, _)| same(*other, value));
    if total > 0.0 { own.map(|(_, probability)| probability).sum::<f64>() / total } else { 0.0 }
}

/// Returns the smallest value at which the distribution function reaches `q`, as the server defines it.
fn quantile(shares: &[(f64, f64)], q: f64) -> Option<f64> {
    let mut below = 0.0;
    let reached = shares.iter().find(|(_, share)| {
        below += share;
        // One part in 1e12 is the rounding error of sums of many probabilities.
        below >= q - 1e-12
    });
    reached.or(shares.last()).map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(support: &[(f64, f64)], mass_closed: f64) -> Result<Answer, String> {
        let mean = weighted::mean(support.iter().copied()).unwrap();
        let number = PredictedNumber {
            estimates: Some([mean, 0.0, 0.0]),
            mass_closed,
            quantiles: vec![(0.25, None)],
            interval: Some(NumberInterval {
                low: 0.0,
                high: 0.0,
                coverage: 0.8,
                method: IntervalMethod::Conformal,
                reason: None,
            }),
            support: support.to_vec(),
            ..PredictedNumber::default()
        };
        Ok(Answer { text: "t".to_owned(), number: Some(number), ..Answer::default() })
    }

    #[test]
    fn a_pair_is_the_mean_of_both_orders_on_one_scale() {
        let scale = "1,2,0.1".parse().unwrap();
        // Mirrored, the other order is 1.9 with 0.75 and 1.2 with 0.25.
        let first = answer(&[(1.2, 0.2), (1.5, 0.2)], 0.4);
        let swapped = answer(&[(1.1, 0.6), (1.8, 0.2)], 0.8);
        let number = both_orders(first, swapped, scale).unwrap().number.unwrap();
        let orders = number.orders.unwrap();
        assert!((orders.first - 1.35).abs() < 1e-12 && (orders.swapped - 1.725).abs() < 1e-12, "{orders:?}");
        assert!((orders.middle - 1.5).abs() < 1e-12);
        let [mean, median, mode] = number.estimates.unwrap();
        assert!((mean - f64::midpoint(1.35, 1.725)).abs() < 1e-12);
        // 1.2 has 0.375, 1.5 has 0.25, 1.9 has 0.375. Ties for the mode go to the smaller value, as on the
        // server.
        assert_eq!((median, mode, number.quantiles[0]), (1.5, 1.2, (0.25, Some(1.2))));
        let interval = number.interval.unwrap();
        assert_eq!((interval.low, interval.high, interval.method), (1.2, 1.9, IntervalMethod::Quantiles));
        let (values, shares): (Vec<f64>, Vec<f64>) = number.support.into_iter().unzip();
        assert_eq!(values, [1.2, 1.5, 1.9]);
        assert!(shares.iter().zip([0.225, 0.15, 0.225]).all(|(a, b)| (a - b).abs() < 1e-12), "{shares:?}");
    }

    #[test]
    fn a_pair_without_a_score_in_one_order_has_none() {
        let scale = "1,5".parse().unwrap();
        let whole = || answer(&[(4.0, 1.0)], 1.0);
        let none = PredictedNumber {
            reason: Some("no mass".to_owned()),
            mass_closed: 0.5,
            ..PredictedNumber::default()
        };
        let none = Ok(Answer { number: Some(none), ..Answer::default() });
        let number = both_orders(whole(), none, scale).unwrap().number.unwrap();
        assert_eq!((number.orders, number.estimates, number.mass_closed), (None, None, 0.75));
        assert_eq!(number.reason.as_deref(), Some("in the other order: no mass"));
        let pair = both_orders(whole(), Err("gone".to_owned()), scale);
        assert_eq!(pair, Err("in the other order: gone".to_owned()));
    }
}
