//! Renders documents as Markdown, and tables as plain text with the same layout. Only the HTML page has
//! pictures.

use comfy_table::CellAlignment;
use comfy_table::presets::ASCII_MARKDOWN;
use ntl_common::printable::printable;

use super::document::{Block, Cell, Document, Kind, Section, Table};

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
        Block::Paragraph(text) => Some(escaped(text)),
        Block::Table(shown) => Some(table(shown)),
        Block::Folded(title, shown) => Some(format!("{}:\n\n{}", escaped(title), table(shown))),
        Block::Pictures(_) => None,
    }
}

pub fn table(table: &Table) -> String {
    laid_out(table, written)
}

/// Renders a section for a terminal, without its title. An empty line follows a table.
pub fn plain_section(section: &Section) -> String {
    let mut texts = Vec::with_capacity(section.blocks.len());
    for block in &section.blocks {
        match block {
            Block::Paragraph(text) => texts.push(text.clone()),
            Block::Table(table) | Block::Folded(_, table) => {
                texts.push(format!("{}\n", plain_table(table)));
            }
            Block::Pictures(_) => {}
        }
    }
    texts.join("\n").trim_end().to_owned()
}

/// Renders a table for a terminal, without escaping.
pub fn plain_table(table: &Table) -> String {
    laid_out(table, |cell, _| cell.text.clone())
}

fn laid_out(table: &Table, written: impl Fn(&Cell, Kind) -> String) -> String {
    let mut text = comfy_table::Table::new();
    text.load_preset(ASCII_MARKDOWN).set_header(table.columns.iter().map(|column| column.title.as_str()));
    for row in &table.rows {
        text.add_row(row.iter().zip(&table.columns).map(|(cell, column)| written(cell, column.kind)));
    }
    for (shown, column) in text.column_iter_mut().zip(&table.columns) {
        if column.kind == Kind::Numbers {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.to_string()
}

fn written(cell: &Cell, kind: Kind) -> String {
    let text = match kind {
        Kind::Literal if !cell.text.is_empty() => code(&cell.text),
        _ => escaped(&cell.text),
    };
    match (&cell.link, cell.strong) {
        (Some(link), _) => format!("[{text}]({link}.md)"),
        (None, true) => format!("**{text}**"),
        (None, false) => text,
    }
}

/// Formats code with a longer run of backticks than the text contains, without characters that would end a
/// table cell.
fn code(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{}{space}{fence}", printable(&text.replace('|', "\\|").replace(['\n', '\r'], " ")))
}

/// Escapes all characters that have a meaning in Markdown.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '|' | '#' => escaped.extend(['\\', character]),
            '\n' | '\r' => escaped.push(' '),
            _ => escaped.push(character),
        }
    }
    printable(&escaped).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document::{literal, numbers, row, words};

    #[test]
    fn all_data_stays_text() {
        let rows = [
            row!["a|b *c*", "7", "x | `y`\nz\u{1b}[2J"],
            row![Cell::link("split", "test/report"), Cell::strong("12"), "<b>"],
        ];
        let table = Table::new([words(&["what"]), numbers(&["n"]), literal(&["said"])], rows);
        let blocks = [Block::Paragraph("1 < 2".to_owned()), Block::Table(table), Block::Pictures(Vec::new())];
        let section = Section::new("Figures", blocks);
        let pictures = Section::new("Pictures", [Block::Pictures(Vec::new())]);
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

        | what                    |      n | said                      |
        |-------------------------|--------|---------------------------|
        | a\|b \*c\*              |      7 | `` x \| `y` z\u{1b}[2J `` |
        | [split](test/report.md) | **12** | `<b>`                     |
        "##);
    }
}
