//! `/v1/chat/completions`: shapes, templates, refusals, streams.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use ntl_core::contract::BatchModel;
use ntl_core::scripted::ScriptedModel;
use ntl_engine::EngineLimits;
use ntl_models::LoadedModel;
use ntl_server::app;
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::support::{self, Answer, EOS, ids, logits, piece, post, says, scripted, server, state_of};

pub(crate) const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}\
    {% if messages[0].role == 'assistant' %}{{ raise_exception('begin with a question') }}{% endif %}\
    {% if add_generation_prompt %}A:{% endif %}";

/// The tests' tokenizer with a chat template.
pub(crate) fn tokenizer_with(template: &str) -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let files = support::checkpoint();
    for name in ["spiece.model", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"] {
        if let Some(bytes) = files.read(name).unwrap() {
            std::fs::write(folder.path().join(name), &*bytes).unwrap();
        }
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(Path::new(folder.path())).unwrap()).unwrap())
}

/// A server of a decoder-only model with a context of 64 tokens, and the prompts that it saw.
pub(crate) fn chatting(mut script: ntl_core::scripted::Script) -> (Router, Arc<Mutex<Vec<Vec<u32>>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let model = scripted(Box::new(move |prompt, path| {
        record.lock().unwrap().push(prompt.to_vec());
        script(prompt, path)
    }));
    let model = model.with_info(|info| {
        info.encoder_decoder = false;
        info.context_tokens_max = Some(64);
    });
    let LoadedModel { model, vocabulary, .. } = support::loaded(Box::new(model));
    let loaded = LoadedModel { model, vocabulary, tokenizer: tokenizer_with(TEMPLATE), adapters: None };
    let state = state_of(vec![("chatty", loaded)], crate::support::settings(), EngineLimits::default());
    (app::router(state), seen)
}

async fn chat(app: &Router, body: Value) -> Answer {
    post(app, "/v1/chat/completions", body).await
}

fn question() -> Value {
    json!([{"role": "user", "content": "what is 1 + 1"}])
}

#[tokio::test]
async fn an_answer_has_the_shape_of_the_api_and_the_prompt_of_the_template() {
    let (app, seen) = chatting(says("12"));
    let answer = chat(&app, json!({"messages": question(), "seed": 1, "temperature": 0})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let mut body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"), "{body}");
    assert!(body["created"].as_u64().unwrap() > 1_600_000_000, "{body}");
    (body["id"], body["created"]) = (json!("id"), json!(0));
    let prompt = ids("user: what is 1 + 1 A:");
    assert_eq!(seen.lock().unwrap()[0], prompt);
    let completion = body["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(
        body,
        json!({"id": "id", "object": "chat.completion", "created": 0, "model": "chatty",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": " 12", "refusal": null},
                "logprobs": null, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt.len(), "completion_tokens": completion,
                "total_tokens": prompt.len() as u64 + completion}})
    );
}

