//! The scores of an earlier run, which show whether the judge has changed.
//!
//! In: the directory of `--drift`. Out: the prompts of both runs with both scores. The requests of both runs
//! have to be the same.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};

use crate::data::Item;
use crate::metrics::drift::Drift;
use crate::run::samples::hash;
use crate::run::score::ScoredReply;
use crate::store::report::flat_settings;
use crate::store::saved::Run;
use crate::tasks::judge;

/// The scores of an earlier run, by the hash of the prompt.
#[derive(Debug)]
pub struct EarlierScores {
    folder: String,
    /// The settings of its requests.
    request: Map<String, Value>,
    scores: HashMap<String, f64>,
}

impl EarlierScores {
    /// Reads a run of the judge that has at least one of the items.
    pub fn load(folder: &Path, items: &[Item]) -> anyhow::Result<Self> {
        let failed = || format!("could not use {} for --drift", folder.display());
        let run = Run::load(folder).with_context(failed)?;
        let task = &run.report.task;
        ensure!(task == judge::ENTRY.name, "{}: it is a run of {task}, not of a judge", failed());
        let mut scores = HashMap::new();
        for sample in &run.samples {
            if let Some(score) = sample.score("score") {
                scores.insert(sample.prompt_hash.clone(), score);
            }
        }
        if !items.iter().any(|item| scores.contains_key(&hash(item.prompt()))) {
            bail!(
                "{}: it has no score of any prompt of this run; the rubric and the answers have to be the same",
                failed()
            );
        }
        let request = match run.report.settings.get("request") {
            Some(Value::Object(request)) => request.clone(),
            _ => Map::new(),
        };
        Ok(Self { folder: folder.display().to_string(), request, scores })
    }

    /// Rejects a run with other requests. `request`: the settings of this run's requests.
    pub fn check(&self, request: &Map<String, Value>) -> anyhow::Result<()> {
        let before: BTreeSet<(String, String)> = flat_settings("", &self.request).into_iter().collect();
        let now: BTreeSet<(String, String)> = flat_settings("", request).into_iter().collect();
        if let Some((name, _)) = before.symmetric_difference(&now).next() {
            bail!(
                "could not use {} for --drift: its requests have another `{name}`, so that a difference would not show a change \
                 of the judge",
                self.folder
            );
        }
        Ok(())
    }

    /// Compares the scores of this run. Each prompt counts once. `None` if no prompt has a score in both
    /// runs.
    pub fn drift(&self, records: &[ScoredReply<'_>], seed: u64) -> Option<Drift> {
        let mut prompts = BTreeSet::new();
        let mut scores = Vec::new();
        for record in records {
            let rating = record.row.judgement.as_ref().and_then(|judgement| judgement.rating.as_ref());
            let prompt = hash(record.reply.item.prompt());
            if let (Some(rating), Some(before)) = (rating, self.scores.get(&prompt))
                && prompts.insert(prompt)
            {
                scores.push([*before, rating.score]);
            }
        }
        Drift::of(&scores, self.folder.clone(), seed)
    }
}
