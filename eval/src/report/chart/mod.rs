//! Charts as SVG, independent of runs. The page's style sheet sets the colours by class, so that they follow
//! light and dark mode.

pub mod bars;
pub mod dots;
pub mod hexagons;
pub mod rows;
pub mod scale;

use maud::{Markup, html};

use scale::Scale;

/// Width of every chart, in the chart's own units.
const WIDTH: f64 = 560.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    pub title: String,
    pub scale: Scale,
}

impl Axis {
    pub fn new(title: impl Into<String>, scale: Scale) -> Self {
        Self { title: title.into(), scale }
    }

    /// Returns an axis from 0 to 1.
    pub fn of_shares(title: &str) -> Self {
        Self::new(title, Scale::share())
    }
}

/// The rectangle in which data is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Plot {
    /// Returns the plot area of a chart of this height, with room for both axes.
    fn of_height(height: f64) -> Self {
        Self { left: 66.0, right: WIDTH - 26.0, top: 12.0, bottom: height - 48.0 }
    }

    fn height(self) -> f64 {
        self.bottom + 48.0
    }

    fn x(self, unit: f64) -> f64 {
        self.left + unit * (self.right - self.left)
    }

    fn y(self, unit: f64) -> f64 {
        self.bottom - unit * (self.bottom - self.top)
    }
}

/// Draws an SVG element. `about` is the label for screen readers.
fn drawing(height: f64, about: &str, inside: &Markup) -> Markup {
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (px(height)) } role="img" aria-label=(about) { (inside) }
    }
}

fn y_axis(plot: Plot, axis: &Axis) -> Markup {
    let middle = f64::midpoint(plot.top, plot.bottom);
    html! {
        @for (value, written) in axis.scale.ticks() {
            @let y = px(plot.y(axis.scale.unit(value)));
            line class="grid" x1=(px(plot.left)) x2=(px(plot.right)) y1=(y) y2=(y) {}
            text class="tick" x=(px(plot.left - 6.0)) y=(y) dy="0.32em" text-anchor="end" { (written) }
        }
        text class="axis" x="10" y=(px(middle)) text-anchor="middle"
            transform={ "rotate(-90 10 " (px(middle)) ")" } { (axis.title) }
    }
}

fn x_axis(plot: Plot, axis: &Axis) -> Markup {
    html! {
        @for (value, written) in axis.scale.ticks() {
            @let x = px(plot.x(axis.scale.unit(value)));
            line class="grid" x1=(x) x2=(x) y1=(px(plot.top)) y2=(px(plot.bottom)) {}
            (under(plot, plot.x(axis.scale.unit(value)), &written))
        }
        (x_title(plot, &axis.title))
    }
}

fn under(plot: Plot, x: f64, label: &str) -> Markup {
    html! { text class="tick" x=(px(x)) y=(px(plot.bottom + 17.0)) text-anchor="middle" { (label) } }
}

fn x_title(plot: Plot, title: &str) -> Markup {
    let middle = f64::midpoint(plot.left, plot.right);
    html! { text class="axis" x=(px(middle)) y=(px(plot.bottom + 38.0)) text-anchor="middle" { (title) } }
}

/// Formats a coordinate, rounded to a tenth.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), ToOwned::to_owned)
}
