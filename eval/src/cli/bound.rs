//! Bounds on metrics, as `--fail-under` and `--fail-over` take them.

use std::str::FromStr;

use crate::metrics::registry::{METRICS, find};

/// `METRIC=V`; the value is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    pub metric: &'static str,
    pub value: f64,
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once('=').ok_or("expected METRIC=V")?;
        let metric = find(name).ok_or_else(|| {
            let known: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
            format!("no metric `{name}`; there are {}", known.join(", "))
        })?;
        let value: f64 = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
        if value.is_finite() {
            Ok(Self { metric: metric.name, value })
        } else {
            Err(format!("`{value}` is not finite"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_names_a_known_metric_and_a_finite_value() {
        assert_eq!("mae=1.5".parse(), Ok(Bound { metric: "mae", value: 1.5 }));
        for (text, complaint) in [
            ("mae", "expected METRIC=V"),
            ("speed=1", "no metric `speed`"),
            ("mae=low", "`low` is not a number"),
            ("mae=NaN", "`NaN` is not finite"),
        ] {
            assert!(text.parse::<Bound>().unwrap_err().contains(complaint), "{text}");
        }
    }
}
