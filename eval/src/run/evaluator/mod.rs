//! Sends all requests of a suite in phases: the questions, pairs again in the other order, requests for drawn
//! numbers, and finally the likelihood of the true answers. If prompts have a limit, it first requests their
//! tokens. `labels` runs a suite by a protocol, which also needs the tokens of the true answers. `questions`
//! runs a suite on a decision model.

mod labels;
mod questions;
mod truncation;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use ntl_api::TruncationSide;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::truncation::Truncation;
use self::truncation::{SpecialTokens, set_target};
use crate::data::Item;
use crate::error::OutputError;
use crate::json_path::JsonPath;
use crate::run::client::{ClientError, Route};
use crate::run::decisions::DecisionApi;
use crate::run::pairs::both_orders;
use crate::run::progress::{Progress, Style};
use crate::run::reply::{Answer, CompletionResponse, Reply, ScoreResponse, TokenizeResponse};
use crate::run::request::{Overrides, RequestTemplate, TruncatedPrompt};
use crate::run::runner::{Request, RunError, Runner};
use crate::settings::mode::Mode;
use crate::settings::number::RatingScale;

/// The name of a phase in progress and journal, and the route of its requests.
#[derive(Clone, Copy)]
struct Phase {
    /// Shown after the suite's name.
    title: &'static str,
    /// Journal entries are `{id} {index}`.
    id: &'static str,
    route: Route,
}

/// Maximum number of paths in a warning.
const PATHS_SHOWN: usize = 10;

/// The changes that an item's request makes to the template, or the reason why they are unknown, which fails
/// the item.
type Prepared = Result<Overrides, String>;

pub struct Evaluator<'a, 'r> {
    pub runner: Runner<'r>,
    pub template: &'r RequestTemplate,
    pub items: &'a [Item],
    /// Whether to request the likelihood of the true answers as well.
    pub score: bool,
    /// How longer prompts are cut. A protocol has its own limit.
    pub truncation: Option<Truncation>,
    pub progress_style: Style,
    /// The suite's name, for progress.
    pub name: String,
    pub err: &'r mut dyn Write,
}

/// How prompts were truncated.
#[derive(Debug, Clone, Default)]
struct TokenLimits {
    special: SpecialTokens,
    side: TruncationSide,
}

