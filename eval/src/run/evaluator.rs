//! Everything that is asked about the items of a suite, in phases: in paper mode what the labels look like as tokens, then
//! the questions, then what the model says of the true answers.
//!
//! In: a suite and how to ask. Out: one [`Reply`] per item, in order.

use std::io::Write;

use crate::cli::flags::Mode;
use crate::data::Item;
use crate::run::ask::{Answer, Answers, Asking, Extra, ScoreAnswer, Scored, Text, Tokens};
use crate::run::client::{ClientError, Route};
use crate::run::progress::{Progress, Style};
use crate::run::runner::{Request, RunError, Runner};

/// Items that the paper's trainer evaluates at once; its length rule and its averages depend on it.
pub const PAPER_BATCH: usize = 64;

/// The paper's `max_length` is this much above the longest label, and counts the token that decoding starts from.
const PAPER_ROOM: u64 = 10;

/// Most tokens that the paper's tokenizers keep of a question or a label.
const PAPER_TOKENS_MAX: usize = 512;

/// A label as the paper's evaluation sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Label {
    /// Its tokens, with the end of sequence.
    pub ids: Vec<u32>,
    /// The text that the tokens stand for.
    pub text: String,
}

/// All that is known of one item.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The answer, or why there is none.
    pub answer: Result<Answer, String>,
    /// In paper mode.
    pub label: Option<Label>,
    /// With `--score`: what the model says of the true answer, or why it is not known.
    pub scored: Option<Result<Scored, String>>,
}

/// A suite's questions, and who is asked.
#[derive(Debug)]
pub struct Interview<'a, 'r> {
    /// Who is asked.
    pub runner: Runner<'r>,
    /// How.
    pub asking: &'a Asking,
    /// What.
    pub items: &'a [Item],
    /// Whether the true answers are scored, too.
    pub score: bool,
    /// Most tokens of a prompt, in modes other than the paper's; longer ones are cut as there.
    pub prompt_tokens: Option<usize>,
    /// How progress is shown, and under what name.
    pub shown: (Style, String),
}

