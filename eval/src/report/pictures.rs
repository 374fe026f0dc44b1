//! The pictures of one run.

use super::decisions;
use super::document::Picture;
use super::histograms::{DIGITS_MAX, Errors, MASS_EDGES, by_digits, by_mass, is_decade};
use super::judgements;
use crate::format::{count, number, power, tick};
use crate::metrics::distribution::DistributionCalibration;
use crate::report::chart::Axis;
use crate::report::chart::bars::{Bar, Bars, Expected};
use crate::report::chart::dots::{Dot, Dots};
use crate::report::chart::hexagons::{HexagonMap, Point};
use crate::report::chart::rows::{self, ShareRow};
use crate::report::chart::scale::{Scale, Shape};
use crate::stats::Interval;
use crate::stats::wilson::wilson;
use crate::store::sample::Sample;
use crate::store::saved::Run;

pub(super) fn all(run: &Run) -> Vec<Picture> {
    let calibration = run.report.calibration.as_ref();
    let drawn = [
        judgements::scores(run),
        decisions::reliability(run),
        predictions(run),
        errors(run),
        digits(run),
        calibration.and_then(pit),
        calibration.and_then(coverage),
        mass(run),
        modules(run),
    ];
    drawn.into_iter().flatten().collect()
}

fn predictions(run: &Run) -> Option<Picture> {
    let points: Vec<Point> = run
        .samples
        .iter()
        .filter_map(|sample| {
            let read = sample.prediction()?;
            Some(Point { x: read.truth, y: read.estimates.median, right: sample.right() })
        })
        .collect();
    let (low, high) = range(points.iter().map(|point| point.x), 0.0)?;
    let (y_low, y_high) = range(points.iter().map(|point| point.y), 0.002)?;
    let shown = points.iter().filter(|point| (y_low..=y_high).contains(&point.y));
    let shape = Shape::fitting(shown.flat_map(|point| [point.x, point.y]));
    let x = Axis::new("truth", padded(shape, low, high));
    let y = Axis::new(predicted(run), padded(shape, low.min(y_low), high.max(y_high)));
    let outside = points.iter().filter(|point| !y.scale.holds(point.y)).count();
    let map = HexagonMap { x, y, points };
    let mut caption = format!(
        "{} of {} items; items without a number are not shown. A cell holds up to {}. On the line, prediction and truth are equal.",
        count(map.points.len()),
        count(run.samples.len()),
        count(map.fullest()),
    );
    if shape == Shape::SignedLog {
        caption += " Axes are logarithmic away from 0.";
    }
    if run.report.mode == "regress" {
        caption += " An item is correct if its mode is, as in accuracy.";
    }
    if outside > 0 {
        caption += &format!(" Predictions beyond the axis, drawn on its edge: {}.", count(outside));
    }
    Some(Picture { title: "Predicted against true".to_owned(), svg: map.draw(), caption })
}

fn predicted(run: &Run) -> &'static str {
    if run.report.mode == "regress" { "predicted (median)" } else { "predicted" }
}

/// Returns the smallest and the largest value after removing the share `tail` on either side.
fn range(values: impl Iterator<Item = f64>, tail: f64) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let skip = (tail * values.len() as f64) as usize;
    Some((*values.get(skip)?, *values.get(values.len() - 1 - skip)?))
}

fn padded(shape: Shape, low: f64, high: f64) -> Scale {
    let room = match shape {
        Shape::Linear => (high - low) * 0.02,
        Shape::SignedLog => 0.0,
    };
    Scale::new(shape, low - room, high + room)
}

