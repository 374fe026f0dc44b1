//! Rescores records by the rules of the paper's code and replaces the metrics that it computes differently.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::BATCH;
use super::figures::{Figures, is_close};
use super::numbers::{NumberCounts, last_number, number_pair};
use crate::metrics::bleu::NgramCounts;
use crate::metrics::texts::TextScores;
use crate::metrics::{Estimates, Metric, Metrics, Outcome, RESAMPLES, Row, bootstrap_interval};
use crate::run::reply::Reply;
use crate::run::score::{Record, rows};
use crate::stats::bootstrap::{Bootstrap, quantile};
use crate::stats::weighted::mean as weighted_mean;
use crate::stats::{Interval, numpy};
use crate::store::report::Quirk;

#[derive(Debug)]
pub struct Evaluation<'a> {
    /// Rescored: a label that the paper's code could not read has no truth.
    pub records: Vec<Record<'a>>,
    /// With the paper's values.
    pub metrics: Metrics,
    /// One for every value that the paper's code computes in its own way.
    pub quirks: Vec<Quirk>,
}

/// `records` and `sane`: scored by this program's rules, and their metrics.
pub fn evaluate<'a>(records: &[Record<'a>], sane: &Metrics, beams: u64, seed: u64) -> Evaluation<'a> {
    let records: Vec<Record<'_>> = records.iter().map(rescore).collect();
    let metrics = Metrics::of(&rows(&records), seed);
    let mut comparison = Comparison { sane, metrics, quirks: Vec::new() };
    comparison.numbers(&records);
    comparison.texts(&records, seed);
    comparison.tokens(&records, seed);
    comparison.perplexity(&records, seed);
    comparison.lengths(&records);
    if beams == 1 {
        let note = "xVal is decoded greedily and all else with 4 beams; its decoder stays at the first position and never \
            sees the numbers that it wrote, so that answers run on";
        comparison.add("beams", 1.0, None, note.to_owned());
    }
    Evaluation { records, metrics: comparison.metrics, quirks: comparison.quirks }
}

/// Scores by the number that the paper's code reads; text scores stay as they are.
fn rescore<'a>(record: &Record<'a>) -> Record<'a> {
    let reply = &record.reply;
    let truth = reply.item.truth.and_then(|_| last_number(reply.reference()).ok().flatten());
    let value = reply.text().filter(|_| truth.is_some());
    let value = value.and_then(|text| number_pair(text, reply.reference()).ok());
    let value = value.map(|(value, _)| value).filter(|value| value.is_finite());
    let outcome = match (&reply.answer, value) {
        (Err(_), _) => Outcome::Failed,
        (Ok(_), Some(value)) => Outcome::Read(Estimates::point(value)),
        (Ok(_), None) => Outcome::Unparsed,
    };
    let correct = match (truth, value) {
        (Some(truth), Some(value)) => is_close(value, truth),
        (Some(_), None) => false,
        (None, _) => record.row.correct,
    };
    let filtered = record.filtered.clone();
    Record {
        row: Row { outcome, truth, correct, ..record.row.clone() },
        filtered: filtered.map(|text| value.map_or(text, |value| value.to_string())),
        ..record.clone()
    }
}

/// This program's metrics on one side, the paper's on the other.
struct Comparison<'a> {
    sane: &'a Metrics,
    metrics: Metrics,
    quirks: Vec<Quirk>,
}

