//! Calls of functions in chats: in every format, guided and not, whole and streamed.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use ntl_core::scripted::ScriptedModel;
use ntl_engine::{CacheBudget, EngineLimits};
use ntl_models::LoadedModel;
use ntl_server::app;
use ntl_server::metrics::Metrics;
use ntl_server::served::ServedModel;
use ntl_server::state::AppState;
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use ntl_text::tools::ToolFormat;
use serde_json::{Value, json};

use crate::chat::chatting;
use crate::support::{self, Answer, post, says, state_of};

/// Writes tools, calls and results as Hermes does.
pub(crate) const HERMES: &str = "{% for tool in tools or [] %}{{ tool | tojson }};{% endfor %}\
    {% for m in messages %}{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}: {{ m.content or '' }}\
    {% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %};{% endfor %}\
    {% if add_generation_prompt %}A:{% endif %}";

/// A tokenizer that can write JSON, with a template and special tokens.
fn tokenizer(template: &str, special: &[&str]) -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/tiny/llama-ntl");
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    let mut file: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    let first = Tokenizer::open(&CheckpointFiles::folder(&folder).unwrap()).unwrap().len();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (index, name) in special.iter().enumerate() {
        added.push(json!({"id": first + index, "content": name, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}));
    }
    let changed = tempfile::tempdir().unwrap();
    std::fs::write(changed.path().join("tokenizer.json"), file.to_string()).unwrap();
    for name in ["config.json", "tokenizer_config.json"] {
        std::fs::write(changed.path().join(name), read(name)).unwrap();
    }
    std::fs::write(changed.path().join("chat_template.jinja"), template).unwrap();
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(changed.path()).unwrap()).unwrap())
}

/// A server of a model that prefers this text, and the prompts that it saw.
pub(crate) struct Speaker {
    pub(crate) app: Router,
    tokenizer: Arc<Tokenizer>,
    prompts: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Speaker {
    pub(crate) fn new(template: &str, special: &[&str], text: &str) -> Self {
        Self::in_format(template, special, text, None)
    }

    /// Creates a speaker on a server with this format of calls in place of the template's.
    fn in_format(template: &str, special: &[&str], text: &str, format: Option<ToolFormat>) -> Self {
        let tokenizer = tokenizer(template, special);
        let eos = tokenizer.eos_id().unwrap();
        // Without the space that begins a text.
        let mut wanted = tokenizer.encode(&format!("){text}"), false).unwrap();
        wanted.drain(..tokenizer.encode(")", false).unwrap().len());
        wanted.push(eos);
        let size = tokenizer.len();
        let prompts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&prompts);
        let script = move |prompt: &[u32], path: &[u32]| {
            if path.is_empty() {
                seen.lock().unwrap().push(prompt.to_vec());
            }
            let mut logits = vec![0.0; size];
            logits[eos as usize] = 1.0;
            logits[wanted[path.len().min(wanted.len() - 1)] as usize] = 20.0;
            Ok(logits)
        };
        let model = ScriptedModel::new(size, Box::new(script)).with_info(|info| {
            info.encoder_decoder = false;
            info.eos_ids = vec![eos];
            info.prompt_tokens_max = 4096;
            info.context_tokens_max = Some(4096);
        });
        let vocabulary =
            ntl_text::vocabulary(&tokenizer, &ntl_core::contract::BatchModel::info(&model).clone());
        let tokenizer_of_model = Arc::clone(&tokenizer);
        let loaded =
            LoadedModel { model: Box::new(model), vocabulary, tokenizer: tokenizer_of_model, adapters: None };
        let state = match format {
            None => state_of(vec![("speaker", loaded)], support::settings(), EngineLimits::default()),
            Some(format) => state_in_format(loaded, format),
        };
        Self { app: app::router(state), tokenizer, prompts }
    }

