//! Paper mode: the paper's figures in place of ours, and a list of where the two part.
//!
//! In: our metrics, and the items with their replies. Out: metrics that hold the paper's values, and one [`Quirk`] for
//! every figure that its code computes in a way of its own, with the sane value beside it.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::data::Item;
use crate::metrics::bleu::Counts;
use crate::metrics::bootstrap::{RESAMPLES, quantile};
use crate::metrics::text::TextScores;
use crate::metrics::{Metric, Metrics, Name};
use crate::run::evaluator::{PAPER_BATCH, Reply};
use crate::run::paper::figures::{self as paper, Figures, number_pair};
use crate::run::paper::numpy;
use crate::run::score::{Judged, paper_label};
use crate::store::report::Quirk;

/// Our metrics on one side, the paper's on the other.
struct Ledger<'a> {
    sane: &'a Metrics,
    paper: Metrics,
    quirks: Vec<Quirk>,
}

/// Replaces what the paper computes differently. `sane` and `paper`: the metrics of the same items, judged by our rules and by
/// the paper's.
pub fn settle(
    (sane, paper): (&Metrics, Metrics),
    judged: &[Judged],
    items: &[Item],
    replies: &[Reply],
    seed: u64,
) -> (Metrics, Vec<Quirk>) {
    let mut ledger = Ledger { sane, paper, quirks: Vec::new() };
    ledger.numbers(items, replies);
    ledger.texts(judged, seed);
    ledger.tokens(replies);
    ledger.perplexity(judged);
    ledger.lengths(replies);
    (ledger.paper, ledger.quirks)
}

/// What is different in the search itself, where it is not that of the other models.
pub fn greedy(beams: u64) -> Option<Quirk> {
    let note = "xVal is decoded greedily and all else with 4 beams; its decoder stays at the first position and never \
        sees the numbers that it wrote, so that answers run on";
    (beams == 1).then(|| Quirk { name: "beams", paper: Some(1.0), sane: None, note: note.to_owned() })
}

