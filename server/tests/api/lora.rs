//! LoRA adapters: models of their own next to their base, loaded and unloaded while the server runs.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::http::{Request, StatusCode, header};
use futures::future::join_all;
use ntl_server::reload::Reloaded;
use ntl_server::serve;
use ntl_server::state::AppState;
use ntl_server::{app, serve::Ended};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::{Answer, call, complete, config, get, json_request, metric, post};

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny").join(name)
}

/// Writes an adapter of rank 2 for modules `[outputs, inputs]`, whose weights follow from `seed`.
fn write_adapter(folder: &Path, seed: u32, base: &str, modules: &[(&str, [usize; 2])]) {
    let mut table = serde_json::Map::new();
    let mut data = Vec::new();
    let mut state = seed;
    for &(module, [outputs, inputs]) in modules {
        for (part, shape) in [("lora_A", [2, inputs]), ("lora_B", [outputs, 2])] {
            let start = data.len();
            for _ in 0..shape[0] * shape[1] {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                data.extend_from_slice(&((state >> 8) as f32 / 8_388_608.0 - 1.0).to_le_bytes());
            }
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            table.insert(format!("base_model.model.{module}.{part}.weight"), entry);
        }
    }
    let header = Value::Object(table).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "base_model_name_or_path": base});
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

const LLAMA: [(&str, [usize; 2]); 2] =
    [("model.layers.0.self_attn.q_proj", [16, 16]), ("lm_head", [316, 16])];
const T5: [(&str, [usize; 2]); 2] = [
    ("encoder.block.1.layer.1.DenseReluDense.wo", [8, 20]),
    ("decoder.block.0.layer.1.EncDecAttention.k", [12, 8]),
];

/// A server of the command line, without its listener.
struct Server {
    state: AppState,
    app: Router,
    admin: Router,
    signal: mpsc::Sender<()>,
    ended: JoinHandle<Result<Ended, serve::ServeError>>,
}

async fn start(flags: &[&str]) -> Server {
    let config = config(&[flags, &["--port", "0"]].concat());
    let listener = serve::listen(&config, None).await.unwrap();
    let state = serve::state(&config).unwrap();
    let (signal, signals) = mpsc::channel(2);
    let ended = tokio::spawn(serve::run(config, state.clone(), listener, signals));
    while !state.models.are_loaded() {
        assert!(!ended.is_finished(), "{:?}", ended.await);
        tokio::task::yield_now().await;
    }
    let (app, admin) = (app::router(state.clone()), app::admin_router(state.clone()));
    Server { state, app, admin, signal, ended }
}

impl Server {
    /// Returns the tokens of a text and their log-probabilities.
    async fn text(&self, model: &str) -> Value {
        let body = json!({"model": model, "prompt": "What is 3 plus 4?", "max_tokens": 6, "logprobs": 1, "temperature": 0,
            "ignore_eos": true});
        let answer = complete(&self.app, body).await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text);
        answer.json()["choices"][0]["logprobs"].clone()
    }

    /// Returns the vectors of a text with both kinds of pooling.
    async fn vectors(&self, model: &str) -> [Value; 2] {
        let of = async |pooling: &str| {
            let body = json!({"model": model, "input": "What is 3 plus 4?", "pooling": pooling});
            let answer = post(&self.app, "/v1/embeddings", body).await;
            assert_eq!(answer.status, 200, "{model}: {}", answer.text);
            answer.json()["data"][0]["embedding"].clone()
        };
        [of("mean").await, of("last").await]
    }

    async fn load(&self, body: Value) -> Answer {
        post(&self.admin, "/v1/load_lora_adapter", body).await
    }

    async fn unload(&self, name: &str) -> Answer {
        post(&self.admin, "/v1/unload_lora_adapter", json!({"lora_name": name})).await
    }

    async fn names(&self) -> Vec<String> {
        let models = get(&self.app, "/v1/models").await.json();
        let id = |model: &Value| model["id"].as_str().unwrap().to_owned();
        models["data"].as_array().unwrap().iter().map(id).collect()
    }

    async fn end(self) {
        let Self { state, app, admin, signal, ended } = self;
        drop((state, app, admin));
        signal.send(()).await.unwrap();
        assert_eq!(ended.await.unwrap().unwrap(), Ended::Drained);
    }
}

