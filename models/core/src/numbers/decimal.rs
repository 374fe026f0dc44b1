//! Exact decimal numbers, built digit by digit and converted to `f64` once.

use std::cmp::Ordering;
use std::fmt;

/// Maximum number of digits on either side of the point.
pub(super) const DIGITS_MAX: u8 = 20;

/// A decimal number with up to 20 digits on each side of the point. Equality is equality of the value only
/// after [`Decimal::canonical`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    negative: bool,
    integer: u128,
    fraction: u128,
    decimals: u8,
}

impl Decimal {
    /// Before the first digit.
    pub(super) const ZERO: Self = Self { negative: false, integer: 0, fraction: 0, decimals: 0 };

    pub(super) fn negated(self) -> Self {
        Self { negative: !self.negative, ..self }
    }

    /// Appends a digit (0 to 9) before the point. The caller keeps to 20 of them.
    pub(super) fn with_integer_digit(self, digit: u8) -> Self {
        Self { integer: self.integer * 10 + u128::from(digit), ..self }
    }

    /// Appends a digit (0 to 9) after the point. The caller keeps to 20 of them.
    pub(super) fn with_decimal(self, digit: u8) -> Self {
        Self { fraction: self.fraction * 10 + u128::from(digit), decimals: self.decimals + 1, ..self }
    }

    /// Adds a digit (0 to 9) at a power of ten from -20 to 19. The number must not have a digit at that power
    /// or below.
    pub(super) fn with_place(self, digit: u8, place: i8) -> Self {
        if let Ok(place) = u32::try_from(place) {
            return Self { integer: self.integer + u128::from(digit) * 10_u128.pow(place), ..self };
        }
        let decimals = place.unsigned_abs();
        let shift = 10_u128.pow(u32::from(decimals.saturating_sub(self.decimals)));
        Self { fraction: self.fraction * shift + u128::from(digit), decimals, ..self }
    }

    /// Reads a plain decimal text such as `-12.5` and cuts digits beyond the 20th after the point. Returns
    /// `None` for more than 20 digits before the point, and for other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (digits, negative) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let fits = !integer.is_empty() && integer.len() <= usize::from(DIGITS_MAX);
        if !fits || !integer.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let value = integer.bytes().fold(Self::ZERO, |value, byte| value.with_integer_digit(byte - b'0'));
        let fraction = fraction.bytes().take(usize::from(DIGITS_MAX));
        let value = fraction.fold(value, |value, byte| value.with_decimal(byte - b'0'));
        Some(if negative { value.negated() } else { value })
    }

    /// Returns the shortest decimal number that reads back as `value`, or `None` if `value` is 1e20 or more,
    /// or not finite.
    pub fn shortest_f32(value: f32) -> Option<Self> {
        Self::parse(&value.to_string())
    }

    /// Like [`Decimal::shortest_f32`], but takes an `f64`.
    pub fn shortest_f64(value: f64) -> Option<Self> {
        Self::parse(&value.to_string())
    }

    pub(super) fn is_negative(self) -> bool {
        self.negative
    }

    /// `units` divided by 10 to the power of `decimals`.
    pub(super) fn of_units(units: i128, decimals: u8) -> Self {
        let one = 10_u128.pow(decimals.into());
        let magnitude = units.unsigned_abs();
        Self { negative: units < 0, integer: magnitude / one, fraction: magnitude % one, decimals }
    }

    /// This canonical number times 10 to the power of `decimals` (at most 18), rounded up.
    pub(super) fn units_ceil(self, decimals: u8) -> i128 {
        let magnitude = self.magnitude();
        if self.negative { -magnitude.units_floor(decimals) } else { magnitude.units_ceil(decimals) }
    }

    /// Like [`Decimal::units_ceil`], but rounded down.
    pub(super) fn units_floor(self, decimals: u8) -> i128 {
        let magnitude = self.magnitude();
        if self.negative { -magnitude.units_ceil(decimals) } else { magnitude.units_floor(decimals) }
    }

    /// The part before the point.
    pub(super) fn integer(self) -> u128 {
        self.integer
    }

    pub(super) fn magnitude(self) -> Magnitude {
        let fraction = self.fraction * 10_u128.pow((DIGITS_MAX - self.decimals).into());
        Magnitude { integer: self.integer, fraction }
    }

    /// Digits written after the point.
    pub(super) fn decimals(self) -> u8 {
        self.decimals
    }

    /// The one spelling of this value: no trailing decimal zeros, no negative zero.
    pub fn canonical(mut self) -> Self {
        while self.decimals > 0 && self.fraction.is_multiple_of(10) {
            self.fraction /= 10;
            self.decimals -= 1;
        }
        self.negative &= self.integer != 0 || self.fraction != 0;
        self
    }

    /// The nearest `f64`. At most 41 characters are read, so it is finite.
    pub fn to_f64(self) -> f64 {
        self.to_string().parse().unwrap_or(0.0)
    }
}

/// A decimal number without its sign, in a form that compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Magnitude {
    integer: u128,
    /// The part after the point, in units of 1e-20.
    fraction: u128,
}

