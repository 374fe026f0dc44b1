//! Horizontal bars of named shares, with their intervals.

use maud::{Markup, html};

use super::scale::Scale;
use super::{Axis, Plot, drawing, px, x_axis};
use crate::format::{number, shortened};
use crate::stats::Interval;

const ROW: f64 = 22.0;

#[derive(Debug, Clone, PartialEq)]
pub struct ShareRow {
    pub name: String,
    pub share: f64,
    /// The interval of the share.
    pub whisker: Option<Interval>,
}

/// Draws the rows. `title` describes the shares.
pub fn draw(title: &str, rows: &[ShareRow]) -> Markup {
    let bottom = 12.0 + ROW * rows.len() as f64;
    let plot = Plot { left: 252.0, right: super::WIDTH - 56.0, top: 12.0, bottom };
    let x = |share: f64| plot.x(Scale::share().unit(share));
    let inside = html! {
        (x_axis(plot, &Axis::new(title, Scale::share())))
        @for (index, row) in rows.iter().enumerate() {
            @let middle = plot.top + ROW * (index as f64 + 0.5);
            text class="tick" x=(px(plot.left - 8.0)) y=(px(middle)) dy="0.32em" text-anchor="end" {
                (shortened(&row.name, 34))
            }
            rect class="bar" x=(px(plot.left)) y=(px(middle - ROW * 0.34)) height=(px(ROW * 0.68))
                width=(px(x(row.share) - plot.left)) { title { (row.name) ": " (number(row.share)) } }
            @if let Some(Interval { low, high }) = row.whisker {
                line class="whisker" x1=(px(x(low))) x2=(px(x(high))) y1=(px(middle)) y2=(px(middle)) {}
            }
            text class="tick" x=(px(plot.right + 8.0)) y=(px(middle)) dy="0.32em" { (number(row.share)) }
        }
    };
    drawing(plot.height(), title, &inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_and_as_long_as_their_shares() {
        let row = |name: &str, share, whisker| ShareRow { name: name.to_owned(), share, whisker };
        let rows = [
            row("numbers & more", 1.0, Some(Interval { low: 0.5, high: 1.0 })),
            row("a name that is longer than the space beside its bar", 0.25, None),
        ];
        insta::assert_snapshot!("rows", draw("accuracy", &rows).into_string().replace("><", ">\n<"));
    }
}
