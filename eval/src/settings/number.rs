//! Options of the numbers that a run requests in regress mode.

use std::str::FromStr;

use ntl_api::NumberScale;
use ntl_core::numbers::Scale;
use serde::Serialize;

use super::values::{finite, not_negative, number_that, positive, range};
use crate::metrics::same;
use crate::stats::Interval;

/// Fields of the request's `number` object. The server has defaults for missing ones.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Number (regress mode)")]
pub struct NumberSettings {
    /// Smallest and largest number that counts as an answer. With it every estimate is bounded.
    #[arg(long, value_name = "LOW,HIGH", env = "NTL_EVAL_RANGE", allow_hyphen_values = true, value_parser = range)]
    pub range: Option<Interval>,
    /// The answers are ratings: only LOW, LOW + STEP and so on to HIGH count. The step is 1 unless given.
    #[arg(long, value_name = "LOW,HIGH[,STEP]", env = "NTL_EVAL_SCALE", allow_hyphen_values = true)]
    #[arg(conflicts_with = "range")]
    pub scale: Option<RatingScale>,
    /// Also request intervals that contain the truth with this probability, between 0 and 1, and report how
    /// often they do.
    #[arg(long, value_name = "COVERAGE", env = "NTL_EVAL_INTERVAL")]
    #[arg(value_parser = number_that(|p| p > 0.0 && p < 1.0, "expected a probability between 0 and 1"))]
    pub interval: Option<f64>,
    /// Share of the mass that the mean leaves out in each tail, 0 to 0.49. The server's default: 0.005.
    #[arg(long, value_name = "SHARE", env = "NTL_EVAL_TRIM")]
    #[arg(value_parser = number_that(|share| (0.0..=0.49).contains(&share), "expected a share from 0 to 0.49"))]
    pub trim: Option<f64>,
    /// Maximum number of digits before the point, 1 to 20. The server's default: 12.
    #[arg(long, value_name = "N", env = "NTL_EVAL_DIGITS_MAX", value_parser = clap::value_parser!(u8).range(1..=20))]
    pub digits_max: Option<u8>,
    /// Maximum number of digits after the point, 0 to 20. The server's default: 6.
    #[arg(long, value_name = "N", env = "NTL_EVAL_DECIMALS_MAX", value_parser = clap::value_parser!(u8).range(0..=20))]
    pub decimals_max: Option<u8>,
    /// Stop the search when the open mass is at most this, between 0 and 1. The server's default: 0.001.
    #[arg(long, value_name = "MASS", env = "NTL_EVAL_TOLERANCE")]
    #[arg(value_parser = number_that(|mass| mass > 0.0 && mass < 1.0, "expected a mass between 0 and 1"))]
    pub tolerance: Option<f64>,
    /// Maximum number of decoder positions, 1 to 65536. The server's default: 320, and 4096 in structured
    /// answers.
    #[arg(long, value_name = "N", env = "NTL_EVAL_NODES_MAX", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub nodes_max: Option<u32>,
    /// Stop the search as soon as the bounds of the value are no wider than this; 0 stops when it is certain.
    /// The server's default: no such stop.
    #[arg(long, value_name = "WIDTH", env = "NTL_EVAL_PRECISION", value_parser = not_negative)]
    pub precision: Option<f64>,
    /// Stop the search of a number after this time. The server's default: no limit.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_TIME_MAX", value_parser = positive)]
    pub time_max: Option<f64>,
    /// With `--after`: sample N texts at temperature 1, and average the distributions of the numbers after
    /// them. Default: one text at temperature 0.
    #[arg(long, value_name = "N", env = "NTL_EVAL_RATIONALES", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub rationales: Option<u8>,
    /// Numbers to draw as well, whose median is compared with the distribution.
    #[arg(skip)]
    pub draws: Option<Draws>,
}

/// Numbers that the server draws from the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Draws {
    /// 1 to 4096.
    pub samples: u16,
    /// Share of the most probable tokens that are drawn from, for models with dedicated number tokens.
    pub top_p: f64,
}

impl NumberSettings {
    /// Returns the interval that contains all admitted numbers.
    pub fn bounds(&self) -> Option<Interval> {
        self.range.or_else(|| self.scale.map(RatingScale::ends))
    }

    /// Returns `false` if there is a scale and the number is not one of its values.
    pub fn is_on_scale(&self, number: f64) -> bool {
        self.scale.is_none_or(|scale| scale.values().iter().any(|value| same(*value, number)))
    }
}

/// A scale that [`Scale::new`] accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatingScale {
    scale: Scale,
    low: f64,
    high: f64,
    /// The step as given.
    step: Option<f64>,
}

impl RatingScale {
    pub fn ends(self) -> Interval {
        Interval { low: self.low, high: self.high }
    }

    pub fn step(self) -> f64 {
        self.step.unwrap_or(1.0)
    }

    /// Ascending.
    pub fn values(self) -> Vec<f64> {
        self.scale.values().collect()
    }
}

/// Reads `LOW,HIGH` or `LOW,HIGH,STEP`.
impl FromStr for RatingScale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split(',').map(finite).collect::<Result<Vec<_>, _>>()?;
        let (low, high, step) = match *parts.as_slice() {
            [low, high] => (low, high, None),
            [low, high, step] => (low, high, Some(step)),
            _ => return Err("expected two or three numbers, LOW,HIGH or LOW,HIGH,STEP".to_owned()),
        };
        let scale = Scale::new(low, high, step.unwrap_or(1.0)).map_err(|error| error.to_string())?;
        Ok(Self { scale, low, high, step })
    }
}

impl From<RatingScale> for NumberScale {
    fn from(RatingScale { low, high, step, .. }: RatingScale) -> Self {
        Self::List([low, high].into_iter().chain(step).collect())
    }
}
