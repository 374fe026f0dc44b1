//! Readings of numbers: tables, and properties over drawn texts.

use super::*;

fn check(table: &[(&str, Option<f64>)]) {
    for (text, want) in table {
        assert_eq!(last_number(text).map(f64::to_bits), want.map(f64::to_bits), "input {text:?}");
    }
}

#[test]
fn last_number_is_read_as_a_person_would() {
    check(&[
        ("She has 18 eggs.", Some(18.0)),
        ("#### 1,234.50", Some(1234.5)),
        ("it fell to -3", Some(-3.0)),
        ("from 7 to 9", Some(9.0)),
        ("1e3", Some(1000.0)),
        ("none left", None),
        ("", None),
        ("the answer is 42.", Some(42.0)),
        ("0.1 or .5", Some(0.5)),
        ("rises by +7%", Some(7.0)),
        ("007", Some(7.0)),
        ("-0", Some(0.0)),
        ("7/3", Some(3.0)),
    ]);
}

#[test]
fn a_minus_is_a_sign_only_if_there_is_nothing_to_subtract_from() {
    check(&[
        ("10-3", Some(3.0)),
        ("10 - 3", Some(3.0)),
        ("10 -3", Some(-3.0)),
        ("- 142", Some(-142.0)),
        ("\u{2212}4", Some(-4.0)),
        ("x = - 4", Some(-4.0)),
        ("answer: - 4", Some(-4.0)),
        ("cost - 5", Some(5.0)),
        ("B-52", Some(52.0)),
        ("(2)-3", Some(3.0)),
        ("(-3)", Some(-3.0)),
        ("pages 3\u{2212}4", Some(4.0)),
        ("-$5", Some(-5.0)),
        ("-.5", Some(-0.5)),
        ("3 - -4", Some(-4.0)),
        ("--4", Some(4.0)),
    ]);
}

#[test]
fn commas_separate_thousands_only_in_groups_of_three() {
    check(&[
        ("1,234", Some(1234.0)),
        ("12,345,678", Some(12_345_678.0)),
        ("1,23", Some(23.0)),
        ("1,234,56", Some(56.0)),
        ("1234,567", Some(567.0)),
        ("3, 4", Some(4.0)),
        ("1,", Some(1.0)),
        ("1,234,", Some(1234.0)),
    ]);
}

#[test]
fn points_and_exponents_need_digits_after_them() {
    check(&[
        ("2.5E-4", Some(2.5e-4)),
        ("1e", Some(1.0)),
        ("1e+", Some(1.0)),
        ("5e3x", Some(3.0)),
        ("3 eggs", Some(3.0)),
        ("3.5.2", Some(2.0)),
        ("end.5", Some(5.0)),
        ("...5", Some(5.0)),
        ("v1.", Some(1.0)),
    ]);
}

#[test]
fn values_that_overflow_are_not_numbers() {
    check(&[("1e999", None), ("7 then 1e999", Some(7.0)), ("1e-999", Some(0.0)), ("NaN inf", None)]);
}

#[test]
fn digits_of_every_script_are_digits() {
    check(&[
        ("答えは１２３です", Some(123.0)),
        ("１，２３４．５", Some(1234.5)),
        ("（－５）", Some(-5.0)),
        ("（５）－３", Some(3.0)),
        ("الجواب ٤٢", Some(42.0)),
        ("١٬٢٣٤٫٥", Some(1234.5)),
        ("उत्तर १,००,०००", Some(100_000.0)),
        ("၁၂", Some(12.0)),
        ("𝟏𝟐e𝟑", Some(12_000.0)),
        ("x²", None),
        ("Ⅷ", None),
        ("⑧", None),
    ]);
}

