//! A model for tests whose logits a closure computes from the prompt and the path.
//!
//! So tests know exact results in closed form, and simulate failures, panics and waiting in one line.

use std::collections::HashMap;
use std::sync::Arc;

use crate::contract::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, Dtype, Logits, LogitsRequest, LogitsSummary,
    ModelError, ModelInfo, NextTokenReport, NodeCapacity, NumberEncoding, OpenedContext, PrefillChunk,
    PrefillProgress, Row, TokenLogprob,
};
use crate::sampling::argmax;

/// Logits after a prompt and the tokens decoded so far (without the first token).
pub type Script = Box<dyn FnMut(&[u32], &[u32]) -> Result<Vec<f32>, ModelError> + Send>;

/// The number head's prediction after a prompt and the tokens decoded so far.
pub type NumberScript = Box<dyn FnMut(&[u32], &[u32]) -> f32 + Send>;

/// A [`BatchModel`] that follows a script.
pub struct ScriptedModel {
    info: ModelInfo,
    script: Script,
    number_head: Option<NumberScript>,
    contexts: HashMap<ContextId, Context>,
    opened: u64,
}

struct Context {
    prompt: Vec<u32>,
    /// Prompt tokens that are not computed yet.
    tokens_left: usize,
    /// Tokens from the root to each node.
    paths: Vec<Vec<u32>>,
}

impl ScriptedModel {
    /// A model of `tokens` ids, of which 0 starts a path and 1 ends it.
    pub fn new(tokens: usize, script: Script) -> Self {
        let info = ModelInfo {
            kind: "scripted".to_owned(),
            backend: Backend::Scripted,
            dtype: Dtype::F32,
            kv_cache_dtype: Some(Dtype::F32),
            number_encoding: NumberEncoding::Text,
            parameters: 0,
            prompt_tokens_max: 512,
            context_tokens_max: None,
            answer_tokens_max: None,
            tokens,
            eos_ids: vec![1],
            encoder_decoder: true,
            labels: None,
            hidden_states: None,
        };
        Self { info, script, number_head: None, contexts: HashMap::new(), opened: 0 }
    }

    /// The same model with other limits or ids.
    pub fn with_info(mut self, change: impl FnOnce(&mut ModelInfo)) -> Self {
        change(&mut self.info);
        self
    }

    /// The same model with a number head.
    pub fn with_number_head(self, number_head: NumberScript) -> Self {
        Self { number_head: Some(number_head), ..self }
    }
}

impl BatchModel for ScriptedModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> Result<OpenedContext, ModelError> {
        self.opened += 1;
        let context = ContextId(self.opened);
        let prompt: Vec<u32> = request.prompt.ids().collect();
        let tokens_left = prompt.len();
        self.contexts.insert(context, Context { prompt, tokens_left, paths: Vec::new() });
        let prefill = PrefillProgress { work_left: tokens_left, ..PrefillProgress::default() };
        Ok(OpenedContext { context, first_token: 0, prefill })
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> Result<Vec<PrefillProgress>, ModelError> {
        let mut progress = Vec::new();
        for chunk in chunks {
            let unknown = ModelError::UnknownContext(chunk.context);
            let context = self.contexts.get_mut(&chunk.context).ok_or(unknown)?;
            let work_done = chunk.work.min(context.tokens_left);
            context.tokens_left -= work_done;
            progress.push(PrefillProgress { work_left: context.tokens_left, work_done, cached_tokens: 0 });
        }
        Ok(progress)
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        let mut values = Vec::new();
        let mut numbers = Vec::new();
        for row in rows {
            let context =
                self.contexts.get_mut(&row.context).ok_or(ModelError::UnknownContext(row.context))?;
            if context.tokens_left > 0 {
                return Err(ModelError::NotPrefilled(row.context));
            }
            let path = match row.path.parent {
                None => Vec::new(),
                Some(node) => {
                    let unknown = ModelError::UnknownNode { context: row.context, node };
                    let mut path = context.paths.get(node.index()).ok_or(unknown)?.clone();
                    path.push(row.path.token.id);
                    path
                }
            };
            values.extend((self.script)(&context.prompt, &path)?);
            numbers.extend(self.number_head.as_mut().map(|head| head(&context.prompt, &path)));
            context.paths.push(path);
        }
        let width = self.info.labels.as_ref().map_or(self.info.tokens, |labels| labels.names.len());
        let logits = Logits::new(values, width)?;
        Ok(if self.number_head.is_some() { logits.with_head_values(numbers)? } else { logits })
    }

