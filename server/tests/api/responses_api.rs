//! `/v1/responses`: items, events, calls, numbers, refusals.

use serde_json::{Value, json};

use crate::chat::chatting;
use crate::structured_numbers;
use crate::support::{self, Answer, EOS, ids, logits, piece, post, says};
use crate::tools::{HERMES, Speaker};

const PATH: &str = "/v1/responses";

fn tool(name: &str) -> Value {
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome"]}},
        "required": ["city"], "additionalProperties": false}})
}

/// The events of a stream as pairs of name and data, which agree.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let event = |(number, text): (usize, &str)| {
        let (name, data) = text.split_once('\n').unwrap();
        let name = name.strip_prefix("event: ").unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((data["type"].as_str(), &data["sequence_number"]), (Some(name), &json!(number)));
        (name.to_owned(), data)
    };
    answer.text.split("\n\n").filter(|text| !text.is_empty()).enumerate().map(event).collect()
}

/// Replaces ids and times.
fn comparable(mut response: Value) -> Value {
    response["id"] = "[id]".into();
    response["created_at"] = "[created]".into();
    for item in response["output"].as_array_mut().into_iter().flatten() {
        item["id"] = "[id]".into();
        if item["call_id"].is_string() {
            item["call_id"] = "[id]".into();
        }
    }
    response
}

