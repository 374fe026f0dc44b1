//! The `ntl-eval` binary: command line in, exit code out.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use ntl_common::printable::Printable;
use ntl_eval::app;
use ntl_eval::cli::args::Cli;
use ntl_eval::console::{Console, ExitStatus};
use ntl_eval::error::{OutputError, UsageError};
use ntl_eval::run::runner::RunError;
use ntl_eval::session::Interrupted;

/// Exit statuses of a program that Ctrl-C ends, and of one that writes into a closed pipe: 128 plus the
/// signal's number.
const INTERRUPTED: u8 = 130;
const OUTPUT_CLOSED: u8 = 141;

/// Exit status of a run that stopped before all items had answers.
const SUSPENDED: ExitStatus = ExitStatus::ItemsFailed;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = Printable::new(io::stdout().lock());
    let err_is_terminal = io::stderr().is_terminal();
    let mut err = Printable::new(io::stderr());
    let result = app::run(&cli, &mut Console { out: &mut out, err: &mut err, err_is_terminal });
    match result {
        Ok(status) => ExitCode::from(status.code()),
        Err(error) => {
            let output = error.chain().find_map(|cause| cause.downcast_ref::<OutputError>());
            if output.is_some_and(OutputError::is_closed) {
                return ExitCode::from(OUTPUT_CLOSED);
            }
            let code = match () {
                () if error.is::<UsageError>() => 2,
                () if error.is::<Interrupted>() => INTERRUPTED,
                () if matches!(error.downcast_ref(), Some(RunError::Suspended { .. })) => SUSPENDED.code(),
                () => 1,
            };
            // Nothing is left to tell a person when standard error is closed as well.
            let _ = writeln!(err, "error: {:#}", error);
            ExitCode::from(code)
        }
    }
}
