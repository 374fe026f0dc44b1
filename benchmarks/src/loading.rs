//! What loading a checkpoint costs: time beside reading its files and doing nothing with them, and resident memory
//! beside its weights.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::inspect::{Depth, inspect};
use ntl_models::{LoadOptions, load};

/// Bytes that are read at a time when nothing is done with them, as `cat` does.
const BUFFER_BYTES: usize = 128 << 10;

/// Loads the checkpoint, reads its files of weights once more, and writes what each took. The second time the files
/// are in the system's cache where they fit; empty it of them beforehand and in between to compare with the disk.
///
/// # Errors
/// When the checkpoint does not load, or this is not Linux.
pub fn measure(folder: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let found = inspect(CheckpointFiles::folder(folder)?, LoadOptions::default(), Depth::Tables)?;
    let started = Instant::now();
    let loaded = load(&CheckpointFiles::folder(folder)?, LoadOptions::default())?;
    let seconds = started.elapsed().as_secs_f64();
    let peak = peak_resident_bytes()?;
    drop(loaded);
    let started = Instant::now();
    let mut bytes = 0;
    for file in &found.files {
        bytes += read_through(&folder.join(file))?;
    }
    let reading = started.elapsed().as_secs_f64();
    let weights = found.memory_bytes;
    writeln!(out, "{bytes} bytes of files, {weights} bytes of weights in memory as {}", found.dtype)?;
    writeln!(out, "loaded in {seconds:.2} s; read once more in {reading:.2} s")?;
    writeln!(
        out,
        "peak of resident memory {peak} bytes, {:.3} of the weights",
        peak as f64 / weights as f64
    )?;
    Ok(())
}

fn read_through(file: &Path) -> anyhow::Result<u64> {
    let (mut file, mut buffer, mut bytes) = (File::open(file)?, vec![0; BUFFER_BYTES], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}

/// Most memory that this process ever had resident.
fn peak_resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM in /proc/self/status")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
