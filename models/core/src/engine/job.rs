//! A request as the engine sees it: validated, tokenized, with everything decided.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ScoreJob;
use crate::Prompt;
use crate::numbers::{Distribution, Estimation, GrammarLimits, Interval, Objective};
use crate::sampling::{Guide, SamplingParams};

/// Tokens of the longest number: two times 20 digits with their separators, a sign, a point and a space.
const NUMBER_TOKENS_MAX: usize = 64;

/// Nodes that most trees do with (the fixtures' need 50 to 200, the worst 1,300).
const TREE_NODES_EXPECTED: usize = 512;

/// One prompt and what to decode under it.
#[derive(Debug, Clone)]
pub struct Job {
    pub prompt: Prompt,
    /// See [`ContextRequest::paper_decoding`](super::ContextRequest::paper_decoding).
    pub paper_decoding: bool,
    /// What to decode.
    pub request: Request,
    /// When the answer is no longer wanted, and how long that was from the start.
    pub deadline: Option<(Instant, Duration)>,
    /// Who asks: those who wait are served in turn. Any number, the same for the same client.
    pub client: u64,
}

impl Job {
    /// A job of nobody in particular, whatever time it takes.
    pub fn new(prompt: impl Into<Prompt>, request: Request) -> Self {
        Self { prompt: prompt.into(), paper_decoding: false, request, deadline: None, client: 0 }
    }

    /// The tokens that are opened as its context. Where the prompt's own log-probabilities are wanted this is the first
    /// one, and the decoding steps the others.
    pub fn opened_prompt(&self) -> Cow<'_, Prompt> {
        match &self.request {
            Request::Text(job) if job.prompt_logprobs.is_some() => {
                Cow::Owned(self.prompt.tokens.iter().take(1).copied().collect())
            }
            _ => Cow::Borrowed(&self.prompt),
        }
    }

    /// Most nodes that its context can come to have.
    pub fn nodes_max(&self) -> usize {
        self.nodes(usize::MAX)
    }

    /// Nodes that it is expected to need: as many as it can have, but of a tree's budget the first few hundred, since
    /// most trees close long before it is used up.
    pub fn nodes_expected(&self) -> usize {
        self.nodes(TREE_NODES_EXPECTED)
    }

    /// Lowers the budgets of trees so that there are at most so many nodes, as far as that goes.
    pub fn limit_nodes(&mut self, max: usize) {
        let beside = self.nodes(0);
        if let Request::Number(job) = &mut self.request
            && let texts = job.texts()
            && let NumberMethod::Tree { nodes_max, .. } = &mut job.method
        {
            *nodes_max = (max.saturating_sub(beside) / texts).clamp(1, (*nodes_max).max(1));
        }
    }

    /// Most nodes where a tree has at most `tree_max`.
    fn nodes(&self, tree_max: usize) -> usize {
        match &self.request {
            Request::Text(job) => {
                let stepped = self.prompt.len() - self.opened_prompt().len();
                (job.paths() as usize).saturating_mul(job.max_tokens).saturating_add(1 + stepped)
            }
            Request::Beams(job) => job.beams.saturating_mul(job.max_tokens).saturating_add(1),
            Request::Number(job) => job.nodes(tree_max),
            Request::Score(job) => job.target.len().max(1),
        }
    }
}

/// What to decode.
#[derive(Debug, Clone)]
pub enum Request {
    /// Ordinary text.
    Text(TextJob),
    /// The most probable texts.
    Beams(BeamJob),
    /// The distribution of the number that the model would write.
    Number(NumberJob),
    /// What a given target costs.
    Score(ScoreJob),
}

impl Request {
    /// Most tokens that may follow the prompt on any path of the answer.
    pub fn tokens_max(&self) -> usize {
        match self {
            Self::Text(job) => job.max_tokens,
            Self::Beams(job) => job.max_tokens,
            Self::Score(job) => job.target.len(),
            // Every token of a number writes at least one of its characters.
            Self::Number(job) => {
                let before = job.after.as_ref().map_or(0, |after| after.max_tokens);
                before.saturating_add(job.limits.characters_max())
            }
        }
    }

    /// How many answers it asks for.
    pub fn sequences(&self) -> u32 {
        match self {
            Self::Text(job) => job.paths(),
            Self::Beams(job) => job.n,
            Self::Number(_) | Self::Score(_) => 1,
        }
    }
}

/// Ordinary text: greedy or sampled, one or several paths.
#[derive(Debug, Clone)]
pub struct TextJob {
    /// How many independent texts are shown.
    pub n: u32,
    /// How many are decoded. Where that is more than `n`, those with the best mean log-probability are shown, all at
    /// the end and best first; of the others only their [`super::Event::Finished`], as choices from `n` on.
    pub best_of: u32,
    /// Most tokens of each text. 0 ends at once.
    pub max_tokens: usize,
    /// Nothing ends a text before it has this many tokens.
    pub min_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is added to the logits of these ids.
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
    /// The same for the tokens of the prompt behind its first one, where model and answer are one sequence.
    pub prompt_logprobs: Option<usize>,
    /// What every text must keep to.
    pub guide: Option<Arc<dyn Guide>>,
}

