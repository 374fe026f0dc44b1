//! An engine in this process: a model whose next token follows from the ids before it, behind the routes of a
//! real engine, with faults on request.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Ids 0 to 255 are bytes, 256 begins a text, and the others are less probable and have no text. llama.cpp
/// does not report all of them in its first response.
pub(crate) const TOKENS: usize = 600;
pub(crate) const BEGIN: u32 = 256;

/// The log-probabilities of the tokens after these ids.
pub(crate) fn logprobs(ids: &[u32]) -> Vec<f64> {
    let seed = ids.iter().fold(7_u64, |seed, &id| (seed ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let logit = |id: u64| {
        let mixed = (seed ^ (id + 1).wrapping_mul(0xD1B5_4A32_D192_ED03)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let lower = if id > u64::from(BEGIN) { 2.0 } else { 0.0 };
        (mixed >> 40) as f64 / (1 << 21) as f64 - lower
    };
    let logits: Vec<f64> = (0..TOKENS as u64).map(logit).collect();
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit - total.ln()).collect()
}

/// The ids, most probable first.
pub(crate) fn ranked(logprobs: &[f64]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logprobs.len() as u32).collect();
    ids.sort_by(|&a, &b| logprobs[b as usize].total_cmp(&logprobs[a as usize]));
    ids
}

/// The tokenizer of the model. `begins`: whether its texts begin with [`BEGIN`].
pub(crate) fn bytewise(begins: bool) -> Arc<Tokenizer> {
    static TOKENIZERS: OnceLock<[Arc<Tokenizer>; 2]> = OnceLock::new();
    let tokenizers = TOKENIZERS.get_or_init(|| [false, true].map(|begins| Arc::new(opened(begins))));
    Arc::clone(&tokenizers[usize::from(begins)])
}

fn opened(begins: bool) -> Tokenizer {
    let name = |id: usize| match id {
        0..=255 => format!("<0x{id:02X}>"),
        _ => format!("<{id}>"),
    };
    let vocab: Map<String, Value> = (0..TOKENS).map(|id| (name(id), id.into())).collect();
    let begin = name(BEGIN as usize);
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let pair = json!([text, {"Sequence": {"id": "B", "type_id": 0}}]);
    let mut tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{"id": BEGIN, "content": begin, "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false}],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
    });
    if begins {
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": begin, "type_id": 0}}, text],
            "pair": pair,
            "special_tokens": {&begin: {"id": begin, "ids": [BEGIN], "tokens": [begin]}},
        });
    }
    let file = ("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes());
    Tokenizer::open(&CheckpointFiles::memory("bytes", [file])).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavor {
    Vllm,
    /// Reports probabilities after restrictions of the tokens to write.
    VllmProcessed,
    /// Whether it knows `logit_bias` and `post_sampling_probs`.
    LlamaCpp {
        obeys_bias: bool,
    },
    Sglang,
    /// Token texts, at most 5, and token ids as prompts or not.
    OpenAi {
        accepts_ids: bool,
    },
    /// Like `OpenAi`, but returns 5 of any number of requested alternatives.
    Capped,
}

impl Flavor {
    fn is_vllm(self) -> bool {
        matches!(self, Self::Vllm | Self::VllmProcessed)
    }
}

/// Behaviour of the engine on requests for next tokens.
#[derive(Clone)]
pub(crate) enum Fault {
    None,
    /// This fault of one request only.
    Once(Box<Fault>),
    /// This body.
    Body(Vec<u8>),
    /// This status, with this body.
    Status(u16, String),
    /// Status 429 with this `Retry-After`, or without one.
    Overloaded(Option<&'static str>),
    Redirect(String),
    /// The beginning of a response, and then the end of the connection.
    Cut,
    /// Endless spaces.
    Endless,
    /// The beginning of a response, and then nothing.
    Drip,
    /// Nothing at all.
    Stall,
}

pub(crate) struct Fake {
    pub(crate) url: String,
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    flavor: Flavor,
    /// Which weights the model has.
    pub(crate) weights: AtomicU64,
    /// Standard deviation of the rounding of logits, which is another one for each request.
    pub(crate) rounding: Mutex<f64>,
    /// The fingerprint that it names.
    pub(crate) fingerprint: Mutex<Option<&'static str>>,
    /// Whether it has another tokenizer than `bytewise(true)`.
    pub(crate) is_retokenized: AtomicBool,
    fault: Mutex<Fault>,
    /// Requests for next tokens that have arrived, and that were answered or given up.
    pub(crate) arrived: AtomicUsize,
    pub(crate) ended: AtomicUsize,
    /// Number of requests for the list of models.
    pub(crate) described: AtomicUsize,
    /// The bodies of requests for next tokens.
    pub(crate) bodies: Mutex<Vec<Value>>,
    /// Keys of all requests.
    pub(crate) keys: Mutex<Vec<Option<String>>>,
}

/// Counts the end of a request, also if its handler is dropped.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Fake {
    pub(crate) async fn start(flavor: Flavor) -> Self {
        let shared = Arc::new(Shared {
            flavor,
            weights: AtomicU64::new(0),
            rounding: Mutex::new(0.0),
            fingerprint: Mutex::new(None),
            is_retokenized: AtomicBool::new(false),
            fault: Mutex::new(Fault::None),
            arrived: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            described: AtomicUsize::new(0),
            bodies: Mutex::default(),
            keys: Mutex::default(),
        });
        let mut router = Router::new()
            .route("/v1/models", get(models))
            .route("/health", get(|| async { "ok" }))
            .route("/v1/completions", post(next_tokens));
        if flavor.is_vllm() {
            router = router
                .route("/version", get(|| async { Json(json!({"version": "9.9"})) }))
                .route("/tokenize", post(tokenize));
        }
        if matches!(flavor, Flavor::LlamaCpp { .. }) {
            let props =
                json!({"build_info": "b1", "total_slots": 2, "default_generation_settings": {"n_ctx": 512}});
            router = router
                .route("/props", get(|| async { Json(props) }))
                .route("/tokenize", post(tokenize))
                .route("/completion", post(next_tokens));
        }
        if flavor == Flavor::Sglang {
            router = router
                .route("/server_info", get(|| async { Json(json!({"version": "0.5"})) }))
                .route("/tokenize", post(tokenize))
                .route("/generate", post(next_tokens));
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = router.with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, shared }
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    pub(crate) fn arrived(&self) -> usize {
        self.shared.arrived.load(Ordering::SeqCst)
    }
}

async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    shared.described.fetch_add(1, Ordering::SeqCst);
    let owner = match shared.flavor {
        Flavor::Vllm | Flavor::VllmProcessed => "vllm",
        Flavor::LlamaCpp { .. } => "llamacpp",
        Flavor::Sglang => "sglang",
        Flavor::OpenAi { .. } | Flavor::Capped => "somebody",
    };
    let fingerprint = *shared.fingerprint.lock().unwrap();
    let toy = json!({"id": "toy", "owned_by": owner, "max_model_len": 512, "fingerprint": fingerprint});
    Json(json!({"object": "list", "data": [toy]}))
}

async fn tokenize(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    let llama = matches!(shared.flavor, Flavor::LlamaCpp { .. });
    let (text, special) = if llama { ("content", "add_special") } else { ("prompt", "add_special_tokens") };
    let text = body[text].as_str().unwrap();
    let begins = !shared.is_retokenized.load(Ordering::SeqCst);
    let tokens = bytewise(begins).encode(text, body[special].as_bool().unwrap()).unwrap();
    Json(json!({"tokens": tokens}))
}

async fn next_tokens(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    shared.arrived.fetch_add(1, Ordering::SeqCst);
    let ends = Ends(Arc::clone(&shared));
    let key = headers.get(header::AUTHORIZATION).map(|key| key.to_str().unwrap().to_owned());
    shared.keys.lock().unwrap().push(key);
    shared.bodies.lock().unwrap().push(body.clone());
    let fault = {
        let mut next = shared.fault.lock().unwrap();
        match next.clone() {
            Fault::Once(fault) => {
                *next = Fault::None;
                *fault
            }
            fault => fault,
        }
    };
    let begin = || stream::once(async { Ok::<_, std::io::Error>(Bytes::from_static(b"{\"choices\": [")) });
    match fault {
        Fault::None | Fault::Once(_) => {
            let mut response = answer(&shared, &body);
            if let Some(fingerprint) = *shared.fingerprint.lock().unwrap() {
                response.headers_mut().insert("ntl-model-fingerprint", fingerprint.parse().unwrap());
            }
            response
        }
        Fault::Body(bytes) => bytes.into_response(),
        Fault::Status(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Fault::Overloaded(retry_after) => {
            let mut response = (StatusCode::TOO_MANY_REQUESTS, r#"{"error":"busy"}"#).into_response();
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, seconds.parse().unwrap());
            }
            response
        }
        Fault::Redirect(to) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response(),
        Fault::Cut => {
            let end = stream::once(async { Err(std::io::Error::other("cut")) });
            Body::from_stream(futures::StreamExt::chain(begin(), end)).into_response()
        }
        Fault::Endless => {
            let spaces = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 4096])));
            Body::from_stream(spaces).into_response()
        }
        Fault::Drip => {
            let rest = stream::pending();
            Body::from_stream(futures::StreamExt::chain(begin(), rest)).into_response()
        }
        Fault::Stall => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(ends);
            StatusCode::OK.into_response()
        }
    }
}

