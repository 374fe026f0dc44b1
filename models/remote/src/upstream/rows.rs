//! Queries as requests with several rows, and their answers.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::{self, TryStreamExt};
use ntl_core::contract::{EngineError, LogitsRequest, NextTokenReport};
use tokio::time::Instant;

use super::request::RowRequest;
use super::row::Row;
use super::{EngineKind, Reports, Upstream};
use crate::client::{BaseUrl, UpstreamError};
use crate::engine::job_bytes::{ID_BYTES, IN_FLIGHT_BYTES_MAX};
use crate::engine::{Ahead, NextTokenAnswer, NextTokenQuery, QueryContext};
use crate::replicas::Purpose;
use crate::wire::{Alternatives, Batch, Rows, WireError, answers, llama_cpp, merge, vllm};

/// Maximum number of rows of a request.
const ROWS_MAX: usize = 64;

/// Maximum number of token ids of a request, unless a single row has more.
const IDS_MAX: usize = 64 << 10;

/// Maximum number of alternatives of all rows of a request, unless a single row has more.
const ENTRIES_MAX: usize = 16 << 10;

/// Numbers of the most probable tokens in requests to llama.cpp, until few others are missing.
const LLAMA_CPP_COUNTS: [usize; 3] = [llama_cpp::BEST, 4 << 10, usize::MAX];

/// Probability that may stay unreported although the engine could report more.
const UNREPORTED_MAX: f64 = 1e-4;

/// The common settings of one group of queries.
#[derive(PartialEq)]
struct Kind {
    wanted: LogitsRequest,
    ahead: Ahead,
}

/// A row with the number of its query.
type NumberedRow = (usize, Row);