impl<'a> Evaluator<'a, '_> {
    /// Returns one reply per item, in the order of the items.
    ///
    /// # Errors
    /// Returns an error if every item would fail in the same way, if an answer cannot be saved, or if `err`
    /// cannot be written to.
    pub async fn run(mut self) -> Result<Vec<Reply<'a>>, RunError> {
        if let Some(protocol) = self.template.protocol.as_deref() {
            return self.run_protocol(protocol).await;
        }
        if let Some(api) = DecisionApi::of(self.template.api) {
            return self.run_questions(api).await;
        }
        let Some(truncation) = self.truncation else {
            let prepared = vec![Ok(Overrides::default()); self.items.len()];
            return self.ask(prepared, &TokenLimits::default()).await;
        };
        match self.special_tokens().await? {
            Ok(special) => {
                let prepared = self.truncate_prompts(truncation, &special).await?;
                self.ask(prepared, &TokenLimits { special, side: truncation.side }).await
            }
            Err(reason) => self.fail_all(&reason).await,
        }
    }

    /// Returns replies that all have the same reason for their failure.
    async fn fail_all(&mut self, reason: &str) -> Result<Vec<Reply<'a>>, RunError> {
        let prepared = vec![Err(reason.to_owned()); self.items.len()];
        self.ask(prepared, &TokenLimits::default()).await
    }

    /// Sends the questions and everything that follows them.
    async fn ask(
        &mut self,
        prepared: Vec<Prepared>,
        limits: &TokenLimits,
    ) -> Result<Vec<Reply<'a>>, RunError> {
        let items = self.items;
        let template = self.template;
        let mode = template.mode;
        let phase = Phase { title: "", id: "answer", route: template.route() };
        let bodies = self.bodies(&prepared, RequestTemplate::completion);
        let mut answers = self
            .phase_of_prepared(phase, bodies, |response: CompletionResponse| response.into_answer(mode))
            .await?;
        if let Some(scale) = template.number.scale {
            answers = self.judge_other_order(phase, answers, scale).await?;
        }
        if let Some(field) = &template.field {
            let mut paths = BTreeSet::new();
            let mut of_field = Vec::with_capacity(answers.len());
            for answer in answers {
                if let Ok(answer) = &answer {
                    paths.extend(answer.numbers.keys().cloned());
                }
                of_field.push(answer.map(|answer| answer.field(&field.path)));
            }
            self.warn_without_field(&of_field, &field.path, paths)?;
            answers = of_field;
        }
        let mut replies: Vec<Reply<'a>> =
            items.iter().zip(answers).map(|(item, answer)| Reply::new(item, answer)).collect();
        if let Some(draws) = template.number.draws {
            let phase = Phase { title: "samples", id: "samples", ..phase };
            let bodies =
                self.bodies(&prepared, |template, item, overrides| template.drawn(item, overrides, draws));
            let drawn = self
                .phase_of_prepared(phase, bodies, |response: CompletionResponse| response.into_answer(mode))
                .await?;
            for (reply, drawn) in replies.iter_mut().zip(drawn) {
                let number = drawn.ok().and_then(|answer| answer.number);
                reply.drawn_median = number.and_then(|number| Some(number.estimates()?.median));
            }
        }
        if self.score {
            let prepared = if template.targets_continue_prompts {
                self.tokenize_targets(prepared, limits).await?
            } else {
                prepared
            };
            let phase = Phase { title: "scoring", id: "score", route: Route::Score };
            let bodies = self.bodies(&prepared, RequestTemplate::score);
            let scores = self.phase_of_prepared(phase, bodies, ScoreResponse::into_only).await?;
            for (reply, score) in replies.iter_mut().zip(scores) {
                reply.target_score = Some(score);
            }
        }
        Ok(replies)
    }

    /// Prints a warning if no answer has the number that is scored. `paths`: the numbers that answers have.
    fn warn_without_field(
        &mut self,
        answers: &[Result<Answer, String>],
        path: &JsonPath,
        paths: BTreeSet<String>,
    ) -> Result<(), RunError> {
        if answers.iter().all(Result::is_err) {
            return Ok(());
        }
        for answer in answers.iter().flatten() {
            let has_field = match self.template.mode {
                Mode::Regress => answer.number.is_some(),
                Mode::Text | Mode::Paper => !answer.text.is_empty(),
            };
            if has_field {
                return Ok(());
            }
        }
        let paths: Vec<String> =
            paths.into_iter().take(PATHS_SHOWN).map(|path| format!("`{path}`")).collect();
        let others = match paths.as_slice() {
            [] => String::new(),
            paths => format!("; their numbers are at {}", paths.join(", ")),
        };
        let name = &self.name;
        writeln!(self.err, "{name}: no answer has a number at `{path}`{others}").map_err(OutputError)?;
        Ok(())
    }

    /// Returns the bodies of all items. An item without overrides keeps the reason.
    fn bodies(
        &self,
        overrides: &[Prepared],
        body: impl Fn(&RequestTemplate, &Item, &Overrides) -> Value,
    ) -> Vec<Result<Value, String>> {
        let mut bodies = Vec::with_capacity(self.items.len());
        for (item, overrides) in self.items.iter().zip(overrides) {
            bodies.push(match overrides {
                Ok(overrides) => Ok(body(self.template, item, overrides)),
                Err(reason) => Err(reason.clone()),
            });
        }
        bodies
    }

    /// Sends each pair again with its answers in the other order, and combines the two judgements. `phase` is
    /// the phase of the first order.
    async fn judge_other_order(
        &mut self,
        phase: Phase,
        answers: Vec<Result<Answer, String>>,
        scale: RatingScale,
    ) -> Result<Vec<Result<Answer, String>>, RunError> {
        let template = self.template;
        let items = self.items;
        let mut bodies = Vec::new();
        for (index, item) in items.iter().enumerate() {
            bodies.extend(template.swapped(item).map(|body| (index, body)));
        }
        if bodies.is_empty() {
            return Ok(answers);
        }
        let pairs: Vec<usize> = bodies.iter().map(|(index, _)| *index).collect();
        let mode = template.mode;
        let phase = Phase { title: "other order", id: "swapped", ..phase };
        let swapped =
            self.phase(phase, bodies, |response: CompletionResponse| response.into_answer(mode)).await?;
        let mut swapped: BTreeMap<usize, Result<Answer, String>> = pairs.into_iter().zip(swapped).collect();
        let mut judged = Vec::with_capacity(answers.len());
        for (index, first) in answers.into_iter().enumerate() {
            judged.push(match swapped.remove(&index) {
                Some(swapped) => both_orders(first, swapped, scale),
                None => first,
            });
        }
        Ok(judged)
    }

    /// Returns the special tokens that the tokenizer adds to every text, or why they are unknown.
    async fn special_tokens(&mut self) -> Result<Result<SpecialTokens, String>, RunError> {
        let phase = Phase { title: "tokenizer", id: "special", route: Route::Tokenize };
        let bodies = [true, false].map(|add_special_tokens| self.template.tokenize("1", add_special_tokens));
        let bodies = bodies.into_iter().enumerate().collect();
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        let ids = tokens.into_iter().map(|tokens| Ok(tokens?.tokens)).collect::<Result<Vec<_>, String>>();
        Ok(ids.map(|ids| SpecialTokens::of(&ids[0], &ids[1])))
    }

    /// Returns overrides with token ids for the prompts that are too long, or why a prompt's
    /// tokens could not be counted.
    async fn truncate_prompts(
        &mut self,
        truncation: Truncation,
        special: &SpecialTokens,
    ) -> Result<Vec<Prepared>, RunError> {
        let items = self.items;
        let Truncation { tokens_max, .. } = truncation;
        // Tokenizers hardly ever produce two tokens for one byte, so shorter texts need not be counted.
        let mut long = Vec::new();
        let mut bodies = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if item.prompt().len() * 2 > tokens_max {
                long.push(index);
                bodies.push((index, self.template.tokenize(item.prompt(), true)));
            }
        }
        let phase = Phase { title: "prompts", id: "prompt", route: Route::Tokenize };
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        let mut overrides = vec![Ok(Overrides::default()); items.len()];
        for (index, tokens) in long.into_iter().zip(tokens) {
            match tokens {
                Ok(TokenizeResponse { tokens: whole, .. }) if whole.len() > tokens_max => {
                    let kept = special.truncate(whole.clone(), truncation);
                    let prompt = Some(TruncatedPrompt { kept, whole });
                    overrides[index] = Ok(Overrides { prompt, ..Overrides::default() });
                }
                Ok(_) => {}
                Err(reason) => {
                    overrides[index] = Err(format!("its prompt could not be tokenized: {reason}"));
                }
            }
        }
        Ok(overrides)
    }

    /// Returns `overrides` with token ids for the true answers after truncated prompts. After token ids, the
    /// server tokenizes a target separately, and the first token may differ from the one in the text of
    /// prompt and answer.
    async fn tokenize_targets(
        &mut self,
        mut overrides: Vec<Prepared>,
        TokenLimits { special, side }: &TokenLimits,
    ) -> Result<Vec<Prepared>, RunError> {
        let items = self.items;
        let template = self.template;
        let mut truncated = Vec::new();
        let mut bodies = Vec::new();
        for (index, (item, prepared)) in items.iter().zip(&overrides).enumerate() {
            if prepared.as_ref().is_ok_and(|prepared| prepared.prompt.is_some()) {
                let text = format!("{}{}", item.prompt(), template.target(item));
                truncated.push(index);
                bodies.push((index, template.tokenize(&text, true)));
            }
        }
        let phase = Phase { title: "targets", id: "target", route: Route::Tokenize };
        let tokens = self.phase(phase, bodies, Ok::<TokenizeResponse, _>).await?;
        for (index, joint) in truncated.into_iter().zip(tokens) {
            match joint {
                Ok(joint) => {
                    if let Ok(prepared) = &mut overrides[index] {
                        set_target(prepared, &joint.tokens, special, *side);
                    }
                }
                Err(reason) => {
                    overrides[index] = Err(format!("its true answer could not be tokenized: {reason}"));
                }
            }
        }
        Ok(overrides)
    }

    /// Sends the requests of all items, like `phase`. Items that failed before keep their reason, and no
    /// requests are sent for them.
    async fn phase_of_prepared<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        phase: Phase,
        bodies: Vec<Result<Value, String>>,
        read: impl Fn(W) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let mut ready = Vec::new();
        let mut failures = Vec::with_capacity(bodies.len());
        for (index, body) in bodies.into_iter().enumerate() {
            match body {
                Ok(body) => {
                    ready.push((index, body));
                    failures.push(None);
                }
                Err(reason) => failures.push(Some(reason)),
            }
        }
        let mut answers = self.phase(phase, ready, read).await?.into_iter();
        let mut results = Vec::with_capacity(failures.len());
        for failure in failures {
            match failure {
                Some(reason) => results.push(Err(reason)),
                None => results.extend(answers.next()),
            }
        }
        Ok(results)
    }

    /// Sends the requests of one phase. `bodies` also has the indices of their items.
    async fn phase<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        phase: Phase,
        bodies: Vec<(usize, Value)>,
        read: impl Fn(W) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, String>>, RunError> {
        self.phase_by_index(phase, bodies, |_, response| read(response)).await
    }

    /// Sends the requests of one phase, like `phase`. `read` also gets the index of the body.
    async fn phase_by_index<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        Phase { title, id, route }: Phase,
        bodies: Vec<(usize, Value)>,
        read: impl Fn(usize, W) -> Result<T, ClientError>,
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let requests: Vec<Request> = bodies
            .into_iter()
            .map(|(index, body)| Request { id: format!("{id} {index}"), route, body })
            .collect();
        let name = format!("{} {title}", self.name);
        let mut progress = Progress::new(self.progress_style, name.trim_end(), requests.len());
        let template = self.template;
        let answers = self
            .runner
            .run(&requests, read, |error| explain(error, template, route), &mut progress, self.err)
            .await;
        progress.finish();
        answers
    }
}