    pub(crate) async fn chat(&self, more: Value) -> Answer {
        let mut body =
            json!({"messages": [{"role": "user", "content": "x"}], "temperature": 0, "tools": tools()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(&self.app, "/v1/chat/completions", body).await
    }

    /// The text of the last prompt.
    pub(crate) fn prompt(&self) -> String {
        let prompts = self.prompts.lock().unwrap();
        self.tokenizer.decode_tokens(prompts.last().unwrap())
    }
}

/// Returns the state of a server with a model whose calls have this format.
fn state_in_format(loaded: LoadedModel, format: ToolFormat) -> AppState {
    let metrics = Arc::new(Metrics::new().unwrap());
    let state = AppState::new(support::settings(), Arc::clone(&metrics));
    let limits = EngineLimits::default();
    let budget = CacheBudget::new(limits.cache_bytes_max);
    let (model, _) = ServedModel::start("speaker", loaded, limits, &budget, &metrics).unwrap();
    state.models.publish(vec![model.with_tool_format(format)]);
    state
}

fn tools() -> Value {
    let parameters = |values: Value| {
        json!({"type": "object", "properties": {"city": {"enum": values}}, "required": ["city"],
            "additionalProperties": false})
    };
    json!([
        {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": parameters(json!(["Rome"]))}},
        {"type": "function", "function": {"name": "time", "parameters": parameters(json!(["Oslo"]))}}
    ])
}

const CALL: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

/// A message of a whole answer, with its calls as name and arguments, and its finish reason.
fn message(answer: &Answer) -> (Value, Vec<(String, String)>, String) {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let body = answer.json();
    let choice = &body["choices"][0];
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    (choice["message"]["content"].clone(), calls.iter().map(call).collect(), text(&choice["finish_reason"]))
}

fn made(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

#[tokio::test]
async fn a_call_is_separated_from_the_text_and_ends_the_message() {
    let speaker = Speaker::new(HERMES, &[], &format!("I look.\n{CALL}\n{}", CALL.replace("weather", "time")));
    let answer = speaker.chat(json!({})).await;
    let (content, calls, reason) = message(&answer);
    assert_eq!(content.as_str().map(str::trim), Some("I look."));
    let rome = r#"{"city": "Rome"}"#;
    assert_eq!((calls, reason.as_str()), (vec![made("weather", rome), made("time", rome)], "tool_calls"));
    let calls = answer.json()["choices"][0]["message"]["tool_calls"].clone();
    let ids: Vec<&str> = calls.as_array().unwrap().iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert!(ids.iter().all(|id| id.starts_with("call_") && id.len() == 29) && ids[0] != ids[1], "{ids:?}");
    assert_eq!(calls[0]["type"], "function");
    // Without parallel calls, the first one counts.
    let (_, calls, _) = message(&speaker.chat(json!({"parallel_tool_calls": false})).await);
    assert_eq!(calls, [made("weather", rome)]);
    // Without tools, the text is only text.
    for none in [json!({"tools": []}), json!({"tool_choice": "none"}), json!({"tools": null})] {
        let (content, calls, reason) = message(&speaker.chat(none).await);
        assert!(content.as_str().unwrap().contains("<tool_call>"), "{content}");
        assert_eq!((calls.len(), reason.as_str()), (0, "stop"));
        assert!(!speaker.prompt().contains("weather"), "{}", speaker.prompt());
    }
}

#[tokio::test]
async fn a_message_of_calls_alone_has_no_content() {
    let (content, calls, _) = message(&Speaker::new(HERMES, &[], CALL).chat(json!({})).await);
    assert_eq!((content, calls.len()), (Value::Null, 1));
}

/// Puts the deltas of a stream together.
fn joined(chunks: &[Value], index: u64) -> Value {
    let mut content: Option<String> = None;
    let mut calls: Vec<Value> = Vec::new();
    let mut reason = Value::Null;
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        if choice["index"] != index {
            continue;
        }
        assert!(reason.is_null(), "a chunk after the last one: {choice}");
        reason = choice["finish_reason"].clone();
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str() {
            content.get_or_insert_default().push_str(text);
        }
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = part["index"].as_u64().unwrap() as usize;
            if at == calls.len() {
                assert_eq!(part["type"], "function");
                assert!(part["id"].is_string() && part["function"]["name"].is_string(), "{part}");
                calls.push(json!({"name": part["function"]["name"], "arguments": ""}));
            } else {
                assert_eq!(
                    (at, &part["id"], &part["function"]["name"]),
                    (calls.len() - 1, &Value::Null, &Value::Null)
                );
            }
            let arguments = calls[at]["arguments"].as_str().unwrap().to_owned();
            calls[at]["arguments"] = (arguments + part["function"]["arguments"].as_str().unwrap()).into();
        }
    }
    json!({"content": content, "calls": calls, "finish_reason": reason})
}

#[tokio::test]
async fn a_stream_put_together_is_the_message() {
    let two = format!("I look.\n{CALL}\n{CALL} Done.");
    for (text, more) in [
        (two.as_str(), json!({})),
        (CALL, json!({"tool_choice": "required"})),
        (CALL, json!({"tool_choice": "required", "max_tokens": 30})),
        ("No call.", json!({})),
        ("<tool_call>{\"name\": \"weather\", \"argu", json!({})),
    ] {
        let speaker = Speaker::new(HERMES, &[], text);
        let mut streamed = more.clone();
        streamed["stream"] = true.into();
        streamed["n"] = 2.into();
        let chunks = speaker.chat(streamed).await.chunks();
        let answer = speaker.chat(more.clone()).await;
        let (content, calls, reason) = message(&answer);
        let calls: Vec<Value> =
            calls.iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
        for index in [0, 1] {
            let want = json!({"content": content, "calls": calls, "finish_reason": reason});
            assert_eq!(joined(&chunks, index), want, "{text} {more}");
        }
    }
}

#[tokio::test]
async fn arguments_of_a_required_call_are_streamed_in_pieces() {
    let speaker = Speaker::new(HERMES, &[], "no");
    let chunks = speaker.chat(json!({"tool_choice": "required", "stream": true})).await.chunks();
    let parts: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert!(parts.len() > 4, "{parts:?}");
    assert!(
        parts[0]["function"]["name"].is_string() && parts[0]["function"]["arguments"] == "",
        "{}",
        parts[0]
    );
}

#[tokio::test]
async fn a_required_call_follows_the_schema_whatever_the_model_prefers() {
    for (template, special) in [
        (HERMES, &[][..]),
        (HERMES, &["<tool_call>", "</tool_call>"]),
        ("{{ tools }}{# [TOOL_CALLS] #}{{ messages[0].content }}", &["[TOOL_CALLS]"]),
        ("{{ tools }}{# [TOOL_CALLS] #}{{ messages[0].content }}", &["[TOOL_CALLS]", "[ARGS]"]),
        ("{{ tools }}{# <|tool_call|> #}{{ messages[0].content }}", &["<|tool_call|>"]),
        ("{{ tools }}{# <|eot_id|> \"parameters\" #}{{ messages[0].content }}", &[]),
    ] {
        let speaker = Speaker::new(template, special, "No, I would rather not.");
        let answer = speaker.chat(json!({"tool_choice": "required", "parallel_tool_calls": false})).await;
        let (content, calls, reason) = message(&answer);
        let possible = [made("weather", r#"{"city": "Rome"}"#), made("time", r#"{"city": "Oslo"}"#)];
        let compact = |(name, arguments): &(String, String)| {
            (name.clone(), serde_json::from_str::<Value>(arguments).unwrap())
        };
        assert!(possible.iter().any(|one| compact(one) == compact(&calls[0])), "{template}: {calls:?}");
        assert_eq!((calls.len(), reason.as_str(), content), (1, "tool_calls", Value::Null), "{template}");
        let named = json!({"type": "function", "function": {"name": "time"}});
        // Instructor sends the format of a text as well, which a required call does not have.
        for format in ["text", "json_object"] {
            let fields = json!({"tool_choice": named, "response_format": {"type": format}});
            let (_, calls, _) = message(&speaker.chat(fields).await);
            assert_eq!((calls.len(), calls[0].0.as_str()), (1, "time"), "{template}");
        }
    }
}

#[tokio::test]
async fn strict_functions_are_called_by_their_schema_or_not_at_all() {
    let mut strict = tools();
    for tool in strict.as_array_mut().unwrap() {
        tool["function"]["strict"] = true.into();
    }
    let wrong = CALL.replace("Rome", "Paris");
    for (text, want) in [("It rains.", vec![]), (&wrong, vec![made("weather", r#"{"city": "Rome"}"#)])] {
        let speaker = Speaker::new(HERMES, &[], text);
        let (content, calls, _) = message(&speaker.chat(json!({"tools": strict})).await);
        let names = |calls: &[(String, String)]| calls.iter().map(|call| call.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&calls), names(&want), "{text}: {content}");
        assert!(calls.iter().all(|(_, arguments)| arguments.contains("Rome")), "{calls:?}");
    }
}

#[tokio::test]
async fn a_call_or_an_answer_in_the_requested_format_is_possible_with_tools() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 77}}});
    let speaker = Speaker::new(HERMES, &[], CALL);
    let (_, calls, _) = message(&speaker.chat(json!({"response_format": format})).await);
    assert_eq!(calls.len(), 1);
    let speaker = Speaker::new(HERMES, &[], "77");
    let (content, calls, _) = message(&speaker.chat(json!({"response_format": format})).await);
    assert_eq!((content.as_str().map(str::trim), calls.len()), (Some("77"), 0));
}

#[tokio::test]
async fn special_tokens_of_a_format_are_read_and_ids_suit_its_template() {
    let template = "{{ tools }}{# [TOOL_CALLS] #}{{ messages[0].content }}";
    let text = "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}]";
    let answer = Speaker::new(template, &["[TOOL_CALLS]"], text).chat(json!({})).await;
    let (content, calls, _) = message(&answer);
    assert_eq!((content, calls), (Value::Null, vec![made("weather", r#"{"city": "Rome"}"#)]));
    let id = answer.json()["choices"][0]["message"]["tool_calls"][0]["id"].as_str().unwrap().to_owned();
    assert!(id.len() == 9 && id.chars().all(|character| character.is_ascii_alphanumeric()), "{id}");
}

#[tokio::test]
async fn a_call_that_is_cut_is_text_unless_a_grammar_guides_it() {
    let speaker = Speaker::new(HERMES, &[], CALL);
    let (content, calls, reason) = message(&speaker.chat(json!({"max_tokens": 30})).await);
    assert!(content.as_str().unwrap().contains("<tool_call>"), "{content}");
    assert_eq!((calls.len(), reason.as_str()), (0, "length"));
    let required = json!({"max_tokens": 30, "tool_choice": "required"});
    let (content, calls, reason) = message(&speaker.chat(required).await);
    assert!(calls.len() == 1 || content.is_string(), "{calls:?}");
    assert_eq!(reason, "length");
}

#[tokio::test]
async fn calls_and_their_results_follow_the_template() {
    let speaker = Speaker::new(HERMES, &[], "Sunny.");
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}});
    let messages = json!([
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"}
    ]);
    let answer = speaker.chat(json!({"messages": messages, "tools": [tools()[0]]})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let want = "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"The weather.\", \"parameters\": \
        {\"type\": \"object\", \"properties\": {\"city\": {\"enum\": [\"Rome\"]}}, \"required\": [\"city\"], \"additionalProperties\": false}}};\
        user: Rome?;assistant: <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>;\
        tool call_1: sun;A:";
    assert_eq!(speaker.prompt().trim_start(), want);
}

#[tokio::test]
async fn wrong_tools_are_refused_by_name() {
    let speaker = Speaker::new(HERMES, &[], "x");
    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let many: Vec<Value> = (0..129)
        .map(|index| json!({"type": "function", "function": {"name": format!("f{index}")}}))
        .collect();
    let large = "x".repeat(70_000);
    for (more, param) in [
        (json!({"tools": [{"type": "web_search", "function": {"name": "x"}}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (function(json!({"name": ""})), "tools[0].function.name"),
        (function(json!({"name": "a b"})), "tools[0].function.name"),
        (function(json!({"name": "a", "parameters": []})), "tools[0].function.parameters"),
        (function(json!({"name": "a", "params": {}})), "tools[0].function.params"),
        (function(json!({"name": "a", "description": large})), "tools[0].function"),
        (json!({"tools": many}), "tools"),
        (json!({"tools": [tools()[0], tools()[0]]}), "tools[1].function.name"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "no"}}}),
            "tool_choice.function.name",
        ),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [], "tool_choice": allowed("required", &["time"])}), "tool_choice"),
        (json!({"tool_choice": allowed("none", &["time"])}), "tool_choice.allowed_tools.mode"),
        (json!({"tool_choice": allowed("auto", &[])}), "tool_choice.allowed_tools.tools"),
        (json!({"tool_choice": allowed("auto", &["no"])}), "tool_choice.allowed_tools.tools"),
        (json!({"tool_choice": "required", "number": {}}), "number"),
        (json!({"tool_choice": "required", "guided_choice": ["x"]}), "guided_choice"),
        (json!({"guided_regex": "x"}), "guided_regex"),
        (json!({"use_beam_search": true}), "tools"),
        (
            json!({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a", "parameters":
                {"type": "object", "properties": {"x": {"$ref": "http://x"}}}}}]}),
            "tools",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": ""}}]}]}),
            "messages[0].tool_calls",
        ),
        (json!({"functions": [{"name": "a"}]}), "functions"),
    ] {
        let answer = speaker.chat(more.clone()).await;
        assert_eq!(answer.status, 400, "{more}: {}", answer.text);
        assert_eq!(answer.error()["param"], param, "{more}: {}", answer.text);
    }
}

