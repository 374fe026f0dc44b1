//! The requests of one job to the engine: counted and checked.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::BoxStream;
use ntl_core::contract::EngineError;

use super::{NextTokenAnswer, NextTokenQuery, QueryContext, Shared, TextDelta, TextQuery};

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
        let context = QueryContext { is_alone: self.shared.jobs.taken() == 1, ..self.context };
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
        self.shared.upstream.write(self.context, query)
    }

    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}
