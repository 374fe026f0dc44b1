//! The `ntl-eval` binary: command line in, exit code out.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use ntl_eval::app;
use ntl_eval::cli::args::Cli;
use ntl_eval::console::{Console, UsageError};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let err_is_terminal = err.is_terminal();
    let result = app::run(&cli, &mut Console { out: &mut out, err: &mut err, err_is_terminal });
    match result {
        Ok(status) => ExitCode::from(status.code()),
        Err(error) => {
            let code = if error.is::<UsageError>() { 2 } else { 1 };
            // Nothing is left to tell a person when standard error is closed as well.
            let _ = writeln!(err, "error: {:#}", error);
            ExitCode::from(code)
        }
    }
}
