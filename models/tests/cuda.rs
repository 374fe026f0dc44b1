//! Compares models on a GPU with the same models on the CPU. Without a usable GPU the tests are skipped and
//! print the reason.

#![cfg(feature = "cuda")]
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and say why they are skipped"
)]

#[path = "cuda/operations.rs"]
mod operations;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ntl_core::contract::{
    BatchModel, ContextId, ContextRequest, Event, Job, LogitsRequest, LogitsRow, NodeId, NumberJob,
    NumberMethod, PathRow, PrefillChunk, Prompt, Request, Row,
};
use ntl_core::numbers::{Distribution, Softmax};
use ntl_core::sampling::argmax;
use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::causal::{Causal, CausalOptions};
use ntl_models::{
    DeviceChoice, DtypeChoice, KvCacheDtype, LoadOptions, gpu_wait, load, open_device, place, replayed_steps,
};
use ntl_text::checkpoint::CheckpointFiles;

const GPU: DeviceChoice = DeviceChoice::Cuda(0);

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns whether there is a GPU, and prints the reason if there is none. Panics if there is a GPU but it
/// cannot run the kernels.
fn gpu() -> bool {
    let opened = open_device(GPU);
    if let Err(error) = &opened {
        assert!(!error.to_string().contains("kernels"), "{error}");
        println!("skipped: {error}");
    }
    opened.is_ok()
}

fn on(device: DeviceChoice, dtype: DtypeChoice) -> LoadOptions {
    LoadOptions { device, dtype, ..LoadOptions::default() }
}

fn t5(options: LoadOptions) -> Box<dyn BatchModel> {
    let archive = std::fs::read(data("../server/demo/t5-ntl-was.tar.gz")).unwrap();
    load(&CheckpointFiles::archive("demo", &archive).unwrap(), options).unwrap().model
}

fn tiny(name: &str, options: LoadOptions) -> Box<dyn BatchModel> {
    load(&CheckpointFiles::folder(&data("tests/data/tiny").join(name)).unwrap(), options).unwrap().model
}

fn causal(name: &str, options: LoadOptions) -> Box<dyn BatchModel> {
    let files = CheckpointFiles::folder(&data("tests/data/causal").join(name)).unwrap();
    let causal = CausalOptions { tokens: 36, place: place(&options).unwrap(), prefix_bytes_max: 1 << 20 };
    Box::new(Causal::load(&files, &causal).unwrap())
}

fn row(context: ContextId, parent: Option<u32>, token: u32) -> Row {
    Row { context, path: PathRow::new(parent.map(NodeId), token) }
}

/// Logits of trees of different sizes under prompts of different lengths.
fn logits(model: &mut dyn BatchModel) -> Vec<f32> {
    let long: Vec<u32> = (0..40u32).map(|id| 3 + id * 7 % 29).collect();
    let prompts: [Prompt; 3] = [long.clone().into(), long[..35].to_vec().into(), vec![9, 4, 11].into()];
    let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
    let mut rows = Vec::new();
    for (index, opened) in opened.iter().enumerate() {
        rows.push(row(opened.context, None, opened.first_token));
        let parents = [0, 0, 1, 2, 3, 1].into_iter().zip(5..).take(2 + 2 * index);
        rows.extend(parents.map(|(parent, token)| row(opened.context, Some(parent), token)));
    }
    let logits = model.step(&rows).unwrap();
    (0..logits.rows()).flat_map(|index| logits.row(index).to_vec()).collect()
}

/// Logits of a chain of 70 rows in one step, like a long target to score, then of a tree of 70 rows in the
/// next step.
fn logits_of_many_rows(model: &mut dyn BatchModel) -> Vec<f32> {
    let prompt: Prompt = (0..9u32).map(|id| 3 + id * 7 % 29).collect::<Vec<_>>().into();
    let opened = model.open(&[(&prompt).into()]).unwrap()[0];
    let token = |at: u32| 3 + at * 11 % 29;
    let chain = (0..70u32).map(|at| {
        row(opened.context, at.checked_sub(1), if at == 0 { opened.first_token } else { token(at) })
    });
    let tree = (0..70u32).map(|at| row(opened.context, Some(at / 2 * 2), token(at + 1)));
    let mut all = Vec::new();
    for rows in [chain.collect::<Vec<_>>(), tree.collect()] {
        let logits = model.step(&rows).unwrap();
        all.extend((0..logits.rows()).flat_map(|index| logits.row(index).to_vec()));
    }
    all
}

