//! The score API: `POST /v1/score`. Invariant: JSON gets no NaN and no infinity.

use std::sync::Arc;

use ntl_api::{Loss, LossName, ReductionName, Score, ScoreRequest, ScoreResponse, ScoredItem, TextOrIds};
use ntl_core::contract::{
    CandidatesJob, Job, ModelInfo, NumberEncoding, Request, ScoreJob, ScoreOutcome, TokenScore,
};
use ntl_core::losses::{
    NumberLoss, NumberLossKind, NumberTokens, ReducedLoss, Reduction, level_losses, reduce,
};
use ntl_core::text::TextDecoder;

use super::candidates::{CandidateOptions, CandidatesFormat};
use super::number::plain;
use super::tokens::finite_logprob;
use crate::answer::TokenCounts;
use crate::error::{AppError, check, in_range, required};
use crate::request::{EngineWork, PromptInput, ScoreInput, ScoreTokens, TargetTokens};

const ITEMS_MAX: usize = 1024;
const LAMBDA: f64 = 0.3;
const LAMBDA_MAX: f64 = 1e6;
const TAU: f64 = 1.0;
const TAU_MAX: f64 = 1e6;
const SQUASH_FACTOR_MAX: f64 = 1e6;

/// Maximum number of candidates of all items.
const CANDIDATES_MAX: usize = 16_384;

/// Which losses an answer has, and how they are reduced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreLosses {
    losses: Vec<LossName>,
    /// The Number Token Loss that is a part of `total`.
    in_total: Option<LossName>,
    lambda: f64,
    reduction: ReductionName,
    reweigh: bool,
    /// See [`NumberLossKind::SquashedWas`].
    squash_factor: Option<f64>,
    /// Whether numbers are written in digits, so that the model has the loss of whole numbers.
    has_digits: bool,
    /// Whether numbers are tokens with values, so that the model has Number Token Losses.
    has_number_tokens: bool,
    /// The candidates of each item; `None` for an item with a target.
    candidates: Vec<Option<CandidatesFormat>>,
}

/// Validates a request.
pub(crate) fn score_request(
    request: ScoreRequest,
    model: &ModelInfo,
) -> Result<(Vec<ScoreInput>, ScoreLosses), AppError> {
    check_scores(model)?;
    refuse_without_effect(&request)?;
    let items = required("items", request.items)?;
    let count = items.len();
    let message = format!("must be a list of 1 to {ITEMS_MAX} items, not {count}");
    check("items", (1..=ITEMS_MAX).contains(&count), message)?;
    let has_number_tokens = model.number_encoding.has_number_tokens();
    let has_digits = matches!(model.number_encoding, NumberEncoding::Text | NumberEncoding::Digits);
    let add_eos = request.add_eos.unwrap_or(true);
    let tau = request.tau.unwrap_or(TAU);
    check("tau", tau > 0.0 && tau <= TAU_MAX, format!("must be above 0 and at most {TAU_MAX}"))?;
    let options = CandidateOptions {
        normalize_by_length: request.normalize_by_length.unwrap_or(false),
        tau,
        has_number_tokens,
    };
    let count = items.iter().filter_map(|item| item.candidates.as_ref()).map(Vec::len).sum::<usize>();
    let message = format!("have {count} candidates; at most {CANDIDATES_MAX} in all items");
    check("items", count <= CANDIDATES_MAX, message)?;
    let mut inputs = Vec::new();
    let mut candidates = Vec::new();
    for (index, mut item) in items.into_iter().enumerate() {
        let format = item.candidates.take().map(|list| {
            let format = CandidatesFormat::new(index, &list, &item, options)?;
            Ok::<_, AppError>((list, format))
        });
        let (targets, format) = match (format.transpose()?, item.target) {
            (Some((list, format)), _) => (list, Some(format)),
            (None, Some(target)) => (vec![target], None),
            (None, None) => {
                let message = "is missing; an item has a `target` or `candidates`";
                return Err(AppError::field(&format!("items[{index}].target"), message));
            }
        };
        let has_truth_alone = format.is_none() && item.value.is_some();
        check(&format!("items[{index}].value"), !has_truth_alone, "is only allowed with `candidates`")?;
        let are_candidates = format.is_some();
        let (prompt, targets): (_, Vec<PromptInput>) =
            (input(item.prompt), targets.into_iter().map(input).collect());
        if let Some(place) = targets.iter().position(PromptInput::is_empty) {
            let field = if are_candidates { format!("candidates[{place}]") } else { "target".to_owned() };
            return Err(AppError::field(&format!("items[{index}].{field}"), "must not be empty"));
        }
        inputs.push(ScoreInput { index, prompt, targets, are_candidates, add_eos });
        candidates.push(format);
    }
    let lambda = in_range("lambda", request.lambda, LAMBDA, 0.0..=LAMBDA_MAX)?;
    let mut losses: Vec<LossName> = Vec::new();
    for name in request.losses.unwrap_or_else(|| LossName::ALL.to_vec()) {
        if !losses.contains(&name) {
            losses.push(name);
        }
    }
    let in_total = losses.iter().copied().find(|&name| name != LossName::Ce);
    let reduction = request.reduction.unwrap_or_default();
    let reweigh = request.reweigh.unwrap_or(false);
    let squash_factor = request.squash_factor;
    let is_factor = squash_factor.is_none_or(|factor| factor > 1.0 && factor <= SQUASH_FACTOR_MAX);
    check("squash_factor", is_factor, format!("must be above 1 and at most {SQUASH_FACTOR_MAX}"))?;
    let losses = ScoreLosses {
        losses,
        in_total,
        lambda,
        reduction,
        reweigh,
        squash_factor,
        has_digits,
        has_number_tokens,
        candidates,
    };
    Ok((inputs, losses))
}