#[tokio::test]
async fn a_response_has_the_shape_of_the_api_and_the_prompt_of_the_template() {
    let (app, seen) = chatting(says("12"));
    let body = json!({"input": "what is 1 + 1", "temperature": 0, "metadata": {"a": "b"}});
    let answer = post(&app, PATH, body.clone()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let response = answer.json();
    assert!(response["id"].as_str().unwrap().starts_with("resp_"), "{response}");
    let mut shown = comparable(response);
    shown.sort_all_objects();
    insta::assert_json_snapshot!("response", shown);
    assert_eq!(seen.lock().unwrap()[0], ids("user: what is 1 + 1 A:"));
    let items = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
        {"role": "user", "content": "d"}
    ]);
    seen.lock().unwrap().clear();
    let answer = post(&app, PATH, json!({"input": items, "instructions": "e"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(seen.lock().unwrap()[0], ids("system: e user: a\nb assistant: c user: d A:"));
}

#[tokio::test]
async fn fields_of_completions_work_as_in_completions() {
    let (app, _) = chatting(says("12 34"));
    let post = async |fields: Value| {
        let mut body = json!({"input": "x", "temperature": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        post(&app, PATH, body).await
    };
    for (fields, text) in [
        (json!({"stop": "3"}), " 12 "),
        (json!({"stop": ["3"], "include_stop_str_in_output": true}), " 12 3"),
        (json!({"logit_bias": {piece("x").to_string(): 100}, "max_output_tokens": 2}), "xx"),
        (json!({"structured_outputs": {"choice": [" 12", " 8"]}}), " 12"),
        (json!({"top_k": 1, "min_p": 0.1, "cache_salt": "a", "priority": 1, "session_id": "b"}), " 12 34"),
    ] {
        let answer = post(fields.clone()).await;
        assert_eq!(answer.status, 200, "{fields}: {}", answer.text);
        assert_eq!(answer.json()["output"][0]["content"][0]["text"], text, "{fields}");
    }
    let structured =
        json!({"structured_outputs": {"regex": "7"}, "text": {"format": {"type": "json_object"}}});
    for (fields, param) in [
        (json!({"top_k": -2}), "top_k"),
        (json!({"stop": 5}), "stop"),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs.regex"),
        (structured, "text.format"),
        (json!({"n": 2}), "n"),
        (json!({"stopp": "3"}), "stopp"),
    ] {
        let answer = post(fields).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.error()["param"]),
            (400, &json!(param)),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn the_events_of_a_text_have_the_names_of_the_api_and_end_with_the_response() {
    let (app, _) = chatting(says("7 8"));
    let whole = post(&app, PATH, json!({"input": "x", "temperature": 0})).await.json();
    let answer = post(&app, PATH, json!({"input": "x", "temperature": 0, "stream": true})).await;
    let events = events(&answer);
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect();
    assert_eq!(text, whole["output"][0]["content"][0]["text"]);
    let (_, last) = events.last().unwrap();
    assert_eq!(comparable(last["response"].clone()), comparable(whole));
    assert_eq!(events[0].1["response"]["status"], "in_progress");
    let item = &last["response"]["output"][0]["id"];
    let with_id = events.iter().filter(|(_, data)| data["item_id"].is_string());
    assert!(with_id.clone().all(|(_, data)| data["item_id"] == *item) && with_id.count() > 3);
}

#[tokio::test]
async fn log_probabilities_are_those_of_a_chat_in_whole_and_streamed_responses() {
    let (app, _) = chatting(says("7 8"));
    let include = json!(["reasoning.encrypted_content", "message.output_text.logprobs"]);
    let body = json!({"input": "x", "temperature": 0, "top_logprobs": 2, "include": include});
    let whole = post(&app, PATH, body.clone()).await.json();
    let part = &whole["output"][0]["content"][0];
    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = json!({"messages": messages, "temperature": 0, "logprobs": true, "top_logprobs": 2});
    let chat = post(&app, "/v1/chat/completions", chat).await.json();
    assert_eq!(part["logprobs"], chat["choices"][0]["logprobs"]["content"]);
    assert_eq!(
        (part["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), &whole["top_logprobs"]),
        (2, &json!(2))
    );
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = events(&post(&app, PATH, streamed).await);
    let done = events.iter().find(|(name, _)| name == "response.output_text.done").unwrap();
    assert_eq!(done.1["logprobs"], part["logprobs"]);
    assert_eq!(comparable(events.last().unwrap().1["response"].clone()), comparable(whole.clone()));
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let of_deltas: Vec<&Value> = deltas.flat_map(|(_, data)| data["logprobs"].as_array().unwrap()).collect();
    // The end of sequence has no text.
    assert!(of_deltas.len() + 1 >= part["logprobs"].as_array().unwrap().len(), "{of_deltas:?}");
    for (body, alternatives) in [
        (json!({"input": "x", "include": ["message.output_text.logprobs"]}), Some(0)),
        (json!({"input": "x", "top_logprobs": 1}), Some(1)),
        (json!({"input": "x", "top_logprobs": 0, "include": []}), None),
    ] {
        let answer = post(&app, PATH, body.clone()).await.json();
        let first = answer["output"][0]["content"][0]["logprobs"][0]["top_logprobs"].as_array().map(Vec::len);
        assert_eq!(first, alternatives, "{body}");
    }
    for (body, param) in [
        (json!({"input": "x", "top_logprobs": 21}), "top_logprobs"),
        (json!({"input": "x", "top_logprobs": 1, "number": {}}), "top_logprobs"),
        (json!({"input": "x", "include": ["message"]}), "include"),
    ] {
        let answer = post(&app, PATH, body.clone()).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["param"]), (400, &json!(param)), "{body}");
    }
}

#[tokio::test]
async fn the_log_probabilities_of_calls_are_not_those_of_the_text_before_them() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let speaker = Speaker::new(HERMES, &[], &format!("I look.\n{call}"));
    let mut body = json!({"input": "Rome?", "tools": [tool("weather")], "temperature": 0, "top_logprobs": 1});
    let whole = post(&speaker.app, PATH, body.clone()).await.json();
    let part = &whole["output"][0]["content"][0];
    let tokens = part["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert!(!tokens.is_empty() && text.trim().starts_with("I look.") && !text.contains("name"), "{text}");
    body["stream"] = true.into();
    let events = events(&post(&speaker.app, PATH, body).await);
    let last = &events.last().unwrap().1["response"]["output"][0]["content"][0];
    assert_eq!(last["logprobs"], part["logprobs"]);
}

#[tokio::test]
async fn a_response_may_allow_some_of_its_functions() {
    let speaker = Speaker::new(HERMES, &[], "No.");
    let ask = async |mode: &str, tools: Value| {
        let choice = json!({"type": "allowed_tools", "mode": mode, "tools": tools});
        let tools = [tool("weather"), tool("time")];
        post(
            &speaker.app,
            PATH,
            json!({"input": "x", "tools": tools, "tool_choice": choice, "temperature": 0}),
        )
        .await
    };
    let answer = ask("required", json!([{"type": "function", "name": "time"}])).await.json();
    assert_eq!(
        (&answer["output"][0]["name"], &answer["tool_choice"]["mode"]),
        (&json!("time"), &json!("required"))
    );
    for (mode, tools, param) in [
        ("auto", json!([]), "tool_choice.tools"),
        ("auto", json!([{"type": "function", "name": "no"}]), "tool_choice.tools"),
        ("auto", json!([{"type": "web_search", "name": "x"}]), "tool_choice.tools[0].type"),
    ] {
        let answer = ask(mode, tools).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.error()["param"]),
            (400, &json!(param)),
            "{}",
            answer.text
        );
    }
}

#[tokio::test]
async fn calls_are_items_and_their_results_go_on_in_the_template() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let speaker = Speaker::new(HERMES, &[], &format!("I look.\n{call}\n{call}"));
    let body = json!({"input": "Rome?", "tools": [tool("weather")], "temperature": 0});
    let whole = post(&speaker.app, PATH, body.clone()).await.json();
    let output = &whole["output"];
    assert_eq!((output.as_array().unwrap().len(), &output[0]["type"]), (3, &json!("message")), "{whole}");
    for item in [&output[1], &output[2]] {
        assert_eq!(
            (&item["type"], &item["name"], &item["arguments"], &item["status"]),
            (&json!("function_call"), &json!("weather"), &json!("{\"city\": \"Rome\"}"), &json!("completed"))
        );
        assert!(item["call_id"].as_str().unwrap().starts_with("call_"), "{item}");
    }
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = events(&post(&speaker.app, PATH, streamed).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["response.function_call_arguments.delta", "response.function_call_arguments.done"] {
        assert_eq!(names.iter().filter(|one| **one == name).count(), 2, "{names:?}");
    }
    assert_eq!(comparable(events.last().unwrap().1["response"].clone()), comparable(whole.clone()));
    // The output goes back as it came.
    let mut items = vec![json!({"role": "user", "content": "Rome?"})];
    items.extend(output.as_array().unwrap().iter().cloned());
    items.extend([1, 2].map(
        |at| json!({"type": "function_call_output", "call_id": output[at]["call_id"], "output": "sun"}),
    ));
    let mut again = body;
    again["input"] = items.into();
    let answer = post(&speaker.app, PATH, again).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let made = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    let prompt = speaker.prompt();
    assert!(prompt.contains(&format!("I look.{made}{made};tool call_")), "{prompt}");
    assert!(prompt.ends_with(": sun;A:"), "{prompt}");
}

#[tokio::test]
async fn a_required_call_follows_the_schema() {
    let speaker = Speaker::new(HERMES, &[], "no");
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let body = json!({"input": "x", "tools": [tool("weather")], "tool_choice": choice, "parallel_tool_calls": false});
        let response = post(&speaker.app, PATH, body).await.json();
        let output = response["output"].as_array().unwrap();
        assert_eq!((output.len(), &output[0]["name"]), (1, &json!("weather")), "{response}");
        let arguments: Value = serde_json::from_str(output[0]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"city": "Rome"}));
        assert_eq!(response["tool_choice"], choice);
    }
}

