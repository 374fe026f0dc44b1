//! Between the wire and the engine: pure functions, no HTTP and no waiting.
//!
//! [`plan()`] makes a validated [`Plan`] of a request, [`PromptInput`] makes token ids of prompts, [`ChoiceWriter`] makes
//! choices of events; [`score_plan()`] and [`ScorePrint`] do both for scores. Invariant: whatever JSON comes in, the outcome is a plan or a 400 that names the field.

mod beams;
mod chat;
mod choices;
mod echo;
mod guided;
mod number;
mod number_method;
mod number_options;
mod plan;
mod prompt;
mod sampling;
mod score;
mod text;
mod transcript;
mod unsupported;

pub(crate) use chat::{ChatWriter, chat_completion, conversation};
pub(crate) use choices::ChoiceWriter;
pub(crate) use echo::PromptShown;
pub(crate) use guided::Guided;
pub(crate) use number::NumberPrint;
pub(crate) use number_method::method_of;
pub(crate) use plan::{Plan, Rules, Wanted, plan};
pub(crate) use prompt::PromptInput;
pub(crate) use score::{ScoreIds, ScorePlan, ScorePrint, score_plan};
pub(crate) use transcript::Transcript;

use crate::error::AppError;

/// Checks that a number lies in a range that `message` describes, as in "must be from 1 to 20".
fn check(param: &str, fits: bool, message: impl Into<String>) -> Result<(), AppError> {
    if fits { Ok(()) } else { Err(AppError::invalid(param, format!("`{param}` {}", message.into()))) }
}

/// The seed of a job where the request has none.
fn random_seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}