fn errors(run: &Run) -> Option<Picture> {
    let read = run.samples.iter().filter_map(Sample::prediction);
    let errors = read.map(|read| read.estimates.median - read.truth);
    let errors: Vec<f64> = errors.filter(|error| error.is_finite()).collect();
    if errors.is_empty() {
        return None;
    }
    let grouped = Errors::of(&errors);
    let unit = grouped.edges[0];
    let exact = errors.iter().filter(|error| error.abs() < 1e-9).count();
    let middle = Bar {
        height: grouped.middle as f64,
        class: if 2 * exact >= grouped.middle { "right" } else { "wrong" },
        label: "0".to_owned(),
        about: format!("{} items off by less than {}", grouped.middle, tick(unit)),
        ..Bar::default()
    };
    let low = side(&grouped, &grouped.below, -1.0).into_iter().rev();
    let high = side(&grouped, &grouped.above, 1.0);
    let [below, above] = [&grouped.below, &grouped.above].map(|side| side.iter().sum::<usize>());
    let sides = grouped.below.iter().chain(&grouped.above).copied().max().unwrap_or(0);
    let shape = if grouped.middle > 20 * sides.max(1) { Shape::SignedLog } else { Shape::Linear };
    let largest = grouped.middle.max(sides) as f64;
    let axis = Axis::new(items(shape), Scale::from_zero(shape, largest));
    let bars = Bars {
        last_edge: edge_label(&grouped, grouped.edges.len() - 1, 1.0),
        ..Bars::new(format!("{} − truth", predicted(run)), axis, low.chain([middle]).chain(high))
    };
    let caption = format!(
        "{} items are off by less than {}, {} are too low, {} too high. Bars further from 0 cover wider ranges of sizes.",
        count(grouped.middle),
        tick(unit),
        count(below),
        count(above),
    );
    Some(Picture { title: "Errors".to_owned(), svg: bars.draw(), caption })
}

fn items(shape: Shape) -> &'static str {
    if shape == Shape::SignedLog { "items (log)" } else { "items" }
}

/// Returns the bars of one side, from the smallest errors to the largest.
fn side(errors: &Errors, counts: &[usize], sign: f64) -> Vec<Bar> {
    let mut bars = Vec::with_capacity(counts.len());
    for (index, &count) in counts.iter().enumerate() {
        let left = if sign < 0.0 { index + 1 } else { index };
        let [near, far] = [0, 1].map(|end| tick(sign * errors.edges[index + end]));
        bars.push(Bar {
            height: count as f64,
            class: "wrong",
            edge: edge_label(errors, left, sign),
            about: format!("{count} items off by {near} to {far}"),
            ..Bar::default()
        });
    }
    bars
}

/// Labels powers of ten, as many as there is room for. The first edge gets no label, because it is too close
/// to the 0.
fn edge_label(errors: &Errors, index: usize, sign: f64) -> String {
    let edges = &errors.edges;
    let per_decade = if edges.iter().all(|&edge| is_decade(edge)) { 1 } else { 3 };
    let every = (edges.len() * 2).div_ceil(14 * per_decade) * per_decade;
    let shown = index > 0 && index.is_multiple_of(every) && is_decade(edges[index]);
    if shown { power(sign * edges[index]) } else { String::new() }
}

fn digits(run: &Run) -> Option<Picture> {
    let shares = by_digits(&run.samples);
    if shares.len() < 2 {
        return None;
    }
    let bars = shares.iter().enumerate().map(|(index, share)| Bar {
        height: share.hits as f64 / share.n.max(1) as f64,
        class: "bar",
        label: if index + 1 == DIGITS_MAX { format!("{DIGITS_MAX}+") } else { (index + 1).to_string() },
        whisker: wilson(share.hits, share.n),
        about: format!("{} of {} correct", share.hits, share.n),
        ..Bar::default()
    });
    let sizes: Vec<String> = shares.iter().map(|share| count(share.n)).collect();
    let axis = Axis::new("accuracy", Scale::share());
    let bars = Bars::new("digits of the truth before the decimal point", axis, bars);
    let caption = format!(
        "Accuracy over all answered items, with 95% Wilson intervals. Items per group, from left to right: {}.",
        sizes.join(", ")
    );
    Some(Picture { title: "Accuracy by number of digits".to_owned(), svg: bars.draw(), caption })
}

fn modules(run: &Run) -> Option<Picture> {
    let mut shown: Vec<ShareRow> = run
        .report
        .modules
        .iter()
        .filter_map(|(name, module)| {
            let accuracy = module.metrics.get("accuracy");
            Some(ShareRow { name: name.clone(), share: accuracy.value?, whisker: accuracy.interval() })
        })
        .collect();
    shown.sort_by(|a, b| b.share.total_cmp(&a.share));
    (shown.len() > 1).then(|| Picture {
        title: "Accuracy by module".to_owned(),
        svg: rows::draw("accuracy", &shown),
        caption: "With 95% intervals.".to_owned(),
    })
}

