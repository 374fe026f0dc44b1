//! The judgements of a run: the least certain ones, and the mean distribution of the scores.

use serde_json::Value;

use super::document::{Picture, Table, literal, numbers, row, words};
use crate::format::{count, interval, number, optional_number, shortened, tick};
use crate::metrics::same;
use crate::report::chart::Axis;
use crate::report::chart::bars::{Bar, Bars};
use crate::report::chart::scale::{Scale, Shape};
use crate::stats::Interval;
use crate::store::sample::{Sample, plain};
use crate::store::saved::Run;

/// Number of items in the table of the least certain judgements.
const SHOWN: usize = 20;

/// Maximum number of scores in the picture. A finer scale gets no picture.
const BARS_MAX: usize = 40;

/// Returns the items with the widest distributions of scores. Empty if the run has no judgements.
pub(super) fn least_certain(run: &Run) -> Table {
    let mut judged: Vec<(f64, &Sample)> = Vec::new();
    for sample in &run.samples {
        judged.extend(sample.score("spread").map(|spread| (spread, sample)));
    }
    judged.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let columns = [
        numbers(&["item"]),
        literal(&["judged"]),
        words(&["people"]),
        numbers(&["score", "mode", "spread", "interval", "on the scale", "both orders"]),
        words(&["better"]),
    ];
    let rows = judged.into_iter().take(SHOWN).map(|(_, sample)| {
        let [score, mode, spread, mass] =
            ["score", "mode_score", "spread", "mass_closed"].map(|name| optional_number(sample.score(name)));
        let orders: Vec<String> = list(sample, "orders").filter_map(Value::as_f64).map(number).collect();
        row![
            sample.doc_id.to_string(),
            shortened(&sample.doc.question, 160),
            people(sample),
            score,
            mode,
            spread,
            ends(sample).map_or_else(String::new, interval),
            mass,
            orders.join(", "),
            sample.more.get("verdict").map_or_else(String::new, plain),
        ]
    });
    Table::new(columns, rows).without_empty_columns()
}

/// Returns people's score as the data has it, or from a file of labels.
fn people(sample: &Sample) -> String {
    match (sample.target_text(), sample.truth) {
        (target, Some(truth)) if target.is_empty() => number(truth),
        (target, _) => shortened(&target, 60),
    }
}

fn list<'a>(sample: &'a Sample, name: &str) -> impl Iterator<Item = &'a Value> {
    sample.more.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn ends(sample: &Sample) -> Option<Interval> {
    let interval = sample.more.get("interval")?;
    Some(Interval { low: interval.get("low")?.as_f64()?, high: interval.get("high")?.as_f64()? })
}

/// Draws the mean distribution of the scores over all judged items.
pub(super) fn scores(run: &Run) -> Option<Picture> {
    let judged: Vec<Vec<(f64, f64)>> =
        run.samples.iter().map(distribution).filter(|scores| !scores.is_empty()).collect();
    let mut points: Vec<(f64, f64)> = judged.iter().flatten().copied().collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let groups: Vec<&[(f64, f64)]> = points.chunk_by(|a, b| same(a.0, b.0)).collect();
    if groups.is_empty() || groups.len() > BARS_MAX {
        return None;
    }
    let share =
        |group: &[(f64, f64)]| group.iter().map(|(_, share)| share).sum::<f64>() / judged.len() as f64;
    let bars = groups.iter().map(|group| Bar {
        height: share(group),
        class: "bar",
        label: tick(group[0].0),
        about: format!("{} has {} of the probability", number(group[0].0), number(share(group))),
        ..Bar::default()
    });
    let largest = groups.iter().map(|group| share(group)).fold(0.0, f64::max);
    let axis = Axis::new("probability", Scale::from_zero(Shape::Linear, largest));
    let caption = format!("Mean distribution of the scores of {} items.", count(judged.len()));
    Some(Picture { title: "Scores".to_owned(), svg: Bars::new("score", axis, bars).draw(), caption })
}

/// Returns the scores and their probabilities, without values that are not probabilities.
fn distribution(sample: &Sample) -> Vec<(f64, f64)> {
    let mut distribution = Vec::new();
    for pair in list(sample, "distribution") {
        if let (Some(score), Some(share)) = (pair[0].as_f64(), pair[1].as_f64())
            && (0.0..=1.0).contains(&share)
        {
            distribution.push((score, share));
        }
    }
    distribution
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::markdown::table;
    use crate::store::saved::tests::run;

    #[test]
    fn the_least_certain_judgements_come_first() {
        let mut run = run(&[(4.0, Some(4.0)), (2.0, Some(3.0)), (1.0, None)]);
        for (sample, spread) in run.samples.iter_mut().zip([0.25, 1.5]) {
            for (name, value) in [
                ("score", json!(3.75)),
                ("mode_score", json!(4.0)),
                ("spread", json!(spread)),
                ("interval", json!({ "low": 3.0, "high": 4.0 })),
                ("mass_closed", json!(0.875)),
                ("distribution", json!([[3.0, 0.25], [4.0, 0.75]])),
            ] {
                sample.more.insert(name.to_owned(), value);
            }
        }
        insta::assert_snapshot!(table(&least_certain(&run)), @r##"
        | item | judged   | people | score | mode | spread | interval | on the scale |
        |------|----------|--------|-------|------|--------|----------|--------------|
        |    1 | `item 1` | 2      | 3.750 |    4 |  1.500 |   3 to 4 |       0.8750 |
        |    0 | `item 0` | 4      | 3.750 |    4 | 0.2500 |   3 to 4 |       0.8750 |
        "##);
        let picture = scores(&run).unwrap();
        assert_eq!(picture.caption, "Mean distribution of the scores of 2 items.");
        assert!(picture.svg.into_string().contains("4 has 0.7500 of the probability"));
        run.samples.clear();
        assert!(scores(&run).is_none() && least_certain(&run).rows.is_empty());
    }
}
