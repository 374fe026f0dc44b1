//! Numbers after texts that the engine writes: each text ends at the marker, and a search reads the number
//! there. The distributions of several texts are averaged. Only the first text is sent.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::try_join_all;
use ntl_core::contract::{AfterMarker, EngineError, Event, FinishReason, NumberJob, NumberOutcome};
use ntl_core::decoding::{Rationale, average_rationales};

use super::client::ClientEvents;
use super::decode::decode;
use super::requests::Requests;
use super::{TextEnd, TextQuery};

/// Returns the average number after the texts of a job.
pub(super) async fn number_after(
    requests: &Requests<'_>,
    prompt: &Arc<[u32]>,
    job: &NumberJob,
    after: &AfterMarker,
    client: &ClientEvents,
) -> Result<NumberOutcome, EngineError> {
    let texts = (0..after.rationales.max(1)).map(|index| {
        let shown = (index == 0).then_some(client);
        one_number(requests, prompt, job, after, index, shown)
    });
    let found = try_join_all(texts).await?;
    let rationales = found
        .iter()
        .map(|found| Rationale { tokens: found.tokens, number: found.number.as_ref().map_err(|end| *end) });
    let average = average_rationales(rationales);
    Ok(NumberOutcome { nodes: average.nodes + average.text_tokens, ..average })
}

struct Found {
    /// Number of tokens of the text.
    tokens: usize,
    /// The number after it, or why it ended without the marker.
    number: Result<NumberOutcome, FinishReason>,
}

async fn one_number(
    requests: &Requests<'_>,
    prompt: &Arc<[u32]>,
    job: &NumberJob,
    after: &AfterMarker,
    index: u32,
    shown: Option<&ClientEvents>,
) -> Result<Found, EngineError> {
    let query = TextQuery {
        prompt: Arc::clone(prompt),
        path: Vec::new(),
        sampling: after.sampling,
        stream: u64::from(index),
        max_tokens: after.max_tokens,
        stop: Some(after.stop().to_owned()),
        among: None,
    };
    let (ids, end) = write(requests, query, after, shown).await?;
    let tokens = ids.len();
    let number = match end {
        TextEnd::EndOfSequence => Err(FinishReason::Stop),
        TextEnd::Length => Err(FinishReason::Length),
        TextEnd::StopString => {
            let vocabulary = &requests.shared.vocabulary;
            let written = vocabulary.decoder.decode(&ids);
            let begun = after.number_begun(&written);
            match vocabulary.reported_search(job, begun, u64::from(index))? {
                None => Ok(NumberOutcome::not_a_number()),
                Some(mut search) => {
                    let look_ahead = requests.shared.limits.look_ahead.within(job.values);
                    let events = decode(requests, prompt, ids, &mut *search, look_ahead).await?;
                    Ok(number_of(events)?)
                }
            }
        }
    };
    Ok(Found { tokens, number })
}

/// Returns the only event of a search.
pub(super) fn number_of(mut events: Vec<Event>) -> Result<NumberOutcome, EngineError> {
    match events.pop() {
        Some(Event::Number(outcome)) => Ok(outcome),
        _ => Err(EngineError::Step("the search found no number".to_owned())),
    }
}

/// Writes a text, and sends it if it is shown.
async fn write(
    requests: &Requests<'_>,
    query: TextQuery,
    after: &AfterMarker,
    shown: Option<&ClientEvents>,
) -> Result<(Vec<u32>, TextEnd), EngineError> {
    let mut deltas = requests.write(query);
    let mut ids: Vec<u32> = Vec::new();
    while let Some(delta) = deltas.next().await {
        let mut delta = delta?;
        ids.extend(&delta.ids);
        if ids.len() > after.max_tokens {
            let message = format!("the engine wrote more than {} tokens", after.max_tokens);
            return Err(EngineError::Upstream(message));
        }
        if let Some(client) = shown {
            if delta.end == Some(TextEnd::StopString) {
                delta.text.push_str(&after.marker);
            }
            client.send_text(delta.text, delta.ids.len()).await;
        }
        if let Some(end) = delta.end {
            return Ok((ids, end));
        }
    }
    Err(EngineError::Upstream("the engine ended a text without a reason".to_owned()))
}
