//! Options of the numbers that a run requests in regress mode.

use std::str::FromStr;

use ntl_api::NumberScale;
use ntl_core::numbers::Scale;
use serde::Serialize;

use crate::metrics::same;
use crate::stats::Interval;

/// Fields of the request's `number` object. The server has defaults for missing ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NumberSettings {
    /// Smallest and largest number that counts as an answer.
    pub range: Option<Interval>,
    pub scale: Option<RatingScale>,
    /// Coverage of the intervals to request, between 0 and 1.
    pub interval: Option<f64>,
    /// Share of the mass that the mean leaves out in each tail, 0 to 0.49.
    pub trim: Option<f64>,
    /// Maximum number of digits before the point, 1 to 20.
    pub digits_max: Option<u8>,
    /// Maximum number of digits after the point, 0 to 20.
    pub decimals_max: Option<u8>,
    /// The open mass at which the search stops, between 0 and 1.
    pub tolerance: Option<f64>,
    /// Maximum number of decoder positions, 1 to 65536.
    pub nodes_max: Option<u32>,
    /// Width of the bounds of the value at which the search stops, 0 or more.
    pub precision: Option<f64>,
    /// Maximum time of the search, in seconds.
    pub time_max: Option<f64>,
    /// Number of sampled texts whose distributions are averaged, 1 to 64.
    pub rationales: Option<u8>,
    /// Numbers to draw as well, whose median is compared with the distribution.
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

/// Reads a finite number.
pub fn finite(text: &str) -> Result<f64, String> {
    let value = text.trim().parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| format!("`{text}` is not a number"))
}
