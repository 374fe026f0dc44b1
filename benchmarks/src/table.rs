//! Markdown tables.

use std::io::{self, Write};

/// Writes a table. `header` and `rows` contain cells separated by ` | `. The first `text_columns` columns are
/// left-aligned, the others right-aligned.
pub fn write_table(
    out: &mut dyn Write,
    text_columns: usize,
    header: &str,
    rows: impl IntoIterator<Item = String>,
) -> io::Result<()> {
    let number_columns = header.split(" | ").count() - text_columns;
    writeln!(out, "| {header} |\n|{}{}", "---|".repeat(text_columns), "---:|".repeat(number_columns))?;
    rows.into_iter().try_for_each(|row| writeln!(out, "| {row} |"))
}
