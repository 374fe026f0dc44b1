//! A model whose distribution is written down: what engines, trees and servers are tested with.
//!
//! The logits after a path are whatever a script makes of the prompt and the path's tokens, so exact answers are
//! known in closed form, and failures, panics and waiting are a line each.

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::{
    BatchModel, ContextId, ContextRequest, Logits, LogitsRequest, LogitsSummary, ModelError, ModelInfo,
    NumberEncoding, OpenedContext, Row,
};
use crate::sampling::argmax;

/// Logits after a prompt and the tokens decoded so far (without the first token).
pub type Script = Box<dyn FnMut(&[u32], &[u32]) -> Result<Vec<f32>, ModelError> + Send>;

/// What a number head says after a prompt and the tokens decoded so far.
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
            kind: "scripted".to_owned(),
            backend: "scripted".to_owned(),
            dtype: "f32".to_owned(),
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
        if self.number_head.is_some() { logits.with_head_values(numbers) } else { Ok(logits) }
    }

    fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}

/// The same answers as a model would give them that keeps from each row what it does not want to know. `tokens`: ids from
/// there on are padding.
///
/// # Errors
/// Not with logits that a model answered these rows with.
pub fn only_requested(logits: &Logits, rows: &[Row], tokens: usize) -> Result<Logits, ModelError> {
    let (mut values, mut answers, mut vocab) = (Vec::new(), Vec::new(), 1);
    for (index, row) in rows.iter().enumerate() {
        let whole = logits.row(index);
        vocab = whole.len();
        answers.push(match &row.path.logits {
            LogitsRequest::All => {
                values.extend(whole);
                None
            }
            LogitsRequest::Best => Some(reduced(whole, tokens, &Arc::from([]))),
            LogitsRequest::Ids(ids) => Some(reduced(whole, tokens, ids)),
        });
    }
    let numbers: Vec<f32> = (0..rows.len()).filter_map(|index| logits.head_value(index)).collect();
    let wanted = Logits::mixed(values, vocab, answers)?;
    if numbers.is_empty() { Ok(wanted) } else { wanted.with_head_values(numbers) }
}

/// What [`LogitsRequest::Ids`] asks for, of a whole row. Ids beyond it have a logit of minus infinity.
fn reduced(logits: &[f32], tokens: usize, ids: &Arc<[u32]>) -> LogitsSummary {
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
