//! Beam search driven by a scripted model, whose most probable texts are known.

use super::tests::{model, run};
use crate::contract::{BeamJob, EarlyStopping, Event, FinishReason, Request};

fn job(beams: usize) -> BeamJob {
    BeamJob { beams, n: beams as u32, max_tokens: 10, length_penalty: 1.0, early_stopping: EarlyStopping::No }
}

/// Greedy is misled: `4` is likely, but nothing likely follows it.
fn misleading(text: &str) -> Vec<(&'static str, f64)> {
    match text {
        "" => vec![("4", 0.6), ("1", 0.4)],
        "4" => vec![("5", 0.35), ("6", 0.33), ("7", 0.32)],
        "1" => vec![("2", 0.9), ("3", 0.1)],
        _ => vec![("", 1.0)],
    }
}

/// Texts, why they ended, their tokens and probabilities, best first.
fn search(job: BeamJob, rows_max: usize) -> Vec<(String, FinishReason, usize, f64)> {
    let events = run(model(misleading), Request::Beams(job), rows_max).unwrap();
    let mut found = Vec::new();
    let mut written = String::new();
    for event in events {
        match event {
            Event::Text { text, .. } => written.push_str(&text),
            Event::Finished { reason, tokens, cumulative_logprob, .. } => {
                let text = std::mem::take(&mut written);
                let probability = cumulative_logprob.map_or(0.0, f64::exp);
                found.push((text, reason, tokens, (probability * 1e6).round() / 1e6));
            }
            other => panic!("{other:?}"),
        }
    }
    found
}

/// The text of the first choice.
fn first_text(events: Vec<Event>) -> String {
    let piece = |event| match event {
        Event::Text { choice: 0, text, .. } => Some(text),
        _ => None,
    };
    events.into_iter().filter_map(piece).collect()
}

#[test]
fn more_beams_find_what_greedy_decoding_misses() {
    assert_eq!(search(job(1), 4)[0].0, "45");
    let two = search(job(2), 4);
    assert_eq!(two[0], ("12".to_owned(), FinishReason::Stop, 3, 0.36));
    assert_eq!(two[1], ("45".to_owned(), FinishReason::Stop, 3, 0.21));
}

#[test]
fn the_beams_are_the_same_if_a_step_has_room_for_only_one_row() {
    assert_eq!(search(job(4), 1), search(job(4), 64));
}

#[test]
fn only_the_requested_number_of_texts_is_returned() {
    let found = search(BeamJob { n: 1, ..job(4) }, 4);
    assert_eq!(found.iter().map(|text| text.0.as_str()).collect::<Vec<_>>(), ["12"]);
}

#[test]
fn texts_that_are_cut_compete_by_their_score_too() {
    let found = search(BeamJob { max_tokens: 1, ..job(2) }, 4);
    assert_eq!(found[0], ("4".to_owned(), FinishReason::Length, 1, 0.6));
    assert_eq!(found[1], ("1".to_owned(), FinishReason::Length, 1, 0.4));
    let nothing = search(BeamJob { max_tokens: 0, ..job(2) }, 4);
    assert_eq!(nothing, vec![(String::new(), FinishReason::Length, 0, 0.0); 2]);
}

#[test]
fn a_length_penalty_decides_between_short_and_long_texts() {
    // "5" and its end have 0.3; "4x4x4x" and its end 0.7 * 0.9^5, over 7 tokens instead of 2.
    let short_or_long = |text: &str| match text.len() {
        0 => vec![("5", 0.3), ("4", 0.7)],
        1 if text == "5" => vec![("", 1.0)],
        1 | 3 | 5 => vec![("x", 0.9), ("", 0.1)],
        2 | 4 => vec![("4", 0.9), ("", 0.1)],
        _ => vec![("", 1.0)],
    };
    let best = |length_penalty| {
        let request = Request::Beams(BeamJob { n: 1, length_penalty, ..job(3) });
        first_text(run(model(short_or_long), request, 4).unwrap())
    };
    assert_eq!((best(0.0).as_str(), best(2.0).as_str()), ("4x4x4x", "4x4x4x"));
    assert_eq!(best(-1.0), "5", "a negative penalty favours short texts");
}

#[test]
fn early_stopping_returns_the_first_texts_that_end() {
    // Two short ends are found before the long text that is better than both.
    let late = |text: &str| match text.len() {
        0 => vec![("5", 0.5), ("", 0.3), ("6", 0.2)],
        1 => vec![("", 0.6), ("7", 0.4)],
        2 => vec![("8", 1.0)],
        _ => vec![("", 1.0)],
    };
    let best = |early_stopping| {
        let request = Request::Beams(BeamJob { early_stopping, ..job(2) });
        first_text(run(model(late), request, 4).unwrap())
    };
    assert_eq!(best(EarlyStopping::No), "578");
    assert_eq!(best(EarlyStopping::Never), "578");
    let early = best(EarlyStopping::Yes);
    assert!(early.len() < 3, "{early}");
}
