//! Bar charts: histograms, and shares with their intervals.

use maud::{Markup, html};

use super::{Axis, Plot, drawing, px, under, x_title, y_axis};
use crate::stats::Interval;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bar {
    pub height: f64,
    /// CSS class in the style sheet.
    pub class: &'static str,
    /// Label under the middle of the bar.
    pub label: String,
    /// Label under the left end of the bar, between it and the previous bar.
    pub edge: String,
    /// The interval of the height.
    pub whisker: Option<Interval>,
    /// Text of the tooltip.
    pub about: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// Title of the horizontal axis.
    pub title: String,
    /// Axis of the heights.
    pub axis: Axis,
    /// Bars from left to right.
    pub bars: Vec<Bar>,
    /// Label under the right end of the last bar.
    pub last_edge: String,
    pub expected: Option<Expected>,
}

/// The expected height of the bars, and the interval that chance allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    pub height: f64,
    pub band: Interval,
}

impl Bars {
    pub fn new(title: impl Into<String>, axis: Axis, bars: impl IntoIterator<Item = Bar>) -> Self {
        Self {
            title: title.into(),
            axis,
            bars: bars.into_iter().collect(),
            last_edge: String::new(),
            expected: None,
        }
    }

    pub fn draw(&self) -> Markup {
        let plot = Plot::of_height(300.0);
        let each = (plot.right - plot.left) / self.bars.len().max(1) as f64;
        let inside = html! {
            (y_axis(plot, &self.axis))
            @if let Some(Expected { band, .. }) = self.expected {
                @let [low, high] = [band.low, band.high].map(|end| plot.y(self.axis.scale.unit(end)));
                rect class="band" x=(px(plot.left)) y=(px(high)) width=(px(plot.right - plot.left)) height=(px(low - high)) {}
            }
            @for (index, bar) in self.bars.iter().enumerate() {
                (self.bar(plot, each, plot.left + each * index as f64, bar))
            }
            @if let Some(Expected { height, .. }) = self.expected {
                @let y = px(plot.y(self.axis.scale.unit(height)));
                line class="expected" x1=(px(plot.left)) x2=(px(plot.right)) y1=(y) y2=(y) {}
            }
            line class="base" x1=(px(plot.left)) x2=(px(plot.right)) y1=(px(plot.bottom)) y2=(px(plot.bottom)) {}
            (under(plot, plot.right, &self.last_edge))
            (x_title(plot, &self.title))
        };
        drawing(plot.height(), &format!("{} by {}", self.axis.title, self.title), &inside)
    }

    fn bar(&self, plot: Plot, each: f64, left: f64, bar: &Bar) -> Markup {
        let y = |height: f64| plot.y(self.axis.scale.unit(height));
        let top = y(bar.height);
        let gap = (each * 0.12).min(4.0);
        let middle = px(left + each / 2.0);
        html! {
            @if bar.height > 0.0 {
                rect class=(bar.class) x=(px(left + gap / 2.0)) y=(px(top)) width=(px(each - gap))
                    height=(px((plot.bottom - top).max(1.0))) { title { (bar.about) } }
            }
            @if let Some(Interval { low, high }) = bar.whisker {
                line class="whisker" x1=(middle) x2=(middle) y1=(px(y(low))) y2=(px(y(high))) {}
            }
            @if !bar.edge.is_empty() { (under(plot, left, &bar.edge)) }
            @if !bar.label.is_empty() { (under(plot, left + each / 2.0, &bar.label)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::scale::{Scale, Shape};

    #[test]
    fn bars_begin_at_the_axis_and_end_at_their_heights() {
        let bar =
            |height, label: &str| Bar { height, class: "bar", label: label.to_owned(), ..Bar::default() };
        let whisker = Some(Interval { low: 0.0, high: 2.0 });
        let bars = [bar(1.0, "a"), Bar { whisker, edge: "x".to_owned(), ..bar(4.0, "") }, bar(0.0, "c")];
        let axis = Axis::new("items", Scale::new(Shape::Linear, 0.0, 4.0));
        let bars = Bars {
            last_edge: "y".to_owned(),
            expected: Some(Expected { height: 3.0, band: Interval { low: 2.0, high: 4.0 } }),
            ..Bars::new("<digits>", axis, bars)
        };
        insta::assert_snapshot!("bars", bars.draw().into_string().replace("><", ">\n<"));
    }
}
