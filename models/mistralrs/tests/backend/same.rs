//! A checkpoint gives the same answers on mistral.rs as on the native engine.

use std::sync::Arc;

use ntl_core::Token;
use ntl_core::contract::{Backend, Dtype, NumberJob, NumberMethod, Request, ScoreJob, TextJob};
use ntl_core::losses::NumberTokens;
use ntl_core::sampling::SamplingParams;
use ntl_models::LoadOptions;
use ntl_text::checkpoint::CheckpointFiles;

use crate::support::{Both, Served, assert_same, assert_same_numbers, shared, text, tree};
use crate::tiny;

fn tiny() -> (tempfile::TempDir, Both) {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_folder(folder.path());
    let both = Both::open(folder.path());
    (folder, both)
}

/// Returns prompts of several lengths, including an empty one.
fn prompts() -> Vec<Vec<u32>> {
    vec![vec![1, 4, 16, 5], vec![1], vec![], vec![3; 40], (3..24).cycle().take(100).collect()]
}

#[test]
fn texts_and_log_probabilities_match_the_native_engine() {
    let (_folder, both) = tiny();
    let sampled = SamplingParams { seed: 11, top_p: 0.9, ..SamplingParams::PLAIN };
    let penalised = SamplingParams { repetition_penalty: 1.3, frequency_penalty: 0.2, ..sampled };
    let jobs = [
        ("greedy", text(24)),
        ("sampled", TextJob { sampling: sampled, ..text(24) }),
        ("penalised", TextJob { sampling: penalised, ..text(24) }),
        ("three choices", TextJob { n: 3, best_of: 3, sampling: SamplingParams::PLAIN, ..text(8) }),
        ("stopped", TextJob { stop: vec!["1".to_owned(), "a".to_owned()], ..text(24) }),
        ("until the end", TextJob { ignore_eos: false, sampling: sampled, ..text(64) }),
        ("with its prompt", TextJob { prompt_logprobs: Some(2), ..text(4) }),
    ];
    let mut worst = 0.0_f64;
    for prompt in prompts() {
        for (what, job) in &jobs {
            let request = Request::Text(job.clone());
            let got = both.mistral.answer(&prompt, &request);
            let want = both.native.answer(&prompt, &request);
            worst = worst.max(assert_same(&got, &want, &format!("{what} after {} tokens", prompt.len())));
        }
    }
    println!("log-probabilities differ by at most {worst:e}");
}

#[test]
fn scores_of_targets_match_the_native_engine() {
    let (_folder, both) = tiny();
    let values = (3..13).map(|id| (id, f64::from(id - 3)));
    // An end-of-sequence token in the middle does not end the target.
    let job = ScoreJob {
        target: [5, 6, 2, 13, 7, 1, 2].map(Token::from).to_vec(),
        number_tokens: Arc::new(NumberTokens::new(values)),
        losses: Vec::new(),
        digits: false,
    };
    for prompt in prompts() {
        let request = Request::Score(job.clone());
        let got = both.mistral.answer(&prompt, &request);
        let want = both.native.answer(&prompt, &request);
        assert_same(&got, &want, &format!("after {} tokens", prompt.len()));
    }
}

#[test]
fn number_distributions_match_the_native_engine() {
    let (_folder, both) = tiny();
    let sampled = NumberMethod::sample(16, 3);
    for prompt in prompts() {
        for method in [tree(100).method, sampled.clone(), NumberMethod::Beam { beams: 4 }] {
            let job = NumberJob { method, ..tree(100) };
            let got = both.mistral.number(&prompt, &job);
            let want = both.native.number(&prompt, &job);
            assert_eq!((got.nodes, got.truncated), (want.nodes, want.truncated));
            let found = !want.distribution.leaves().is_empty();
            assert!(found || job.method == sampled, "no number");
            assert_same_numbers(&got, &want, &format!("{:?} after {} tokens", job.method, prompt.len()));
        }
    }
}

#[test]
fn the_model_info_matches_the_native_engine() {
    let (_folder, both) = tiny();
    let got = both.mistral.info();
    let want = both.native.info();
    let backend = got.backend;
    // mistral.rs returns logits only.
    let want =
        ntl_core::contract::ModelInfo { backend, kv_cache_dtype: None, hidden_states: None, ..want.clone() };
    assert_eq!(*got, want);
    assert_eq!(got.context_tokens_max, Some(tiny::POSITIONS));
}

#[test]
fn weights_quantised_at_load_give_almost_the_same_answers() {
    let (folder, both) = tiny();
    let quantised = Served::folder(folder.path(), Some("q8_0"));
    assert_eq!((quantised.info().backend, &quantised.info().dtype), (Backend::MistralRs, &Dtype::Q8_0));
    let request = Request::Text(text(1));
    let logprob = |served: &Served| crate::support::parts(&served.answer(&[1, 4, 16, 5], &request)).1[0];
    let off = (logprob(&quantised) - logprob(&both.native)).abs();
    assert!(off > 0.0 && off < 0.1, "{off}");
}

#[test]
fn checkpoints_that_mistralrs_cannot_load_are_rejected_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_folder(folder.path());
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let load = || ntl_mistralrs::load_folder(&files, None, LoadOptions::default());
    let refusal = || load().err().unwrap().to_string();
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    std::fs::write(
        folder.path().join("config.json"),
        config.replace("\"hidden_size\":64", "\"hidden_size\":96"),
    )
    .unwrap();
    assert!(refusal().contains("mistral.rs"), "{}", refusal());
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert!(refusal().contains("mistral.rs"), "{}", refusal());
}

#[test]
#[cfg_attr(not(shared_fixtures), ignore = "needs ../shared")]
fn trained_checkpoints_answer_like_the_native_engine() {
    for name in ["llama-ce", "llama-ntl"] {
        let both = Both::open(&shared(name));
        let (mut texts, mut numbers) = (0.0_f64, 0.0_f64);
        for prompt in ["Question: What is 12 + 7? Answer:", "2.5 times 4 is", "Tom has 3 apples."] {
            let ids = both.native.tokenizer.encode(prompt, true).unwrap();
            assert_eq!(both.mistral.tokenizer.encode(prompt, true).unwrap(), ids);
            let request = Request::Text(TextJob { prompt_logprobs: Some(1), ..text(24) });
            let got = both.mistral.answer(&ids, &request);
            let want = both.native.answer(&ids, &request);
            texts = texts.max(assert_same(&got, &want, &format!("{name}: {prompt}")));
            let got = both.mistral.number(&ids, &tree(400));
            let want = both.native.number(&ids, &tree(400));
            numbers = numbers.max(assert_same_numbers(&got, &want, &format!("{name}: {prompt}")));
        }
        println!("{name}: log-probabilities differ by at most {texts:e}, numbers by {numbers:e}");
    }
}
