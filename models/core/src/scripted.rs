//! A model whose distribution is written down: what engines, trees and servers are tested with.
//!
//! The logits after a path are whatever a script makes of the prompt and the path's tokens, so exact answers are
//! known in closed form, and failures, panics and waiting are a line each.

use std::collections::HashMap;

use crate::engine::{
    BatchModel, ContextId, Logits, ModelError, ModelInfo, NumberEncoding, Opened, Prompt, Row,
};

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

    fn open(&mut self, prompts: &[&Prompt]) -> Result<Vec<Opened>, ModelError> {
        let open = |prompt: &&Prompt| {
            self.opened += 1;
            let context = ContextId(self.opened);
            self.contexts.insert(context, Context { prompt: prompt.ids.clone(), paths: Vec::new() });
            Opened { context, first_token: 0, reused_tokens: 0 }
        };
        Ok(prompts.iter().map(open).collect())
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
                    path.push(row.path.token);
                    path
                }
            };
            values.extend((self.script)(&context.prompt, &path)?);
            numbers.extend(self.number_head.as_mut().map(|head| head(&context.prompt, &path)));
            context.paths.push(path);
        }
        let logits = Logits::new(values, self.info.tokens)?;
        if self.number_head.is_some() { logits.with_numbers(numbers) } else { Ok(logits) }
    }

    fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}
