//! Whole answers of chats, for engines that report no probabilities.

use ntl_core::contract::EngineError;
use serde_json::Value;

use super::Upstream;
use crate::client::BaseUrl;
use crate::engine::{ChatAnswer, ChatEnd, ChatQuery, EngineUsage, QueryContext, estimated_tokens};
use crate::replicas::Purpose;
use crate::wire::chat;

/// The route of chats.
pub(super) const CHAT: &str = "/v1/chat/completions";

impl Upstream {
    /// Requests one answer.
    pub(super) async fn answer(
        &self,
        context: QueryContext,
        query: ChatQuery,
    ) -> Result<ChatAnswer, EngineError> {
        let Some(fields) = self.facts.chat else {
            return Err(EngineError::Unsupported("whole answers of this engine are not sampled".to_owned()));
        };
        // Before the body is made, so that no more bodies exist than requests are sent.
        let _permit = self.requests.acquire(context.client).await;
        let body = &Value::Object(chat::body(&self.facts.model, &query, fields)).to_string().into_bytes();
        let bytes_max = chat::bytes_max(&query);
        let prompt_tokens = estimated_tokens(body.len());
        let estimate = EngineUsage {
            requests: 1,
            prompt_tokens,
            completion_tokens: query.max_tokens as u64,
            ..EngineUsage::default()
        };
        let charge = context.meter.charge(estimate);
        let client = self.client();
        let answer = self.replicas.request(Purpose::Sample(context.affinity), |base: BaseUrl| async move {
            let bytes = client.post_bytes(&base, CHAT, body.clone(), bytes_max).await?;
            let answer = chat::read(&bytes, prompt_tokens);
            let answer = answer.map_err(|error| client.not_understood(&base, &error))?;
            let usage = answer.usage;
            Ok((ChatAnswer { text: client.without_key(&answer.text), ..answer }, usage))
        });
        match charge.settle(answer.await) {
            Err(error) if error.may_depend_on_answer() => Ok(ChatAnswer {
                text: String::new(),
                end: ChatEnd::Lost(error.into()),
                usage: EngineUsage::default(),
            }),
            answer => Ok(answer?),
        }
    }
}
