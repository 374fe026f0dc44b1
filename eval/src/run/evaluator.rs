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
use crate::run::request::{Overrides, RequestTemplate, TruncatedPrompt};
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

/// What an item's request changes in the template, or why that is not known: then the item's answer failed.
type Prepared = Result<Overrides, String>;

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
        let counts_tokens = mode == Mode::Paper || self.prompt_tokens_max.is_some();
        let special = if counts_tokens { self.special_tokens().await? } else { Ok(SpecialTokens::default()) };
        let no_labels = vec![None; items.len()];
        let (labels, overrides) = match (&special, self.prompt_tokens_max) {
            (Err(reason), _) => (no_labels, vec![Err(reason.clone()); items.len()]),
            (Ok(special), _) if mode == Mode::Paper => self.prepare_paper(special).await?,
            (Ok(special), Some(tokens_max)) => {
                let truncate = |ids| special.truncate_start(ids, tokens_max);
                (no_labels, self.truncate_prompts(tokens_max, truncate).await?)
            }
            (Ok(_), None) => (no_labels, vec![Ok(Overrides::default()); items.len()]),
        };
        let phase = Phase { title: "", id: "answer", route: self.template.route() };
        let bodies = self.bodies(&overrides, RequestTemplate::completion);
        let read = |response: CompletionResponse| response.into_answer(mode);
        let answers = self.phase_of_prepared(phase, bodies, read).await?;
        let (answers, orders) = self.judge_other_order(phase, answers).await?;
        let mut target_scores = vec![None; items.len()];
        if self.score {
            let overrides = match &special {
                Ok(special) if self.template.targets_continue_prompts => {
                    self.tokenize_targets(overrides, special).await?
                }
                _ => overrides,
            };
            let phase = Phase { title: "scoring", id: "score", route: Route::Score };
            let bodies = self.bodies(&overrides, RequestTemplate::score);
            let scores = self.phase_of_prepared(phase, bodies, ScoreResponse::into_only).await?;
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

    /// Of all items; one without overrides keeps the reason.
    fn bodies(
        &self,
        overrides: &[Prepared],
        body: impl Fn(&RequestTemplate, &Item, &Overrides) -> Value,
    ) -> Vec<Result<Value, String>> {
        let of = |(item, overrides): (&Item, &Prepared)| match overrides {
            Ok(overrides) => Ok(body(self.template, item, overrides)),
            Err(reason) => Err(reason.clone()),
        };
        self.items.iter().zip(overrides).map(of).collect()
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

    /// The labels as tokens, and the lengths that follow from them. An item whose label or prompt could not be tokenized has the
    /// reason in place of its overrides.
    async fn prepare_paper(
        &mut self,
        special: &SpecialTokens,
    ) -> Result<(Vec<Option<Label>>, Vec<Prepared>), RunError> {
        let items = self.items;
        let phase = Phase { title: "labels", id: "label", route: Route::Tokenize };
        let bodies = items.iter().map(|item| self.template.tokenize(&item.answer, true)).enumerate();
        let tokens = self.phase(phase, bodies.collect(), Ok::<TokenizeResponse, _>).await?;
        let own_ids = |tokens: TokenizeResponse| {
            let ids = special.truncate(tokens.tokens, paper::TOKENS_MAX);
            ids.get(special.before..).unwrap_or_default().to_vec()
        };
        let ids: Vec<Result<Vec<u32>, String>> =
            tokens.into_iter().map(|tokens| tokens.map(own_ids).map_err(of_label)).collect();
        let phase = Phase { title: "labels", id: "text", route: Route::Detokenize };
        let body = |ids: &Result<Vec<u32>, String>| match ids {
            Ok(ids) => Ok(self.template.detokenize(special.without_end(ids))),
            Err(reason) => Err(reason.clone()),
        };
        let bodies = ids.iter().map(body).collect();
        let texts = self.phase_of_prepared(phase, bodies, Ok::<DetokenizeResponse, _>).await?;
        let truncate = |ids| special.truncate(ids, paper::TOKENS_MAX);
        let mut overrides = self.truncate_prompts(paper::TOKENS_MAX, truncate).await?;
        // A label without tokens leaves its batch, and its item is not asked for.
        let ids: Vec<Vec<u32>> = ids.into_iter().map(Result::unwrap_or_default).collect();
        for (overrides, max_tokens) in
            overrides.iter_mut().zip(paper::max_tokens(&ids, !special.after.is_empty()))
        {
            if let Ok(overrides) = overrides {
                overrides.max_tokens = Some(max_tokens);
            }
        }
        let end = special.after.last().copied();
        let mut labels = Vec::with_capacity(items.len());
        for (((ids, text), item), overrides) in ids.into_iter().zip(texts).zip(items).zip(&mut overrides) {
            labels.push(match text {
                Ok(text) => Some(paper::label(ids, end, text.prompt, &item.answer)),
                Err(reason) => {
                    *overrides = Err(reason);
                    None
                }
            });
        }
        Ok((labels, overrides))
    }

    /// What the tokenizer adds to every text, or why that is not known.
    async fn special_tokens(&mut self) -> Result<Result<SpecialTokens, String>, RunError> {
        let phase = Phase { title: "tokenizer", id: "special", route: Route::Tokenize };
        let bodies = [true, false].map(|add_special_tokens| self.template.tokenize("1", add_special_tokens));
        let bodies = bodies.into_iter().enumerate().collect();
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        let ids = tokens.into_iter().map(|tokens| Ok(tokens?.tokens)).collect::<Result<Vec<_>, String>>();
        Ok(ids.map(|ids| SpecialTokens::of(&ids[0], &ids[1])))
    }

    /// Token ids in place of the prompts that are longer than `tokens_max`, or why a prompt's tokens could not be counted.
    async fn truncate_prompts(
        &mut self,
        tokens_max: usize,
        truncate: impl Fn(Vec<u32>) -> Vec<u32>,
    ) -> Result<Vec<Prepared>, RunError> {
        let items = self.items;
        // Tokenizers hardly ever make two tokens of one byte; shorter texts need not be counted.
        let long: Vec<usize> =
            (0..items.len()).filter(|&index| items[index].prompt().len() * 2 > tokens_max).collect();
        let phase = Phase { title: "prompts", id: "prompt", route: Route::Tokenize };
        let body = |&index: &usize| (index, self.template.tokenize(items[index].prompt(), true));
        let tokens = self.phase(phase, long.iter().map(body).collect(), Ok::<TokenizeResponse, _>).await?;
        let mut overrides = vec![Ok(Overrides::default()); items.len()];
        for (index, tokens) in long.into_iter().zip(tokens) {
            let cut = |whole: Vec<u32>| {
                (whole.len() > tokens_max).then(|| TruncatedPrompt { kept: truncate(whole.clone()), whole })
            };
            overrides[index] = match tokens {
                Ok(tokens) => Ok(Overrides { prompt: cut(tokens.tokens), ..Overrides::default() }),
                Err(reason) => Err(format!("its prompt could not be tokenized: {reason}")),
            };
        }
        Ok(overrides)
    }

    /// `overrides` with token ids for the true answers behind truncated prompts. The server tokenizes a target behind token ids
    /// alone, and may begin it with another token than in the text of prompt and answer.
    async fn tokenize_targets(
        &mut self,
        mut overrides: Vec<Prepared>,
        special: &SpecialTokens,
    ) -> Result<Vec<Prepared>, RunError> {
        let (items, template) = (self.items, self.template);
        let is_truncated = |prepared: &Prepared| prepared.as_ref().is_ok_and(|one| one.prompt.is_some());
        let truncated: Vec<usize> =
            (0..items.len()).filter(|&index| is_truncated(&overrides[index])).collect();
        let phase = Phase { title: "targets", id: "target", route: Route::Tokenize };
        let body = |&index: &usize| {
            let item = &items[index];
            (index, template.tokenize(&format!("{}{}", item.prompt(), template.target(item)), true))
        };
        let bodies = truncated.iter().map(body).collect();
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        for (index, joint) in truncated.into_iter().zip(tokens) {
            match joint {
                Ok(joint) => {
                    if let Ok(prepared) = &mut overrides[index] {
                        set_target(prepared, &joint.tokens, special);
                    }
                }
                Err(reason) => {
                    overrides[index] = Err(format!("its true answer could not be tokenized: {reason}"));
                }
            }
        }
        Ok(overrides)
    }

    /// As `phase`, for all items: those that failed before keep the reason, and nothing is sent for them.
    async fn phase_of_prepared<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        phase: Phase,
        bodies: Vec<Result<Value, String>>,
        read: impl Fn(W) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let (mut ready, mut places) = (Vec::new(), Vec::new());
        let mut answers = Vec::with_capacity(bodies.len());
        for (index, body) in bodies.into_iter().enumerate() {
            let reason = match body {
                Ok(body) => {
                    ready.push((index, body));
                    places.push(index);
                    String::new()
                }
                Err(reason) => reason,
            };
            answers.push(Err(reason));
        }
        for (index, answer) in places.into_iter().zip(self.phase(phase, ready, read).await?) {
            answers[index] = answer;
        }
        Ok(answers)
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

/// Sets the target of a truncated prompt. `joint`: the token ids of the whole prompt and its true answer as one text. Where no token
/// boundary lies between the two, the target begins with the first token that differs from those of the prompt.
fn set_target(prepared: &mut Overrides, joint: &[u32], special: &SpecialTokens) {
    let Some(TruncatedPrompt { whole, kept }) = &mut prepared.prompt else { return };
    let (whole, joint) = (special.without_end(whole), special.without_end(joint));
    let common = whole.iter().zip(joint).take_while(|(a, b)| a == b).count();
    let (prompt, target) = (special.without_end(kept), &joint[common..]);
    *kept = prompt.strip_suffix(&whole[common..]).unwrap_or(prompt).to_vec();
    prepared.target_ids = Some(target.to_vec());
}

fn of_label(reason: String) -> String {
    format!("its label could not be tokenized: {reason}")
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
    fn a_target_behind_a_truncated_prompt_has_the_tokens_of_the_whole_text() {
        let target = |joint: &[u32], end: &[u32]| {
            let (whole, kept) = ([&[2, 5, 6, 7], end].concat(), [&[2, 6, 7], end].concat());
            let prompt = Some(TruncatedPrompt { whole, kept });
            let mut prepared = Overrides { prompt, ..Overrides::default() };
            set_target(&mut prepared, joint, &SpecialTokens { before: 1, after: end.to_vec() });
            (prepared.prompt.unwrap().kept, prepared.target_ids.unwrap())
        };
        assert_eq!(target(&[2, 5, 6, 7, 8, 9], &[]), (vec![2, 6, 7], vec![8, 9]));
        // The end of the prompt and the beginning of the answer are one token.
        assert_eq!(target(&[2, 5, 6, 78, 9], &[]), (vec![2, 6], vec![78, 9]));
        assert_eq!(target(&[2, 5, 6, 7, 8, 1], &[1]), (vec![2, 6, 7], vec![8]));
    }

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
