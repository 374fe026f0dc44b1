//! A request as the engine sees it: validated, tokenized, without defaults left to fill in.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adapter::Adapter;
use super::candidates::CandidatesJob;
use super::event::TokenText;
use super::hidden_states::{EmbeddingJob, Pooling, Stack};
use super::options::OptionsJob;
use crate::guide::Guide;
use crate::losses::{NumberLoss, NumberTokens};
use crate::numbers::{
    Estimation, GrammarLimits, Interval, NumberValues, Objective, SchemaNumbers, Terminator,
};
use crate::samples::NumberSamples;
use crate::sampling::SamplingParams;
use crate::token::{Prompt, Token, TokenLogprob};

/// Tokens of the longest number: two times 20 digits with their separators, a sign, a point and a space.
const NUMBER_TOKENS_MAX: usize = 64;

/// Host memory of a number tree for each node: the prefixes that it may still expand, and the numbers that it
/// found.
const TREE_NODE_BYTES: u64 = 512;

/// Nodes that most trees do with (the fixtures' need 50 to 200, the worst 1,300). With the first row, they
/// fill a power of two.
const TREE_NODES_EXPECTED: usize = 511;

/// One prompt and what to decode under it.
#[derive(Debug, Clone)]
pub struct Job {
    pub prompt: Prompt,
    /// See [`ContextRequest::paper_decoding`](super::ContextRequest::paper_decoding).
    pub paper_decoding: bool,
    /// See [`ContextRequest::cache_salt`](super::ContextRequest::cache_salt).
    pub cache_salt: u64,
    /// See [`ContextRequest::adapter`](super::ContextRequest::adapter).
    pub adapter: Option<Adapter>,
    pub request: Request,
    /// When the request times out, and how long after it began that is.
    pub deadline: Option<(Instant, Duration)>,
    /// Waiting clients are served in turn. Any number, the same for the same client.
    pub client: u64,
}

impl Job {
    /// A job without a deadline and an adapter, of client 0, with the salt 0.
    pub fn new(prompt: impl Into<Prompt>, request: Request) -> Self {
        let prompt = prompt.into();
        Self {
            prompt,
            paper_decoding: false,
            cache_salt: 0,
            adapter: None,
            request,
            deadline: None,
            client: 0,
        }
    }

    /// The part of the prompt that is opened as the context. For a request with prompt log-probabilities, or
    /// for the mean of a decoder's hidden states, this is the first token, and the decoding steps the others.
    pub fn prefilled_prompt(&self) -> Cow<'_, Prompt> {
        let steps_prompt = match &self.request {
            Request::Text(job) => job.prompt_logprobs.is_some(),
            Request::Embedding(job) => *job == EmbeddingJob::DECODER_MEAN,
            _ => false,
        };
        if steps_prompt {
            Cow::Owned(self.prompt.tokens.iter().take(1).copied().collect())
        } else {
            Cow::Borrowed(&self.prompt)
        }
    }

    /// Returns the maximum number of nodes that its context can have.
    pub fn nodes_max(&self) -> usize {
        self.nodes(usize::MAX)
    }

    /// Nodes that it is expected to need: as many as it can have, but only the first 511 of a tree's budget,
    /// since most trees close long before that is used up.
    pub fn nodes_expected(&self) -> usize {
        self.nodes(TREE_NODES_EXPECTED)
    }

    /// Returns the expected memory on the host for decoding this many nodes, in bytes, if it matters compared
    /// with keys and values.
    pub fn host_bytes(&self, nodes: usize) -> u64 {
        let node = match &self.request {
            // Texts that are ranked are sent at the end.
            Request::Text(job) if job.paths() > job.n => {
                let top = job
                    .logprobs
                    .unwrap_or(0)
                    .max(job.logprob_ids.len())
                    .saturating_mul(size_of::<TokenLogprob>());
                size_of::<TokenText>().saturating_add(top) as u64
            }
            Request::Number(_) => TREE_NODE_BYTES,
            Request::Text(job) if job.fields.is_some() => TREE_NODE_BYTES,
            Request::Text(_)
            | Request::Beams(_)
            | Request::Score(_)
            | Request::Candidates(_)
            | Request::Options(_)
            | Request::Labels
            | Request::Embedding(_) => 0,
        };
        node.saturating_mul(nodes as u64)
    }

    /// Lowers the budgets of trees so that the context has at most `max` nodes; each tree keeps at least 1.
    pub fn limit_nodes(&mut self, max: usize) {
        let left = max.saturating_sub(self.nodes(0));
        match &mut self.request {
            Request::Number(job) => job.limit_nodes(left / job.texts().max(1)),
            Request::Text(job) => {
                let texts = job.paths() as usize;
                if let Some(fields) = &mut job.fields {
                    fields.nodes_max = (left / texts.max(1)).clamp(1, fields.nodes_max.max(1));
                }
            }
            Request::Beams(_)
            | Request::Score(_)
            | Request::Candidates(_)
            | Request::Options(_)
            | Request::Labels
            | Request::Embedding(_) => {}
        }
    }

    /// Returns the maximum number of nodes if a tree has at most `tree_max`.
    fn nodes(&self, tree_max: usize) -> usize {
        let stepped = self.prompt.len() - self.prefilled_prompt().len();
        match &self.request {
            Request::Text(job) => {
                (job.paths() as usize).saturating_mul(job.nodes(tree_max)).saturating_add(1 + stepped)
            }
            Request::Beams(job) => job.beams.saturating_mul(job.max_tokens).saturating_add(1),
            Request::Number(job) => job.nodes(tree_max),
            Request::Score(job) => job.target.len().max(1),
            Request::Candidates(job) => job.rows().len(),
            Request::Options(job) => job.nodes_max(),
            Request::Labels => 1,
            Request::Embedding(_) => 1 + stepped,
        }
    }
}

