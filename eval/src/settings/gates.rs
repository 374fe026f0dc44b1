//! Gates: bounds on metrics, and the report of an earlier run.

use std::path::PathBuf;
use std::str::FromStr;

use crate::metrics::registry::{find, unknown};

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Gates")]
pub struct Gates {
    /// Exit with 3 when a metric of any split is below V or has no value; repeatable.
    #[arg(long, value_name = "METRIC=V")]
    pub fail_under: Vec<Bound>,
    /// Exit with 3 when a metric of any split is above V or has no value; repeatable.
    #[arg(long, value_name = "METRIC=V")]
    pub fail_over: Vec<Bound>,
    /// Exit with 3 when a metric is worse than in the report in this folder, with its whole 95% interval.
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
}

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
        let metric = find(name).ok_or_else(|| unknown(name))?;
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
            ("throughput=1", "there is no metric `throughput`; there are accuracy, strict, "),
            ("acuracy=1", "there is no metric `acuracy`; did you mean `accuracy`?"),
            ("mae=low", "`low` is not a number"),
            ("mae=NaN", "`NaN` is not finite"),
        ] {
            assert!(text.parse::<Bound>().unwrap_err().contains(complaint), "{text}");
        }
    }
}
