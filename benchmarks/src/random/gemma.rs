//! T5Gemma 1 and 2, and RegressLM's export: configuration and tensors as Hugging Face writes them, without a
//! vision tower.

use super::tensors::{Planned, filled, random, scale_for};
use super::{AnswerTokens, Plan};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
    /// The first version, which writes numbers in dedicated tokens.
    RegressLm,
}

/// Number of RegressLM's number tokens: padding, two signs and the digits.
const NUMBER_TOKENS: usize = 13;

/// Factor of the weights of RegressLM's output layer. With it, the most probable number has 20% to 70%.
/// Without it, the distribution would be almost uniform.
const CERTAINTY: f64 = 14.0;

/// Both stacks have the same shape.
pub(super) struct GemmaShape {
    pub(super) version: Version,
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_width: usize,
    pub(super) window: usize,
}

impl GemmaShape {
    pub(super) fn plan(&self) -> Plan {
        let answers = (self.version == Version::RegressLm).then(number_tokens);
        Plan { vocabulary: self.vocabulary, config: self.config(), tensors: self.tensors(), answers }
    }

    /// In the matching tokenizer, id 0 is padding and id 1 ends a text.
    fn config(&self) -> String {
        let Self { vocabulary, hidden, intermediate, layers, heads, kv_heads, head_width, window, .. } =
            *self;
        let stack = format!(
            r#"{{"vocab_size": {vocabulary}, "hidden_size": {hidden}, "intermediate_size": {intermediate},
"num_hidden_layers": {layers}, "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": {head_width},
"query_pre_attn_scalar": {head_width}, "sliding_window": {window}, "max_position_embeddings": 8192,
"hidden_activation": "gelu_pytorch_tanh"}}"#
        );
        let (class, kind, encoder) = match self.version {
            Version::One => ("T5GemmaForConditionalGeneration", "t5gemma", stack.clone()),
            Version::RegressLm => return regresslm_config(vocabulary, &stack),
            Version::Two => {
                ("T5Gemma2ForConditionalGeneration", "t5gemma2", format!(r#"{{"text_config": {stack}}}"#))
            }
        };
        format!(
            r#"{{"architectures": ["{class}"], "model_type": "{kind}", "encoder": {encoder}, "decoder": {stack},
"tie_word_embeddings": true, "torch_dtype": "float32", "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}}"#
        )
    }

    /// Weights of normalisations are stored less 1.
    fn tensors(&self) -> Vec<Planned> {
        let mut tensors = Vec::new();
        for stack in ["encoder", "decoder"] {
            let is_regresslm = self.version == Version::RegressLm;
            let prefix = if is_regresslm { format!("model.model.{stack}") } else { format!("model.{stack}") };
            let tokens = if is_regresslm && stack == "decoder" { NUMBER_TOKENS } else { self.vocabulary };
            if stack == "encoder" || self.version != Version::Two {
                let name = format!("{prefix}.embed_tokens.weight");
                tensors.push(random(name, scale_for(self.hidden), &[tokens, self.hidden]));
            }
            for layer in 0..self.layers {
                self.add_layer(&mut tensors, stack, &format!("{prefix}.layers.{layer}"));
            }
            tensors.push(filled(format!("{prefix}.norm.weight"), 0.0, self.hidden));
        }
        if self.version == Version::RegressLm {
            let deviation = CERTAINTY * scale_for(self.hidden);
            tensors.push(random("model.lm_head.out_proj.weight", deviation, &[NUMBER_TOKENS, self.hidden]));
        }
        tensors
    }

    fn add_layer(&self, tensors: &mut Vec<Planned>, stack: &str, layer: &str) {
        let Self { hidden, intermediate, .. } = *self;
        let [queries, keys] = [self.heads, self.kv_heads].map(|heads| heads * self.head_width);
        let has_cross_attention = stack == "decoder" && self.version != Version::Two;
        let attentions = if has_cross_attention { &["self_attn", "cross_attn"][..] } else { &["self_attn"] };
        for attention in attentions {
            for (part, outputs, inputs) in [
                ("q_proj", queries, hidden),
                ("k_proj", keys, hidden),
                ("v_proj", keys, hidden),
                ("o_proj", hidden, queries),
            ] {
                let name = format!("{layer}.{attention}.{part}.weight");
                tensors.push(random(name, scale_for(inputs), &[outputs, inputs]));
            }
            if self.version == Version::Two {
                for norm in ["q_norm", "k_norm"] {
                    tensors.push(filled(format!("{layer}.{attention}.{norm}.weight"), 0.0, self.head_width));
                }
            }
        }
        for (part, outputs, inputs) in [
            ("gate_proj", intermediate, hidden),
            ("up_proj", intermediate, hidden),
            ("down_proj", hidden, intermediate),
        ] {
            let name = format!("{layer}.mlp.{part}.weight");
            tensors.push(random(name, scale_for(inputs), &[outputs, inputs]));
        }
        for part in attentions.iter().chain(&["feedforward"]) {
            for side in ["pre", "post"] {
                tensors.push(filled(format!("{layer}.{side}_{part}_layernorm.weight"), 0.0, hidden));
            }
        }
    }
}

/// The published model: base 10, two digits of the exponent, five digits.
fn regresslm_config(vocabulary: usize, stack: &str) -> String {
    format!(
        r#"{{"architectures": ["RegressLMForConditionalGeneration"], "model_type": "regresslm",
"backbone_config": {{"model_type": "t5gemma", "encoder": {stack}, "decoder": {stack}}}, "encoder_vocab_size": {vocabulary},
"decoder_vocab_size": {NUMBER_TOKENS}, "decoder_tokenizer": "IEEE", "ieee_base": 10, "ieee_exponent_digits": 2,
"ieee_mantissa_digits": 5, "num_tokens_per_obj": 9, "max_num_objs": 1, "use_regression_head": false}}"#
    )
}

fn number_tokens() -> AnswerTokens {
    let names = ["pad", "+", "-", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let entries: Vec<String> = (0..).zip(names).map(|(id, name)| format!(r#""<{name}>": {id}"#)).collect();
    AnswerTokens { file: "ieee_vocab.json", json: format!("{{{}}}", entries.join(", ")) }
}
