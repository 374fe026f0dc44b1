//! Finds out which engine answers, which model it serves, and what it reports about next tokens.
//!
//! The engine names itself (`owned_by` in `/v1/models`). Prompts of a few tokens show which probabilities it
//! can report, because this depends on versions and flags. An engine that reports none may answer chats.

use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::chat::CHAT;
use crate::client::{BaseUrl, Client, UpstreamError};
use crate::engine::{Ahead, ChatQuery};
use crate::wire::chat::{self, ChatFields};
use crate::wire::llama_cpp::{self, Probabilities};
use crate::wire::{Alternatives, Batch, Position, check, openai, sglang, vllm};

/// Maximum size of a response that describes an engine. llama.cpp's `/props` has the chat template.
const DESCRIPTION_BYTES_MAX: usize = 4 << 20;

/// Numbers of alternatives that are requested, until the engine accepts one. It may return fewer.
const COUNTS: [usize; 6] = [1000, 100, 20, 10, 5, 1];

/// Number of tokens after the prompt that shows how many alternatives an engine returns. Tokens with the same
/// text may count once, but not at each of them.
const PROBE_TOKENS: usize = 16;

/// Number of tokens of a prompt that shows whether an engine accepts ids.
const PROBE_IDS: usize = 7;

/// Ids whose probabilities are requested to find out what an engine reports.
const TRIED_IDS: [u32; 2] = [0, 1];

/// Maximum number of tokens of the answer to a chat that shows which fields an engine accepts. Models that
/// reason need many, and some engines fail if an answer has no text.
const CHAT_TOKENS: usize = 2048;

/// Maximum difference of a log-probability with and without a restriction of the tokens to write, also in
/// half precision. A probability after the restriction is 0 or 1.
const RESTRICTED_ERROR_MAX: f64 = 0.1;

/// A kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Vllm,
    LlamaCpp,
    Ntl,
    Sglang,
    OpenAi,
    /// It answers chats, and reports no probabilities that numbers could be computed from.
    OpenAiChat,
}

impl EngineKind {
    /// The name in `/v1/models`, in logs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llama-cpp",
            Self::Ntl => "ntl",
            Self::Sglang => "sglang",
            Self::OpenAi => "openai",
            Self::OpenAiChat => "openai-chat",
        }
    }
}

/// The tokens about which an engine reports probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reports {
    /// Any given ids.
    Ids,
    /// The most probable ones, up to the whole vocabulary.
    All,
    /// This many of the most probable ones.
    Best(usize),
    /// None: answers are sampled.
    None,
}

impl fmt::Display for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids => f.write_str("ids"),
            Self::All => f.write_str("all"),
            Self::Best(count) => write!(f, "{count}"),
            Self::None => f.write_str("none"),
        }
    }
}

/// Facts about an engine and its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    /// The detected replica. Others are compared with it.
    pub(super) replica: BaseUrl,
    pub kind: EngineKind,
    /// Why it is taken for this kind.
    pub reason: String,
    pub version: Option<String>,
    /// The model's name on the engine.
    pub model: String,
    /// Maximum number of tokens of prompt and answer together.
    pub context_tokens_max: Option<usize>,
    pub parameters: Option<u64>,
    /// Where the engine loaded the model from.
    pub root: Option<String>,
    pub reports: Reports,
    /// Maximum number of the most probable tokens that it reports.
    pub best_max: usize,
    /// Whether it can write the most probable one of given ids, and reports the model's own probabilities
    /// then.
    pub chooses_among: bool,
    /// Whether prompts may be token ids.
    pub accepts_ids: bool,
    /// Whether it has `/tokenize`.
    pub tokenizes: bool,
    /// llama.cpp: number of prompts that each replica keeps in its cache, and computes at the same time.
    pub slots: Option<usize>,
    /// The fields of chats that it takes, if answers are sampled.
    pub chat: Option<ChatFields>,
}

