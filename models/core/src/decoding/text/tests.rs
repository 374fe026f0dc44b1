//! Texts of a scripted model: their ends, their constraints, and their reports.

use std::sync::Arc;

use super::super::tests::{PIECES, geometric, model, run, run_behind, small};
use crate::contract::{EngineError, Event, FinishReason, Request, StopReason, TextJob, TokenText};
use crate::guide::{Guide, GuideError, GuideState};
use crate::sampling::SamplingParams;

fn text_job() -> TextJob {
    TextJob { max_tokens: 10, ..TextJob::default() }
}

/// The text, reason and length of each choice.
fn texts(events: &[Event]) -> Vec<(String, FinishReason, usize)> {
    let finished = events.iter().filter_map(|event| match event {
        Event::Finished { choice, reason, tokens, .. } => Some((*choice, *reason, *tokens)),
        _ => None,
    });
    let mut finished: Vec<_> = finished.collect();
    finished.sort_by_key(|&(choice, ..)| choice);
    let text_of = |wanted| {
        let pieces = events.iter().filter_map(move |event| match event {
            Event::Text { choice, text, .. } if *choice == wanted => Some(text.as_str()),
            _ => None,
        });
        pieces.collect::<String>()
    };
    finished.into_iter().map(|(choice, reason, tokens)| (text_of(choice), reason, tokens)).collect()
}

/// Says 4x5 and ends.
fn says_4x5(text: &str) -> Vec<(&'static str, f64)> {
    match text {
        "" => vec![("4", 0.9), ("x", 0.1)],
        "4" => vec![("x", 1.0)],
        "4x" => vec![("5", 0.6), ("", 0.4)],
        _ => vec![("", 1.0)],
    }
}

#[test]
fn greedy_text_ends_at_the_end_the_limit_or_a_stop_string() {
    for (job, want) in [
        (text_job(), ("4x5", FinishReason::Stop, 4)),
        (TextJob { max_tokens: 2, ..text_job() }, ("4x", FinishReason::Length, 2)),
        (TextJob { max_tokens: 0, ..text_job() }, ("", FinishReason::Length, 0)),
        (TextJob { stop: vec!["x".to_owned()], ..text_job() }, ("4", FinishReason::Stop, 2)),
        (TextJob { stop: vec!["x5".to_owned()], ..text_job() }, ("4", FinishReason::Stop, 3)),
    ] {
        let got = texts(&run(model(says_4x5), Request::Text(job.clone()), 4).unwrap());
        assert_eq!(got, [(want.0.to_owned(), want.1, want.2)], "{job:?}");
    }
}

#[test]
fn sampled_texts_are_the_same_at_any_width_and_differ_from_each_other() {
    let sampling = SamplingParams { seed: 5, ..SamplingParams::PLAIN };
    let job = || Request::Text(TextJob { n: 6, sampling, ..text_job() });
    let wide = texts(&run(model(geometric), job(), 64).unwrap());
    let narrow = texts(&run(model(geometric), job(), 2).unwrap());
    assert_eq!(wide, narrow);
    assert!(wide.iter().any(|text| *text != wide[0]), "{wide:?}");
}

#[test]
fn requested_log_probabilities_are_reported_and_change_nothing_else() {
    let job = TextJob { logprobs: Some(2), ..text_job() };
    let events = run(model(small), Request::Text(job), 4).unwrap();
    let tokens: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Text { token, .. } => token.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(texts(&events), texts(&run(model(small), Request::Text(text_job()), 4).unwrap()));
    assert_eq!(tokens.iter().map(|token| token.token.id).collect::<Vec<_>>(), [6, 1], "`4` and the end");
    assert!((tokens[0].token.logprob - 0.5_f64.ln()).abs() < 1e-6);
    assert_eq!(tokens[0].top.iter().map(|top| top.id).collect::<Vec<_>>(), [6, 12]);
}