/// Logits of two steps, of one context and of eight.
fn logits_of_one_and_of_eight(model: &mut dyn BatchModel) -> Vec<f32> {
    let prompt = |length| Prompt::from((0..length).map(|id| 3 + id * 7 % 29).collect::<Vec<u32>>());
    let mut all = Vec::new();
    for count in [1, 8] {
        let prompts: Vec<Prompt> = (0..count).map(|index| prompt(3 + 6 * index)).collect();
        let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
        for (parent, token) in [(None, None), (Some(0), Some(5))] {
            let next = opened.iter().map(|at| row(at.context, parent, token.unwrap_or(at.first_token)));
            let logits = model.step(&next.collect::<Vec<_>>()).unwrap();
            all.extend((0..logits.rows()).flat_map(|index| logits.row(index).to_vec()));
        }
        opened.iter().for_each(|at| model.close(at.context));
    }
    all
}

/// Logits after a prompt whose attention is computed in two parts. The cache grows for a second prompt.
fn logits_behind_a_long_prompt(model: &mut dyn BatchModel) -> Vec<f32> {
    let prompt: Prompt = (0..600u32).map(|id| 3 + id * 7 % 29).collect::<Vec<_>>().into();
    let [first, second] = [(); 2].map(|()| model.open(&[(&prompt).into()]).unwrap()[0]);
    let rows = [first, second].map(|opened| row(opened.context, None, opened.first_token));
    let logits = model.step(&rows).unwrap();
    [logits.row(0), logits.row(1)].concat()
}

/// Log-probabilities of all tokens after a prompt and after each of `tokens`, which follow it.
fn log_probabilities(model: &mut dyn BatchModel, tokens: &[u32]) -> Vec<f64> {
    let prompt: Prompt = vec![125, 19, 3, 55, 1].into();
    let opened = model.open(&[(&prompt).into()]).unwrap()[0];
    let mut all = Vec::new();
    for (node, token) in (0u32..).zip(std::iter::once(&opened.first_token).chain(tokens)) {
        let logits = model.step(&[row(opened.context, node.checked_sub(1), *token)]).unwrap();
        let softmax = Softmax::new(logits.row(0)).unwrap();
        all.extend((0..logits.row(0).len() as u32).map(|id| softmax.log_probability(id)));
    }
    all
}

fn assert_close(
    name: &str,
    of: fn(&mut dyn BatchModel) -> Vec<f32>,
    open: impl Fn(LoadOptions) -> Box<dyn BatchModel>,
) {
    let on = |device| open(on(device, DtypeChoice::F32));
    let want = of(on(DeviceChoice::Cpu).as_mut());
    let got = of(on(GPU).as_mut());
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() < 1e-3 * want.abs().max(1.0), "{name}: {got} instead of {want}");
    }
}

#[test]
fn a_t5_in_f32_gives_the_logits_of_the_cpu() {
    if gpu() {
        assert_close("t5", logits, t5);
        assert_close("t5", logits_of_many_rows, t5);
        assert_close("t5", logits_behind_a_long_prompt, t5);
    }
}

#[test]
fn tiny_models_of_other_families_in_f32_give_the_logits_of_the_cpu() {
    if gpu() {
        for name in ["t5-v11", "t5gemma", "t5gemma2", "qwen3", "granite"] {
            assert_close(name, logits, |options| tiny(name, options));
            assert_close(name, logits_of_many_rows, |options| tiny(name, options));
        }
        // Their answers have few tokens and positions.
        for name in ["regresslm-hf-p10", "regresslm-pt"] {
            assert_close(name, logits, |options| tiny(name, options));
        }
    }
}

