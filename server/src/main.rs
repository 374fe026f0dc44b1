//! `ntl-server`: reads the command line and serves. A failure is reported in one line.
//!
//! Exit codes: 0 all requests were answered; 1 a failure, a dead engine, or requests that were cut off; 2 bad
//! usage; 3 a device that cannot be used any more.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use ntl_server::app;
use ntl_server::config::{Args, ArgsError, Command, Config, Environment, log_format};
use ntl_server::listen::Certificate;
use ntl_server::reload::Reloaded;
use ntl_server::serve::{self, Ended};
use ntl_server::signals;
use ntl_server::telemetry::{self, LogFormat};

/// Model steps allocate and free megabytes; the system's allocator would return them to the kernel each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;
const DEVICE_LOST: u8 = 3;

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let environment = Environment::new(std::env::vars_os());
    let format = log_format(&line, &environment);
    let args = match Args::read(line.clone(), &environment) {
        Ok(args) => args,
        Err(ArgsError::Flags(error)) if format == LogFormat::Json && error.use_stderr() => {
            return fail(format, &one_line(&error), BAD_USAGE);
        }
        // Clap prints help, the version and errors of single flags (with exit code 2).
        Err(ArgsError::Flags(error)) => error.exit(),
        Err(error) => return fail(format, &anyhow::Error::from(error), BAD_USAGE),
    };
    let format = args.log_format();
    if let Some(command) = &args.command {
        return match run_subcommand(command) {
            Err(error) if !is_broken_pipe(&error) => fail(format, &error, FAILED),
            // The reader, such as `head`, has seen enough.
            _ => ExitCode::SUCCESS,
        };
    }
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return unusable(format, &error, &environment, &line),
    };
    let telemetry = match telemetry::start(&config.telemetry) {
        Ok(telemetry) => telemetry,
        Err(error) => return unusable(format, &error, &environment, &line),
    };
    let ended = run(config);
    telemetry.finish();
    match ended {
        Ok(Ended::Drained) => ExitCode::SUCCESS,
        Ok(Ended::CutOff(_) | Ended::EngineDied) => ExitCode::from(FAILED),
        Ok(Ended::DeviceLost) => ExitCode::from(DEVICE_LOST),
        Err(error) => fail(format, &error, FAILED),
    }
}

/// Reports a setting that cannot be used, with the environment variable that it comes from.
fn unusable(
    format: LogFormat,
    error: &(dyn std::error::Error + 'static),
    environment: &Environment,
    line: &[OsString],
) -> ExitCode {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let message = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let note = environment.note(&message, line);
    fail(format, &format!("{message}{note}"), BAD_USAGE)
}

/// Returns the message of clap without its lines about usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let message = text.trim_start_matches("error: ").lines().take_while(|line| !line.starts_with("Usage:"));
    message.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn run(mut config: Config) -> anyhow::Result<Ended> {
    serve::within_descriptors(&mut config);
    let read = config.tls.clone().map(Certificate::read).transpose();
    let certificate = read.context("cannot serve HTTPS")?;
    let app = serve::state(&config)?;
    let reloaded = Reloaded { app: app.downgrade(), certificate: certificate.clone() };
    let signals = signals::listen(move || reloaded.reload())
        .context("the operating system refused a signal handler")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the operating system gave no threads")?;
    let ended = runtime.block_on(async {
        let listener = serve::listen(&config, certificate.as_ref()).await?;
        serve::run(config, app, listener, signals).await
    });
    // Does not wait for threads that still load or decode.
    runtime.shutdown_background();
    Ok(ended?)
}

fn run_subcommand(command: &Command) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match command {
        #[cfg(feature = "native")]
        Command::Inspect(args) => args.run(&mut out),
        Command::Openapi => {
            out.write_all(app::openapi_json().as_bytes()).context("cannot write to standard output")
        }
        Command::Manual(args) => {
            let result = args.write(Args::command());
            result.with_context(|| format!("cannot write below {}", args.folder.display()))
        }
    }
}

/// Returns whether an error means that the reader of standard output is gone.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| io_error_kind(cause) == Some(io::ErrorKind::BrokenPipe))
}

fn io_error_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => Some(error.kind()),
        None => error.downcast_ref::<serde_json::Error>()?.io_error_kind(),
    }
}

/// Writes an error with all its causes on one line.
fn fail(format: LogFormat, error: &impl Display, code: u8) -> ExitCode {
    telemetry::write_fatal(format, &format!("{error:#}"));
    ExitCode::from(code)
}