/// The reported tokens of each choice's text.
fn tokens(events: &[Event], wanted: u32) -> Vec<TokenText> {
    let token = |event: &Event| match event {
        Event::Text { choice, token, .. } if *choice == wanted => token.clone(),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn id(piece: &str) -> u32 {
    PIECES.iter().rposition(|known| *known == piece).unwrap() as u32
}

/// Continues with 4 or x, or ends.
fn endless(_: &str) -> Vec<(&'static str, f64)> {
    vec![("4", 0.3), ("x", 0.2), ("", 0.5)]
}

#[test]
fn the_job_determines_what_may_end_a_text() {
    for (job, want) in [
        (text_job(), ("", FinishReason::Stop, 1)),
        (TextJob { min_tokens: 3, ..text_job() }, ("444", FinishReason::Stop, 4)),
        (TextJob { ignore_eos: true, max_tokens: 2, ..text_job() }, ("", FinishReason::Length, 2)),
        (
            TextJob { logit_bias: [(1, -100.0)].into(), max_tokens: 2, ..text_job() },
            ("44", FinishReason::Length, 2),
        ),
        (
            TextJob { logit_bias: [(id("x"), 100.0)].into(), max_tokens: 2, ..text_job() },
            ("xx", FinishReason::Length, 2),
        ),
        (
            TextJob { min_tokens: 1, stop_token_ids: vec![id("4")], ..text_job() },
            ("x", FinishReason::Stop, 2),
        ),
        (
            TextJob {
                stop_token_ids: vec![id("4")],
                logit_bias: [(1, -9.0)].into(),
                include_stop: true,
                ..text_job()
            },
            ("4", FinishReason::Stop, 1),
        ),
        (
            TextJob { stop: vec!["44".into()], min_tokens: 5, include_stop: true, ..text_job() },
            ("44444", FinishReason::Stop, 6),
        ),
        (
            TextJob { stop: vec!["4".into()], logit_bias: [(1, -9.0)].into(), min_tokens: 2, ..text_job() },
            ("44", FinishReason::Stop, 3),
        ),
    ] {
        let got = texts(&run(model(endless), Request::Text(job.clone()), 4).unwrap());
        assert_eq!(got, [(want.0.to_owned(), want.1, want.2)], "{job:?}");
    }
}

#[test]
fn a_finished_text_has_the_stop_string_or_the_id_that_ended_it() {
    let id = |piece: &str| PIECES.iter().position(|known| *known == piece).unwrap() as u32;
    let text = |stop: &str| Some(StopReason::Text(stop.to_owned()));
    for (job, want) in [
        (text_job(), None),
        (TextJob { stop: vec!["x5".into(), "x".into()], ..text_job() }, text("x")),
        (TextJob { stop: vec!["5".into(), "4x".into(), "4x5".into()], ..text_job() }, text("4x")),
        (TextJob { stop_token_ids: vec![id("x")], ..text_job() }, Some(StopReason::Token(id("x")))),
        // An end of sequence is the model's, even if the job names it as well.
        (TextJob { stop_token_ids: vec![1], ..text_job() }, None),
        (TextJob { stop_token_ids: vec![1], ignore_eos: true, ..text_job() }, Some(StopReason::Token(1))),
        (TextJob { stop: vec!["x5".into()], max_tokens: 2, ..text_job() }, None),
    ] {
        let events = run(model(says_4x5), Request::Text(job.clone()), 4).unwrap();
        let Some(Event::Finished { stop_reason, .. }) = events.last() else { panic!("{events:?}") };
        assert_eq!(*stop_reason, want, "{job:?}");
    }
}

#[test]
fn the_best_texts_are_shown_best_first_and_the_others_only_counted() {
    let sampling = SamplingParams { seed: 3, ..SamplingParams::PLAIN };
    let job = |n, best_of| TextJob { n, best_of, sampling, logprobs: Some(0), ..text_job() };
    let all = run(model(geometric), Request::Text(job(8, 1)), 16).unwrap();
    let mean = |events: &[Event], choice| {
        let tokens = tokens(events, choice);
        tokens.iter().map(|token| token.token.logprob).sum::<f64>() / tokens.len() as f64
    };
    let mut means: Vec<f64> = (0..8).map(|choice| mean(&all, choice)).collect();
    means.sort_by(|a, b| b.total_cmp(a));
    for rows_max in [2, 16] {
        let best = run(model(geometric), Request::Text(job(2, 8)), rows_max).unwrap();
        assert_eq!(
            [mean(&best, 0), mean(&best, 1)].map(f64::to_bits),
            [means[0], means[1]].map(f64::to_bits)
        );
        let finished = texts(&best);
        assert_eq!(finished.len(), 8);
        assert!(finished[2..].iter().all(|(text, _, tokens)| text.is_empty() && *tokens > 0), "{finished:?}");
    }
    let silent = run(model(geometric), Request::Text(TextJob { logprobs: None, ..job(2, 8) }), 16).unwrap();
    assert!(tokens(&silent, 0).is_empty(), "log-probabilities nobody asked for");
}

#[test]
fn prompt_tokens_have_the_same_scores_however_many_rows_fit_into_a_step() {
    let prompt = [id("4"), id("x"), id("5"), id("5")];
    let says = |text: &str| match text {
        "" => vec![("x", 0.25), ("4", 0.75)],
        "x" => vec![("5", 0.5), ("x", 0.5)],
        "x5" => vec![("5", 1.0)],
        "x55" => vec![("4", 0.8), ("x", 0.2)],
        _ => vec![("", 1.0)],
    };
    let run = |max_tokens, rows_max| {
        let job = TextJob { max_tokens, prompt_logprobs: Some(1), logprobs: Some(1), ..text_job() };
        run_behind(model(says), (&prompt, Request::Text(job)), rows_max).unwrap()
    };
    let scored = |events: &[Event]| {
        let prompts = events.iter().filter_map(|event| match event {
            Event::Prompt(tokens) => Some(tokens.clone()),
            _ => None,
        });
        prompts.flatten().collect::<Vec<_>>()
    };
    let whole = run(1, 16);
    let logprobs: Vec<_> =
        scored(&whole).iter().map(|token| (token.token.id, token.token.logprob.exp())).collect();
    for ((id, probability), (want_id, want)) in
        logprobs.iter().zip([(prompt[1], 0.25), (prompt[2], 0.5), (prompt[3], 1.0)])
    {
        assert!(*id == want_id && (probability - want).abs() < 1e-6, "{id}: {probability}");
    }
    assert_eq!(scored(&whole)[0].top[0].id, id("4"), "the best at that place, not what stands there");
    assert_eq!(texts(&whole), [("4".to_owned(), FinishReason::Length, 1)]);
    for rows_max in 1..4 {
        assert_eq!(scored(&run(1, rows_max)), scored(&whole), "{rows_max} rows a step");
    }
    assert_eq!(scored(&run(0, 16)), scored(&whole));
    assert_eq!(texts(&run(0, 16)), [(String::new(), FinishReason::Length, 0)]);
}

#[test]
fn a_repetition_penalty_sees_the_prompt_of_the_same_sequence() {
    let says = |text: &str| if text.is_empty() { vec![("4", 0.6), ("5", 0.4)] } else { vec![("", 1.0)] };
    let sampling = SamplingParams { repetition_penalty: 3.0, ..SamplingParams::GREEDY };
    let text = |before: &[u32]| {
        let job = TextJob { sampling, ..text_job() };
        texts(&run_behind(model(says), (before, Request::Text(job)), 4).unwrap()).remove(0).0
    };
    assert_eq!((text(&[]), text(&[id("4")])), ("4".to_owned(), "5".to_owned()));
}

/// Allows only these ids, one after the other.
#[derive(Debug, Clone)]
struct Only(Vec<u32>);

impl Guide for Only {
    fn start(&self) -> Box<dyn GuideState> {
        Box::new(self.clone())
    }
}

impl GuideState for Only {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError> {
        let allowed = self.0.first().copied();
        for (id, logit) in (0u32..).zip(logits) {
            if Some(id) != allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
    fn accept(&mut self, id: u32) -> Result<(), GuideError> {
        assert_eq!(self.0.remove(0), id);
        Ok(())
    }
    fn is_complete(&mut self) -> bool {
        self.0.is_empty()
    }
}

#[test]
fn a_guided_text_keeps_to_its_guide_and_ends_with_it() {
    let guided = |ids: Vec<u32>| {
        let job = TextJob { guide: Some(Arc::new(Only(ids))), logprobs: Some(1), n: 2, ..text_job() };
        run(model(endless), Request::Text(job), 4)
    };
    let events = guided(vec![id("x"), id("4")]).unwrap();
    assert_eq!(texts(&events), vec![("x4".to_owned(), FinishReason::Stop, 2); 2]);
    assert!((tokens(&events, 0)[0].token.logprob - 0.2_f64.ln()).abs() < 1e-6, "as the model says it");
    // The model gives a 5 no probability at all.
    assert!(matches!(guided(vec![id("5")]), Err(EngineError::Guide(_))));
}