#[test]
fn a_t5_in_sixteen_bits_gives_about_the_log_probabilities_of_the_cpu() {
    if gpu() {
        // The tokens are fixed. Generated texts would differ for good after the first token whose choice is
        // close.
        let tokens = [314, 19, 209, 1773, 5, 31, 7, 204, 12, 8, 96];
        let want = log_probabilities(t5(on(DeviceChoice::Cpu, DtypeChoice::F32)).as_mut(), &tokens);
        for (dtype, off_max) in [(DtypeChoice::Auto, 0.1), (DtypeChoice::Bf16, 0.1), (DtypeChoice::F16, 0.01)]
        {
            let got = log_probabilities(t5(on(GPU, dtype)).as_mut(), &tokens);
            let off =
                got.iter().zip(&want).map(|(got, want)| (got - want).abs()).sum::<f64>() / want.len() as f64;
            println!("{dtype:?}: log-probabilities differ by {off} on average");
            assert!(got.len() == want.len() && off < off_max, "{dtype:?}: off by {off}");
        }
    }
}

/// Compares the logits of a model on a GPU and on the CPU, both with keys and values in fp8.
fn assert_same_in_fp8(
    name: &str,
    of: fn(&mut dyn BatchModel) -> Vec<f32>,
    open: impl Fn(LoadOptions) -> Box<dyn BatchModel>,
) {
    let on = |device, kv_cache_dtype| open(LoadOptions { kv_cache_dtype, ..on(device, DtypeChoice::F32) });
    let want = of(on(DeviceChoice::Cpu, KvCacheDtype::Fp8).as_mut());
    let got = of(on(GPU, KvCacheDtype::Fp8).as_mut());
    let exact = of(on(DeviceChoice::Cpu, KvCacheDtype::Auto).as_mut());
    let root_mean_square = |others: &[f32]| {
        let squares = got.iter().zip(others).map(|(got, other)| (got - other).powi(2)).sum::<f32>();
        (squares / got.len() as f32).sqrt()
    };
    let (off, rounded) = (root_mean_square(&want), root_mean_square(&exact));
    println!("{name}: {off} from the CPU in fp8, {rounded} from the CPU in f32");
    // A key or value between two fp8 numbers may be rounded to the other one.
    assert!(got.len() == want.len() && off < 0.1 * rounded, "{name}: off by {off}, fp8 itself by {rounded}");
}

#[test]
fn keys_and_values_in_fp8_give_the_logits_of_the_cpu() {
    if gpu() {
        assert_same_in_fp8("t5", logits_of_many_rows, t5);
        assert_same_in_fp8("t5", logits_behind_a_long_prompt, t5);
        for of in [logits, logits_of_one_and_of_eight] {
            assert_same_in_fp8("t5", of, t5);
            for name in ["llama-llama3", "mistral-window", "qwen2", "gpt2-by-depth"] {
                assert_same_in_fp8(name, of, |options| causal(name, options));
            }
        }
        for name in ["t5-v11", "t5gemma", "qwen3", "granite"] {
            assert_same_in_fp8(name, logits, |options| tiny(name, options));
        }
    }
}

#[test]
fn keys_and_values_in_fp8_use_half_of_the_memory_and_change_log_probabilities_little() {
    if gpu() {
        let tokens = [314, 19, 209, 1773, 5, 31, 7, 204, 12, 8, 96];
        let want = log_probabilities(t5(on(DeviceChoice::Cpu, DtypeChoice::F32)).as_mut(), &tokens);
        let [mut wide, mut narrow] = [KvCacheDtype::Auto, KvCacheDtype::Fp8]
            .map(|kv_cache_dtype| t5(LoadOptions { kv_cache_dtype, ..on(GPU, DtypeChoice::Bf16) }));
        assert_eq!(wide.cache_cost().node, 2 * narrow.cache_cost().node);
        let [wide, narrow] = [&mut wide, &mut narrow].map(|model| {
            let got = log_probabilities(model.as_mut(), &tokens);
            got.iter().zip(&want).map(|(got, want)| (got - want).abs()).sum::<f64>() / want.len() as f64
        });
        println!("log-probabilities differ by {wide} on average with a cache in bf16, by {narrow} in fp8");
        assert!(narrow < 0.2, "off by {narrow}");
    }
}

#[test]
fn decoder_only_models_in_f32_give_the_logits_of_the_cpu() {
    if gpu() {
        for name in ["llama-llama3", "mistral-window", "qwen2", "gpt2-by-depth"] {
            assert_close(name, logits, |options| causal(name, options));
        }
    }
}

