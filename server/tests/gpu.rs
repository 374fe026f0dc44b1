//! The program on a GPU compared with the program on the CPU. Without a usable GPU it is skipped and prints
//! the reason.

#![cfg(feature = "cuda")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and say why they are skipped"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use ntl_models::{DeviceChoice, open_device};
use serde_json::{Value, json};

/// Two sums of f32 in different orders, relative to numbers above 1.
const TOLERANCE: f64 = 1e-4;

/// Bytes in which the small checkpoints answer one short request.
const MEMORY: usize = 800_000;

/// Returns whether there is a GPU, which then has to run kernels. Prints a line if there is none.
fn gpu() -> bool {
    let opened = open_device(DeviceChoice::Cuda(0));
    if let Err(error) = &opened {
        assert!(!error.to_string().contains("kernels"), "{error}");
        println!("skipped: {error}");
    }
    opened.is_ok()
}

/// A small checkpoint as `--model` takes it, under the name `tiny`.
fn tiny(checkpoint: &str) -> String {
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny");
    format!("tiny={}", checkpoints.join(checkpoint).display())
}

/// A server of one small checkpoint called `tiny`. It ends with this value.
struct Server {
    process: Child,
    log: BufReader<ChildStderr>,
    /// The entries of the log until the server was ready.
    startup: Vec<Value>,
    address: String,
}

