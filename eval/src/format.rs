//! Numbers and texts in reports: short, and the same everywhere.

use crate::stats::Interval;

/// Smaller values are rounding errors of sums that are 0.
const ZERO: f64 = 1e-12;

/// Four significant digits or four decimals, whichever is shorter; more decimals for tiny numbers. Whole numbers are written
/// in full, long numbers with an exponent.
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

/// A dash for what is not defined.
pub fn optional_number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

/// `low to high`.
pub fn interval(interval: Interval) -> String {
    format!("{} to {}", number(interval.low), number(interval.high))
}

/// Three decimals, and no false zero.
pub fn p_value(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}

/// With thousands apart.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(String::from_utf8_lossy).collect::<Vec<_>>().join(",")
}

/// As few digits as tell one tick of an axis from the next: `0.25`, `1,000`, `10⁶`.
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

/// A power of ten or its negative: `−10⁶`, `100`, `0.01`.
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

/// The first `most` characters on one line, with an ellipsis where some are left out.
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
    fn figures_have_four_digits_that_count() {
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
        assert_eq!((p_value(0.000_2), p_value(0.0213)), ("< 0.001".to_owned(), "0.021".to_owned()));
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