impl Ledger<'_> {
    /// Puts the paper's value in place of ours and writes both down.
    fn set(&mut self, name: Name, value: f64, n: usize, note: &str) {
        let interval = self.paper.get(name);
        let note = if value.is_finite() { note.to_owned() } else { format!("{note}; here it is {value}") };
        self.paper
            .set(name, Metric { low: interval.low, high: interval.high, ..Metric::plain(Some(value), n) });
        self.add(name.as_str(), value, self.sane.get(name).value, note);
    }

    fn add(&mut self, name: &'static str, paper: f64, sane: Option<f64>, note: String) {
        self.quirks.push(Quirk { name, paper: Some(paper).filter(|value| value.is_finite()), sane, note });
    }

    fn numbers(&mut self, items: &[Item], replies: &[Reply]) {
        let answered: Vec<(&Item, &Reply, &str)> = items
            .iter()
            .zip(replies)
            .filter_map(|(item, reply)| Some((item, reply, reply.answer.as_ref().ok()?.text.as_str())))
            .collect();
        let (mut invalid, mut none) = (0, 0);
        for (_, _, text) in &answered {
            let (odd, without) = paper::malformed_count(text);
            invalid += odd;
            none += usize::from(without);
        }
        self.paper
            .set(Name::Invalid, Metric::plain(Some(invalid as f64 / answered.len() as f64), answered.len()));
        self.paper.set(Name::NoNumber, Metric::share(none, answered.len()));
        let asked = answered.iter().filter(|(item, ..)| item.truth.is_some());
        let pairs: Vec<_> =
            asked.map(|(item, reply, text)| number_pair(text, paper_label(item, reply))).collect();
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
        const DROPPED: &str = "items without a number drop out and cost nothing; predictions are cut at 1e10";
        let valid = n - figures.unparsed;
        let close = "numpy.isclose: within 1e-8 + 1e-5 of the label, so 1000009 is 1000000";
        self.set(Name::Accuracy, figures.accuracy, n, close);
        self.set(Name::Unparsed, figures.unparsed as f64 / n as f64, n, READ);
        for (name, value) in [
            (Name::Mae, figures.mae),
            (Name::Mse, figures.mse),
            (Name::Rmse, figures.mse.sqrt()),
            (Name::R2, figures.r2),
            (Name::MedianAe, figures.median_ae),
            (Name::LogMae, figures.log_mae),
            (Name::LogR2, figures.log_r2),
            (Name::Pearson, figures.pearson),
            (Name::Spearman, figures.spearman),
        ] {
            self.set(name, value, valid, DROPPED);
        }
    }

    fn texts(&mut self, judged: &[Judged], seed: u64) {
        let batches: Vec<Vec<&TextScores>> = judged
            .chunks(PAPER_BATCH)
            .map(|batch| {
                batch.iter().filter_map(|judged| judged.row.text_scores.as_ref()).collect::<Vec<_>>()
            })
            .filter(|batch| !batch.is_empty())
            .collect();
        let n = batches.iter().map(Vec::len).sum();
        if n == 0 {
            return;
        }
        let over_batches = |figure: &mut dyn FnMut(&[&TextScores]) -> f64| {
            numpy::mean(&batches.iter().map(|batch| figure(batch)).collect::<Vec<_>>())
        };
        let bleu = over_batches(&mut |batch| Counts::sum(batch.iter().map(|row| (&row.bleu, 1))).score());
        self.set(
            Name::Bleu,
            bleu,
            n,
            "mean over batches of 64 of each batch's corpus BLEU, not of all items together",
        );
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for (name, get) in [
            (Name::Rouge1, (|row| row.rouge.one) as fn(&TextScores) -> f64),
            (Name::Rouge2, |row| row.rouge.two),
            (Name::RougeL, |row| row.rouge.longest),
        ] {
            let value = over_batches(&mut |batch| {
                let values: Vec<f64> = batch.iter().map(|row| get(row)).collect();
                median_of_resamples(&values, &mut rng)
            });
            self.set(
                name,
                value,
                n,
                "median of 1,000 random resamples of each batch of 64, averaged over batches; seeded here",
            );
        }
    }

    /// Token accuracy with the paper's padding: labels are padded with a token that counts.
    fn tokens(&mut self, replies: &[Reply]) {
        let (mut shares, mut wholes, mut n) = (Vec::new(), Vec::new(), 0);
        for batch in replies.chunks(PAPER_BATCH) {
            let rows: Vec<(&[u32], &[u32])> = batch.iter().filter_map(token_row).collect();
            let width = rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
            let marks: Vec<Vec<bool>> = rows.iter().map(|(label, made)| hits(label, made, width)).collect();
            let (right, all) =
                marks.iter().flatten().fold((0, 0), |(right, all), hit| (right + usize::from(*hit), all + 1));
            if all > 0 {
                n += rows.len();
                shares.push(right as f64 / all as f64);
                let whole = marks.iter().filter(|row| row.iter().all(|hit| *hit)).count();
                wholes.push(whole as f64 / rows.len() as f64);
            }
        }
        if n > 0 {
            let note = "ten padding tokens behind each batch's longest label count as right; mean over batches of 64";
            self.set(Name::TokenAccuracy, numpy::mean(&shares), n, note);
            let note = "share of items whose tokens are all right, padding included";
            self.add("token_accuracy_whole", numpy::mean(&wholes), None, note.to_owned());
        }
    }

    fn perplexity(&mut self, judged: &[Judged]) {
        let batches = judged.chunks(PAPER_BATCH).filter_map(|batch| {
            let rows = batch.iter().filter_map(|judged| judged.row.likelihood.as_ref());
            let logprobs: Vec<f64> = rows.flat_map(|row| row.logprobs.iter().copied()).collect();
            (!logprobs.is_empty()).then(|| (-numpy::mean(&logprobs)).exp())
        });
        let batches: Vec<f64> = batches.collect();
        if !batches.is_empty() {
            let n = self.sane.get(Name::Perplexity).n;
            self.set(
                Name::Perplexity,
                numpy::mean(&batches),
                n,
                "mean over batches of 64 of each batch's perplexity",
            );
        }
    }

    fn lengths(&mut self, replies: &[Reply]) {
        let cut = |reply: &&Reply| {
            reply.answer.as_ref().is_ok_and(|answer| answer.finish_reason.as_deref() == Some("length"))
        };
        let cut = replies.iter().filter(cut).count();
        let note = "answers cut at the length of the batch's longest label and 9 tokens more; ours have a fixed limit";
        self.add("cut", cut as f64, None, note.to_owned());
    }
}

/// The tokens of the label and of the answer, with an end of sequence where the answer ended by itself.
fn token_row(reply: &Reply) -> Option<(&[u32], &[u32])> {
    let label = reply.label.as_ref()?.ids.as_slice();
    Some((label, reply.answer.as_ref().ok()?.token_ids.as_deref()?))
}

/// Which of the places of a row count, and whether they are right. Places beyond a label, up to the batch's longest, do
/// not count; the ten behind that do, and hold padding.
fn hits(label: &[u32], made: &[u32], width: usize) -> Vec<bool> {
    // Servers leave the end of sequence out of the ids, or not; the paper's tensors have it.
    let end = label.last().copied();
    let at = |place: usize| match made.get(place) {
        Some(id) => *id,
        None if place == made.len() && made.last().copied() != end => end.unwrap_or(0),
        None => 0,
    };
    let own = label.iter().enumerate().map(|(place, id)| at(place) == *id);
    own.chain((width..width + 10).map(|place| at(place) == 0)).collect()
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
    use super::*;

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
    }
}