impl Magnitude {
    pub(super) const ZERO: Self = Self { integer: 0, fraction: 0 };
    /// Above every [`Decimal`].
    pub(super) const ABOVE_ALL: Self = Self { integer: 10_u128.pow(DIGITS_MAX as u32), fraction: 0 };

    pub(super) fn of_integer(integer: u128) -> Self {
        Self { integer, fraction: 0 }
    }

    /// The magnitude of the shortest decimal number that reads back as `value`, or [`Self::ABOVE_ALL`] from
    /// 1e20 on.
    pub(super) fn of_f64(value: f64) -> Self {
        Decimal::shortest_f64(value).map_or(Self::ABOVE_ALL, Decimal::magnitude)
    }

    /// This number plus 10 to the power of `place`, from -20 to 19.
    pub(super) fn plus_one_at(self, place: i8) -> Self {
        if let Ok(place) = u32::try_from(place) {
            return Self { integer: self.integer + 10_u128.pow(place), ..self };
        }
        let one = 10_u128.pow(DIGITS_MAX.into());
        let fraction = self.fraction + one / 10_u128.pow(place.unsigned_abs().into());
        Self { integer: self.integer + fraction / one, fraction: fraction % one }
    }

    /// Times 10 to the power of `decimals` (at most 18), rounded up.
    pub(super) fn units_ceil(self, decimals: u8) -> i128 {
        let unit = 10_u128.pow((DIGITS_MAX - decimals).into());
        (self.integer * 10_u128.pow(decimals.into()) + self.fraction.div_ceil(unit)) as i128
    }

    /// Like [`Magnitude::units_ceil`], but rounded down.
    pub(super) fn units_floor(self, decimals: u8) -> i128 {
        let unit = 10_u128.pow((DIGITS_MAX - decimals).into());
        (self.integer * 10_u128.pow(decimals.into()) + self.fraction / unit) as i128
    }

    /// The next larger magnitude.
    pub(super) fn next(self) -> Self {
        self.plus_one_at(-(DIGITS_MAX as i8))
    }

    /// The next smaller magnitude; `None` for 0.
    pub(super) fn previous(self) -> Option<Self> {
        let last = 10_u128.pow(DIGITS_MAX.into()) - 1;
        match (self.integer.checked_sub(1), self.fraction.checked_sub(1)) {
            (_, Some(fraction)) => Some(Self { fraction, ..self }),
            (Some(integer), None) => Some(Self { integer, fraction: last }),
            (None, None) => None,
        }
    }
}

/// The order of values, which is an order of canonical numbers.
impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let (own, others) = (self.magnitude(), other.magnitude());
        let order = match (self.negative, other.negative) {
            (false, false) => own.cmp(&others),
            (true, true) => others.cmp(&own),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        };
        Some(order)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        write!(f, "{sign}{}", self.integer)?;
        if self.decimals > 0 {
            write!(f, ".{:0width$}", self.fraction, width = usize::from(self.decimals))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn digits_at_descending_powers_of_ten_add_up_and_omitted_ones_are_zeros() {
        for (places, want) in [
            (&[(3, 2), (5, 1), (6, 0)][..], "356"),
            (&[(1, 2), (5, -2)], "100.05"),
            (&[(9, 19), (9, -20)], "90000000000000000000.00000000000000000009"),
            (&[(0, 0), (7, -3)], "0.007"),
            (&[(1, 3)], "1000"),
        ] {
            let add = |value: Decimal, &(digit, place): &(u8, i8)| value.with_place(digit, place);
            assert_eq!(places.iter().fold(Decimal::ZERO, add).to_string(), want);
        }
    }

    #[test]
    fn a_float_is_its_shortest_text_unless_it_is_too_long() {
        let shortest = |value| Decimal::shortest_f32(value).map(|value| value.to_string());
        assert_eq!(shortest(344.933_87).as_deref(), Some("344.93387"));
        assert_eq!(shortest(-1e-5).as_deref(), Some("-0.00001"));
        assert_eq!((shortest(1e20), shortest(f32::NAN), shortest(f32::INFINITY)), (None, None, None));
        assert_eq!(shortest(1e-30).as_deref(), Some("0.00000000000000000000"));
        assert_eq!(Decimal::shortest_f64(0.1).unwrap().to_string(), "0.1");
        assert_eq!([Decimal::parse(""), Decimal::parse("-"), Decimal::parse("1e5")], [None; 3]);
    }

    #[test]
    fn spellings_of_one_value_have_one_canonical_form() {
        for (spelling, canonical) in [
            ("007", "7"),
            ("7.0", "7"),
            ("7.50", "7.5"),
            ("-0", "0"),
            ("-0.00", "0"),
            ("-0.05", "-0.05"),
            ("100", "100"),
        ] {
            assert_eq!(decimal(spelling).canonical().to_string(), canonical, "{spelling}");
        }
    }

    #[test]
    fn values_are_the_nearest_f64() {
        for (text, value) in
            [("4.35", 4.35), ("-17", -17.0), ("0.1", 0.1), ("12345678901234567890", 12345678901234567890.0)]
        {
            assert_eq!(decimal(text).to_f64().to_bits(), f64::to_bits(value), "{text}");
        }
        let longest = "9".repeat(20) + "." + &"9".repeat(20);
        assert_eq!(decimal(&longest).to_string(), longest);
    }
}
