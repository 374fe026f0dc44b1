//! Tokenizers and metadata files of a checkpoint: SentencePiece models, `tokenizer.json`, and every small
//! JSON file.

use ntl_core::Prompt;
use ntl_core::contract::ContextRequest;
use ntl_models::{DeviceChoice, LoadOptions, load};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;

use super::outcome;
use crate::corpus::{checkpoint, head, named, split_named, tiny};
use crate::{Outcome, Target};

pub(super) const SENTENCEPIECE: Target = Target {
    name: "sentencepiece",
    corpus: || {
        let unigram = tiny(&["t5-ce"], "spiece.model").remove(0);
        // The last `trainer_spec.model_type` counts; 2 is BPE.
        let bpe = [&*unigram, b"\x12\x02\x18\x02"].concat();
        vec![unigram, bpe]
    },
    words: &[
        "▁",
        "</s>",
        "<unk>",
        "<pad>",
        "<0x41>",
        "\u{a}\u{5}\u{a}\u{1}a",
        "\u{18}\u{2}",
        "\u{12}",
        "\u{1a}",
        "nmt_nfkc",
    ],
    read: |input| tokenizer("spiece.model", input),
};

pub(super) const TOKENIZER: Target = Target {
    name: "tokenizer",
    corpus: || tiny(&["llama-ntl", "qwen3", "t5-v11"], "tokenizer.json"),
    words: &[
        "added_tokens",
        "id",
        "content",
        "special",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "model",
        "type",
        "BPE",
        "Unigram",
        "WordPiece",
        "WordLevel",
        "vocab",
        "merges",
        "unk_id",
        "unk_token",
        "byte_fallback",
        "Sequence",
        "normalizers",
        "pretokenizers",
        "decoders",
        "Replace",
        "Prepend",
        "NFKC",
        "Precompiled",
        "precompiled_charsmap",
        "Metaspace",
        "ByteLevel",
        "ByteFallback",
        "Split",
        "Digits",
        "Regex",
        "(a+)+$",
        "pattern",
        "String",
        "TemplateProcessing",
        "single",
        "pair",
        "special_tokens",
        "truncation",
        "max_length",
        "padding",
        "dropout",
        "fuse_unk",
        "▁",
        "Ġ",
        "a b",
        "lstrip",
    ],
    read: |input| tokenizer("tokenizer.json", input),
};

/// Has its tokenizer in an inner directory, like the one with a head.
const REGRESSLM: &str = "regresslm-hf-p10";
const REGRESSLM_HEAD: &str = "regresslm-hf-head";

