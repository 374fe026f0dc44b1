//! The logits that decodings request: fewer than all exactly if the answer is the same.

use std::sync::Arc;

use super::tests::{model, number_job, tree, vocabulary};
use super::*;
use crate::contract::{
    AfterMarker, BatchModel, BeamJob, CandidatesJob, ContextId, EarlyStopping, EmbeddingJob, LogitsRequest,
    LogitsSummary, NumberJob, NumberMethod, OptionsJob, Pooling, Row, ScoreJob, Stack, Terminator, TextJob,
};
use crate::guide::{Guide, GuideError, GuideState};
use crate::losses::NumberTokens;
use crate::numbers::{GrammarLimits, NumberValues};
use crate::sampling::SamplingParams;
use crate::scripted::only_requested;
use crate::{Prompt, Token};

/// The requests of the rows of each step, for up to `steps` steps, after a prompt of three tokens in the same
/// sequence.
fn wanted(request: &Request, steps: usize) -> Vec<Vec<LogitsRequest>> {
    let mut model = model(|_| vec![("4", 0.6), ("2", 0.4)]);
    let opened = model.open(&[(&Prompt::from(vec![2, 1])).into()]).unwrap()[0];
    let mut decoding = vocabulary().decoding(request, &[2, 3, 4], opened.first_token);
    let mut nodes = 0;
    let mut asked = Vec::new();
    for _ in 0..steps {
        let paths = decoding.next_rows(16);
        asked.push(paths.iter().map(|path| path.logits.clone()).collect());
        let rows: Vec<_> = paths.into_iter().map(|path| Row { context: opened.context, path }).collect();
        let logits = model.step(&rows).unwrap();
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes) };
        nodes += rows.len() as u32;
        if decoding.advance(result, &mut Vec::new()).unwrap() == Progress::Done {
            break;
        }
    }
    asked
}

fn text(job: TextJob) -> Request {
    Request::Text(TextJob { max_tokens: 3, ..job })
}

fn sampling(change: impl FnOnce(&mut SamplingParams)) -> Request {
    let mut sampling = SamplingParams::GREEDY;
    change(&mut sampling);
    text(TextJob { sampling, ..TextJob::default() })
}

/// Allows everything.
#[derive(Debug)]
struct Free;

impl Guide for Free {
    fn start(&self) -> Box<dyn GuideState> {
        Box::new(Self)
    }
}

impl GuideState for Free {
    fn restrict(&mut self, _logits: &mut [f32]) -> Result<(), GuideError> {
        Ok(())
    }
    fn accept(&mut self, _id: u32) -> Result<(), GuideError> {
        Ok(())
    }
    fn is_complete(&mut self) -> bool {
        false
    }
}

#[test]
fn a_plain_greedy_text_requests_the_best_id_and_all_others_request_every_logit() {
    let job = TextJob::default;
    for (name, request, want) in [
        ("greedy", text(job()), LogitsRequest::Best),
        ("n", text(TextJob { n: 3, best_of: 3, ..job() }), LogitsRequest::Best),
        ("stop", text(TextJob { stop: vec!["x".to_owned()], ..job() }), LogitsRequest::Best),
        ("stop_token_ids", text(TextJob { stop_token_ids: vec![7], ..job() }), LogitsRequest::Best),
        ("ignore_eos", text(TextJob { ignore_eos: true, ..job() }), LogitsRequest::Best),
        ("cut-offs without a temperature", sampling(|s| (s.top_p, s.top_k) = (0.5, 3)), LogitsRequest::Best),
        ("temperature", sampling(|s| s.temperature = 0.1), LogitsRequest::All),
        ("presence_penalty", sampling(|s| s.presence_penalty = 0.1), LogitsRequest::All),
        ("frequency_penalty", sampling(|s| s.frequency_penalty = 0.1), LogitsRequest::All),
        ("repetition_penalty", sampling(|s| s.repetition_penalty = 1.1), LogitsRequest::All),
        ("logit_bias", text(TextJob { logit_bias: Arc::new([(3, 1.0)]), ..job() }), LogitsRequest::All),
        ("guide", text(TextJob { guide: Some(Arc::new(Free)), ..job() }), LogitsRequest::All),
        ("logprobs", text(TextJob { logprobs: Some(0), ..job() }), LogitsRequest::All),
        ("best_of", text(TextJob { best_of: 2, ..job() }), LogitsRequest::All),
    ] {
        let asked = wanted(&request, 9);
        assert_eq!(asked.len(), 3, "{name}");
        assert!(asked.iter().flatten().all(|wanted| *wanted == want), "{name}: {asked:?}");
    }
}

#[test]
fn ends_are_banned_with_all_logits_and_afterwards_the_best_id_is_enough() {
    let asked = wanted(&text(TextJob { min_tokens: 2, ..TextJob::default() }), 9);
    assert_eq!(asked, [[LogitsRequest::All], [LogitsRequest::All], [LogitsRequest::Best]]);
}

