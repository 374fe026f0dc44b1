//! The angles of rotary positions, in all formats of `config.json`.
//!
//! Formulas: RoFormer (arXiv 2104.09864), linear interpolation (arXiv 2306.15595), YaRN (arXiv 2309.00071),
//! the three frequency bands of Llama 3.1, LongRoPE (arXiv 2402.13753); each is computed as in Hugging Face.

use std::f64::consts::TAU;

use ntl_text::checkpoint::FieldError;
use serde::Deserialize;

use crate::ops::PassRope;

/// The rotation angle per position for each pair of a head's elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Radians per position, one for each pair.
    pub frequencies: Vec<f32>,
    /// Factor of rotated pairs (YaRN, LongRoPE).
    pub magnitude: f32,
    /// Number of elements of a head. Those after the pairs are not rotated.
    pub head_dim: usize,
}

impl Rotary {
    /// Creates rotations that keep the length of pairs.
    fn plain(frequencies: Vec<f64>) -> Self {
        Self::scaled(frequencies, 1.0)
    }

    /// Creates rotations of complete heads.
    fn scaled(frequencies: Vec<f64>, magnitude: f64) -> Self {
        let head_dim = 2 * frequencies.len();
        Self { frequencies: narrow(frequencies), magnitude: magnitude as f32, head_dim }
    }

    /// Returns the angles of a pass's rows.
    pub(crate) fn pass(&self, positions: impl Iterator<Item = usize>) -> PassRope {
        PassRope::new(positions, &self.frequencies, self.magnitude, self.head_dim)
    }
}

/// `rope_scaling` of transformers 4, or `rope_parameters` of transformers 5.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct StoredRope {
    rope_type: Option<String>,
    #[serde(rename = "type")]
    old_type: Option<String>,
    pub(crate) rope_theta: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
    /// The divisor of the frequency of each pair within the training length (LongRoPE).
    short_factor: Option<Vec<f64>>,
    /// The divisor of the frequency of each pair. Only GGUF files have them.
    frequency_factors: Option<Vec<f64>>,
}

/// The rotary positions of all layers, or of each type of layers.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct StoredRopes {
    full_attention: Option<StoredRope>,
    sliding_attention: Option<StoredRope>,
    #[serde(flatten)]
    all: StoredRope,
}

impl StoredRopes {
    /// Returns the rotary positions of layers with or without a window.
    pub(crate) fn of(&self, has_window: bool) -> &StoredRope {
        let of_type = if has_window { &self.sliding_attention } else { &self.full_attention };
        of_type.as_ref().unwrap_or(&self.all)
    }
}

/// Other values on which the angles depend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeShape {
    pub(crate) head_dim: usize,
    pub(crate) theta: f64,
    /// `max_position_embeddings`.
    pub(crate) positions: usize,
}

const FIELD: &str = "rope_scaling";

impl StoredRope {
    /// Adds values that transformers 4 stores next to `rope_scaling`.
    pub(crate) fn or(self, partial_rotary_factor: Option<f64>, trained: Option<usize>) -> Self {
        Self {
            partial_rotary_factor: self.partial_rotary_factor.or(partial_rotary_factor),
            original_max_position_embeddings: self.original_max_position_embeddings.or(trained),
            ..self
        }
    }

    /// Returns the angles, and the number of positions that they support.
    ///
    /// Within the training length, `dynamic` equals the default type, and `longrope` has one set of factors.
    /// Beyond it, the angles of all positions would depend on the length of the text, so that keys could not
    /// be cached. The context therefore ends at the training length.
    pub(crate) fn resolve(&self, shape: RopeShape) -> Result<(Rotary, usize), FieldError> {
        if self.partial_rotary_factor.is_some_and(|factor| (factor - 1.0).abs() > f64::EPSILON) {
            return Err(("partial_rotary_factor", "only 1 is supported".to_owned()));
        }
        self.resolve_pairs(shape)
    }

