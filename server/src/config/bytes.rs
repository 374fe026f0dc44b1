//! Sizes in bytes, as flags, environment variables and TOML files write them: `1048576`, `512MiB`, `1.5GB`,
//! `4 GiB`.

use std::num::NonZeroU64;

/// Units in upper case. Units with an `I` are powers of 1024, the others powers of 1000.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("TIB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SizeError {
    #[error("write a size in bytes, such as 1048576, 512MiB, 1.5GB or 4GiB")]
    NotASize,
    #[error("the size is too large")]
    TooLarge,
    #[error("must be at least 1")]
    Zero,
}

/// Reads a size.
pub(super) fn bytes<T: TryFrom<u64>>(text: &str) -> Result<T, SizeError> {
    T::try_from(size(text)?).map_err(|_| SizeError::TooLarge)
}

/// Reads a size that is not zero.
pub(super) fn positive_bytes<T: TryFrom<NonZeroU64>>(text: &str) -> Result<T, SizeError> {
    let size = NonZeroU64::new(size(text)?).ok_or(SizeError::Zero)?;
    T::try_from(size).map_err(|_| SizeError::TooLarge)
}

/// Reads a size and drops the fraction of its last byte.
fn size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_uppercase();
    let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or(SizeError::NotASize)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_point = number.contains('.');
    if !is_digits(whole) || (has_point && (unit == 1 || !is_digits(fraction))) {
        return Err(SizeError::NotASize);
    }
    let whole: u64 = whole.parse().map_err(|_| SizeError::TooLarge)?;
    // Twelve digits are a byte of a terabyte.
    let digits: String = fraction.chars().take(12).collect();
    let scale = 10_u128.pow(digits.len() as u32);
    let fraction: u128 =
        if digits.is_empty() { 0 } else { digits.parse().map_err(|_| SizeError::TooLarge)? };
    let bytes = u128::from(whole) * u128::from(unit) + fraction * u128::from(unit) / scale;
    u64::try_from(bytes).map_err(|_| SizeError::TooLarge)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit_or_without() {
        for (text, want) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("512MiB", 512 << 20),
            ("512mib", 512 << 20),
            ("4GiB", 4 << 30),
            ("4 GiB", 4 << 30),
            ("1.5GB", 1_500_000_000),
            ("0.5KiB", 512),
            ("1.0001KB", 1000),
            ("2TB", 2_000_000_000_000),
            ("7B", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes::<u64>(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected_with_examples() {
        for text in [
            "", "GiB", "4G", "4Gi", "1.5", ".5GiB", "1.GiB", "1.2.3GB", "-1", "1e9", "4GiBs", "١GiB",
            "4 Gi B",
        ] {
            assert_eq!(bytes::<u64>(text), Err(SizeError::NotASize), "{text}");
        }
        for text in ["18446744073709551616", "16777216TiB", "99999999999999999999999999"] {
            assert_eq!(bytes::<u64>(text), Err(SizeError::TooLarge), "{text}");
        }
        assert_eq!(positive_bytes::<NonZeroU64>("0GiB"), Err(SizeError::Zero));
        assert!(SizeError::NotASize.to_string().contains("4GiB"));
    }
}
