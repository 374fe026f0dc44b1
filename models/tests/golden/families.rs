//! Compares tiny random models of every variant with Hugging Face: `tests/data/causal`, made by `make.py`
//! there.

use std::path::Path;

use candle_core::Device;
use ntl_models::Placement;
use ntl_models::causal::{Causal, CausalOptions};
use ntl_text::checkpoint::CheckpointFiles;

use crate::support::{assert_close, flat, open_ids, score_ids};

/// The names state the variants.
const VARIANTS: [&str; 14] = [
    "llama-linear",
    "llama-dynamic",
    "llama-llama3",
    "llama-yarn",
    "llama-biases",
    "mistral-window",
    "qwen2",
    "smollm3",
    "olmo2",
    "olmo3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2-by-depth",
];

/// Returns a tiny model, its text, and Hugging Face's logits after each token of the text.
fn open(name: &str, prefix_bytes_max: usize) -> (Causal, Vec<u32>, Vec<f32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/causal").join(name);
    let files = CheckpointFiles::folder(&folder).unwrap();
    let options = CausalOptions { tokens: 36, place: Placement::default(), prefix_bytes_max };
    let model = Causal::load(&files, &options).unwrap();
    let golden = candle_core::safetensors::load(folder.join("golden.safetensors"), &Device::Cpu).unwrap();
    let ids: Vec<i64> = golden["input_ids"].to_vec1().unwrap();
    (model, ids.into_iter().map(|id| id as u32).collect(), flat(&golden["logits"]))
}

/// Returns the logits of the last token of `ids[..prompt]` and of all following tokens.
fn logits(model: &mut Causal, ids: &[u32], prompt: usize) -> Vec<f32> {
    let (logits, _) = score_ids(model, &[ids[..prompt].to_vec()], &[ids[prompt - 1..].to_vec()]);
    (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect()
}

#[test]
fn every_variant_matches_the_reference_logits_for_any_prompt_length() {
    for name in VARIANTS {
        let (mut model, ids, want) = open(name, 0);
        for prompt in [1, 2, 12, ids.len()] {
            let got = logits(&mut model, &ids, prompt);
            let worst = assert_close(&got, &want[(prompt - 1) * 36..], 1e-4, &format!("{name} {prompt}"));
            println!("{name}, prompt of {prompt}: logits differ by at most {worst:e}");
        }
    }
}

#[test]
fn results_with_a_shared_prefix_are_bit_identical() {
    for name in VARIANTS {
        let (mut sharing, ids, _) = open(name, 1 << 20);
        let (mut alone, ..) = open(name, 0);
        let want = logits(&mut alone, &ids, 36);
        for round in 0..2 {
            assert_eq!(logits(&mut sharing, &ids, 36), want, "{name}, round {round}");
        }
        let mut other = ids[..34].to_vec();
        other.extend([4, 5, 6]);
        assert_eq!(logits(&mut sharing, &other, 37), logits(&mut alone, &other, 37), "{name}");
        assert_eq!(open_ids(&mut sharing, &[&other])[0].prefill.cached_tokens, 36, "{name}");
    }
}