/// Compares the summaries of one step's rows, each with a different [`LogitsRequest`], with the full row of
/// the same step.
fn assert_answers(name: &str, mut model: Box<dyn BatchModel>) {
    let tokens = model.info().tokens;
    let opened = model.open(&[(&Prompt::from(vec![9, 4, 11])).into()]).unwrap()[0];
    let wanting = |wanted| {
        let path = PathRow::new(None, opened.first_token).with_logits(wanted);
        Row { context: opened.context, path }
    };
    let ids: Vec<u32> = (0..tokens as u32).step_by(3).collect();
    let rows =
        [LogitsRequest::Best, LogitsRequest::All, LogitsRequest::Ids(ids.as_slice().into())].map(wanting);
    let logits = model.step(&rows).unwrap();
    let whole = logits.row(1);
    let want = Softmax::new(logits.row(1)).unwrap();
    for (row, ids) in [(0, &[][..]), (2, &ids)] {
        let best = match logits.get(row) {
            LogitsRow::Summary(reduced) => Some(reduced.best_id as usize),
            LogitsRow::Full(_) | LogitsRow::Report(_) => None,
        };
        assert_eq!(best, Some(argmax(&whole[..tokens])), "{name}: a row without all logits");
        let got = Softmax::of(logits.get(row)).unwrap();
        for &id in ids {
            let got = got.probability(id);
            let want = want.probability(id);
            assert!((got - want).abs() < 1e-5, "{name}, id {id}: {got} instead of {want}");
        }
    }
}

/// Logits of greedy steps of one to three contexts with prompts of different lengths, several steps of each
/// number of rows.
fn logits_of_many_steps(model: &mut dyn BatchModel) -> Vec<f32> {
    let mut all = Vec::new();
    for contexts in [1, 2, 1, 3] {
        let prompts: Vec<Prompt> = (1..=contexts)
            .map(|at| (0..7 * at).map(|id| 3 + id * 5 % 29).collect::<Vec<u32>>().into())
            .collect();
        let opened = model.open(&prompts.iter().map(ContextRequest::from).collect::<Vec<_>>()).unwrap();
        for node in 0..7u32 {
            let token = |first| if node == 0 { first } else { 3 + node * 5 % 13 };
            let rows = opened.iter().map(|at| row(at.context, node.checked_sub(1), token(at.first_token)));
            let logits = model.step(&rows.collect::<Vec<_>>()).unwrap();
            all.extend((0..logits.rows()).flat_map(|index| logits.row(index).to_vec()));
        }
        opened.iter().for_each(|at| model.close(at.context));
    }
    all
}

/// Asserts that a model replays steps as graphs, with the logits of the same model without graphs.
fn assert_replayed(name: &str, open: impl Fn(LoadOptions) -> Box<dyn BatchModel>) {
    for options in [on(GPU, DtypeChoice::F32), on(GPU, DtypeChoice::Bf16)] {
        let want = logits_of_many_steps(open(LoadOptions { cuda_graphs: false, ..options }).as_mut());
        // Tests in other threads replay steps, too, so that this is a lower bound.
        let before = replayed_steps();
        let got = logits_of_many_steps(open(options).as_mut());
        assert!(replayed_steps() - before >= 12, "{name}, {:?}: too few replays", options.dtype);
        assert_eq!(got.len(), want.len());
        let largest = want.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        let off = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
        println!("{name}, {:?}: {off} of {largest}", options.dtype);
        // Equal on the fake driver. cuBLAS may add in another order on a device.
        assert!(off <= 0.01 * largest, "{name}, {:?}: off by {off} of {largest}", options.dtype);
    }
}

#[test]
fn steps_that_are_replayed_as_graphs_give_the_logits_of_steps_that_are_not() {
    if gpu() {
        assert_replayed("t5", t5);
        for name in ["t5-v11", "t5gemma", "t5gemma2", "regresslm-hf-p10", "qwen3", "granite"] {
            assert_replayed(name, |options| tiny(name, options));
        }
        for name in ["llama-llama3", "mistral-window", "qwen2", "gpt2-by-depth"] {
            assert_replayed(name, |options| causal(name, options));
        }
    }
}

#[test]
fn summaries_computed_on_the_gpu_agree_with_full_rows() {
    if gpu() {
        for dtype in [DtypeChoice::F32, DtypeChoice::Bf16] {
            assert_answers("t5", t5(on(GPU, dtype)));
            assert_answers("llama", causal("llama-llama3", on(GPU, dtype)));
        }
    }
}