impl Upstream {
    pub(super) async fn answers(
        &self,
        context: QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> Result<Vec<NextTokenAnswer>, EngineError> {
        let asking = self.all_groups(&context, queries);
        let answers = match context.deadline {
            Some(deadline) => tokio::time::timeout_at(Instant::from_std(deadline), asking).await,
            None => Ok(asking.await),
        };
        let late =
            |_| EngineError::UpstreamTimeout("the engine did not respond within the deadline".to_owned());
        Ok(answers.map_err(late)??)
    }

    async fn all_groups(
        &self,
        context: &QueryContext,
        queries: Vec<NextTokenQuery>,
    ) -> Result<Vec<NextTokenAnswer>, UpstreamError> {
        let mut groups: Vec<(Kind, Vec<NumberedRow>)> = Vec::new();
        for (index, query) in queries.into_iter().enumerate() {
            let row = Row::of(&query);
            let kind = Kind { wanted: query.wanted, ahead: self.possible(query.ahead) };
            match groups.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, rows)) => rows.push((index, row)),
                None => groups.push((kind, vec![(index, row)])),
            }
        }
        // Engines that keep one prompt per slot compute only what differs from the row before.
        groups.iter_mut().for_each(|(_, rows)| rows.sort_by(|(_, a), (_, b)| a.compare(b)));
        let requests = groups.into_iter().map(async |(kind, rows)| {
            let (indices, rows): (Vec<usize>, Vec<Row>) = rows.into_iter().unzip();
            let answers = self.group(context, &kind, &rows).await?;
            Ok::<_, UpstreamError>(indices.into_iter().zip(answers).collect::<Vec<_>>())
        });
        let mut all: Vec<_> = try_join_all(requests).await?.into_iter().flatten().collect();
        all.sort_unstable_by_key(|(index, _)| *index);
        Ok(all.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Returns the tokens ahead that the engine can append.
    fn possible(&self, ahead: Ahead) -> Ahead {
        match (self.facts.kind, self.facts.reports) {
            // A row of llama.cpp costs no more than a token ahead.
            (EngineKind::LlamaCpp, Reports::Ids) => Ahead::NONE,
            _ if self.facts.chooses_among => ahead,
            _ => Ahead::greedy(ahead.tokens),
        }
    }

    /// Returns the answers to queries of the same kind.
    async fn group(
        &self,
        context: &QueryContext,
        kind: &Kind,
        rows: &[Row],
    ) -> Result<Vec<NextTokenAnswer>, UpstreamError> {
        if self.facts.kind == EngineKind::LlamaCpp {
            return match (&kind.wanted, self.facts.reports) {
                (LogitsRequest::Ids(ids), Reports::Ids) => self.biased_ids(context, ids, rows).await,
                _ => self.growing_counts(context, kind, rows).await,
            };
        }
        let best_max = self.facts.best_max.max(1);
        let alternatives = match (&kind.wanted, self.facts.reports) {
            (LogitsRequest::Ids(ids), Reports::Ids) if !ids.is_empty() => {
                return self.id_groups(context, &kind.ahead, ids, rows).await;
            }
            (LogitsRequest::Best, _) => Alternatives::Best(1),
            (LogitsRequest::Ids(_) | LogitsRequest::All | LogitsRequest::Hidden, _) => {
                Alternatives::Best(best_max)
            }
        };
        if self.facts.accepts_ids {
            return checked(answers(self.rows(context, &kind.ahead, alternatives, rows).await?));
        }
        self.spelled_rows(context, &kind.ahead, alternatives, rows).await
    }

    /// Sends texts. Nothing is reported about rows that no text stands for.
    async fn spelled_rows(
        &self,
        context: &QueryContext,
        ahead: &Ahead,
        alternatives: Alternatives<'_>,
        rows: &[Row],
    ) -> Result<Vec<NextTokenAnswer>, UpstreamError> {
        let is_spelled: Vec<bool> = rows.iter().map(|row| row.text(&self.tokenizer).is_some()).collect();
        let spelled = rows.iter().zip(&is_spelled).filter(|(_, is_spelled)| **is_spelled);
        let spelled: Vec<Row> = spelled.map(|(row, _)| row.clone()).collect();
        let found = self.rows(context, ahead, alternatives, &spelled).await?;
        let mut found = checked(answers(found))?.into_iter();
        let mut all = Vec::with_capacity(rows.len());
        for is_spelled in is_spelled {
            let answer = if is_spelled { found.next() } else { None };
            all.push(match answer {
                Some(answer) => answer,
                None => {
                    let report = checked(NextTokenReport::new([], None).map_err(WireError::from))?;
                    NextTokenAnswer { report, ahead: Vec::new() }
                }
            });
        }
        Ok(all)
    }

    /// Requests given ids, in groups that the engine accepts.
    async fn id_groups(
        &self,
        context: &QueryContext,
        ahead: &Ahead,
        ids: &Arc<[u32]>,
        rows: &[Row],
    ) -> Result<Vec<NextTokenAnswer>, UpstreamError> {
        let ids_max = if self.facts.kind == EngineKind::Sglang { ids.len() } else { vllm::IDS_MAX };
        let groups = ids.chunks(ids_max);
        let asked = groups.map(|group| self.rows(context, ahead, Alternatives::Ids(group), rows));
        let mut parts = try_join_all(asked).await?.into_iter();
        let mut found = parts.next().unwrap_or_default();
        parts.for_each(|part| merge(&mut found, part));
        checked(answers(found))
    }

    /// Requests the most probable tokens from llama.cpp and, for rows that lack wanted ids, these ids with a
    /// bias.
    async fn biased_ids(
        &self,
        context: &QueryContext,
        ids: &[u32],
        rows: &[Row],
    ) -> Result<Vec<NextTokenAnswer>, UpstreamError> {
        let mut found = self.rows(context, &Ahead::NONE, Alternatives::Best(llama_cpp::BEST), rows).await?;
        let mut short = Vec::new();
        for (row, positions) in found.iter().enumerate() {
            // Nothing is known about a row without an anchor.
            let is_short = positions.iter().any(|position| {
                llama_cpp::anchor(position).is_some()
                    && llama_cpp::is_short_of(position, ids, context.needs_all_ids)
            });
            if is_short {
                short.push(row);
            }
        }
        if !short.is_empty() {
            let anchors = short.iter().flat_map(|&row| &found[row]).filter_map(llama_cpp::anchor);
            let mut ids: Vec<u32> = ids.iter().copied().chain(anchors).collect();
            ids.sort_unstable();
            ids.dedup();
            let asked: Vec<Row> = short.iter().map(|&row| rows[row].clone()).collect();
            let biased = self.rows(context, &Ahead::NONE, Alternatives::Ids(&ids), &asked).await?;
            for (row, biased) in short.into_iter().zip(biased) {
                for (position, biased) in found[row].iter_mut().zip(biased) {
                    checked(llama_cpp::complete(position, &biased, &ids))?;
                }
            }
        }
        checked(answers(found))
    }

    /// Requests more and more of the most probable tokens, until few others are missing.
    async fn growing_counts(
        &self,
        context: &QueryContext,
        kind: &Kind,
        rows: &[Row],
    ) -> Result<Vec<NextTokenAnswer>, UpstreamError> {
        let vocab = self.tokenizer.len();
        let mut found: Vec<Option<NextTokenAnswer>> = rows.iter().map(|_| None).collect();
        for count in LLAMA_CPP_COUNTS {
            let count = if kind.wanted == LogitsRequest::Best { 1 } else { count.min(vocab) };
            let open: Vec<usize> = (0..rows.len()).filter(|&row| found[row].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let asked: Vec<Row> = open.iter().map(|&row| rows[row].clone()).collect();
            let answered = self.rows(context, &kind.ahead, Alternatives::Best(count), &asked).await?;
            for (row, answer) in open.into_iter().zip(checked(answers(answered))?) {
                if count == vocab || is_enough(&answer.report, &kind.wanted) {
                    found[row] = Some(answer);
                }
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Sends rows in requests of a bounded size. Returns their positions.
    async fn rows(
        &self,
        context: &QueryContext,
        ahead: &Ahead,
        alternatives: Alternatives<'_>,
        rows: &[Row],
    ) -> Result<Rows, UpstreamError> {
        let rows_max = (ENTRIES_MAX / alternatives.count().max(1)).clamp(1, ROWS_MAX);
        let slots = self.slots(context, rows);
        let rows_max = rows_max.min(rows.len().div_ceil(slots.len()).max(1));
        let chunks = chunks(rows, rows_max);
        let largest = chunks.iter().map(|rows| request_bytes(rows, alternatives)).max().unwrap_or(1);
        let concurrent = (IN_FLIGHT_BYTES_MAX / largest.max(1)).max(1);
        let mut requests = Vec::with_capacity(chunks.len());
        for (rows, slot) in chunks.into_iter().zip(slots.into_iter().cycle()) {
            let (cache_salt, vocab) = (context.cache_salt, self.tokenizer.len());
            let batch = Batch { rows: rows.len(), alternatives, ahead, cache_salt, vocab };
            requests.push(self.exchange(context, slot, rows, batch));
        }
        let answers: Vec<Rows> = stream::iter(requests).buffered(concurrent).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Sends one request to one replica after another. `slot`: for llama.cpp.
    async fn exchange(
        &self,
        context: &QueryContext,
        slot: Option<usize>,
        rows: &[Row],
        batch: Batch<'_>,
    ) -> Result<Rows, UpstreamError> {
        // Before the body is made, so that no more bodies exist than requests are sent.
        let _permit = self.requests.acquire(context.client).await;
        if let (Some(slots), Some(slot), Some(row)) = (&self.slots, slot, rows.last()) {
            slots.set_last(slot, row);
        }
        let request = &RowRequest::new(&self.facts, &self.tokenizer, batch, rows, slot);
        let charge = context.meter.charge(request.computed());
        let answer = self.replicas.request(Purpose::Tree(context.affinity), |base: BaseUrl| async move {
            request.send(self.client(), &base, &self.texts).await
        });
        charge.settle(answer.await)
    }
}

/// Returns about how much memory the body of a request and its response need.
fn request_bytes(rows: &[Row], alternatives: Alternatives<'_>) -> usize {
    // The memory of a log-probability in a response, and after the response is read.
    const ENTRY_BYTES: usize = 128;
    let ids: usize = rows.iter().map(Row::len).sum();
    ids * ID_BYTES + rows.len() * alternatives.count() * ENTRY_BYTES
}

/// Splits rows into chunks of at most `rows_max` rows and a bounded number of ids.
fn chunks(mut rows: &[Row], rows_max: usize) -> Vec<&[Row]> {
    let mut chunks = Vec::new();
    while !rows.is_empty() {
        let mut ids = 0;
        let mut count = 0;
        for row in rows.iter().take(rows_max) {
            ids += row.len();
            if ids > IDS_MAX {
                break;
            }
            count += 1;
        }
        let (chunk, rest) = rows.split_at(count.max(1));
        chunks.push(chunk);
        rows = rest;
    }
    chunks
}

/// Returns whether a report has what a query of the most probable tokens wants. The steps ahead are guesses.
/// They do not justify another request.
fn is_enough(report: &NextTokenReport, wanted: &LogitsRequest) -> bool {
    match wanted {
        LogitsRequest::Best => true,
        LogitsRequest::Ids(ids) if ids.iter().all(|&id| report.logprob(id).is_some()) => true,
        LogitsRequest::Ids(_) | LogitsRequest::All | LogitsRequest::Hidden => {
            let reported: f64 = report.tokens().iter().map(|token| token.logprob.exp()).sum();
            1.0 - reported <= UNREPORTED_MAX
        }
    }
}

/// The errors of reports that were read before have no text of the engine.
fn checked<T>(result: Result<T, WireError>) -> Result<T, UpstreamError> {
    result.map_err(|error| UpstreamError::NotUnderstood { replica: String::new(), reason: error.to_string() })
}