#[test]
fn commas_and_underscores_separate_thousands_or_lakhs() {
    check(&[
        ("₹1,00,000", Some(100_000.0)),
        ("12,34,567.89", Some(1_234_567.89)),
        ("1,00,00,000", Some(10_000_000.0)),
        ("100,00,000", Some(0.0)),
        ("1,00,00", Some(0.0)),
        ("1,000,00", Some(0.0)),
        ("1,00", Some(0.0)),
        ("1_000", Some(1000.0)),
        ("1_000_000.5", Some(1_000_000.5)),
        ("1_00_000", Some(100_000.0)),
        ("1_000,000", Some(0.0)),
        ("1_0", Some(0.0)),
        ("2024_01_05", Some(5.0)),
        ("1__000", Some(0.0)),
        ("1_", Some(1.0)),
    ]);
}

#[test]
fn a_fraction_in_one_character_is_a_number_or_ends_one() {
    check(&[
        ("½", Some(0.5)),
        ("1½", Some(1.5)),
        ("2 ¾ cups", Some(2.75)),
        ("1,000⅓", Some(3001.0 / 3.0)),
        ("-1½", Some(-1.5)),
        ("\u{2212}½", Some(-0.5)),
        ("$1½", Some(1.5)),
        ("a½", Some(0.5)),
        ("½ of 8", Some(8.0)),
        ("1.5½", Some(0.5)),
        ("½-½", Some(0.5)),
        ("1\n½", Some(0.5)),
        ("½5", Some(5.0)),
        ("↉", Some(0.0)),
        ("⅒", Some(0.1)),
    ]);
}

#[test]
fn every_currency_symbol_is_read_like_a_dollar() {
    for symbol in ['$', '€', '£', '¥', '₹', '₩', '₽', '₺', '₿', '¢', '฿', '₫', '₪', '₴', '￥', '﷼', '៛', '＄']
    {
        for (text, want) in [
            ("-$5", -5.0),
            ("$5", 5.0),
            ("$-5", -5.0),
            ("- $5.00", -5.0),
            ("$ - 5", -5.0),
            ("10-$3", 3.0),
            ("5 $", 5.0),
        ] {
            let text = text.replace('$', &symbol.to_string());
            assert_eq!(last_number(&text), Some(want), "{text:?}");
        }
    }
}

#[test]
fn only_spaces_a_currency_symbol_and_a_last_point_may_surround_a_number() {
    for (text, want) in [
        ("18", Some(18.0)),
        (" -$1,234.50\n", Some(-1234.5)),
        ("₹1,00,000", Some(100_000.0)),
        ("1_000", Some(1000.0)),
        ("1½", Some(1.5)),
        ("１２", Some(12.0)),
        ("- 5", Some(-5.0)),
        ("$-5", Some(-5.0)),
        ("€ 5", Some(5.0)),
        ("+7", Some(7.0)),
        (".5", Some(0.5)),
        ("5.", Some(5.0)),
        ("1e3", Some(1000.0)),
        ("1e999", None),
        ("5 apples", None),
        ("5 $", None),
        ("--5", None),
        ("-+5", None),
        ("$$5", None),
        ("3, 4", None),
        ("1,5", None),
        ("1,234,56", None),
        ("7/3", None),
        ("5..", None),
        ("..5", None),
        ("B-52", None),
        ("(5)", None),
        ("$", None),
        ("", None),
    ] {
        assert_eq!(whole_number(text), want, "{text:?}");
    }
}

#[test]
fn a_fraction_is_two_integers_and_nothing_else() {
    for (text, want) in [
        (" -7/2 ", Some(-3.5)),
        ("\u{2212}7/2", Some(-3.5)),
        ("１/４", Some(0.25)),
        ("1\u{2044}2", Some(0.5)),
        ("so 7/2", None),
        ("7/2/3", None),
        ("1/0", None),
        ("3/", None),
        ("/3", None),
        ("1.5/2", None),
        ("½", None),
    ] {
        assert_eq!(fraction(text), want, "{text:?}");
    }
}

