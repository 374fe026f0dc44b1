//! `ntl-server`: reads the command line, serves, and says in one line why it could not.
//!
//! Exit codes: 0 ended after all requests were answered, 1 failed or requests were cut off, 2 bad usage.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use ntl_server::args::Args;
use ntl_server::config::Config;
use ntl_server::serve::{self, Ended};
use ntl_server::telemetry;

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    // Clap itself prints help, version and errors of single flags (with exit code 2).
    let args = Args::parse();
    if let Some(command) = &args.command {
        return command
            .run(&mut std::io::stdout().lock())
            .map_or_else(|error| fail(&error, FAILED), |()| ExitCode::SUCCESS);
    }
    let config = match configure(args) {
        Ok(config) => config,
        Err(error) => return fail(&error, BAD_USAGE),
    };
    match run(config) {
        Ok(Ended::Drained) => ExitCode::SUCCESS,
        Ok(Ended::CutOff(_)) => ExitCode::from(FAILED),
        Err(error) => fail(&error, FAILED),
    }
}

fn configure(args: Args) -> anyhow::Result<Config> {
    let config = Config::try_from(args)?;
    telemetry::start(config.log_format, config.log_filter.as_deref())?;
    Ok(config)
}

fn run(config: Config) -> anyhow::Result<Ended> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the operating system gave no threads")?;
    let ended = runtime.block_on(async {
        let signals = serve::signals()?;
        let listener = serve::listen(&config).await?;
        serve::run(config, listener, signals).await
    });
    // Whatever still loads or decodes is not waited for.
    runtime.shutdown_background();
    Ok(ended?)
}

/// One line with all causes.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    // Nothing is left to tell it to if standard error is gone.
    let _ = writeln!(std::io::stderr(), "ntl-server: {error:#}");
    ExitCode::from(code)
}
