//! Chat on the wire as a completion, and back: a conversation to template, its answers as messages.
//!
//! Everything that a chat request shares with a completion is handed on to the conversion of completions, unread.

use std::collections::{BTreeMap, BTreeSet};

use ntl_api::{
    ChatAnswer, ChatChoice, ChatChunkChoice, ChatContent, ChatLogprobs, ChatMessage, ChatRequest,
    ChatRequestMessage, ChatToken, ChatTokenLogprobs, Choice, CompletionRequest, Logprobs,
};
use ntl_models::chat::{ChatMessage as Message, Conversation};
use serde_json::{Value, json};

use super::unsupported::refuse_in_chat;
use super::{Rules, check};
use crate::error::AppError;

const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
const TOP_LOGPROBS_MAX: u64 = 20;

/// Joins the parts of a message.
const PART_SEPARATOR: &str = "\n";

/// What answers to a chat request look like, and what was shown of them.
#[derive(Debug, Default)]
pub(crate) struct ChatWriter {
    top_logprobs: usize,
    /// Answers whose first piece is out.
    begun: BTreeSet<u64>,
}

/// The conversation of a request.
///
/// Whoever asks for what is not served, such as tools and images, is told so by name.
pub(crate) fn conversation(request: &ChatRequest) -> Result<Conversation, AppError> {
    refuse_in_chat(&request.others)?;
    let messages = request.messages.as_deref().unwrap_or_default();
    check("messages", !messages.is_empty(), "must be a list of at least one message")?;
    Ok(Conversation {
        messages: messages.iter().enumerate().map(message).collect::<Result<_, _>>()?,
        add_generation_prompt: request.add_generation_prompt.unwrap_or(true),
        variables: request.chat_template_kwargs.clone().unwrap_or_default(),
    })
}

fn message((index, message): (usize, &ChatRequestMessage)) -> Result<Message, AppError> {
    let field = |field: &str| format!("messages[{index}].{field}");
    if matches!(message.role.as_str(), "tool" | "function") {
        return Err(AppError::invalid(field("role"), "tools are not supported by this version"));
    }
    let roles = ROLES.join(", ");
    check(&field("role"), ROLES.contains(&message.role.as_str()), format!("must be one of {roles}"))?;
    for call in ["tool_calls", "function_call", "audio"] {
        let absent = message.others.get(call).is_none_or(|value| value.is_null() || *value == json!([]));
        check(&field(call), absent, "is not supported by this version")?;
    }
    let content = match &message.content {
        None => String::new(),
        Some(ChatContent::Text(text)) => text.clone(),
        Some(ChatContent::Parts(parts)) => {
            let text = |(part, content): (usize, &ntl_api::ContentPart)| {
                let at = field(&format!("content[{part}]"));
                let refusal = format!("is `{}`: this server reads texts only", content.kind);
                check(&format!("{at}.type"), content.kind == "text", refusal)?;
                let missing = || AppError::invalid(&at, format!("`{at}` has no `text`"));
                content.text.clone().ok_or_else(missing)
            };
            let texts = parts.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?;
            texts.join(PART_SEPARATOR)
        }
    };
    Ok(Message { role: message.role.clone(), content, name: message.name.clone() })
}