#[tokio::test]
async fn structured_texts_and_numbers_are_supported() {
    let speaker = Speaker::new(HERMES, &[], "no");
    let format = json!({"type": "json_schema", "name": "x", "schema": {"const": 77}, "strict": true});
    let response = post(&speaker.app, PATH, json!({"input": "x", "text": {"format": format}})).await.json();
    assert_eq!(response["output"][0]["content"][0]["text"].as_str().map(str::trim), Some("77"), "{response}");
    assert_eq!(response["text"]["format"]["type"], "json_schema");
    let (app, _) = chatting(says("42"));
    for stream in [false, true] {
        let body = json!({"input": "x", "number": {"objective": "mode"}, "stream": stream});
        let answer = post(&app, PATH, body).await;
        let response =
            if stream { events(&answer).pop().unwrap().1["response"].clone() } else { answer.json() };
        let part = &response["output"][0]["content"][0];
        assert_eq!(part["text"], "42");
        assert!(support::close(&part["number"]["mode"], 42.0), "{part}");
    }
}

#[tokio::test]
async fn numbers_of_a_structured_text_are_part_of_the_text() {
    let app = structured_numbers::tiny();
    let format = json!({"type": "json_schema", "name": "flat", "schema": structured_numbers::schema()});
    for stream in [false, true] {
        let body = json!({
            "input": "Work out a pear", "text": {"format": format}, "stream": stream,
            "number": {"digits_max": 3, "decimals_max": 1, "tolerance": 0.01}, "seed": 7
        });
        let answer = post(&app, PATH, body).await;
        let response =
            if stream { events(&answer).pop().unwrap().1["response"].clone() } else { answer.json() };
        let part = &response["output"][0]["content"][0];
        let written: Value = serde_json::from_str(part["text"].as_str().unwrap()).unwrap();
        let numbers = part["numbers"].as_array().unwrap();
        assert_eq!(numbers.len(), 1 + written["rooms"].as_array().unwrap().len(), "{part}");
        assert_eq!(numbers[0]["path"], "$.price");
        assert_eq!(numbers[0]["number"]["value"].as_f64(), written["price"].as_f64(), "{part}");
    }
}

