//! The `ntl-eval` binary: command line in, exit code out.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use ntl_eval::app::{self, Console};
use ntl_eval::cli::args::Cli;
use ntl_eval::error::Error;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let terminal = err.is_terminal();
    let result = app::run(&cli, &mut Console { out: &mut out, err: &mut err, terminal });
    match result {
        Ok(ending) => ExitCode::from(ending.code()),
        Err(error) => {
            let code = if matches!(error, Error::Usage(_)) { 2 } else { 1 };
            // Nothing is left to tell a person when standard error is closed as well.
            let _ = writeln!(err, "error: {:#}", anyhow::Error::from(error));
            ExitCode::from(code)
        }
    }
}