impl Comparison<'_> {
    /// Replaces a metric by the paper's value, whose interval is `interval`, and records both values.
    fn set(&mut self, name: &str, value: f64, n: usize, interval: Option<Interval>, note: &str) {
        let note = if value.is_finite() { note.to_owned() } else { format!("{note}; here it is {value}") };
        self.metrics.set(name, Metric::plain(Some(value), n).with_interval(interval));
        self.add(name, value, self.sane.get(name).value, note);
    }

    /// As `set`, for a share of `n` items.
    fn set_share(&mut self, name: &str, share: f64, n: usize, note: &str) {
        let hits = (share * n as f64).round() as usize;
        self.set(name, share, n, Metric::share(hits, n).interval(), note);
    }

    fn add(&mut self, name: &str, paper: f64, sane: Option<f64>, note: String) {
        let paper = Some(paper).filter(|value| value.is_finite());
        self.quirks.push(Quirk { name: name.to_owned(), paper, sane, note });
    }

    fn numbers(&mut self, records: &[Record<'_>]) {
        let counts: Vec<NumberCounts> =
            records.iter().filter_map(|record| record.reply.text()).map(NumberCounts::of).collect();
        let malformed: usize = counts.iter().map(|counts| counts.malformed_count).sum();
        let none = counts.iter().filter(|counts| counts.has_none).count();
        self.metrics
            .set("invalid", Metric::plain(Some(malformed as f64 / counts.len() as f64), counts.len()));
        self.metrics.set("no_number", Metric::share(none, counts.len()));
        let asked = records.iter().map(|record| &record.reply).filter(|reply| reply.item.truth.is_some());
        let pairs: Vec<_> =
            asked.filter_map(|reply| Some(number_pair(reply.text()?, reply.reference()))).collect();
        if pairs.is_empty() {
            return;
        }
        let stopped = pairs.iter().filter(|pair| pair.is_err()).count();
        if stopped > 0 {
            let note = "items on which the paper's code stops with an error; left out of its other figures";
            self.add("errors", stopped as f64, Some(0.0), note.to_owned());
        }
        let pairs: Vec<(f64, f64)> = pairs.into_iter().flatten().collect();
        let clipped = pairs.iter().filter(|(value, _)| value.abs() >= 1e10).count();
        let note = "predictions cut at 1e10 in size; labels are not";
        self.add("clipped", clipped as f64, Some(0.0), note.to_owned());
        self.figures(&Figures::of(&pairs), pairs.len());
    }

    fn figures(&mut self, figures: &Figures, n: usize) {
        const READ: &str =
            "the last match of [+-]?\\s*\\d+(\\.\\d+)? is the number, so 1,234 is 234, 1e5 is 5 and 7/3 is 3";
        const DROPPED: &str = "numbers are read as for `unparsed`; items without one drop out and cost nothing; predictions are cut at 1e10";
        let valid = n - figures.unparsed;
        let close = "numpy.isclose: within 1e-8 + 1e-5 of the label, so 1000009 is 1000000";
        self.set_share("accuracy", figures.accuracy, n, close);
        self.set_share("unparsed", figures.unparsed as f64 / n as f64, n, READ);
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
            // The rescored records give the same figure, up to rounding, wherever it is defined.
            let rescored = self.metrics.get(name);
            let is_same = rescored.value.is_some_and(|other| (other - value).abs() <= 1e-6 * value.abs());
            self.set(name, value, valid, rescored.interval().filter(|_| is_same), DROPPED);
        }
    }

    fn texts(&mut self, records: &[Record<'_>], seed: u64) {
        let batches: Vec<Vec<&TextScores>> = records
            .chunks(BATCH)
            .map(|batch| {
                batch.iter().filter_map(|record| record.row.text_scores.as_ref()).collect::<Vec<_>>()
            })
            .filter(|batch| !batch.is_empty())
            .collect();
        let n = batches.iter().map(Vec::len).sum();
        if n == 0 {
            return;
        }
        let bleu = BatchMean::new(&batches, |batch, weights| {
            let counts = batch.iter().map(|row| &row.bleu).zip(weights.iter().map(|&weight| weight as u64));
            Some(NgramCounts::sum(counts).score())
        });
        let note = "mean over batches of 64 of each batch's corpus BLEU, not of all items together";
        self.set("bleu", bleu.value(), n, bleu.interval(seed), note);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for (name, get) in [
            ("rouge1", (|row| row.rouge.one) as fn(&TextScores) -> f64),
            ("rouge2", |row| row.rouge.two),
            ("rougeL", |row| row.rouge.longest),
        ] {
            let medians = batches.iter().map(|batch| {
                let values: Vec<f64> = batch.iter().map(|row| get(row)).collect();
                median_of_resamples(&values, &mut rng)
            });
            let value = numpy::mean(&medians.collect::<Vec<_>>());
            let mean = BatchMean::new(&batches, |batch, weights| {
                weighted_mean(batch.iter().zip(weights).map(|(row, &weight)| (get(row), weight)))
            });
            let note =
                "median of 1,000 random resamples of each batch of 64, averaged over batches; seeded here";
            self.set(name, value, n, mean.interval(seed), note);
        }
    }

    /// Token accuracy with the paper's padding: labels are padded with a token that counts.
    fn tokens(&mut self, records: &[Record<'_>], seed: u64) {
        let hits_of_batch = |batch: &[Record<'_>]| -> Vec<Vec<bool>> {
            let rows: Vec<TokenRow<'_>> =
                batch.iter().filter_map(|record| TokenRow::of(&record.reply)).collect();
            let width = rows.iter().map(|row| row.label.len()).max().unwrap_or(0);
            rows.iter().map(|row| row.hits(width)).collect()
        };
        let batches: Vec<Vec<Vec<bool>>> =
            records.chunks(BATCH).map(hits_of_batch).filter(|batch| !batch.is_empty()).collect();
        if batches.is_empty() {
            return;
        }
        let tokens = BatchMean::new(&batches, |batch, weights| {
            let tokens = batch
                .iter()
                .zip(weights)
                .flat_map(|(hits, &weight)| hits.iter().map(move |hit| (f64::from(u8::from(*hit)), weight)));
            weighted_mean(tokens)
        });
        let note =
            "ten padding tokens behind each batch's longest label count as right; mean over batches of 64";
        let n = batches.iter().map(Vec::len).sum();
        self.set("token_accuracy", tokens.value(), n, tokens.interval(seed), note);
        let items = BatchMean::new(&batches, |batch, weights| {
            let right = |hits: &Vec<bool>| f64::from(u8::from(hits.iter().all(|hit| *hit)));
            weighted_mean(batch.iter().map(right).zip(weights.iter().copied()))
        });
        let note = "share of items whose tokens are all right, padding included";
        self.add("token_accuracy_whole", items.value(), None, note.to_owned());
    }

    fn perplexity(&mut self, records: &[Record<'_>], seed: u64) {
        let scored = |batch: &'_ [Record<'_>]| -> Vec<Vec<f64>> {
            let rows = batch.iter().filter_map(|record| record.row.likelihood.as_ref());
            rows.map(|row| row.logprobs.clone()).filter(|logprobs| !logprobs.is_empty()).collect()
        };
        let batches: Vec<Vec<Vec<f64>>> =
            records.chunks(BATCH).map(scored).filter(|batch| !batch.is_empty()).collect();
        if batches.is_empty() {
            return;
        }
        let over_batches = BatchMean::new(&batches, |batch, weights| {
            let tokens = batch.iter().zip(weights);
            let tokens = tokens.flat_map(|(row, &weight)| row.iter().map(move |logprob| (*logprob, weight)));
            weighted_mean(tokens).map(|mean| (-mean).exp())
        });
        let values = batches.iter().map(|batch| (-numpy::mean(&batch.concat())).exp());
        let value = numpy::mean(&values.collect::<Vec<_>>());
        let n = self.sane.get("perplexity").n;
        let note = "mean over batches of 64 of each batch's perplexity";
        self.set("perplexity", value, n, over_batches.interval(seed), note);
    }

    fn lengths(&mut self, records: &[Record<'_>]) {
        let finish_reason = |record: &Record<'_>| record.reply.answer.clone().ok()?.finish_reason;
        let cut = records.iter().filter(|record| finish_reason(record).as_deref() == Some("length")).count();
        let note = "answers cut at the length of the batch's longest label and 9 tokens more; ours have a fixed limit";
        self.add("cut", cut as f64, None, note.to_owned());
    }
}

/// The mean over batches of a figure of each batch.
struct BatchMean<'a, T, F> {
    batches: &'a [Vec<T>],
    /// Of the items of a batch and how often each counts; `None` where none does.
    figure: F,
}

impl<'a, T, F: Fn(&[T], &[f64]) -> Option<f64>> BatchMean<'a, T, F> {
    fn new(batches: &'a [Vec<T>], figure: F) -> Self {
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

    /// NaN without items.
    fn value(&self) -> f64 {
        self.weighted(&vec![1.0; self.items()]).unwrap_or(f64::NAN)
    }

    /// From resamples of the items, each of which stays in its batch.
    fn interval(&self, seed: u64) -> Option<Interval> {
        let bootstrap = Bootstrap { resamples: if self.items() < 2 { 0 } else { RESAMPLES }, seed };
        let drawn = bootstrap.resample(self.items(), |weights| self.weighted(weights));
        bootstrap_interval(&mut drawn.into_iter().flatten().collect::<Vec<_>>())
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
    fn of(reply: &'a Reply<'_>) -> Option<Self> {
        let (answer, label) = (reply.answer.as_ref().ok()?, reply.label.as_ref()?);
        let end = label.end.filter(|_| answer.finish_reason.as_deref() != Some("length"));
        Some(Self { label: &label.ids, end, answer: answer.token_ids.as_deref()? })
    }

    /// Which of the positions that count are right: those of the label, and ten of padding behind `width`, the length of
    /// the batch's longest label.
    fn hits(&self, width: usize) -> Vec<bool> {
        let Self { label, end, answer } = *self;
        // The paper's tensors hold the end of sequence. Servers may leave it out of the ids.
        let at = |position: usize| match answer.get(position) {
            Some(id) => *id,
            None if position == answer.len() && answer.last().copied() != end => end.unwrap_or(0),
            None => 0,
        };
        let own = label.iter().enumerate().map(|(position, id)| at(position) == *id);
        own.chain((width..width + 10).map(|position| at(position) == 0)).collect()
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
    quantile(&means, 0.5).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::cli::flags::Mode;
    use crate::data::Item;
    use crate::run::reply::{Answer, Label, TargetScore};
    use crate::run::score::score;
    use crate::tasks::Traits;

    fn hits(label: &[u32], answer: &[u32], width: usize) -> Vec<bool> {
        TokenRow { label, end: Some(1), answer }.hits(width)
    }

    #[test]
    fn padding_behind_the_batch_counts_and_padding_inside_does_not() {
        // The label 5 1 in a batch whose longest label has four tokens.
        assert_eq!(hits(&[5, 1], &[5, 1], 4), vec![true; 12]);
        assert_eq!(hits(&[5, 1], &[6, 1], 4)[..2], [false, true]);
        // An answer that runs on into the padding behind.
        let long: Vec<u32> = (10..20).collect();
        assert_eq!(hits(&[5, 1], &long, 4).iter().filter(|hit| **hit).count(), 3);
    }

    #[test]
    fn an_end_of_sequence_that_the_server_left_out_is_put_back() {
        assert_eq!(hits(&[5, 1], &[5], 2), vec![true; 12]);
        // Not where the length ended the answer: the paper's tensors hold padding there.
        let cut = TokenRow { label: &[5, 1], end: None, answer: &[5] }.hits(2);
        assert_eq!((cut[..2].to_vec(), cut[2..].to_vec()), (vec![true, false], vec![true; 10]));
    }

    #[test]
    fn the_paper_reads_the_same_text_differently() {
        let item = |answer: &str, truth| Item {
            question: "q".to_owned(),
            answer: answer.to_owned(),
            truth: Some(truth),
            ..Item::default()
        };
        let items = [item("1234", 1234.0), item("1000000", 1e6), item("-7/2", -3.5)];
        let ours: Vec<Record<'_>> = items
            .iter()
            .zip(["1,234", "1000009", "3/2"])
            .map(|(item, text)| {
                let answer = Answer { text: text.to_owned(), ..Answer::default() };
                let reply = Reply { item, answer: Ok(answer), orders: None, label: None, target_score: None };
                score(&Traits::default(), Mode::Paper, None, reply)
            })
            .collect();
        let paper: Vec<Record<'_>> = ours.iter().map(rescore).collect();
        let correct =
            |records: &[Record<'_>]| records.iter().map(|record| record.row.correct).collect::<Vec<_>>();
        assert_eq!(correct(&ours), [true, false, false]);
        assert_eq!(correct(&paper), [false, true, true]);
        assert_eq!(paper[2].row.truth, Some(2.0));
        assert_eq!(paper[0].filtered.as_deref(), Some("234"));
    }

    /// The answers have all tokens wrong, so that the padding alone is right.
    #[test]
    fn every_interval_holds_its_value_and_is_of_the_same_figure() {
        let items: Vec<Item> = (0..200)
            .map(|index| Item {
                question: "q".to_owned(),
                answer: (index % 7).to_string(),
                truth: Some(f64::from(index % 7)),
                ..Item::default()
            })
            .collect();
        let records: Vec<Record<'_>> = items
            .iter()
            .zip(0_u32..)
            .map(|(item, index)| {
                let text = if index % 9 == 0 { "none".to_owned() } else { (index % 5).to_string() };
                let answer = Answer { text, token_ids: Some(vec![90, 91, 1]), ..Answer::default() };
                let label = Label {
                    end: Some(1),
                    ids: vec![5, 6, 1][(index % 2) as usize..].to_vec(),
                    text: item.answer.clone(),
                };
                let target_score = TargetScore {
                    token_ids: Vec::new(),
                    token_logprobs: vec![Some(-f64::from(index % 11)), Some(-0.5)],
                    losses: Map::new(),
                };
                let reply = Reply {
                    item,
                    answer: Ok(answer),
                    orders: None,
                    label: Some(label),
                    target_score: Some(Ok(target_score)),
                };
                score(&Traits::default(), Mode::Paper, None, reply)
            })
            .collect();
        let evaluation = evaluate(&records, &Metrics::of(&rows(&records), 0), 4, 0);
        let mut checked = 0;
        for (name, metric) in evaluation.metrics.iter() {
            let Some((interval, value)) = metric.interval().zip(metric.value) else { continue };
            assert!(interval.low <= value && value <= interval.high, "{name}: {metric:?}");
            checked += 1;
        }
        assert!(checked >= 15, "{checked}");
        // The interval is around the paper's figure, not stretched from that of the tokens without padding.
        let tokens = evaluation.metrics.get("token_accuracy");
        let (sane, low) = (Metrics::of(&rows(&records), 0).get("token_accuracy"), tokens.low.unwrap());
        assert!(sane.value.unwrap() < 0.3 && tokens.value.unwrap() > 0.7 && low > 0.7, "{sane:?} {tokens:?}");
    }
}
