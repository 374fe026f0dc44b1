//! Writes answers as items of an output, or as the events of a stream.

use std::sync::{Mutex, PoisonError};

use ntl_api::{
    ChatTokenLogprobs, IncompleteDetails, InputTokensDetails, LocatedNumber, Number, OutputTokensDetails,
    ResponsesError, ResponsesEvent, ResponsesEventBody, ResponsesOutputItem, ResponsesOutputPart,
    ResponsesResponse, ResponsesSettings, ResponsesStatus, ResponsesUsage,
};
use ntl_core::contract::FinishReason;

use super::super::number::NumberFormat;
use super::super::{AnswerContext, AnswerWriter, engine_tokens};
use crate::answer::{CallBeginning, CallPart, Piece, TokenCounts, TokenReport};
use crate::error::AppError;
use crate::request::ReportOptions;
use crate::served::ServedModel;

pub(crate) struct ResponseAnswers {
    context: AnswerContext,
    settings: ResponsesSettings,
    /// The events so far; the pieces of a stream come one after the other.
    stream: Mutex<StreamedOutput>,
}

/// The output of a stream so far.
#[derive(Default)]
struct StreamedOutput {
    events: u64,
    /// The items that are complete.
    items: Vec<ResponsesOutputItem>,
    open: Option<OpenItem>,
    /// The tokens since the last text. A later text or call shows which of them they belong to.
    pending: Vec<ChatTokenLogprobs>,
    reason: Option<FinishReason>,
}

/// The item that is being written.
enum OpenItem {
    Message { id: String, text: String, logprobs: Vec<ChatTokenLogprobs>, numbers: Numbers },
    Call(OpenCall),
}

#[derive(Clone)]
struct OpenCall {
    id: String,
    call_id: String,
    name: String,
    arguments: String,
    numbers: Option<Vec<LocatedNumber>>,
}

/// The number that a text is, or the numbers in it.
#[derive(Debug, Clone, Default)]
struct Numbers {
    number: Option<Box<Number>>,
    numbers: Option<Vec<LocatedNumber>>,
}

impl ResponseAnswers {
    pub(crate) fn new(
        model: &ServedModel,
        report: ReportOptions,
        number: Option<NumberFormat>,
        settings: ResponsesSettings,
    ) -> Self {
        let context = AnswerContext::new("resp_", model, report, number);
        Self { context, settings, stream: Mutex::default() }
    }

    fn response(&self, status: ResponsesStatus, output: Vec<ResponsesOutputItem>) -> ResponsesResponse {
        let incomplete_details = (status == ResponsesStatus::Incomplete)
            .then(|| IncompleteDetails { reason: "max_output_tokens".to_owned() });
        ResponsesResponse {
            id: self.context.id.clone(),
            object: "response".to_owned(),
            created_at: self.context.created,
            status,
            error: None,
            incomplete_details,
            output,
            model: self.context.model.clone(),
            usage: None,
            request: self.settings.clone(),
        }
    }

    /// Changes the output of the stream, and numbers the events of the change.
    fn events(
        &self,
        change: impl FnOnce(&mut StreamedOutput) -> Vec<ResponsesEventBody>,
    ) -> Vec<ResponsesEvent> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let bodies = change(&mut stream);
        let first = stream.events;
        stream.events += bodies.len() as u64;
        (first..)
            .zip(bodies)
            .map(|(sequence_number, body)| ResponsesEvent { sequence_number, body })
            .collect()
    }
}

impl StreamedOutput {
    fn index(&self) -> u64 {
        self.items.len() as u64
    }

    /// Closes the open item.
    fn close(&mut self, status: ResponsesStatus, events: &mut Vec<ResponsesEventBody>) {
        let Some(open) = self.open.take() else { return };
        let output_index = self.index();
        let content_index = 0;
        let item = match open {
            OpenItem::Message { id, text, mut logprobs, numbers } => {
                logprobs.append(&mut self.pending);
                let part = output_text(text.clone(), logprobs.clone(), numbers);
                let item_id = id.clone();
                events.push(ResponsesEventBody::TextDone {
                    item_id,
                    output_index,
                    content_index,
                    text,
                    logprobs,
                });
                let (item_id, done) = (id.clone(), part.clone());
                events.push(ResponsesEventBody::PartDone {
                    item_id,
                    output_index,
                    content_index,
                    part: done,
                });
                message(id, status, vec![part])
            }
            OpenItem::Call(call) => {
                events.push(ResponsesEventBody::ArgumentsDone {
                    item_id: call.id.clone(),
                    output_index,
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                });
                call.item(status)
            }
        };
        events.push(ResponsesEventBody::ItemDone { output_index, item: item.clone() });
        self.items.push(item);
    }