/// A choice of some of the functions.
fn allowed(mode: &str, names: &[&str]) -> Value {
    let tools = names.iter().map(|name| json!({"type": "function", "function": {"name": name}}));
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools.collect::<Vec<_>>()}})
}

#[tokio::test]
async fn only_allowed_functions_are_called_but_the_model_sees_all() {
    let speaker = Speaker::new(HERMES, &[], CALL);
    let (_, calls, _) = message(&speaker.chat(json!({"tool_choice": allowed("auto", &["weather"])})).await);
    assert_eq!(calls[0].0, "weather");
    let (content, calls, _) =
        message(&speaker.chat(json!({"tool_choice": allowed("auto", &["time"])})).await);
    assert!(content.as_str().unwrap().contains("weather") && calls.is_empty(), "{content} {calls:?}");
    let (_, calls, _) = message(&speaker.chat(json!({"tool_choice": allowed("required", &["time"])})).await);
    assert!(!calls.is_empty() && calls.iter().all(|(name, _)| name == "time"), "{calls:?}");
    let prompts = speaker.prompts.lock().unwrap();
    assert!(prompts.len() == 3 && prompts.iter().all(|prompt| *prompt == prompts[0]));
}

#[tokio::test]
async fn a_template_without_tools_or_without_a_known_format_says_so() {
    let (app, _) = chatting(says("1"));
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": tools()});
    let error = post(&app, "/v1/chat/completions", body).await;
    assert_eq!((error.status.as_u16(), &error.error()["param"]), (400, &json!("tools")));
    let expected = "`tools`: the chat template of this model does not support tools; start the server with another one \
                   (--chat-template), or with --tool-parser hermes, which describes the tools in a system message";
    assert_eq!(error.error()["message"], expected);
    let unknown = Speaker::new("{{ tools }}{{ messages[0].content }}", &[], CALL);
    let (content, calls, _) = message(&unknown.chat(json!({})).await);
    assert!(content.as_str().unwrap().contains("<tool_call>") && calls.is_empty(), "{content}");
    let error = unknown.chat(json!({"tool_choice": "required"})).await;
    assert_eq!((error.status.as_u16(), &error.error()["param"]), (400, &json!("tool_choice")));
    assert!(error.text.contains("--tool-parser"), "{}", error.text);
}