#[tokio::test]
async fn a_stream_put_together_is_the_answer() {
    let (app, _) = chatting(says("7 8"));
    let body = json!({"messages": question(), "temperature": 0, "stream": true, "n": 2, "logprobs": true,
        "top_logprobs": 1, "stream_options": {"include_usage": true}});
    let chunks = chat(&app, body.clone()).await.chunks();
    let mut texts = [String::new(), String::new()];
    let mut roles = 0;
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for choice in chunk["choices"].as_array().unwrap() {
            let delta = &choice["delta"];
            texts[choice["index"].as_u64().unwrap() as usize]
                .push_str(delta["content"].as_str().unwrap_or(""));
            roles += usize::from(delta["role"] == "assistant");
        }
    }
    assert_eq!((texts, roles), ([" 7 8".to_owned(), " 7 8".to_owned()], 2));
    let (last, ends) =
        (chunks.last().unwrap(), |chunk: &&Value| chunk["choices"][0]["finish_reason"] == "stop");
    assert_eq!(chunks.iter().filter(ends).count(), 2);
    assert_eq!(last["choices"], json!([]));
    let mut whole = body;
    for field in ["stream", "stream_options"] {
        whole.as_object_mut().unwrap().remove(field);
    }
    let whole = chat(&app, whole).await.json();
    assert_eq!(last["usage"], whole["usage"]);
    let streamed: Vec<&Value> = chunks
        .iter()
        .filter(|chunk| chunk["choices"][0]["index"] == 1)
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().into_iter().flatten())
        .collect();
    let want = whole["choices"][1]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(streamed, want.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn log_probabilities_are_those_of_each_token_best_first() {
    let four = piece("4");
    let five = piece("5");
    let script = move |_: &[u32], path: &[u32]| {
        Ok(if path.is_empty() { logits(&[(four, 0.25), (five, 0.75)]) } else { logits(&[(EOS, 1.0)]) })
    };
    let (app, _) = chatting(Box::new(script));
    let body = json!({"messages": question(), "logprobs": true, "top_logprobs": 2, "temperature": 0});
    let answer = chat(&app, body).await.json();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(answer["choices"][0]["logprobs"]["refusal"], Value::Null);
    let first = &tokens[0];
    assert_eq!((first["token"].as_str(), &first["bytes"]), (Some("5"), &json!([53])));
    assert!(support::close(&first["logprob"], 0.75_f64.ln()), "{first}");
    let top: Vec<_> = first["top_logprobs"].as_array().unwrap().iter().map(|top| &top["token"]).collect();
    assert_eq!(top, ["5", "4"]);
    assert!(support::close(&first["top_logprobs"][1]["logprob"], 0.25_f64.ln()), "{first}");
}

/// Two tokens that read alike (a byte and a letter), a part of a character, and a token whose name looks like
/// one.
const BYTE_FALLBACK: &str = r#"{"version": "1.0", "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null, "truncation": null, "padding": null, "added_tokens": [],
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "WordLevel", "unk_token": "u",
        "vocab": {"u": 0, "</s>": 1, "A": 2, "<0x41>": 3, "<0xE2>": 4, "bytes:\\xe2": 5}}}"#;

#[tokio::test]
async fn alternatives_that_read_alike_are_all_reported_with_the_bytes_of_their_tokens() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("tokenizer.json", BYTE_FALLBACK), ("chat_template.jinja", TEMPLATE)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let tokenizer = Arc::new(Tokenizer::open(&CheckpointFiles::folder(folder.path()).unwrap()).unwrap());
    let script = |_: &[u32], path: &[u32]| {
        let first =
            [f64::NEG_INFINITY, f64::NEG_INFINITY, 0.3_f64.ln(), 0.4_f64.ln(), 0.2_f64.ln(), 0.1_f64.ln()];
        let end = [f64::NEG_INFINITY, 0.0].into_iter().chain([f64::NEG_INFINITY; 4]);
        let logits = if path.is_empty() { first.to_vec() } else { end.collect() };
        Ok(logits.into_iter().map(|logit| logit as f32).collect())
    };
    let model = ScriptedModel::new(6, Box::new(script)).with_info(|info| info.encoder_decoder = false);
    let vocabulary = ntl_text::vocabulary(&tokenizer, model.info());
    let loaded = LoadedModel { model: Box::new(model), vocabulary, tokenizer, adapters: None };
    let state = state_of(vec![("bytes", loaded)], crate::support::settings(), EngineLimits::default());
    let app = app::router(state);
    for stream in [false, true] {
        let body = json!({"messages": question(), "logprobs": true, "top_logprobs": 4, "temperature": 0,
            "stream": stream});
        let answer = chat(&app, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = if stream { answer.chunks().remove(0) } else { answer.json() };
        let top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"].as_array().unwrap().clone();
        let shown: Vec<_> = top.iter().map(|top| (top["token"].as_str().unwrap(), &top["bytes"])).collect();
        let want = [
            ("A", &json!([0x41])),
            ("A", &json!([0x41])),
            ("bytes:\\xe2", &json!([0xE2])),
            ("bytes:\\xe2", &json!(b"bytes:\\xe2")),
        ];
        assert_eq!(shown, want);
        for (top, probability) in top.iter().zip([0.4_f64, 0.3, 0.2, 0.1]) {
            assert!(support::close(&top["logprob"], probability.ln()), "{top}");
        }
    }
}

