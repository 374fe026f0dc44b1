//! Pieces of choices, put together: for an answer at once, or where a piece has several parts.

use ntl_api::{Choice, Logprobs};

use super::plan::Wanted;

/// All choices of an answer while they are put together.
pub(crate) struct Transcript(Vec<Choice>);

impl Transcript {
    /// Empty choices for so many prompts.
    pub(crate) fn new(prompts: usize, wanted: &Wanted) -> Self {
        let count = prompts as u64 * u64::from(wanted.answers_per_prompt());
        let shown = wanted.shown();
        let numbers = shown.number_tokens.then(Vec::new);
        let nothing = Logprobs {
            top_logprobs: Some(Vec::new()),
            number_values: numbers.clone(),
            number_mass: numbers,
            ..Logprobs::default()
        };
        let logprobs = shown.logprobs.map(|_| nothing);
        let token_ids = shown.token_ids.then(Vec::new);
        let choice = |index| Choice {
            index,
            logprobs: logprobs.clone(),
            token_ids: token_ids.clone(),
            ..Choice::default()
        };
        Self((0..count).map(choice).collect())
    }

    /// Adds a piece.
    pub(crate) fn add(&mut self, piece: Choice) {
        let place = usize::try_from(piece.index).ok().and_then(|index| self.0.get_mut(index));
        if let Some(choice) = place {
            append(choice, piece);
        }
    }

    /// The choices, by index.
    pub(crate) fn into_choices(self) -> Vec<Choice> {
        self.0
    }
}

/// Adds a piece behind another one of the same choice.
pub(super) fn append(choice: &mut Choice, piece: Choice) {
    choice.text.push_str(&piece.text);
    choice.finish_reason = piece.finish_reason.or(choice.finish_reason);
    choice.cumulative_logprob = piece.cumulative_logprob.or(choice.cumulative_logprob);
    choice.number = piece.number.or(choice.number.take());
    choice.prompt_token_ids = piece.prompt_token_ids.or(choice.prompt_token_ids.take());
    choice.prompt_logprobs = piece.prompt_logprobs.or(choice.prompt_logprobs.take());
    extend(&mut choice.token_ids, piece.token_ids);
    match (&mut choice.logprobs, piece.logprobs) {
        (Some(all), Some(new)) => append_logprobs(all, new),
        (none, new) => *none = new.or(none.take()),
    }
}

pub(super) fn append_logprobs(all: &mut Logprobs, new: Logprobs) {
    all.tokens.extend(new.tokens);
    all.token_logprobs.extend(new.token_logprobs);
    all.text_offset.extend(new.text_offset);
    extend(&mut all.top_logprobs, new.top_logprobs);
    extend(&mut all.number_values, new.number_values);
    extend(&mut all.number_mass, new.number_mass);
}

fn extend<T>(all: &mut Option<Vec<T>>, new: Option<Vec<T>>) {
    match (all, new) {
        (Some(all), Some(new)) => all.extend(new),
        (all, new) => *all = all.take().or(new),
    }
}
