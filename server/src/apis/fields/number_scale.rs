//! The field `number.scale`: the values of a rating.

use ntl_api::{MethodName, NumberScale, ScaleNumbers, WrongScaleLength};
use ntl_core::numbers::{GrammarLimits, Interval, Scale};

use crate::error::{AppError, check};

/// `param` is the name of the field, also below.
pub(super) fn scale(param: &str, asked: &NumberScale) -> Result<Scale, AppError> {
    let ScaleNumbers { low, high, step } = asked.numbers().map_err(|WrongScaleLength(count)| {
        let message = format!("must have two or three numbers: low, high, step; not {count}");
        AppError::field(param, message)
    })?;
    Scale::new(low, high, step).map_err(|error| AppError::field(param, format!("is not possible: {error}")))
}

/// Refuses a scale with values that would never be read.
pub(super) fn check_scale(
    param: &str,
    scale: &Scale,
    limits: GrammarLimits,
    method: MethodName,
) -> Result<(), AppError> {
    let has_head = [MethodName::Xval, MethodName::Head].contains(&method);
    check(param, !has_head, "is not allowed with this model: its number head writes any value")?;
    let Interval { low, high } = scale.interval();
    check(
        "number.sign",
        limits.has_sign() || low >= 0.0,
        format!("must be true: `{param}` has negative values"),
    )?;
    let decimals = scale.decimals();
    let message = format!("must be at least {decimals}: the values of `{param}` have as many decimals");
    check("number.decimals_max", limits.decimals_max() >= decimals, message)?;
    let longest = low.abs().max(high.abs()).trunc();
    let digits = longest.to_string().len();
    let message = format!("must be at least {digits}: the values of `{param}` have as many digits");
    check("number.digits_max", usize::from(limits.digits_max()) >= digits, message)
}
