//! Checks before, during and after a run that the endpoints serve the same model.
//!
//! `/v1/models` describes a model. If it names no fingerprint, or if the endpoint only passes requests on to
//! another server, the log-probabilities after fixed prompts are compared too, up to rounding. An endpoint
//! that offers neither cannot be checked, and an endpoint that does not respond now is not checked now.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Client, ClientError, ModelEntry, ModelList, PROBE_TIMEOUT, Route, value_text};
use crate::settings::base_url::BaseUrl;
use crate::settings::mode::Api;

/// The fields of `/v1/models` that only change with the model.
const FIELDS: [&str; 7] =
    ["fingerprint", "root", "meta", "parameters", "dtype", "kv_cache_dtype", "max_model_len"];

const PROMPTS: [&str; 2] = ["1 2 3 4 5 6 7", "12 + 30 = 42\n7 * 8 ="];

/// Number of greedy tokens after each prompt.
const TOKENS: usize = 4;

/// Number of the most probable tokens at each position.
const ALTERNATIVES: usize = 5;

/// Maximum mean difference of the log-probabilities of the same model, also in half precision and if the
/// server computes them together with others.
const ROUNDING_MAX: f64 = 0.1;

/// The model of a run.
#[derive(Debug)]
pub(super) struct RunModel {
    api: Api,
    listed: ModelEntry,
    /// The log-probabilities of each endpoint, if they are needed and it reports them.
    probes: Vec<Option<Vec<Probe>>>,
}

/// The positions after one prompt.
type Probe = Vec<Position>;

#[derive(Debug, Clone, PartialEq)]
struct Position {
    chosen: String,
    logprobs: BTreeMap<String, f64>,
}

impl RunModel {
    /// Returns whether the fingerprint of responses may be outdated: the endpoint checks another server from
    /// time to time.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.listed.others.get("engine").is_some_and(|engine| !engine.is_null())
    }

    fn needs_probes(&self) -> bool {
        self.is_elsewhere() || self.listed.others.get("fingerprint").is_none_or(Value::is_null)
    }
}

impl Client {
    /// Remembers the model of a run for [`Client::verify_model`].
    pub async fn remember_model(&self, listed: &ModelEntry, api: Api) {
        let mut model = RunModel { api, listed: listed.clone(), probes: Vec::new() };
        for endpoint in self.pool.endpoints() {
            let probes = if model.needs_probes() { self.probes(endpoint, &model).await.ok() } else { None };
            model.probes.push(probes.flatten());
        }
        // A client has one run.
        let _ = self.run_model.set(model);
    }

    /// Fails if an endpoint serves another model than at the beginning of the run.
    pub async fn verify_model(&self) -> Result<(), ClientError> {
        let Some(model) = self.run_model.get() else { return Ok(()) };
        for (endpoint, probes) in self.pool.endpoints().iter().zip(&model.probes) {
            let request = self.http.get(endpoint.join("models")).timeout(PROBE_TIMEOUT);
            match self.try_once::<ModelList>(endpoint, request).await {
                Ok(list) => {
                    if let Some(difference) = difference(&model.listed, &list.data) {
                        return Err(ClientError::OtherModel { endpoint: endpoint.clone(), difference });
                    }
                }
                Err(error @ ClientError::OtherCheckpoint { .. }) => return Err(error),
                Err(_) => {}
            }
            // A single wrong response does not show another model.
            if self.differs(endpoint, model, probes.as_deref()).await?
                && self.differs(endpoint, model, probes.as_deref()).await?
            {
                let difference = "the probabilities of its tokens after a fixed prompt are others".to_owned();
                return Err(ClientError::OtherModel { endpoint: endpoint.clone(), difference });
            }
        }
        Ok(())
    }

    /// Returns whether answers that arrived before another fingerprint may come from another model, too.
    pub fn model_may_have_changed_before(&self, error: &ClientError) -> bool {
        match error {
            ClientError::OtherModel { .. } => true,
            ClientError::OtherCheckpoint { .. } => self.run_model.get().is_some_and(RunModel::is_elsewhere),
            _ => false,
        }
    }

    async fn differs(
        &self,
        endpoint: &BaseUrl,
        model: &RunModel,
        known: Option<&[Probe]>,
    ) -> Result<bool, ClientError> {
        let Some(known) = known else { return Ok(false) };
        match self.probes(endpoint, model).await {
            Ok(Some(found)) => Ok(mean_difference(known, &found) > ROUNDING_MAX),
            Err(error @ ClientError::OtherCheckpoint { .. }) => Err(error),
            Ok(None) | Err(_) => Ok(false),
        }
    }

    /// Returns `None` if the endpoint reports no log-probabilities.
    async fn probes(&self, endpoint: &BaseUrl, model: &RunModel) -> Result<Option<Vec<Probe>>, ClientError> {
        let mut probes = Vec::new();
        for prompt in PROMPTS {
            let body = json!({"model": model.listed.id, "max_tokens": TOKENS, "temperature": 0});
            let (route, body) = match model.api {
                Api::Completions | Api::Decisions | Api::Systemone => {
                    (Route::Completions, with(body, json!({"prompt": prompt, "logprobs": ALTERNATIVES})))
                }
                Api::Chat => {
                    let messages = json!([{"role": "user", "content": prompt}]);
                    let fields =
                        json!({"messages": messages, "logprobs": true, "top_logprobs": ALTERNATIVES});
                    (Route::Chat, with(body, fields))
                }
            };
            let request = self.http.post(route.url(endpoint)).timeout(PROBE_TIMEOUT).json(&body);
            let response = self.try_once::<ProbeResponse>(endpoint, request).await?;
            let Some(probe) = response.probe().filter(|probe| !probe.is_empty()) else { return Ok(None) };
            probes.push(probe);
        }
        Ok(Some(probes))
    }
}