/// The work of a job.
#[derive(Debug, Clone)]
pub enum Request {
    Text(TextJob),
    Beams(BeamJob),
    /// The distribution of the number that the model would write.
    Number(NumberJob),
    /// The log-probability and the losses of a given target.
    Score(ScoreJob),
    /// The log-probability of each of several targets.
    Candidates(CandidatesJob),
    /// The probability of each of several whole answers.
    Options(OptionsJob),
    /// The values of a model that predicts labels.
    Labels,
    /// A vector for the prompt.
    Embedding(EmbeddingJob),
}

impl Request {
    /// Returns the maximum number of tokens that may follow the prompt on any path of the answer.
    pub fn tokens_max(&self) -> usize {
        match self {
            Self::Text(job) => {
                let number = job.fields.as_ref().map_or(0, |fields| fields.limits.characters_max());
                job.max_tokens.saturating_add(number)
            }
            Self::Beams(job) => job.max_tokens,
            Self::Score(job) => job.target.len(),
            Self::Candidates(job) => job.tokens_max(),
            Self::Options(job) => job.tokens_max(),
            Self::Labels | Self::Embedding(_) => 0,
            // Every token of a number writes at least one of its characters.
            Self::Number(job) => {
                let before = job.after.as_ref().map_or(0, |after| after.max_tokens);
                before.saturating_add(job.limits.characters_max())
            }
        }
    }

    /// Returns the number of sequences that it requests.
    pub fn sequences(&self) -> u32 {
        match self {
            Self::Text(job) => job.paths(),
            Self::Beams(job) => job.n,
            Self::Number(_)
            | Self::Score(_)
            | Self::Candidates(_)
            | Self::Options(_)
            | Self::Labels
            | Self::Embedding(_) => 1,
        }
    }

    /// Returns how an encoder's output is pooled, if the request is for it.
    pub fn encoder_pooling(&self) -> Option<Pooling> {
        match self {
            Self::Embedding(EmbeddingJob { stack: Stack::Encoder, pooling }) => Some(*pooling),
            _ => None,
        }
    }
}

