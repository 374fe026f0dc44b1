//! Formats numbers and texts for reports: short, and the same everywhere.

use crate::stats::Interval;

/// Smaller values are rounding errors of sums that are 0.
const ZERO: f64 = 1e-12;

/// Formats a number with four significant digits or four decimals, whichever is shorter, and with more
/// decimals for tiny numbers. Integers are written in full, long numbers with an exponent.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size < ZERO {
        "0".to_owned()
    } else if !(1e-4..1e7).contains(&size) {
        format!("{value:.2e}")
    } else if size >= 1e4 {
        format!("{}{}", if value < 0.0 { "-" } else { "" }, count(size.round() as usize))
    } else if (value - value.round()).abs() < 1e-9 * size.max(1.0) {
        format!("{value:.0}")
    } else {
        let four_digits = (3.0 - size.log10().floor()).max(0.0) as usize;
        let decimals = four_digits.min(if size >= 1e-3 { 4 } else { 6 });
        format!("{value:.decimals$}")
    }
}

/// Formats a number, or writes a dash if it is undefined.
pub fn optional_number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

/// Formats an interval as `low to high`.
pub fn interval(interval: Interval) -> String {
    format!("{} to {}", number(interval.low), number(interval.high))
}

/// Formats a p-value as it follows a heading: three decimals and no false zero, or `≤` and two digits for an
/// upper bound.
pub fn p_value(p: f64, is_bound: bool) -> String {
    if is_bound {
        // Rounded upwards, so that the bound holds, but not by the rounding error of a product.
        let unit = 10_f64.powf(p.log10().floor() - 1.0);
        let decimals = (1.0 - p.log10().floor()).max(0.0) as usize;
        let text = format!("{:.decimals$}", (p / unit - 1e-9).ceil() * unit);
        format!("≤ {}", text.trim_end_matches('0'))
    } else if p < 0.001 {
        "< 0.001".to_owned()
    } else {
        format!("{p:.3}")
    }
}

/// Formats a count with separated thousands.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(String::from_utf8_lossy).collect::<Vec<_>>().join(",")
}

/// Formats a tick with as few digits as distinguish it from its neighbours: `0.25`, `1,000`, `10⁶`.
pub fn tick(value: f64) -> String {
    let size = value.abs();
    let exponent = size.log10().round();
    let sign = if value < 0.0 { "−" } else { "" };
    if size >= 1e5 && (10_f64.powf(exponent) - size).abs() < 1e-6 * size {
        power(value)
    } else if size >= 1e6 || (size < 1e-4 && size > 0.0) {
        format!("{value:.0e}")
    } else if size >= 1e3 && size.fract() < 1e-9 {
        format!("{sign}{}", count(size as usize))
    } else {
        let text = format!("{size:.4}");
        format!("{sign}{}", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Formats a power of ten or its negative: `−10⁶`, `100`, `0.01`.
pub fn power(value: f64) -> String {
    let size = value.abs();
    if size < 1e3 {
        return tick(value);
    }
    let sign = if value < 0.0 { "−" } else { "" };
    format!("{sign}10{}", superscript(size.log10().round() as u32))
}

fn superscript(exponent: u32) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    exponent.to_string().chars().filter_map(|c| DIGITS.get(c.to_digit(10)? as usize)).collect()
}

/// Returns the first `most` characters on one line, with an ellipsis if some are left out.
pub fn shortened(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    let start: String = line.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_significant_digits() {
        for (value, want) in [
            (0.0, "0"),
            (2.0, "2"),
            (0.999_999_999_999_9, "1"),
            (0.337_512, "0.3375"),
            (61.9149, "61.91"),
            (-1234.56, "-1235"),
            (-368_184.4, "-368,184"),
            (2.2e-19, "0"),
            (0.008_012, "0.0080"),
            (0.000_123_456, "0.000123"),
            (4.66e9, "4.66e9"),
            (2e-7, "2.00e-7"),
        ] {
            assert_eq!(number(value), want);
        }
        assert_eq!(optional_number(None), "–");
        assert_eq!(interval(Interval { low: 0.5, high: 1.25 }), "0.5000 to 1.250");
    }

    #[test]
    fn a_p_value_is_never_zero_and_a_bound_is_rounded_upwards() {
        for (p, is_bound, want) in [
            (0.000_2, false, "< 0.001"),
            (0.0213, false, "0.021"),
            (2.0 / 10_001.0, true, "≤ 0.0002"),
            (24.0 / 10_001.0, true, "≤ 0.0024"),
            (0.0201, true, "≤ 0.021"),
            (0.24, true, "≤ 0.24"),
        ] {
            assert_eq!(p_value(p, is_bound), want);
        }
    }

    #[test]
    fn ticks_are_short() {
        let all = [0.0, 0.25, -0.5, 5.0, -1000.0, 20_000.0, 1e5, -1e12, 2e6];
        assert_eq!(all.map(tick), ["0", "0.25", "−0.5", "5", "−1,000", "20,000", "10⁵", "−10¹²", "2e6"]);
        assert_eq!(
            (count(0), count(43_246), count(1_000_000)),
            ("0".into(), "43,246".into(), "1,000,000".into())
        );
    }

    #[test]
    fn long_texts_are_cut_at_characters() {
        assert_eq!(shortened("a\n b", 9), "a b");
        assert_eq!(shortened("äöüäöü", 4), "äöü…");
    }
}