/// The log-probabilities of the weights in use, with the rounding of this request.
fn rounded(shared: &Shared, ids: &[u32]) -> Vec<f64> {
    let weights = shared.weights.load(Ordering::SeqCst);
    let mut row = ids.to_vec();
    row.extend((weights > 0).then_some(weights as u32));
    let mut logits = logprobs(&row);
    let request = shared.arrived.load(Ordering::SeqCst) as u32;
    let noise = logprobs(&[ids, &[request]].concat());
    for (logit, noise) in logits.iter_mut().zip(noise) {
        // The logits of the model are uniform over a width of 8.
        *logit += *shared.rounding.lock().unwrap() * (noise + 8.0) / 2.3;
    }
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit - total.ln()).collect()
}

fn answer(shared: &Shared, body: &Value) -> Response {
    let flavor = shared.flavor;
    let reject = |message: &str| {
        let body = json!({"error": {"message": message, "type": "x", "param": null, "code": 400}});
        (StatusCode::BAD_REQUEST, Json(body)).into_response()
    };
    let rows = if flavor == (Flavor::OpenAi { accepts_ids: false }) {
        let encode = |text: &String| bytewise(true).encode(text, true).unwrap();
        let texts: Result<Vec<String>, _> = serde_json::from_value(body["prompt"].clone());
        texts.map(|texts| texts.iter().map(encode).collect())
    } else {
        let name = if flavor == Flavor::Sglang { "input_ids" } else { "prompt" };
        serde_json::from_value::<Vec<Vec<u32>>>(body[name].clone())
    };
    let Ok(rows) = rows else { return reject("a prompt is wrong") };
    let parameters = if flavor == Flavor::Sglang { &body["sampling_params"] } else { body };
    let counts = ["max_tokens", "n_predict", "max_new_tokens"].map(|name| parameters[name].as_u64());
    let steps = counts.into_iter().flatten().next().unwrap();
    let best = ["logprobs", "n_probs", "top_logprobs_num"].map(|name| body[name].as_u64());
    let best = best.into_iter().flatten().next().unwrap_or(0) as usize;
    let max = match flavor {
        Flavor::Vllm | Flavor::VllmProcessed => 20,
        Flavor::LlamaCpp { .. } | Flavor::Sglang => usize::MAX,
        Flavor::OpenAi { .. } | Flavor::Capped => 5,
    };
    let best = if flavor == Flavor::Capped { best.min(max) } else { best };
    if best > max {
        return reject("Requested sample logprobs are greater than max allowed");
    }
    let name = if flavor == Flavor::Sglang { "token_ids_logprob" } else { "logprob_token_ids" };
    let ids: Option<Vec<u32>> = serde_json::from_value(body[name].clone()).unwrap();
    if flavor != Flavor::Sglang && ids.as_ref().is_some_and(|ids| ids.len() > 128) {
        return reject("too many ids");
    }
    let allowed: Option<Vec<u32>> = serde_json::from_value(body["allowed_token_ids"].clone()).unwrap();
    let tokens = rows.iter().map(Vec::len).sum::<usize>();
    let obeys_bias = flavor == (Flavor::LlamaCpp { obeys_bias: true });
    let bias = if obeys_bias { &body["logit_bias"] } else { &Value::Null };
    let is_post_sampling = obeys_bias && body["post_sampling_probs"] == true;
    let row = |(index, mut row): (usize, Vec<u32>)| {
        let mut positions = Vec::new();
        for _ in 0..steps {
            let logprobs = biased(rounded(shared, &row), bias);
            let ranked = ranked(&logprobs);
            let is_allowed = |id: &u32| allowed.as_ref().is_none_or(|ids| ids.contains(id));
            let chosen = ranked.iter().copied().find(is_allowed).unwrap();
            let logprobs = match &allowed {
                Some(ids) if flavor == Flavor::VllmProcessed => only(logprobs, ids),
                _ => logprobs,
            };
            let wanted = ids.clone().unwrap_or_else(|| ranked[..best.min(TOKENS)].to_vec());
            positions.push((chosen, wanted, logprobs));
            row.push(chosen);
        }
        choice(flavor, index, &positions, is_post_sampling)
    };
    let choices: Vec<Value> = rows.into_iter().enumerate().map(row).collect();
    match flavor {
        Flavor::LlamaCpp { .. } if choices.len() == 1 => Json(choices[0].clone()).into_response(),
        Flavor::LlamaCpp { .. } | Flavor::Sglang => Json(choices).into_response(),
        _ => {
            let usage = json!({"prompt_tokens": tokens, "completion_tokens": steps * choices.len() as u64,
                "prompt_tokens_details": {"cached_tokens": 1}});
            Json(json!({"choices": choices, "usage": usage})).into_response()
        }
    }
}

