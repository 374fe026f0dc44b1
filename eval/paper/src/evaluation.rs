//! The figures of a run as the paper's code computes them.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bleu::NgramCounts;
use crate::figures::NumberFigures;
use crate::numbers::{NumberCounts, number_pair};
use crate::protocol::{Case, CaseAnswer, CaseLabel, Figure, IntervalSource, Role, TextOverlap};
use crate::{BATCH, numpy};

/// Number of random resamples of the ROUGE scores of a batch.
const RESAMPLES: u32 = 1_000;

/// Returns the figures of all items. `seed`: of the resamples.
pub(crate) fn figures<'a>(cases: &[Case<'a>], beams: u64, seed: u64) -> Vec<Figure<'a>> {
    let mut figures = Figures::default();
    figures.numbers(cases);
    figures.texts(cases, seed);
    figures.tokens(cases);
    figures.perplexity(cases);
    figures.lengths(cases);
    if beams == 1 {
        let note = "xVal is decoded greedily, all other models with 4 beams; its decoder stays at the first position and never \
            sees the numbers that it wrote, so that its answers are too long";
        figures.remark("beams", 1.0, None, note);
    }
    figures.0
}

/// The figures so far, in the order of a report.
#[derive(Default)]
struct Figures<'a>(Vec<Figure<'a>>);

impl<'a> Figures<'a> {
    /// Adds a figure that replaces a metric over `n` items.
    fn metric(&mut self, name: &'static str, value: f64, n: usize, interval: IntervalSource<'a>, note: &str) {
        let note = if value.is_finite() { note.to_owned() } else { format!("{note}; here it is {value}") };
        self.0.push(Figure { name, value, role: Role::Metric { n, interval }, note: Some(note) });
    }

    /// Adds a figure that replaces no metric.
    fn remark(&mut self, name: &'static str, value: f64, corrected: Option<f64>, note: &str) {
        let note = Some(note.to_owned());
        self.0.push(Figure { name, value, role: Role::Remark { corrected }, note });
    }

