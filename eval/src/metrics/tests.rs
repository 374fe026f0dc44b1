//! Metrics against values computed by hand.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::decision::{Changes, DecisionScores, OptionScores};
use super::digits::DigitScores;
use super::distribution::{IntervalScore, Predicted};
use super::judgement::{Orders, Preference, Rating};
use super::law::LawScores;
use super::*;

fn close(got: Option<f64>, want: f64) {
    assert!(got.is_some_and(|got| (got - want).abs() < 1e-9), "got {got:?}, want {want}");
}

impl Row {
    /// A row with a number, which is correct if it is the true one.
    pub(crate) fn numeric(outcome: Outcome, truth: f64) -> Self {
        let correct = matches!(outcome, Outcome::Read(numbers) if same(numbers.mode, truth));
        Self {
            outcome,
            truth: Some(truth),
            correct,
            lm_eval_matches: None,
            text_scores: None,
            estimates: None,
            distribution: None,
            digits: None,
            law: None,
            likelihood: None,
            judgement: None,
            decision: None,
        }
    }

    /// A row with one predicted number.
    pub(crate) fn read(prediction: f64, truth: f64) -> Self {
        Self::numeric(Outcome::Read(Estimates::point(prediction)), truth)
    }
}

fn measure(rows: &[Row], seed: u64) -> Metrics {
    Metrics::of(&rows.iter().collect::<Vec<_>>(), seed)
}

fn value(rows: &[Row], name: &str) -> Option<f64> {
    measure(rows, 0).get(name).value
}

#[test]
fn metrics_agree_with_values_computed_by_hand() {
    // Errors 0, 1, -2, 4; labels have mean 4 and squared deviations 9, 1, 1, 9.
    let rows = [Row::read(1.0, 1.0), Row::read(4.0, 3.0), Row::read(3.0, 5.0), Row::read(11.0, 7.0)];
    for (name, want) in [
        ("accuracy", 0.25),
        ("mae", 7.0 / 4.0),
        ("mse", 21.0 / 4.0),
        ("rmse", (21.0_f64 / 4.0).sqrt()),
        ("r2", 1.0 - 21.0 / 20.0),
        ("median_ae", 1.5),
        ("unparsed", 0.0),
        // log10 of 2/2, 5/4, 4/6 and 12/8.
        ("log_mae", ((5.0_f64 / 4.0).log10() + (6.0_f64 / 4.0).log10() + (12.0_f64 / 8.0).log10()) / 4.0),
    ] {
        close(value(&rows, name), want);
    }
}

#[test]
fn the_log_transform_keeps_the_sign() {
    let rows = [Row::read(-9.0, 9.0), Row::read(0.0, 99.0)];
    close(value(&rows, "log_mae"), 2.0);
    // Labels 1 and 2 on the log scale: SS_tot 0.5; residuals 2 and 2.
    close(value(&rows, "log_r2"), 1.0 - 8.0 / 0.5);
}

#[test]
fn each_metric_uses_the_estimate_that_is_best_for_it() {
    let numbers = Estimates { mean: 10.0, median: 20.0, mode: 30.0 };
    let read = |truth| Row::numeric(Outcome::Read(numbers), truth);
    let rows = [read(30.0), read(10.0)];
    close(value(&rows, "accuracy"), 0.5);
    close(value(&rows, "mse"), 200.0);
    close(value(&rows, "mae"), 10.0);
}

#[test]
fn an_answer_without_a_number_is_incorrect_and_a_failed_request_enters_no_metric() {
    let row = |outcome| Row::numeric(outcome, 2.0);
    let rows = [Row::read(2.0, 2.0), row(Outcome::Unparsed), row(Outcome::Unparsed), row(Outcome::Failed)];
    let metrics = measure(&rows, 0);
    assert_eq!((metrics.get("accuracy").value, metrics.get("accuracy").n), (Some(1.0 / 3.0), 3));
    assert_eq!(metrics.get("unparsed").n, 3);
    close(metrics.get("unparsed").value, 2.0 / 3.0);
    assert_eq!((metrics.get("mae").value, metrics.get("mae").n), (Some(0.0), 1));
}

