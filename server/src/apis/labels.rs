//! The probabilities of labels: vLLM's `POST /generative_scoring`, and SGLang's form of `POST /v1/score`.

use std::collections::BTreeMap;

use ntl_api::{LabelItems, LabelProbabilities, LabelRequest, LabelScore, LabelScores, TextOrIds};
use ntl_core::contract::{CandidatesJob, ModelInfo, Request, ScoreOutcome};
use ntl_core::losses::log_softmax;

use super::score::{check_scores, input};
use super::usage;
use crate::answer::TokenCounts;
use crate::error::{AppError, check, required};
use crate::request::{LabelPrompts, ModelProfile};

const ITEMS_MAX: usize = 1024;
const LABELS_MAX: usize = 1024;

/// Whose defaults a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LabelForm {
    Vllm,
    Sglang,
}

/// The labels of a request, and how their probabilities are computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestedLabels {
    ids: Vec<u32>,
    /// Whether the probabilities add up to 1.
    apply_softmax: bool,
}

/// Validates a request.
pub(crate) fn label_request(
    request: LabelRequest,
    form: LabelForm,
    model: &ModelInfo,
    profile: &ModelProfile,
) -> Result<(LabelPrompts, RequestedLabels), AppError> {
    check_scores(model)?;
    let query = required("query", request.query)?;
    let items = match required("items", request.items)? {
        LabelItems::One(text) => vec![TextOrIds::Text(text)],
        LabelItems::Each(items) => items,
    };
    let count = items.len();
    let message = format!("must be a list of 1 to {ITEMS_MAX} items, not {count}");
    check("items", (1..=ITEMS_MAX).contains(&count), message)?;
    let labels = required("label_token_ids", request.label_token_ids)?;
    let count = labels.len();
    let message = format!("must be a list of 1 to {LABELS_MAX} token ids, not {count}");
    check("label_token_ids", (1..=LABELS_MAX).contains(&count), message)?;
    let ids = profile.known_ids("label_token_ids", labels)?;
    let prompts = LabelPrompts {
        query: input(query),
        items: items.into_iter().map(input).collect(),
        item_first: request.item_first.unwrap_or(false),
        joins_texts: form == LabelForm::Sglang,
        add_special_tokens: request.add_special_tokens.unwrap_or(true),
    };
    let apply_softmax = request.apply_softmax.unwrap_or(form == LabelForm::Vllm);
    Ok((prompts, RequestedLabels { ids, apply_softmax }))
}

impl RequestedLabels {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The request of every prompt.
    pub(crate) fn request(&self) -> Request {
        let candidates: Vec<_> = self.ids.iter().map(|&id| vec![id.into()]).collect();
        Request::Candidates(CandidatesJob::new(&candidates))
    }

    /// The probabilities of the labels after one prompt, in their order. Equal labels count once.
    fn probabilities(&self, outcome: &ScoreOutcome) -> Vec<f64> {
        let logprobs: BTreeMap<u32, f64> =
            outcome.tokens.iter().map(|score| (score.token.id, score.token.logprob)).collect();
        let logprobs = if self.apply_softmax {
            let shares = log_softmax(logprobs.values().copied());
            logprobs.into_keys().zip(shares).collect()
        } else {
            logprobs
        };
        self.ids.iter().map(|id| logprobs.get(id).map_or(0.0, |logprob| logprob.exp())).collect()
    }

    /// The response of vLLM, which has the probability of the first label.
    pub(crate) fn first(&self, outcomes: &[ScoreOutcome], model: &str, tokens: TokenCounts) -> LabelScores {
        let mut data = Vec::with_capacity(outcomes.len());
        for (index, outcome) in (0..).zip(outcomes) {
            let score = self.probabilities(outcome).first().copied().unwrap_or_default();
            data.push(LabelScore { index, object: "score".to_owned(), score });
        }
        LabelScores {
            id: format!("generative-scoring-{}", uuid::Uuid::new_v4().simple()),
            object: "list".to_owned(),
            created: crate::unix_seconds(),
            model: model.to_owned(),
            data,
            usage: usage(tokens),
        }
    }

    /// The response of SGLang, which has the probabilities of all labels.
    pub(crate) fn all(
        &self,
        outcomes: &[ScoreOutcome],
        model: &str,
        tokens: TokenCounts,
    ) -> LabelProbabilities {
        LabelProbabilities {
            scores: outcomes.iter().map(|outcome| self.probabilities(outcome)).collect(),
            model: model.to_owned(),
            usage: usage(tokens),
            object: "scoring".to_owned(),
        }
    }
}