    fn numbers(&mut self, cases: &[Case<'a>]) {
        let (mut n, mut malformed, mut none) = (0, 0, 0);
        let mut pairs = Vec::new();
        for case in cases {
            let Some(CaseAnswer { text, .. }) = case.answer else { continue };
            let counts = NumberCounts::of(text);
            n += 1;
            malformed += counts.malformed_count;
            none += usize::from(counts.has_none);
            if case.asks_number {
                pairs.push(number_pair(text, case.reference));
            }
        }
        for (name, count, interval) in
            [("invalid", malformed, IntervalSource::None), ("no_number", none, IntervalSource::Share)]
        {
            let value = count as f64 / n as f64;
            self.0.push(Figure { name, value, role: Role::Metric { n, interval }, note: None });
        }
        if pairs.is_empty() {
            return;
        }
        let stopped = pairs.iter().filter(|pair| pair.is_err()).count();
        if stopped > 0 {
            let note = "items on which the paper's code stops with an error; left out of its other figures";
            self.remark("errors", stopped as f64, Some(0.0), note);
        }
        let pairs: Vec<(f64, f64)> = pairs.into_iter().flatten().collect();
        let clipped = pairs.iter().filter(|(value, _)| value.abs() >= 1e10).count();
        let note = "predictions are clipped at ±1e10; labels are not";
        self.remark("clipped", clipped as f64, Some(0.0), note);
        self.number_figures(&NumberFigures::of(&pairs), pairs.len());
    }

    fn number_figures(&mut self, figures: &NumberFigures, n: usize) {
        const READ: &str =
            "the last match of [+-]?\\s*\\d+(\\.\\d+)? is the number, so 1,234 is 234, 1e5 is 5 and 7/3 is 3";
        const DROPPED: &str = "numbers are read as for `unparsed`; items without a number are left out without a penalty; predictions are clipped at ±1e10";
        let close = "numpy.isclose: within 1e-8 + 1e-5 times the label, so 1000009 equals 1000000";
        self.metric("accuracy", figures.accuracy, n, IntervalSource::Share, close);
        self.metric("unparsed", figures.unparsed as f64 / n as f64, n, IntervalSource::Share, READ);
        for (name, value) in [
            ("mae", figures.mae),
            ("mse", figures.mse),
            ("rmse", figures.mse.sqrt()),
            ("r2", figures.r2),
            ("median_ae", figures.median_ae),
            ("log_mae", figures.log_mae),
            ("log_r2", figures.log_r2),
            ("pearson", figures.pearson),
            ("spearman", figures.spearman),
        ] {
            self.metric(name, value, n - figures.unparsed, IntervalSource::OfReadNumbers, DROPPED);
        }
    }

    fn texts(&mut self, cases: &[Case<'a>], seed: u64) {
        let batches = batches(cases, |case| case.answer?.overlap);
        let n = batches.iter().map(Vec::len).sum();
        if n == 0 {
            return;
        }
        let bleu = BatchMean::new(batches.clone(), |batch: &[&TextOverlap], weights: &[f64]| {
            let counts = batch.iter().map(|row| &row.bleu).zip(weights.iter().map(|&weight| weight as u64));
            Some(NgramCounts::sum(counts).score())
        });
        let note = "mean over batches of 64 of each batch's corpus BLEU, not of all items together";
        self.metric("bleu", bleu.value(), n, bleu.interval(), note);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for (name, get) in [
            ("rouge1", (|row| row.rouge.one) as fn(&TextOverlap) -> f64),
            ("rouge2", |row| row.rouge.two),
            ("rougeL", |row| row.rouge.longest),
        ] {
            let medians = batches.iter().map(|batch| {
                let values: Vec<f64> = batch.iter().map(|row| get(row)).collect();
                median_of_resamples(&values, &mut rng)
            });
            let value = numpy::mean(&medians.collect::<Vec<_>>());
            let mean = BatchMean::new(batches.clone(), move |batch: &[&TextOverlap], weights: &[f64]| {
                numpy::average(batch.iter().zip(weights).map(|(row, &weight)| (get(row), weight)))
            });
            let note =
                "median of 1,000 random resamples of each batch of 64, averaged over batches; seeded here";
            self.metric(name, value, n, mean.interval(), note);
        }
    }

    /// Adds the token accuracy with the paper's padding: labels are padded with a token that counts.
    fn tokens(&mut self, cases: &[Case<'a>]) {
        let mut hits: Vec<Vec<Vec<bool>>> = Vec::new();
        for batch in batches(cases, TokenRow::of) {
            let width = batch.iter().map(|row| row.label.len()).max().unwrap_or(0);
            hits.push(batch.iter().map(|row| row.hits(width)).collect());
        }
        let batches = hits;
        if batches.is_empty() {
            return;
        }
        let n = batches.iter().map(Vec::len).sum();
        let items = BatchMean::new(batches.clone(), |batch: &[Vec<bool>], weights: &[f64]| {
            let rows = batch.iter().zip(weights);
            numpy::average(rows.map(|(hits, &weight)| {
                let is_correct = hits.iter().all(|hit| *hit);
                (f64::from(u8::from(is_correct)), weight)
            }))
        });
        let tokens = BatchMean::new(batches, |batch: &[Vec<bool>], weights: &[f64]| {
            let tokens = batch
                .iter()
                .zip(weights)
                .flat_map(|(hits, &weight)| hits.iter().map(move |hit| (f64::from(u8::from(*hit)), weight)));
            numpy::average(tokens)
        });
        let note =
            "ten padding tokens after each batch's longest label count as correct; mean over batches of 64";
        self.metric("token_accuracy", tokens.value(), n, tokens.interval(), note);
        let note = "share of items whose tokens are all correct, including padding";
        self.remark("token_accuracy_whole", items.value(), None, note);
    }

    fn perplexity(&mut self, cases: &[Case<'a>]) {
        let batches = batches(cases, |case| case.logprobs.filter(|logprobs| !logprobs.is_empty()));
        if batches.is_empty() {
            return;
        }
        let values = batches.iter().map(|batch| (-numpy::mean(&batch.concat())).exp());
        let value = numpy::mean(&values.collect::<Vec<_>>());
        let over_batches = BatchMean::new(batches, |batch: &[&[f64]], weights: &[f64]| {
            let tokens = batch.iter().zip(weights);
            let tokens = tokens.flat_map(|(row, &weight)| row.iter().map(move |logprob| (*logprob, weight)));
            numpy::average(tokens).map(|mean| (-mean).exp())
        });
        let n = cases.iter().filter(|case| case.logprobs.is_some()).count();
        let note = "mean over batches of 64 of each batch's perplexity";
        self.metric("perplexity", value, n, over_batches.interval(), note);
    }

    fn lengths(&mut self, cases: &[Case<'a>]) {
        let cut = cases.iter().filter(|case| case.answer.is_some_and(|answer| answer.is_cut)).count();
        let note =
            "answers cut at 9 tokens more than the batch's longest label; other modes have a fixed limit";
        self.remark("cut", cut as f64, None, note);
    }
}

/// Returns what `get` finds in the items of each batch, without empty batches.
fn batches<'a, T>(cases: &[Case<'a>], get: impl Fn(&Case<'a>) -> Option<T>) -> Vec<Vec<T>> {
    let batches = cases.chunks(BATCH).map(|batch| batch.iter().filter_map(&get).collect::<Vec<T>>());
    batches.filter(|batch| !batch.is_empty()).collect()
}

/// The mean over batches of a figure of each batch.
struct BatchMean<T, F> {
    batches: Vec<Vec<T>>,
    /// Computes the figure from the items of a batch and their weights. `None` if all weights are 0.
    figure: F,
}

impl<'a, T: 'a, F: Fn(&[T], &[f64]) -> Option<f64> + 'a> BatchMean<T, F> {
    fn new(batches: Vec<Vec<T>>, figure: F) -> Self {
        Self { batches, figure }
    }

    fn items(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    fn weighted(&self, weights: &[f64]) -> Option<f64> {
        let mut rest = weights;
        let values = self.batches.iter().filter_map(|batch| {
            let (own, others) = rest.split_at(batch.len());
            rest = others;
            if own.iter().sum::<f64>() > 0.0 { (self.figure)(batch, own) } else { None }
        });
        Some(values.collect::<Vec<_>>())
            .filter(|values| !values.is_empty())
            .map(|values| numpy::mean(&values))
    }

    /// Returns NaN without items.
    fn value(&self) -> f64 {
        self.weighted(&vec![1.0; self.items()]).unwrap_or(f64::NAN)
    }

    /// Each resampled item stays in its batch.
    fn interval(self) -> IntervalSource<'a> {
        IntervalSource::Bootstrap(self.items(), Box::new(move |weights| self.weighted(weights)))
    }
}

/// Token ids of a label and of the answer to its item.
struct TokenRow<'a> {
    label: &'a [u32],
    /// The end of sequence, unless the label has none or the answer ended without it.
    end: Option<u32>,
    answer: &'a [u32],
}

impl<'a> TokenRow<'a> {
    fn of(case: &Case<'a>) -> Option<Self> {
        let CaseAnswer { token_ids, is_cut, .. } = case.answer?;
        let CaseLabel { ids, end } = case.label?;
        Some(Self { label: ids, end: if is_cut { None } else { end }, answer: token_ids? })
    }

    /// Returns which of the counted positions are correct: the positions of the label, and ten padding
    /// positions after `width`, the length of the batch's longest label.
    fn hits(&self, width: usize) -> Vec<bool> {
        let own = self.label.iter().enumerate().map(|(position, id)| self.token(position) == *id);
        own.chain((width..width + 10).map(|position| self.token(position) == 0)).collect()
    }

    /// Returns the token of the answer at a position. The paper's tensors hold the end of sequence, which
    /// servers may omit from the ids.
    fn token(&self, position: usize) -> u32 {
        let Self { end, answer, .. } = *self;
        match answer.get(position) {
            Some(id) => *id,
            None if position == answer.len() && answer.last().copied() != end => end.unwrap_or(0),
            None => 0,
        }
    }
}

fn median_of_resamples(values: &[f64], rng: &mut ChaCha8Rng) -> f64 {
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = values.iter().map(|_| values[rng.random_range(0..values.len())]).sum();
            sum / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    numpy::quantile(&means, 0.5).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(label: &[u32], answer: &[u32], width: usize) -> Vec<bool> {
        TokenRow { label, end: Some(1), answer }.hits(width)
    }

    #[test]
    fn padding_after_the_longest_label_counts_and_padding_before_does_not() {
        // The label 5 1 in a batch whose longest label has four tokens.
        assert_eq!(hits(&[5, 1], &[5, 1], 4), vec![true; 12]);
        assert_eq!(hits(&[5, 1], &[6, 1], 4)[..2], [false, true]);
        // An answer that continues into the padding.
        let long: Vec<u32> = (10..20).collect();
        assert_eq!(hits(&[5, 1], &long, 4).iter().filter(|hit| **hit).count(), 3);
    }

    #[test]
    fn an_end_of_sequence_that_the_server_omits_is_restored() {
        assert_eq!(hits(&[5, 1], &[5], 2), vec![true; 12]);
        // Not if the length limit ended the answer: the paper's tensors hold padding there.
        let cut = TokenRow { label: &[5, 1], end: None, answer: &[5] }.hits(2);
        assert_eq!((cut[..2].to_vec(), cut[2..].to_vec()), (vec![true, false], vec![true; 10]));
    }
}
