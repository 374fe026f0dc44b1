//! The command line's verbs: from parsed flags to what is printed and an exit code.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::cli::args::{Cli, Command, DataArgs};
use crate::compare;
use crate::data::{DataError, Item, fetch, place};
use crate::error::Error;
use crate::report::page;
use crate::run::session;
use crate::tasks::{Origin, TASKS};

/// Where to write. Results go to `out`, everything else to `err`.
pub struct Console<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
    /// Whether `err` is a terminal.
    pub terminal: bool,
}

/// How a finished run went; in rising order of what the exit code shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Everything was answered and every gate held.
    Done,
    /// Some items failed.
    ItemsFailed,
    /// A gate was missed.
    GateMissed,
}

impl Ending {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::GateMissed => 3,
            Self::ItemsFailed => 4,
        }
    }
}

/// Does what the command line says.
///
/// # Errors
/// Flags, data, server or files cannot be used. Failed items and missed gates are no errors.
pub fn run(cli: &Cli, console: &mut Console<'_>) -> Result<Ending, Error> {
    match &cli.command {
        Command::List => list(console.out).map_err(Error::Console),
        Command::Data(args) => data(args, console),
        Command::Task(task) => session::run(&task.suites()?, task.common(), console),
        Command::Compare(args) => compare::run(args, console),
        Command::Report(args) => write_reports(args, console),
    }
}

fn list(out: &mut dyn Write) -> io::Result<Ending> {
    for task in TASKS {
        writeln!(out, "{:14} {}", task.name, task.about)?;
    }
    Ok(Ending::Done)
}

fn write_reports(args: &page::Args, console: &mut Console<'_>) -> Result<Ending, Error> {
    for file in page::write(&args.folder)? {
        writeln!(console.out, "{}", file.display()).map_err(Error::Console)?;
    }
    Ok(Ending::Done)
}

fn data(args: &DataArgs, console: &mut Console<'_>) -> Result<Ending, Error> {
    let Some(task) = TASKS.iter().find(|task| task.name == args.task) else {
        let names = TASKS.map(|task| task.name).join(", ");
        return Err(Error::Usage(format!("no task `{}`; there are {names}", args.task)));
    };
    let folder = args.dir.clone().unwrap_or_else(|| place::folder(task.name));
    match task.origin {
        Origin::Published(sources) => {
            let runtime = Runtime::new().map_err(Error::Runtime)?;
            let mirror = args.mirror.as_deref();
            runtime.block_on(fetch::fetch(sources, &folder, mirror, console.out))?;
        }
        Origin::Generated(generate) => {
            for (name, items) in generate(args.seed) {
                let file = folder.join(name);
                write(&file, &items).map_err(|source| DataError::Write { file: file.clone(), source })?;
                let sha256 = fetch::sha256(&file)?;
                let (count, file) = (items.len(), file.display());
                writeln!(console.out, "{file} sha256 {sha256} ({count} items from seed {})", args.seed)
                    .map_err(Error::Console)?;
            }
            writeln!(console.out, "use them with --data {}", folder.display()).map_err(Error::Console)?;
        }
    }
    Ok(Ending::Done)
}

/// Two lines an item, or JSON lines, as the name says.
fn write(file: &Path, items: &[Item]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let objects = file.extension().is_some_and(|extension| extension == "jsonl");
    let line = |Item { question, answer, .. }: &Item| {
        if objects {
            format!("{}\n", json!({ "question": question, "answer": answer }))
        } else {
            format!("{question}\n{answer}\n")
        }
    };
    fs::write(file, items.iter().map(line).collect::<String>())
}