fn flag(name: &str, folder: &Path) -> String {
    format!("{name}={}", folder.display())
}

#[tokio::test]
async fn adapters_are_models_next_to_their_base_and_are_computed_together() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two, third] = ["one", "two", "third"].map(|name| folder.path().join(name));
    write_adapter(&one, 1, "org/llama", &LLAMA);
    write_adapter(&two, 2, "/models/llama/", &LLAMA);
    write_adapter(&third, 3, "t5", &T5);
    let flags = [
        "--model",
        &flag("llama", &tiny("llama-ntl")),
        "--model",
        &flag("t5", &tiny("t5-ce")),
        "--adapter",
        one.to_str().unwrap(),
        "--adapter",
        &flag("second", &two),
        "--adapter",
        &flag("t5-adapted", &third),
    ];
    let server = start(&flags).await;
    assert_eq!(server.names().await, ["llama", "t5", "one", "second", "t5-adapted"]);
    let described = get(&server.app, "/v1/models/second").await.json();
    assert_eq!((&described["parent"], &described["root"]), (&json!("llama"), &json!(two.to_str().unwrap())));
    let base = get(&server.app, "/v1/models/llama").await.json();
    assert!(base.get("parent").is_none() && base.get("root").is_none(), "{base}");
    let fingerprint = described["fingerprint"].as_str().unwrap();
    assert!(fingerprint.starts_with(base["fingerprint"].as_str().unwrap()), "{fingerprint}");
    let names = ["llama", "one", "second", "t5", "t5-adapted"];
    let mut alone = Vec::new();
    for name in names {
        alone.push(server.text(name).await);
    }
    for (index, text) in alone.iter().enumerate() {
        assert!(!alone[..index].contains(text), "{}: the adapter changes nothing", names[index]);
    }
    let many = (0..4).flat_map(|_| names).map(|name| server.text(name));
    for (index, text) in join_all(many).await.into_iter().enumerate() {
        assert_eq!(text, alone[index % names.len()], "{}", names[index % names.len()]);
    }
    let mut vectors = Vec::new();
    for name in names {
        vectors.push(server.vectors(name).await);
    }
    for (index, vector) in vectors.iter().enumerate() {
        assert!(!vectors[..index].contains(vector), "{}: the adapter changes no vector", names[index]);
    }
    let many = (0..4).flat_map(|_| names).map(|name| server.vectors(name));
    for (index, found) in join_all(many).await.into_iter().enumerate() {
        assert_eq!(found, vectors[index % names.len()], "{}", names[index % names.len()]);
    }
    let requests = "ntl_requests_total{code=\"200\",model=\"second\",route=\"/v1/completions\"}";
    assert!((metric(&server.app, requests).await - 5.0).abs() < 1e-9);
    let unnamed = complete(&server.app, json!({"prompt": "x"})).await;
    assert_eq!(unnamed.error()["param"], "model");
    server.end().await;
}

