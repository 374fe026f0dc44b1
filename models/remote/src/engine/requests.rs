//! The requests of one job to the engine: limited, counted, and checked.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::BoxStream;
use ntl_core::contract::EngineError;

use super::gate::Permit;
use super::{NextTokenAnswer, NextTokenQuery, QueryContext, Shared, TextDelta, TextQuery};

pub(super) struct Requests<'a> {
    pub(super) shared: &'a Shared,
    pub(super) client: u64,
    pub(super) context: QueryContext,
    /// Number of requests so far.
    sent: AtomicUsize,
}

impl<'a> Requests<'a> {
    pub(super) fn new(shared: &'a Shared, client: u64, context: QueryContext) -> Self {
        Self { shared, client, context, sent: AtomicUsize::new(0) }
    }

    /// Returns one answer for each query.
    pub(super) async fn ask(
        &self,
        queries: Vec<NextTokenQuery>,
    ) -> Result<Vec<NextTokenAnswer>, EngineError> {
        let _permit = self.begin().await;
        let count = queries.len();
        self.shared.observer.on_step(count);
        let context = QueryContext { is_alone: self.shared.jobs.taken() == 1, ..self.context };
        let answers = self.shared.upstream.ask(context, queries).await?;
        if answers.len() == count {
            Ok(answers)
        } else {
            let message = format!("the engine answered {} of {count} prompts", answers.len());
            Err(EngineError::Upstream(message))
        }
    }

    /// Writes a text. The permit must be held until its end.
    pub(super) async fn write(
        &self,
        query: TextQuery,
    ) -> (Permit, BoxStream<'a, Result<TextDelta, EngineError>>) {
        let permit = self.begin().await;
        (permit, self.shared.upstream.write(self.context, query))
    }

    async fn begin(&self) -> Permit {
        let permit = self.shared.requests.acquire(self.client).await;
        self.sent.fetch_add(1, Ordering::Relaxed);
        permit
    }

    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}