#[test]
fn log_probabilities_of_a_prompt_request_every_logit_only_of_its_rows() {
    let asked = wanted(&text(TextJob { prompt_logprobs: Some(0), ..TextJob::default() }), 9);
    assert_eq!(asked, [vec![LogitsRequest::All; 3], vec![LogitsRequest::Best], vec![LogitsRequest::Best]]);
}

#[test]
fn searches_of_numbers_request_the_ids_that_their_grammar_reads() {
    let number = |method, terminator| Request::Number(NumberJob { method, terminator, ..number_job() });
    // All ids that spell a number, and the end of sequence.
    let read: Vec<u32> = std::iter::once(1).chain(2..15).chain([16]).collect();
    let letters = Terminator::Texts(vec!["x".to_owned()]);
    let with_letters: Vec<u32> = (1..17).collect();
    for (terminator, want) in [(Terminator::Any, &read), (Terminator::Eos, &read), (letters, &with_letters)] {
        for method in [tree(1e-9, 64), NumberMethod::Beam { beams: 2 }] {
            let asked = wanted(&number(method, terminator.clone()), 3);
            let want = LogitsRequest::Ids(want.as_slice().into());
            assert!(asked.iter().flatten().all(|wanted| *wanted == want), "{terminator:?}: {asked:?}");
        }
    }
    let valued: Vec<u32> = (2..12).chain([16]).collect();
    let asked = wanted(&number(NumberMethod::Token, Terminator::Any), 2);
    assert_eq!(asked, [[LogitsRequest::Ids(valued.as_slice().into())], [LogitsRequest::Ids(valued.into())]]);
}

#[test]
fn vectors_request_hidden_states() {
    for (stack, pooling, rows) in [
        (Stack::Encoder, Pooling::Mean, 1),
        (Stack::Encoder, Pooling::Last, 1),
        (Stack::Decoder, Pooling::Mean, 3),
        (Stack::Decoder, Pooling::Last, 1),
    ] {
        let request = Request::Embedding(EmbeddingJob { stack, pooling });
        let mut decoding = vocabulary().decoding(&request, &[2, 3, 4], 4);
        let asked: Vec<_> = decoding.next_rows(16).into_iter().map(|row| row.logits).collect();
        assert_eq!(asked, vec![LogitsRequest::Hidden; rows], "{stack:?} {pooling:?}");
    }
}

#[test]
fn draws_beams_and_scores_request_every_logit() {
    let max_tokens = 3;
    let early_stopping = EarlyStopping::Never;
    let beams = BeamJob { beams: 2, n: 1, max_tokens, length_penalty: 1.0, early_stopping };
    let number_tokens = Arc::new(NumberTokens::new([(2, 0.0), (3, 1.0)]));
    let candidates = CandidatesJob::new(&[[2, 3, 1].map(Token::from).to_vec(), vec![4.into()]]);
    let score = ScoreJob {
        target: [2, 3, 1].map(Token::from).to_vec(),
        number_tokens,
        losses: Vec::new(),
        digits: false,
    };
    let draws = NumberMethod::sample(8, 0);
    for request in [
        Request::Beams(beams),
        Request::Score(score),
        Request::Candidates(candidates),
        Request::Number(NumberJob { method: draws, ..number_job() }),
    ] {
        let asked = wanted(&request, 3);
        assert!(asked.iter().flatten().all(|wanted| *wanted == LogitsRequest::All), "{request:?}: {asked:?}");
    }
}

#[test]
fn options_request_the_ids_that_continue_or_end_them() {
    let options = [vec![2, 3], vec![2], vec![5]].map(|ids| ids.into_iter().map(Token::from).collect());
    let job = OptionsJob::new(&options, &[1], 1e-9).unwrap();
    let mut decoding = vocabulary().decoding(&Request::Options(job), &[], 7);
    let asked: Vec<_> = decoding.next_rows(9).into_iter().map(|row| (row.parent, row.logits)).collect();
    let ids = |ids: &[u32]| LogitsRequest::Ids(ids.into());
    let node = |id| Some(NodeId(id));
    let want = [(None, ids(&[2, 5])), (node(0), ids(&[1, 3])), (node(1), ids(&[1])), (node(0), ids(&[1]))];
    assert_eq!(asked, want);
}

#[test]
fn text_before_a_number_requests_the_logits_of_its_sampling_and_the_search_its_ids() {
    for (temperature, want) in [(0.0, LogitsRequest::Best), (1.0, LogitsRequest::All)] {
        let sampling = SamplingParams { temperature, ..SamplingParams::GREEDY };
        let after = AfterMarker { marker: "4".to_owned(), rationales: 1, sampling, max_tokens: 40 };
        let asked = wanted(&Request::Number(NumberJob { after: Some(after), ..number_job() }), 40);
        let text: Vec<_> = asked.iter().take_while(|step| **step == [want.clone()]).collect();
        assert!(!text.is_empty() && text.len() < asked.len(), "{asked:?}");
        let search = asked[text.len()..].iter().flatten();
        assert!(search.into_iter().all(|wanted| matches!(wanted, LogitsRequest::Ids(_))), "{asked:?}");
    }
}

