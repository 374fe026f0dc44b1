//! The effects of one API key on another one: the delay that its load causes, counted in steps of the model,
//! and its cached prefixes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use ntl_engine::EngineLimits;
use ntl_server::app;
use serde_json::{Value, json};

use crate::hooked::Hooked;
use crate::support::{
    Answer, babbles, becomes, call, config, json_request, loaded, metric, metric_becomes, state_of,
};

fn start() -> (Router, Arc<AtomicUsize>) {
    let steps = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&steps);
    let model = Hooked::new(babbles()).on_step(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let models = vec![("scripted", loaded(Box::new(model)))];
    let limits = EngineLimits { step_rows_max: 32, ..EngineLimits::default() };
    let settings = config(&["--api-key=crowd,other"]).http;
    (app::router(state_of(models, settings, limits)), steps)
}

fn request(key: &str, body: &Value) -> Request<Body> {
    let mut request = json_request("/v1/completions", body);
    request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    request
}

/// Steps of the model while the other key's greedy text of 200 tokens is decoded: enough steps that those
/// during HTTP exchanges do not matter.
async fn steps_of_a_greedy_text(app: &Router, steps: &AtomicUsize) -> usize {
    let before = steps.load(Ordering::SeqCst);
    let body = json!({"prompt": "x", "max_tokens": 200, "temperature": 0});
    let Answer { status, text, .. } = call(app, request("other", &body)).await;
    assert_eq!(status, 200, "{text}");
    steps.load(Ordering::SeqCst) - before
}

#[tokio::test]
async fn a_greedy_text_is_answered_within_five_times_its_steps_beside_any_load_of_another_key() {
    let (app, steps) = start();
    let alone = steps_of_a_greedy_text(&app, &steps).await;
    assert_eq!(alone, 200);
    let choices =
        json!({"prompt": ["x", "y"], "n": 128, "max_tokens": 4000, "temperature": 0, "stream": true});
    let trees = json!({"prompt": vec!["x"; 500], "stream": true, "number": {
        "tolerance": 1e-12, "nodes_max": 65_536, "after": "#", "rationales": 2}, "max_tokens": 4000});
    for (name, body) in [("two times 128 choices", choices), ("500 numbers after texts", trees)] {
        let crowd = {
            let app = app.clone();
            let request = request("crowd", &body);
            tokio::spawn(async move { call(&app, request).await.text })
        };
        let running = "ntl_sequences_running{model=\"scripted\"}";
        becomes(name, async || metric(&app, running).await >= 100.0).await;
        let beside = steps_of_a_greedy_text(&app, &steps).await;
        assert!(metric(&app, running).await >= 100.0, "the crowd is there all the while");
        assert!(beside <= 5 * alone, "{beside} steps beside {name}, {alone} alone");
        crowd.abort();
        metric_becomes(&app, running, 0.0).await;
    }
}

#[tokio::test]
async fn api_keys_share_cached_prefixes_only_with_the_flag() {
    let salts_of = async |flags: &[&str]| {
        let salts = Arc::<Mutex<Vec<u64>>>::default();
        let record = Arc::clone(&salts);
        let model =
            Hooked::new(babbles()).on_begin(move |request| record.lock().unwrap().push(request.cache_salt));
        let models = vec![("scripted", loaded(Box::new(model)))];
        let app = app::router(state_of(models, config(flags).http, EngineLimits::default()));
        let text = json!({"prompt": "x", "max_tokens": 1});
        let salted = json!({"prompt": "x", "max_tokens": 1, "cache_salt": "a"});
        for (key, body) in
            [("one", &text), ("one", &text), ("two", &text), ("one", &salted), ("one", &salted)]
        {
            assert_eq!(call(&app, request(key, body)).await.status, 200);
        }
        let mut score = json_request("/v1/score", &json!({"items": [{"prompt": "x", "target": "1"}]}));
        score.headers_mut().insert(header::AUTHORIZATION, "Bearer one".parse().unwrap());
        assert_eq!(call(&app, score).await.status, 200);
        let salts = salts.lock().unwrap().clone();
        <[u64; 6]>::try_from(salts).unwrap()
    };
    let [one, again, two, salted, salted_again, scored] = salts_of(&["--api-key=one,two"]).await;
    assert!(one == again && one == scored && salted == salted_again);
    assert!(one != two && one != salted && two != salted && one != 0);
    let shared = salts_of(&["--api-key=one,two", "--share-prefix-cache"]).await;
    assert_eq!([shared[0], shared[1], shared[2], shared[5]], [0; 4]);
    assert!(shared[3] != 0 && shared[3] == shared[4]);
    assert_eq!(salts_of(&[]).await[..3], [0; 3]);
}