#[tokio::test]
async fn a_decoder_only_model_continues_an_empty_prompt() {
    let (app, seen) = chatting(says("1"));
    for prompt in [json!(""), json!([[]])] {
        let answer = post(&app, "/v1/completions", json!({"prompt": prompt, "temperature": 0})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let error = post(&server(says("1")), "/v1/completions", json!({"prompt": ""})).await;
    assert_eq!(error.error()["message"], "`prompt` must not be empty");
    assert_eq!(seen.lock().unwrap().last(), Some(&Vec::new()));
}

#[tokio::test]
async fn a_chat_can_be_asked_for_a_number() {
    let (app, _) = chatting(says("42"));
    let answer = chat(&app, json!({"messages": question(), "number": {"objective": "mode"}})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["message"]["content"], "42");
    assert!(support::close(&choice["number"]["mode"], 42.0), "{choice}");
}

#[tokio::test]
async fn an_answer_may_fill_the_context_and_no_more() {
    let (app, seen) = chatting(support::babbles());
    let answer = chat(&app, json!({"messages": question()})).await.json();
    let prompt = seen.lock().unwrap()[0].len() as u64;
    assert_eq!(answer["usage"]["completion_tokens"].as_u64(), Some(64 - prompt));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let error = chat(&app, json!({"messages": question(), "max_completion_tokens": 64})).await;
    assert_eq!((error.status.as_u16(), &error.error()["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(error.error()["param"], "max_tokens");
}

#[tokio::test]
async fn without_a_template_or_against_it_the_answer_is_400_and_says_why() {
    let error = chat(&server(says("1")), json!({"messages": question()})).await;
    assert_eq!(error.status, 400);
    let message = error.error()["message"].as_str().unwrap().to_owned();
    let want = "the checkpoint of this model has no chat template; use /v1/completions, or start the server with one \
                (--chat-template)";
    assert_eq!(message, want);
    let (app, _) = chatting(says("1"));
    let error = chat(&app, json!({"messages": [{"role": "assistant", "content": "x"}]})).await;
    assert_eq!((error.status.as_u16(), &error.error()["param"]), (400, &json!("messages")));
    let message = error.error()["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "the chat template rejects the conversation: begin with a question");
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let (app, _) = chatting(says("1"));
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": question(), "logprobs": 5}), "logprobs"),
        (json!({"messages": question(), "top_logprobs": 5}), "top_logprobs"),
        (json!({"messages": question(), "temperature": 3}), "temperature"),
        (json!({"messages": question(), "temperature": "hot"}), "temperature"),
        (json!({"messages": question(), "n": 0}), "n"),
        (json!({"messages": image}), "messages[0].content[0].type"),
    ] {
        let answer = chat(&app, body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        assert_eq!(answer.error()["param"], param, "{body}: {}", answer.text);
    }
}

#[tokio::test]
async fn echo_repeats_the_last_message_if_the_assistant_wrote_it() {
    let (app, _) = chatting(says("12"));
    let begun = json!([{"role": "user", "content": "1"}, {"role": "assistant", "content": "it is"}]);
    for (messages, want) in [(begun.clone(), "it is 12"), (question(), " 12")] {
        let body = json!({"messages": messages, "temperature": 0, "echo": true, "n": 2});
        let whole = chat(&app, body.clone()).await.json();
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let chunks = chat(&app, streamed).await.chunks();
        for index in [0, 1] {
            assert_eq!(whole["choices"][index]["message"]["content"], want);
            let own = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
            let text: String =
                own.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
            assert_eq!(text, want);
        }
    }
    let answer = chat(&app, json!({"messages": begun, "echo": true, "number": true})).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("echo")));
}

#[tokio::test]
async fn a_prompt_and_its_answers_are_reported_as_token_ids_and_log_probabilities() {
    let (app, _) = chatting(says("12"));
    let prompt = ids("user: what is 1 + 1 A:");
    let body = json!({"messages": question(), "temperature": 0, "return_token_ids": true, "n": 2});
    let whole = chat(&app, body.clone()).await.json();
    assert_eq!(whole["prompt_token_ids"], json!(prompt));
    assert_eq!(whole["prompt_logprobs"], Value::Null);
    let mut answer = ids("12");
    answer.push(EOS);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let chunks = chat(&app, streamed).await.chunks();
    for index in [0, 1] {
        assert_eq!(whole["choices"][index]["token_ids"], json!(answer));
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let joined: Vec<&Value> = own.filter_map(|choice| choice["token_ids"].as_array()).flatten().collect();
        assert_eq!(json!(joined), json!(answer));
    }
    let prompts: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["prompt_token_ids"]).filter(|ids| !ids.is_null()).collect();
    assert_eq!(prompts, [&json!(prompt)], "once in a stream");
    let mut scored = body;
    scored["prompt_logprobs"] = json!(1);
    let positions = chat(&app, scored.clone()).await.json()["prompt_logprobs"].take();
    let positions = positions.as_array().unwrap();
    assert_eq!((positions.len(), &positions[0]), (prompt.len(), &Value::Null));
    for (id, position) in prompt.iter().zip(positions).skip(1) {
        let token = &position[&id.to_string()];
        assert!(token["logprob"].is_number() && token["decoded_token"].is_string(), "{position}");
    }
    scored["stream"] = json!(true);
    let answer = chat(&app, scored).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!("prompt_logprobs")));
}

#[tokio::test]
async fn the_last_message_is_continued_and_the_effort_is_a_variable_of_the_template() {
    let (app, seen) = chatting(says("12"));
    let messages = json!([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2 +"}]);
    let body = json!({"messages": messages, "continue_final_message": true, "temperature": 0, "echo": true});
    let answer = chat(&app, body.clone()).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "2 + 12");
    assert_eq!(*seen.lock().unwrap().first().unwrap(), ids("user: 1 assistant: 2 +"));
    let mut both = body;
    both["add_generation_prompt"] = json!(true);
    for (body, param) in [
        (both, "continue_final_message"),
        (json!({"messages": messages, "reasoning_effort": "huge"}), "reasoning_effort"),
    ] {
        let answer = chat(&app, body).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.error()["param"]),
            (400, &json!(param)),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn a_conversation_is_tokenized_as_a_chat_reads_it() {
    let (app, seen) = chatting(says("12"));
    let tokens = async |body: Value| {
        let answer = post(&app, "/tokenize", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["tokens"].take()
    };
    let want = tokens(json!({"messages": question()})).await;
    chat(&app, json!({"messages": question()})).await;
    assert_eq!(want, json!(seen.lock().unwrap()[0]));
    let begun = json!([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2 +"}]);
    let begun = json!({"messages": begun, "continue_final_message": true});
    assert_eq!(tokens(begun).await, json!(ids("user: 1 assistant: 2 +")));
    let mut special = ids("user: what is 1 + 1 A:");
    special.push(EOS);
    assert_eq!(tokens(json!({"messages": question(), "add_special_tokens": true})).await, json!(special));
    for (body, param) in [
        (json!({"messages": question(), "prompt": "x"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"prompt": "x", "add_generation_prompt": true}), "add_generation_prompt"),
        (json!({"messages": [{"role": "poet", "content": "x"}]}), "messages[0].role"),
    ] {
        let answer = post(&app, "/tokenize", body).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(param)));
    }
}

#[tokio::test]
async fn special_tokens_are_added_to_a_conversation_only_on_request() {
    let (app, _) = chatting(says("12"));
    let prompt = async |special: Value| {
        let body = json!({"messages": question(), "add_special_tokens": special, "return_token_ids": true});
        chat(&app, body).await.json()["prompt_token_ids"].take()
    };
    let mut want = ids("user: what is 1 + 1 A:");
    assert_eq!(prompt(Value::Null).await, json!(want));
    want.push(EOS);
    assert_eq!(prompt(json!(true)).await, json!(want));
}
