//! The chat API: `POST /v1/chat/completions`.
//!
//! In: a conversation for the chat template, and the fields that it shares with completions. Out: messages.

use std::collections::BTreeMap;

use ntl_api::{
    ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatContent, ChatLogprobs, ChatRequest,
    ChatRequestMessage, ChatResponse, ChatResponseMessage, CompletionRequest, ContentPart, FunctionCall,
    FunctionCallDelta, LocatedField, LocatedNumber, ToolCall, ToolCallDelta,
};
use ntl_text::chat::{ChatError, ChatMessage, Conversation};
use ntl_text::tokenizer::Tokenizer;
use serde_json::Value;

use super::fields::FieldNames;
use super::number::NumberFormat;
use super::tools::{ToolOffer, called, chat_offer, check_kind};
use super::{AnswerContext, AnswerWriter, fields, finish_reason, stop_reason, usage};
use crate::answer::{CallBeginning, CallPart, Piece, TokenCounts, TokenReport};
use crate::error::{AppError, check, in_range};
use crate::json::from_value;
use crate::request::{GenerationRequest, ModelProfile, PromptInput, ReportOptions};
use crate::served::ServedModel;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
const REASONING_EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
pub(super) const TOP_LOGPROBS_MAX: u64 = 20;

/// The type of every tool and of every call.
const FUNCTION: &str = "function";

/// Joins the parts of a message.
const PART_SEPARATOR: &str = "\n";

/// Takes the conversation of a request. Rejects unsupported content, such as images, with an error that names
/// the field.
pub(crate) fn conversation(
    request: &mut ChatRequest,
    tools: Option<&ToolOffer>,
    profile: &ModelProfile,
) -> Result<Conversation, AppError> {
    fields::check_chat(&request.others)?;
    let messages = request.messages.as_deref().unwrap_or(&[]);
    check("messages", !messages.is_empty(), "must be a list of at least one message")?;
    let continue_final_message = request.continue_final_message.unwrap_or(false);
    // A head judges the messages as they are.
    let usual = !continue_final_message && profile.writes_tokens();
    let add_generation_prompt = request.add_generation_prompt.unwrap_or(usual);
    let message_of_both = "is not allowed with `add_generation_prompt`: true";
    check("continue_final_message", !(continue_final_message && add_generation_prompt), message_of_both)?;
    let mut variables = request.chat_template_kwargs.take().unwrap_or_default();
    variables.extend(effort_variable("reasoning_effort", request.reasoning_effort.as_deref())?);
    let messages = messages.iter().enumerate().map(|(index, one)| message(index, one));
    let mut conversation = Conversation {
        messages: messages.collect::<Result<_, _>>()?,
        tools: Vec::new(),
        documents: request.documents.take().unwrap_or_default(),
        add_generation_prompt,
        continue_final_message,
        variables,
    };
    if let Some(tools) = tools {
        tools.add_to(&mut conversation);
    }
    Ok(conversation)
}

/// Takes the tools of a request; `None` if the model is to call none.
pub(crate) fn tool_offer(request: &mut ChatRequest) -> Result<Option<ToolOffer>, AppError> {
    chat_offer(request.tools.take(), request.tool_choice.take(), request.parallel_tool_calls)
}

/// The variable for the template with this effort, which the field `param` sets.
pub(super) fn effort_variable(
    param: &str,
    effort: Option<&str>,
) -> Result<BTreeMap<String, Value>, AppError> {
    let Some(effort) = effort else { return Ok(BTreeMap::new()) };
    let efforts = REASONING_EFFORTS.join(", ");
    check(param, REASONING_EFFORTS.contains(&effort), format!("must be one of {efforts}"))?;
    Ok(BTreeMap::from([("reasoning_effort".to_owned(), effort.into())]))
}

