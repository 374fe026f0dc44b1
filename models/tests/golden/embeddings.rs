//! Compares pooled hidden states with those of transformers (`tests/data/embeddings`, made by `make.py`
//! there), and with the heads that read them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use ntl_core::contract::{EmbeddingJob, Event, Job, Pooling, Request, Stack, TextJob};
use ntl_engine::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::Value;

use crate::support::{Fixtures, assert_close, flat, floats, ids};

const LAST: EmbeddingJob = EmbeddingJob { stack: Stack::Decoder, pooling: Pooling::Last };
const DECODERS: [&str; 4] = ["llama-ntl", "qwen3", "granite", "gpt2"];

fn head(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/heads").join(name)
}

/// An engine with a checkpoint.
struct Embedder(Engine);

impl Embedder {
    fn new(folder: &Path) -> Self {
        let files = CheckpointFiles::folder(folder).unwrap();
        let LoadedModel { model, vocabulary, .. } = load(&files, LoadOptions::default()).unwrap();
        Self(Engine::spawn(model, vocabulary, EngineLimits::default(), Arc::new(NoObserver)).unwrap().0)
    }

    fn embed(&self, prompt: &[u32], job: EmbeddingJob) -> Vec<f32> {
        let job = Job::new(prompt.to_vec(), Request::Embedding(job));
        match self.0.submit(job).unwrap().next_blocking() {
            Some(Event::Values(vector)) => vector,
            other => panic!("{other:?}"),
        }
    }
}

fn weight(folder: &Path, name: &str) -> Vec<f32> {
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    flat(&tensors[name].to_dtype(candle_core::DType::F32).unwrap())
}

/// The products of each row of a matrix with a vector.
fn product(matrix: &[f32], vector: &[f32]) -> Vec<f32> {
    let rows = matrix.chunks(vector.len());
    rows.map(|row| row.iter().zip(vector).map(|(a, b)| a * b).sum()).collect()
}

#[test]
fn pooled_hidden_states_match_the_reference() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let golden: Value =
        serde_json::from_slice(&std::fs::read(data.join("embeddings/golden.json")).unwrap()).unwrap();
    for (name, cases) in golden.as_object().unwrap() {
        let embedder = Embedder::new(&data.join(name));
        let stack = embedder.0.info().hidden_states.unwrap().stack;
        for case in cases.as_array().unwrap() {
            for (field, pooling) in [("mean", Pooling::Mean), ("last", Pooling::Last)] {
                let vector = embedder.embed(&ids(&case["ids"]), EmbeddingJob { stack, pooling });
                let length = case["ids"].as_array().unwrap().len();
                assert_close(&vector, &floats(&case[field]), 1e-4, &format!("{name} {length} {field}"));
            }
        }
    }
}

#[test]
fn the_last_hidden_state_of_a_decoder_is_the_one_that_heads_of_transformers_read() {
    for name in ["llama-reward", "mistral-classes", "qwen2-properties", "qwen3-regression", "gpt2-classes"] {
        let folder = head(name);
        let score = weight(&folder, "score.weight");
        let embedder = Embedder::new(&folder);
        let cases: Vec<Value> =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        for case in cases {
            let hidden = embedder.embed(&ids(&case["ids"]), LAST);
            let want = floats(&case["logits"]);
            assert_close(&product(&score, &hidden), &want, 1e-4, &format!("{name} {}", case["text"]));
        }
    }
}

#[test]
fn the_mean_of_encoder_output_is_the_one_that_the_head_of_regresslm_reads() {
    let folder = Fixtures::Tiny.folder("regresslm-hf-head");
    let (matrix, bias) = (weight(&folder, "regression_head.weight"), weight(&folder, "regression_head.bias"));
    let golden = std::fs::read(folder.join("golden/golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let embedder = Embedder::new(&folder);
    for case in golden["cases"].as_array().unwrap() {
        let job = EmbeddingJob { stack: Stack::Encoder, pooling: Pooling::Mean };
        let mean = embedder.embed(&ids(&case["encoder_input_ids"]), job);
        let value = product(&matrix, &mean)[0] + bias[0];
        assert_close(&[value], &[case["value"].as_f64().unwrap() as f32], 1e-3, "the head's value");
    }
}

/// The results of these jobs of one engine, submitted together or one after the other.
fn results(embedder: &Embedder, jobs: &[Job], together: bool) -> Vec<Vec<Event>> {
    let submit = |job: &Job| embedder.0.submit(job.clone()).unwrap();
    if together {
        let submitted: Vec<JobEvents> = jobs.iter().map(submit).collect();
        return submitted.into_iter().map(all).collect();
    }
    jobs.iter().map(|job| all(submit(job))).collect()
}

fn all(mut events: JobEvents) -> Vec<Event> {
    std::iter::from_fn(|| events.next_blocking()).collect()
}

#[test]
fn a_vector_is_bit_identical_alone_and_in_a_batch_with_other_requests() {
    let decoders = DECODERS.map(|name| Fixtures::Tiny.folder(name));
    let encoders = ["llama-reward", "bert-classes", "modernbert-mean", "t5-classes"].map(head);
    let t5 = ["t5-ce", "regresslm-pt", "t5gemma"].map(|name| Fixtures::Tiny.folder(name));
    for folder in decoders.into_iter().chain(encoders).chain(t5) {
        let embedder = Embedder::new(&folder);
        let info = embedder.0.info();
        let hidden = info.hidden_states.unwrap();
        let other = if info.labels.is_some() { Request::Labels } else { Request::Text(TextJob::default()) };
        let mut jobs = Vec::new();
        for length in [1, 2, 7, 40, 100, 3].map(|length| length.min(info.prompt_tokens_max as u32)) {
            let prompt: Vec<u32> = (0..length).map(|index| 3 + (index * 11) % 30).collect();
            for pooling in [Pooling::Mean, Pooling::Last] {
                let job = EmbeddingJob { stack: hidden.stack, pooling };
                jobs.push(Job::new(prompt.clone(), Request::Embedding(job)));
            }
            jobs.push(Job::new(prompt, other.clone()));
        }
        let alone = results(&embedder, &jobs, false);
        assert_eq!(results(&embedder, &jobs, true), alone, "{folder:?}");
        for (job, events) in jobs.iter().zip(&alone) {
            if let (Request::Embedding(_), [Event::Values(vector)]) = (&job.request, &events[..]) {
                assert_eq!(vector.len(), hidden.width, "{folder:?}");
            } else {
                assert!(!matches!(job.request, Request::Embedding(_)), "{folder:?}: {events:?}");
            }
        }
    }
}