/// Rejects a model without probabilities of tokens.
pub(super) fn check_scores(model: &ModelInfo) -> Result<(), AppError> {
    let message = format!("is of kind {}, which has no distribution over tokens to score", model.kind);
    check("model", model.has_token_distribution(), message)
}

/// Returns whether an option is set to another value than its default.
fn differs(value: Option<f64>, default: f64) -> bool {
    value.is_some_and(|value| (value - default).abs() > 0.0)
}

/// Refuses options that no item of the request has an effect for: they would be ignored silently. Their
/// defaults pass.
fn refuse_without_effect(request: &ScoreRequest) -> Result<(), AppError> {
    let items = request.items.as_deref().unwrap_or_default();
    let has_candidates = items.iter().any(|item| item.candidates.is_some());
    let has_grid = items.iter().any(|item| item.candidates.is_some() && item.value.is_some());
    // An item with neither is refused for that.
    let has_target = items.iter().any(|item| item.candidates.is_none());
    let (of_targets, of_candidates) =
        ("is only allowed with a `target`", "is only allowed with `candidates`");
    let of_grids = "is only allowed with `candidates` that have a `value`";
    let has_losses = request.losses.as_ref().is_some_and(|losses| !losses.is_empty());
    let has_was = request.losses.as_ref().is_none_or(|losses| losses.contains(&LossName::NtlWas));
    let of_was = "is only allowed with a `target` and the loss `ntl-was`";
    let has_reduction = request.reduction.is_some_and(|reduction| reduction != ReductionName::default());
    for (param, is_set, fits, message) in [
        ("normalize_by_length", request.normalize_by_length == Some(true), has_candidates, of_candidates),
        ("tau", differs(request.tau, TAU), has_grid, of_grids),
        ("losses", has_losses, has_target, of_targets),
        ("lambda", differs(request.lambda, LAMBDA), has_target, of_targets),
        ("reduction", has_reduction, has_target, of_targets),
        ("reweigh", request.reweigh == Some(true), has_target, of_targets),
        ("squash_factor", request.squash_factor.is_some(), has_target && has_was, of_was),
    ] {
        check(param, !is_set || fits || items.is_empty(), message)?;
    }
    Ok(())
}

pub(super) fn input(text: TextOrIds) -> PromptInput {
    match text {
        TextOrIds::Text(text) => PromptInput::Text(text),
        TextOrIds::Ids(ids) => PromptInput::Ids(ids),
    }
}

