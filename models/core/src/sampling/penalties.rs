//! Penalties on tokens that are in the text already, as OpenAI and vLLM define them.

use std::collections::HashMap;

use super::SamplingParams;

/// The tokens before the next one: how often each was generated; 0 for those only in the prompt.
#[derive(Debug, Clone)]
pub(super) struct Seen(HashMap<u32, u32>);

impl Seen {
    /// `None` without penalties.
    pub(super) fn of(sampling: &SamplingParams) -> Option<Self> {
        let is_neutral = sampling.presence_penalty.abs().total_cmp(&0.0).is_eq()
            && sampling.frequency_penalty.abs().total_cmp(&0.0).is_eq()
            && sampling.repetition_penalty.total_cmp(&1.0).is_eq();
        if is_neutral { None } else { Some(Self(HashMap::new())) }
    }

    pub(super) fn prompt(&mut self, ids: &[u32]) {
        for &id in ids {
            self.0.entry(id).or_default();
        }
    }

    pub(super) fn generated(&mut self, id: u32) {
        *self.0.entry(id).or_default() += 1;
    }

    pub(super) fn penalised(&self, logits: &[f32], sampling: &SamplingParams) -> Vec<f32> {
        let mut logits = logits.to_vec();
        for (&id, &count) in &self.0 {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            let was = f64::from(*logit);
            let repeated =
                if was > 0.0 { was / sampling.repetition_penalty } else { was * sampling.repetition_penalty };
            let present = if count > 0 { sampling.presence_penalty } else { 0.0 };
            *logit = (repeated - sampling.frequency_penalty * f64::from(count) - present) as f32;
        }
        logits
    }
}
