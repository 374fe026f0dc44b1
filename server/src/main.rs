//! `ntl-server`: reads the command line and serves. A failure is reported in one line.
//!
//! Exit codes: 0 all requests were answered; 1 a failure, a dead engine, or requests that were cut off; 2 bad usage.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use ntl_server::config::{Args, ArgsError, Command, Config};
use ntl_server::serve::{self, Ended};
use ntl_server::{app, telemetry};

/// Model steps allocate and free megabytes; the system's allocator would return them to the kernel each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        // Clap prints help, the version and errors of single flags (with exit code 2).
        Err(ArgsError::Flags(error)) => error.exit(),
        Err(error) => return fail(&error.into(), BAD_USAGE),
    };
    if let Some(command) = &args.command {
        return match run_subcommand(command) {
            Err(error) if !is_broken_pipe(&error) => fail(&error, FAILED),
            // The reader, such as `head`, has seen enough.
            _ => ExitCode::SUCCESS,
        };
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return fail(&error.into(), BAD_USAGE),
    };
    let telemetry = match telemetry::start(&config.telemetry) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(&error.into(), BAD_USAGE),
    };
    let ended = run(config);
    telemetry.finish();
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
    // Does not wait for threads that still load or decode.
    runtime.shutdown_background();
    Ok(ended?)
}

fn run_subcommand(command: &Command) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match command {
        Command::Inspect(args) => args.run(&mut out),
        Command::Openapi => {
            out.write_all(app::openapi_json().as_bytes()).context("cannot write to standard output")
        }
        Command::Manual(args) => {
            let failed = || format!("cannot write below {}", args.folder.display());
            args.write(Args::command()).with_context(failed)
        }
    }
}

/// Whether the reader of standard output is gone.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_cause = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        io.or_else(|| cause.downcast_ref::<serde_json::Error>()?.io_error_kind())
    };
    error.chain().any(|cause| of_cause(cause) == Some(io::ErrorKind::BrokenPipe))
}

/// One line with all causes.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    // A closed standard error leaves no place to report to.
    let _ = writeln!(std::io::stderr(), "ntl-server: {error:#}");
    ExitCode::from(code)
}
