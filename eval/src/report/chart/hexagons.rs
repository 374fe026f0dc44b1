//! A hexagonal binning plot of many points: how many points each hexagon holds, and whether most are correct.
//!
//! Up to `PLACES` distinct locations are drawn exactly. Beyond that, each point moves to the nearest centre
//! of a hexagonal lattice. The size of the drawing is therefore bounded by its area instead of the number of
//! points.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::{Axis, Plot, drawing, px, x_axis, y_axis};

/// Distance from a hexagon's centre to its corners.
const RADIUS: f64 = 5.0;
/// Maximum radius, used if the hexagons are far enough apart.
const RADIUS_MAX: f64 = 14.0;
/// Maximum number of locations that are drawn exactly.
const PLACES: usize = 600;
const HEIGHT: f64 = 680.0;
/// Number of steps of darkness in the style sheet.
const STEPS: f64 = 5.0;

/// A location in tenths of a unit of the drawing.
type HexIndex = (i32, i32);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Whether the answer is exact.
    pub right: bool,
}

/// The points of one hexagon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HexCell {
    count: usize,
    right: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HexagonMap {
    pub x: Axis,
    pub y: Axis,
    pub points: Vec<Point>,
}

impl HexagonMap {
    /// Draws the hexagons and the line on which both values are equal.
    pub fn draw(&self) -> Markup {
        let plot = plot();
        let cells = self.cells(plot);
        let most = cells.values().map(|cell| cell.count).max().unwrap_or(1);
        let inside = html! {
            defs {
                path id="hexagon" d=(hexagon(radius(cells.keys()))) {}
                path id="swatch" d=(hexagon(RADIUS)) {}
            }
            (legend(plot))
            (x_axis(plot, &self.x))
            (y_axis(plot, &self.y))
            (self.identity(plot))
            @for (&(x, y), cell) in &cells {
                use href="#hexagon" x=(tenths(x)) y=(tenths(y)) class=(class(*cell, most)) { title { (about(*cell)) } }
            }
        };
        drawing(plot.height(), &format!("{} by {}", self.y.title, self.x.title), &inside)
    }

    /// Returns the number of points in the fullest hexagon.
    pub fn fullest(&self) -> usize {
        self.cells(plot()).values().map(|cell| cell.count).max().unwrap_or(0)
    }

    fn cells(&self, plot: Plot) -> BTreeMap<HexIndex, HexCell> {
        let place = |point: &Point| (plot.x(self.x.scale.unit(point.x)), plot.y(self.y.scale.unit(point.y)));
        let places: BTreeSet<HexIndex> = self.points.iter().map(|point| rounded(place(point))).collect();
        let few = places.len() <= PLACES;
        let mut cells: BTreeMap<HexIndex, HexCell> = BTreeMap::new();
        for point in &self.points {
            let (x, y) = place(point);
            let cell = cells.entry(rounded(if few { (x, y) } else { nearest(x, y) })).or_default();
            cell.count += 1;
            cell.right += usize::from(point.right);
        }
        cells
    }

    /// Draws the line of equal values over the range that both axes share.
    fn identity(&self, plot: Plot) -> Markup {
        let steps = (0..=200).map(|step| self.x.scale.at(f64::from(step) / 200.0));
        let on_both: Vec<String> = steps
            .filter(|&value| self.y.scale.holds(value))
            .map(|value| {
                let x = self.x.scale.unit(value);
                let y = self.y.scale.unit(value);
                format!("{},{}", px(plot.x(x)), px(plot.y(y)))
            })
            .collect();
        html! { polyline class="expected" points=(on_both.join(" ")) {} }
    }
}

/// Returns the plot area, with room for the legend.
fn plot() -> Plot {
    Plot { top: 34.0, ..Plot::of_height(HEIGHT) }
}

fn legend(plot: Plot) -> Markup {
    html! {
        @for (index, (hue, meaning)) in [("right", "mostly correct"), ("wrong", "mostly incorrect")].iter().enumerate() {
            @let x = plot.left + 8.0 + 120.0 * index as f64;
            use href="#swatch" x=(px(x)) y="14" class={ (hue) " o4" } {}
            text class="tick" x=(px(x + 10.0)) y="14" dy="0.32em" { (meaning) }
        }
        text class="tick" x=(px(plot.right)) y="14" dy="0.32em" text-anchor="end" { "darker: more items" }
    }
}