/// Reads no tools.
const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}A:";

#[tokio::test]
async fn hermes_format_describes_tools_to_a_template_that_reads_none() {
    let speaker = Speaker::in_format(PLAIN, &[], CALL, Some(ToolFormat::Hermes));
    for choice in ["auto", "required"] {
        let (content, calls, reason) = message(&speaker.chat(json!({"tool_choice": choice})).await);
        assert_eq!(calls, [made("weather", "{\"city\": \"Rome\"}")], "{content}");
        assert_eq!((content, reason.as_str()), (Value::Null, "tool_calls"));
        let prompt = speaker.prompt();
        assert!(prompt.contains("<tools>") && prompt.contains("The weather."), "{prompt}");
    }
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": tools()});
    let split = post(&speaker.app, "/tokenize", body.clone()).await;
    assert_eq!(split.status, 200, "{}", split.text);
    let mut response = json!({"input": "x", "temperature": 0});
    response["tools"] = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    let response = post(&speaker.app, "/v1/responses", response).await;
    assert_eq!(response.json()["output"][0]["type"], "function_call", "{}", response.text);
    // Other formats have no description.
    let other = Speaker::in_format(PLAIN, &[], CALL, Some(ToolFormat::Mistral));
    assert_eq!(post(&other.app, "/v1/chat/completions", body).await.status, 400);
}

