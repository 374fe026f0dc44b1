//! The answers of a decision model: the worst ones, and how reliable their probabilities are.

use super::document::{Picture, Table, literal, numbers, row, words};
use crate::format::{count, number, optional_number, shortened};
use crate::metrics::decision::reliability as bins_of;
use crate::report::chart::Axis;
use crate::report::chart::dots::{Dot, Dots};
use crate::stats::wilson::wilson;
use crate::store::sample::{Sample, plain};
use crate::store::saved::Run;

/// Number of questions in the table.
const SHOWN: usize = 20;

/// Returns the questions with incorrect or refused answers, the least probability of the correct option
/// first. Empty if the run has no decisions.
pub(super) fn worst(run: &Run) -> Table {
    let mut wrong: Vec<(f64, &Sample)> = Vec::new();
    for sample in &run.samples {
        if sample.is_decision() && sample.accuracy.is_some() && !sample.right() {
            wrong.push((sample.score("log_loss").unwrap_or(f64::INFINITY), sample));
        }
    }
    wrong.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let columns = [
        numbers(&["item"]),
        words(&["type"]),
        literal(&["question", "correct", "answer"]),
        numbers(&["P(correct)", "P(answer)"]),
    ];
    let rows = wrong.into_iter().take(SHOWN).map(|(_, sample)| {
        row![
            sample.doc_id.to_string(),
            sample.more.get("question_type").map_or_else(String::new, plain),
            shortened(&sample.doc.question, 160),
            shortened(&sample.target_text(), 60),
            shortened(&sample.filtered_resps.iter().map(plain).collect::<String>(), 60),
            optional_number(sample.score("log_loss").map(|loss| (-loss).exp())),
            optional_number(sample.score("confidence")),
        ]
    });
    Table::new(columns, rows)
}

/// Draws accuracy by confidence.
pub(super) fn reliability(run: &Run) -> Option<Picture> {
    let answered = run.samples.iter().filter_map(|sample| {
        let confidence = sample.score("confidence").filter(|share| (0.0..=1.0).contains(share))?;
        Some((confidence, sample.right(), 1.0))
    });
    let mut dots = Vec::new();
    let mut n = 0;
    for bin in bins_of(answered).iter().filter(|bin| bin.weight > 0.0) {
        let (answers, correct) = (bin.weight.round() as usize, bin.correct.round() as usize);
        let confidence = bin.confidence / bin.weight;
        n += answers;
        dots.push(Dot {
            x: confidence,
            y: bin.correct / bin.weight,
            whisker: wilson(correct, answers),
            about: format!("{correct} of {answers} correct at a mean confidence of {}", number(confidence)),
        });
    }
    (!dots.is_empty()).then(|| Picture {
        title: "Reliability".to_owned(),
        svg: Dots { x: Axis::of_shares("confidence"), y: Axis::of_shares("accuracy"), dots }.draw(),
        caption: format!(
            "Accuracy of {} answers by confidence, the probability of the most probable option, in ten bins, with 95% Wilson intervals. \
             Calibrated probabilities are on the line, and answers below it are too certain.",
            count(n)
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::markdown::table;
    use crate::store::saved::tests::run;

    #[test]
    fn wrong_and_refused_answers_are_listed_and_all_answers_are_drawn() {
        let mut run = run(&[(0.0, None), (1.0, None), (2.0, None), (3.0, None)]);
        for (sample, (right, confidence, log_loss)) in run.samples.iter_mut().zip([
            (1, Some(0.75), Some(0.75_f64.ln())),
            (0, Some(0.75), Some(0.25_f64.ln())),
            (0, None, None),
            (0, Some(0.5), Some(0.125_f64.ln())),
        ]) {
            sample.accuracy = Some(right.into());
            sample.filtered_resps = vec![json!(confidence.map_or("[refusal]", |_| "b"))];
            sample.more.insert("question_type".to_owned(), json!("choice"));
            if let (Some(confidence), Some(log_loss)) = (confidence, log_loss) {
                sample.more.insert("confidence".to_owned(), json!(confidence));
                sample.more.insert("log_loss".to_owned(), json!(-log_loss));
            }
        }
        insta::assert_snapshot!(table(&worst(&run)), @r##"
        | item | type   | question | correct | answer      | P(correct) | P(answer) |
        |------|--------|----------|---------|-------------|------------|-----------|
        |    2 | choice | `item 2` | `2`     | `[refusal]` |          – |         – |
        |    3 | choice | `item 3` | `3`     | `b`         |     0.1250 |    0.5000 |
        |    1 | choice | `item 1` | `1`     | `b`         |     0.2500 |    0.7500 |
        "##);
        let picture = reliability(&run).unwrap();
        assert!(picture.caption.starts_with("Accuracy of 3 answers by confidence"), "{}", picture.caption);
        let svg = picture.svg.into_string();
        assert!(svg.contains("1 of 2 correct at a mean confidence of 0.7500"), "{svg}");
        run.samples.clear();
        assert!(reliability(&run).is_none() && worst(&run).rows.is_empty());
    }
}
