//! Numbers and structured texts over reports of native checkpoints against the same checkpoints themselves,
//! and the round trips that they cost.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use ntl_core::contract::{
    BatchModel, ContextId, EngineError, Event, FieldOutcome, FieldsJob, FinishReason, Job, NextTokenReport,
    NodeId, NumberJob, NumberMethod, NumberOutcome, PathRow, Prompt, Request, Row, TextJob, TokenLogprob,
};
use ntl_core::decoding::{Progress, StepResult};
use ntl_core::numbers::{Estimation, GrammarLimits, NumberValues, Objective, Scale};
use ntl_core::scripted::Reported;
use ntl_core::text::TextDecoder;
use ntl_engine::{CacheBudget, Engine, EngineLimits, NoObserver};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_remote::wire::{Alternatives, Batch, answers, openai};
use ntl_remote::{
    Ahead, EngineMeter, LookAhead, NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext,
    RemoteEngine, RemoteLimits, TextDelta, TextEnd, TextQuery, TokenTexts,
};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::guide::{Constraint, GuideCompiler, Whitespace};
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Reports the logits of a native model.
struct NativeUpstream {
    model: Mutex<Box<dyn BatchModel>>,
    tokens: usize,
    eos_ids: Vec<u32>,
    tokenizer: Arc<Tokenizer>,
    /// Number of prompts and of appended tokens of each request.
    requests: Mutex<Vec<(usize, usize)>>,
    /// Numbers of tokens that it wrote at a time, with a choice among all ids.
    free_texts: Mutex<Vec<usize>>,
    /// The streams of random numbers of all texts.
    streams: Mutex<Vec<u64>>,
}

/// A prompt of the native model with the tokens after it.
struct Sequence<'a> {
    model: &'a mut dyn BatchModel,
    context: ContextId,
    nodes: u32,
    /// After the last token.
    logits: Vec<f32>,
}

impl<'a> Sequence<'a> {
    fn open(model: &'a mut dyn BatchModel, prompt: &[u32]) -> Self {
        let prompt = Prompt::from(prompt.to_vec());
        let opened = model.open(&[(&prompt).into()]).unwrap()[0];
        let mut sequence = Self { model, context: opened.context, nodes: 0, logits: Vec::new() };
        sequence.push(opened.first_token);
        sequence
    }

    fn push(&mut self, token: u32) {
        let path = PathRow::new((self.nodes > 0).then(|| NodeId(self.nodes - 1)), token);
        self.nodes += 1;
        let rows = [Row { context: self.context, path }];
        self.logits = self.model.step(&rows).unwrap().row(0).to_vec();
    }

    /// The most probable token, or the most probable one of some.
    fn best(&self, tokens: usize, among: Option<&[u32]>) -> u32 {
        let ids = (0..tokens as u32).filter(|id| among.is_none_or(|ids| ids.contains(id)));
        // Ties go to the lowest id.
        ids.rev().max_by(|a, b| self.logits[*a as usize].total_cmp(&self.logits[*b as usize])).unwrap()
    }
}

impl Drop for Sequence<'_> {
    fn drop(&mut self) {
        self.model.close(self.context);
    }
}

impl NativeUpstream {
    fn answer(&self, model: &mut dyn BatchModel, query: &NextTokenQuery) -> NextTokenAnswer {
        let mut sequence = Sequence::open(model, &query.prompt);
        query.path.iter().for_each(|&token| sequence.push(token));
        let report = |logits: &[f32]| Reported::Requested.of(logits, self.tokens, &query.wanted);
        let first = report(&sequence.logits);
        let mut ahead = Vec::new();
        while ahead.len() < query.ahead.tokens {
            let token = sequence.best(self.tokens, query.ahead.among.as_deref());
            if self.eos_ids.contains(&token) {
                break;
            }
            sequence.push(token);
            ahead.push(NextTokenStep { token, report: report(&sequence.logits) });
        }
        NextTokenAnswer { report: first, ahead }
    }