pub(super) const CONFIG: Target = Target {
    name: "config",
    corpus: || {
        let checkpoints = [
            "gpt2",
            "granite",
            "llama-ntl",
            "qwen3",
            "t5-ce",
            "t5-regression-head",
            "t5-rt",
            "t5-v11",
            "t5-xval",
            "t5gemma",
            "t5gemma2",
            REGRESSLM,
            REGRESSLM_HEAD,
        ];
        let configs = checkpoints.iter().map(|folder| (*folder, "config.json"));
        let tokenizers = checkpoints
            .iter()
            .filter(|folder| ![REGRESSLM, REGRESSLM_HEAD].contains(folder))
            .map(|folder| (*folder, "tokenizer_config.json"));
        let inner = [(REGRESSLM, "p10_vocab.json"), (REGRESSLM, "encoder_tokenizer/tokenizer_config.json")];
        let described =
            ["regresslm-pt", "regresslm-pt-gemma", "regresslm-pt-gemma2"].map(|folder| (folder, "ntl.json"));
        let pairs = configs.chain(tokenizers).chain(inner).chain(described);
        let mut corpus: Vec<_> = pairs
            .map(|(folder, file)| named(&format!("{folder}/{file}"), &tiny(&[folder], file)[0]))
            .collect();
        for folder in [
            "gpt2-classes",
            "llama-reward",
            "mistral-classes",
            "qwen2-properties",
            "t5-classes",
            "bert-classes",
            "roberta-regression",
            "modernbert-mean",
        ] {
            corpus.push(named(&format!("{folder}/config.json"), &head(folder, "config.json")));
        }
        corpus.push(named("t5-rt/added_tokens.json", &tiny(&["t5-rt"], "added_tokens.json")[0]));
        corpus.push(named("t5-xval/ntl.json", br#"{"log_scale_embeddings": true, "examples": ["1 + 1"]}"#));
        corpus.push(named(
            "t5-rt/config.yaml",
            b"model_args:\n  number_encoding: rt\n  log_scale_embeddings: false\n",
        ));
        corpus.push(named(
            "t5-ce/special_tokens_map.json",
            br#"{"eos_token": "</s>", "pad_token": {"content": "<pad>"}}"#,
        ));
        corpus.push(named(
            "llama-ntl/generation_config.json",
            br#"{"eos_token_id": [1, 2], "bos_token_id": 0}"#,
        ));
        corpus
    },
    words: &[
        "num_layers",
        "num_hidden_layers",
        "num_heads",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "d_model",
        "d_kv",
        "d_ff",
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "rope_type",
        "yarn",
        "llama3",
        "dynamic",
        "linear",
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
        "beta_fast",
        "attention_factor",
        "sliding_window",
        "layer_types",
        "rms_norm_eps",
        "layer_norm_epsilon",
        "tie_word_embeddings",
        "scale_decoder_outputs",
        "eos_token_id",
        "decoder_start_token_id",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
        "feed_forward_proj",
        "gated-gelu",
        "hidden_act",
        "attention_bias",
        "logits_scaling",
        "quantization_config",
        "architectures",
        "LlamaForCausalLM",
        "GPT2LMHeadModel",
        "T5ForConditionalGeneration",
        "model_max_length",
        "tokenizer_class",
        "extra_ids",
        "added_tokens_decoder",
        "chat_template",
        "additional_special_tokens",
        "clean_up_tokenization_spaces",
        "&a [*a, *a]",
        "<<: *a",
        "use_regression_head",
        "decoder_tokenizer",
        "IEEE",
        "P10",
        "num_digits",
        "exponent_range",
        "ieee_base",
        "ieee_exponent_digits",
        "ieee_mantissa_digits",
        "max_num_objs",
        "<E-1>",
        "regresslm-pt",
        "state_key",
        "vanilla",
        "mamba",
        "max_input_len",
        "max_len",
        "rope_base",
        "encoder_tokenizer",
        "sentencepiece",
        "first_char_id",
        "normalized",
        "append_pad",
        "add_special_values",
        "-inf",
        "num_labels",
        "id2label",
        "problem_type",
        "multi_label_classification",
        "sentence_transformers",
        "pad_token_id",
        "type_vocab_size",
        "layer_norm_eps",
        "local_attention",
        "global_attn_every_n_layers",
        "classifier_pooling",
        "norm_bias",
        "LlamaForSequenceClassification",
        "T5ForSequenceClassification",
        "BertForSequenceClassification",
        "ModernBertForSequenceClassification",
    ],
    read: config,
};

const TEXT: &str = "What is 12 - -3.5?  é\u{1F600}▁ 1e9,000 </s>";

/// Opens a tokenizer from one file and uses it.
fn tokenizer(file: &str, input: &[u8]) -> Outcome {
    let files = CheckpointFiles::memory("fuzzed", [(file.to_owned(), input.to_vec())]);
    let tokenizer = Tokenizer::open(&files);
    if let Ok(tokenizer) = &tokenizer {
        // A text that it cannot encode is an error of the request.
        let ids = tokenizer.encode(TEXT, true).unwrap_or_default();
        tokenizer.decode_tokens(&ids);
        for id in (0..).take(tokenizer.len().min(1000)) {
            tokenizer.number_piece(id);
            tokenizer.piece_text(id);
            tokenizer.token_bytes(id);
        }
    }
    outcome(tokenizer, file)
}

/// Loads a small checkpoint with one file replaced, and prefills a prompt.
fn config(input: &[u8]) -> Outcome {
    let Some((name, content)) = split_named(input) else { return Outcome::Refused };
    let Some((folder, file)) = name.split_once('/') else { return Outcome::Refused };
    if name.contains("..") {
        return Outcome::Refused;
    }
    let Some(mut files) = checkpoint(folder) else { return Outcome::Refused };
    files.insert(file.to_owned(), content.to_vec());
    let files = CheckpointFiles::memory("fuzzed", files);
    let loaded = load(&files, LoadOptions { device: DeviceChoice::Cpu, ..LoadOptions::default() });
    outcome(
        loaded.map(|mut loaded| {
            let prompt = Prompt::from(vec![1; 3]);
            // A prompt that a model cannot compute is an error of the request.
            let _ = loaded.model.open(&[ContextRequest::from(&prompt)]);
        }),
        "fuzzed",
    )
}