#[test]
fn r2_is_missing_if_the_labels_do_not_vary() {
    assert_eq!(value(&[], "r2"), None);
    assert_eq!(value(&[Row::read(1.0, 1.0)], "r2"), None);
    assert_eq!(value(&[Row::read(1.0, 5.0), Row::read(9.0, 5.0)], "r2"), None);
    close(value(&[Row::read(1.0, 1.0), Row::read(2.0, 2.0)], "r2"), 1.0);
    // Always predicting the mean of the labels explains nothing.
    close(value(&[Row::read(3.0, 2.0), Row::read(3.0, 4.0)], "r2"), 0.0);
}

#[test]
fn values_that_overflow_are_missing_rather_than_infinite() {
    let rows = [Row::read(1e300, 1.0), Row::read(-1e300, 2.0)];
    assert_eq!((value(&rows, "mse"), value(&rows, "r2")), (None, None));
    close(value(&rows, "log_mae"), 300.0 + (2.0_f64.log10() + 3.0_f64.log10()) / 2.0 - 2.0_f64.log10());
    assert!(!serde_json::to_string(&measure(&rows, 0)).unwrap().contains("inf"));
}

#[test]
fn exactness_only_allows_for_rounding() {
    for (prediction, label, exact) in [
        (0.1 + 0.2, 0.3, true),
        (1_000_009.0, 1_000_000.0, false),
        (123_456_789.0, 123_456_788.0, false),
        (0.0, 0.0, true),
        (1e-12, 0.0, false),
        (-4.0, 4.0, false),
    ] {
        assert_eq!(Row::read(prediction, label).correct, exact, "{prediction} for {label}");
    }
}

#[test]
fn shares_carry_the_wilson_interval() {
    // 8 of 10, from the formula by hand: (0.4902, 0.9433).
    let rows: Vec<Row> = (0..10).map(|index| Row::read(if index < 8 { 1.0 } else { 0.0 }, 1.0)).collect();
    let accuracy = measure(&rows, 0).get("accuracy");
    assert!((accuracy.low.unwrap() - 0.4902).abs() < 1e-4, "{accuracy:?}");
    assert!((accuracy.high.unwrap() - 0.9433).abs() < 1e-4, "{accuracy:?}");
    assert_eq!(measure(&[], 0).get("accuracy"), Metric::default());
}

#[test]
fn baselines_are_the_best_constants_over_all_labels() {
    let failed = |truth| Row::numeric(Outcome::Failed, truth);
    let rows = [failed(1.0), failed(2.0), failed(9.0)];
    let baselines = constant_baselines(&rows.each_ref());
    let median = &baselines["constant_median"];
    let mean = &baselines["constant_mean"];
    close(mean.metrics.get("r2").value, 0.0);
    close(median.metrics.get("r2").value, 1.0 - 50.0 / 38.0);
    let rows = [failed(7.0), failed(7.0), failed(3.0), failed(7.0 + 1e-12)];
    let mode = &constant_baselines(&rows.each_ref())["constant_mode"];
    assert_eq!((mode.value, mode.metrics.get("accuracy").n), (Some(7.0), 4));
    close(mode.metrics.get("accuracy").value, 0.75);
    assert_eq!(constant_baselines(&[&rows[0], &rows[1]])["constant_mean"].metrics.get("r2").value, None);
    assert_eq!((median.value, mean.value), (Some(2.0), Some(4.0)));
    close(median.metrics.get("mae").value, 8.0 / 3.0);
    close(mean.metrics.get("rmse").value, (38.0_f64 / 3.0).sqrt());
    assert!(constant_baselines(&[]).is_empty());
}

#[test]
fn errors_have_intervals_and_only_measured_metrics_are_listed() {
    let rows: Vec<Row> = (0..40).map(|index| Row::read(f64::from(index % 3), 1.0)).collect();
    let metrics = measure(&rows, 1);
    let mae = metrics.get("mae");
    assert!(mae.low.unwrap() < mae.value.unwrap() && mae.value.unwrap() < mae.high.unwrap(), "{mae:?}");
    let names: Vec<&str> = metrics.iter().map(|(name, _)| name).collect();
    assert!(!names.contains(&"bleu") && !names.contains(&"pinball") && names.contains(&"r2"));
    assert_eq!(metrics, measure(&rows, 1));
}

