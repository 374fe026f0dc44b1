//! A completion as it goes out: what all its parts have in common, and all of it at once.
//!
//! In: events and how to write them. Out: the response body. Not here: the parts one by one (`sse`).

use ntl_api::{ChatChunk, ChatResponse, Choice, CompletionResponse, Usage};
use serde::Serialize;

use crate::answers::Answers;
use crate::convert::{ChatWriter, ChoiceWriter, Transcript};
use crate::error::AppError;
use crate::models::{ServedModel, unix_seconds};

/// What every part of one answer has in common.
pub(crate) struct Head {
    id: String,
    created: u64,
    model: String,
    style: Style,
}

/// Which API an answer is for.
enum Style {
    Completion,
    Chat(ChatWriter),
}

/// An answer, or a chunk of one.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Body {
    Completion(CompletionResponse),
    Chat(ChatResponse),
    ChatChunk(ChatChunk),
}

impl Head {
    /// For a completion of this model, made now.
    pub(crate) fn new(model: &ServedModel) -> Self {
        Self::styled(model, "cmpl", Style::Completion)
    }

    /// For an answer to a chat with this model, made now.
    pub(crate) fn chat(model: &ServedModel, writer: ChatWriter) -> Self {
        Self::styled(model, "chatcmpl", Style::Chat(writer))
    }

    fn styled(model: &ServedModel, prefix: &str, style: Style) -> Self {
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        Self { id, created: unix_seconds(), model: model.name().to_string(), style }
    }

    /// A chunk with a piece of one choice.
    pub(crate) fn piece(&mut self, piece: Choice) -> Body {
        match &mut self.style {
            Style::Completion => self.completion(vec![piece], None),
            Style::Chat(writer) => {
                let piece = writer.piece(piece);
                self.chat_chunk(vec![piece], None)
            }
        }
    }

    /// A chunk with the usage.
    pub(crate) fn usage(&self, usage: Usage) -> Body {
        match self.style {
            Style::Completion => self.completion(Vec::new(), Some(usage)),
            Style::Chat(_) => self.chat_chunk(Vec::new(), Some(usage)),
        }
    }

    /// A whole answer.
    fn whole(&self, choices: Vec<Choice>, usage: Usage) -> Body {
        let Style::Chat(writer) = &self.style else { return self.completion(choices, Some(usage)) };
        Body::Chat(ChatResponse {
            id: self.id.clone(),
            object: "chat.completion".to_owned(),
            created: self.created,
            model: self.model.clone(),
            choices: choices.into_iter().map(|choice| writer.whole(choice)).collect(),
            usage: Some(usage),
        })
    }

    fn completion(&self, choices: Vec<Choice>, usage: Option<Usage>) -> Body {
        let (id, model) = (self.id.clone(), self.model.clone());
        Body::Completion(CompletionResponse {
            id,
            object: "text_completion".to_owned(),
            created: self.created,
            model,
            choices,
            usage,
        })
    }

    fn chat_chunk(&self, choices: Vec<ntl_api::ChatChunkChoice>, usage: Option<Usage>) -> Body {
        let (id, model) = (self.id.clone(), self.model.clone());
        Body::ChatChunk(ChatChunk {
            id,
            object: "chat.completion.chunk".to_owned(),
            created: self.created,
            model,
            choices,
            usage,
        })
    }
}

/// Waits for all of an answer.
pub(crate) async fn whole(
    head: Head,
    mut answers: Answers,
    mut writer: ChoiceWriter,
    mut transcript: Transcript,
) -> Result<Body, AppError> {
    while let Some((prompt, event)) = answers.next().await? {
        if let Some(piece) = writer.write(prompt, event) {
            transcript.add(piece);
        }
    }
    Ok(head.whole(transcript.into_choices(), writer.usage()))
}
