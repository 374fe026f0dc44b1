//! Runs a task on two models, one after the other, into the folders `a` and `b` of `--out`. Journals, `--resume` and gates
//! work as in a run of one model.

use std::io;
use std::path::PathBuf;

use anyhow::Context;

use crate::cli::base_url::BaseUrl;
use crate::cli::compare::CompareArgs;
use crate::cli::flags::{Common, OutputFlags, ServerFlags};
use crate::cli::tasks::Task;
use crate::console::{Console, ExitStatus, UsageError};
use crate::run::session;
use crate::tasks;

const FOLDERS: [&str; 2] = ["a", "b"];

/// The folders of the two runs for each split, and the worse of the two exit statuses.
pub fn run(
    args: &CompareArgs,
    task: &Task,
    console: &mut Console<'_>,
) -> anyhow::Result<(Vec<[PathBuf; 2]>, ExitStatus)> {
    let out = task.common().output.out.as_deref().ok_or_else(|| {
        UsageError("two models need --out DIR: their runs are kept in DIR/a and DIR/b".to_owned())
    })?;
    let folders = FOLDERS.map(|folder| out.join(folder));
    let sides = sides(args, task.common(), &folders)?;
    let suites = tasks::suites(task)?;
    let mut ending = ExitStatus::Success;
    for (name, side) in ["A", "B"].into_iter().zip(&sides) {
        if !side.output.quiet {
            writeln!(console.err, "{name}: {}", describe(&side.server))
                .context("could not write to the console")?;
        }
        let mut console = Console {
            out: &mut io::sink(),
            err: &mut *console.err,
            err_is_terminal: console.err_is_terminal,
        };
        ending = ending.max(session::run(&suites, side, &mut console)?);
    }
    let of_suite = |suite| folders.each_ref().map(|folder| session::folder(folder, suite, &suites));
    Ok((suites.iter().map(of_suite).collect(), ending))
}

fn describe(server: &ServerFlags) -> String {
    let endpoints: Vec<String> = server.endpoint.iter().map(ToString::to_string).collect();
    format!("{} at {}", server.model.as_deref().unwrap_or("the only model"), endpoints.join(", "))
}

/// The flags of the task for each model.
fn sides(args: &CompareArgs, common: &Common, folders: &[PathBuf; 2]) -> Result<[Common; 2], UsageError> {
    let usage = |message: &str| UsageError(message.to_owned());
    let endpoints = endpoints(args, &common.server)?;
    let models = match (&args.models, &common.server.model) {
        (Some(_), Some(_)) => return Err(usage("--models names both models; leave out --model")),
        (Some(names), None) => names.clone().map(Some),
        (None, model) if args.endpoint.len() == 2 => [model.clone(), model.clone()],
        (None, _) => {
            return Err(usage("say with --models A,B which two models to ask, or give two --endpoint"));
        }
    };
    let side = |side: usize| Common {
        server: ServerFlags {
            endpoint: endpoints[side].clone(),
            model: models[side].clone(),
            ..common.server.clone()
        },
        output: OutputFlags { out: Some(folders[side].clone()), ..common.output.clone() },
        ..common.clone()
    };
    Ok([side(0), side(1)])
}

/// `--endpoint` of `compare` names one server for both models or one for each, that of the task names servers for both.
fn endpoints(args: &CompareArgs, server: &ServerFlags) -> Result<[Vec<BaseUrl>; 2], UsageError> {
    match (args.endpoint.as_slice(), server.endpoint.as_slice()) {
        ([], []) => Err(UsageError("--endpoint URL is missing".to_owned())),
        ([], both) => Ok([both.to_vec(), both.to_vec()]),
        ([both], _) => Ok([vec![both.clone()], vec![both.clone()]]),
        ([a, b], _) => Ok([vec![a.clone()], vec![b.clone()]]),
        _ => Err(UsageError(
            "before the task, --endpoint is one server for both models or one for each; behind the task it may be \
             repeated, to spread requests over several"
                .to_owned(),
        )),
    }
}