    /// Like [`Self::resolve`], for a model that may rotate only the first elements of each head.
    pub(crate) fn resolve_partial(&self, shape: RopeShape) -> Result<(Rotary, usize), FieldError> {
        let share = self.partial_rotary_factor.unwrap_or(1.0);
        if !(share > 0.0 && share <= 1.0) {
            return Err(("partial_rotary_factor", format!("{share} is out of range")));
        }
        let rotated = (shape.head_dim as f64 * share) as usize;
        if rotated < shape.head_dim && (rotated == 0 || !rotated.is_multiple_of(2)) {
            let reason = format!("{rotated} of {} elements are not pairs", shape.head_dim);
            return Err(("partial_rotary_factor", reason));
        }
        let (rotary, positions) = self.resolve_pairs(RopeShape { head_dim: rotated, ..shape })?;
        Ok((Rotary { head_dim: shape.head_dim, ..rotary }, positions))
    }

    fn resolve_pairs(&self, shape: RopeShape) -> Result<(Rotary, usize), FieldError> {
        if !shape.head_dim.is_multiple_of(2) {
            return Err(("head_dim", format!("{} is odd: rotary positions rotate pairs", shape.head_dim)));
        }
        if !(shape.theta.is_finite() && shape.theta > 1.0) {
            return Err(("rope_theta", format!("{} is out of range", shape.theta)));
        }
        match self.rope_type.as_deref().or(self.old_type.as_deref()).unwrap_or("default") {
            "default" | "dynamic" => Ok((Rotary::plain(shape.frequencies()), shape.positions)),
            "linear" => {
                let factor = self.factor()?;
                let frequencies = shape.frequencies().into_iter().map(|frequency| frequency / factor);
                Ok((Rotary::plain(frequencies.collect()), stretched(shape.positions, factor)))
            }
            "llama3" => Ok((Rotary::plain(self.llama3(shape)?), shape.positions)),
            "yarn" => self.yarn(shape),
            "longrope" | "su" => self.longrope(shape),
            "frequency_factors" => Ok((Rotary::plain(self.divided(shape)?), shape.positions)),
            other => {
                let known = "default, linear, dynamic, llama3, yarn and longrope are";
                Err((FIELD, format!("rotary positions of type `{other}` are not supported; {known}")))
            }
        }
    }

    fn factor(&self) -> Result<f64, FieldError> {
        positive(self.factor, "factor")
    }

    /// Stretches slow pairs, keeps fast pairs, and blends those between.
    fn llama3(&self, shape: RopeShape) -> Result<Vec<f64>, FieldError> {
        let factor = self.factor()?;
        let low = positive(self.low_freq_factor, "low_freq_factor")?;
        let high = positive(self.high_freq_factor, "high_freq_factor")?;
        let trained = self.original_max_position_embeddings;
        let trained = trained.ok_or((FIELD, "has no `original_max_position_embeddings`".to_owned()))? as f64;
        let mut frequencies = shape.frequencies();
        for frequency in &mut frequencies {
            let wavelength = TAU / *frequency;
            if wavelength < trained / high {
                continue;
            }
            if wavelength > trained / low {
                *frequency /= factor;
            } else {
                let kept = (trained / wavelength - low) / (high - low);
                *frequency = (1.0 - kept) * *frequency / factor + kept * *frequency;
            }
        }
        Ok(frequencies)
    }

    fn divided(&self, shape: RopeShape) -> Result<Vec<f64>, FieldError> {
        let factors = self.frequency_factors.as_deref().unwrap_or_default();
        let mut frequencies = shape.frequencies();
        if factors.len() != frequencies.len() {
            let reason = format!("{} frequency factors for {} pairs", factors.len(), frequencies.len());
            return Err((FIELD, reason));
        }
        for (frequency, factor) in frequencies.iter_mut().zip(factors) {
            *frequency /= positive(Some(*factor), "frequency_factors")?;
        }
        Ok(frequencies)
    }

