//! Sends all requests of a suite, in phases: in paper mode the tokens of the labels, then the questions, then the
//! likelihood of the true answers.

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::flags::Mode;
use crate::data::Item;
use crate::run::client::{ClientError, Route};
use crate::run::paper;
use crate::run::progress::{Progress, Style};
use crate::run::reply::{
    CompletionResponse, DetokenizeResponse, Label, Reply, ScoreResponse, TokenizeResponse,
};
use crate::run::request::{Overrides, RequestTemplate};
use crate::run::runner::{Request, RunError, Runner};

/// The name under which progress and journal know a phase, and where its requests go.
struct Phase {
    /// Shown behind the suite's name.
    title: &'static str,
    /// Journal entries are `{id} {index}`.
    id: &'static str,
    route: Route,
}

pub struct Evaluator<'a, 'r> {
    pub runner: Runner<'r>,
    pub template: &'r RequestTemplate,
    pub items: &'a [Item],
    /// Whether the likelihood of the true answers is requested, too.
    pub score: bool,
    /// Longest prompt in tokens, in modes other than the paper's.
    pub prompt_tokens_max: Option<usize>,
    pub progress_style: Style,
    /// The suite's name in progress.
    pub name: String,
    pub err: &'r mut dyn Write,
}

/// What the phases before the questions find out about an item.
#[derive(Debug, Clone, Default)]
struct Prepared {
    overrides: Overrides,
    label: Option<Label>,
}

impl<'a> Evaluator<'a, '_> {
    /// One reply per item, in their order.
    ///
    /// # Errors
    /// Every item would fail in the same way, an answer cannot be kept, or `err` cannot be written to.
    pub async fn run(mut self) -> Result<Vec<Reply<'a>>, RunError> {
        let (items, template, mode) = (self.items, self.template, self.template.mode);
        let prepared = match (mode, self.prompt_tokens_max) {
            (Mode::Paper, _) => self.prepare_paper().await?,
            (Mode::Text | Mode::Regress, Some(tokens_max)) => self.truncate_prompts(tokens_max).await?,
            (Mode::Text | Mode::Regress, None) => vec![Prepared::default(); items.len()],
        };
        let phase = Phase { title: "", id: "answer", route: template.route() };
        let bodies = items.iter().zip(&prepared);
        let bodies =
            bodies.map(|(item, prepared)| template.completion(item, &prepared.overrides)).enumerate();
        let read = |response: CompletionResponse| response.into_answer(mode);
        let answers = self.phase(phase, bodies, read).await?;
        let mut replies: Vec<Reply<'_>> = items
            .iter()
            .zip(answers)
            .zip(prepared)
            .map(|((item, answer), Prepared { label, .. })| Reply { item, answer, label, target_score: None })
            .collect();
        if self.score {
            let phase = Phase { title: "scoring", id: "score", route: Route::Score };
            let bodies = items.iter().map(|item| template.score(item)).enumerate();
            let scores = self.phase(phase, bodies, ScoreResponse::into_only).await?;
            for (reply, score) in replies.iter_mut().zip(scores) {
                reply.target_score = Some(score);
            }
        }
        Ok(replies)
    }

    /// The labels as tokens, and the lengths that follow from them.
    async fn prepare_paper(&mut self) -> Result<Vec<Prepared>, RunError> {
        let (items, template) = (self.items, self.template);
        let phase = Phase { title: "labels", id: "label", route: Route::Tokenize };
        let bodies = items.iter().map(|item| template.tokenize(&item.answer)).enumerate();
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        // A label that the server cannot tokenise has no tokens.
        let tokens = tokens.into_iter().map(Result::unwrap_or_default);
        let ids: Vec<Vec<u32>> =
            tokens.map(|tokens| paper::truncate(tokens.tokens, paper::TOKENS_MAX)).collect();
        let phase = Phase { title: "labels", id: "text", route: Route::Detokenize };
        let without_end = |ids: &'_ [u32]| ids[..ids.len().saturating_sub(1)].to_vec();
        let bodies = ids.iter().map(|ids| template.detokenize(&without_end(ids))).enumerate();
        let texts = self.phase(phase, bodies, Ok::<DetokenizeResponse, _>).await?;
        let mut prepared = self.truncate_prompts(paper::TOKENS_MAX).await?;
        for (prepared, max_tokens) in prepared.iter_mut().zip(paper::max_tokens(&ids)) {
            prepared.overrides.max_tokens = Some(max_tokens);
        }
        for (((prepared, ids), text), item) in prepared.iter_mut().zip(ids).zip(texts).zip(items) {
            prepared.label = text.ok().map(|text| paper::label(ids, text.prompt, &item.answer));
        }
        Ok(prepared)
    }

    /// Token ids in place of the prompts that are longer than `tokens_max`. A prompt that the server cannot tokenise stays a
    /// text.
    async fn truncate_prompts(&mut self, tokens_max: usize) -> Result<Vec<Prepared>, RunError> {
        let (items, template) = (self.items, self.template);
        // Tokenizers hardly ever make two tokens of one byte; shorter texts need not be counted.
        let is_long = |index: &usize| items[*index].prompt().len() * 2 > tokens_max;
        let long: Vec<usize> = (0..items.len()).filter(is_long).collect();
        let phase = Phase { title: "prompts", id: "prompt", route: Route::Tokenize };
        let bodies = long.iter().map(|&index| (index, template.tokenize(items[index].prompt())));
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        let mut prepared = vec![Prepared::default(); items.len()];
        for (index, tokens) in long.into_iter().zip(tokens) {
            if let Ok(TokenizeResponse { tokens }) = tokens
                && tokens.len() > tokens_max
            {
                prepared[index].overrides.prompt_ids = Some(paper::truncate(tokens, tokens_max));
            }
        }
        Ok(prepared)
    }

    /// `bodies`: with the indices of their items.
    async fn phase<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        Phase { title, id, route }: Phase,
        bodies: impl Iterator<Item = (usize, Value)>,
        read: impl Fn(W) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let requests: Vec<Request> =
            bodies.map(|(index, body)| Request { id: format!("{id} {index}"), route, body }).collect();
        let name = format!("{} {title}", self.name);
        let mut progress = Progress::new(self.progress_style, name.trim_end(), requests.len());
        let mode = self.template.mode;
        let explain = |error| explain(error, mode, route);
        let answers = self.runner.run(&requests, read, explain, &mut progress, self.err).await;
        progress.finish();
        answers
    }
}

