//! The score API: `POST /v1/score`. Invariant: JSON gets no NaN and no infinity.

use std::sync::Arc;

use ntl_api::{Loss, LossName, ReductionName, Score, ScoreRequest, TextOrIds, Usage};
use ntl_core::Token;
use ntl_core::engine::{ModelInfo, ScoreJob, ScoreOutcome, TokenScore};
use ntl_core::losses::{NumberLoss, NumberLossKind, NumberTokens, ReducedLoss, Reduction, reduce};
use ntl_core::text::TextDecoder;

use super::number::plain;
use super::tokens::finite_logprob;
use crate::answer::TokenCounts;
use crate::error::{AppError, check, in_range};
use crate::request::{PromptInput, ScoreInput, ScoreTokens};

const ITEMS_MAX: usize = 1024;
const LAMBDA_MAX: f64 = 1e6;

/// Which losses an answer has, and how they are reduced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreLosses {
    losses: Vec<LossName>,
    /// The Number Token Loss that is a part of `total`.
    in_total: Option<LossName>,
    lambda: f64,
    reduction: ReductionName,
    reweigh: bool,
}

/// Validates a request.
pub(crate) fn score_request(
    request: ScoreRequest,
    model: &ModelInfo,
) -> Result<(Vec<ScoreInput>, ScoreLosses), AppError> {
    let message = format!("is of kind {}, which has no distribution over tokens to score", model.kind);
    check("model", model.has_token_distribution(), message)?;
    let items = request.items.ok_or_else(|| AppError::field("items", "is missing"))?;
    let count = items.len();
    let message = format!("must be a list of 1 to {ITEMS_MAX} items, not {count}");
    check("items", (1..=ITEMS_MAX).contains(&count), message)?;
    let add_eos = request.add_eos.unwrap_or(true);
    let mut inputs = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let (prompt, target) = (input(item.prompt), input(item.target));
        check(&format!("items[{index}].target"), !target.is_empty(), "must not be empty")?;
        inputs.push(ScoreInput { index, prompt, target, add_eos });
    }
    let lambda = in_range("lambda", request.lambda, 0.3, 0.0..=LAMBDA_MAX)?;
    let mut losses: Vec<LossName> = Vec::new();
    for name in request.losses.unwrap_or_else(|| LossName::ALL.to_vec()) {
        if !losses.contains(&name) {
            losses.push(name);
        }
    }
    let in_total = losses.iter().copied().find(|&name| name != LossName::Ce);
    let reduction = request.reduction.unwrap_or_default();
    let reweigh = request.reweigh.unwrap_or(false);
    Ok((inputs, ScoreLosses { losses, in_total, lambda, reduction, reweigh }))
}

fn input(text: TextOrIds) -> PromptInput {
    match text {
        TextOrIds::Text(text) => PromptInput::Text(text),
        TextOrIds::Ids(ids) => PromptInput::Ids(ids),
    }
}

/// Counts the tokens of prompts and targets.
pub(crate) fn usage(items: &[ScoreTokens]) -> Usage {
    let prompt = items.iter().map(|item| item.prompt.len()).sum();
    let completion = items.iter().map(|item| item.target.len()).sum();
    super::usage(TokenCounts { prompt, completion })
}

impl ScoreLosses {
    /// The job of one target.
    pub(crate) fn job(&self, target: Vec<Token>, number_tokens: &Arc<NumberTokens>) -> ScoreJob {
        let losses =
            self.number_losses().map(|(_, kind)| NumberLoss { kind, reweigh: self.reweigh }).collect();
        ScoreJob { target, number_tokens: Arc::clone(number_tokens), losses }
    }

    /// The Number Token Losses of a job, in order.
    fn number_losses(&self) -> impl Iterator<Item = (LossName, NumberLossKind)> {
        self.losses.iter().filter_map(|&name| Some((name, kind(name)?)))
    }

    /// A scored target.
    pub(crate) fn score(&self, index: usize, outcome: &ScoreOutcome, decoder: &dyn TextDecoder) -> Score {
        let tokens = &outcome.tokens;
        let number = |of: fn(&TokenScore) -> Option<f64>| {
            tokens.iter().map(|token| of(token).and_then(plain)).collect()
        };
        let mean_ce = self.reduced(LossName::Ce, tokens, ReductionName::Mean);
        Score {
            index: index as u64,
            token_ids: tokens.iter().map(|token| token.token.id).collect(),
            tokens: tokens.iter().map(|token| decoder.token_text(token.token.id)).collect(),
            token_logprobs: tokens.iter().map(|token| finite_logprob(token.token.logprob)).collect(),
            number_values: number(|token| token.number.map(|number| number.value)),
            number_mass: number(|token| token.number.map(|number| number.mass)),
            losses: self
                .losses
                .iter()
                .map(|&name| (name, wire(self.reduced(name, tokens, self.reduction))))
                .collect(),
            total: wire(self.total(tokens)),
            perplexity: match mean_ce {
                ReducedLoss::All(mean) => plain(mean.exp()),
                ReducedLoss::Each(_) => None,
            },
        }
    }

    fn total(&self, tokens: &[TokenScore]) -> ReducedLoss {
        let ce = self.reduced(LossName::Ce, tokens, self.reduction);
        let Some(ntl) = self.in_total.map(|name| self.reduced(name, tokens, self.reduction)) else {
            return ce;
        };
        let add = |ce: f64, ntl: f64| ce + self.lambda * ntl;
        match (ce, ntl) {
            (ReducedLoss::All(ce), ReducedLoss::All(ntl)) => ReducedLoss::All(add(ce, ntl)),
            (ReducedLoss::Each(ce), ReducedLoss::Each(ntl)) => {
                ReducedLoss::Each(ce.into_iter().zip(ntl).map(|(ce, ntl)| add(ce, ntl)).collect())
            }
            (ce, _) => ce,
        }
    }

    fn reduced(&self, name: LossName, tokens: &[TokenScore], reduction: ReductionName) -> ReducedLoss {
        let place = self.number_losses().position(|(loss, _)| loss == name);
        let loss = |token: &TokenScore| match place {
            Some(place) => token.losses.get(place).copied().flatten(),
            // No -0 where the probability is 1.
            None => Some(0.0 - token.token.logprob),
        };
        let losses: Vec<Option<f64>> = tokens.iter().map(loss).collect();
        let reduction = match reduction {
            ReductionName::Mean => Reduction::Mean,
            ReductionName::Sum => Reduction::Sum,
            ReductionName::None => Reduction::None,
        };
        reduce(&losses, reduction)
    }
}

/// The kind of a Number Token Loss; `None` for cross entropy.
fn kind(name: LossName) -> Option<NumberLossKind> {
    match name {
        LossName::Ce => None,
        LossName::NtlWas => Some(NumberLossKind::Was),
        LossName::NtlWasCdf => Some(NumberLossKind::WasCdf),
        LossName::NtlMse => Some(NumberLossKind::Mse),
        LossName::NtlMae => Some(NumberLossKind::Mae),
        LossName::NtlHuber => Some(NumberLossKind::Huber),
    }
}

fn wire(reduced: ReducedLoss) -> Loss {
    match reduced {
        ReducedLoss::All(loss) => Loss::All(plain(loss)),
        ReducedLoss::Each(losses) => Loss::Each(losses.into_iter().map(plain).collect()),
    }
}