fn with(mut body: Value, fields: Value) -> Value {
    if let (Some(body), Value::Object(fields)) = (body.as_object_mut(), fields) {
        body.extend(fields);
    }
    body
}

#[derive(Deserialize)]
struct ProbeResponse {
    choices: Vec<ProbeChoice>,
}

#[derive(Deserialize)]
struct ProbeChoice {
    logprobs: Option<Logprobs>,
}

/// The shape of completions, or of chats.
#[derive(Deserialize)]
#[serde(untagged)]
enum Logprobs {
    Chat { content: Vec<ChatToken> },
    Completion { tokens: Vec<String>, top_logprobs: Vec<BTreeMap<String, f64>> },
}

#[derive(Deserialize)]
struct ChatToken {
    token: String,
    top_logprobs: Vec<ChatEntry>,
}

#[derive(Deserialize)]
struct ChatEntry {
    token: String,
    logprob: f64,
}

impl ProbeResponse {
    fn probe(self) -> Option<Probe> {
        let mut positions = Vec::new();
        match self.choices.into_iter().next()?.logprobs? {
            Logprobs::Completion { tokens, top_logprobs } => {
                for (chosen, logprobs) in tokens.into_iter().zip(top_logprobs) {
                    positions.push(Position { chosen, logprobs });
                }
            }
            Logprobs::Chat { content } => {
                for ChatToken { token, top_logprobs } in content {
                    let logprobs = top_logprobs.into_iter().map(|entry| (entry.token, entry.logprob));
                    positions.push(Position { chosen: token, logprobs: logprobs.collect() });
                }
            }
        }
        Some(positions)
    }
}

/// Returns how the entry of a model in a list differs, if it does.
fn difference(model: &ModelEntry, list: &[ModelEntry]) -> Option<String> {
    let Some(found) = list.iter().find(|listed| listed.id == model.id) else {
        return Some(format!("it no longer lists `{}`", model.id));
    };
    let field = FIELDS.into_iter().find(|&field| model.others.get(field) != found.others.get(field))?;
    let was = value_text(model.others.get(field));
    let is = value_text(found.others.get(field));
    Some(format!("`{field}` was {was}, and is {is}"))
}

/// The mean difference of the log-probabilities that both sides report, up to the first different token, and
/// of bounds for tokens that only one side reports.
fn mean_difference(a: &[Probe], b: &[Probe]) -> f64 {
    let (mut sum, mut count) = (0.0, 0_usize);
    for (a, b) in a.iter().zip(b) {
        for (a, b) in a.iter().zip(b) {
            for (one, other) in [(a, b), (b, a)] {
                let least = other.logprobs.values().copied().fold(f64::INFINITY, f64::min);
                for (token, &logprob) in &one.logprobs {
                    let apart = match other.logprobs.get(token) {
                        Some(same) => (logprob - same).abs(),
                        None => (logprob - least).max(0.0),
                    };
                    sum += if apart.is_nan() { 0.0 } else { apart.min(10.0) };
                    count += 1;
                }
            }
            if a.chosen != b.chosen {
                break;
            }
        }
    }
    if count == 0 { 0.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(positions: &[(&str, &[(&str, f64)])]) -> Vec<Probe> {
        let position = |&(chosen, logprobs): &(&str, &[(&str, f64)])| Position {
            chosen: chosen.to_owned(),
            logprobs: logprobs.iter().map(|&(token, logprob)| (token.to_owned(), logprob)).collect(),
        };
        vec![positions.iter().map(position).collect()]
    }

    #[test]
    fn rounding_is_not_another_model_and_other_probabilities_are() {
        let base = probe(&[("8", &[("8", -0.2), ("9", -2.0)]), (",", &[(",", -0.1), (".", -2.5)])]);
        let is_same =
            |other: &[(&str, &[(&str, f64)])]| mean_difference(&base, &probe(other)) <= ROUNDING_MAX;
        assert!(is_same(&[("8", &[("8", -0.22), ("9", -1.95)]), (",", &[(",", -0.1), (";", -2.48)])]));
        assert!(is_same(&[("8", &[("8", -0.2), ("9", -2.0)])]), "the response ended earlier");
        assert!(!is_same(&[("8", &[("8", -0.2), ("9", -2.0)]), (",", &[(",", -0.9), (".", -0.9)])]));
        assert!(!is_same(&[("9", &[("8", -2.0), ("9", -0.2)]), ("x", &[("x", -0.1), ("y", -2.5)])]));
    }

    #[test]
    fn a_model_whose_description_changed_or_that_is_gone_is_another_one() {
        let entry = |fields: Value| -> ModelEntry { serde_json::from_value(fields).unwrap() };
        let model = entry(json!({"id": "m", "fingerprint": "0a", "created": 1, "load": 2}));
        let same = entry(json!({"id": "m", "fingerprint": "0a", "created": 7, "load": 9}));
        assert_eq!(difference(&model, &[entry(json!({"id": "x"})), same]), None);
        let other = difference(&model, &[entry(json!({"id": "m", "fingerprint": "0b"}))]);
        assert_eq!(other.as_deref(), Some("`fingerprint` was \"0a\", and is \"0b\""));
        assert_eq!(difference(&model, &[]).as_deref(), Some("it no longer lists `m`"));
    }
}
