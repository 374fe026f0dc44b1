//! A GPU whose memory runs out while a cache grows, and adapters that other threads read and drop while a
//! model computes. Without a usable GPU the tests are skipped and print the reason.

#![cfg(feature = "cuda")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and say why they are skipped"
)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use fail::FailScenario;
use ntl_core::contract::{Adapter, BatchModel, ContextRequest, NodeId, OpenedContext, PathRow, Prompt, Row};
use ntl_models::{DeviceChoice, DtypeChoice, LoadOptions, LoadedModel, load, open_device, replayed_steps};
use ntl_text::checkpoint::CheckpointFiles;

/// The failpoint before each tensor of a growth of the cache.
const GROWING: &str = "kv-cache-growth";
/// The failpoint in a step that is recorded as a CUDA graph.
const RECORDING: &str = "cuda-graph-recording";
/// `ENOMEM`.
const OUT_OF_MEMORY: &str = "return(12)";

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn open(device: DeviceChoice) -> LoadedModel {
    let files = CheckpointFiles::folder(&data("tiny/llama-ntl")).unwrap();
    // Without the prefix cache, equal prompts need separate positions.
    let options =
        LoadOptions { device, dtype: DtypeChoice::F32, prefix_bytes_max: 0, ..LoadOptions::default() };
    load(&files, options).unwrap()
}

/// Returns a model on the GPU, or prints why there is none.
fn open_on_gpu() -> Option<LoadedModel> {
    match open_device(DeviceChoice::Cuda(0)) {
        Ok(_) => Some(open(DeviceChoice::Cuda(0))),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn begin(model: &mut dyn BatchModel, adapter: Option<&Adapter>) -> OpenedContext {
    let prompt = Prompt::from((0..20u32).map(|id| 3 + id * 7 % 29).collect::<Vec<_>>());
    model.open(&[ContextRequest { adapter, ..(&prompt).into() }]).unwrap()[0]
}

/// Returns the logits of the row `node` of a context.
fn step(model: &mut dyn BatchModel, opened: OpenedContext, node: u32) -> Vec<f32> {
    let token = if node == 0 { opened.first_token } else { 3 + node * 5 % 13 };
    let path = PathRow::new(node.checked_sub(1).map(NodeId), token);
    model.step(&[Row { context: opened.context, path }]).unwrap().row(0).to_vec()
}

/// Returns the logits of the first rows of a context.
fn steps(model: &mut dyn BatchModel, adapter: Option<&Adapter>, count: u32) -> Vec<f32> {
    let opened = begin(model, adapter);
    let logits = (0..count).flat_map(|node| step(model, opened, node)).collect();
    model.close(opened.context);
    logits
}

fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-3 * want.abs().max(1.0), "{got} instead of {want}");
    }
}

fn read_adapter(of: &LoadedModel) -> Adapter {
    let files = CheckpointFiles::folder(&data("adapters/llama-ntl")).unwrap();
    of.adapters.as_ref().unwrap().open(&files).unwrap().read().unwrap()
}

#[test]
fn steps_after_a_growth_of_the_cache_that_failed_halfway_have_the_logits_of_the_cpu() {
    let scenario = FailScenario::setup();
    let Some(mut on_gpu) = open_on_gpu() else { return scenario.teardown() };
    let want = steps(open(DeviceChoice::Cpu).model.as_mut(), None, 12);
    let model = on_gpu.model.as_mut();
    let opened = begin(model, None);
    let mut got: Vec<f32> = (0..6).flat_map(|node| step(model, opened, node)).collect();
    let replayed = replayed_steps();
    got.extend(step(model, opened, 6));
    assert_eq!(replayed_steps(), replayed + 1, "the shape of the step is not replayed yet");
    // The first layer grows, and the second one does not.
    fail::cfg(GROWING, &format!("1*off->1*{OUT_OF_MEMORY}->off")).unwrap();
    let prompt = Prompt::from(vec![5; 20]);
    let requests = vec![ContextRequest::from(&prompt); 60];
    assert!(model.open(&requests).is_err(), "the cache did not grow");
    got.extend((7..12).flat_map(|node| step(model, opened, node)));
    assert_close(&got, &want);
    scenario.teardown();
}

#[test]
fn an_adapter_that_is_read_while_a_graph_is_recorded_changes_neither() {
    let scenario = FailScenario::setup();
    let Some(mut on_gpu) = open_on_gpu() else { return scenario.teardown() };
    let mut on_cpu = open(DeviceChoice::Cpu);
    let adapter = read_adapter(&on_cpu);
    let want = [None, Some(&adapter)].map(|adapter| steps(on_cpu.model.as_mut(), adapter, 8));
    let reader = on_gpu.adapters.clone().unwrap();
    let read = Arc::new(Mutex::new(Vec::new()));
    let reading = Arc::clone(&read);
    fail::cfg_callback(RECORDING, move || {
        let reader = reader.clone();
        let adapter = thread::spawn(move || {
            let files = CheckpointFiles::folder(&data("adapters/llama-ntl")).unwrap();
            reader.open(&files).unwrap().read().unwrap()
        });
        reading.lock().unwrap().push(adapter.join().unwrap());
    })
    .unwrap();
    let replayed = replayed_steps();
    assert_close(&steps(on_gpu.model.as_mut(), None, 8), &want[0]);
    assert!(replayed_steps() > replayed, "the steps were not replayed");
    fail::remove(RECORDING);
    let read = std::mem::take(&mut *read.lock().unwrap());
    assert!(!read.is_empty(), "no step was recorded");
    for adapter in &read {
        assert_close(&steps(on_gpu.model.as_mut(), Some(adapter), 8), &want[1]);
    }
    scenario.teardown();
}

#[test]
fn an_adapter_may_be_dropped_on_a_thread_without_a_context() {
    let scenario = FailScenario::setup();
    let Some(mut on_gpu) = open_on_gpu() else { return scenario.teardown() };
    let want = steps(open(DeviceChoice::Cpu).model.as_mut(), None, 3);
    let adapter = read_adapter(&on_gpu);
    steps(on_gpu.model.as_mut(), Some(&adapter), 3);
    thread::spawn(move || drop(adapter)).join().unwrap();
    assert_close(&steps(on_gpu.model.as_mut(), None, 3), &want);
    scenario.teardown();
}
