//! `ntl-server`: reads the command line, serves, and says in one line why it could not.
//!
//! Exit codes: 0 ended after all requests were answered, 1 failed, an engine died, or requests were cut off, 2 bad usage.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use ntl_server::args::{Args, Command};
use ntl_server::config::Config;
use ntl_server::config_file::ArgsError;
use ntl_server::openapi;
use ntl_server::serve::{self, Ended};
use ntl_server::telemetry;

/// Steps take and give back megabytes; the system's allocator would fetch them from the kernel each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        // Clap itself prints help, version and errors of single flags (with exit code 2).
        Err(ArgsError::Flags(error)) => error.exit(),
        Err(error) => return fail(&error.into(), BAD_USAGE),
    };
    if let Some(command) = &args.command {
        return instead(command).map_or_else(|error| fail(&error, FAILED), |()| ExitCode::SUCCESS);
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return fail(&error.into(), BAD_USAGE),
    };
    let told = match telemetry::start(&config.telemetry) {
        Ok(told) => told,
        Err(error) => return fail(&error.into(), BAD_USAGE),
    };
    let ended = run(config);
    told.finish();
    match ended {
        Ok(Ended::Drained) => ExitCode::SUCCESS,
        Ok(Ended::CutOff(_) | Ended::EngineDied) => ExitCode::from(FAILED),
        Err(error) => fail(&error, FAILED),
    }
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

/// Does what is to be done instead of serving.
fn instead(command: &Command) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match command {
        Command::Inspect(args) => args.run(&mut out),
        Command::Openapi => {
            out.write_all(openapi::json().as_bytes()).context("cannot write to standard output")
        }
    }
}

/// One line with all causes.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    // Nothing is left to tell it to if standard error is gone.
    let _ = writeln!(std::io::stderr(), "ntl-server: {error:#}");
    ExitCode::from(code)
}