/// Ordinary text: greedy or sampled, one or several paths.
#[derive(Debug, Clone)]
pub struct TextJob {
    /// Number of independent texts that are returned.
    pub n: u32,
    /// Number of texts that are decoded. If it is more than `n`, the engine sends the texts with the best
    /// mean log-probability at the end, best first. For the others, it sends only [`super::Event::Finished`],
    /// as choices from `n` on.
    pub best_of: u32,
    /// Maximum number of tokens of each text. A text with 0 ends immediately.
    pub max_tokens: usize,
    /// Nothing ends a text before it has this many tokens.
    pub min_tokens: usize,
    pub sampling: SamplingParams,
    /// Numbers to add to the logits of these ids.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// A text ends before the first of these strings.
    pub stop: Vec<String>,
    /// Ids that end a text as the end of sequence does.
    pub stop_token_ids: Vec<u32>,
    /// Whether a text shows what ended it: the stop string, or a token of `stop_token_ids`.
    pub include_stop: bool,
    /// Whether the end of sequence is a token like any other.
    pub ignore_eos: bool,
    /// Report each token's log-probability and this many of the most probable alternatives.
    pub logprobs: Option<usize>,
    /// With `logprobs`: report these ids in place of the most probable alternatives.
    pub logprob_ids: Arc<[u32]>,
    /// Like `logprobs`, but reports the prompt tokens after the first one. Only for decoder-only models.
    pub prompt_logprobs: Option<usize>,
    /// The constraint of guided decoding.
    pub guide: Option<Arc<dyn Guide>>,
    /// Special tokens that the text shows by name.
    pub shown_ids: Arc<[u32]>,
    /// Find the distribution of every number that the guide names, and write its estimate.
    pub fields: Option<FieldsJob>,
}

impl TextJob {
    /// Number of texts that are decoded.
    pub fn paths(&self) -> u32 {
        self.best_of.max(self.n)
    }

    /// Returns the maximum number of nodes of one text, if its trees have at most `tree_max` together. Each
    /// number decodes the token before it twice.
    fn nodes(&self, tree_max: usize) -> usize {
        match &self.fields {
            Some(fields) => self.max_tokens.saturating_mul(2).saturating_add(tree_max.min(fields.nodes_max)),
            None => self.max_tokens,
        }
    }
}

impl Default for TextJob {
    /// One greedy text of at most 16 tokens.
    fn default() -> Self {
        Self {
            n: 1,
            best_of: 1,
            max_tokens: 16,
            min_tokens: 0,
            sampling: SamplingParams::GREEDY,
            logit_bias: Arc::from([]),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            include_stop: false,
            ignore_eos: false,
            logprobs: None,
            logprob_ids: Arc::from([]),
            prompt_logprobs: None,
            guide: None,
            shown_ids: Arc::from([]),
            fields: None,
        }
    }
}

/// How the fields of a structured text are found, and which estimates the text has.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldsJob {
    pub limits: GrammarLimits,
    /// A tree stops when the open mass is at most this share of the closed mass.
    pub tolerance: f64,
    /// Maximum number of decoder positions of all trees of one text. Each tree may use half of those that are
    /// left.
    pub nodes_max: usize,
    /// A tree stops earlier, once the bounds of its estimate are at most this wide.
    pub precision: Option<f64>,
    /// Maximum time of each tree.
    pub time_max: Option<Duration>,
    pub objective: Objective,
    /// The range of each number comes from the schema.
    pub estimation: Estimation,
    /// Minimum closed mass of a field with an estimate.
    pub mass_min: f64,
    /// Maximum number of digits after the point in the text, unless the schema needs more.
    pub decimals: u8,
}

impl FieldsJob {
    /// The estimation of a number with the range of its schema.
    pub fn estimation(&self, numbers: &SchemaNumbers) -> Estimation {
        Estimation { range: numbers.interval(), ..self.estimation }
    }
}

/// The most probable texts, found by a beam search.
#[derive(Debug, Clone, PartialEq)]
pub struct BeamJob {
    /// Number of beams, at least `n`.
    pub beams: usize,
    /// Number of texts that are returned, best first.
    pub n: u32,
    /// Maximum number of tokens of each text. A text with 0 ends immediately.
    pub max_tokens: usize,
    /// Texts are ranked by `logprob / tokens^length_penalty`.
    pub length_penalty: f64,
    pub early_stopping: EarlyStopping,
}

