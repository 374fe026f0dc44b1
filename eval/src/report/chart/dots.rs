//! A scatter plot of observed shares against expected shares, with their intervals.

use maud::{Markup, html};

use super::{Axis, Plot, drawing, px, x_axis, y_axis};
use crate::stats::Interval;

#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// The expected share.
    pub x: f64,
    /// The observed share.
    pub y: f64,
    /// The interval of `y`.
    pub whisker: Option<Interval>,
    /// Text of the tooltip.
    pub about: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Dots {
    pub x: Axis,
    pub y: Axis,
    pub dots: Vec<Dot>,
}

impl Dots {
    /// Draws the dots and the line on which both shares are equal.
    pub fn draw(&self) -> Markup {
        let plot = Plot::of_height(300.0);
        let x = |value: f64| px(plot.x(self.x.scale.unit(value)));
        let y = |value: f64| px(plot.y(self.y.scale.unit(value)));
        let inside = html! {
            (x_axis(plot, &self.x))
            (y_axis(plot, &self.y))
            line class="expected" x1=(x(0.0)) y1=(y(0.0)) x2=(x(1.0)) y2=(y(1.0)) {}
            @for dot in &self.dots {
                @if let Some(Interval { low, high }) = dot.whisker {
                    line class="whisker" x1=(x(dot.x)) x2=(x(dot.x)) y1=(y(low)) y2=(y(high)) {}
                }
                circle class="dot" cx=(x(dot.x)) cy=(y(dot.y)) r="5" { title { (dot.about) } }
            }
        };
        drawing(plot.height(), &format!("{} by {}", self.y.title, self.x.title), &inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::scale::Scale;

    #[test]
    fn dots_are_drawn_at_their_shares_with_the_line_of_equal_shares() {
        let dot =
            |x, y| Dot { x, y, whisker: Some(Interval { low: y, high: 1.0 }), about: "1 < 2".to_owned() };
        let axis = |title: &str| Axis::new(title, Scale::share());
        let dots = Dots { x: axis("nominal"), y: axis("found"), dots: vec![dot(0.0, 0.0), dot(0.5, 1.0)] };
        insta::assert_snapshot!("dots", dots.draw().into_string().replace("><", ">\n<"));
    }
}
