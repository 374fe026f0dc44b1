//! From replies to figures: the rows behind the metrics, and the sample log.

use serde::Serialize;

use crate::data::Item;
use crate::metrics::{Answer, Estimates, Row, mean};
use crate::runner::Reply;

/// What lm-eval writes where a filter found nothing.
const INVALID: &str = "[invalid]";

/// One row per item. Both lists run in parallel.
pub fn rows(items: &[Item], replies: &[Reply]) -> Vec<Row> {
    let pairs = items.iter().zip(replies);
    pairs.map(|(item, reply)| Row { answer: answer(reply), label: item.label }).collect()
}

fn answer(reply: &Reply) -> Answer {
    match reply {
        Reply::Answered { numbers: Some(numbers), .. } => Answer::Read(*numbers),
        Reply::Answered { numbers: None, .. } => Answer::Unparsed,
        Reply::Failed(_) => Answer::Failed,
    }
}

/// Closed mass, averaged over the answers that carry one.
pub fn mass_closed(replies: &[Reply]) -> Option<f64> {
    mean(replies.iter().filter_map(|reply| match reply {
        Reply::Answered { mass_closed, .. } => *mass_closed,
        Reply::Failed(_) => None,
    }))
}

/// One line of `samples.jsonl`, in the words of lm-eval's sample log.
#[derive(Debug, Serialize)]
pub struct Sample<'a> {
    doc_id: usize,
    doc: Doc<'a>,
    target: &'a str,
    /// One list of texts per request; empty where the request failed.
    resps: Vec<[&'a str; 1]>,
    /// The number that exactness is judged by.
    filtered_resps: Vec<String>,
    /// Which of the fields below are metrics of this item.
    metrics: [&'static str; 2],
    accuracy: u8,
    absolute_error: Option<f64>,
    /// Every estimate.
    prediction: Option<Estimates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mass_closed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Doc<'a> {
    question: &'a str,
    answer: &'a str,
}

/// The log of one suite. Both lists run in parallel.
pub fn samples<'a>(items: &'a [Item], replies: &'a [Reply]) -> impl Iterator<Item = Sample<'a>> {
    items.iter().zip(replies).enumerate().map(|(doc_id, (item, reply))| {
        let row = Row { answer: answer(reply), label: item.label };
        let prediction = match row.answer {
            Answer::Read(numbers) => Some(numbers),
            Answer::Unparsed | Answer::Failed => None,
        };
        let (resps, filtered_resps, mass_closed, error) = match reply {
            Reply::Answered { text, mass_closed, .. } => {
                let read = prediction.map_or_else(|| INVALID.to_owned(), |numbers| numbers.mode.to_string());
                (vec![[text.as_str()]], vec![read], *mass_closed, None)
            }
            Reply::Failed(error) => (Vec::new(), Vec::new(), None, Some(error.as_str())),
        };
        Sample {
            doc_id,
            doc: Doc { question: &item.question, answer: &item.answer },
            target: &item.answer,
            resps,
            filtered_resps,
            metrics: ["accuracy", "absolute_error"],
            accuracy: u8::from(row.is_exact()),
            absolute_error: prediction.map(|numbers| (numbers.median - item.label).abs()),
            prediction,
            mass_closed,
            error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(question: &str, label: f64) -> Item {
        Item { question: question.to_owned(), answer: label.to_string(), label }
    }

    #[test]
    fn a_sample_holds_what_was_asked_what_came_back_and_how_good_it_was() {
        let items = [item("1 + 1", 2.0), item("2 + 2", 4.0), item("3 + 3", 6.0)];
        let numbers = Some(Estimates { mean: 2.5, median: 3.0, mode: 2.0 });
        let replies = [
            Reply::Answered { text: "2".to_owned(), numbers, mass_closed: Some(0.9) },
            Reply::Answered { text: "none".to_owned(), numbers: None, mass_closed: None },
            Reply::Failed("endpoint is gone".to_owned()),
        ];
        let lines: Vec<String> =
            samples(&items, &replies).map(|sample| serde_json::to_string(&sample).unwrap()).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        {"doc_id":0,"doc":{"question":"1 + 1","answer":"2"},"target":"2","resps":[["2"]],"filtered_resps":["2"],"metrics":["accuracy","absolute_error"],"accuracy":1,"absolute_error":1.0,"prediction":{"mean":2.5,"median":3.0,"mode":2.0},"mass_closed":0.9}
        {"doc_id":1,"doc":{"question":"2 + 2","answer":"4"},"target":"4","resps":[["none"]],"filtered_resps":["[invalid]"],"metrics":["accuracy","absolute_error"],"accuracy":0,"absolute_error":null,"prediction":null}
        {"doc_id":2,"doc":{"question":"3 + 3","answer":"6"},"target":"6","resps":[],"filtered_resps":[],"metrics":["accuracy","absolute_error"],"accuracy":0,"absolute_error":null,"prediction":null,"error":"endpoint is gone"}
        "#);
        assert_eq!(mass_closed(&replies), Some(0.9));
        assert_eq!(mass_closed(&[]), None);
    }
}