impl EngineFacts {
    /// The name of the field with the prompts.
    pub(super) fn prompt_field(&self) -> &'static str {
        if self.kind == EngineKind::Sglang { sglang::PROMPTS } else { "prompt" }
    }

    /// Returns which probabilities to request from llama.cpp.
    pub(super) fn probabilities(&self) -> Probabilities {
        if self.reports == Reports::Ids { Probabilities::PostSampling } else { Probabilities::Raw }
    }

    /// The same engine, whose answers are sampled.
    fn answering_chats(self, fields: ChatFields) -> Self {
        Self {
            kind: EngineKind::OpenAiChat,
            reports: Reports::None,
            best_max: 0,
            accepts_ids: false,
            chat: Some(fields),
            ..self
        }
    }

    /// Returns in which fact about requests another replica of the same model differs, if it does.
    fn difference(&self, other: &Self) -> Option<String> {
        let shown = |max: Option<usize>| max.map_or("an unknown number of".to_owned(), |max| max.to_string());
        let is_same_kind = discriminant(&self.reports) == discriminant(&other.reports);
        // The numbers of two replicas differ by chance if tokens with the same text count once.
        if !is_same_kind || self.best_max / 2 > other.best_max {
            let (own, others) = (self.reports, other.reports);
            return Some(format!("reports other alternatives ({others} instead of {own})"));
        }
        if self.chat != other.chat {
            return Some("takes other fields of chats".to_owned());
        }
        if self.context_tokens_max != other.context_tokens_max {
            let (own, others) = (shown(self.context_tokens_max), shown(other.context_tokens_max));
            return Some(format!("takes {others} instead of {own} tokens"));
        }
        if self.accepts_ids && !other.accepts_ids {
            return Some("does not accept token ids as a prompt".to_owned());
        }
        if self.chooses_among && !other.chooses_among {
            return Some("changes probabilities if only some tokens may be written".to_owned());
        }
        None
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the engine at {replica} serves {}; append #MODEL to the URL", listed(.models))]
    SeveralModels { replica: String, models: Vec<String> },
    #[error("the engine at {replica} does not serve `{name}`; it serves {}", listed(.models))]
    UnknownModel { replica: String, name: String, models: Vec<String> },
    #[error(
        "the model of the engine at {replica} is an encoder-decoder model; numbers need a decoder-only model"
    )]
    EncoderDecoder { replica: String },
    #[error(
        "the engine at {replica} reports no log-probabilities of next tokens at {route}: {problem}; if it answers \
         chats, --upstream openai-chat samples numbers from whole answers"
    )]
    NoReports { replica: String, route: &'static str, problem: Box<UpstreamError> },
    #[error("the engine at {replica} does not answer chats at /v1/chat/completions: {problem}")]
    NoChats { replica: String, problem: Box<UpstreamError> },
    /// `completions`: the problem at `/v1/completions`.
    #[error("{completions}; and it does not answer chats at /v1/chat/completions: {chats}")]
    NeitherRoute { completions: Box<DetectError>, chats: Box<UpstreamError> },
}

fn listed(models: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut names: Vec<String> = models.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    if models.len() > SHOWN {
        names.push("…".to_owned());
    }
    if names.is_empty() { "no models".to_owned() } else { names.join(", ") }
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<Listed>,
}

/// The facts about the weights of a model that an engine reports. Other fields, such as `created`, differ
/// from time to time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Description {
    /// ntl-server.
    pub(super) fingerprint: Option<String>,
    pub(super) root: Option<String>,
    pub(super) context_tokens_max: Option<usize>,
    pub(super) parameters: Option<u64>,
    /// Size of the weights in bytes.
    pub(super) size: Option<u64>,
}

#[derive(Default, Deserialize)]
struct Listed {
    id: String,
    owned_by: Option<String>,
    /// vLLM and ntl-server.
    max_model_len: Option<usize>,
    /// vLLM.
    root: Option<String>,
    /// ntl-server.
    encoder_decoder: Option<bool>,
    parameters: Option<u64>,
    fingerprint: Option<String>,
    /// llama.cpp.
    meta: Option<Meta>,
}