/// Returns the largest radius that keeps columns and rows apart, within the limits.
fn radius<'a>(places: impl Iterator<Item = &'a HexIndex> + Clone) -> f64 {
    let gap = |of: fn(&HexIndex) -> i32| {
        let sorted: BTreeSet<i32> = places.clone().map(of).collect();
        let gaps = sorted.iter().zip(sorted.iter().skip(1)).map(|(low, high)| f64::from(high - low) / 10.0);
        gaps.fold(f64::INFINITY, f64::min)
    };
    (gap(|place| place.0).min(gap(|place| place.1)) * 0.42).clamp(RADIUS, RADIUS_MAX)
}

fn rounded((x, y): (f64, f64)) -> HexIndex {
    ((x * 10.0).round() as i32, (y * 10.0).round() as i32)
}

fn tenths(value: i32) -> String {
    px(f64::from(value) / 10.0)
}

/// Returns the nearest centre of the lattice.
fn nearest(x: f64, y: f64) -> (f64, f64) {
    let width = RADIUS * 3_f64.sqrt();
    let height = RADIUS * 1.5;
    // The even rows and the odd rows form two rectangular lattices. The nearest centre is the nearer of the
    // two that they offer.
    let candidate = |odd: f64| {
        let row = ((y / height - odd) / 2.0).round() * 2.0 + odd;
        let column = (x / width - odd / 2.0).round() + odd / 2.0;
        (column * width, row * height)
    };
    let distance = |(cx, cy): (f64, f64)| (cx - x).hypot(cy - y);
    let even = candidate(0.0);
    let odd = candidate(1.0);
    if distance(even) <= distance(odd) { even } else { odd }
}

fn hexagon(radius: f64) -> String {
    let corners = (0..6).map(|corner| {
        let (sin, cos) = (f64::from(corner) * std::f64::consts::FRAC_PI_3).sin_cos();
        format!("{:.2} {:.2}", radius * sin, radius * cos)
    });
    format!("M{}Z", corners.collect::<Vec<_>>().join("L"))
}

/// Returns the CSS class: the hue shows whether most points are correct, and the darkness the logarithm of
/// their number.
fn class(cell: HexCell, most: usize) -> String {
    let share = (cell.count as f64).ln_1p() / (most as f64).ln_1p();
    let hue = if 2 * cell.right >= cell.count { "right" } else { "wrong" };
    format!("{hue} o{}", (share * STEPS).ceil())
}

fn about(cell: HexCell) -> String {
    format!("{} items, {} correct", cell.count, cell.right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::scale::{Scale, Shape};

    #[test]
    fn every_point_goes_to_a_hexagon_that_contains_it() {
        for step in 0..2_000 {
            let x = f64::from(step % 50) * 0.77;
            let y = f64::from(step / 50) * 0.93;
            let (cx, cy) = nearest(x, y);
            assert!((cx - x).hypot(cy - y) <= RADIUS + 1e-9, "{x}, {y}");
        }
    }

    #[test]
    fn all_points_are_counted_and_the_drawing_is_bounded() {
        let points = (0..43_246_u32).map(|index| Point {
            x: f64::from(index % 1_000),
            y: f64::from(index.wrapping_mul(2_654_435_761) % 1_000),
            right: index % 2 == 0,
        });
        let scale = Scale::new(Shape::Linear, 0.0, 1_000.0);
        let x = Axis::new("x", scale);
        let y = Axis::new("y", scale);
        let cells = HexagonMap { x, y, points: points.collect() };
        let counted: usize = cells.cells(plot()).values().map(|cell| cell.count).sum();
        assert_eq!(counted, 43_246);
        assert!(cells.draw().into_string().len() < 700_000);
    }

    #[test]
    fn few_locations_are_drawn_exactly_and_as_large_as_possible() {
        let points = (0..1_000).map(|index| {
            let x = f64::from(index % 11);
            let y = f64::from(index % 7);
            Point { x, y, right: x.total_cmp(&y).is_eq() }
        });
        let scale = Scale::new(Shape::Linear, 0.0, 10.0);
        let cells =
            HexagonMap { x: Axis::new("x", scale), y: Axis::new("y", scale), points: points.collect() };
        let places = cells.cells(plot());
        assert_eq!(places.len(), 77);
        assert!((radius(places.keys()) - RADIUS_MAX).abs() < 1e-12);
        assert!(places.contains_key(&rounded((plot().left, plot().bottom))));
    }

    #[test]
    fn the_fullest_hexagon_is_the_darkest_and_the_majority_determines_its_hue() {
        assert_eq!(class(HexCell { count: 100, right: 50 }, 100), "right o5");
        assert_eq!(class(HexCell { count: 1, right: 0 }, 100), "wrong o1");
        assert_eq!(class(HexCell { count: 1, right: 1 }, 1), "right o5");
    }
}