#[test]
fn a_grammar_lists_all_ids_that_it_reads_in_any_state() {
    let vocabulary = vocabulary();
    let padded = 3;
    let tokens = vocabulary.tokens;
    let logits: Vec<f32> = (0..tokens + padded).map(|id| ((id * 7) % 5) as f32).collect();
    let thousands = GrammarLimits::default().with_thousands(' ').unwrap();
    for limits in [GrammarLimits::default(), thousands] {
        for terminator in [Terminator::Any, Terminator::Eos, Terminator::Texts(vec!["x".to_owned()])] {
            let rules = vocabulary.grammar.rules(limits, terminator, NumberValues::All);
            let row = PathRow::new(None, 0).with_logits(LogitsRequest::Ids(Arc::clone(rules.read_ids())));
            let whole = Logits::new(logits.clone(), logits.len()).unwrap();
            let row = [Row { context: ContextId(0), path: row }];
            let part = only_requested(&whole, &row, tokens).unwrap();
            for written in ["", " ", "-", "1", "12", "1.", "1.5"] {
                let state = rules.state_after(written).unwrap();
                let expand = |logits: &Logits| {
                    let softmax = Softmax::of(logits.get(0)).unwrap();
                    vocabulary.grammar.expand(state, &softmax, &rules, 0.0)
                };
                let got = expand(&part);
                let want = expand(&whole);
                assert_eq!(got.children.len(), want.children.len(), "{written:?}");
                assert_eq!(got.closed.len(), want.closed.len(), "{written:?}");
                assert!((got.invalid - want.invalid).abs() < 1e-6, "{written:?}: {got:?} {want:?}");
                assert!((got.left_open - want.left_open).abs() < 1e-6, "{written:?}");
            }
        }
    }
}

/// A row of a distribution over 17 tokens, without any requested ids.
fn summary() -> LogitsSummary {
    LogitsSummary {
        best_id: 4,
        best_logit: 1.0,
        max: 1.0,
        total: 2.0,
        ids: Arc::from([]),
        logits: Vec::new(),
    }
}

/// One row of this answer for a greedy text.
fn greedy_answer(reduced: LogitsSummary) -> Result<Progress, EngineError> {
    let mut decoding = vocabulary().decoding(&text(TextJob::default()), &[], 0);
    decoding.next_rows(1);
    let logits = Logits::mixed(Vec::new(), 17, [Some(reduced)]).unwrap();
    let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(0) };
    decoding.advance(result, &mut Vec::new())
}

#[test]
fn a_summary_that_is_not_a_distribution_is_an_error_of_the_request() {
    let good = summary();
    assert_eq!(greedy_answer(good.clone()), Ok(Progress::Running));
    for broken in [
        LogitsSummary { total: f64::NAN, ..good.clone() },
        LogitsSummary { max: f32::INFINITY, ..good.clone() },
        LogitsSummary { best_id: 0, best_logit: f32::NEG_INFINITY, ..good },
    ] {
        assert_eq!(greedy_answer(broken), Err(not_a_distribution()));
    }
}

#[test]
fn a_model_that_omits_requested_logits_is_an_error_of_the_request() {
    let sampled = Request::Text(TextJob { sampling: SamplingParams::PLAIN, ..TextJob::default() });
    let mut decoding = vocabulary().decoding(&sampled, &[], 0);
    decoding.next_rows(1);
    let logits = Logits::mixed(Vec::new(), 17, [Some(summary())]).unwrap();
    let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(0) };
    let error = decoding.advance(result, &mut Vec::new()).unwrap_err();
    assert_eq!(error, EngineError::Step("the model left out logits of a full row".to_owned()));
}

#[test]
fn padding_is_never_the_best_id() {
    // Ids from 17 on are padding, and most probable.
    let mut logits = vec![0.0; 20];
    (logits[6], logits[18]) = (2.0, 3.0);
    let whole = Logits::new(logits, 20).unwrap();
    let mut decoding = vocabulary().decoding(&text(TextJob::default()), &[], 0);
    let rows = [Row { context: ContextId(0), path: decoding.next_rows(1).remove(0) }];
    for logits in [only_requested(&whole, &rows, 17).unwrap(), whole] {
        let mut decoding = vocabulary().decoding(&text(TextJob::default()), &[], 0);
        decoding.next_rows(1);
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(0) };
        let mut events = Vec::new();
        decoding.advance(result, &mut events).unwrap();
        assert_eq!(
            events,
            [Event::Text { choice: 0, text: "4".to_owned(), tokens: 1, token: None, offset: 0 }]
        );
    }
}
