//! What a run leaves in its folder: `journal.jsonl`, `report.json` and `samples.jsonl`.

mod disk;
pub mod journal;
pub mod report;
pub mod sample;
pub mod saved;