    fn longrope(&self, shape: RopeShape) -> Result<(Rotary, usize), FieldError> {
        let trained = self.original_max_position_embeddings.unwrap_or(shape.positions);
        if trained < 2 {
            let reason = format!("`original_max_position_embeddings` {trained} is out of range");
            return Err((FIELD, reason));
        }
        let Some(factors) = &self.short_factor else {
            return Err((FIELD, "has no `short_factor`".to_owned()));
        };
        if factors.len() != shape.head_dim / 2 {
            let reason =
                format!("`short_factor` has {} numbers for {} pairs", factors.len(), shape.head_dim / 2);
            return Err((FIELD, reason));
        }
        let mut frequencies = Vec::new();
        for (pair, factor) in factors.iter().enumerate() {
            let factor = positive(Some(*factor), "short_factor")?;
            frequencies.push(f64::from((factor as f32 * shape.period(pair)).recip()));
        }
        let stretch = match self.factor {
            None => shape.positions as f64 / trained as f64,
            given => positive(given, "factor")?,
        };
        let magnitude = match self.attention_factor {
            Some(factor) => factor,
            None if stretch <= 1.0 => 1.0,
            None => (1.0 + stretch.ln() / (trained as f64).ln()).sqrt(),
        };
        Ok((Rotary::scaled(frequencies, magnitude), trained.min(shape.positions)))
    }

    fn yarn(&self, shape: RopeShape) -> Result<(Rotary, usize), FieldError> {
        let trained = self.original_max_position_embeddings.unwrap_or(shape.positions);
        let factor = match self.factor {
            None => shape.positions as f64 / trained as f64,
            given => positive(given, "factor")?,
        };
        let magnitude = self.attention_factor.unwrap_or_else(|| match (self.mscale, self.mscale_all_dim) {
            (Some(some), Some(all)) if some > 0.0 && all > 0.0 => {
                attention_scale(factor, some) / attention_scale(factor, all)
            }
            _ => attention_scale(factor, 1.0),
        });
        let mut low = shape.pair_rotating(self.beta_fast.unwrap_or(32.0), trained);
        let mut high = shape.pair_rotating(self.beta_slow.unwrap_or(1.0), trained);
        if self.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        let high = high.min(shape.head_dim as f64 - 1.0);
        let span = if high > low { high - low } else { 0.001 };
        let mut frequencies = shape.frequencies();
        for (pair, frequency) in frequencies.iter_mut().enumerate() {
            let share = ((pair as f64 - low) / span).clamp(0.0, 1.0);
            *frequency = *frequency / factor * share + *frequency * (1.0 - share);
        }
        Ok((Rotary::scaled(frequencies, magnitude), stretched(trained, factor).max(shape.positions)))
    }
}

impl RopeShape {
    /// Returns `theta ^ (-2p / head_dim)` for each pair `p`, rounded at the same points as in Hugging Face:
    /// far into a text, the last bit of an angle changes the logits.
    fn frequencies(self) -> Vec<f64> {
        let mut frequencies = Vec::new();
        for pair in 0..self.head_dim / 2 {
            frequencies.push(f64::from(self.period(pair).recip()));
        }
        frequencies
    }

    /// Returns `theta ^ (2p / head_dim)`: the number of positions per radian.
    fn period(self, pair: usize) -> f32 {
        (self.theta as f32).powf((2 * pair) as f32 / self.head_dim as f32)
    }

    /// Returns the pair, with a fraction, that rotates this many times over `trained` positions.
    fn pair_rotating(self, rotations: f64, trained: usize) -> f64 {
        self.head_dim as f64 * (trained as f64 / (rotations * TAU)).ln() / (2.0 * self.theta.ln())
    }
}

/// Returns YaRN's scale of attention for a text that is `factor` times as long.
fn attention_scale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

fn stretched(positions: usize, factor: f64) -> usize {
    (positions as f64 * factor.max(1.0)) as usize
}

fn narrow(values: Vec<f64>) -> Vec<f32> {
    values.into_iter().map(|value| value as f32).collect()
}

fn positive(value: Option<f64>, name: &str) -> Result<f64, FieldError> {
    match value {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err((FIELD, format!("`{name}` {value} is out of range"))),
        None => Err((FIELD, format!("has no `{name}`"))),
    }
}