    /// Writes greedy text. Like vLLM, it leaves out the end of the sequence.
    fn text(&self, model: &mut dyn BatchModel, query: &TextQuery) -> TextDelta {
        let mut sequence = Sequence::open(model, &query.prompt);
        query.path.iter().for_each(|&token| sequence.push(token));
        let mut ids = Vec::new();
        let end = loop {
            let token = sequence.best(self.tokens, query.among.as_deref());
            if self.eos_ids.contains(&token) {
                break TextEnd::EndOfSequence;
            }
            ids.push(token);
            let text = self.tokenizer.decode(&ids);
            if query.stop.as_ref().is_some_and(|stop| text.contains(stop)) {
                break TextEnd::StopString;
            }
            if ids.len() == query.max_tokens {
                break TextEnd::Length;
            }
            sequence.push(token);
        };
        TextDelta { text: self.tokenizer.decode(&ids), ids, end: Some(end) }
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

    fn write(&self, _: QueryContext, query: TextQuery) -> BoxStream<'_, Result<TextDelta, EngineError>> {
        stream::once(async move {
            let text = self.text(&mut **self.model.lock().unwrap(), &query);
            self.requests.lock().unwrap().push((1, text.ids.len()));
            self.streams.lock().unwrap().push(query.stream);
            if query.among.is_none() {
                self.free_texts.lock().unwrap().push(text.ids.len());
            }
            Ok(text)
        })
        .boxed()
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

/// Returns an engine over a checkpoint, and that checkpoint.
fn remote(files: &CheckpointFiles, look_ahead: LookAhead) -> (RemoteEngine, Arc<NativeUpstream>) {
    let LoadedModel { model, vocabulary, tokenizer, .. } = load(files, LoadOptions::default()).unwrap();
    let info = model.info().clone();
    let upstream = Arc::new(NativeUpstream {
        tokens: info.tokens,
        eos_ids: info.eos_ids.clone(),
        model: Mutex::new(model),
        tokenizer,
        requests: Mutex::default(),
        free_texts: Mutex::default(),
        streams: Mutex::default(),
    });
    let limits = RemoteLimits { look_ahead, ..RemoteLimits::default() };
    let shared = Arc::clone(&upstream);
    let budget = CacheBudget::new(1 << 30);
    (RemoteEngine::new(&budget, shared, info, vocabulary, limits, Arc::new(NoObserver)), upstream)
}

/// Returns the number with this look-ahead, and the requests that it cost.
async fn remotely(
    files: &CheckpointFiles,
    prompt: &Prompt,
    job: &NumberJob,
    look_ahead: LookAhead,
) -> (NumberOutcome, Vec<(usize, usize)>) {
    let (engine, upstream) = remote(files, look_ahead);
    let jobs = vec![Job::new(prompt.clone(), Request::Number(job.clone()))];
    let mut events = engine.submit_all(jobs, &EngineMeter::default()).unwrap().pop().unwrap();
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
    // The output layer of `qwen3` has five ids more than its tokenizer.
    for name in ["t5-ntl-was", "llama-ntl", "qwen3"] {
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

/// A structured text with its numbers.
#[derive(Debug, Default, PartialEq)]
struct Structured {
    text: String,
    numbers: Vec<FieldOutcome>,
    tokens: usize,
    end: Option<FinishReason>,
}

impl Structured {
    /// Takes an event of its text.
    fn read(&mut self, event: Event) {
        match event {
            Event::Text { text, .. } => self.text += &text,
            Event::Field(number) => self.numbers.push(number),
            Event::Finished { reason, tokens, .. } => (self.end, self.tokens) = (Some(reason), tokens),
            other => panic!("{other:?}"),
        }
    }
}

fn structured_job(files: &CheckpointFiles, schema: &Value) -> TextJob {
    let LoadedModel { model, tokenizer, .. } = load(files, LoadOptions::default()).unwrap();
    let compiler = GuideCompiler::new(&tokenizer, model.info()).unwrap();
    let constraint = Constraint::Json { schema: schema.clone(), whitespace: Whitespace::default() };
    let fields = FieldsJob {
        limits: GrammarLimits::new(2, 1, true).unwrap(),
        tolerance: 1e-6,
        nodes_max: 60_000,
        precision: None,
        time_max: None,
        objective: Objective::Median,
        estimation: Estimation::default(),
        mass_min: 0.0,
        decimals: 1,
    };
    let guide = Some(compiler.compile(&constraint).unwrap());
    TextJob { guide, max_tokens: 120, fields: Some(fields), ..TextJob::default() }
}

#[tokio::test]
async fn a_greedy_structured_text_over_an_engine_equals_the_native_one_with_its_numbers() {
    let flat = json!({
        "type": "object", "required": ["name", "price", "rooms"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "price": {"type": "number", "minimum": 0, "exclusiveMaximum": 90},
            "rooms": {"type": ["integer", "null"], "minimum": 1, "maximum": 12}
        }
    });
    let free_texts = compare_structured(&flat).await;
    assert!(free_texts.iter().any(|&tokens| tokens > 1), "the engine offered no tokens: {free_texts:?}");
}

#[tokio::test]
async fn the_numbers_of_a_union_over_an_engine_equal_the_native_ones() {
    let variant = |kind: &str, minimum: i64, step: f64| {
        json!({"type": "object", "required": ["kind", "x"], "additionalProperties": false, "properties": {
            "kind": {"const": kind}, "x": {"type": "number", "minimum": minimum, "maximum": minimum + 9, "multipleOf": step}}})
    };
    compare_structured(&json!({"oneOf": [variant("p", 0, 0.25), variant("q", 50, 1.0)]})).await;
}

#[tokio::test]
async fn the_listed_values_of_a_text_over_an_engine_equal_the_native_ones() {
    compare_structured(&json!({
        "type": "object", "required": ["color", "ok", "note", "x"], "additionalProperties": false,
        "properties": {
            "color": {"enum": ["a", "ab", "pear"]}, "ok": {"type": "boolean"},
            "note": {"anyOf": [{"const": "no"}, {"type": "null"}]}, "x": {"type": "integer", "minimum": 1, "maximum": 5}
        }
    }))
    .await;
}

/// Writes a text natively and over an engine. Returns the number of tokens that the engine offered in each
/// request.
async fn compare_structured(schema: &Value) -> Vec<usize> {
    let files = tiny("llama-ntl");
    let prompt = Prompt::from(vec![1, 10, 14, 20]);
    let job = structured_job(&files, schema);
    let LoadedModel { model, vocabulary, .. } = load(&files, LoadOptions::default()).unwrap();
    let limits = EngineLimits::default();
    let (native, _) = Engine::spawn(model, vocabulary, limits, Arc::new(NoObserver)).unwrap();
    let mut events = native.submit(Job::new(prompt.clone(), Request::Text(job.clone()))).unwrap();
    let mut want = Structured::default();
    while want.end.is_none() {
        want.read(events.next().await.unwrap());
    }
    serde_json::from_str::<Value>(&want.text).unwrap();
    assert!(want.numbers.iter().any(|number| number.value.is_some()), "{}", want.text);

    let (engine, upstream) = remote(&files, LookAhead::default());
    let mut jobs =
        engine.submit_all(vec![Job::new(prompt, Request::Text(job))], &EngineMeter::default()).unwrap();
    let mut got = Structured::default();
    while let Some(event) = jobs[0].next().await {
        got.read(event);
    }
    assert_eq!((&got.text, got.tokens, got.end), (&want.text, want.tokens, want.end));
    assert_eq!(got.numbers.len(), want.numbers.len());
    for (got, want) in got.numbers.iter().zip(&want.numbers) {
        assert_same(&got.outcome, &want.outcome, &want.field.path);
        assert_eq!((&got.field, &got.tokens, got.value), (&want.field, &want.tokens, want.value));
        assert!(got.outcome.forward_passes > 0);
    }
    let streams = upstream.streams.lock().unwrap().clone();
    let distinct: HashSet<u64> = streams.iter().copied().collect();
    assert_eq!(
        distinct.len(),
        streams.len(),
        "a refused token and its replacement are drawn independently: {streams:?}"
    );
    upstream.free_texts.lock().unwrap().clone()
}

/// An OpenAI-style server with the tokens of a checkpoint. It writes numbers of one digit, with other
/// probabilities after every text.
struct Styled {
    tokenizer: Arc<Tokenizer>,
    texts: TokenTexts,
    digits: Vec<u32>,
    /// Number of alternatives that it reports. `None` reports all tokens with their ids.
    alternatives: Option<usize>,
}

impl Styled {
    fn new(files: &CheckpointFiles, alternatives: Option<usize>) -> Self {
        let tokenizer = load(files, LoadOptions::default()).unwrap().tokenizer;
        let texts = TokenTexts::new(&tokenizer);
        let digits = (b'0'..=b'9').filter_map(|digit| texts.id(&[digit])).collect();
        Self { tokenizer, texts, digits, alternatives }
    }

    /// The log-probabilities after these ids.
    fn logprobs(&self, ids: &[u32]) -> Vec<f64> {
        let mix =
            |mixed: u64, id: u32| (mixed ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let seed = ids.iter().fold(7, |mixed, &id| mix(mixed, id));
        let is_after_digit = ids.last().is_some_and(|last| self.digits.contains(last));
        let logit = |id: u32| {
            let random = (mix(mix(seed, id), id) >> 40) as f64 / (1 << 24) as f64;
            match (self.digits.contains(&id), is_after_digit) {
                (true, false) => 9.0 * random,
                (true, true) => random - 2.0,
                (false, false) => -2.0,
                (false, true) => 2.0 + 8.0 * random.powi(64),
            }
        };
        let logits: Vec<f64> = (0..self.tokenizer.len() as u32).map(logit).collect();
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.iter().map(|logit| logit - total.ln()).collect()
    }

    fn answer(&self, query: &NextTokenQuery) -> NextTokenAnswer {
        let ids = [&query.prompt, query.path.as_slice()].concat();
        let logprobs = self.logprobs(&ids);
        let mut best_first: Vec<TokenLogprob> =
            (0..).zip(logprobs).map(|(id, logprob)| TokenLogprob { id, logprob }).collect();
        best_first.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        let Some(count) = self.alternatives else {
            return NextTokenAnswer {
                report: NextTokenReport::new(best_first, None).unwrap(),
                ahead: Vec::new(),
            };
        };
        let text = |id| String::from_utf8_lossy(&self.tokenizer.token_bytes(id)).into_owned();
        let top: Map<String, Value> =
            best_first[..count].iter().map(|token| (text(token.id), token.logprob.into())).collect();
        let logprobs = json!({"tokens": [text(best_first[0].id)], "top_logprobs": [top]});
        let body = json!({"choices": [{"index": 0, "logprobs": logprobs}]}).to_string();
        let (ahead, vocab) = (&Ahead::NONE, self.tokenizer.len());
        let alternatives = Alternatives::Best(count);
        let batch = Batch { rows: 1, alternatives, ahead, cache_salt: 0, vocab };
        let read = openai::read(body.as_bytes(), &batch, &self.texts).unwrap();
        answers(read).unwrap().remove(0)
    }
}

impl NextTokens for Styled {
    fn ask(
        &self,
        _: QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> BoxFuture<'_, Result<Vec<NextTokenAnswer>, EngineError>> {
        async move { Ok(queries.iter().map(|query| self.answer(query)).collect()) }.boxed()
    }

    fn write(&self, _: QueryContext, _: TextQuery) -> BoxStream<'_, Result<TextDelta, EngineError>> {
        stream::empty().boxed()
    }
}

/// With few alternatives, bounds are wide. A check of them is worth something only if the texts of digits
/// name tokens, so that bounds are narrower than the range.
#[tokio::test]
async fn bounds_hold_with_few_alternatives_whose_texts_name_digits_and_are_narrower_than_the_range() {
    let ambiguous = Styled::new(&tiny("llama-ntl"), Some(5));
    assert!(ambiguous.digits.is_empty(), "with and without a space, digits are the same text");
    let files = tiny("qwen3");
    let engine = |alternatives| {
        let styled = Styled::new(&files, alternatives);
        assert_eq!(styled.digits.len(), 10);
        let LoadedModel { model, vocabulary, .. } = load(&files, LoadOptions::default()).unwrap();
        let (budget, limits, info) =
            (CacheBudget::new(1 << 30), RemoteLimits::default(), model.info().clone());
        RemoteEngine::new(&budget, Arc::new(styled), info, vocabulary, limits, Arc::new(NoObserver))
    };
    let exact = engine(None);
    let search = async |engine: &RemoteEngine, prompt: u32, tolerance| {
        let method = NumberMethod::Tree { tolerance, nodes_max: 4096, precision: None };
        let job = NumberJob { values: rating(), ..NumberJob::new(method) };
        let job = Job::new(vec![1, 10, 14, prompt], Request::Number(job));
        match engine.submit_all(vec![job], &EngineMeter::default()).unwrap()[0].next().await {
            Some(Event::Number(outcome)) => outcome.distribution,
            other => panic!("{other:?}"),
        }
    };
    let range = rating().interval();
    let width = range.map(|range| range.high - range.low).unwrap();
    for count in [5, 20] {
        let few = engine(Some(count));
        let (mut bounds_all, mut narrower) = (0, 0);
        for prompt in 0..40 {
            let exact = search(&exact, prompt, 1e-9).await;
            let few = search(&few, prompt, 1e-3).await;
            for estimation in [Estimation::default(), Estimation { range, ..Estimation::default() }] {
                for objective in
                    [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.9)]
                {
                    let value = exact.estimate(objective, &estimation);
                    let bounds = few.estimate_bounds(objective, &estimation);
                    let (Some(value), Some(bounds)) = (value, bounds) else { continue };
                    let slack = 1e-6;
                    assert!(
                        bounds.low - slack <= value && value <= bounds.high + slack,
                        "{count} alternatives, prompt {prompt}, {objective:?}: {value}, {bounds:?}"
                    );
                    bounds_all += 1;
                    narrower += usize::from(bounds.high - bounds.low < 0.99 * width);
                }
            }
        }
        println!("{count} alternatives: {narrower} of {bounds_all} bounds are narrower than the range");
        assert!(bounds_all >= 120 && narrower * 2 > bounds_all, "{narrower} of {bounds_all}");
    }
}
