//! Flags of `ntl-eval compare`.

use std::path::PathBuf;

use clap::Args;

use super::base_url::BaseUrl;
use super::tasks::Task;

/// Flags of `ntl-eval compare`.
#[derive(Debug, Args)]
#[command(
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    subcommand_value_name = "TASK",
    subcommand_help_heading = "Tasks to run on two models",
    override_usage = USAGE,
    after_help = EXAMPLES,
    // `--endpoint` may stand before the task as well.
    mut_subcommands(|task| task.mut_arg("endpoint", |endpoint| endpoint.required(false)))
)]
pub struct CompareArgs {
    /// Folder of a run (as written with `--out`), its report.json, or a folder of several runs.
    #[arg(value_name = "A", required = true)]
    pub a: Option<PathBuf>,
    /// Folder of another run over the same items, or of several: then the runs with the same path are compared.
    #[arg(value_name = "B", required = true)]
    pub b: Option<PathBuf>,
    /// Names of two models that run a task; the second is compared with the first.
    #[arg(long, value_name = "A,B", value_parser = two_names, conflicts_with_all = ["a", "b"])]
    pub models: Option<[String; 2]>,
    /// Base URL of the server of both models, or given twice: one for each.
    #[arg(long = "endpoint", id = "compared", value_name = "URL", conflicts_with_all = ["a", "b"])]
    pub endpoint: Vec<BaseUrl>,
    /// List the N items whose absolute errors differ most.
    #[arg(long, value_name = "N", default_value = "10")]
    pub items: usize,
    /// Resamples of the bootstrap.
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(100..))]
    pub resamples: u32,
    /// Seed of the bootstrap.
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
       ntl-eval compare [OPTIONS] --endpoint <URL> --models <A,B> <TASK> --out <DIR> [OPTIONS OF THE TASK]";

const EXAMPLES: &str = "\
Examples:
  ntl-eval compare results/ce results/ntl
  ntl-eval compare --endpoint http://127.0.0.1:8000 --models ce,ntl gsm8k --out results
  ntl-eval compare --endpoint http://h1:8000 --endpoint http://h2:8000 rjokes --out results";

fn two_names(text: &str) -> Result<[String; 2], String> {
    match text.split(',').map(str::trim).collect::<Vec<_>>().as_slice() {
        [a, b] if !a.is_empty() && !b.is_empty() => Ok([(*a).to_owned(), (*b).to_owned()]),
        _ => Err("expected the names of two models, A,B".to_owned()),
    }
}