/// The completion that answers a request whose conversation became `prompt`, and how its answers are written.
///
/// `room` is how many tokens may follow where the model has a limit: the default of `max_completion_tokens`.
pub(crate) fn chat_completion(
    request: ChatRequest,
    prompt: Vec<u32>,
    room: Option<usize>,
    rules: &Rules,
) -> Result<(CompletionRequest, ChatWriter), AppError> {
    let most = rules.output_tokens_max;
    // The older name counts only without the newer one, but must not be nonsense all the same.
    let fits = request.max_tokens.is_none_or(|max| max <= most);
    check("max_tokens", fits, format!("must be at most {most}"))?;
    let asked = request.max_completion_tokens.or(request.max_tokens);
    // A text that has no room at all is for the engine to refuse, which knows both lengths.
    let roomy = || room.map_or(most, |room| (room as u64).clamp(1, most));
    let is_number = !matches!(request.number, None | Some(ntl_api::NumberRequest::Switch(false)));
    let max_tokens = if is_number { asked } else { Some(asked.unwrap_or_else(roomy)) };
    let with_logprobs = request.logprobs.unwrap_or(false);
    let top = request.top_logprobs.unwrap_or(0);
    check("top_logprobs", with_logprobs || top == 0, "goes only with `logprobs`: true")?;
    check("top_logprobs", top <= TOP_LOGPROBS_MAX, format!("must be from 0 to {TOP_LOGPROBS_MAX}"))?;
    let fields = [
        ("prompt", json!(prompt)),
        ("max_tokens", json!(max_tokens)),
        ("n", json!(request.n)),
        ("stop", json!(request.stop)),
        ("logprobs", json!(with_logprobs.then_some(top))),
        ("stream", json!(request.stream)),
        ("stream_options", json!(request.stream_options)),
        ("number", json!(request.number)),
    ];
    let mut body: serde_json::Map<String, Value> = request.others.into_iter().collect();
    body.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    let completion = serde_path_to_error::deserialize(Value::Object(body)).map_err(|error| {
        let path = error.path().to_string();
        AppError::invalid(&path, format!("`{path}`: {}", error.into_inner()))
    })?;
    let top_logprobs = usize::try_from(top).unwrap_or_default();
    Ok((completion, ChatWriter { top_logprobs, begun: BTreeSet::new() }))
}

impl ChatWriter {
    /// A piece of an answer.
    pub(crate) fn piece(&mut self, piece: Choice) -> ChatChunkChoice {
        let role = self.begun.insert(piece.index).then(|| "assistant".to_owned());
        let is_end = piece.text.is_empty() && piece.finish_reason.is_some() && role.is_none();
        let content = (!is_end).then_some(piece.text);
        ChatChunkChoice {
            index: piece.index,
            delta: ChatAnswer { role, content },
            logprobs: piece.logprobs.map(|logprobs| self.logprobs(logprobs)),
            finish_reason: piece.finish_reason,
            number: piece.number,
        }
    }

    /// A whole answer.
    pub(crate) fn whole(&self, choice: Choice) -> ChatChoice {
        ChatChoice {
            index: choice.index,
            message: ChatMessage { role: "assistant".to_owned(), content: choice.text, refusal: None },
            logprobs: choice.logprobs.map(|logprobs| self.logprobs(logprobs)),
            finish_reason: choice.finish_reason,
            number: choice.number,
        }
    }

    fn logprobs(&self, logprobs: Logprobs) -> ChatLogprobs {
        let mut tops = logprobs.top_logprobs.unwrap_or_default().into_iter();
        let mut values = logprobs.number_values.map(Vec::into_iter);
        let mut masses = logprobs.number_mass.map(Vec::into_iter);
        let tokens = logprobs.tokens.into_iter().zip(logprobs.token_logprobs);
        let content = tokens.map(|(text, logprob)| ChatTokenLogprobs {
            token: token(text, logprob.unwrap_or_default()),
            top_logprobs: self.top(tops.next().flatten().unwrap_or_default()),
            number_value: values.as_mut().map(|values| values.next().flatten()),
            number_mass: masses.as_mut().map(|masses| masses.next().flatten()),
        });
        ChatLogprobs { content: content.collect(), refusal: None }
    }

    /// The most probable ones, best first; the chosen one is among them only where it belongs there.
    fn top(&self, alternatives: BTreeMap<String, f64>) -> Vec<ChatToken> {
        let mut top: Vec<ChatToken> =
            alternatives.into_iter().map(|(text, logprob)| token(text, logprob)).collect();
        top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        top.truncate(self.top_logprobs);
        top
    }
}

fn token(text: String, logprob: f64) -> ChatToken {
    ChatToken { bytes: Some(bytes(&text)), token: text, logprob }
}