impl TextJob {
    /// How many texts are decoded.
    pub fn paths(&self) -> u32 {
        self.best_of.max(self.n)
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
            prompt_logprobs: None,
            guide: None,
        }
    }
}

/// The most probable texts, found by a beam search.
#[derive(Debug, Clone, PartialEq)]
pub struct BeamJob {
    /// Texts that are followed at once, at least `n`.
    pub beams: usize,
    /// How many of the best are returned.
    pub n: u32,
    /// Most tokens of each text. 0 ends at once.
    pub max_tokens: usize,
    /// Texts are compared by log-probability divided by their number of tokens to this power.
    pub length_penalty: f64,
    /// When the search ends.
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
    /// When no running text can become better, whatever its length.
    Never,
}

/// What ends a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Terminator {
    /// Any token that does not continue it.
    #[default]
    Any,
    /// Only the end of the sequence.
    Eos,
    /// The end of the sequence, or a token that starts with one of these.
    Texts(Vec<String>),
}

/// The distribution of the number that the model would write.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberJob {
    /// How it is found.
    pub method: NumberMethod,
    /// Which numbers are read.
    pub limits: GrammarLimits,
    /// What ends a number.
    pub terminator: Terminator,
    /// Values outside are dropped, their mass is invalid.
    pub range: Option<Interval>,
    /// Text that comes before the number.
    pub after: Option<After>,
}

impl NumberJob {
    /// Most nodes that it can come to have, where a tree has at most `tree_max`: its trees or longest numbers, and the
    /// text before them.
    fn nodes(&self, tree_max: usize) -> usize {
        let search = match &self.method {
            NumberMethod::Tree { nodes_max, .. } => tree_max.min(*nodes_max),
            NumberMethod::Sample { samples, .. } => NUMBER_TOKENS_MAX.saturating_mul(*samples as usize),
            NumberMethod::Beam { beams } => NUMBER_TOKENS_MAX.saturating_mul(*beams),
            NumberMethod::Token => NUMBER_TOKENS_MAX,
        };
        let before = self.after.as_ref().map_or(1, |after| after.max_tokens);
        search.saturating_add(before).saturating_mul(self.texts())
    }

    /// How many texts come before numbers of their own.
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
        /// Most decoder positions.
        nodes_max: usize,
        /// Stop earlier, once an estimate is known this well.
        precision: Option<Precision>,
    },
    /// Numbers drawn from the model as it is, at temperature 1.
    Sample {
        /// How many are drawn.
        samples: u32,
        /// Same seed, same draws.
        seed: u64,
    },
    /// The most probable complete numbers of a beam search.
    Beam {
        /// Prefixes that are followed, and numbers that are kept.
        beams: usize,
    },
    /// Expectation token by token along the greedy path: what NTL-MSE trains, and a diagnostic only.
    Token,
}

/// When an estimate is known well enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// Widest bounds that are narrow enough.
    pub width: f64,
    /// Bounds of which estimate.
    pub objective: Objective,
    /// How it is made.
    pub estimation: Estimation,
}

/// Text that a model writes before its number, such as a chain of thought.
#[derive(Debug, Clone, PartialEq)]
pub struct After {
    /// The number comes right behind this text, whatever white space stands between them.
    pub marker: String,
    /// How many texts are written; the distributions of their numbers are averaged.
    pub rationales: u32,
    /// How their tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens of each text, the marker included.
    pub max_tokens: usize,
}

/// The result of a [`NumberJob`].
#[derive(Debug, Clone, PartialEq)]
pub struct NumberOutcome {
    /// The numbers found, with their probabilities and the mass that is no number or was not looked at.
    pub distribution: Distribution,
    /// The value of [`NumberMethod::Token`], where the greedy path is a number.
    pub token_value: Option<f64>,
    /// Decoder positions that the result rests on, those of the text before the number included.
    pub nodes: usize,
    /// Steps of the engine that computed them (fewer rows fit a busy step, so this depends on load).
    pub forward_passes: usize,
    /// Whether `nodes_max` ended an expansion before `tolerance` did.
    pub truncated: bool,
    /// Texts that came to the marker of [`After`]; 1 where nothing comes before the number.
    pub reached: u32,
}

impl NumberOutcome {
    /// A distribution that `nodes` positions and `forward_passes` steps found, within every budget.
    pub fn new(distribution: Distribution, nodes: usize, forward_passes: usize) -> Self {
        Self { distribution, token_value: None, nodes, forward_passes, truncated: false, reached: 1 }
    }
}