#[test]
fn rows_without_a_truth_only_count_for_accuracy() {
    let text = Row { truth: None, correct: true, ..Row::numeric(Outcome::Unparsed, 0.0) };
    let metrics = measure(std::slice::from_ref(&text), 0);
    assert_eq!(metrics.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["accuracy"]);
    let metrics = measure(&[text, Row::read(1.0, 1.0)], 0);
    assert_eq!((metrics.get("accuracy").n, metrics.get("unparsed").n, metrics.get("mae").n), (2, 1, 1));
}

#[test]
fn the_interval_of_a_mean_is_about_two_standard_errors_wide() {
    let rows: Vec<Row> = (0..400).map(|index| Row::read(f64::from(index % 2), 0.0)).collect();
    let mae = measure(&rows, 7).get("mae");
    // Standard error 0.5 / 20.
    assert!((mae.low.unwrap() - 0.451).abs() < 0.006 && (mae.high.unwrap() - 0.549).abs() < 0.006, "{mae:?}");
}

/// Five of 100 errors are not 0. A share of 5 of 100 has Wilson's interval, 0.022 to 0.112.
#[test]
fn the_interval_of_few_errors_is_as_wide_as_that_of_a_share() {
    let rows: Vec<Row> = (0..100).map(|index| Row::read(f64::from(u8::from(index < 5)), 0.0)).collect();
    let mae = measure(&rows, 0).get("mae");
    assert!(mae.low.unwrap() < 0.025 && mae.high.unwrap() > 0.09, "{mae:?}");
    assert!(mae.share_of_largest.is_some_and(|share| share > 0.99), "{mae:?}");
}

/// By simulation, percentiles cover the true RMSE of normal errors in 81% of samples of ten items, and these
/// intervals in more than 91%.
#[test]
fn the_interval_of_rmse_covers_the_truth_of_small_samples() {
    const SAMPLES: u64 = 100;
    let covers = |sample: u64| {
        let mut rng = ChaCha8Rng::seed_from_u64(sample);
        let mut error = || {
            let uniform = 1.0 - rng.random::<f64>();
            (-2.0 * uniform.ln()).sqrt() * (std::f64::consts::TAU * rng.random::<f64>()).cos()
        };
        let rows: Vec<Row> =
            (0..10).map(|index| Row::read(f64::from(index) + error(), f64::from(index))).collect();
        let rmse = measure(&rows, sample).get("rmse");
        rmse.low.unwrap() <= 1.0 && 1.0 <= rmse.high.unwrap()
    };
    let covered = (0..SAMPLES).filter(|&sample| covers(sample)).count();
    assert!(covered >= 86, "{covered}");
}

#[test]
fn intervals_depend_on_the_seed() {
    let rows: Vec<Row> = [1.0, 5.0, 2.0, 8.0, 3.0].map(|value| Row::read(value, 0.0)).to_vec();
    assert_eq!(measure(&rows, 1), measure(&rows, 1));
    assert_ne!(measure(&rows, 1), measure(&rows, 2));
}

#[test]
fn a_metric_that_many_resamples_lack_has_no_interval() {
    // A resample that draws one row three times has no R2. That is a ninth of all resamples.
    let rows = [Row::read(1.0, 1.0), Row::read(3.0, 2.0), Row::read(4.0, 3.0)];
    let metrics = measure(&rows, 0);
    assert!(metrics.get("r2").value.is_some() && metrics.get("r2").interval().is_none());
    assert!(metrics.get("mae").interval().is_some());
    assert!(measure(&rows[..1], 0).get("mae").interval().is_none());
}

