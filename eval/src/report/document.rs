//! The contents of a report, independent of the output format: [`super::markdown`], [`super::html`] or plain
//! text.

use maud::Markup;

#[derive(Debug, Clone, Default)]
pub struct Document {
    pub title: String,
    /// The most important facts in one line.
    pub subtitle: String,
    pub sections: Vec<Section>,
}

#[derive(Debug, Clone, Default)]
pub struct Section {
    pub title: String,
    pub blocks: Vec<Block>,
}

impl Section {
    pub fn new(title: &str, blocks: impl IntoIterator<Item = Block>) -> Self {
        Self { title: title.to_owned(), blocks: blocks.into_iter().collect() }
    }

    /// Returns `true` if all its tables and pictures have data.
    pub fn has_data(&self) -> bool {
        self.blocks.iter().all(|block| match block {
            Block::Paragraph(_) => true,
            Block::Table(table) | Block::Folded(_, table) => !table.rows.is_empty(),
            Block::Pictures(pictures) => !pictures.is_empty(),
        })
    }
}

/// A part of a section.
#[derive(Debug, Clone)]
pub enum Block {
    Paragraph(String),
    Table(Table),
    /// A reference table with its title, folded if the output format supports it.
    Folded(String, Table),
    /// Shown next to each other if there is room, and left out if the output format has no pictures.
    Pictures(Vec<Picture>),
}

#[derive(Debug, Clone)]
pub struct Picture {
    pub title: String,
    /// An `svg` element.
    pub svg: Markup,
    pub caption: String,
}

/// A table. Every row has as many cells as there are columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub title: String,
    pub kind: Kind,
}

/// The alignment and style of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Aligned to the left.
    Words,
    /// Aligned to the right.
    Numbers,
    /// Literal text from the data: aligned to the left, in a monospaced font.
    Literal,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    /// Path of a report without its extension.
    pub link: Option<String>,
    pub strong: bool,
}

pub fn words(titles: &[impl AsRef<str>]) -> Vec<Column> {
    columns(titles, Kind::Words)
}

pub fn numbers(titles: &[impl AsRef<str>]) -> Vec<Column> {
    columns(titles, Kind::Numbers)
}

pub fn literal(titles: &[impl AsRef<str>]) -> Vec<Column> {
    columns(titles, Kind::Literal)
}

fn columns(titles: &[impl AsRef<str>], kind: Kind) -> Vec<Column> {
    titles.iter().map(|title| Column { title: title.as_ref().to_owned(), kind }).collect()
}

/// Builds a row of a table from values that are a [`Cell`] or a text.
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$($crate::report::document::Cell::from($cell)),*] };
}
pub(crate) use row;

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Cell {
    pub fn strong(text: impl Into<String>) -> Self {
        Self { strong: true, ..text.into().into() }
    }

    pub fn link(text: impl Into<String>, link: impl Into<String>) -> Self {
        Self { link: Some(link.into()), ..text.into().into() }
    }
}

impl Table {
    pub fn new(
        columns: impl IntoIterator<Item = Vec<Column>>,
        rows: impl IntoIterator<Item = Vec<Cell>>,
    ) -> Self {
        Self { columns: columns.into_iter().flatten().collect(), rows: rows.into_iter().collect() }
    }

    /// Removes the columns that have no text in any row.
    #[must_use]
    pub fn without_empty_columns(self) -> Self {
        let mut used = vec![false; self.columns.len()];
        for row in &self.rows {
            for (used, cell) in used.iter_mut().zip(row) {
                *used |= !cell.text.is_empty();
            }
        }
        Self {
            columns: kept(self.columns, &used),
            rows: self.rows.into_iter().map(|row| kept(row, &used)).collect(),
        }
    }
}

fn kept<T>(items: Vec<T>, used: &[bool]) -> Vec<T> {
    items.into_iter().zip(used).filter(|(_, used)| **used).map(|(item, _)| item).collect()
}
