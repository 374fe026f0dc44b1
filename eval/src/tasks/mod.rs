//! The tasks, one file each. A task turns its flags into [`Suite`]s; everything after that is common.

pub mod arithmetic;
pub mod generate;

use serde_json::{Map, Value};

use crate::data::Item;

/// Items that are scored together, and what a report says about where they are from.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Name of the task.
    pub task: &'static str,
    /// Name of the split.
    pub split: &'static str,
    /// What is asked.
    pub items: Vec<Item>,
    /// Settings of the task, for the report.
    pub settings: Map<String, Value>,
}

/// A line of `ntl-eval list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// What it asks.
    pub about: &'static str,
}

/// All tasks.
pub const TASKS: [Entry; 1] = [arithmetic::ENTRY];