/// The response without the scored items.
pub(crate) fn response(model: &str, items: &[ScoreTokens], engine: Option<EngineWork>) -> ScoreResponse {
    let (mut prompt, mut completion) = (0, 0);
    for item in items {
        prompt += item.prompt.len();
        completion += item.targets.iter().map(|target| target.tokens.len() - target.of_prompt).sum::<usize>();
    }
    let usage = super::usage(TokenCounts { prompt, completion, engine });
    ScoreResponse { object: "list".to_owned(), model: model.to_owned(), data: Vec::new(), usage }
}

impl ScoreLosses {
    /// Returns the number of losses that each token of a target shows.
    pub(crate) fn losses_per_token(&self) -> usize {
        if self.reduction == ReductionName::None { self.losses.len() + 1 } else { 0 }
    }

    /// Rejects different numbers in equal tokens, once the tokens are known.
    fn check_tokens(&self, items: &[ScoreTokens]) -> Result<(), AppError> {
        for (index, (format, item)) in self.candidates.iter().zip(items).enumerate() {
            format.as_ref().map_or(Ok(()), |format| format.check_tokens(index, &item.targets))?;
        }
        Ok(())
    }

    /// The jobs of all items. Rejects candidates whose tokens are equal although their numbers differ.
    pub(crate) fn jobs(
        &self,
        items: &[ScoreTokens],
        number_tokens: &Arc<NumberTokens>,
        cache_salt: u64,
    ) -> Result<Vec<Job>, AppError> {
        self.check_tokens(items)?;
        let mut jobs = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let request = self.request(index, &item.targets, number_tokens);
            jobs.push(Job { cache_salt, ..Job::new(item.prompt.clone(), request) });
        }
        Ok(jobs)
    }

    /// The request of the item at this index.
    fn request(&self, index: usize, targets: &[TargetTokens], number_tokens: &Arc<NumberTokens>) -> Request {
        match (self.candidates.get(index), targets) {
            (Some(None), [only]) => {
                let losses = self.number_losses();
                let losses = losses.map(|(_, kind)| NumberLoss { kind, reweigh: self.reweigh }).collect();
                let target = only.tokens.clone();
                let number_tokens = Arc::clone(number_tokens);
                let digits = self.losses.contains(&LossName::NtlLevel);
                Request::Score(ScoreJob { target, number_tokens, losses, digits })
            }
            _ => {
                let candidates: Vec<_> = targets.iter().map(|target| target.tokens.clone()).collect();
                Request::Candidates(CandidatesJob::new(&candidates))
            }
        }
    }

    /// The scored items, in order.
    pub(crate) fn scored(
        &self,
        items: &[ScoreTokens],
        outcomes: &[ScoreOutcome],
        decoder: &dyn TextDecoder,
    ) -> impl Iterator<Item = ScoredItem> {
        let pairs = items.iter().zip(outcomes).enumerate();
        pairs.map(move |(index, (item, outcome))| self.item(index, &item.targets, outcome, decoder))
    }

    /// The scored item at this index.
    fn item(
        &self,
        index: usize,
        targets: &[TargetTokens],
        outcome: &ScoreOutcome,
        decoder: &dyn TextDecoder,
    ) -> ScoredItem {
        match self.candidates.get(index) {
            Some(Some(format)) => ScoredItem::Candidates(format.scores(index, targets, outcome, decoder)),
            _ => ScoredItem::Target(self.score(index, outcome, decoder)),
        }
    }

    /// The Number Token Losses of a job, in order.
    fn number_losses(&self) -> impl Iterator<Item = (LossName, NumberLossKind)> {
        self.losses.iter().filter_map(|&name| Some((name, self.kind(name)?)))
    }

    /// A scored target.
    fn score(&self, index: usize, outcome: &ScoreOutcome, decoder: &dyn TextDecoder) -> Score {
        let tokens = &outcome.tokens;
        let mean_ce = self.reduced(LossName::Ce, tokens, ReductionName::Mean);
        let mut number_values = Vec::with_capacity(tokens.len());
        let mut number_mass = Vec::with_capacity(tokens.len());
        for token in tokens {
            number_values.push(token.number.and_then(|number| plain(number.value)));
            number_mass.push(token.number.and_then(|number| plain(number.mass)));
        }
        Score {
            index: index as u64,
            token_ids: tokens.iter().map(|token| token.token.id).collect(),
            tokens: tokens.iter().map(|token| decoder.token_text(token.token.id)).collect(),
            token_logprobs: tokens.iter().map(|token| finite_logprob(token.token.logprob)).collect(),
            number_values,
            number_mass,
            losses: self.losses.iter().map(|&name| (name, self.loss(name, tokens))).collect(),
            total: match self.in_total {
                Some(name) if !self.has(name) => self.missing(tokens.len()),
                _ => wire(self.total(tokens)),
            },
            perplexity: match mean_ce {
                ReducedLoss::All(mean) => plain(mean.exp()),
                ReducedLoss::Each(_) => None,
            },
        }
    }

    fn loss(&self, name: LossName, tokens: &[TokenScore]) -> Loss {
        if !self.has(name) {
            return self.missing(tokens.len());
        }
        wire(self.reduced(name, tokens, self.reduction))
    }

    /// Returns whether the model has a loss.
    fn has(&self, name: LossName) -> bool {
        match name {
            LossName::Ce => true,
            LossName::NtlLevel => self.has_digits,
            _ => self.has_number_tokens,
        }
    }

    /// The nulls of a loss that the model does not have.
    fn missing(&self, tokens: usize) -> Loss {
        match self.reduction {
            ReductionName::Mean | ReductionName::Sum => Loss::All(None),
            ReductionName::None => Loss::Each(vec![None; tokens]),
        }
    }

    fn total(&self, tokens: &[TokenScore]) -> ReducedLoss {
        let ce = self.reduced(LossName::Ce, tokens, self.reduction);
        let Some(ntl) = self.in_total.map(|name| self.reduced(name, tokens, self.reduction)) else {
            return ce;
        };
        match (ce, ntl) {
            (ReducedLoss::All(ce), ReducedLoss::All(ntl)) => ReducedLoss::All(ce + self.lambda * ntl),
            (ReducedLoss::Each(mut sums), ReducedLoss::Each(ntl)) => {
                for (sum, ntl) in sums.iter_mut().zip(ntl) {
                    *sum += self.lambda * ntl;
                }
                ReducedLoss::Each(sums)
            }
            (ce, _) => ce,
        }
    }

    fn reduced(&self, name: LossName, tokens: &[TokenScore], reduction: ReductionName) -> ReducedLoss {
        let losses = self.token_losses(name, tokens);
        let reduction = match reduction {
            ReductionName::Mean => Reduction::Mean,
            ReductionName::Sum => Reduction::Sum,
            ReductionName::None => Reduction::None,
        };
        reduce(&losses, reduction)
    }

    /// Returns a loss at each token, `None` for a token without it.
    fn token_losses(&self, name: LossName, tokens: &[TokenScore]) -> Vec<Option<f64>> {
        match (name, self.number_losses().position(|(loss, _)| loss == name)) {
            (LossName::NtlLevel, _) => {
                let digits: Vec<_> = tokens.iter().map(|token| token.digit).collect();
                level_losses(&digits, self.reweigh)
            }
            (_, Some(place)) => tokens.iter().map(|token| *token.losses.get(place)?).collect(),
            // Turns -0 into 0 if the probability is 1.
            (_, None) => tokens.iter().map(|token| Some(0.0 - token.token.logprob)).collect(),
        }
    }

    /// The kind of a loss at number tokens; `None` for the others.
    fn kind(&self, name: LossName) -> Option<NumberLossKind> {
        match name {
            LossName::Ce | LossName::NtlLevel => None,
            LossName::NtlWas => {
                Some(self.squash_factor.map_or(NumberLossKind::Was, NumberLossKind::SquashedWas))
            }
            LossName::NtlWasCdf => Some(NumberLossKind::WasCdf),
            LossName::NtlMse => Some(NumberLossKind::Mse),
            LossName::NtlMae => Some(NumberLossKind::Mae),
            LossName::NtlHuber => Some(NumberLossKind::Huber),
        }
    }
}

fn wire(reduced: ReducedLoss) -> Loss {
    match reduced {
        ReducedLoss::All(loss) => Loss::All(plain(loss)),
        ReducedLoss::Each(losses) => Loss::Each(losses.into_iter().map(plain).collect()),
    }
}