/// Replaces a rejection with an error that explains what it means for this run.
fn explain(error: ClientError, template: &RequestTemplate, route: Route) -> ClientError {
    match route {
        Route::Tokenize | Route::Detokenize if error.is_missing_route() => ClientError::NoRoute {
            route: "/tokenize and /detokenize",
            need: "paper mode and --prompt-tokens need",
        },
        Route::Score if error.is_missing_route() => {
            ClientError::NoRoute { route: "/v1/score", need: "--score needs" }
        }
        Route::Decisions if error.is_unknown_route() => {
            ClientError::NoRoute { route: "/v1/decisions", need: "--api decisions needs" }
        }
        Route::Systemone if error.is_unknown_route() => {
            ClientError::NoRoute { route: "/v1/systemone", need: "--api systemone needs" }
        }
        Route::Completions | Route::Chat if template.mode == Mode::Regress => {
            match error.refusal().filter(|message| is_about_number(message)) {
                Some(message) => ClientError::NoNumber { reason: format!("it says: {message}") },
                None => error,
            }
        }
        Route::Completions => {
            let missing = match (error.refusal(), template.protocol.as_deref()) {
                (Some(message), Some(protocol)) => protocol.missing_decoding(message),
                _ => None,
            };
            match missing {
                Some(route) => ClientError::NoRoute { route, need: "paper mode needs" },
                None => error,
            }
        }
        _ => error,
    }
}

/// Returns whether an error message rejects the field `number` itself, in the words of common servers.
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
    fn a_rejected_field_is_distinguished_from_rejected_contents() {
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