#[test]
fn a_decimal_comma_is_recognised_if_the_text_is_not_a_number_otherwise() {
    for (text, want) in [
        ("1,5", Some("1.5")),
        (" -0,25", Some("-0.25")),
        ("1.234,50", Some("1234.50")),
        ("1,234", None),
        ("1,2,3", None),
        ("1.5,3", None),
        ("1, 5", None),
        ("1.5", None),
        ("a,5", None),
        (",", None),
    ] {
        assert_eq!(with_decimal_point(text).as_deref(), want, "{text:?}");
    }
}

/// Draws from `0..count` by a linear congruential generator.
struct Draws(u64);

impl Draws {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Groups the digits of an integer from the right: the first group has three digits, the others have `size`.
fn grouped(digits: &str, separator: char, size: usize) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().rev().enumerate() {
        if index >= 3 && (index - 3).is_multiple_of(size) {
            text.insert(0, separator);
        }
        text.insert(0, digit);
    }
    text
}

#[test]
fn a_written_number_is_read_back_in_every_style() {
    let mut draws = Draws(2);
    for _ in 0..20_000 {
        let integer = draws.below(1 << 31) >> draws.below(31);
        let mut text = integer.to_string();
        if draws.below(2) == 0 {
            let separator = draws.pick(&[',', '_']);
            let size = draws.pick(&[2, 3]);
            text = grouped(&text, separator, size);
        }
        let mut want = integer as f64;
        match draws.below(4) {
            0 => {
                let (fraction, above, below) = draws.pick(&VULGAR_FRACTIONS);
                text.push(fraction);
                want = (want * below + above) / below;
            }
            1 => {
                let decimals = draws.below(1000);
                text = format!("{text}.{decimals:03}");
                want = format!("{integer}.{decimals:03}").parse().unwrap();
            }
            _ => {}
        }
        let zero = draws.pick(&['0', '٠', '०', '０', '𝟎']);
        text = text
            .chars()
            .map(|c| c.to_digit(10).and_then(|digit| char::from_u32(u32::from(zero) + digit)).unwrap_or(c))
            .collect();
        let symbol = draws.pick(&["", "$", "₹", "€ "]);
        let sign = draws.pick(&["", "-", "\u{2212}", "- "]);
        if !sign.is_empty() {
            want = 0.0 - want;
        }
        let number = format!("{sign}{symbol}{text}");
        assert_eq!(whole_number(&number), Some(want), "{number:?}");
        for sentence in
            [format!("{number}."), format!("So it is: {number} in all."), format!("1, 2 = {number}")]
        {
            assert_eq!(last_number(&sentence), Some(want), "{sentence:?}");
        }
    }
}

#[test]
fn any_text_is_read_without_a_panic_and_a_whole_number_as_the_last_one() {
    let pieces = [
        "-", "1", "23", "000", ",", "_", ".", "e", "+", " ", "\u{2212}", "$", "₹", "é", "٣", "(", "½", "/",
        "，", "５",
    ];
    let mut draws = Draws(1);
    let mut whole_count = 0;
    for _ in 0..50_000 {
        let text: String = (0..1 + draws.below(8)).map(|_| draws.pick(&pieces)).collect();
        let last = last_number(&text);
        assert!(last.is_none_or(f64::is_finite), "{text:?}");
        if let Some(value) = whole_number(&text) {
            assert_eq!(last, Some(value), "{text:?}");
            whole_count += 1;
        }
        if let Some(pointed) = with_decimal_point(&text) {
            assert!(whole_number(&pointed).is_some() && whole_number(&text).is_none(), "{text:?}");
        }
        assert!(fraction(&text).is_none_or(f64::is_finite), "{text:?}");
        // The same digits in another script have the same value.
        let other: String = text
            .chars()
            .map(|c| c.to_digit(10).and_then(|d| char::from_u32(0x966 + d)).unwrap_or(c))
            .collect();
        assert_eq!(last_number(&other), last, "{text:?}");
    }
    assert!(whole_count > 1000, "{whole_count}");
}