impl Interview<'_, '_> {
    /// Goes through all phases.
    ///
    /// # Errors
    /// Every item would fail in the same way, an answer cannot be kept, or `err` cannot be written to.
    pub async fn hold(mut self, err: &mut (dyn Write + '_)) -> Result<Vec<Reply>, RunError> {
        let count = self.items.len();
        let (mut labels, mut extras) = (vec![None; count], vec![Extra::default(); count]);
        if self.asking.mode == Mode::Paper {
            (labels, extras) = self.prepare_paper(err).await?;
        } else if let Some(most) = self.prompt_tokens {
            extras = self.cut_prompts(most, err).await?;
        }
        let answers = self.questions(&extras, err).await?;
        let mut scored: Vec<Option<Result<Scored, String>>> = vec![None; count];
        if self.score {
            let requests = self.requests("score", Route::Score, |asking, item| asking.score(item));
            let answers = self.phase(&requests, "scoring", ScoreAnswer::only, err).await?;
            scored = answers.into_iter().map(Some).collect();
        }
        let replies = answers.into_iter().zip(labels).zip(scored);
        Ok(replies.map(|((answer, label), scored)| Reply { answer, label, scored }).collect())
    }

    async fn questions(
        &mut self,
        extras: &[Extra],
        err: &mut (dyn Write + '_),
    ) -> Result<Vec<Result<Answer, String>>, RunError> {
        let pairs = self.items.iter().zip(extras).enumerate();
        let requests: Vec<Request> = pairs
            .map(|(index, (item, extra))| Request {
                id: format!("answer {index}"),
                route: self.asking.route(),
                body: self.asking.question(item, extra),
            })
            .collect();
        let mode = self.asking.mode;
        self.phase(&requests, "", |answers: Answers| answers.first(mode), err).await
    }

    /// What the paper's length rule needs: the tokens of all labels, and of questions that may be cut.
    async fn prepare_paper(
        &mut self,
        err: &mut (dyn Write + '_),
    ) -> Result<(Vec<Option<Label>>, Vec<Extra>), RunError> {
        let labels = self.requests("label", Route::Tokenize, |asking, item| asking.tokenize(&item.answer));
        let tokens = self.phase(&labels, "labels", |tokens: Tokens| Ok(tokens), err).await?;
        let ids: Vec<Vec<u32>> = tokens
            .into_iter()
            .map(|tokens| cut(tokens.unwrap_or_default().tokens, PAPER_TOKENS_MAX))
            .collect();
        let asking = self.asking;
        let texts: Vec<Request> = ids
            .iter()
            .enumerate()
            .map(|(index, ids)| Request {
                id: format!("text {index}"),
                route: Route::Detokenize,
                body: asking.detokenize(ids.split_last().map_or(&[], |(_, before)| before)),
            })
            .collect();
        let texts = self.phase(&texts, "labels", |text: Text| Ok(text), err).await?;
        let mut extras = self.cut_prompts(PAPER_TOKENS_MAX, err).await?;
        for (batch, extras) in ids.chunks(PAPER_BATCH).zip(extras.chunks_mut(PAPER_BATCH)) {
            let longest = batch.iter().map(Vec::len).max().unwrap_or(0) as u64;
            for extra in extras {
                extra.max_tokens = Some(longest + PAPER_ROOM - 1);
            }
        }
        let labels = ids.into_iter().zip(texts).zip(self.items).map(|((ids, text), item)| {
            text.ok().map(|text| Label { ids, text: label_text(text.prompt, &item.answer) })
        });
        Ok((labels.collect(), extras))
    }

    /// Token ids of the prompts that have more than `most` tokens, cut to that.
    async fn cut_prompts(&mut self, most: usize, err: &mut (dyn Write + '_)) -> Result<Vec<Extra>, RunError> {
        // Tokenizers hardly ever make two tokens of one byte; shorter texts need not be counted.
        let long: Vec<usize> =
            (0..self.items.len()).filter(|&index| self.items[index].prompt().len() * 2 > most).collect();
        let requests: Vec<Request> = long
            .iter()
            .map(|&index| Request {
                id: format!("prompt {index}"),
                route: Route::Tokenize,
                body: self.asking.tokenize(self.items[index].prompt()),
            })
            .collect();
        let tokens = self.phase(&requests, "prompts", |tokens: Tokens| Ok(tokens), err).await?;
        let mut extras = vec![Extra::default(); self.items.len()];
        for (index, tokens) in long.into_iter().zip(tokens) {
            let ids = tokens.unwrap_or_default().tokens;
            if ids.len() > most {
                extras[index].prompt_ids = Some(cut(ids, most));
            }
        }
        Ok(extras)
    }

    fn requests(
        &self,
        name: &str,
        route: Route,
        body: impl Fn(&Asking, &Item) -> serde_json::Value,
    ) -> Vec<Request> {
        let items = self.items.iter().enumerate();
        items
            .map(|(index, item)| Request {
                id: format!("{name} {index}"),
                route,
                body: body(self.asking, item),
            })
            .collect()
    }

    async fn phase<W: serde::de::DeserializeOwned, T: serde::Serialize + serde::de::DeserializeOwned>(
        &mut self,
        requests: &[Request],
        name: &str,
        read: impl Fn(W) -> Result<T, ClientError>,
        err: &mut (dyn Write + '_),
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let name = if name.is_empty() { self.shown.1.clone() } else { format!("{} {name}", self.shown.1) };
        let mut progress = Progress::new(self.shown.0, &name, requests.len());
        let (mode, route) = (self.asking.mode, requests.first().map(|request| request.route));
        let explain = |error| explain(error, mode, route);
        let answers = self.runner.ask(requests, read, explain, (&mut progress, err)).await;
        progress.finish();
        answers
    }
}

/// What the paper's tokenizers keep of too many tokens: the first ones and the end of sequence.
fn cut(mut ids: Vec<u32>, most: usize) -> Vec<u32> {
    if ids.len() > most {
        ids.drain(most - 1..ids.len() - 1);
    }
    ids
}

/// Says of a refusal what it means for this kind of run.
fn explain(error: ClientError, mode: Mode, route: Option<Route>) -> ClientError {
    match route {
        Some(Route::Tokenize | Route::Detokenize) if error.is_missing_route() => ClientError::NoRoute {
            route: "/tokenize and /detokenize",
            need: "paper mode and --prompt-tokens need",
        },
        Some(Route::Score) if error.is_missing_route() => {
            ClientError::NoRoute { route: "/v1/score", need: "--score needs" }
        }
        Some(Route::Completions | Route::Chat) if mode == Mode::Regress => {
            match error.refusal().filter(|message| is_about_number(message)) {
                Some(message) => ClientError::NoNumber { reason: format!("it says: {message}") },
                None => error,
            }
        }
        Some(Route::Completions) if mode == Mode::Paper => {
            match error.refusal().filter(|message| message.to_lowercase().contains("beam")) {
                Some(_) => ClientError::NoRoute { route: "beam search", need: "paper mode needs" },
                None => error,
            }
        }
        _ => error,
    }
}

/// Whether a refusal is one of the field `number` as such, in the words of common servers.
fn is_about_number(message: &str) -> bool {
    let message = message.to_lowercase();
    let unknown =
        ["unrecognized", "unknown", "unexpected", "extra ", "not permitted", "unsupported", "not supported"];
    message.contains("number") && unknown.iter().any(|word| message.contains(word))
}

/// What a label reads as. Token ids alone do not hold the numbers of a checkpoint that keeps them beside its tokens
/// (xVal); such a label is taken as it was written.
fn label_text(decoded: String, written: &str) -> String {
    let has_number = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    if has_number(&decoded) || !has_number(written) { decoded } else { written.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_tokens_lose_those_before_the_last() {
        let kept = cut((0..600).collect(), 512);
        assert_eq!((kept.len(), kept[510], kept[511]), (512, 510, 599));
        assert_eq!((cut(vec![1, 2], 2), cut(vec![1, 2, 3], 1)), (vec![1, 2], vec![3]));
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

    #[test]
    fn a_label_whose_number_its_tokens_do_not_hold_is_taken_as_it_was_written() {
        assert_eq!(label_text("- [NUM]".to_owned(), "-142"), "-142");
        assert_eq!(label_text("- 142".to_owned(), "-142"), "- 142");
        assert_eq!(label_text("none".to_owned(), "none"), "none");
    }
}
