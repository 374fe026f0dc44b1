//! The fields that say how tokens are sampled and what ends a text.

use std::collections::BTreeMap;
use std::sync::Arc;

use ntl_api::{CompletionRequest, Stop};
use ntl_core::sampling::SamplingParams;
use ntl_text::guide::TokenRules;

use crate::error::{AppError, check, in_range};
use crate::request::ModelProfile;

const STOPS_MAX: usize = 4;

/// Every token is searched for stop strings, so long ones cost time.
const STOP_BYTES_MAX: usize = 1024;

/// Maximum number of ids in `logit_bias` or `stop_token_ids`: every token is compared with them.
const IDS_MAX: usize = 1024;

/// The sampling of a request. Its seed is 0 until a job is made.
pub(super) fn sampling(request: &CompletionRequest) -> Result<SamplingParams, AppError> {
    let temperature = in_range("temperature", request.temperature, 1.0, 0.0..=2.0)?;
    let top_p = request.top_p.unwrap_or(1.0);
    check("top_p", top_p > 0.0 && top_p <= 1.0, "must be above 0 and at most 1")?;
    let top_k = request.top_k.unwrap_or(-1);
    check("top_k", top_k >= -1, "must be at least 1, or 0 or -1 for all tokens")?;
    let min_p = in_range("min_p", request.min_p, 0.0, 0.0..=1.0)?;
    let presence_penalty = in_range("presence_penalty", request.presence_penalty, 0.0, -2.0..=2.0)?;
    let frequency_penalty = in_range("frequency_penalty", request.frequency_penalty, 0.0, -2.0..=2.0)?;
    let repetition_penalty = request.repetition_penalty.unwrap_or(1.0);
    let fits = repetition_penalty > 0.0 && repetition_penalty <= 100.0;
    check("repetition_penalty", fits, "must be above 0 and at most 100")?;
    Ok(SamplingParams {
        temperature,
        top_p,
        top_k: usize::try_from(top_k).unwrap_or(0),
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
        seed: 0,
    })
}

pub(super) fn logit_bias(
    bias: Option<&BTreeMap<String, f64>>,
    profile: &ModelProfile,
) -> Result<Arc<[(u32, f32)]>, AppError> {
    const FIELD: &str = "logit_bias";
    let Some(bias) = bias else { return Ok(Arc::from([])) };
    check(FIELD, bias.len() <= IDS_MAX, format!("must name at most {IDS_MAX} token ids"))?;
    let mut entries = Vec::with_capacity(bias.len());
    for (key, &value) in bias {
        let id = match key.parse::<u32>() {
            Ok(id) if (id as usize) < profile.tokens => id,
            _ => {
                let message =
                    format!("has the key {key:?}, which is not a token id below {}", profile.tokens);
                return Err(AppError::field(FIELD, message));
            }
        };
        check(FIELD, (-100.0..=100.0).contains(&value), "must have values from -100 to 100")?;
        entries.push((id, value as f32));
    }
    Ok(entries.into())
}

/// `allowed_token_ids` and `bad_words`.
pub(super) fn token_rules(
    request: &CompletionRequest,
    profile: &ModelProfile,
) -> Result<TokenRules, AppError> {
    let allowed =
        profile.known_ids("allowed_token_ids", request.allowed_token_ids.clone().unwrap_or_default())?;
    let bad_words = request.bad_words.clone().unwrap_or_default();
    let fit =
        bad_words.len() <= IDS_MAX && bad_words.iter().all(|word| (1..=STOP_BYTES_MAX).contains(&word.len()));
    check("bad_words", fit, format!("must be at most {IDS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes"))?;
    Ok(TokenRules { allowed, bad_words })
}

pub(super) fn stop_token_ids(ids: Option<&[u32]>, profile: &ModelProfile) -> Result<Vec<u32>, AppError> {
    let ids = ids.unwrap_or(&[]).to_vec();
    check("stop_token_ids", ids.len() <= IDS_MAX, format!("must be at most {IDS_MAX} token ids"))?;
    profile.known_ids("stop_token_ids", ids)
}

pub(super) fn stop_strings(stop: Option<&Stop>) -> Result<Vec<String>, AppError> {
    let stops = match stop {
        None => Vec::new(),
        Some(Stop::One(one)) => vec![one.clone()],
        Some(Stop::Many(many)) => many.clone(),
    };
    check("stop", stops.len() <= STOPS_MAX, format!("must be at most {STOPS_MAX} strings"))?;
    let short = stops.iter().all(|stop| stop.len() <= STOP_BYTES_MAX);
    check("stop", short, format!("must be strings of at most {STOP_BYTES_MAX} bytes"))?;
    // An empty string would end every text immediately. Clients that send one mean none.
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}
