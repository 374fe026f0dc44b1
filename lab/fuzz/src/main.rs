//! Runs one or all targets for some minutes: `ntl-fuzz TARGET MINUTES [SEED]`. A finding is written to
//! `lab/fuzz/findings/TARGET`. `ntl-fuzz targets` prints the names of all targets.

#![expect(clippy::print_stdout, reason = "its result")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use ntl_fuzz::run::{Amount, Finding, run};
use ntl_fuzz::{TARGETS, Target, target};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, minutes, seed) = match arguments.as_slice() {
        [list] if list == "targets" => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            return Ok(());
        }
        [name, minutes, seed @ ..] => (name, minutes, seed),
        _ => bail!("usage: ntl-fuzz TARGET|all MINUTES [SEED], or ntl-fuzz targets"),
    };
    let minutes: f64 = minutes.parse().context("MINUTES must be a number")?;
    let time = Duration::try_from_secs_f64(60.0 * minutes).context("MINUTES must be a duration")?;
    let seed = seed.first().map_or(Ok(1), |seed| seed.parse()).context("SEED must be an integer")?;
    let targets = match target(name) {
        Some(target) => vec![target],
        None if name == "all" => TARGETS.to_vec(),
        None => bail!("`{name}` is not one of {}", TARGETS.map(|target| target.name).join(", ")),
    };
    targets.into_iter().try_for_each(|target| report(target, seed, time))
}

fn report(target: Target, seed: u64, time: Duration) -> anyhow::Result<()> {
    match run(target, seed, Amount::Time(time)) {
        Ok(figures) => {
            println!("{}: {} inputs, {figures:?}", target.name, figures.accepted + figures.refused);
            Ok(())
        }
        Err(Finding { input, broken }) => {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("findings").join(target.name);
            std::fs::create_dir_all(&folder)?;
            let file = folder.join(format!("found-{seed}-{}", input.len()));
            std::fs::write(&file, input)?;
            bail!("{}: {broken}\nthe input is {}", target.name, file.display())
        }
    }
}
