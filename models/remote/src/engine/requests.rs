//! The requests of one job to the engine: counted and checked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{BoxStream, FuturesUnordered};
use ntl_core::contract::EngineError;

use super::{
    ChatAnswer, ChatQuery, NextTokenAnswer, NextTokenQuery, QueryContext, Shared, TextDelta, TextQuery,
};

pub(super) struct Requests<'a> {
    pub(super) shared: &'a Shared,
    pub(super) context: QueryContext,
    /// Number of requests so far.
    sent: AtomicUsize,
}

impl<'a> Requests<'a> {
    pub(super) fn new(shared: &'a Shared, context: QueryContext) -> Self {
        Self { shared, context, sent: AtomicUsize::new(0) }
    }

    /// Returns one answer for each query.
    pub(super) async fn ask(
        &self,
        queries: Vec<NextTokenQuery>,
    ) -> Result<Vec<NextTokenAnswer>, EngineError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let count = queries.len();
        self.shared.observer.on_step(count);
        let context = QueryContext { is_alone: self.shared.jobs.taken() == 1, ..self.context.clone() };
        let answers = self.shared.upstream.ask(context, queries).await?;
        if answers.len() == count {
            Ok(answers)
        } else {
            let message = format!("the engine answered {} of {count} prompts", answers.len());
            Err(EngineError::Upstream(message))
        }
    }

    /// Writes a text.
    pub(super) fn write(&self, query: TextQuery) -> BoxStream<'a, Result<TextDelta, EngineError>> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.shared.upstream.write(self.context.clone(), query)
    }

    /// Returns one answer for each query, in their order. An answer that does not arrive before `end` is
    /// `None`, and its request is cancelled.
    pub(super) async fn chats(
        &self,
        queries: Vec<ChatQuery>,
        end: Option<Instant>,
    ) -> Result<Vec<Option<ChatAnswer>>, EngineError> {
        self.shared.observer.on_step(queries.len());
        let mut answers: Vec<Option<ChatAnswer>> = queries.iter().map(|_| None).collect();
        let mut running = FuturesUnordered::new();
        for (index, query) in queries.into_iter().enumerate() {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let answer = self.shared.upstream.chat(self.context.clone(), query);
            running.push(async move { (index, answer.await) });
        }
        let late = async {
            match end {
                Some(end) => tokio::time::sleep_until(end.into()).await,
                None => std::future::pending().await,
            }
        };
        let mut late = std::pin::pin!(late);
        loop {
            tokio::select! {
                biased;
                next = running.next() => {
                    let Some((index, answer)) = next else { return Ok(answers) };
                    let answer = answer?;
                    if let Some(place) = answers.get_mut(index) {
                        *place = Some(answer);
                    }
                }
                () = &mut late => return Ok(answers),
            }
        }
    }

    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}