#[tokio::test]
async fn adapters_are_loaded_and_unloaded_while_the_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = folder.path().join("allowed");
    write_adapter(&allowed.join("a"), 1, "", &LLAMA);
    write_adapter(&allowed.join("b"), 2, "", &LLAMA);
    write_adapter(&allowed.join("t5"), 2, "", &T5);
    write_adapter(&folder.path().join("outside"), 2, "", &LLAMA);
    std::os::unix::fs::symlink(folder.path().join("outside"), allowed.join("link")).unwrap();
    let model = flag("llama", &tiny("llama-ntl"));
    let from = allowed.to_str().unwrap();
    // An adapter has (16 + 16 + 316 + 16) * 2 weights of 4 bytes: three fit.
    let flags = [
        "--model",
        &model,
        "--adapters-from",
        from,
        "--admin-listen",
        "127.0.0.1:0",
        "--adapter-bytes-max",
        "9000",
    ];
    let server = start(&flags).await;
    let base = server.text("llama").await;
    let loaded = server.load(json!({"lora_name": "a", "lora_path": "a"})).await;
    assert_eq!(
        (loaded.status, &*loaded.text),
        (StatusCode::OK, "Success: LoRA adapter 'a' added successfully.")
    );
    let absolute = json!({"lora_name": "b", "lora_path": allowed.join("b"), "load_inplace": null});
    assert_eq!(server.load(absolute).await.status, 200);
    assert_eq!(server.names().await, ["llama", "a", "b"]);
    let [a, b] = [server.text("a").await, server.text("b").await];
    assert!(a != base && b != base && a != b);
    // The name may be missing as long as one model has no adapter.
    assert_eq!(complete(&server.app, json!({"prompt": "x", "max_tokens": 1})).await.json()["model"], "llama");
    for (body, param, part) in [
        (json!({"lora_name": "a", "lora_path": "b"}), "lora_name", "has the name `a`"),
        (
            json!({"lora_name": "llama", "lora_path": "b", "load_inplace": true}),
            "lora_name",
            "has the name `llama`",
        ),
        (json!({"lora_name": "", "lora_path": "b"}), "lora_name", "must have 1 to 256 bytes"),
        (json!({"lora_name": "c", "lora_path": "../outside"}), "lora_path", "not a directory within"),
        (json!({"lora_name": "c", "lora_path": "link"}), "lora_path", "not a directory within"),
        (json!({"lora_name": "c", "lora_path": "/etc"}), "lora_path", "not a directory within"),
        (json!({"lora_name": "c", "lora_path": "missing"}), "lora_path", "not a directory within"),
        (
            json!({"lora_name": "c", "lora_path": "t5"}),
            "lora_path",
            "the model has no projection `decoder.block.0",
        ),
        (json!({"lora_name": "c", "lora_path": "."}), "lora_path", "has no adapter_config.json"),
    ] {
        let refused = server.load(body.clone()).await;
        let error = refused.error();
        assert_eq!(
            (refused.status, &error["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{body}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    assert_eq!(server.load(json!({"lora_name": "c"})).await.status, 400);
    assert_eq!(server.load(json!({"lora_name": "c", "lora_path": "b"})).await.status, 200);
    let full = server.load(json!({"lora_name": "d", "lora_path": "b"})).await.error();
    assert!(full["message"].as_str().unwrap().contains("(--adapter-bytes-max), 8736 are in use"), "{full}");
    assert_eq!(server.unload("c").await.text, "Success: LoRA adapter 'c' removed successfully.");
    let replaced = json!({"lora_name": "a", "lora_path": "b", "load_inplace": true});
    assert_eq!(server.load(replaced).await.status, 200);
    assert_eq!(server.text("a").await, b);
    assert_eq!(server.unload("a").await.status, 200);
    assert_eq!(server.names().await, ["llama", "b"]);
    let gone = complete(&server.app, json!({"model": "a", "prompt": "x"})).await;
    assert_eq!(
        (gone.status, gone.error()["code"].clone()),
        (StatusCode::NOT_FOUND, json!("model_not_found"))
    );
    assert_eq!(server.unload("a").await.status, 404);
    assert_eq!(server.unload("llama").await.error()["param"], "lora_name");
    // Requests with loaded adapters count as their base model's.
    let label = |model: &str| {
        format!("ntl_requests_total{{code=\"200\",model=\"{model}\",route=\"/v1/completions\"}}")
    };
    assert!((metric(&server.app, &label("llama")).await - 5.0).abs() < 1e-9);
    assert!(metric(&server.app, &label("a")).await.abs() < 1e-9);
    server.end().await;
}

#[tokio::test]
async fn a_request_with_an_unloaded_adapter_finishes() {
    let folder = tempfile::tempdir().unwrap();
    write_adapter(&folder.path().join("a"), 1, "", &LLAMA);
    let model = flag("llama", &tiny("llama-ntl"));
    let from = folder.path().to_str().unwrap();
    let server = start(&["--model", &model, "--adapters-from", from, "--admin-listen", "127.0.0.1:0"]).await;
    let loading = json!({"lora_name": "a", "lora_path": "a"});
    assert_eq!(server.load(loading.clone()).await.status, 200);
    let body = json!({"model": "a", "prompt": "What is 3 plus 4?", "max_tokens": 150, "temperature": 0,
        "ignore_eos": true});
    let want = complete(&server.app, body.clone()).await.json()["choices"][0]["text"].clone();
    let running: Vec<_> = (0..8)
        .map(|_| {
            let (app, body) = (server.app.clone(), body.clone());
            tokio::spawn(async move { complete(&app, body).await })
        })
        .collect();
    // Until a request has reached the engine.
    while get(&server.app, "/get_load").await.json()["load"] == 0
        && !running.iter().all(JoinHandle::is_finished)
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.unload("a").await.status, 200);
    for answer in join_all(running).await {
        let answer = answer.unwrap();
        // A request that was not resolved before the adapter was unloaded is an error of the client.
        assert!(answer.status == 200 || answer.status == 404, "{}", answer.text);
        if answer.status == 200 {
            assert_eq!(answer.json()["choices"][0]["text"], want);
        }
    }
    server.end().await;
}

#[tokio::test]
async fn sighup_reads_adapters_again_that_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    write_adapter(&one, 1, "", &LLAMA);
    write_adapter(&two, 2, "", &LLAMA);
    let model = flag("llama", &tiny("llama-ntl"));
    let [flag_one, flag_two] = [flag("one", &one), flag("two", &two)];
    let server = start(&["--model", &model, "--adapter", &flag_one, "--adapter", &flag_two]).await;
    let reloaded = Reloaded { app: server.state.downgrade(), certificate: None };
    let [first, second] = [server.text("one").await, server.text("two").await];
    write_adapter(&one, 2, "", &LLAMA);
    assert_eq!(server.text("one").await, first);
    reloaded.reload();
    assert_eq!([server.text("one").await, server.text("two").await], [second.clone(), second.clone()]);
    assert_eq!(server.names().await, ["llama", "one", "two"]);
    std::fs::write(one.join("adapter_model.safetensors"), b"broken").unwrap();
    std::fs::remove_dir_all(&two).unwrap();
    reloaded.reload();
    assert_eq!([server.text("one").await, server.text("two").await], [second.clone(), second]);
    server.end().await;
}

#[tokio::test]
async fn only_the_operators_port_loads_adapters_and_only_if_it_is_allowed_to() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().to_str().unwrap();
    let body = json!({"lora_name": "a", "lora_path": "a"});
    let server =
        start(&["--adapters-from", from, "--admin-listen", "127.0.0.1:0", "--api-key", "secret"]).await;
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        assert_eq!(post(&server.admin, path, body.clone()).await.status, 401);
        let mut request: Request<_> = json_request(path, &body);
        request.headers_mut().insert(header::AUTHORIZATION, "Bearer secret".parse().unwrap());
        assert_eq!(call(&server.admin, request).await.status, 400);
        assert_eq!(post(&server.app, path, body.clone()).await.status, 404);
    }
    server.end().await;
    let server = start(&["--admin-listen", "127.0.0.1:0"]).await;
    assert_eq!(server.load(body).await.status, 404);
    server.end().await;
}
