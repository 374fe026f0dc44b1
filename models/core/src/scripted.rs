//! A model whose distribution is written down: what engines, trees and servers are tested with.
//!
//! The logits after a path are whatever a script makes of the prompt and the path's tokens, so exact answers are
//! known in closed form, and failures, panics and waiting are a line each.

use std::collections::HashMap;

use crate::engine::{BatchModel, ContextId, Logits, ModelError, ModelInfo, NumberEncoding, Opened, Row};

/// Logits after a prompt and the tokens decoded so far (without the first token).
pub type Script = Box<dyn FnMut(&[u32], &[u32]) -> Result<Vec<f32>, ModelError> + Send>;

/// A [`BatchModel`] that follows a script.
pub struct ScriptedModel {
    info: ModelInfo,
    script: Script,
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
            tokens,
            eos_ids: vec![1],
            encoder_decoder: true,
        };
        Self { info, script, contexts: HashMap::new(), opened: 0 }
    }

    /// The same model with other limits or ids.
    pub fn with_info(mut self, change: impl FnOnce(&mut ModelInfo)) -> Self {
        change(&mut self.info);
        self
    }
}

impl BatchModel for ScriptedModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, prompts: &[&[u32]]) -> Result<Vec<Opened>, ModelError> {
        let open = |prompt: &&[u32]| {
            self.opened += 1;
            let context = ContextId(self.opened);
            self.contexts.insert(context, Context { prompt: prompt.to_vec(), paths: Vec::new() });
            Opened { context, first_token: 0 }
        };
        Ok(prompts.iter().map(open).collect())
    }

    fn step(&mut self, rows: &[Row]) -> Result<Logits, ModelError> {
        let mut values = Vec::new();
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
            context.paths.push(path);
        }
        Logits::new(values, self.info.tokens)
    }

    fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}