    /// Nothing, so that tests which are not about memory need not think of it.
    fn cache_cost(&self) -> CacheCost {
        CacheCost { prompt_token: 0, node: 0, capacity: NodeCapacity::Exact }
    }

    fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}

/// The logits of a model that returns only the requested logits of each row. The tokenizer knows the ids
/// below `tokens`.
pub fn only_requested(logits: &Logits, rows: &[Row], tokens: usize) -> Result<Logits, ModelError> {
    let mut values = Vec::new();
    let mut summaries = Vec::new();
    let mut vocab = 1;
    for (index, row) in rows.iter().enumerate() {
        let full = logits.row(index);
        vocab = full.len();
        summaries.push(match &row.path.logits {
            LogitsRequest::All | LogitsRequest::Hidden => {
                values.extend(full);
                None
            }
            LogitsRequest::Best => Some(summary(full, tokens, &Arc::from([]))),
            LogitsRequest::Ids(ids) => Some(summary(full, tokens, ids)),
        });
    }
    let head_values: Vec<f32> = (0..rows.len()).filter_map(|index| logits.head_value(index)).collect();
    let requested = Logits::mixed(values, vocab, summaries)?;
    Ok(if head_values.is_empty() { requested } else { requested.with_head_values(head_values)? })
}

/// An id beyond the row has a logit of minus infinity.
fn logit(logits: &[f32], id: u32) -> f32 {
    logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY)
}

/// The summary of a full row.
fn summary(logits: &[f32], tokens: usize, ids: &Arc<[u32]>) -> LogitsSummary {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let best = argmax(&logits[..tokens.min(logits.len())]);
    LogitsSummary {
        best_id: best as u32,
        best_logit: logit(logits, best as u32),
        max,
        total: logits.iter().map(|&logit| f64::from(logit - max).exp()).sum(),
        ids: Arc::clone(ids),
        logits: ids.iter().map(|&id| logit(logits, id)).collect(),
    }
}

/// The ids that an engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    All,
    /// This many of the most probable ids.
    Best(usize),
    /// The requested ids and the most probable one.
    Requested,
    /// The requested ids, and no bound of the others.
    OnlyRequested,
}

impl Reported {
    /// Returns the report of an engine with these logits. Like vLLM, it normalises over all of them; ids from
    /// `tokens` on, which the tokenizer does not know, are left out.
    #[expect(clippy::panic, reason = "only tests have scripts, and they fail by panicking")]
    pub fn of(self, logits: &[f32], tokens: usize, request: &LogitsRequest) -> NextTokenReport {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        let mut best_first = Vec::with_capacity(logits.len());
        for (id, &logit) in (0..).zip(logits) {
            best_first.push(TokenLogprob { id, logprob: f64::from(logit - max) - total.ln() });
        }
        best_first.sort_by(|a, b| b.logprob.total_cmp(&a.logprob).then(a.id.cmp(&b.id)));
        let best = best_first.first().map(|token| token.logprob);
        let is_requested = |token: &TokenLogprob| match request {
            LogitsRequest::Ids(ids) => ids.contains(&token.id),
            LogitsRequest::All | LogitsRequest::Best | LogitsRequest::Hidden => false,
        };
        let (reported, cut): (Vec<_>, _) = match self {
            Self::All => (best_first, Some(f64::NEG_INFINITY)),
            Self::Best(count) => {
                best_first.truncate(count);
                let cut = best_first.last().map(|token| token.logprob);
                (best_first, cut)
            }
            Self::Requested => {
                let rest = best_first.iter().skip(1).filter(|token| is_requested(token));
                (best_first.iter().take(1).chain(rest).copied().collect(), best)
            }
            Self::OnlyRequested => (best_first.into_iter().filter(is_requested).collect(), None),
        };
        let known = reported.into_iter().filter(|token| (token.id as usize) < tokens);
        NextTokenReport::new(known, cut).unwrap_or_else(|error| panic!("{error}"))
    }
}