/// When a beam search with enough finished texts ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EarlyStopping {
    /// When no running text, ended at its present length, would be better.
    #[default]
    No,
    /// At once.
    Yes,
    /// When no running text can become better at any length.
    Never,
}

/// The distribution of the number that the model would write.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberJob {
    pub method: NumberMethod,
    pub limits: GrammarLimits,
    pub terminator: Terminator,
    /// The mass of other values is invalid.
    pub values: NumberValues,
    /// Whether probabilities of dedicated number tokens are conditional on the tokens that are allowed at
    /// their positions. Otherwise answers with other tokens are invalid mass.
    pub is_masked: bool,
    /// Whether a tree reports the most probable texts that are not admitted numbers.
    pub reports_refused: bool,
    /// Maximum time of each tree: it stops after the first step that ends later.
    pub time_max: Option<Duration>,
    /// Sample the open mass of trees that end before their tolerance.
    pub open_draws: Option<OpenDraws>,
    /// Text that comes before the number.
    pub after: Option<AfterMarker>,
}

/// How the open mass of a tree is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenDraws {
    /// The tree ends at this number of counted nodes even if its `nodes_max` allows more.
    pub search_nodes_max: usize,
    /// Number of draws of each tree. Even, so that they form pairs.
    pub draws: u32,
    /// Same seed, same draws.
    pub seed: u64,
}

impl NumberJob {
    /// All numbers within the default limits, ended by any token.
    pub fn new(method: NumberMethod) -> Self {
        let limits = GrammarLimits::default();
        let terminator = Terminator::default();
        let values = NumberValues::All;
        Self {
            method,
            limits,
            terminator,
            values,
            is_masked: true,
            reports_refused: false,
            time_max: None,
            open_draws: None,
            after: None,
        }
    }

    /// Returns the maximum number of nodes of the search in a tree of at most `nodes_max`, without its draws.
    pub fn search_nodes_max(&self, nodes_max: usize) -> usize {
        self.open_draws.map_or(nodes_max, |open| open.search_nodes_max.min(nodes_max))
    }

    /// Returns the maximum number of nodes if a tree and its draws have at most `tree_max`: the trees or
    /// longest numbers, and the text before them.
    fn nodes(&self, tree_max: usize) -> usize {
        let search = match &self.method {
            NumberMethod::Tree { nodes_max, .. } => {
                tree_max.min(self.search_nodes_max(*nodes_max).saturating_add(self.draw_nodes()))
            }
            NumberMethod::Sample { samples, .. } => NUMBER_TOKENS_MAX.saturating_mul(*samples as usize),
            NumberMethod::Beam { beams } => NUMBER_TOKENS_MAX.saturating_mul(*beams),
            NumberMethod::Token => NUMBER_TOKENS_MAX,
        };
        let before = self.after.as_ref().map_or(1, |after| after.max_tokens);
        search.saturating_add(before).saturating_mul(self.texts())
    }

    /// Returns the maximum number of nodes of the draws of one tree. Each token of a number writes at least
    /// one of its characters.
    fn draw_nodes(&self) -> usize {
        let tokens = NUMBER_TOKENS_MAX.min(self.limits.characters_max());
        self.open_draws.map_or(0, |open| tokens.saturating_mul(open.draws as usize))
    }

    /// Limits the nodes of each tree and of its draws to `max`. Draws that leave less than half of them to
    /// the tree are left out.
    fn limit_nodes(&mut self, max: usize) {
        if self.draw_nodes() > max / 2 {
            self.open_draws = None;
        }
        let max = max.saturating_sub(self.draw_nodes());
        if let NumberMethod::Tree { nodes_max, .. } = &mut self.method {
            *nodes_max = max.clamp(1, (*nodes_max).max(1));
        }
    }

    /// Returns the same job, whose precision is also about these estimates.
    #[must_use]
    pub fn with_precise(mut self, also: impl Iterator<Item = Objective>) -> Self {
        if let NumberMethod::Tree { precision: Some(precision), .. }
        | NumberMethod::Sample { precision: Some(precision), .. } = &mut self.method
        {
            precision.objectives.extend(also);
        }
        self
    }