/// The bytes of a token text, which writes parts of characters as `bytes:\xe2\x82`.
fn bytes(text: &str) -> Vec<u8> {
    let escaped = text.strip_prefix("bytes:").map(|escaped| {
        escaped.split("\\x").skip(1).map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<Vec<_>, _>>()
    });
    match escaped {
        Some(Ok(bytes)) if !bytes.is_empty() => bytes,
        _ => text.as_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::rules;
    use super::*;

    fn request(body: Value) -> ChatRequest {
        serde_json::from_value(body).unwrap()
    }

    fn refused(body: Value) -> (String, String) {
        let error = conversation(&request(body)).unwrap_err();
        (error.body().error.param.unwrap_or_default(), error.to_string())
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let with = |field: &str, value: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
            body[field] = value;
            body
        };
        let image = json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]);
        for (body, param) in [
            (json!({}), "messages"),
            (json!({"messages": []}), "messages"),
            (with("tools", json!([{"type": "function"}])), "tools"),
            (with("tool_choice", json!("required")), "tool_choice"),
            (with("functions", json!([{}])), "functions"),
            (with("modalities", json!(["text", "audio"])), "modalities"),
            (with("messages", json!([{"role": "user", "content": image}])), "messages[0].content[1].type"),
            (
                with("messages", json!([{"role": "user", "content": [{"type": "text"}]}])),
                "messages[0].content[0]",
            ),
            (with("messages", json!([{"role": "tool", "content": "x"}])), "messages[0].role"),
            (with("messages", json!([{"role": "wizard", "content": "x"}])), "messages[0].role"),
            (
                with("messages", json!([{"role": "assistant", "tool_calls": [{"id": "1"}]}])),
                "messages[0].tool_calls",
            ),
        ] {
            let (got, message) = refused(body.clone());
            assert_eq!(got, param, "{body}: {message}");
        }
        let neutral = with("tools", json!([]));
        assert!(conversation(&request(neutral)).is_ok());
        assert!(conversation(&request(with("tool_choice", json!("auto")))).is_ok());
    }

    #[test]
    fn parts_are_lines_and_no_content_is_an_empty_text() {
        let body = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": []}
        ], "add_generation_prompt": false});
        let conversation = conversation(&request(body)).unwrap();
        let contents: Vec<_> = conversation.messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!((contents, conversation.add_generation_prompt), (vec!["a\nb", ""], false));
    }

    #[test]
    fn fields_of_completions_are_handed_on_and_lengths_have_their_own_default() {
        let completion = |body: Value, room| chat_completion(request(body), vec![5, 6], room, &rules());
        let (plain, _) = completion(json!({"temperature": 0.5, "seed": 7, "user": "x"}), Some(100)).unwrap();
        assert_eq!(plain.prompt, Some(ntl_api::Prompt::Ids(vec![5, 6])));
        assert_eq!((plain.max_tokens, plain.temperature, plain.seed), (Some(100), Some(0.5), Some(7)));
        assert!(plain.logprobs.is_none());
        for (body, room, want) in [
            (json!({}), None, Some(4096)),
            (json!({}), Some(0), Some(1)),
            (json!({"max_tokens": 3}), Some(100), Some(3)),
            (json!({"max_tokens": 3, "max_completion_tokens": 4}), Some(100), Some(4)),
            (json!({"number": {}}), Some(100), None),
            (json!({"number": false}), Some(100), Some(100)),
        ] {
            assert_eq!(completion(body.clone(), room).unwrap().0.max_tokens, want, "{body}");
        }
        let error = completion(json!({"temperature": "hot"}), None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("temperature"));
        let both = json!({"max_tokens": u64::MAX, "max_completion_tokens": 4});
        let error = completion(both, None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("max_tokens"));
        let error = completion(json!({"top_logprobs": 3}), None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("top_logprobs"));
    }

    #[test]
    fn parts_of_characters_are_given_as_bytes() {
        for (text, want) in [
            ("a", &b"a"[..]),
            ("é", &[0xC3, 0xA9]),
            ("bytes:\\xe2\\x82", &[0xE2, 0x82]),
            ("bytes:", b"bytes:"),
            ("bytes:\\xzz", b"bytes:\\xzz"),
        ] {
            assert_eq!(bytes(text), want, "{text}");
        }
    }
}
