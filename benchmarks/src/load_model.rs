//! `ntl-bench load-model`: compares the time of loading a checkpoint with the time of only reading its files,
//! and its peak resident memory with the size of its weights.

use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use ntl_models::inspect::{Depth, inspect};
use ntl_models::{LoadOptions, load};
use ntl_text::checkpoint::CheckpointFiles;

/// The buffer size of `cat`.
const BUFFER_BYTES: usize = 128 << 10;

/// Loads the checkpoint, then reads its weight files once more. By then they are in the page cache, if they
/// fit. To compare with the disk, drop the page cache before the run and between the two steps.
pub fn run(folder: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let checkpoint = inspect(CheckpointFiles::folder(folder)?, LoadOptions::default(), Depth::Tables)?;
    let started = Instant::now();
    let loaded = load(&CheckpointFiles::folder(folder)?, LoadOptions::default())?;
    let seconds = started.elapsed().as_secs_f64();
    let peak = peak_resident_bytes()?;
    drop(loaded);
    let started = Instant::now();
    let mut bytes = 0;
    for file in &checkpoint.files {
        let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(folder.join(file))?);
        bytes += io::copy(&mut file, &mut io::sink())?;
    }
    let reading = started.elapsed().as_secs_f64();
    let weights = checkpoint.memory_bytes;
    writeln!(out, "files: {bytes} bytes; weights in memory: {weights} bytes as {}", checkpoint.dtype)?;
    writeln!(out, "loaded in {seconds:.2} s; files read again in {reading:.2} s")?;
    let share = peak as f64 / weights as f64;
    Ok(writeln!(out, "peak resident memory: {peak} bytes, {share:.3} times the weights")?)
}

fn peak_resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM in /proc/self/status")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