fn message(index: usize, message: &ChatRequestMessage) -> Result<ChatMessage, AppError> {
    let path = format!("messages[{index}]");
    let role = message.role.as_str();
    let roles = ROLES.join(", ");
    check(&format!("{path}.role"), ROLES.contains(&role), format!("must be one of {roles}"))?;
    fields::check_message(&format!("{path}."), &message.others)?;
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    let may_call = calls.is_empty() || role == "assistant";
    check(&format!("{path}.tool_calls"), may_call, "are for `assistant` only")?;
    let may_have_id = message.tool_call_id.is_none() || role == "tool";
    check(&format!("{path}.tool_call_id"), may_have_id, "is for `tool` only")?;
    let mut tool_calls = Vec::with_capacity(calls.len());
    for (index, call) in calls.iter().enumerate() {
        check_kind(&format!("{path}.tool_calls[{index}].type"), &call.kind)?;
        tool_calls.push(called(call, &format!("{path}.tool_calls[{index}].function.arguments"))?);
    }
    let content = match &message.content {
        None if !tool_calls.is_empty() => None,
        None => Some(String::new()),
        Some(ChatContent::Text(text)) => Some(text.clone()),
        Some(ChatContent::Parts(parts)) => Some(joined_texts(&path, parts)?),
    };
    Ok(ChatMessage {
        role: message.role.clone(),
        content,
        name: message.name.clone(),
        tool_calls,
        tool_call_id: message.tool_call_id.clone(),
    })
}

/// The text of a message with several parts; `path` is the path of the message.
fn joined_texts(path: &str, parts: &[ContentPart]) -> Result<String, AppError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{path}.content[{index}]");
        let message = format!("is `{}`: this server reads texts only", part.kind);
        check(&format!("{path}.type"), part.kind == "text", message)?;
        fields::check_part(&format!("{path}."), &part.others)?;
        let Some(text) = part.text.as_deref() else {
            return Err(AppError::field(&path, "has no `text`"));
        };
        texts.push(text);
    }
    Ok(texts.join(PART_SEPARATOR))
}

/// The token ids of a conversation, by the checkpoint's chat template. `param` is the field with its
/// messages.
pub(crate) fn prompt_ids(
    param: &str,
    conversation: &Conversation,
    add_special_tokens: bool,
    tokenizer: &Tokenizer,
    profile: &ModelProfile,
) -> Result<Vec<u32>, AppError> {
    let Some(template) = tokenizer.chat_template() else {
        let message = "the checkpoint of this model has no chat template; use /v1/completions, or start the server with \
                       one (--chat-template)";
        return Err(AppError::invalid(param, message));
    };
    let text = if profile.describes_tools && !template.reads_tools() {
        template.render_describing_tools(conversation)
    } else {
        template.render(conversation)
    };
    let text = text.map_err(|error| match error {
        ChatError::NoTools => AppError::invalid("tools", format!("`tools`: {error}")),
        ChatError::NoDocuments => AppError::invalid("documents", format!("`documents`: {error}")),
        error => AppError::invalid(param, error.to_string()),
    })?;
    profile.check_bytes(&text)?;
    // By default the template wrote the special tokens already.
    tokenizer.encode(&text, add_special_tokens).map_err(|error| AppError::invalid(param, error.to_string()))
}

/// Validates a request whose conversation became the token ids `prompt`. The second value is the format of
/// the number, if the request has one.
///
/// `room` is the number of tokens that fit after the prompt, if the model has a limit: the default of
/// `max_completion_tokens`.
pub(crate) fn generation_request(
    request: ChatRequest,
    prompt: Vec<u32>,
    tools: Option<&ToolOffer>,
    room: Option<usize>,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    let (shared, names) = shared_fields(request, profile)?;
    message_request(shared, names, prompt, tools, room, profile)
}

/// The fields that chats and completions share, and their names.
fn shared_fields(
    request: ChatRequest,
    profile: &ModelProfile,
) -> Result<(CompletionRequest, FieldNames), AppError> {
    let others: CompletionRequest = from_value(Value::Object(request.others.into_iter().collect()))?;
    let max = profile.output_tokens_max;
    // `max_completion_tokens` replaces the older name, which must be valid nevertheless.
    let fits = request.max_tokens.is_none_or(|limit| limit <= max);
    check("max_tokens", fits, format!("must be at most {max}"))?;
    let has_new_name = request.max_completion_tokens.is_some();
    let with_logprobs = request.logprobs.unwrap_or(false);
    let top = in_range("top_logprobs", request.top_logprobs, 0, 0..=TOP_LOGPROBS_MAX)?;
    check("top_logprobs", with_logprobs || top == 0, "is only allowed with `logprobs`: true")?;
    let shared = CompletionRequest {
        max_tokens: request.max_completion_tokens.or(request.max_tokens),
        n: request.n,
        stop: request.stop,
        logprobs: with_logprobs.then_some(top as i64),
        stream: request.stream,
        stream_options: request.stream_options,
        number: request.number,
        ..others
    };
    let names = FieldNames {
        max_tokens: if has_new_name { "max_completion_tokens" } else { "max_tokens" },
        alternatives: "top_logprobs",
        ..FieldNames::COMPLETIONS
    };
    Ok((shared, names))
}

