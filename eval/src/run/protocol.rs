//! Rescores records by a protocol, and replaces the metrics that it computes differently.

use ntl_paper::{Case, CaseAnswer, CaseLabel, Figure, IntervalSource, Protocol, Role};

use crate::metrics::{Estimates, Metric, Metrics, Outcome, RESAMPLES, Row, bootstrap_interval};
use crate::run::score::{ScoredReply, rows};
use crate::stats::Interval;
use crate::stats::bootstrap::Bootstrap;
use crate::store::report::PaperDifference;

#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The rescored records. A label that the protocol could not read has no truth.
    pub records: Vec<ScoredReply<'a>>,
    /// The metrics with the protocol's values.
    pub metrics: Metrics,
    /// One entry for every value that the protocol computes differently.
    pub quirks: Vec<PaperDifference>,
}

/// Evaluates `records` by a protocol. `records` and their metrics `corrected` are scored by this program's
/// rules.
pub fn evaluate<'a>(
    protocol: &dyn Protocol,
    records: &[ScoredReply<'a>],
    corrected: &Metrics,
    seed: u64,
) -> Evaluation<'a> {
    let records: Vec<ScoredReply<'_>> = records.iter().map(|record| rescore(protocol, record)).collect();
    let mut metrics = Metrics::of(&rows(&records), seed);
    let cases: Vec<Case<'_>> = records.iter().map(case).collect();
    let mut quirks = Vec::new();
    for Figure { name, value, role, note } in protocol.figures(&cases, seed) {
        let corrected = match role {
            Role::Remark { corrected } => corrected,
            Role::Metric { n, interval } => {
                let metric = Metric::plain(Some(value), n);
                let interval = interval_of(&metric, interval, metrics.get(name), seed);
                metrics.set(name, metric.with_interval(interval));
                corrected.get(name).value
            }
        };
        let paper = Some(value).filter(|value| value.is_finite());
        quirks.extend(note.map(|note| PaperDifference { name: name.to_owned(), paper, corrected, note }));
    }
    Evaluation { records, metrics, quirks }
}

/// `rescored`: the metric over the numbers that the protocol reads.
fn interval_of(metric: &Metric, source: IntervalSource<'_>, rescored: Metric, seed: u64) -> Option<Interval> {
    let value = metric.value?;
    match source {
        IntervalSource::None => None,
        IntervalSource::Share => {
            Metric::share((value * metric.n as f64).round() as usize, metric.n).interval()
        }
        IntervalSource::OfReadNumbers => {
            // If the figure is defined, the rescored records give the same value, up to rounding.
            let is_same = rescored.value.is_some_and(|other| (other - value).abs() <= 1e-6 * value.abs());
            if is_same { rescored.interval() } else { None }
        }
        IntervalSource::Bootstrap(items, figure) => {
            let bootstrap = Bootstrap { resamples: if items < 2 { 0 } else { RESAMPLES }, seed };
            let drawn = bootstrap.resample(items, figure);
            bootstrap_interval(&mut drawn.into_iter().flatten().collect::<Vec<_>>())
        }
    }
}

/// Scores a record by the number that the protocol reads. Text scores stay as they are.
fn rescore<'a>(protocol: &dyn Protocol, record: &ScoredReply<'a>) -> ScoredReply<'a> {
    let reply = &record.reply;
    let pair = reply.item.truth.map(|_| protocol.read(reply.text(), reply.reference())).unwrap_or_default();
    let outcome = match (&reply.answer, pair.value) {
        (Err(_), _) => Outcome::Failed,
        (Ok(_), Some(value)) => Outcome::Read(Estimates::point(value)),
        (Ok(_), None) => Outcome::Unparsed,
    };
    let correct = if pair.truth.is_some() { pair.is_correct } else { record.row.correct };
    let filtered = record.filtered.clone();
    ScoredReply {
        row: Row { outcome, truth: pair.truth, correct, ..record.row.clone() },
        filtered: filtered.map(|text| pair.value.map_or(text, |value| value.to_string())),
        ..record.clone()
    }
}

fn case<'r>(record: &'r ScoredReply<'_>) -> Case<'r> {
    let ScoredReply { reply, row, .. } = record;
    Case {
        reference: reply.reference(),
        asks_number: reply.item.truth.is_some(),
        label: reply.label.as_ref().map(|label| CaseLabel { ids: &label.ids, end: label.end }),
        answer: reply.answer.as_ref().ok().map(|answer| CaseAnswer {
            text: &answer.text,
            token_ids: answer.token_ids.as_deref(),
            is_cut: answer.finish_reason.as_deref() == Some("length"),
            overlap: row.text_scores.as_ref().map(|scores| &scores.overlap),
        }),
        logprobs: row.likelihood.as_ref().map(|likelihood| likelihood.logprobs.as_slice()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::data::Item;
    use crate::run::reply::{Answer, Label, Reply, TargetScore};
    use crate::run::score::score;
    use crate::settings::mode::Mode;
    use crate::settings::number::NumberSettings;
    use crate::tasks::Traits;

    fn paper() -> Box<dyn Protocol> {
        Mode::Paper.protocol(None).unwrap()
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
        let ours: Vec<ScoredReply<'_>> = items
            .iter()
            .zip(["1,234", "1000009", "3/2"])
            .map(|(item, text)| {
                let answer = Answer { text: text.to_owned(), ..Answer::default() };
                score(
                    &Traits::default(),
                    Mode::Paper,
                    &NumberSettings::default(),
                    Reply::new(item, Ok(answer)),
                )
            })
            .collect();
        let paper: Vec<ScoredReply<'_>> = ours.iter().map(|record| rescore(&*paper(), record)).collect();
        let correct =
            |records: &[ScoredReply<'_>]| records.iter().map(|record| record.row.correct).collect::<Vec<_>>();
        assert_eq!(correct(&ours), [true, false, false]);
        assert_eq!(correct(&paper), [false, true, true]);
        assert_eq!(paper[2].row.truth, Some(2.0));
        assert_eq!(paper[0].filtered.as_deref(), Some("234"));
    }

    /// All tokens of the answers are incorrect, so that only the padding is correct.
    #[test]
    fn every_interval_contains_its_value_and_belongs_to_the_same_figure() {
        let items: Vec<Item> = (0..200)
            .map(|index| Item {
                question: "q".to_owned(),
                answer: (index % 7).to_string(),
                truth: Some(f64::from(index % 7)),
                ..Item::default()
            })
            .collect();
        let records: Vec<ScoredReply<'_>> = items
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
                let target_score = Some(Ok(target_score));
                let reply = Reply { label: Some(label), target_score, ..Reply::new(item, Ok(answer)) };
                score(&Traits::default(), Mode::Paper, &NumberSettings::default(), reply)
            })
            .collect();
        let evaluation = evaluate(&*paper(), &records, &Metrics::of(&rows(&records), 0), 0);
        let mut checked = 0;
        for (name, metric) in evaluation.metrics.iter() {
            let Some((interval, value)) = metric.interval().zip(metric.value) else { continue };
            assert!(interval.low <= value && value <= interval.high, "{name}: {metric:?}");
            checked += 1;
        }
        assert!(checked >= 15, "{checked}");
        // The interval is around the paper's figure, and not derived from the figure of the tokens without
        // padding.
        let tokens = evaluation.metrics.get("token_accuracy");
        let corrected = Metrics::of(&rows(&records), 0).get("token_accuracy");
        let low = tokens.low.unwrap();
        assert!(
            corrected.value.unwrap() < 0.3 && tokens.value.unwrap() > 0.7 && low > 0.7,
            "{corrected:?} {tokens:?}"
        );
    }
}