#[tokio::test]
async fn a_response_at_its_limit_is_incomplete() {
    let (app, _) = chatting(support::babbles());
    for stream in [false, true] {
        let answer = post(&app, PATH, json!({"input": "x", "max_output_tokens": 3, "stream": stream})).await;
        let response = if stream {
            let (name, data) = events(&answer).pop().unwrap();
            assert_eq!(name, "response.incomplete");
            data["response"].clone()
        } else {
            answer.json()
        };
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
        assert_eq!(response["output"][0]["status"], "incomplete");
        assert_eq!(response["usage"]["output_tokens"], 3);
    }
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_its_error() {
    let seven = piece("7");
    let script = move |_: &[u32], path: &[u32]| {
        let mut logits = logits(&[(seven, 0.9), (EOS, 0.1)]);
        if path.len() > 2 {
            logits.fill(f32::NAN);
        }
        Ok(logits)
    };
    let (app, _) = chatting(Box::new(script));
    let answer = post(&app, PATH, json!({"input": "x", "temperature": 0, "stream": true})).await;
    let (name, data) = events(&answer).pop().unwrap();
    assert_eq!(name, "response.failed");
    assert_eq!(data["response"]["status"], "failed");
    assert!(
        data["response"]["error"]["message"].is_string() && data["response"]["error"]["code"].is_string(),
        "{data}"
    );
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let speaker = Speaker::new(HERMES, &[], "x");
    let item = |item: Value| json!({"input": [item]});
    for (more, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"include": ["reasoning.summary"]}), "include"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_tokens": 5}), "max_tokens"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity"),
        (json!({"text": {"format": {"type": "json_schema", "schema": {"$ref": "http://x"}}}}), "text.format"),
        (json!({"reasoning": {"effort": "enormous"}}), "reasoning.effort"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (
            json!({"tools": [{"type": "function", "name": "a", "vector_store_ids": []}]}),
            "tools[0].vector_store_ids",
        ),
        (json!({"tools": [tool("a")], "tool_choice": {"type": "function", "name": "b"}}), "tool_choice.name"),
        (json!({"tools": [tool("a")], "tool_choice": {"type": "file_search"}}), "tool_choice"),
        (item(json!({"type": "reasoning", "summary": []})), "input[0].summary"),
        (item(json!({"type": "item_reference", "id": "x"})), "input[0].type"),
        (item(json!({"role": "wizard", "content": "x"})), "input[0].role"),
        (item(json!({"role": "user"})), "input[0].content"),
        (
            item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})),
            "input[0].content[0].type",
        ),
        (
            item(json!({"type": "function_call", "call_id": "1", "name": "a", "arguments": "x"})),
            "input[0].arguments",
        ),
        (item(json!({"type": "function_call_output", "output": "x"})), "input[0].call_id"),
        (json!({"metadata": {"a": "x".repeat(600)}}), "metadata"),
        (json!({"stream_options": {"include_usages": true}}), "stream_options.include_usages"),
        (json!({"stream_options": {"include_obfuscation": "no"}}), "stream_options.include_obfuscation"),
        (json!({"instruction": "x"}), "instruction"),
    ] {
        let mut body = json!({"input": "x"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = post(&speaker.app, PATH, body).await;
        assert_eq!(answer.status, 400, "{more}: {}", answer.text);
        assert_eq!(answer.error()["param"], param, "{more}: {}", answer.text);
    }
    let error = post(&speaker.app, PATH, json!({"input": "x", "previous_response_id": "resp_1"})).await;
    assert!(error.text.contains("send the whole conversation as `input`"), "{}", error.text);
    for neutral in [
        json!({"store": true, "previous_response_id": null, "include": ["reasoning.encrypted_content"]}),
        json!({"truncation": "disabled", "background": false, "stream_options": {"include_obfuscation": false}}),
        json!({"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "medium"}, "user": "me"}),
    ] {
        let mut body = json!({"input": "x"});
        body.as_object_mut().unwrap().extend(neutral.as_object().unwrap().clone());
        let answer = post(&speaker.app, PATH, body).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["store"]),
            (200, &json!(false)),
            "{}",
            answer.text
        );
    }
}