/// Validates the fields of a message that follows the token ids `prompt`.
pub(super) fn message_request(
    shared: CompletionRequest,
    names: FieldNames,
    prompt: Vec<u32>,
    tools: Option<&ToolOffer>,
    room: Option<usize>,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    let arguments = tools.and_then(ToolOffer::forced_arguments);
    let shared = with_length(shared, arguments.is_some(), room, profile);
    let prompts = Some(vec![PromptInput::Ids(prompt)]);
    let (mut request, number) =
        fields::generation_request(prompts, shared, names, arguments.as_deref(), profile)?;
    if let Some(tools) = tools {
        tools.apply(&mut request, number.as_ref(), profile)?;
    }
    Ok((request, number))
}

/// The same fields with the default of `max_tokens` for a message. `is_call`: whether the message has to call
/// a function.
fn with_length(
    shared: CompletionRequest,
    is_call: bool,
    room: Option<usize>,
    profile: &ModelProfile,
) -> CompletionRequest {
    let max = profile.output_tokens_max;
    let max_tokens = shared.max_tokens.or_else(|| fields::message_tokens(&shared, is_call, room, max));
    CompletionRequest { max_tokens, ..shared }
}

/// The text that `echo` repeats: the last message, if the assistant wrote it.
pub(crate) fn echoed(request: &ChatRequest, conversation: &Conversation) -> Result<Option<String>, AppError> {
    if !request.echo.unwrap_or(false) {
        return Ok(None);
    }
    check("echo", !fields::wants_number(request.number.as_ref()), "is not allowed with `number`")?;
    let last = conversation.messages.last().filter(|message| message.role == "assistant");
    Ok(last.map(|message| message.text().to_owned()))
}

/// Writes answers as messages of the assistant.
pub(crate) struct ChatAnswers {
    context: AnswerContext,
    /// The text before each response.
    echoed: String,
}

impl ChatAnswers {
    pub(crate) fn new(
        model: &ServedModel,
        report: ReportOptions,
        number: Option<NumberFormat>,
        echoed: Option<String>,
    ) -> Self {
        let context = AnswerContext::new("chatcmpl-", model, report, number);
        Self { context, echoed: echoed.unwrap_or_default() }
    }

    fn chunk_of(&self, choices: Vec<ChatChunkChoice>, counts: Option<TokenCounts>) -> ChatChunk {
        ChatChunk {
            id: self.context.id.clone(),
            object: "chat.completion.chunk".to_owned(),
            created: self.context.created,
            model: self.context.model.clone(),
            system_fingerprint: self.context.fingerprint.clone(),
            choices,
            usage: counts.map(usage),
            prompt_token_ids: None,
        }
    }

    /// Takes the numbers and fields of a message, whose paths begin at the message.
    fn fields(&self, piece: &mut Piece, has_begin: bool) -> MessageFields {
        let mut numbers = std::mem::take(&mut piece.numbers);
        let mut fields = std::mem::take(&mut piece.fields);
        for call in &mut piece.calls {
            let root = format!("$.tool_calls[{}].function.arguments", call.index);
            numbers.extend(call.numbers.drain(..).map(|number| number.below(&root)));
            fields.extend(call.fields.drain(..).map(|field| field.below(&root)));
        }
        let numbers = self.context.listed(numbers, has_begin);
        MessageFields { numbers, fields: self.context.listed(fields, has_begin) }
    }

    fn logprobs(&self, tokens: &[TokenReport]) -> Option<ChatLogprobs> {
        Some(ChatLogprobs { content: self.context.logprobs(tokens)?, refusal: None })
    }
}

