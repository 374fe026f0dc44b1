//! A score request, checked, and scored tokens as the API shows them.
//!
//! In: a [`ScoreRequest`]; later what the engine found. Out: jobs; scores. Invariant: JSON gets no NaN and no infinity.

use std::sync::Arc;

use ntl_api::{Loss, LossName, ReductionName, Score, ScoreItem, ScoreRequest, TextOrIds};
use ntl_core::engine::{ModelInfo, Prompt, ScoreJob, ScoreOutcome, Token, TokenScore};
use ntl_core::losses::{NumberLoss, NumberLossKind, NumberTokens, ReducedLoss, Reduction, Smoothing, reduce};
use ntl_core::text::TextDecoder;
use ntl_models::tokenizer::Tokenizer;

use super::choices::finite;
use super::number::plain;
use super::{Rules, check};
use crate::error::AppError;

const ITEMS_MAX: usize = 1024;
const LAMBDA_MAX: f64 = 1e6;

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScorePlan {
    /// What to score.
    pub(crate) items: Vec<ScoreItem>,
    /// How to score it.
    pub(crate) print: ScorePrint,
    add_eos: bool,
}

/// Which losses are shown and how.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScorePrint {
    losses: Vec<LossName>,
    /// The Number Token Loss of the total.
    in_total: Option<LossName>,
    lambda: f64,
    reduction: ReductionName,
    reweigh: bool,
}

/// Tokens of an item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoreIds {
    /// What the model gets first.
    pub(crate) prompt: Prompt,
    /// What is scored.
    pub(crate) target: Prompt,
}

/// Checks a request to a model.
pub(crate) fn score_plan(request: ScoreRequest, model: &ModelInfo) -> Result<ScorePlan, AppError> {
    let message = format!("is of kind {}, which has no distribution over tokens to score", model.kind);
    check("model", model.has_token_distribution(), message)?;
    let items = request.items.ok_or_else(|| AppError::invalid("items", "`items` is missing"))?;
    let count = items.len();
    let message = format!("must be a list of 1 to {ITEMS_MAX} items, not {count}");
    check("items", (1..=ITEMS_MAX).contains(&count), message)?;
    for (index, item) in items.iter().enumerate() {
        let is_empty = match &item.target {
            TextOrIds::Text(text) => text.is_empty(),
            TextOrIds::Ids(ids) => ids.is_empty(),
        };
        check(&format!("items[{index}].target"), !is_empty, "must not be empty")?;
    }
    let lambda = request.lambda.unwrap_or(0.3);
    check("lambda", (0.0..=LAMBDA_MAX).contains(&lambda), format!("must be from 0 to {LAMBDA_MAX}"))?;
    let mut losses: Vec<LossName> = Vec::new();
    for name in request.losses.unwrap_or_else(|| LossName::ALL.to_vec()) {
        if !losses.contains(&name) {
            losses.push(name);
        }
    }
    let in_total = losses.iter().copied().find(|&name| name != LossName::Ce);
    let reduction = request.reduction.unwrap_or_default();
    let reweigh = request.reweigh.unwrap_or(false);
    let print = ScorePrint { losses, in_total, lambda, reduction, reweigh };
    Ok(ScorePlan { items, print, add_eos: request.add_eos.unwrap_or(true) })
}

impl ScorePlan {
    /// How much text there is to tokenize.
    pub(crate) fn text_bytes(&self) -> usize {
        let bytes = |text: &TextOrIds| match text {
            TextOrIds::Text(text) => text.len(),
            TextOrIds::Ids(_) => 0,
        };
        // Decoder-only models have the prompt tokenized with the target, and alone.
        self.items.iter().map(|item| 2 * bytes(&item.prompt) + bytes(&item.target)).sum()
    }

    /// The token ids of all items, each within what the model takes.
    pub(crate) fn ids(self, tokenizer: &Tokenizer, rules: &Rules) -> Result<Vec<ScoreIds>, AppError> {
        let ids = |(index, item)| {
            let reader = ItemReader { index, tokenizer, rules };
            reader.fitting(reader.ids(item, self.add_eos)?)
        };
        self.items.into_iter().enumerate().map(ids).collect()
    }
}

/// Turns one item into token ids.
struct ItemReader<'a> {
    index: usize,
    tokenizer: &'a Tokenizer,
    rules: &'a Rules,
}