#[derive(Default, Deserialize)]
struct Meta {
    n_params: Option<u64>,
    size: Option<u64>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Props {
    build_info: Option<String>,
    total_slots: Option<usize>,
    default_generation_settings: GenerationSettings,
}

#[derive(Deserialize)]
struct GenerationSettings {
    n_ctx: Option<usize>,
}

/// Describes the engine at an address. `model` and `kind` are the user's settings.
pub(super) async fn detect(
    client: &Client,
    base: &BaseUrl,
    model: Option<&str>,
    kind: Option<EngineKind>,
) -> Result<EngineFacts, DetectError> {
    let listed = listed_or_named(client, base, model, kind).await?;
    let is_given = kind.is_some();
    if listed.encoder_decoder == Some(true) {
        return Err(DetectError::EncoderDecoder { replica: base.to_string() });
    }
    let props = async || ask::<Props>(client, base, "/props").await.ok();
    let (kind, reason) = match (kind, listed.owned_by.as_deref()) {
        (Some(kind), _) => (kind, "--upstream names it".to_owned()),
        (None, Some(owner @ "vllm")) => (EngineKind::Vllm, says(owner)),
        (None, Some(owner @ "llamacpp")) => (EngineKind::LlamaCpp, says(owner)),
        (None, Some(owner @ "ntl-server")) => (EngineKind::Ntl, says(owner)),
        (None, Some(owner @ "sglang")) => (EngineKind::Sglang, says(owner)),
        (None, _) if props().await.is_some() => {
            (EngineKind::LlamaCpp, "it has llama.cpp's route /props".to_owned())
        }
        (None, owner) => (
            EngineKind::OpenAi,
            format!(
                "/v1/models says owned_by {}, which no known engine does",
                client.printable(owner.unwrap_or("nothing"))
            ),
        ),
    };
    let mut facts = EngineFacts {
        replica: base.clone(),
        kind,
        reason,
        version: None,
        model: listed.id,
        context_tokens_max: listed.max_model_len,
        parameters: listed.parameters.or(listed.meta.unwrap_or_default().n_params),
        root: listed.root.map(|root| client.printable(&root)),
        reports: Reports::All,
        best_max: usize::MAX,
        chooses_among: false,
        accepts_ids: true,
        tokenizes: !matches!(kind, EngineKind::OpenAi | EngineKind::OpenAiChat),
        slots: None,
        chat: None,
    };
    if kind == EngineKind::LlamaCpp {
        if let Some(props) = props().await {
            let slots = props.total_slots.unwrap_or(1);
            facts.slots = Some(if keeps_slots(client, base, slots).await? { slots } else { 1 });
            facts.version = props.build_info.map(|version| client.printable(&version));
            facts.context_tokens_max = props.default_generation_settings.n_ctx.or(facts.context_tokens_max);
        }
        if obeys_bias(client, base).await? {
            facts.reports = Reports::Ids;
        }
        return Ok(facts);
    }
    if kind == EngineKind::Sglang {
        facts.version = version(client, base, "/server_info").await;
        check_sglang(client, base).await?;
        facts.reports = Reports::Ids;
        return Ok(facts);
    }
    if kind == EngineKind::OpenAiChat {
        let fields = chat_fields(client, base, &facts.model).await;
        let fields = fields.map_err(|problem| no_chats(base, problem))?;
        return Ok(facts.answering_chats(fields));
    }
    if kind != EngineKind::OpenAi {
        facts.version = version(client, base, "/version").await;
    }
    match try_reports(client, base, &mut facts).await {
        Err(problem) if !is_given && kind == EngineKind::OpenAi && lacks_reports(&problem) => {
            chats_instead(client, base, facts, problem).await
        }
        Err(problem) => Err(problem),
        Ok(()) => Ok(facts),
    }
}

/// Returns whether an engine has no log-probabilities at `/v1/completions`, or no such route.
fn lacks_reports(problem: &DetectError) -> bool {
    use UpstreamError::{NotUnderstood, Status};
    matches!(
        problem,
        DetectError::NoReports { .. }
            | DetectError::Upstream(Status { status: 403 | 404 | 405 | 501, .. } | NotUnderstood { .. })
    )
}

/// Describes an engine that reports no probabilities and was not named by the user.
async fn chats_instead(
    client: &Client,
    base: &BaseUrl,
    facts: EngineFacts,
    completions: DetectError,
) -> Result<EngineFacts, DetectError> {
    match chat_fields(client, base, &facts.model).await {
        Ok(fields) => {
            let reason = format!(
                "{}; it answers chats and reports no log-probabilities at /v1/completions",
                facts.reason
            );
            Ok(EngineFacts { reason, ..facts }.answering_chats(fields))
        }
        Err(error) if error.is_transient() || error.is_timeout() => Err(error.into()),
        Err(chats) => {
            // The hint about another flag would be wrong.
            let completions = match completions {
                DetectError::NoReports { problem, .. } => (*problem).into(),
                other => other,
            };
            Err(DetectError::NeitherRoute { completions: Box::new(completions), chats: Box::new(chats) })
        }
    }
}

fn no_chats(base: &BaseUrl, problem: UpstreamError) -> DetectError {
    if problem.is_transient() || problem.is_timeout() {
        return problem.into();
    }
    DetectError::NoChats { replica: base.to_string(), problem: Box::new(problem) }
}

/// Finds out which fields of chats an engine takes: each that it rejects is left out.
async fn chat_fields(client: &Client, base: &BaseUrl, model: &str) -> Result<ChatFields, UpstreamError> {
    let mut refusal = None;
    // Models of OpenAI that reason reject the older name, and many servers do not know the newer one.
    for limit in ["max_tokens", "max_completion_tokens"] {
        let all = ChatFields::all(limit);
        if try_chat(client, base, model, all).await?.is_ok() {
            return Ok(all);
        }
        let mut fields = ChatFields::least(limit);
        if let Err(error) = try_chat(client, base, model, fields).await? {
            refusal = refusal.or(Some(error));
            continue;
        }
        for more in [
            ChatFields { temperature: true, ..fields },
            ChatFields { top_p: true, ..fields },
            ChatFields { seed: true, ..fields },
        ] {
            let is_taken = try_chat(client, base, model, more).await?.is_ok();
            fields.temperature |= is_taken && more.temperature;
            fields.top_p |= is_taken && more.top_p;
            fields.seed |= is_taken && more.seed;
        }
        return Ok(fields);
    }
    Err(refusal.unwrap_or_else(|| UpstreamError::NotUnderstood {
        replica: base.to_string(),
        reason: "it takes no limit of tokens".to_owned(),
    }))
}

/// Requests an answer. The inner error is that the engine rejects the fields.
async fn try_chat(
    client: &Client,
    base: &BaseUrl,
    model: &str,
    fields: ChatFields,
) -> Result<Result<(), UpstreamError>, UpstreamError> {
    let messages = json!([{"role": "user", "content": "Reply with the digit 1 and nothing else."}]);
    let chat = Arc::new(Map::from_iter([("messages".to_owned(), messages)]));
    let query = ChatQuery { chat, max_tokens: CHAT_TOKENS, seed: 0, stream: 0 };
    let body = Value::Object(chat::body(model, &query, fields));
    match client.post(base, CHAT, &body, chat::bytes_max(&query)).await {
        Ok(bytes) => match chat::read(&bytes, 0) {
            Ok(_) => Ok(Ok(())),
            Err(error) => Err(client.not_understood(base, &error)),
        },
        Err(error @ UpstreamError::Rejected { .. }) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

fn says(owner: &str) -> String {
    format!("/v1/models says owned_by {owner}")
}

/// Returns the entry of a model, or of the only one.
async fn listed_model(client: &Client, base: &BaseUrl, wanted: Option<&str>) -> Result<Listed, DetectError> {
    let mut models = ask::<ModelList>(client, base, "/v1/models").await?.data;
    let found = match wanted {
        Some(name) => models.iter().position(|model| model.id == name),
        None => (models.len() == 1).then_some(0),
    };
    if let Some(index) = found {
        return Ok(models.swap_remove(index));
    }
    let replica = base.to_string();
    let models = models.iter().map(|model| client.printable(&model.id)).collect();
    Err(match wanted {
        Some(name) => DetectError::UnknownModel { replica, name: name.to_owned(), models },
        None => DetectError::SeveralModels { replica, models },
    })
}

/// The same, or a model that the user names if the engine answers chats and has no list.
async fn listed_or_named(
    client: &Client,
    base: &BaseUrl,
    wanted: Option<&str>,
    kind: Option<EngineKind>,
) -> Result<Listed, DetectError> {
    match (listed_model(client, base, wanted).await, wanted) {
        (Err(DetectError::Upstream(UpstreamError::Status { status: 404 | 405, .. })), Some(name))
            if kind == Some(EngineKind::OpenAiChat) =>
        {
            Ok(Listed { id: name.to_owned(), ..Listed::default() })
        }
        (listed, _) => listed,
    }
}

/// Checks that a replica serves a model, and returns what the engine says about it.
pub(super) async fn describe(
    client: &Client,
    base: &BaseUrl,
    facts: &EngineFacts,
) -> Result<Description, UpstreamError> {
    let listed = listed_or_named(client, base, Some(&facts.model), Some(facts.kind)).await;
    let listed = listed.map_err(|error| not_served(base, error))?;
    let Meta { n_params, size } = listed.meta.unwrap_or_default();
    Ok(Description {
        fingerprint: listed.fingerprint.map(|fingerprint| client.printable(&fingerprint)),
        root: listed.root,
        context_tokens_max: listed.max_model_len,
        parameters: listed.parameters.or(n_params),
        size,
    })
}

/// Checks that a replica serves the same model, and that its engine can do the same.
pub(super) async fn check_facts(
    client: &Client,
    base: &BaseUrl,
    facts: &EngineFacts,
) -> Result<(), UpstreamError> {
    let found = detect(client, base, Some(&facts.model), Some(facts.kind)).await;
    match facts.difference(&found.map_err(|error| not_served(base, error))?) {
        Some(difference) => {
            let reason = format!("it {difference}");
            Err(UpstreamError::OtherModel { replica: base.to_string(), reason })
        }
        None => Ok(()),
    }
}

fn not_served(base: &BaseUrl, error: DetectError) -> UpstreamError {
    match error {
        DetectError::Upstream(error) => error,
        other => UpstreamError::OtherModel { replica: base.to_string(), reason: other.to_string() },
    }
}

async fn ask<T: DeserializeOwned>(client: &Client, base: &BaseUrl, route: &str) -> Result<T, UpstreamError> {
    let bytes = client.get(base, route, DESCRIPTION_BYTES_MAX).await?;
    serde_json::from_slice(&bytes).map_err(|error| UpstreamError::NotUnderstood {
        replica: base.to_string(),
        reason: format!("{route}: {}", client.printable(&error.to_string())),
    })
}

/// Returns the version of an engine, if it says one.
async fn version(client: &Client, base: &BaseUrl, route: &str) -> Option<String> {
    let Version { version } = ask(client, base, route).await.ok()?;
    Some(client.printable(&version))
}

/// Tries what the engine reports about next tokens.
async fn try_reports(client: &Client, base: &BaseUrl, facts: &mut EngineFacts) -> Result<(), DetectError> {
    if facts.kind == EngineKind::OpenAi {
        facts.accepts_ids = accepts_ids(client, base, &facts.model).await?;
    }
    let prompt = if facts.accepts_ids { json!([[0]]) } else { json!(["1"]) };
    let mut refusal = None;
    for count in COUNTS {
        let body = json!({"model": facts.model, "prompt": prompt, "max_tokens": PROBE_TOKENS, "temperature": 0, "logprobs": count});
        match client.post(base, "/v1/completions", &body, DESCRIPTION_BYTES_MAX).await {
            Ok(bytes) => {
                let returned = openai::alternatives(&bytes).unwrap_or(0).min(count);
                if returned > 0 {
                    facts.best_max = returned;
                    refusal = None;
                    break;
                }
                let reason = "it has no log-probabilities".to_owned();
                refusal = Some(UpstreamError::NotUnderstood { replica: base.to_string(), reason });
            }
            Err(error @ UpstreamError::Rejected { .. }) => refusal = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(problem) = refusal {
        return Err(DetectError::NoReports {
            replica: base.to_string(),
            route: "/v1/completions",
            problem: Box::new(problem),
        });
    }
    facts.reports = Reports::Best(facts.best_max);
    if facts.kind == EngineKind::OpenAi {
        return Ok(());
    }
    if let Some(reported) = report_ids(client, base, &facts.model, &Ahead::NONE).await? {
        facts.reports = Reports::Ids;
        // Only the less probable one may be chosen. Its probability must not change.
        let logprob = |id: u32| reported.logprob(id).unwrap_or(f64::NEG_INFINITY);
        let rarer = TRIED_IDS.into_iter().min_by(|&a, &b| logprob(a).total_cmp(&logprob(b)));
        let ahead = Ahead { tokens: 0, among: rarer.map(|id| [id].into()) };
        let restricted = report_ids(client, base, &facts.model, &ahead).await?;
        facts.chooses_among = restricted.is_some_and(|restricted| {
            restricted.chosen() == rarer && TRIED_IDS.iter().all(|&id| is_near(&restricted, &reported, id))
        });
    }
    Ok(())
}

/// Checks that an SGLang reports the probabilities of given ids.
async fn check_sglang(client: &Client, base: &BaseUrl) -> Result<(), DetectError> {
    const ROUTE: &str = "/generate";
    let alternatives = Alternatives::Ids(&TRIED_IDS);
    let ahead = &Ahead::NONE;
    let batch = Batch { rows: 1, alternatives, ahead, cache_salt: 0, vocab: usize::MAX };
    let mut body = sglang::body(&batch);
    body[sglang::PROMPTS] = json!([[0]]);
    let problem = match client.post(base, ROUTE, &body, DESCRIPTION_BYTES_MAX).await {
        Ok(bytes) => match sglang::read(&bytes, &batch).and_then(|rows| check(&rows)) {
            Ok(()) => return Ok(()),
            Err(error) => client.not_understood(base, &error),
        },
        Err(error @ UpstreamError::Rejected { .. }) => error,
        Err(error) => return Err(error.into()),
    };
    Err(DetectError::NoReports { replica: base.to_string(), route: ROUTE, problem: Box::new(problem) })
}

/// Requests the probabilities of given ids. Returns `None` if the engine does not report them.
async fn report_ids(
    client: &Client,
    base: &BaseUrl,
    model: &str,
    ahead: &Ahead,
) -> Result<Option<Position>, UpstreamError> {
    let batch = Batch {
        rows: 1,
        alternatives: Alternatives::Ids(&TRIED_IDS),
        ahead,
        cache_salt: 0,
        vocab: usize::MAX,
    };
    let mut body = vllm::body(model, &batch);
    body["prompt"] = json!([[0]]);
    match client.post(base, "/v1/completions", &body, DESCRIPTION_BYTES_MAX).await {
        Ok(bytes) => {
            let rows = vllm::read(&bytes, &batch).ok().filter(|rows| check(rows).is_ok());
            Ok(rows.and_then(|rows| rows.into_iter().flatten().next()))
        }
        Err(UpstreamError::Rejected { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether two positions have the same probability of an id, up to rounding.
fn is_near(a: &Position, b: &Position, id: u32) -> bool {
    let logprobs = a.logprob(id).zip(b.logprob(id));
    logprobs.is_some_and(|(a, b)| (a - b).abs() <= RESTRICTED_ERROR_MAX)
}

/// Returns whether a llama.cpp reports given ids if they have a bias. The least probable one of some tokens
/// must have the same probability with and without it.
async fn obeys_bias(client: &Client, base: &BaseUrl) -> Result<bool, UpstreamError> {
    const TRIED: usize = 8;
    const ERROR_MAX: f64 = 1e-4;
    let ask = async |alternatives| {
        let ahead = &Ahead::NONE;
        let batch = Batch { rows: 1, alternatives, ahead, cache_salt: 0, vocab: usize::MAX };
        let mut body = llama_cpp::body(&batch, Probabilities::PostSampling, None);
        body["prompt"] = json!([[0]]);
        match client.post(base, "/completion", &body, DESCRIPTION_BYTES_MAX).await {
            Ok(bytes) => {
                let rows = llama_cpp::read(&bytes, &batch).ok().filter(|rows| check(rows).is_ok());
                Ok(rows.and_then(|rows| rows.into_iter().flatten().next()))
            }
            Err(UpstreamError::Rejected { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let Some(mut best) = ask(Alternatives::Best(TRIED)).await? else { return Ok(false) };
    let (Some(least), Some(anchor)) = (best.take_least(), llama_cpp::anchor(&best)) else { return Ok(false) };
    let mut ids = [least.id, anchor];
    ids.sort_unstable();
    let Some(biased) = ask(Alternatives::Ids(&ids)).await? else { return Ok(false) };
    if llama_cpp::complete(&mut best, &biased, &ids).is_err() {
        return Ok(false);
    }
    Ok(best.logprob(least.id).is_some_and(|logprob| (logprob - least.logprob).abs() <= ERROR_MAX))
}

/// Returns whether a llama.cpp keeps the prompt of a slot while another slot works. With automatic slots, it
/// clears idle ones.
async fn keeps_slots(client: &Client, base: &BaseUrl, slots: usize) -> Result<bool, UpstreamError> {
    if slots < 2 {
        return Ok(false);
    }
    let mut computed = None;
    for (slot, token) in [(0, 1), (1, 2), (0, 1)] {
        let prompt = vec![token; PROBE_IDS];
        let body = json!({"prompt": [prompt], "n_predict": 1, "cache_prompt": true, "id_slot": slot});
        let response: Value = match client.post(base, "/completion", &body, DESCRIPTION_BYTES_MAX).await {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(UpstreamError::Rejected { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        computed = response.pointer("/timings/prompt_n").and_then(Value::as_u64);
    }
    Ok(computed.is_some_and(|tokens| tokens < PROBE_IDS as u64))
}

/// Returns whether an engine takes token ids as a prompt: then it counts as many as were sent.
///
/// # Errors
/// If the engine is busy or cannot be reached, which says nothing about prompts.
async fn accepts_ids(client: &Client, base: &BaseUrl, model: &str) -> Result<bool, UpstreamError> {
    let prompt = vec![0; PROBE_IDS];
    let body = json!({"model": model, "prompt": [prompt], "max_tokens": 1});
    let bytes = match client.post(base, "/v1/completions", &body, DESCRIPTION_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(
            error @ (UpstreamError::Overloaded { .. }
            | UpstreamError::Unreachable { .. }
            | UpstreamError::NoConnection { .. }
            | UpstreamError::Disconnected { .. }
            | UpstreamError::Timeout { .. }),
        ) => return Err(error),
        Err(_) => return Ok(false),
    };
    let response: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(response.pointer("/usage/prompt_tokens").and_then(Value::as_u64) == Some(PROBE_IDS as u64))
}