/// The numbers and fields of a message, if a response lists them.
struct MessageFields {
    numbers: Option<Vec<LocatedNumber>>,
    fields: Option<Vec<LocatedField>>,
}

impl AnswerWriter for ChatAnswers {
    type Whole = ChatResponse;
    type Item = ChatChoice;
    type Chunk = ChatChunk;

    fn context(&self) -> &AnswerContext {
        &self.context
    }

    fn chunks(&self, mut piece: Piece) -> Vec<ChatChunk> {
        // The prompt is the same for all choices.
        let prompt_token_ids =
            if piece.begins_response { self.context.prompt_token_ids(&piece) } else { None };
        let role = piece.begins_choice.then(|| "assistant".to_owned());
        let is_end = piece.text.is_empty() && piece.finish_reason.is_some() && role.is_none();
        let echoed = role.as_ref().map_or("", |_| self.echoed.as_str());
        // A part of a call has no content.
        let has_content = !is_end && (piece.calls.is_empty() || !piece.text.is_empty() || !echoed.is_empty());
        let content = has_content.then(|| format!("{echoed}{}", piece.text));
        let has_tokens = !piece.tokens.is_empty();
        let has_begin = piece.begins_choice;
        let MessageFields { numbers, fields } = self.fields(&mut piece, has_begin);
        let choice = ChatChunkChoice {
            index: piece.index,
            delta: ChatAnswer { role, content, tool_calls: deltas(&piece.calls) },
            logprobs: if has_tokens { self.logprobs(&piece.tokens) } else { None },
            finish_reason: piece.finish_reason.map(|reason| finish_reason(reason, piece.has_calls)),
            stop_reason: piece.stop_reason.take().map(stop_reason),
            token_ids: if has_tokens { self.context.token_ids(&piece) } else { None },
            numbers,
            fields,
            number: piece.number,
        };
        vec![ChatChunk { prompt_token_ids, ..self.chunk_of(vec![choice], None) }]
    }

    fn last_chunks(&self, counts: TokenCounts, include_usage: bool) -> Vec<ChatChunk> {
        include_usage.then(|| self.chunk_of(Vec::new(), Some(counts))).into_iter().collect()
    }

    fn whole(&self, choices: &[Piece], counts: TokenCounts) -> ChatResponse {
        let first = choices.first();
        let prompt_token_ids = first.and_then(|piece| self.context.prompt_token_ids(piece));
        let prompt_logprobs = first.and_then(|piece| self.context.prompt_logprobs(piece));
        ChatResponse {
            id: self.context.id.clone(),
            object: "chat.completion".to_owned(),
            created: self.context.created,
            model: self.context.model.clone(),
            system_fingerprint: self.context.fingerprint.clone(),
            choices: Vec::new(),
            usage: Some(usage(counts)),
            prompt_token_ids,
            prompt_logprobs,
        }
    }

    fn items(&self, mut piece: Piece) -> Vec<ChatChoice> {
        let content = format!("{}{}", self.echoed, piece.text);
        let token_ids = self.context.token_ids(&piece);
        let MessageFields { numbers, fields } = self.fields(&mut piece, true);
        let tool_calls: Vec<ToolCall> = piece.calls.into_iter().filter_map(whole_call).collect();
        vec![ChatChoice {
            index: piece.index,
            message: ChatResponseMessage {
                role: "assistant".to_owned(),
                content: Some(content).filter(|content| tool_calls.is_empty() || !content.is_empty()),
                refusal: None,
                tool_calls: Some(tool_calls).filter(|calls| !calls.is_empty()),
            },
            logprobs: self.logprobs(&piece.tokens),
            finish_reason: piece.finish_reason.map(|reason| finish_reason(reason, piece.has_calls)),
            stop_reason: piece.stop_reason.take().map(stop_reason),
            token_ids,
            numbers,
            fields,
            number: piece.number,
        }]
    }
}

