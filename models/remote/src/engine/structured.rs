//! Structured texts with numbers: the engine writes the text, a guide refuses what the schema does not allow,
//! and a search finds the distribution of each number, whose estimate the text gets.

use std::sync::Arc;

use futures::TryStreamExt;
use futures::future::try_join_all;
use ntl_core::contract::{EngineError, Event, NumberOutcome, TextJob};
use ntl_core::decoding::{ReportedText, TextNeed};

use super::after::number_of;
use super::client::ClientEvents;
use super::decode::decode;
use super::requests::Requests;
use super::{TextEnd, TextQuery};

/// The end of most strings in JSON. The structure follows, which the schema decides.
const QUOTE: &str = "\"";

/// Numbers of tokens that the engine writes at a time: the first one after a refused token, then twice as
/// many each time that all are taken.
const TOKENS_MIN: usize = 4;
const TOKENS_MAX: usize = 64;

/// Writes all texts of a job, and returns the last event of each. `requests` returns the requests of one
/// text.
pub(super) async fn structured_texts<'a>(
    requests: impl Fn() -> Requests<'a>,
    prompt: &Arc<[u32]>,
    job: &TextJob,
    client: &ClientEvents,
) -> Result<Vec<Event>, EngineError> {
    let texts = (0..job.n).map(async |number| {
        let requests = requests();
        let text = requests.shared.vocabulary.reported_text(job, number)?;
        let tokens = TOKENS_MIN;
        Writer { requests: &requests, prompt, job, number, text, tokens, texts: 0 }.write(client).await
    });
    try_join_all(texts).await
}

struct Writer<'a> {
    requests: &'a Requests<'a>,
    prompt: &'a Arc<[u32]>,
    job: &'a TextJob,
    /// Index of the text in the job.
    number: u32,
    text: ReportedText,
    /// Number of tokens that the engine writes next.
    tokens: usize,
    /// Number of requests for text so far.
    texts: u64,
}

impl Writer<'_> {
    /// Writes the text to its end, and returns its last event.
    async fn write(mut self, client: &ClientEvents) -> Result<Event, EngineError> {
        let mut events = Vec::new();
        loop {
            match self.text.need(&mut events)? {
                TextNeed::Nothing if events.is_empty() => {
                    return Err(EngineError::Step("a text has no end".to_owned()));
                }
                TextNeed::Nothing => {}
                TextNeed::Number => self.find_number().await?,
                TextNeed::Tokens => self.write_tokens(&mut events).await?,
                TextNeed::TokenAmong(ids) => self.write_among(ids.into(), &mut events).await?,
            }
            for event in events.drain(..) {
                if matches!(event, Event::Finished { .. }) {
                    return Ok(event);
                }
                client.send(event).await;
            }
        }
    }

    async fn find_number(&mut self) -> Result<(), EngineError> {
        let text = self.text.ids().to_vec();
        let look_ahead = self.requests.shared.limits.look_ahead;
        let Some(search) = self.text.search() else { return Ok(()) };
        let sent = self.requests.sent();
        let outcome = number_of(decode(self.requests, self.prompt, text, search, look_ahead).await?)?;
        self.text.found(NumberOutcome { forward_passes: self.requests.sent() - sent, ..outcome });
        Ok(())
    }

    /// Writes some tokens, up to the first one that the guide refuses.
    async fn write_tokens(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let written = self.ask(self.tokens, Some(QUOTE.to_owned()), None).await?;
        for id in written {
            if !self.text.offer(id, events)? {
                self.tokens = TOKENS_MIN;
                return Ok(());
            }
        }
        self.tokens = (2 * self.tokens).min(TOKENS_MAX);
        Ok(())
    }

    /// Writes one of these tokens.
    async fn write_among(&mut self, ids: Arc<[u32]>, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let written = self.ask(1, None, Some(Arc::clone(&ids))).await?;
        match *written {
            [id] if ids.contains(&id) => self.text.offer(id, events).map(drop),
            _ => Err(EngineError::Upstream("the engine wrote a token that the request forbids".to_owned())),
        }
    }

    /// Returns tokens that the engine writes after the text, at least one. The end of the sequence is one.
    async fn ask(
        &mut self,
        tokens: usize,
        stop: Option<String>,
        among: Option<Arc<[u32]>>,
    ) -> Result<Vec<u32>, EngineError> {
        let max_tokens = tokens.min(self.text.tokens_left());
        // No two requests of a job have the same random numbers. A request after a refused token would
        // otherwise have those which led to that token.
        let stream = self.texts * u64::from(self.job.n) + u64::from(self.number);
        self.texts += 1;
        let query = TextQuery {
            prompt: Arc::clone(self.prompt),
            path: self.text.ids().to_vec(),
            sampling: self.job.sampling,
            stream,
            max_tokens,
            stop,
            among,
        };
        let mut deltas = self.requests.write(query);
        let mut ids = Vec::new();
        let mut end = None;
        while let Some(delta) = deltas.try_next().await? {
            ids.extend(delta.ids);
            end = delta.end;
        }
        let eos_ids = &self.requests.shared.vocabulary.eos_ids;
        if end == Some(TextEnd::EndOfSequence) && !ids.iter().any(|id| eos_ids.contains(id)) {
            ids.extend(eos_ids.first());
        }
        if ids.is_empty() || ids.len() > max_tokens.max(1) + 1 {
            let message = format!("the engine wrote {} of at most {max_tokens} tokens", ids.len());
            return Err(EngineError::Upstream(message));
        }
        Ok(ids)
    }
}
