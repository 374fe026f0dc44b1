//! Numbers over reports of native checkpoints against the same checkpoints themselves, and the round trips
//! that they cost.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use ntl_core::contract::{
    BatchModel, EngineError, Event, Job, NodeId, NumberJob, NumberMethod, NumberOutcome, PathRow, Prompt,
    Request, Row,
};
use ntl_core::decoding::{Progress, StepResult};
use ntl_core::numbers::{NumberValues, Scale};
use ntl_core::scripted::Reported;
use ntl_engine::NoObserver;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_remote::{
    LookAhead, NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext, RemoteEngine,
    RemoteLimits, TextDelta, TextQuery,
};

/// Reports the logits of a native model.
struct NativeUpstream {
    model: Mutex<Box<dyn BatchModel>>,
    tokens: usize,
    eos_ids: Vec<u32>,
    /// Number of prompts and of appended tokens of each request.
    requests: Mutex<Vec<(usize, usize)>>,
}

impl NativeUpstream {
    fn answer(&self, model: &mut dyn BatchModel, query: &NextTokenQuery) -> NextTokenAnswer {
        let prompt = Prompt::from(query.prompt.to_vec());
        let opened = model.open(&[(&prompt).into()]).unwrap()[0];
        let mut nodes = 0;
        let mut logits_after = |token: u32| {
            let path = PathRow::new((nodes > 0).then(|| NodeId(nodes - 1)), token);
            nodes += 1;
            model.step(&[Row { context: opened.context, path }]).unwrap().row(0).to_vec()
        };
        let mut logits = logits_after(opened.first_token);
        for &token in &query.path {
            logits = logits_after(token);
        }
        let report = |logits: &[f32]| Reported::Requested.of(logits, self.tokens, &query.wanted);
        let among = query.ahead.among.as_deref();
        let best = |logits: &[f32]| {
            let is_allowed = |id: &u32| among.is_none_or(|ids| ids.contains(id));
            let ids = (0..self.tokens as u32).filter(is_allowed);
            ids.max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]))
        };
        let first = report(&logits);
        let mut ahead = Vec::new();
        while ahead.len() < query.ahead.tokens {
            let token = best(&logits).unwrap();
            if self.eos_ids.contains(&token) {
                break;
            }
            logits = logits_after(token);
            ahead.push(NextTokenStep { token, report: report(&logits) });
        }
        model.close(opened.context);
        NextTokenAnswer { report: first, ahead }
    }
}

impl NextTokens for NativeUpstream {
    fn ask(
        &self,
        _: QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> BoxFuture<'_, Result<Vec<NextTokenAnswer>, EngineError>> {
        async move {
            let mut model = self.model.lock().unwrap();
            let answers: Vec<_> = queries.iter().map(|query| self.answer(&mut **model, query)).collect();
            let ahead = answers.iter().map(|answer| answer.ahead.len()).sum();
            self.requests.lock().unwrap().push((queries.len(), ahead));
            Ok(answers)
        }
        .boxed()
    }

    fn write(&self, _: QueryContext, _: TextQuery) -> BoxStream<'_, Result<TextDelta, EngineError>> {
        panic!("no text is written")
    }
}

fn job(values: NumberValues) -> NumberJob {
    let method = NumberMethod::Tree { tolerance: 1e-3, nodes_max: 256, precision: None };
    NumberJob { values, ..NumberJob::new(method) }
}

