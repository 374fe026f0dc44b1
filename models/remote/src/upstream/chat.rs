//! Whole answers of chats, for engines that report no probabilities.

use ntl_core::contract::EngineError;
use serde_json::Value;

use super::Upstream;
use crate::client::BaseUrl;
use crate::engine::{ChatAnswer, ChatQuery, QueryContext};
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
        let client = self.client();
        let answer = self.replicas.request(Some(context.affinity), |base: BaseUrl| async move {
            let bytes = client.post_bytes(&base, CHAT, body.clone(), bytes_max).await?;
            let answer = chat::read(&bytes).map_err(|error| client.not_understood(&base, &error))?;
            Ok(ChatAnswer { text: client.without_key(&answer.text), ..answer })
        });
        let answer = answer.await?;
        context.meter.add(answer.usage);
        Ok(answer)
    }
}
