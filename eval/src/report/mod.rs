//! Reports that people read: tables in the terminal, Markdown and HTML pages, charts.

pub mod chart;
pub mod page;
mod table;
