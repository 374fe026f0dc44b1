//! A model for tests whose logits a closure computes from the prompt and the path.
//!
//! So tests know exact results in closed form, and simulate failures, panics and waiting in one line.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::{
    Backend, BatchModel, CacheCost, ContextId, ContextRequest, Dtype, Logits, LogitsRequest, LogitsSummary,
    ModelError, ModelInfo, ModelKind, NodeCapacity, NumberEncoding, OpenedContext, Row,
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
    /// Tokens from the root to each node.
    paths: Vec<Vec<u32>>,
}

impl ScriptedModel {
    /// A model of `tokens` ids, of which 0 starts a path and 1 ends it.
    pub fn new(tokens: usize, script: Script) -> Self {
        let info = ModelInfo {
            kind: ModelKind::Other("scripted".to_owned()),
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

    fn open(&mut self, requests: &[ContextRequest<'_>]) -> Result<Vec<OpenedContext>, ModelError> {
        let open = |request: &ContextRequest<'_>| {
            self.opened += 1;
            let context = ContextId(self.opened);
            self.contexts
                .insert(context, Context { prompt: request.prompt.ids().collect(), paths: Vec::new() });
            OpenedContext { context, first_token: 0, cached_tokens: 0 }
        };
        Ok(requests.iter().map(open).collect())
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        let (mut values, mut numbers) = (Vec::new(), Vec::new());
        for row in rows {
            let context =
                self.contexts.get_mut(&row.context).ok_or(ModelError::UnknownContext(row.context))?;
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
        let logits = Logits::new(values, self.info.tokens)?;
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

/// The logits of a model that returns to each row no more than it asks for. Ids from `tokens` on are padding.
pub fn only_requested(logits: &Logits, rows: &[Row], tokens: usize) -> Result<Logits, ModelError> {
    let (mut values, mut summaries, mut vocab) = (Vec::new(), Vec::new(), 1);
    for (index, row) in rows.iter().enumerate() {
        let full = logits.row(index);
        vocab = full.len();
        summaries.push(match &row.path.logits {
            LogitsRequest::All => {
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

/// The summary of a full row. Ids beyond it have a logit of minus infinity.
fn summary(logits: &[f32], tokens: usize, ids: &Arc<[u32]>) -> LogitsSummary {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = |logits: &[f32]| logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let (known, padding) = logits.split_at(tokens.min(logits.len()));
    let best = argmax(known);
    let logit = |&id: &u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    LogitsSummary {
        tokens,
        best_id: best as u32,
        best_logit: logit(&(best as u32)),
        max,
        total: weights(logits),
        padding: weights(padding),
        ids: Arc::clone(ids),
        logits: ids.iter().map(logit).collect(),
    }
}