#[test]
fn a_prefill_has_the_time_that_the_gpu_needs_after_the_call() {
    if !gpu() {
        return;
    }
    let mut model = t5(on(GPU, DtypeChoice::F32));
    let prompt: Prompt = vec![125; 40].into();
    let opened = model.begin((&prompt).into()).unwrap();
    let began = Instant::now();
    let chunk = PrefillChunk { context: opened.context, work: opened.prefill.work_left };
    model.prefill(&[chunk]).unwrap();
    let called = began.elapsed();
    let time = model.prefill_time().unwrap();
    println!("a prefill: {called:?} in the call, {time:?} on the GPU");
    assert!(Duration::ZERO < time && time <= began.elapsed(), "{time:?}");
    assert_eq!(model.prefill_time(), None, "each prefill is reported once");
}

#[test]
fn a_step_states_how_long_it_waits_for_the_gpu() {
    if !gpu() {
        return;
    }
    let mut model = t5(on(GPU, DtypeChoice::F32));
    let prompt: Prompt = vec![125; 40].into();
    let opened = model.open(&[(&prompt).into()]).unwrap();
    let (began, before) = (Instant::now(), gpu_wait());
    model.step(&[row(opened[0].context, None, opened[0].first_token)]).unwrap();
    // Tests in other threads wait, too.
    let (waited, step) = (gpu_wait() - before, began.elapsed());
    println!("a step of {step:?} waits {waited:?}");
    assert!(waited > Duration::ZERO);
}

#[test]
fn the_error_names_a_missing_gpu() {
    let error = open_device(DeviceChoice::Cuda(99)).unwrap_err().to_string();
    assert!(error.contains("GPU 99 cannot be used: "), "{error}");
}

/// The distribution of the number after each prompt. All requests are submitted before the first outcome is
/// read.
fn number_distributions(options: LoadOptions) -> Vec<Distribution> {
    let archive = std::fs::read(data("../server/demo/demo.tar.gz")).unwrap();
    let loaded = load(&CheckpointFiles::archive("demo", &archive).unwrap(), options).unwrap();
    let prompts = ["What is 17 + 4?", "What is -3 - 20?", "Calculate 481 + 132."];
    let prompts = prompts.map(|text| loaded.tokenizer.encode(text, true).unwrap());
    let (engine, _) =
        Engine::spawn(loaded.model, loaded.vocabulary, EngineLimits::default(), Arc::new(NoObserver))
            .unwrap();
    let method = NumberMethod::Tree { tolerance: 1e-2, nodes_max: 512, precision: None };
    let answers = prompts.map(|prompt| {
        engine.submit(Job::new(prompt, Request::Number(NumberJob::new(method.clone())))).unwrap()
    });
    let answers = answers.into_iter().map(|mut events| match events.next_blocking() {
        Some(Event::Number(outcome)) => outcome.distribution,
        other => panic!("{other:?}"),
    });
    answers.collect()
}

#[test]
fn a_number_tree_has_the_distribution_of_the_cpu() {
    if gpu() {
        let want = number_distributions(on(DeviceChoice::Cpu, DtypeChoice::F32));
        let got = number_distributions(on(GPU, DtypeChoice::F32));
        for (got, want) in got.iter().zip(&want) {
            assert!((got.mass().closed - want.mass().closed).abs() < 1e-4, "closed mass");
            let got = got.most_probable(3);
            let want = want.most_probable(3);
            assert!(!want.is_empty());
            for (got, want) in got.iter().zip(&want) {
                assert!((got.value - want.value).abs() < 1e-9, "{} instead of {}", got.value, want.value);
                assert!((got.probability - want.probability).abs() < 1e-4, "probability of {}", want.value);
            }
        }
    }
}

/// Runs `check` on the first GPU, or skips it if there is none.
fn over_candle(check: fn(&candle_core::Device)) {
    if gpu() {
        check(&candle_core::Device::new_cuda(0).unwrap());
    }
}

#[test]
fn elementwise_operations_give_the_results_of_the_cpu() {
    over_candle(operations::assert_elementwise);
}

#[test]
fn reductions_and_matmuls_give_the_results_of_the_cpu() {
    over_candle(operations::assert_reductions_and_products);
}

#[test]
fn indexing_and_casts_give_the_results_of_the_cpu() {
    over_candle(operations::assert_indexing_and_casts);
}