/// Replaces a refusal by an error that says what it means for this run.
fn explain(error: ClientError, mode: Mode, route: Route) -> ClientError {
    match route {
        Route::Tokenize | Route::Detokenize if error.is_missing_route() => ClientError::NoRoute {
            route: "/tokenize and /detokenize",
            need: "paper mode and --prompt-tokens need",
        },
        Route::Score if error.is_missing_route() => {
            ClientError::NoRoute { route: "/v1/score", need: "--score needs" }
        }
        Route::Completions | Route::Chat if mode == Mode::Regress => {
            match error.refusal().filter(|message| is_about_number(message)) {
                Some(message) => ClientError::NoNumber { reason: format!("it says: {message}") },
                None => error,
            }
        }
        Route::Completions if mode == Mode::Paper => {
            match error.refusal().filter(|message| message.to_lowercase().contains("beam")) {
                Some(_) => ClientError::NoRoute { route: "beam search", need: "paper mode needs" },
                None => error,
            }
        }
        _ => error,
    }
}

/// Whether a refusal is about the field `number` as such, in the words of common servers.
fn is_about_number(message: &str) -> bool {
    let message = message.to_lowercase();
    let unknown =
        ["unrecognized", "unknown", "unexpected", "extra ", "not permitted", "unsupported", "not supported"];
    message.contains("number") && unknown.iter().any(|word| message.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_field_is_told_from_one_of_its_contents() {
        for (message, want) in [
            ("Unrecognized request argument supplied: number", true),
            ("body.number: Extra inputs are not permitted", true),
            ("`number.trim` must be in 0..0.49", false),
            ("unknown model", false),
        ] {
            assert_eq!(is_about_number(message), want, "{message}");
        }
    }
}