    /// Adds text with the tokens that are pending. `begin` are the numbers of a new message.
    fn add_text(
        &mut self,
        delta: String,
        added: Numbers,
        begin: &Numbers,
        events: &mut Vec<ResponsesEventBody>,
    ) {
        let content_index = 0;
        let new_logprobs = std::mem::take(&mut self.pending);
        if !matches!(self.open, Some(OpenItem::Message { .. })) {
            self.close(ResponsesStatus::Completed, events);
            let id = new_id("msg");
            let output_index = self.index();
            let item = message(id.clone(), ResponsesStatus::InProgress, Vec::new());
            events.push(ResponsesEventBody::ItemAdded { output_index, item });
            let part = output_text(String::new(), Vec::new(), begin.clone());
            let item_id = id.clone();
            events.push(ResponsesEventBody::PartAdded { item_id, output_index, content_index, part });
            let (text, logprobs) = Default::default();
            self.open = Some(OpenItem::Message { id, text, logprobs, numbers: begin.clone() });
        }
        let output_index = self.index();
        if let Some(OpenItem::Message { id, text, logprobs, numbers }) = &mut self.open {
            text.push_str(&delta);
            logprobs.extend_from_slice(&new_logprobs);
            numbers.append(added);
            events.push(ResponsesEventBody::TextDelta {
                item_id: id.clone(),
                output_index,
                content_index,
                delta,
                logprobs: new_logprobs,
            });
        }
    }

    /// Adds a part of a call. `begin` are the numbers of a new one.
    fn add_call(&mut self, part: CallPart, begin: &Numbers, events: &mut Vec<ResponsesEventBody>) {
        self.pending.clear();
        if let Some(CallBeginning { id: call_id, name }) = part.begins {
            self.close(ResponsesStatus::Completed, events);
            let (arguments, numbers) = (String::new(), begin.numbers.clone());
            let call = OpenCall { id: new_id("fc"), call_id, name, arguments, numbers };
            let item = call.clone().item(ResponsesStatus::InProgress);
            events.push(ResponsesEventBody::ItemAdded { output_index: self.index(), item });
            self.open = Some(OpenItem::Call(call));
        }
        let output_index = self.index();
        let Some(OpenItem::Call(call)) = &mut self.open else { return };
        if !part.numbers.is_empty() {
            call.numbers.get_or_insert_default().extend(part.numbers);
        }
        if !part.arguments.is_empty() {
            call.arguments.push_str(&part.arguments);
            let (item_id, delta) = (call.id.clone(), part.arguments);
            events.push(ResponsesEventBody::ArgumentsDelta { item_id, output_index, delta });
        }
    }
}

impl AnswerWriter for ResponseAnswers {
    type Whole = ResponsesResponse;
    type Item = ResponsesOutputItem;
    type Chunk = ResponsesEvent;

    const ENDS_WITH_DONE: bool = false;
    const ITEMS: &'static str = "output";

    fn context(&self) -> &AnswerContext {
        &self.context
    }

    fn first_chunks(&self) -> Vec<ResponsesEvent> {
        let response = self.response(ResponsesStatus::InProgress, Vec::new());
        self.events(|_| {
            vec![
                ResponsesEventBody::Created { response: Box::new(response.clone()) },
                ResponsesEventBody::InProgress { response: Box::new(response) },
            ]
        })
    }

    fn chunks(&self, mut piece: Piece) -> Vec<ResponsesEvent> {
        let begin = self.numbers(None, Vec::new(), true);
        let numbers = self.numbers(piece.number.take(), std::mem::take(&mut piece.numbers), false);
        let logprobs = self.context.logprobs(&piece.tokens).unwrap_or_default();
        self.events(|stream| {
            let mut events = Vec::new();
            stream.reason = piece.finish_reason.or(stream.reason);
            stream.pending.extend(logprobs);
            if !piece.text.is_empty() || !numbers.is_empty() {
                stream.add_text(piece.text, numbers, &begin, &mut events);
            }
            for part in piece.calls {
                stream.add_call(part, &begin, &mut events);
            }
            events
        })
    }

    fn last_chunks(&self, counts: TokenCounts, _include_usage: bool) -> Vec<ResponsesEvent> {
        let begin = self.numbers(None, Vec::new(), true);
        self.events(|stream| {
            let mut events = Vec::new();
            let status = status(stream.reason);
            if stream.items.is_empty() && stream.open.is_none() {
                // An empty text is an output, too.
                stream.add_text(String::new(), Numbers::default(), &begin, &mut events);
            }
            stream.close(status, &mut events);
            let output = std::mem::take(&mut stream.items);
            let response = ResponsesResponse { usage: Some(usage(counts)), ..self.response(status, output) };
            let response = Box::new(response);
            events.push(match status {
                ResponsesStatus::Incomplete => ResponsesEventBody::Incomplete { response },
                _ => ResponsesEventBody::Completed { response },
            });
            events
        })
    }

