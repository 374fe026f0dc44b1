//! What a report consists of, whatever it is written as: [`super::markdown`], [`super::html`], plain text.

use maud::Markup;

#[derive(Debug, Clone, Default)]
pub struct Document {
    pub title: String,
    /// The most important facts, one line.
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

    /// Whether there is something in its tables and pictures.
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
    /// A table to look things up in, with its title: folded where that can be done.
    Folded(String, Table),
    /// Side by side where there is room; left out where pictures cannot be shown.
    Pictures(Vec<Picture>),
}

#[derive(Debug, Clone)]
pub struct Picture {
    pub title: String,
    /// An `svg` element.
    pub svg: Markup,
    pub caption: String,
}

/// Every row has as many cells as there are columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    pub kind: Kind,
}

/// How the cells of a column are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the left.
    Words,
    /// To the right.
    Numbers,
    /// Literal text of data: from the left and in one width.
    Literal,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    /// Path of a report without its ending.
    pub link: Option<String>,
    pub strong: bool,
}

pub fn words(titles: &[&'static str]) -> Vec<Column> {
    titles.iter().map(|&title| Column { title, kind: Kind::Words }).collect()
}

pub fn numbers(titles: &[&'static str]) -> Vec<Column> {
    titles.iter().map(|&title| Column { title, kind: Kind::Numbers }).collect()
}

pub fn literal(titles: &[&'static str]) -> Vec<Column> {
    titles.iter().map(|&title| Column { title, kind: Kind::Literal }).collect()
}

/// A row of a table from anything that is a [`Cell`] or a text.
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

    /// Leaves out columns that are empty throughout.
    #[must_use]
    pub fn without_empty_columns(self) -> Self {
        let is_used = |index: usize| self.rows.iter().any(|row| !row[index].text.is_empty());
        let used: Vec<bool> = (0..self.columns.len()).map(is_used).collect();
        Self {
            columns: kept(self.columns, &used),
            rows: self.rows.into_iter().map(|row| kept(row, &used)).collect(),
        }
    }
}

fn kept<T>(items: Vec<T>, used: &[bool]) -> Vec<T> {
    items.into_iter().zip(used).filter(|(_, used)| **used).map(|(item, _)| item).collect()
}
