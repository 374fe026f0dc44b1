//! Gates: bounds on metrics that decide the exit code.
//!
//! A metric without a value misses every gate: nothing shows that it holds.

use std::fmt;

use crate::metrics::{Metrics, Name};

/// `METRIC=V` as typed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Which metric.
    pub metric: Name,
    /// A finite value.
    pub value: f64,
}

/// Reads `METRIC=V`.
///
/// # Errors
/// What is wrong with the text, for the command line to show.
pub fn parse_bound(text: &str) -> Result<Bound, String> {
    let (name, value) = text.split_once('=').ok_or("expected METRIC=V")?;
    let metric = Name::parse(name).ok_or_else(|| {
        let known: Vec<&str> = Name::ALL.iter().map(|name| name.as_str()).collect();
        format!("no metric `{name}`; there are {}", known.join(", "))
    })?;
    let value: f64 = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
    if value.is_finite() { Ok(Bound { metric, value }) } else { Err(format!("`{value}` is not finite")) }
}

/// Which side of a bound is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Below it: `--fail-under`.
    Under,
    /// Above it: `--fail-over`.
    Over,
}

/// A gate that was missed, and by what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Miss {
    bound: Bound,
    side: Side,
    got: Option<f64>,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, limit) = (self.bound.metric.as_str(), self.bound.value);
        let side = if self.side == Side::Under { "below" } else { "above" };
        match self.got {
            Some(got) => write!(f, "{name} is {got}, {side} {limit}"),
            None => write!(f, "{name} has no value to hold against {limit}"),
        }
    }
}

/// The gates on one side that `metrics` miss, in their order.
pub fn missed<'a>(metrics: &'a Metrics, bounds: &'a [Bound], side: Side) -> impl Iterator<Item = Miss> + 'a {
    bounds.iter().filter_map(move |&bound| {
        let got = metrics.get(bound.metric).value;
        let held = got.is_some_and(|got| match side {
            Side::Under => got >= bound.value,
            Side::Over => got <= bound.value,
        });
        (!held).then_some(Miss { bound, side, got })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Row;

    #[test]
    fn a_bound_names_a_known_metric_and_a_finite_value() {
        assert_eq!(parse_bound("mae=1.5"), Ok(Bound { metric: Name::Mae, value: 1.5 }));
        for (text, complaint) in [
            ("mae", "expected METRIC=V"),
            ("speed=1", "no metric `speed`"),
            ("mae=low", "`low` is not a number"),
            ("mae=NaN", "`NaN` is not finite"),
        ] {
            assert!(parse_bound(text).unwrap_err().contains(complaint), "{text}");
        }
    }

    #[test]
    fn a_gate_holds_at_its_value_and_misses_beyond_it_or_without_a_value() {
        let metrics = Metrics::of(&[Row::read(1.0, 1.0), Row::read(3.0, 1.0)]);
        let count = |metric, value, side| missed(&metrics, &[Bound { metric, value }], side).count();
        assert_eq!(count(Name::Mae, 1.0, Side::Under), 0);
        assert_eq!(count(Name::Mae, 1.0, Side::Over), 0);
        assert_eq!(count(Name::Mae, 1.1, Side::Under), 1);
        assert_eq!(count(Name::Mae, 0.9, Side::Over), 1);
        assert_eq!(count(Name::R2, -99.0, Side::Under), 1);
    }

    #[test]
    fn a_miss_says_what_was_asked_and_what_was_found() {
        let metrics = Metrics::of(&[Row::read(3.0, 1.0)]);
        let (mae, r2) = (Bound { metric: Name::Mae, value: 1.0 }, Bound { metric: Name::R2, value: 0.5 });
        let texts: Vec<String> =
            missed(&metrics, &[mae, r2], Side::Over).map(|miss| miss.to_string()).collect();
        assert_eq!(texts, ["mae is 2, above 1", "r2 has no value to hold against 0.5"]);
    }
}