/// The new parts of calls.
fn deltas(calls: &[CallPart]) -> Option<Vec<ToolCallDelta>> {
    let mut deltas = Vec::new();
    for part in calls {
        let begins = part.begins.as_ref();
        // A part may have only numbers.
        if begins.is_some() || !part.arguments.is_empty() {
            deltas.push(ToolCallDelta {
                index: part.index as u64,
                id: begins.map(|call| call.id.clone()),
                kind: begins.map(|_| FUNCTION.to_owned()),
                function: FunctionCallDelta {
                    name: begins.map(|call| call.name.clone()),
                    arguments: part.arguments.clone(),
                },
            });
        }
    }
    (!deltas.is_empty()).then_some(deltas)
}

fn whole_call(call: CallPart) -> Option<ToolCall> {
    let CallBeginning { id, name } = call.begins?;
    let function = FunctionCall { name, arguments: call.arguments };
    Some(ToolCall { id, kind: FUNCTION.to_owned(), function })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(body: Value) -> ChatRequest {
        serde_json::from_value(body).unwrap()
    }

    fn refused(body: Value) -> (String, String) {
        let error = conversation(&mut request(body), None, &ModelProfile::for_tests()).unwrap_err();
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
            (with("functions", json!([{}])), "functions"),
            (with("modalities", json!(["text", "audio"])), "modalities"),
            (with("messages", json!([{"role": "user", "content": image}])), "messages[0].content[1].type"),
            (
                with("messages", json!([{"role": "user", "content": [{"type": "text"}]}])),
                "messages[0].content[0]",
            ),
            (with("messages", json!([{"role": "function", "content": "x"}])), "messages[0].role"),
            (with("messages", json!([{"role": "wizard", "content": "x"}])), "messages[0].role"),
            (
                with("messages", json!([{"role": "user", "tool_call_id": "1", "content": "x"}])),
                "messages[0].tool_call_id",
            ),
            (
                with(
                    "messages",
                    json!([{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[]"}}]}]),
                ),
                "messages[0].tool_calls[0].function.arguments",
            ),
            (with("messages", json!([{"role": "user", "contents": "x"}])), "messages[0].contents"),
            (
                with(
                    "messages",
                    json!([{"role": "user", "content": [{"type": "text", "text": "x", "txt": 1}]}]),
                ),
                "messages[0].content[0].txt",
            ),
            (with("max_new_tokens", json!(1)), "max_new_tokens"),
            (with("prompt", json!("x")), "prompt"),
        ] {
            let (got, message) = refused(body.clone());
            assert_eq!(got, param, "{body}: {message}");
        }
        for neutral in [with("tools", json!([])), with("tool_choice", json!("auto"))] {
            assert_eq!(tool_offer(&mut request(neutral)).unwrap(), None);
        }
    }

    #[test]
    fn parts_are_lines_and_no_content_is_an_empty_text() {
        let body = json!({"messages": [
            {"role": "user", "type": "text", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": []}
        ], "add_generation_prompt": false});
        let conversation = conversation(&mut request(body), None, &ModelProfile::for_tests()).unwrap();
        let contents: Vec<_> = conversation.messages.iter().map(ChatMessage::text).collect();
        assert_eq!((contents, conversation.add_generation_prompt), (vec!["a\nb", ""], false));
    }

    #[test]
    fn fields_of_completions_are_handed_on_and_lengths_have_their_own_default() {
        let profile = ModelProfile::for_tests();
        let completion = |body: Value, room| {
            let shared = shared_fields(request(body), &profile);
            shared.map(|(shared, _)| with_length(shared, false, room, &profile))
        };
        let plain = completion(json!({"temperature": 0.5, "seed": 7, "user": "x"}), Some(100)).unwrap();
        assert_eq!(plain.prompt, None);
        let (whole, _) = generation_request(request(json!({})), vec![5, 6], None, None, &profile).unwrap();
        assert_eq!(whole.prompts, [PromptInput::Ids(vec![5, 6])]);
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
            assert_eq!(completion(body.clone(), room).unwrap().max_tokens, want, "{body}");
        }
        let error = completion(json!({"temperature": "hot"}), None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("temperature"));
        let both = json!({"max_tokens": u64::MAX, "max_completion_tokens": 4});
        let error = completion(both, None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("max_tokens"));
        let newer = request(json!({"max_completion_tokens": u64::MAX}));
        let error = generation_request(newer, vec![5], None, None, &profile).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("max_completion_tokens"));
        let error = completion(json!({"top_logprobs": 3}), None).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some("top_logprobs"));
    }
}
