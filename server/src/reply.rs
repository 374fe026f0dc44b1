//! A completion as it goes out: what all its parts have in common, and all of it at once.
//!
//! In: events and how to write them. Out: the response body. Not here: the parts one by one (`sse`).

use ntl_api::{Choice, CompletionResponse, Usage};

use crate::answers::Answers;
use crate::convert::{ChoiceWriter, Transcript};
use crate::error::AppError;
use crate::models::{ServedModel, unix_seconds};

/// What every part of one answer has in common.
pub(crate) struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    /// For an answer of this model, made now.
    pub(crate) fn new(model: &ServedModel) -> Self {
        let id = format!("cmpl-{}", uuid::Uuid::new_v4().simple());
        Self { id, created: unix_seconds(), model: model.name().to_string() }
    }

    /// An answer, or a chunk of one.
    pub(crate) fn with(&self, choices: Vec<Choice>, usage: Option<Usage>) -> CompletionResponse {
        let (id, model) = (self.id.clone(), self.model.clone());
        CompletionResponse {
            id,
            object: "text_completion".to_owned(),
            created: self.created,
            model,
            choices,
            usage,
        }
    }
}

/// Waits for all of an answer.
pub(crate) async fn whole(
    head: Head,
    mut answers: Answers,
    mut writer: ChoiceWriter,
    mut transcript: Transcript,
) -> Result<CompletionResponse, AppError> {
    while let Some((prompt, event)) = answers.next().await? {
        if let Some(piece) = writer.write(prompt, event) {
            transcript.add(piece);
        }
    }
    Ok(head.with(transcript.into_choices(), Some(writer.usage())))
}
