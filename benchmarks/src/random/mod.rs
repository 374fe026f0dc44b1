//! Random checkpoints of well-known shapes, for measuring speed if no trained checkpoint is available.
//!
//! In: a shape and a seed. Out: a directory that this project, Hugging Face and converters can read. The same
//! seed gives the same bytes on every machine.

mod gemma;
mod llama;
mod t5;
mod tensors;
mod tokenizer;

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use anyhow::Context;

use gemma::{GemmaShape, Version};
use llama::LlamaShape;
use t5::T5Shape;
use tensors::Planned;

/// Shape and contents of a checkpoint.
pub struct Plan {
    vocabulary: usize,
    config: String,
    tensors: Vec<Planned>,
    /// A separate vocabulary of answers. With it, the tokenizer of prompts is in an inner directory.
    answers: Option<AnswerTokens>,
}

/// A vocabulary file of RegressLM.
struct AnswerTokens {
    file: &'static str,
    json: String,
}

type Shape = (&'static str, fn() -> Plan);

/// File sizes: 3 GB for t5-large, 11.4 GB for t5-3b and flan-t5-xl, 1.25 GB for t5gemma-s, 0.73 GB for
/// regresslm-s, 4.4 GB for tinyllama. This tinyllama accepts longer prompts than the original.
const SHAPES: [Shape; 12] = [
    ("t5-small", || T5Shape::v1_0(512, 2048, 6, 8).plan()),
    ("t5-base", || T5Shape::v1_0(768, 3072, 12, 12).plan()),
    ("t5-large", || T5Shape::v1_0(1024, 4096, 24, 16).plan()),
    ("t5-3b", || T5Shape { head_width: 128, ..T5Shape::v1_0(1024, 16_384, 24, 32) }.plan()),
    ("t5-v1.1-base", || T5Shape { gated: true, ..T5Shape::v1_0(768, 2048, 12, 12) }.plan()),
    ("flan-t5-xl", || T5Shape { gated: true, ..T5Shape::v1_0(2048, 5120, 24, 32) }.plan()),
    ("t5gemma-s", || T5GEMMA_S.plan()),
    ("t5gemma-b", || {
        GemmaShape { hidden: 768, intermediate: 2048, layers: 12, heads: 12, kv_heads: 12, ..T5GEMMA_S }
            .plan()
    }),
    ("t5gemma2-270m", || T5GEMMA2_270M.plan()),
    ("regresslm-s", || REGRESSLM_S.plan()),
    ("llama-160m", || LlamaShape::new(768, 3072, 12, 12, 12).plan()),
    ("tinyllama", || LlamaShape::new(2048, 5632, 22, 32, 4).plan()),
];

const T5GEMMA_S: GemmaShape = GemmaShape {
    version: Version::One,
    vocabulary: 256_000,
    hidden: 512,
    intermediate: 1024,
    layers: 8,
    heads: 8,
    kv_heads: 8,
    head_width: 64,
    window: 4096,
};

/// The shape of the published RegressLM.
const REGRESSLM_S: GemmaShape = GemmaShape { version: Version::RegressLm, ..T5GEMMA_S };

const T5GEMMA2_270M: GemmaShape = GemmaShape {
    version: Version::Two,
    vocabulary: 262_144,
    hidden: 640,
    intermediate: 2048,
    layers: 18,
    heads: 4,
    kv_heads: 1,
    head_width: 256,
    window: 512,
};

/// Returns the plan for a checkpoint with a well-known shape.
pub fn plan(name: &str) -> anyhow::Result<Plan> {
    let entry = SHAPES.iter().find(|(known, _)| *known == name);
    let (_, plan) = entry.with_context(|| {
        let names = SHAPES.map(|(name, _)| name).join(", ");
        format!("{name} is not one of {names}")
    })?;
    Ok(plan())
}

/// Writes a checkpoint directory: random weights, and a SentencePiece tokenizer padded with pieces up to the
/// size of the vocabulary.
pub fn write(folder: &Path, plan: &Plan, seed: u64) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    let inner = folder.join("encoder_tokenizer");
    match &plan.answers {
        None => tokenizer::write(folder, plan.vocabulary)?,
        Some(AnswerTokens { file, json }) => {
            fs::write(folder.join(file), json)?;
            fs::create_dir_all(&inner)?;
            tokenizer::write(&inner, plan.vocabulary)?;
        }
    }
    fs::write(folder.join("config.json"), &plan.config)?;
    let file = File::create(folder.join("model.safetensors"))?;
    Ok(tensors::write(&plan.tensors, seed, BufWriter::new(file))?)
}

#[cfg(test)]
mod tests {
    use ntl_models::{LoadOptions, load};
    use ntl_text::checkpoint::CheckpointFiles;

    use super::*;

    #[test]
    fn tiny_checkpoints_load_and_their_tokenizer_fills_the_vocabulary() {
        for (name, plan) in [
            ("v1_0", T5Shape::v1_0(64, 32, 1, 1).plan()),
            ("wide_heads", T5Shape { head_width: 128, ..T5Shape::v1_0(64, 32, 1, 1) }.plan()),
            ("v1_1", T5Shape { gated: true, ..T5Shape::v1_0(64, 32, 1, 1) }.plan()),
            ("t5gemma", GemmaShape { vocabulary: 2200, hidden: 64, layers: 2, ..T5GEMMA_S }.plan()),
            ("t5gemma2", GemmaShape { vocabulary: 2200, hidden: 64, layers: 2, ..T5GEMMA2_270M }.plan()),
            ("regresslm", GemmaShape { vocabulary: 2200, hidden: 64, layers: 2, ..REGRESSLM_S }.plan()),
            ("llama", LlamaShape::new(64, 32, 1, 2, 1).plan()),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            write(folder, &plan, 1).unwrap();
            let first = fs::read(folder.join("model.safetensors")).unwrap();
            write(folder, &plan, 1).unwrap();
            assert!(first == fs::read(folder.join("model.safetensors")).unwrap(), "{name} repeats");
            let files = CheckpointFiles::folder(folder).unwrap();
            let loaded = load(&files, LoadOptions::default()).unwrap();
            assert_eq!(loaded.tokenizer.len(), plan.vocabulary, "{name}");
            let text = "What is 17 + 4?";
            let ids = loaded.tokenizer.encode(text, false).unwrap();
            assert_eq!(loaded.tokenizer.decode_tokens(&ids), text, "{name}");
        }
    }
}
