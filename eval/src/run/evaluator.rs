//! Sends all requests of a suite, in phases: in paper mode the tokens of the labels, then the questions, then the
//! likelihood of the true answers.

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::flags::Mode;
use crate::data::Item;
use crate::metrics::judgement::Orders;
use crate::run::client::{ClientError, Route};
use crate::run::pairs::both_orders;
use crate::run::paper::{self, SpecialTokens};
use crate::run::progress::{Progress, Style};
use crate::run::reply::{
    Answer, CompletionResponse, DetokenizeResponse, Label, Reply, ScoreResponse, TokenizeResponse,
};
use crate::run::request::{Overrides, RequestTemplate};
use crate::run::runner::{Request, RunError, Runner};

/// The name under which progress and journal know a phase, and where its requests go.
#[derive(Clone, Copy)]
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
    /// The suite's, for progress.
    pub name: String,
    pub err: &'r mut dyn Write,
}

impl<'a> Evaluator<'a, '_> {
    /// One reply per item, in their order.
    ///
    /// # Errors
    /// Every item would fail in the same way, an answer cannot be kept, or `err` cannot be written to.
    pub async fn run(mut self) -> Result<Vec<Reply<'a>>, RunError> {
        let (items, mode) = (self.items, self.template.mode);
        let mut labels = vec![None; items.len()];
        let mut overrides = vec![Overrides::default(); items.len()];
        if mode == Mode::Paper {
            (labels, overrides) = self.prepare_paper().await?;
        } else if let Some(tokens_max) = self.prompt_tokens_max {
            let special = self.special_tokens().await?;
            overrides =
                self.truncate_prompts(tokens_max, |ids| special.truncate_start(ids, tokens_max)).await?;
        }
        let phase = Phase { title: "", id: "answer", route: self.template.route() };
        let bodies = items.iter().zip(&overrides);
        let bodies = bodies.map(|(item, overrides)| self.template.completion(item, overrides)).enumerate();
        let read = |response: CompletionResponse| response.into_answer(mode);
        let answers = self.phase(phase, bodies.collect(), read).await?;
        let (answers, orders) = self.judge_other_order(phase, answers).await?;
        let mut target_scores = vec![None; items.len()];
        if self.score {
            let phase = Phase { title: "scoring", id: "score", route: Route::Score };
            let bodies = items.iter().map(|item| self.template.score(item)).enumerate();
            let scores = self.phase(phase, bodies.collect(), ScoreResponse::into_only).await?;
            target_scores = scores.into_iter().map(Some).collect();
        }
        let replies = items.iter().zip(answers).zip(orders).zip(labels).zip(target_scores);
        Ok(replies
            .map(|((((item, answer), orders), label), target_score)| Reply {
                item,
                answer,
                orders,
                label,
                target_score,
            })
            .collect())
    }

    /// Asks for each pair again with its answers in the other order, and puts both answers together. `phase`: of the first
    /// order.
    async fn judge_other_order(
        &mut self,
        phase: Phase,
        mut answers: Vec<Result<Answer, String>>,
    ) -> Result<(Vec<Result<Answer, String>>, Vec<Option<Orders>>), RunError> {
        let mut orders = vec![None; answers.len()];
        let (template, items) = (self.template, self.items);
        let Some(scale) = template.number.scale else { return Ok((answers, orders)) };
        let body = |(index, item): (usize, &Item)| Some((index, template.swapped(item)?));
        let bodies: Vec<(usize, Value)> = items.iter().enumerate().filter_map(body).collect();
        if bodies.is_empty() {
            return Ok((answers, orders));
        }
        let pairs: Vec<usize> = bodies.iter().map(|(index, _)| *index).collect();
        let mode = template.mode;
        let read = |response: CompletionResponse| response.into_answer(mode);
        let phase = Phase { title: "other order", id: "swapped", ..phase };
        let swapped = self.phase(phase, bodies, read).await?;
        for (index, swapped) in pairs.into_iter().zip(swapped) {
            let first = std::mem::replace(&mut answers[index], Err(String::new()));
            (answers[index], orders[index]) = both_orders(first, swapped, scale);
        }
        Ok((answers, orders))
    }

    /// The labels as tokens, and the lengths that follow from them.
    async fn prepare_paper(&mut self) -> Result<(Vec<Option<Label>>, Vec<Overrides>), RunError> {
        let items = self.items;
        let special = self.special_tokens().await?;
        let phase = Phase { title: "labels", id: "label", route: Route::Tokenize };
        let bodies = items.iter().map(|item| self.template.tokenize(&item.answer, true)).enumerate();
        let tokens = self.phase(phase, bodies.collect(), Ok::<TokenizeResponse, _>).await?;
        let ids: Vec<Vec<u32>> = tokens
            .into_iter()
            .map(|tokens| special.truncate(tokens.unwrap_or_default().tokens, paper::TOKENS_MAX))
            .map(|ids| ids.get(special.before..).unwrap_or_default().to_vec())
            .collect();
        let phase = Phase { title: "labels", id: "text", route: Route::Detokenize };
        let without_end = |ids: &'_ Vec<u32>| ids[..ids.len().saturating_sub(special.after.len())].to_vec();
        let bodies = ids.iter().map(|ids| self.template.detokenize(&without_end(ids))).enumerate();
        let texts = self.phase(phase, bodies.collect(), Ok::<DetokenizeResponse, _>).await?;
        let truncate = |ids| special.truncate(ids, paper::TOKENS_MAX);
        let mut overrides = self.truncate_prompts(paper::TOKENS_MAX, truncate).await?;
        for (overrides, max_tokens) in
            overrides.iter_mut().zip(paper::max_tokens(&ids, !special.after.is_empty()))
        {
            overrides.max_tokens = Some(max_tokens);
        }
        let end = special.after.last().copied();
        let labels = ids.into_iter().zip(texts).zip(items);
        let labels = labels.map(|((ids, text), item)| {
            text.ok().map(|text| paper::label(ids, end, text.prompt, &item.answer))
        });
        Ok((labels.collect(), overrides))
    }

    /// What the tokenizer adds to every text.
    async fn special_tokens(&mut self) -> Result<SpecialTokens, RunError> {
        let phase = Phase { title: "tokenizer", id: "special", route: Route::Tokenize };
        let bodies = [true, false].map(|add_special_tokens| self.template.tokenize("1", add_special_tokens));
        let bodies = bodies.into_iter().enumerate().collect();
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        let ids: Vec<Vec<u32>> = tokens.into_iter().map(|tokens| tokens.unwrap_or_default().tokens).collect();
        Ok(SpecialTokens::of(&ids[0], &ids[1]))
    }

    /// Token ids in place of the prompts that are longer than `tokens_max`.
    async fn truncate_prompts(
        &mut self,
        tokens_max: usize,
        truncate: impl Fn(Vec<u32>) -> Vec<u32>,
    ) -> Result<Vec<Overrides>, RunError> {
        let items = self.items;
        // Tokenizers hardly ever make two tokens of one byte; shorter texts need not be counted.
        let long: Vec<usize> =
            (0..items.len()).filter(|&index| items[index].prompt().len() * 2 > tokens_max).collect();
        let phase = Phase { title: "prompts", id: "prompt", route: Route::Tokenize };
        let body = |&index: &usize| (index, self.template.tokenize(items[index].prompt(), true));
        let tokens = self.phase(phase, long.iter().map(body).collect(), Ok::<TokenizeResponse, _>).await?;
        let mut overrides = vec![Overrides::default(); items.len()];
        for (index, tokens) in long.into_iter().zip(tokens) {
            let ids = tokens.unwrap_or_default().tokens;
            if ids.len() > tokens_max {
                overrides[index].prompt_ids = Some(truncate(ids));
            }
        }
        Ok(overrides)
    }

    /// `bodies`: with the indices of their items.
    async fn phase<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        Phase { title, id, route }: Phase,
        bodies: Vec<(usize, Value)>,
        read: impl Fn(W) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let requests: Vec<Request> = bodies
            .into_iter()
            .map(|(index, body)| Request { id: format!("{id} {index}"), route, body })
            .collect();
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
