//! What a report consists of, whatever it is written as.

use maud::Markup;

/// A title with sections.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// On top.
    pub title: String,
    /// The most important facts, one line.
    pub subtitle: String,
    /// In order.
    pub sections: Vec<Section>,
}

/// A heading with what stands under it.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// In order.
    pub blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Debug, Clone)]
pub enum Block {
    /// A paragraph.
    Text(String),
    /// A table.
    Table(Grid),
    /// A table that is looked up rather than read: folded where that can be done.
    Folded(String, Grid),
    /// Pictures, side by side where there is room; only where pictures can be shown.
    Pictures(Vec<Picture>),
}

/// A drawing with its explanation.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The heading.
    pub title: String,
    /// An `svg` element.
    pub svg: Markup,
    /// What is to be seen.
    pub caption: String,
}

/// A table. Every row has as many cells as there are columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grid {
    /// What stands in which column.
    pub columns: Vec<Column>,
    /// From top to bottom.
    pub rows: Vec<Vec<Cell>>,
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub title: &'static str,
    /// How its cells are set.
    pub kind: Kind,
}

/// How cells are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Words, from the left.
    Words,
    /// Figures, to the right.
    Figures,
    /// Literal text of data, from the left and in one width.
    Literal,
}

/// A cell of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// A report that it leads to: a path without its ending.
    pub link: Option<String>,
    /// Whether it stands out.
    pub strong: bool,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Cell {
    /// One that stands out.
    pub fn strong(text: impl Into<String>) -> Self {
        Self { strong: true, ..text.into().into() }
    }

    /// One that leads to a report.
    pub fn link(text: impl Into<String>, link: impl Into<String>) -> Self {
        Self { link: Some(link.into()), ..text.into().into() }
    }
}

impl Grid {
    /// One without rows.
    pub fn new(columns: &[(&'static str, Kind)]) -> Self {
        let columns = columns.iter().map(|&(title, kind)| Column { title, kind }).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Leaves out columns that are empty throughout.
    #[must_use]
    pub fn without_empty_columns(mut self) -> Self {
        let used: Vec<bool> = (0..self.columns.len())
            .map(|column| {
                self.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.text.is_empty()))
            })
            .collect();
        let keep = |index: usize| used.get(index).copied().unwrap_or(true);
        let mut index = 0..;
        self.columns.retain(|_| index.next().is_none_or(keep));
        for row in &mut self.rows {
            let mut index = 0..;
            row.retain(|_| index.next().is_none_or(keep));
        }
        self
    }
}