impl ItemReader<'_> {
    fn ids(&self, item: ScoreItem, add_eos: bool) -> Result<ScoreIds, AppError> {
        let ScoreItem { prompt, target } = item;
        let mut ids = match (prompt, target) {
            (TextOrIds::Text(prompt), TextOrIds::Text(target)) if !self.rules.encoder_decoder => {
                self.joined(&prompt, &target)?
            }
            (prompt, target) => {
                let prompt = match prompt {
                    TextOrIds::Text(text) => self.encode("prompt", &text, true)?,
                    TextOrIds::Ids(ids) => {
                        self.rules.with_end(self.rules.known(&self.param("prompt"), ids)?).into()
                    }
                };
                let target = match target {
                    TextOrIds::Text(text) => self.encode("target", &text, false)?,
                    TextOrIds::Ids(ids) => self.rules.known(&self.param("target"), ids)?.into(),
                };
                ScoreIds { prompt, target }
            }
        };
        let ends = self.ends(ids.target.ids().next_back());
        if let (true, false, Some(&end)) = (add_eos, ends, self.rules.eos_ids.first()) {
            ids.target.tokens.push(end.into());
        }
        Ok(ids)
    }

    /// A decoder-only model was trained on prompt and target as one text. Where its tokens are not cut between them, the
    /// target begins with the first token that differs from those of the prompt alone.
    fn joined(&self, prompt: &str, target: &str) -> Result<ScoreIds, AppError> {
        let text = format!("{prompt}{target}");
        let mut all = self.encode("target", &text, true)?.tokens;
        // Some tokenizers end every text; whether the target ends is for the request to say.
        let last_id = |tokens: &[Token]| tokens.last().map(|token| token.id);
        let ends_without = self.ends(self.encode("target", &text, false)?.ids().next_back());
        if self.ends(last_id(&all)) && !ends_without {
            all.pop();
        }
        let alone = self.encode("prompt", prompt, true)?.tokens;
        let common = all.iter().zip(&alone).take_while(|(a, b)| a == b).count();
        let target = Prompt { tokens: all.split_off(common) };
        Ok(ScoreIds { prompt: Prompt { tokens: all }, target })
    }

    fn ends(&self, last: Option<u32>) -> bool {
        last.is_some_and(|id| self.rules.eos_ids.contains(&id))
    }

    fn fitting(&self, ids: ScoreIds) -> Result<ScoreIds, AppError> {
        let (prompt, target) = (ids.prompt.len(), ids.target.len());
        check(&self.param("prompt"), prompt > 0, "has no token, so that nothing comes before the target")?;
        check(&self.param("target"), target > 0, "has no token")?;
        let max = self.rules.prompt_tokens_max;
        if self.rules.encoder_decoder {
            let message = format!("has {prompt} tokens, the model takes at most {max}");
            check(&self.param("prompt"), prompt <= max, message)?;
        } else {
            let message =
                format!("has {target} tokens behind a prompt of {prompt}, the model takes at most {max}");
            check(&self.param("target"), prompt + target <= max, message)?;
        }
        let max = self.rules.output_tokens_max;
        check(
            &self.param("target"),
            target as u64 <= max,
            format!("has {target} tokens, at most {max} are scored"),
        )?;
        Ok(ids)
    }

    fn encode(&self, field: &str, text: &str, add_special_tokens: bool) -> Result<Prompt, AppError> {
        let param = self.param(field);
        self.tokenizer.encode_prompt(text, add_special_tokens).map_err(|error| {
            let message = format!("`{param}`: {error}");
            AppError::invalid(param, message)
        })
    }

    fn param(&self, field: &str) -> String {
        format!("items[{}].{field}", self.index)
    }
}

impl ScorePrint {
    /// The job of one target.
    pub(crate) fn job(&self, target: Vec<Token>, number_tokens: &Arc<NumberTokens>) -> ScoreJob {
        let losses =
            self.number_losses().map(|(_, kind)| NumberLoss { kind, reweigh: self.reweigh }).collect();
        ScoreJob { target, number_tokens: Arc::clone(number_tokens), losses }
    }

    /// The losses of a job, in order.
    fn number_losses(&self) -> impl Iterator<Item = (LossName, NumberLossKind)> {
        self.losses.iter().filter_map(|&name| Some((name, kind(name)?)))
    }

    /// A scored target as the API shows it.
    pub(crate) fn show(&self, index: usize, outcome: &ScoreOutcome, decoder: &dyn TextDecoder) -> Score {
        let tokens = &outcome.tokens;
        let number = |of: fn(&TokenScore) -> Option<f64>| {
            tokens.iter().map(|token| of(token).and_then(plain)).collect()
        };
        let mean_ce = self.reduced(LossName::Ce, tokens, ReductionName::Mean);
        Score {
            index: index as u64,
            token_ids: tokens.iter().map(|token| token.token.id).collect(),
            tokens: tokens.iter().map(|token| decoder.token_text(token.token.id)).collect(),
            token_logprobs: tokens.iter().map(|token| finite(token.token.logprob)).collect(),
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

/// The kind of a Number Token Loss.
fn kind(name: LossName) -> Option<NumberLossKind> {
    match name {
        LossName::Ce => None,
        LossName::NtlWas => Some(NumberLossKind::Was),
        LossName::NtlWasCdf => Some(NumberLossKind::WasCdf(Smoothing::NONE)),
        LossName::NtlMse => Some(NumberLossKind::Mse),
        LossName::NtlMae => Some(NumberLossKind::Mae),
        LossName::NtlHuber => Some(NumberLossKind::Huber),
    }
}

/// A loss for JSON.
fn wire(reduced: ReducedLoss) -> Loss {
    match reduced {
        ReducedLoss::All(loss) => Loss::All(plain(loss)),
        ReducedLoss::Each(losses) => Loss::Each(losses.into_iter().map(plain).collect()),
    }
}
