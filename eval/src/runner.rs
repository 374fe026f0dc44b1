//! Asks every question of a suite, a bounded number at once.
//!
//! In: items and a client. Out: one [`Reply`] per item, in the items' order. An item that fails is a reply too;
//! only an error that every item would meet ends the run. Once a whole round of requests in a row found nobody
//! there, the remaining items fail untried, so that a server that went away costs seconds and not hours.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use futures::{StreamExt, stream};
use ntl_api::{CompletionRequest, Number, NumberOptions, NumberRequest, Objective, ObjectiveName, Prompt};
use ntl_core::numbers::parse::last_number;
use serde_json::{Map, Value};

use crate::client::{Client, ClientError, Completion};
use crate::data::Item;
use crate::flags::{Common, Mode};
use crate::metrics::Estimates;
use crate::progress::Progress;

/// How to ask.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    /// For text or for a number.
    pub mode: Mode,
    /// Whom.
    pub model: String,
    /// Most tokens of a text.
    pub max_tokens: u64,
    /// Requests at once.
    pub concurrency: NonZeroUsize,
}

impl Asking {
    /// As the flags say.
    pub fn new(common: &Common, model: &str) -> Self {
        Self {
            mode: common.mode,
            model: model.to_owned(),
            max_tokens: common.max_tokens.get(),
            concurrency: common.concurrency,
        }
    }

    /// The fields of the request that are the same for every item, as sent.
    pub fn request_settings(&self) -> Map<String, Value> {
        match serde_json::to_value(self.request(None)) {
            Ok(Value::Object(fields)) => fields.into_iter().filter(|(name, _)| name != "model").collect(),
            _ => Map::new(),
        }
    }

    fn request(&self, question: Option<&str>) -> CompletionRequest {
        let common = CompletionRequest {
            model: Some(self.model.clone()),
            prompt: question.map(|text| Prompt::Text(text.to_owned())),
            ..CompletionRequest::default()
        };
        match self.mode {
            Mode::Text => {
                CompletionRequest { max_tokens: Some(self.max_tokens), temperature: Some(0.0), ..common }
            }
            Mode::Regress => CompletionRequest { number: Some(number_request()), ..common },
        }
    }
}

/// The answer to one item.
#[derive(Debug)]
pub enum Reply {
    /// An answer, with or without a number in it.
    Answered {
        /// The text.
        text: String,
        /// What was read.
        numbers: Option<Estimates>,
        /// Closed mass behind the number, in regress mode.
        mass_closed: Option<f64>,
    },
    /// Why there is none.
    Failed(String),
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Every item would fail in this way.
    #[error(transparent)]
    Client(ClientError),
    /// Progress could not be shown.
    #[error("could not write progress")]
    Output(#[source] io::Error),
}

/// Asks all items.
///
/// # Errors
/// Every item would fail in the same way, or `err` cannot be written to.
pub async fn run(
    client: &Client,
    asking: &Asking,
    items: &[Item],
    progress: &mut Progress,
    err: &mut dyn Write,
) -> Result<Vec<Reply>, RunError> {
    let ask = |(index, item): (usize, &Item)| {
        let body = asking.request(Some(&item.question));
        async move { (index, client.complete(&body).await) }
    };
    let mut replies: Vec<Option<Reply>> = items.iter().map(|_| None).collect();
    let mut answers =
        stream::iter(items.iter().enumerate().map(ask)).buffer_unordered(asking.concurrency.get());
    let mut unreachable_in_a_row = 0;
    while let Some((index, answer)) = answers.next().await {
        unreachable_in_a_row = match &answer {
            Err(error) if error.is_unreachable() => unreachable_in_a_row + 1,
            _ => 0,
        };
        let reply = match answer.and_then(|completion| read(asking.mode, completion)) {
            Ok(reply) => reply,
            Err(error) if error.is_fatal() => return Err(RunError::Client(error)),
            Err(error) => Reply::Failed(chain(&error)),
        };
        progress.step(matches!(reply, Reply::Failed(_)), err).map_err(RunError::Output)?;
        if let Some(slot) = replies.get_mut(index) {
            *slot = Some(reply);
        }
        if unreachable_in_a_row >= asking.concurrency.get() {
            break;
        }
    }
    let untried = || Reply::Failed("not tried: the endpoint is not reachable any more".to_owned());
    Ok(replies.into_iter().map(|reply| reply.unwrap_or_else(untried)).collect())
}

/// All defaults, but named, so that a report shows what was asked.
fn number_request() -> NumberRequest {
    let options =
        NumberOptions { objective: Some(Objective::Named(ObjectiveName::Mean)), ..NumberOptions::default() };
    match serde_json::to_value(options) {
        Ok(Value::Object(fields)) => NumberRequest::Options(fields),
        _ => NumberRequest::Switch(true),
    }
}

fn read(mode: Mode, completion: Completion) -> Result<Reply, ClientError> {
    let Completion { text, number } = completion;
    match mode {
        Mode::Text => {
            let numbers = last_number(&text).map(Estimates::point);
            Ok(Reply::Answered { text, numbers, mass_closed: None })
        }
        Mode::Regress => {
            let number = number.ok_or(ClientError::NoNumber)?;
            let (numbers, mass_closed) = (estimates(&number), Some(number.mass.closed));
            Ok(Reply::Answered { text, numbers, mass_closed })
        }
    }
}

/// A number without a value is no number, whatever else is known. A checkpoint that has only one estimate gives
/// that for all.
fn estimates(number: &Number) -> Option<Estimates> {
    let value = number.value?;
    Some(Estimates {
        mean: number.trimmed_mean.unwrap_or(value),
        median: number.median.unwrap_or(value),
        mode: number.mode.unwrap_or(value),
    })
}

/// The error and what caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::client::{ClientConfig, RetryPolicy};
    use crate::progress::Style;

    fn asking(mode: Mode) -> Asking {
        Asking { mode, model: "tiny".to_owned(), max_tokens: 32, concurrency: NonZeroUsize::MIN }
    }

    #[test]
    fn settings_show_what_is_sent_without_the_question() {
        for (mode, want) in [
            (Mode::Text, serde_json::json!({ "max_tokens": 32, "temperature": 0.0 })),
            (Mode::Regress, serde_json::json!({ "number": { "objective": "mean" } })),
        ] {
            assert_eq!(Value::Object(asking(mode).request_settings()), want);
        }
    }

    #[tokio::test]
    async fn once_nobody_is_there_any_more_the_rest_is_not_tried() {
        // Free again once the listener is dropped.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = Client::new(ClientConfig {
            endpoints: vec![format!("http://{address}").parse().unwrap()],
            api_key: None,
            timeout: Duration::from_secs(60),
            retry: RetryPolicy { retries_max: 0, ..RetryPolicy::default() },
        })
        .unwrap();
        let items = vec![Item { question: "1 + 1".to_owned(), answer: "2".to_owned(), label: 2.0 }; 3];
        let mut progress = Progress::new(Style::Silent, "", items.len());
        let replies =
            run(&client, &asking(Mode::Text), &items, &mut progress, &mut io::sink()).await.unwrap();
        let reasons: Vec<&str> = replies
            .iter()
            .map(|reply| match reply {
                Reply::Failed(reason) => reason.as_str(),
                Reply::Answered { .. } => panic!("nobody can answer"),
            })
            .collect();
        assert!(reasons[0].contains("is not reachable: "), "{}", reasons[0]);
        assert!(reasons[1..].iter().all(|reason| reason.starts_with("not tried")), "{reasons:?}");
    }
}
