//! The files of a run in its directory: `journal.jsonl`, `report.json` and `samples.jsonl`.

mod disk;
pub mod journal;
pub mod report;
pub mod sample;
pub mod saved;

/// Maximum size of a file of a run, in bytes.
const RUN_BYTES_MAX: u64 = 4 << 30;