fn natively(loaded: &mut LoadedModel, prompt: &Prompt, job: &NumberJob) -> NumberOutcome {
    let model = &mut loaded.model;
    let opened = model.open(&[prompt.into()]).unwrap()[0];
    let request = Request::Number(job.clone());
    let mut decoding = loaded.vocabulary.decoding(&request, &[], opened.first_token);
    let mut events = Vec::new();
    let mut nodes = 0;
    loop {
        let row = |path| Row { context: opened.context, path };
        let rows: Vec<Row> = decoding.next_rows(16).into_iter().map(row).collect();
        let logits = model.step(&rows).unwrap();
        let result = StepResult { logits: &logits, first_row: 0, first_node: NodeId(nodes) };
        nodes += rows.len() as u32;
        if decoding.advance(result, &mut events).unwrap() == Progress::Done {
            break;
        }
    }
    model.close(opened.context);
    match events.pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

/// Returns the number with this look-ahead, and the requests that it cost.
async fn remotely(
    files: &CheckpointFiles,
    prompt: &Prompt,
    job: &NumberJob,
    look_ahead: LookAhead,
) -> (NumberOutcome, Vec<(usize, usize)>) {
    let LoadedModel { model, vocabulary, .. } = load(files, LoadOptions::default()).unwrap();
    let info = model.info().clone();
    let upstream = Arc::new(NativeUpstream {
        tokens: info.tokens,
        eos_ids: info.eos_ids.clone(),
        model: Mutex::new(model),
        requests: Mutex::default(),
    });
    let limits = RemoteLimits { look_ahead, ..RemoteLimits::default() };
    let shared = Arc::clone(&upstream);
    let engine = RemoteEngine::new(shared, info, vocabulary, limits, Arc::new(NoObserver));
    let jobs = vec![Job::new(prompt.clone(), Request::Number(job.clone()))];
    let mut events = engine.submit_all(jobs).unwrap().pop().unwrap();
    match events.next().await {
        Some(Event::Number(outcome)) => (outcome, upstream.requests.lock().unwrap().clone()),
        other => panic!("{other:?}"),
    }
}

fn assert_same(remote: &NumberOutcome, native: &NumberOutcome, what: &str) {
    let (got, want) = (remote.distribution.mass(), native.distribution.mass());
    for (got, want) in [(got.closed, want.closed), (got.invalid, want.invalid), (got.open, want.open)] {
        assert!((got - want).abs() < 1e-4, "{what}: {got} {want}");
    }
    for leaf in native.distribution.most_probable(20) {
        let same = remote.distribution.leaves().iter().find(|own| own.value.total_cmp(&leaf.value).is_eq());
        let got = same.map_or(0.0, |own| own.probability);
        assert!((got - leaf.probability).abs() < 1e-4, "{what}, {}: {got} {}", leaf.text, leaf.probability);
    }
}

fn tiny(name: &str) -> CheckpointFiles {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tiny").join(name);
    CheckpointFiles::folder(&folder).unwrap()
}

fn rating() -> NumberValues {
    NumberValues::Scale(Scale::new(1.0, 9.0, 1.0).unwrap())
}

#[tokio::test]
async fn ratings_over_reports_equal_those_of_the_checkpoint_itself() {
    for name in ["t5-ntl-was", "llama-ntl"] {
        let files = tiny(name);
        let mut loaded = load(&files, LoadOptions::default()).unwrap();
        let prompt = Prompt::from(vec![3, 10, 14, 20]);
        let native = natively(&mut loaded, &prompt, &job(rating()));
        for look_ahead in [LookAhead::NONE, LookAhead::default()] {
            let (remote, requests) = remotely(&files, &prompt, &job(rating()), look_ahead).await;
            println!("{name}, {look_ahead:?}: {} nodes, {requests:?}", remote.nodes);
            assert_same(&remote, &native, name);
            assert_eq!(remote.forward_passes, requests.len());
        }
    }
}

/// The demo checkpoint is trained, so that it is sure about most digits.
#[tokio::test]
async fn numbers_of_a_trained_checkpoint_cost_few_round_trips() {
    let archive = include_bytes!("../../../server/demo/demo.tar.gz");
    let files = CheckpointFiles::archive("the demo checkpoint", archive).unwrap();
    let mut loaded = load(&files, LoadOptions::default()).unwrap();
    for (question, values, requests_max) in [
        ("How many stars: decent room, opinions are divided?", rating(), 2),
        ("How many stars: awful price, good service, good breakfast?", rating(), 2),
        ("What is 336 - -20?", NumberValues::All, 2),
        // Improbable prefixes have no token ahead, so three of them need a request each.
        ("Sum 12.5 and 3.", NumberValues::All, 4),
        ("5 + 641", NumberValues::All, 2),
    ] {
        let prompt = loaded.tokenizer.encode_prompt(question, true).unwrap();
        let native = natively(&mut loaded, &prompt, &job(values));
        for (first, others) in [(0, 0), (3, 1), (5, 1), (5, 2)] {
            let look_ahead = LookAhead { first, others };
            let (remote, requests) = remotely(&files, &prompt, &job(values), look_ahead).await;
            assert_same(&remote, &native, question);
            let (prompts, ahead) = requests.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            println!(
                "{question} ahead {first}, {others}: {} requests, {prompts} prompts, {ahead} tokens ahead, {} nodes",
                requests.len(),
                remote.nodes
            );
            let is_default = look_ahead == LookAhead::default();
            assert!(!is_default || requests.len() <= requests_max, "{question}: {requests:?}");
        }
    }
}
