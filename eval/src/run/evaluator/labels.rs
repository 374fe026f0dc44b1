//! Runs a suite by a protocol: prompts and true answers are limited to its number of tokens, and the true
//! answers determine how long the answers may be.

use ntl_api::TruncationSide;
use ntl_paper::Protocol;

use super::truncation::{SpecialTokens, Truncation};
use super::{Evaluator, Phase, TokenLimits};
use crate::run::client::Route;
use crate::run::reply::{DetokenizeResponse, Label, Reply, TokenizeResponse};
use crate::run::runner::RunError;

impl<'a> Evaluator<'a, '_> {
    /// Returns one reply per item, with its label.
    pub(super) async fn run_protocol(&mut self, protocol: &dyn Protocol) -> Result<Vec<Reply<'a>>, RunError> {
        let special = match self.special_tokens().await? {
            Ok(special) => special,
            Err(reason) => return self.fail_all(&reason).await,
        };
        let truncation = Truncation { tokens_max: protocol.tokens_max(), side: TruncationSide::Right };
        let ids = self.label_ids(truncation, &special).await?;
        let texts = self.label_texts(&ids, &special).await?;
        let mut prepared = self.truncate_prompts(truncation, &special).await?;
        // A label without tokens leaves its batch, and no request is sent for its item.
        let ids: Vec<Vec<u32>> = ids.into_iter().map(Result::unwrap_or_default).collect();
        let answer_limits = protocol.answer_tokens_max(&ids, !special.after.is_empty());
        for ((prepared, text), limit) in prepared.iter_mut().zip(&texts).zip(answer_limits) {
            match (text, prepared) {
                (Err(reason), prepared) => *prepared = Err(reason.clone()),
                (Ok(_), Ok(overrides)) => overrides.max_tokens = Some(limit),
                (Ok(_), Err(_)) => {}
            }
        }
        let end = special.after.last().copied();
        let limits = TokenLimits { special, side: truncation.side };
        let mut replies = self.ask(prepared, &limits).await?;
        for (reply, (ids, text)) in replies.iter_mut().zip(ids.into_iter().zip(texts)) {
            let written = &reply.item.answer;
            let text = text.ok().map(|text| protocol.label_text(text.prompt, written));
            reply.label = text.map(|text| Label { ids, end, text });
        }
        Ok(replies)
    }

    /// Returns the token ids of the true answers, without special tokens before them.
    async fn label_ids(
        &mut self,
        truncation: Truncation,
        special: &SpecialTokens,
    ) -> Result<Vec<Result<Vec<u32>, String>>, RunError> {
        let phase = Phase { title: "labels", id: "label", route: Route::Tokenize };
        let bodies = self.items.iter().map(|item| self.template.tokenize(&item.answer, true)).enumerate();
        let tokens = self.phase(phase, bodies.collect(), Ok::<TokenizeResponse, _>).await?;
        let mut labels = Vec::with_capacity(tokens.len());
        for tokens in tokens {
            labels.push(match tokens {
                Ok(tokens) => {
                    let ids = special.truncate(tokens.tokens, truncation);
                    Ok(ids.get(special.before..).unwrap_or_default().to_vec())
                }
                Err(reason) => Err(format!("its label could not be tokenized: {reason}")),
            });
        }
        Ok(labels)
    }

    /// Returns the texts of the true answers' tokens.
    async fn label_texts(
        &mut self,
        ids: &[Result<Vec<u32>, String>],
        special: &SpecialTokens,
    ) -> Result<Vec<Result<DetokenizeResponse, String>>, RunError> {
        let phase = Phase { title: "labels", id: "text", route: Route::Detokenize };
        let mut bodies = Vec::with_capacity(ids.len());
        for ids in ids {
            bodies.push(match ids {
                Ok(ids) => Ok(self.template.detokenize(special.without_end(ids))),
                Err(reason) => Err(reason.clone()),
            });
        }
        self.phase_of_prepared(phase, bodies, Ok::<DetokenizeResponse, _>).await
    }
}