fn pit(calibration: &DistributionCalibration) -> Option<Picture> {
    let (bins, n) =
        (calibration.pit.len() as f64, calibration.pit.iter().map(|&count| count as f64).sum::<f64>());
    if n < 1.0 {
        return None;
    }
    let share = 1.0 / bins;
    // Normal approximation of a binomial count, as a multiple of the expected count.
    let chance = 1.96 * ((1.0 - share) / (share * n)).sqrt();
    let heights: Vec<f64> = calibration.pit.iter().map(|&count| count as f64 / n * bins).collect();
    let bars = heights.iter().enumerate().map(|(index, &height)| Bar {
        height,
        class: "bar",
        edge: if index % 5 == 0 { tick(index as f64 * share) } else { String::new() },
        about: format!("{} items", number(height * n * share)),
        ..Bar::default()
    });
    let largest = heights.iter().copied().fold(1.0 + chance, f64::max);
    let band = Interval { low: (1.0 - chance).max(0.0), high: 1.0 + chance };
    let axis = Axis::new("density", Scale::from_zero(Shape::Linear, largest));
    let bars = Bars {
        last_edge: "1".to_owned(),
        expected: Some(Expected { height: 1.0, band }),
        ..Bars::new("share of the predicted distribution below the truth", axis, bars)
    };
    let caption = format!(
        "Probability integral transform of {} items. Flat if the distributions are calibrated (the band is the 95% range of chance), \
         a hill if they are too wide, a valley if they are too narrow.",
        count(n as usize)
    );
    Some(Picture { title: "Calibration".to_owned(), svg: bars.draw(), caption })
}

fn coverage(calibration: &DistributionCalibration) -> Option<Picture> {
    let dots: Vec<Dot> = calibration
        .coverage
        .iter()
        .filter(|coverage| coverage.n > 0)
        .map(|coverage| Dot {
            x: coverage.q,
            y: coverage.covered as f64 / coverage.n as f64,
            whisker: wilson(coverage.covered, coverage.n),
            about: format!("{} of {} at or below the {} quantile", coverage.covered, coverage.n, coverage.q),
        })
        .collect();
    (!dots.is_empty()).then(|| Picture {
        title: "Coverage of quantiles".to_owned(),
        svg: Dots { x: Axis::of_shares("nominal"), y: Axis::of_shares("truths at or below"), dots }.draw(),
        caption: "How often the truth lies at or below each returned quantile, with 95% Wilson intervals. \
                  Calibrated quantiles are on the line. Discrete distributions are above it, because the truth may \
                  equal a quantile."
            .to_owned(),
    })
}

fn mass(run: &Run) -> Option<Picture> {
    let masses: Vec<f64> = run.samples.iter().filter_map(|sample| sample.score("mass_closed")).collect();
    if masses.is_empty() {
        return None;
    }
    let groups = by_mass(masses.iter().copied());
    let bars = groups.iter().zip(MASS_EDGES.windows(2)).enumerate().map(|(index, (&count, edges))| Bar {
        height: count as f64,
        class: "bar",
        edge: if index % 2 == 1 || index == 0 { tick(edges[0]) } else { String::new() },
        about: format!("{count} items between {} and {}", edges[0], edges[1]),
        ..Bar::default()
    });
    let largest = groups.iter().copied().max().unwrap_or(0) as f64;
    let axis = Axis::new("items", Scale::from_zero(Shape::Linear, largest));
    let bars = Bars { last_edge: "1".to_owned(), ..Bars::new("closed mass (finer towards 1)", axis, bars) };
    let least = masses.iter().copied().fold(f64::INFINITY, f64::min);
    let caption = format!(
        "Share of the probability on complete numbers, over {} items. The smallest share is {}.",
        count(masses.len()),
        number(least)
    );
    Some(Picture { title: "Closed mass".to_owned(), svg: bars.draw(), caption })
}
