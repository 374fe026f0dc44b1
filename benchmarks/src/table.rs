//! Markdown tables.

use std::io::{self, Write};

/// Writes a table whose first `text_columns` columns are aligned left and whose other columns are aligned right.
pub fn write_table<const N: usize>(
    out: &mut dyn Write,
    text_columns: usize,
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> io::Result<()> {
    writeln!(out, "| {} |", header.join(" | "))?;
    writeln!(out, "|{}{}", "---|".repeat(text_columns), "---:|".repeat(N - text_columns))?;
    for row in rows {
        for cell in row {
            write!(out, "|{}{cell} ", if cell.is_empty() { "" } else { " " })?;
        }
        writeln!(out, "|")?;
    }
    Ok(())
}