impl Server {
    /// Returns once the server answers requests.
    fn start(checkpoint: &str, device: &str, environment: &[(&str, String)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-server"));
        command.args(["--model", &tiny(checkpoint), "--device", device, "--dtype", "f32", "--port", "0"]);
        command.args(["--log-format", "json", "--cache-bytes-max", "1000000000"]);
        let mut process = command.envs(environment.iter().cloned()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut server = Self { process, log, startup: Vec::new(), address: String::new() };
        server.startup = server.log_until("ready");
        let listening = server.startup.iter().find(|entry| entry["message"] == "listening").unwrap();
        server.address = listening["address"].as_str().unwrap().to_owned();
        server
    }

    /// The entries of the log up to the next one with this message.
    fn log_until(&mut self, message: &str) -> Vec<Value> {
        let mut entries = Vec::<Value>::new();
        let mut other = String::new();
        while entries.last().is_none_or(|entry| entry["message"] != message) {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the server ended: {other}{entries:?}");
            match serde_json::from_str(&line) {
                Ok(entry) => entries.push(entry),
                // Messages of the loader and the driver.
                Err(_) => other.push_str(&line),
            }
        }
        entries
    }

    /// The status and the body of an answer.
    fn exchange(&self, request: &str, body: &str) -> (u16, String) {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).unwrap();
        connection.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn complete(&self, request: &Value) -> (u16, Value) {
        let (status, body) = self.exchange("POST /v1/completions", &request.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }

    /// The choice of an answer that there has to be.
    fn choice(&self, request: &Value) -> Value {
        let (status, mut answer) = self.complete(request);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0].take()
    }

    /// The metrics of the model's work, except times.
    fn work(&self) -> Vec<String> {
        let (status, metrics) = self.exchange("GET /metrics", "");
        assert_eq!(status, 200);
        let counts = [
            "ntl_prompt_tokens_total",
            "ntl_generation_tokens_total",
            "ntl_finished_total",
            "ntl_batch_rows_sum",
        ];
        let counted = |line: &&str| counts.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0");
        metrics.lines().filter(counted).map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The same texts, and numbers within the tolerance.
fn assert_close(got: &Value, want: &Value, place: &str) {
    match (got, want) {
        (Value::Object(got), Value::Object(want)) => {
            assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{place}");
            want.iter().for_each(|(key, want)| assert_close(&got[key], want, &format!("{place}.{key}")));
        }
        (Value::Array(got), Value::Array(want)) => {
            assert_eq!(got.len(), want.len(), "{place}");
            let both = got.iter().zip(want).enumerate();
            both.for_each(|(index, (got, want))| assert_close(got, want, &format!("{place}[{index}]")));
        }
        (Value::Number(got), Value::Number(want)) => {
            let got = got.as_f64().unwrap();
            let want = want.as_f64().unwrap();
            assert!(
                (got - want).abs() <= TOLERANCE * want.abs().max(1.0),
                "{place}: {got} instead of {want}"
            );
        }
        _ => assert_eq!(got, want, "{place}"),
    }
}

fn greedy(tokens: usize) -> Value {
    json!({"model": "tiny", "prompt": "What is 17 + 4?", "temperature": 0, "max_tokens": tokens, "logprobs": 1})
}

/// The text of an estimate with sampled parts has all digits, and so the rounding of its device.
fn number(nodes_max: usize) -> Value {
    let number = json!({"nodes_max": nodes_max, "sampling": false});
    json!({"model": "tiny", "prompt": "What is 17 + 4?", "number": number})
}

#[test]
fn texts_and_numbers_and_what_is_counted_of_them_are_those_of_the_cpu() {
    if !gpu() {
        return;
    }
    for checkpoint in ["t5-v11", "llama-ntl"] {
        let servers = ["cuda:0", "cpu"].map(|device| Server::start(checkpoint, device, &[]));
        for request in [greedy(12), number(64)] {
            let [got, want] = servers.each_ref().map(|server| server.choice(&request));
            assert_close(&got, &want, checkpoint);
            assert!(want["number"]["value"].is_number() || want["logprobs"]["tokens"][11].is_string());
        }
        let [got, want] = servers.each_ref().map(Server::work);
        assert!(want.len() >= 4, "{want:?}");
        assert_eq!(got, want, "{checkpoint}");
    }
}

#[test]
fn a_server_without_a_request_frees_its_models_without_an_error_of_the_driver() {
    if !gpu() {
        return;
    }
    for checkpoint in ["t5-v11", "llama-ntl"] {
        let mut server = Server::start(checkpoint, "cuda:0", &[]);
        let pid = server.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let mut log = String::new();
        server.log.read_to_string(&mut log).unwrap();
        assert!(server.process.wait().unwrap().success(), "{log}");
        assert!(!log.contains("CUDA"), "{checkpoint}: {log}");
    }
}

#[test]
fn a_gpu_that_is_not_there_ends_the_server_with_the_reason() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ntl-server")).args(["--device", "cuda:99", "--port", "0"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("GPU 99 cannot be used: "), "{log}");
}

/// Deliberate faults of the fake driver, and the kernel that each of them breaks.
const BROKEN_KERNELS: [(&str, &str); 9] = [
    ("wrong:norm_", "norm"),
    ("wrong:activate_", "activation"),
    ("wrong:add_f32", "addition"),
    ("hide:store_kv_", "cache_store"),
    ("wrong:attend_", "slot_attention"),
    ("wrong:add_parts_", "slot_attention"),
    ("wrong:weigh_", "prompt_attention"),
    ("hide:unpack_heads_", "prompt_attention"),
    ("wrong:summarize_", "logits_summary"),
];

#[test]
#[ignore = "needs a driver that a test can break: lab/fake-cuda/check"]
fn a_wrong_kernel_is_turned_off_with_a_warning_and_a_metric_and_answers_stay_right() {
    for checkpoint in ["t5-v11", "llama-ntl"] {
        let number = number(16);
        let on_cpu = Server::start(checkpoint, "cpu", &[]);
        let want = [greedy(4), number.clone()].map(|request| on_cpu.choice(&request));
        let assert_served = |server: &Server, off: &[&str], what: &str| {
            for (request, want) in [greedy(4), number.clone()].iter().zip(&want) {
                assert_close(&server.choice(request), want, what);
            }
            let (_, metrics) = server.exchange("GET /metrics", "");
            let mut found: Vec<&str> = (metrics.lines())
                .filter_map(|line| line.strip_prefix("ntl_gpu_kernel_off{kernel=\""))
                .filter_map(|rest| rest.strip_suffix("\"} 1"))
                .collect();
            found.sort_unstable();
            assert_eq!(found, off, "{what}");
        };
        assert_served(&Server::start(checkpoint, "cuda:0", &[]), &[], "no fault");
        let all = [
            "activation",
            "addition",
            "cache_store",
            "logits_summary",
            "norm",
            "prompt_attention",
            "slot_attention",
        ];
        let composed = [("NTL_KERNELS", "composed".to_owned())];
        assert_served(&Server::start(checkpoint, "cuda:0", &composed), &all, "--kernels composed");
        for (fault, kernel) in BROKEN_KERNELS {
            let server = Server::start(checkpoint, "cuda:0", &[("NTL_FAKE_CUDA_BREAK", fault.to_owned())]);
            let warning = "a kernel is wrong on this GPU and is not used; please report this";
            let warnings = server.startup.iter().filter(|entry| entry["message"] == warning);
            assert_eq!(warnings.map(|entry| &entry["kernel"]).collect::<Vec<_>>(), [kernel], "{fault}");
            assert_served(&server, &[kernel], fault);
        }
    }
}

#[test]
#[ignore = "needs a driver that a test can break: lab/fake-cuda/check"]
fn graphs_that_are_wrong_are_not_used_and_answers_stay_right() {
    const WARNING: &str = "the steps of a model are not replayed as CUDA graphs";
    for checkpoint in ["t5-v11", "llama-ntl"] {
        let want = Server::start(checkpoint, "cpu", &[]).choice(&greedy(30));
        for (variable, value, is_warned) in [
            ("NTL_FAKE_CUDA_BREAK", "graph", true),
            ("NTL_NO_CUDA_GRAPHS", "false", false),
            ("NTL_NO_CUDA_GRAPHS", "true", false),
        ] {
            let mut server = Server::start(checkpoint, "cuda:0", &[(variable, value.to_owned())]);
            assert_close(&server.choice(&greedy(30)), &want, &format!("{checkpoint}, {variable}={value}"));
            let served = server.log_until("POST /v1/completions");
            let mut log = server.startup.iter().chain(&served);
            let warning = log.find(|entry| entry["message"] == WARNING);
            assert_eq!(
                warning.map(|entry| &entry["reason"]),
                is_warned.then_some(&json!("a replay was wrong")),
                "{checkpoint}, {variable}={value}"
            );
        }
    }
}

#[test]
#[ignore = "needs a driver that a test can break: lab/fake-cuda/check"]
fn keys_and_values_in_fp8_need_the_kernels_of_the_cache() {
    let faults = [
        ("NTL_KERNELS", "composed", "cache_store"),
        ("NTL_FAKE_CUDA_BREAK", "wrong:store_kv_f8e4m3", "cache_store"),
        ("NTL_FAKE_CUDA_BREAK", "wrong:attend_f8e4m3_bf16_4", "slot_attention"),
        ("NTL_FAKE_CUDA_BREAK", "hide:pack_heads_f8e4m3_bf16", "prompt_attention"),
    ];
    for (variable, fault, kernel) in faults {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-server"));
        command.args(["--model", &tiny("t5-v11"), "--device", "cuda:0", "--port", "0"]);
        let output = command.args(["--kv-cache-dtype", "fp8"]).env(variable, fault).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{fault}");
        let log = String::from_utf8_lossy(&output.stderr);
        let error = format!("--kv-cache-dtype fp8 needs the kernel {kernel}, which is off");
        assert!(log.contains(&error), "{fault}: {log}");
    }
}

#[test]
#[ignore = "needs a driver that a test can break: lab/fake-cuda/check"]
fn a_gpu_that_fails_ends_the_server_with_an_exit_code_of_its_own() {
    let faults = [
        ("address", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("misaligned", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        ("launch", "CUDA_ERROR_LAUNCH_FAILED"),
        ("ecc", "CUDA_ERROR_ECC_UNCORRECTABLE"),
    ];
    for (fault, error) in faults {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("break");
        let fault = [("NTL_FAKE_CUDA_BREAK", format!("{fault}:{}", file.display()))];
        let mut server = Server::start("llama-ntl", "cuda:0", &fault);
        server.choice(&greedy(4));
        std::fs::write(&file, b"").unwrap();
        let (status, answer) = server.complete(&greedy(4));
        assert_eq!((status, &answer["error"]["code"]), (503, &json!("device_lost")), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(error), "{answer}");
        assert_eq!(server.process.wait().unwrap().code(), Some(3), "{error}");
    }
}

#[test]
#[ignore = "needs a device whose generation a test can choose: lab/fake-cuda/check"]
fn a_gpu_of_a_generation_without_machine_code_compiles_the_kernels() {
    let want = Server::start("t5-v11", "cpu", &[]).choice(&greedy(12));
    // The build has machine code for 9.0, the default of the fake driver.
    for (capability, has_machine_code) in [("90", true), ("110", false)] {
        let server =
            Server::start("t5-v11", "cuda:0", &[("NTL_FAKE_CUDA_CAPABILITY", capability.to_owned())]);
        let opened = server.startup.iter().find(|entry| entry["message"] == "GPU opened").unwrap();
        assert_eq!(opened["machine_code"], json!(has_machine_code), "{opened}");
        assert_close(&server.choice(&greedy(12)), &want, capability);
    }
}

#[test]
#[ignore = "needs a driver whose version a test can choose: lab/fake-cuda/check"]
fn a_driver_that_is_too_old_ends_the_server_with_both_versions() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-server"));
    command.args(["--model", &tiny("t5-v11"), "--device", "cuda:0", "--port", "0"]);
    let output = command.env("NTL_FAKE_CUDA_VERSION", "11080").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr);
    for part in ["GPU 0 cannot be used: ", "driver supports CUDA 11.8", "this program was built with CUDA 1"]
    {
        assert!(log.contains(part), "{log}");
    }
}

#[test]
#[ignore = "needs a device whose memory a test can choose: lab/fake-cuda/check"]
fn memory_that_runs_out_while_a_model_loads_ends_the_server_with_the_reason() {
    // Too little for the weights, then for the first steps.
    for (memory, place) in [(1_000, "tensor `"), (100_000, "the model does not run on this device")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-server"));
        command.args(["--model", &tiny("t5-v11"), "--device", "cuda:0", "--port", "0"]);
        let output = command.env("NTL_FAKE_CUDA_MEMORY", memory.to_string()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let log = String::from_utf8_lossy(&output.stderr);
        let error = log.lines().find(|line| line.starts_with("ntl-server: ")).unwrap();
        assert!(error.contains(place) && error.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    }
}

#[test]
#[ignore = "needs a device whose memory a test can choose: lab/fake-cuda/check"]
fn memory_that_runs_out_fails_the_requests_of_its_step_and_no_other() {
    let memory = [("NTL_FAKE_CUDA_MEMORY", MEMORY.to_string())];
    // The chunks of a prefill depend on time. There is never room for the attention of an encoder, which
    // computes a prompt in one chunk, nor for all prompts that the prefix cache of a decoder-only model
    // keeps.
    let long = |digit: usize, repeats| format!("{digit} ").repeat(repeats);
    let prompts: Vec<String> = (0..120).map(|digit| long(digit, 60)).collect();
    for (checkpoint, prompt) in [("t5-v11", json!(long(1, 500))), ("llama-ntl", json!(prompts))] {
        let mut server = Server::start(checkpoint, "cuda:0", &memory);
        let want = server.choice(&greedy(12));
        let opening = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1});
        // There is no room for this many texts after a few steps.
        let step =
            json!({"model": "tiny", "prompt": "1", "n": 128, "max_tokens": 60, "min_tokens": 60, "seed": 1});
        for (request, failed) in [(opening, "prefill of a batch of prompts failed"), (step, "a step failed")]
        {
            server.log_until("POST /v1/completions");
            let (status, answer) = server.complete(&request);
            assert_eq!(status, 500, "{answer}");
            let log = server.log_until("POST /v1/completions");
            let error =
                log.iter().find(|entry| entry["message"] == failed).unwrap_or_else(|| panic!("{log:?}"));
            assert!(error["error"].as_str().unwrap().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
            assert_eq!(server.choice(&greedy(12)), want);
        }
        assert_eq!(server.exchange("GET /health/ready", "").0, 200);
    }
}
