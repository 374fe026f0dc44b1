//! Documents as Markdown. Pictures are left to the page in HTML.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use super::document::{Block, Cell, Document, Grid, Kind};

/// The whole document.
pub fn render(document: &Document) -> String {
    let mut text = format!("# {}\n\n{}\n", escaped(&document.title), escaped(&document.subtitle));
    for section in &document.sections {
        let blocks: Vec<String> = section.blocks.iter().filter_map(block).collect();
        if !blocks.is_empty() {
            text += &format!("\n## {}\n\n{}\n", escaped(&section.title), blocks.join("\n\n"));
        }
    }
    text
}

fn block(block: &Block) -> Option<String> {
    match block {
        Block::Text(text) => Some(escaped(text)),
        Block::Table(grid) => Some(table(grid)),
        Block::Folded(title, grid) => Some(format!("{}:\n\n{}", escaped(title), table(grid))),
        Block::Pictures(_) => None,
    }
}

/// A table, as Markdown.
pub fn table(grid: &Grid) -> String {
    laid_out(grid, written)
}

/// A table for a terminal: looks the same, but nothing is escaped.
pub fn plain_table(grid: &Grid) -> String {
    laid_out(grid, |cell, _| cell.text.clone())
}

fn laid_out(grid: &Grid, written: impl Fn(&Cell, Kind) -> String) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(grid.columns.iter().map(|column| column.title));
    for row in &grid.rows {
        table.add_row(row.iter().zip(&grid.columns).map(|(cell, column)| written(cell, column.kind)));
    }
    for (shown, column) in table.column_iter_mut().zip(&grid.columns) {
        if column.kind == Kind::Figures {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn written(cell: &Cell, kind: Kind) -> String {
    let text = match kind {
        Kind::Literal if !cell.text.is_empty() => literal(&cell.text),
        _ => escaped(&cell.text),
    };
    match (&cell.link, cell.strong) {
        (Some(link), _) => format!("[{text}]({link}.md)"),
        (None, true) => format!("**{text}**"),
        (None, false) => text,
    }
}

/// Code, fenced by more backticks than are in it, without what would end a table's cell.
fn literal(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{}{space}{fence}", text.replace('|', "\\|").replace(['\n', '\r'], " "))
}

/// Text without any meaning to Markdown.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '|' | '#' => escaped.extend(['\\', character]),
            '\n' | '\r' => escaped.push(' '),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page::document::Section;

    #[test]
    fn whatever_is_in_the_data_stays_text() {
        let mut grid = Grid::new(&[("what", Kind::Words), ("n", Kind::Figures), ("said", Kind::Literal)]);
        grid.rows = vec![
            vec!["a|b *c*".into(), "7".into(), "x | `y`\nz".into()],
            vec![Cell::link("split", "test/report"), Cell::strong("12"), "<b>".into()],
        ];
        let section = Section {
            title: "Figures".to_owned(),
            blocks: vec![Block::Text("1 < 2".to_owned()), Block::Table(grid), Block::Pictures(Vec::new())],
        };
        let pictures = Section { title: "Pictures".to_owned(), blocks: vec![Block::Pictures(Vec::new())] };
        let document = Document {
            title: "A [run]".to_owned(),
            subtitle: "of #1".to_owned(),
            sections: vec![section, pictures],
        };
        insta::assert_snapshot!(render(&document), @r##"
        # A \[run\]

        of \#1

        ## Figures

        1 \< 2

        | what                    |      n | said             |
        |-------------------------|--------|------------------|
        | a\|b \*c\*              |      7 | `` x \| `y` z `` |
        | [split](test/report.md) | **12** | `<b>`            |
        "##);
    }
}