    fn failure_chunk(&self, error: &AppError) -> Option<ResponsesEvent> {
        let detail = error.body().error;
        let code = detail.code.unwrap_or(detail.kind);
        let error = Some(ResponsesError { code, message: detail.message });
        let events = self.events(|stream| {
            let output = std::mem::take(&mut stream.items);
            let response = ResponsesResponse { error, ..self.response(ResponsesStatus::Failed, output) };
            vec![ResponsesEventBody::Failed { response: Box::new(response) }]
        });
        events.into_iter().next()
    }

    fn event_name(event: &ResponsesEvent) -> Option<&'static str> {
        Some(event.body.name())
    }

    fn whole(&self, choices: &[Piece], counts: TokenCounts) -> ResponsesResponse {
        let status = status(choices.first().and_then(|piece| piece.finish_reason));
        ResponsesResponse { usage: Some(usage(counts)), ..self.response(status, Vec::new()) }
    }

    fn items(&self, piece: Piece) -> Vec<ResponsesOutputItem> {
        let last = status(piece.finish_reason);
        let mut items = Vec::new();
        if !piece.text.is_empty() || piece.calls.is_empty() {
            let logprobs = self.context.logprobs(text_tokens(&piece)).unwrap_or_default();
            let numbers = self.numbers(piece.number, piece.numbers, true);
            let part = output_text(piece.text, logprobs, numbers);
            items.push(message(new_id("msg"), last, vec![part]));
        }
        items.extend(piece.calls.into_iter().filter_map(|call| {
            let CallBeginning { id: call_id, name } = call.begins?;
            let numbers = self.context.listed(call.numbers, true);
            let arguments = call.arguments;
            Some(OpenCall { id: new_id("fc"), call_id, name, arguments, numbers }.item(last))
        }));
        let complete = items.len().saturating_sub(1);
        for item in &mut items[..complete] {
            let (ResponsesOutputItem::Message { status, .. }
            | ResponsesOutputItem::FunctionCall { status, .. }) = item;
            *status = ResponsesStatus::Completed;
        }
        items
    }
}

impl ResponseAnswers {
    fn numbers(&self, number: Option<Number>, numbers: Vec<LocatedNumber>, has_begin: bool) -> Numbers {
        Numbers { number: number.map(Box::new), numbers: self.context.listed(numbers, has_begin) }
    }
}

impl OpenCall {
    fn item(self, status: ResponsesStatus) -> ResponsesOutputItem {
        let Self { id, call_id, name, arguments, numbers } = self;
        ResponsesOutputItem::FunctionCall { id, status, call_id, name, arguments, numbers }
    }
}

impl Numbers {
    fn is_empty(&self) -> bool {
        self.number.is_none() && self.numbers.is_none()
    }

    fn append(&mut self, later: Self) {
        self.number = later.number.or(self.number.take());
        if let Some(later) = later.numbers {
            self.numbers.get_or_insert_default().extend(later);
        }
    }
}

fn status(reason: Option<FinishReason>) -> ResponsesStatus {
    match reason {
        Some(FinishReason::Length) => ResponsesStatus::Incomplete,
        Some(FinishReason::Stop) | None => ResponsesStatus::Completed,
    }
}

fn message(id: String, status: ResponsesStatus, content: Vec<ResponsesOutputPart>) -> ResponsesOutputItem {
    ResponsesOutputItem::Message { id, status, role: "assistant".to_owned(), content }
}

/// The tokens of a text, without those of the calls after it.
fn text_tokens(piece: &Piece) -> &[TokenReport] {
    if piece.calls.is_empty() {
        return &piece.tokens;
    }
    let end = piece.text.chars().count() as u64;
    &piece.tokens[..piece.tokens.partition_point(|token| token.offset < end)]
}

fn output_text(
    text: String,
    logprobs: Vec<ChatTokenLogprobs>,
    Numbers { number, numbers }: Numbers,
) -> ResponsesOutputPart {
    ResponsesOutputPart::OutputText { text, annotations: Vec::new(), logprobs, number, numbers }
}

fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}

fn usage(counts: TokenCounts) -> ResponsesUsage {
    let input_tokens = counts.prompt as u64;
    let output_tokens = counts.completion as u64;
    ResponsesUsage {
        input_tokens,
        input_tokens_details: InputTokensDetails::default(),
        output_tokens,
        output_tokens_details: OutputTokensDetails::default(),
        total_tokens: input_tokens + output_tokens,
        x_engine: counts.engine.map(engine_tokens),
    }
}