    /// Returns the number of texts that are each followed by a number.
    fn texts(&self) -> usize {
        self.after.as_ref().map_or(1, |after| after.rationales.max(1) as usize)
    }
}

/// How a number distribution is found.
#[derive(Debug, Clone, PartialEq)]
pub enum NumberMethod {
    /// Exact expansion of the tree of all texts that are numbers, the most probable prefix first.
    Tree {
        /// Stop when the open probability mass is at most this.
        tolerance: f64,
        /// Maximum number of decoder positions.
        nodes_max: usize,
        /// Stop earlier, once estimates are known this well.
        precision: Option<Precision>,
    },
    /// Numbers drawn from the model.
    Sample {
        samples: u32,
        /// Temperature and cut-offs are for dedicated number tokens. Numbers in text are drawn from the model
        /// as it is. Same seed, same draws.
        sampling: SamplingParams,
        /// Stop earlier, once estimates are known this well. Only for whole answers of another engine.
        precision: Option<Precision>,
    },
    /// The most probable complete numbers of a beam search.
    Beam {
        /// Prefixes that are followed, and numbers that are kept.
        beams: usize,
    },
    /// Expectation token by token along the greedy path: what NTL-MSE trains, and a diagnostic only.
    Token,
}

impl NumberMethod {
    /// Draws from the model as it is, at temperature 1.
    pub fn sample(samples: u32, seed: u64) -> Self {
        let sampling = SamplingParams { seed, ..SamplingParams::PLAIN };
        Self::Sample { samples, sampling, precision: None }
    }
}

/// When estimates are known well enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// The search or the sampling stops once the bounds of each estimate are at most this wide.
    pub width: f64,
    pub objectives: Vec<Objective>,
    pub estimation: Estimation,
}

impl Precision {
    /// Returns whether an estimate with these bounds is known well enough.
    pub(crate) fn is_reached(&self, bounds: Option<Interval>) -> bool {
        bounds.is_some_and(|bounds| bounds.high - bounds.low <= self.width)
    }

    /// Returns whether all estimates are known well enough from sampled answers.
    pub fn is_reached_by_samples(&self, samples: &NumberSamples) -> bool {
        self.objectives
            .iter()
            .all(|objective| self.is_reached(samples.estimate_bounds(*objective, &self.estimation)))
    }

    /// Returns the same for the estimates of several numbers.
    pub(crate) fn is_reached_by_all(&self, bounds: &[Vec<Option<Interval>>]) -> bool {
        bounds.iter().flatten().all(|bounds| self.is_reached(*bounds))
    }
}

/// Text that a model writes before its number, such as a chain of thought.
#[derive(Debug, Clone, PartialEq)]
pub struct AfterMarker {
    /// The number comes right after this text; white space between them is ignored.
    pub marker: String,
    /// How many texts are written; the distributions of their numbers are averaged.
    pub rationales: u32,
    pub sampling: SamplingParams,
    /// Maximum number of tokens of each text, including the marker.
    pub max_tokens: usize,
}

impl AfterMarker {
    /// The string at which a text stops: the marker without white space at its end, which number tokens often
    /// contain.
    pub fn stop(&self) -> &str {
        let trimmed = self.marker.trim_end();
        if trimmed.is_empty() { &self.marker } else { trimmed }
    }

    /// Returns the part of a text that follows [`Self::stop`]. The last token may hold it and the number's
    /// first characters.
    pub fn number_begun<'a>(&self, written: &'a str) -> &'a str {
        written.split_once(self.stop()).map_or("", |(_, begun)| begun)
    }
}

/// A target whose tokens are scored, in as few steps as they fit in.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreJob {
    /// The tokens of the target, with the end of sequence if that is scored too.
    pub target: Vec<Token>,
    /// The number tokens of the losses.
    pub number_tokens: Arc<NumberTokens>,
    /// Losses at the labels that are number tokens.
    pub losses: Vec<NumberLoss>,
    /// Whether labels that are digits are compared with the expected digits.
    pub digits: bool,
}