#[tokio::test]
async fn a_forced_call_that_ends_inside_its_opening_is_no_text() {
    let speaker = Speaker::new(HERMES, &[], CALL);
    for max_tokens in [1, 3, 6] {
        let body = json!({"tool_choice": "required", "max_tokens": max_tokens});
        let (content, calls, reason) = message(&speaker.chat(body).await);
        assert!(calls.len() < 2 && reason == "length", "{calls:?} {reason}");
        assert!(content.as_str().unwrap_or_default().is_empty(), "{content} after {max_tokens} tokens");
        let body = json!({"input": "x", "temperature": 0, "tool_choice": "required", "max_output_tokens": max_tokens,
            "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]});
        let response = post(&speaker.app, "/v1/responses", body).await;
        for item in response.json()["output"].as_array().unwrap() {
            assert_eq!(item["content"][0]["text"].as_str().unwrap_or_default(), "", "{}", response.text);
        }
    }
}

#[tokio::test]
async fn a_number_may_follow_tools_in_the_prompt() {
    let speaker = Speaker::new(HERMES, &[], "42");
    let answer = speaker.chat(json!({"number": {"objective": "mode", "nodes_max": 64}})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(speaker.prompt().contains("weather"));
    assert!(answer.json()["choices"][0]["number"]["mode"].is_number(), "{}", answer.text);
}