/// The log-probabilities if only some ids may be written.
fn only(logprobs: Vec<f64>, ids: &[u32]) -> Vec<f64> {
    let total: f64 = ids.iter().map(|&id| logprobs[id as usize].exp()).sum();
    let logprob = |(id, logprob): (u32, f64)| if ids.contains(&id) { logprob - total.ln() } else { -9999.0 };
    (0..).zip(logprobs).map(logprob).collect()
}

/// The log-probabilities with llama.cpp's bias on some ids.
fn biased(mut logprobs: Vec<f64>, biases: &Value) -> Vec<f64> {
    for bias in biases.as_array().into_iter().flatten() {
        logprobs[bias[0].as_u64().unwrap() as usize] += bias[1].as_f64().unwrap();
    }
    let total: f64 = logprobs.iter().map(|logprob| logprob.exp()).sum();
    logprobs.iter().map(|logprob| logprob - total.ln()).collect()
}

fn choice(
    flavor: Flavor,
    index: usize,
    positions: &[(u32, Vec<u32>, Vec<f64>)],
    is_post_sampling: bool,
) -> Value {
    let name = |id: u32| match flavor {
        Flavor::Vllm | Flavor::VllmProcessed => format!("token_id:{id}"),
        _ => u8::try_from(id).map_or(String::new(), |byte| String::from_utf8_lossy(&[byte]).into_owned()),
    };
    if matches!(flavor, Flavor::LlamaCpp { .. }) {
        let position = |(chosen, wanted, logprobs): &(u32, Vec<u32>, Vec<f64>)| {
            let entry = |&id: &u32| {
                let logprob = logprobs[id as usize];
                let (name_of_value, value) =
                    if is_post_sampling { ("prob", logprob.exp()) } else { ("logprob", logprob) };
                json!({"id": id, "token": name(id), "bytes": [1], name_of_value: value})
            };
            let top = if is_post_sampling { "top_probs" } else { "top_logprobs" };
            json!({"id": chosen, "token": name(*chosen), top: wanted.iter().map(entry).collect::<Vec<_>>()})
        };
        let positions: Vec<Value> = positions.iter().map(position).collect();
        let timings = json!({"prompt_n": 1});
        return json!({"index": index, "content": "", "completion_probabilities": positions, "timings": timings});
    }
    if flavor == Flavor::Sglang {
        let entry = |id: u32, logprobs: &[f64]| json!([logprobs[id as usize], id, null]);
        let entries = |(_, wanted, logprobs): &(u32, Vec<u32>, Vec<f64>)| {
            wanted.iter().map(|&id| entry(id, logprobs)).collect::<Value>()
        };
        let chosen: Value = positions.iter().map(|(chosen, _, logprobs)| entry(*chosen, logprobs)).collect();
        // Both lists, of which the request reads one.
        let reported: Value = positions.iter().map(entries).collect();
        return json!({"text": "", "output_ids": [], "meta_info": {
            "prompt_tokens": 1, "completion_tokens": positions.len(), "cached_tokens": 1,
            "output_token_logprobs": chosen, "output_top_logprobs": reported,
            "output_token_ids_logprobs": reported,
        }});
    }
    let names: Vec<String> = positions.iter().map(|(chosen, ..)| name(*chosen)).collect();
    let top = |(chosen, wanted, logprobs): &(u32, Vec<u32>, Vec<f64>)| {
        let ids = std::iter::once(chosen).chain(wanted);
        let entries = ids.map(|&id| (name(id), json!(logprobs[id as usize])));
        Value::Object(entries.collect())
    };
    let top: Vec<Value> = positions.iter().map(top).collect();
    json!({"index": index, "text": "", "logprobs": {"tokens": names, "top_logprobs": top}, "finish_reason": "length"})
}
