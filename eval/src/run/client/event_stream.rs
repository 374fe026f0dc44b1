//! Puts the events of a streamed completion or chat together to the body of a whole response.

use reqwest::StatusCode;
use serde_json::{Map, Value, json};

/// Why the events are not a response.
#[derive(Debug, PartialEq)]
pub(super) enum StreamError {
    Unreadable(String),
    /// The server ended its response with an error.
    Failed {
        status: StatusCode,
        message: String,
    },
}

/// Returns the body of the same response without a stream, with the fields that are read. `body` is the
/// complete stream: lines of `data: ` and JSON, of which the last one is `[DONE]` or has a `finish_reason`.
pub(super) fn whole_body(body: &[u8]) -> Result<Vec<u8>, StreamError> {
    let mut choice = Choice::default();
    let mut fingerprint = Value::Null;
    let mut usage = Value::Null;
    let mut is_complete = false;
    for line in body.split(|byte| *byte == b'\n') {
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
        if data == b"[DONE]" {
            is_complete = true;
            continue;
        }
        let mut event: Map<String, Value> = serde_json::from_slice(data)
            .map_err(|error| StreamError::Unreadable(super::error::problem_of(data, &error)))?;
        if let Some(error @ Value::Object(_)) = event.get("error") {
            return Err(failure(error));
        }
        if fingerprint.is_null() {
            fingerprint = event.remove("system_fingerprint").unwrap_or_default();
        }
        if let Some(counts @ Value::Object(_)) = event.remove("usage") {
            usage = counts;
        }
        let Some(Value::Array(parts)) = event.remove("choices") else { continue };
        for part in parts {
            match part {
                Value::Object(part) if part.get("index").is_none_or(|index| *index == 0) => choice.add(part),
                _ => {}
            }
        }
    }
    if !is_complete && !choice.fields.contains_key("finish_reason") {
        return Err(StreamError::Unreadable("its stream ended before the text did".to_owned()));
    }
    let choices = if choice.has_parts { vec![choice.whole()] } else { Vec::new() };
    let whole = json!({ "choices": choices, "system_fingerprint": fingerprint, "usage": usage });
    Ok(whole.to_string().into_bytes())
}

fn failure(error: &Value) -> StreamError {
    let code = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let status = match code.map(StatusCode::from_u16) {
        Some(Ok(status)) if status.is_client_error() || status.is_server_error() => status,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    StreamError::Failed { status, message: error["message"].as_str().unwrap_or("no message").to_owned() }
}

/// The parts of the only choice.
#[derive(Default)]
struct Choice {
    has_parts: bool,
    text: String,
    /// The other fields that are read. Lists of several parts are joined.
    fields: Map<String, Value>,
}

impl Choice {
    fn add(&mut self, mut part: Map<String, Value>) {
        self.has_parts = true;
        let text = part.get("text").or_else(|| part.get("delta")?.get("content"));
        self.text.push_str(text.and_then(Value::as_str).unwrap_or_default());
        for name in ["token_ids", "numbers", "finish_reason", "number"] {
            let mut value = part.remove(name).unwrap_or_default();
            if let (Some(Value::Array(list)), Value::Array(new)) = (self.fields.get_mut(name), &mut value) {
                list.append(new);
            } else if !value.is_null() {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }

    fn whole(mut self) -> Value {
        self.fields.insert("text".to_owned(), self.text.into());
        Value::Object(self.fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(body: &[u8]) -> Value {
        serde_json::from_slice(&whole_body(body).unwrap()).unwrap()
    }

    #[test]
    fn the_parts_of_a_text_become_a_whole_response() {
        let completion = "data: {\"choices\":[{\"index\":0,\"text\":\" 1\",\"token_ids\":[5],\"finish_reason\":null}],\
             \"system_fingerprint\":\"0a\"}\r\n\r\n: ping\n\ndata:{\"choices\":[{\"text\":\"2\",\"token_ids\":[6],\
             \"finish_reason\":\"stop\",\"number\":{\"value\":2}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n";
        let want = json!({
            "choices": [{ "token_ids": [5, 6], "finish_reason": "stop", "number": { "value": 2 }, "text": " 12" }],
            "system_fingerprint": "0a", "usage": { "prompt_tokens": 3 }
        });
        assert_eq!(whole(completion.as_bytes()), want);
        let chat = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\
             data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}";
        let choices = json!([{ "finish_reason": "length", "text": "é" }]);
        assert_eq!(whole(chat.as_bytes())["choices"], choices);
        assert_eq!(whole(b"data: [DONE]\n")["choices"], json!([]));
    }

    #[test]
    fn a_stream_that_is_cut_off_broken_or_ends_in_an_error_is_no_response() {
        let cut = whole_body(b"data: {\"choices\":[{\"text\":\" 1\"}]}\n");
        assert_eq!(cut, Err(StreamError::Unreadable("its stream ended before the text did".to_owned())));
        for broken in [
            "",
            "data: {\"choices\"",
            "data: 7",
            "data: []",
            "data: {\"choices\":[7]}",
            "data: {\"choices\":{}}",
        ] {
            assert!(matches!(whole_body(broken.as_bytes()), Err(StreamError::Unreadable(_))), "{broken}");
        }
        for (code, status) in [("503", 503), ("\"no\"", 500), ("7", 500), ("200", 500), ("70000", 500)] {
            let event = format!("data: {{\"error\":{{\"message\":\"gone\",\"code\":{code}}}}}\n");
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                whole_body(event.as_bytes()),
                Err(StreamError::Failed { status, message: "gone".to_owned() })
            );
        }
    }
}