/// A row with data for every metric outside paper mode. Values are coarse, so that ties and equal truths
/// occur.
fn random_row(rng: &mut ChaCha8Rng) -> Row {
    let number = |rng: &mut ChaCha8Rng| match rng.random_range(0..10) {
        0 => 1e9 * f64::from(rng.random_range(-9_i32..9)),
        1 => 0.0,
        _ => f64::from(rng.random_range(-4_i32..5)),
    };
    let text = |rng: &mut ChaCha8Rng| -> String {
        let words =
            (0..rng.random_range(1..7)).map(|_| ["-4", "4", "cat", "runs", "x"][rng.random_range(0..5)]);
        words.collect::<Vec<_>>().join(" ")
    };
    let truth = number(rng);
    let [mean, median, mode] = [(); 3].map(|()| number(rng));
    let outcome = match rng.random_range(0..8) {
        0 => Outcome::Unparsed,
        1 => Outcome::Failed,
        2 => Outcome::Read(Estimates::point(truth)),
        _ => Outcome::Read(Estimates { mean, median, mode }),
    };
    let quantiles = [(0.05, Some(mode - 2.0)), (0.5, Some(median)), (0.95, Some(mode + 2.0))];
    let support = [(mean, 0.5), (mode, 0.25)];
    let predicted = Predicted { quantiles: &quantiles, support: &support, mass: 0.751, range: None };
    let losses = ["ce", "ntl-was", "ntl-was-cdf", "ntl-mse", "ntl-mae", "ntl-huber"];
    let logprob = -f64::from(rng.random_range(0_i32..30));
    let rating = Rating {
        score: mean,
        mode,
        spread: rng.random(),
        interval: Some(Interval { low: mode - 1.0, high: mode + 1.0 }),
        mass: rng.random(),
        distribution: Vec::new(),
        orders: Some(Orders { first: mean, swapped: mode, middle: 1.0 }),
    };
    let preferred = Some(if rng.random() { Preference::A } else { Preference::B });
    let digits = DigitScores { exact: rng.random(), matched: rng.random(), length_difference: rng.random() };
    let [crps_excess, kl, total_variation, coverage, width] = [(); 5].map(|()| Some(rng.random()));
    Row {
        digits: Some(digits),
        law: Some(LawScores { crps_excess, kl, total_variation, coverage, width }),
        lm_eval_matches: Some([rng.random(), rng.random()]),
        text_scores: Some(TextScores::of(&text(rng), &text(rng))),
        distribution: Some(DistributionScores {
            interval: Some(IntervalScore::of(Interval { low: mode - 1.0, high: mode + 1.0 }, truth)),
            ..DistributionScores::of(predicted, truth)
        }),
        likelihood: Some(Likelihood {
            tokens: Some((rng.random_range(0..4), 4)),
            logprobs: vec![logprob, -0.5],
            losses: losses.map(|name| (name.to_owned(), rng.random::<f64>())).to_vec(),
        }),
        judgement: Some(Judgement { rating: Some(rating), preferred }),
        ..Row::numeric(outcome, truth)
    }
}

fn random_decision(rng: &mut ChaCha8Rng) -> DecisionScores {
    let probability = f64::from(rng.random_range(0..5)) / 4.0;
    let mut change = || rng.random_range(0..3) > 0;
    let is_correct_first = change();
    let changes =
        [change(), change(), change()].map(|has_changed| Some(f64::from(u8::from(has_changed)) / 8.0));
    let [order, repeat, batch] = changes;
    DecisionScores {
        has_options: true,
        is_refused: change(),
        options: OptionScores::of(&[probability, 1.0 - probability], usize::from(!is_correct_first)),
        changes: Changes { order, repeat, batch },
    }
}

#[test]
fn no_interval_excludes_its_own_value() {
    let mut checked: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..40 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rows: Vec<Row> = (0..[2, 3, 8, 40][seed as usize % 4]).map(|_| random_row(&mut rng)).collect();
        let mut decided = rows.clone();
        for row in &mut decided {
            row.decision = Some(random_decision(&mut rng));
        }
        let both = [measure(&rows, seed), measure(&decided, seed)];
        for (info, metrics) in METRICS.iter().flat_map(|info| both.iter().map(move |metrics| (info, metrics)))
        {
            let metric = metrics.get(info.name);
            if let Some((interval, value)) = metric.interval().zip(metric.value) {
                assert!(interval.low <= value && value <= interval.high, "{} {seed}: {metric:?}", info.name);
                *checked.entry(info.name).or_default() += 1;
            }
        }
    }
    for info in METRICS.iter().filter(|info| !matches!(info.statistic, Statistic::Separate)) {
        let count = checked.get(info.name).copied().unwrap_or(0);
        assert!(count >= 10, "{} was checked {count} times", info.name);
    }
}
