//! Runs a task on two models, one after the other. Journals, `--resume` and gates work as in a run of one
//! model.

use std::io;
use std::path::PathBuf;

use anyhow::Context;

use crate::console::{Console, ExitStatus};
use crate::session;
use crate::settings::{RunSettings, ServerSettings};
use crate::tasks::Suite;

/// Returns the directories of the two runs for each split, and the worse of the two exit statuses.
pub fn run(
    suites: &[Suite],
    sides: &[RunSettings; 2],
    console: &mut Console<'_>,
) -> anyhow::Result<(Vec<[PathBuf; 2]>, ExitStatus)> {
    let mut ending = ExitStatus::Success;
    for (name, side) in ["A", "B"].into_iter().zip(sides) {
        if !side.output.quiet {
            writeln!(console.err, "{name}: {}", describe(&side.server))
                .context("could not write to the console")?;
        }
        let mut console = Console {
            out: &mut io::sink(),
            err: &mut *console.err,
            err_is_terminal: console.err_is_terminal,
        };
        ending = ending.max(session::run(suites, side, &mut console)?);
    }
    let outs = sides.each_ref().map(|side| side.output.out.clone().unwrap_or_default());
    let mut folders = Vec::with_capacity(suites.len());
    for suite in suites {
        folders.push(outs.each_ref().map(|out| session::suite_folder(out, suite, suites)));
    }
    Ok((folders, ending))
}

fn describe(server: &ServerSettings) -> String {
    let endpoints: Vec<String> = server.endpoints.iter().map(ToString::to_string).collect();
    format!("{} at {}", server.model.as_deref().unwrap_or("the only model"), endpoints.join(", "))
}
