//! Flags of `ntl-eval compare`, and the settings that they mean.

use std::path::PathBuf;

use clap::Args;

use super::tasks::Task;
use crate::compare::leaderboard::LeaderboardSettings;
use crate::compare::{CompareSettings, Format};
use crate::error::UsageError;
use crate::settings::base_url::BaseUrl;
use crate::settings::values::metric;
use crate::settings::{RunSettings, ServerSettings};
use crate::stats::bootstrap::Bootstrap;

/// Flags of `ntl-eval compare`.
#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    subcommand_value_name = "TASK",
    subcommand_help_heading = "Tasks to run on two models",
    override_usage = USAGE,
    after_help = EXAMPLES,
    // `--endpoint` may also precede the task.
    mut_subcommands(|task| task.mut_arg("endpoint", |endpoint| endpoint.required(false)))
)]
pub struct CompareArgs {
    /// Folder of a run (as written with `--out`), its report.json, or a folder of several runs.
    #[arg(value_name = "A", required = true)]
    pub a: Option<PathBuf>,
    /// Folder of another run over the same items, or of several: then the runs with the same path are
    /// compared.
    #[arg(value_name = "B", required = true)]
    pub b: Option<PathBuf>,
    /// Rank all runs below this folder, and write `leaderboard.html` and `leaderboard.md` into it: a table
    /// for each set of items, with simultaneous intervals of the differences.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["a", "b", "compared"])]
    pub leaderboard: Option<PathBuf>,
    /// Metric that ranks the runs of `--leaderboard`. Default: the one that the runs show first.
    #[arg(long, value_name = "NAME", value_parser = metric)]
    pub metric: Option<String>,
    /// Names of two models that run a task; the second is compared with the first.
    #[arg(long, value_name = "A,B", value_parser = two_names, global = true)]
    pub models: Option<[String; 2]>,
    /// Base URL of the server of both models, or given twice: one for each.
    #[arg(long = "endpoint", id = "compared", value_name = "URL", conflicts_with_all = ["a", "b"])]
    pub endpoint: Vec<BaseUrl>,
    /// List the N items whose absolute errors differ most.
    #[arg(long, value_name = "N", default_value = "10")]
    pub items: usize,
    /// Number of resamples of the bootstrap, and of the permutation test if it does not enumerate all swaps.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(100..))]
    pub resamples: u32,
    /// Seed of the bootstrap and of the permutation test.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Print one line of JSON.
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print Markdown.
    #[arg(long)]
    pub markdown: bool,
    #[command(subcommand)]
    pub task: Option<Task>,
}

const USAGE: &str = "\
ntl-eval compare [OPTIONS] <A> <B>
       ntl-eval compare [OPTIONS] --leaderboard <DIR>
       ntl-eval compare [OPTIONS] <TASK> --endpoint <URL> --models <A,B> --out <DIR> [OPTIONS OF THE TASK]";

const EXAMPLES: &str = "\
Examples:
  ntl-eval compare results/ce results/ntl
  ntl-eval compare --leaderboard results --metric mae
  ntl-eval compare gsm8k --endpoint http://127.0.0.1:8000 --models ce,ntl --out results
  ntl-eval compare --endpoint http://h1:8000 --endpoint http://h2:8000 rjokes --out results";

fn two_names(text: &str) -> Result<[String; 2], String> {
    match text.split(',').map(str::trim).collect::<Vec<_>>().as_slice() {
        [a, b] if !a.is_empty() && !b.is_empty() => Ok([(*a).to_owned(), (*b).to_owned()]),
        _ => Err("expected the names of two models, A,B".to_owned()),
    }
}

impl CompareArgs {
    /// Returns the settings of the comparison. `run` are the settings of the task, whose `--json` counts as
    /// well.
    pub fn settings(&self, run: Option<&RunSettings>) -> CompareSettings {
        let format = if run.is_some_and(|run| run.output.json) { Format::Json } else { self.format() };
        CompareSettings { bootstrap: self.bootstrap(), items_max: self.items, format }
    }

    /// Returns the settings of `--leaderboard`.
    pub fn leaderboard_settings(&self) -> LeaderboardSettings {
        LeaderboardSettings {
            bootstrap: self.bootstrap(),
            metric: self.metric.clone(),
            format: self.format(),
        }
    }

    fn bootstrap(&self) -> Bootstrap {
        Bootstrap { resamples: self.resamples, seed: self.seed }
    }

    fn format(&self) -> Format {
        match (self.json, self.markdown) {
            (true, _) => Format::Json,
            (false, true) => Format::Markdown,
            (false, false) => Format::Text,
        }
    }

    /// Returns the settings of a task's run on each of the two models.
    pub fn sides(&self, run: &RunSettings) -> Result<[RunSettings; 2], UsageError> {
        let out = run.output.out.as_deref().ok_or_else(|| {
            UsageError("two models need --out DIR: their runs are kept in DIR/a and DIR/b".to_owned())
        })?;
        let [endpoints_a, endpoints_b] = self.endpoints(&run.server)?;
        let [model_a, model_b] = self.model_names(&run.server)?;
        let sides = [("a", endpoints_a, model_a), ("b", endpoints_b, model_b)];
        Ok(sides.map(|(folder, endpoints, model)| {
            let mut side = run.clone();
            side.server = ServerSettings { endpoints, model, ..side.server };
            side.output.out = Some(out.join(folder));
            side
        }))
    }

    fn model_names(&self, server: &ServerSettings) -> Result<[Option<String>; 2], UsageError> {
        match (&self.models, &server.model) {
            (Some(_), Some(_)) => Err(UsageError::new("--models names both models; leave out --model")),
            (Some(names), None) => Ok(names.clone().map(Some)),
            (None, model) if self.endpoint.len() == 2 => Ok([model.clone(), model.clone()]),
            (None, _) => {
                Err(UsageError::new("name the two models with --models A,B, or give two --endpoint"))
            }
        }
    }

    /// `--endpoint` of `compare` names one server for both models or one for each. The task's `--endpoint`
    /// names servers for both.
    fn endpoints(&self, server: &ServerSettings) -> Result<[Vec<BaseUrl>; 2], UsageError> {
        match (self.endpoint.as_slice(), server.endpoints.as_slice()) {
            ([], []) => Err(UsageError("--endpoint URL is missing".to_owned())),
            ([], both) => Ok([both.to_vec(), both.to_vec()]),
            ([both], _) => Ok([vec![both.clone()], vec![both.clone()]]),
            ([a, b], _) => Ok([vec![a.clone()], vec![b.clone()]]),
            _ => Err(UsageError(
                "before the task, --endpoint is one server for both models or one for each; after the task it may be \
                 repeated, to spread requests over several"
                    .to_owned(),
            )),
        }
    }
}
