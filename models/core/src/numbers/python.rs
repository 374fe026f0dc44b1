//! Python's rules for digits, white space and `float`, on which the reference tokenizers and losses depend.
//!
//! In: characters and strings. Invariant: [`parse_float`] yields finite values only.

/// The zero of every run of ten decimal digits (`\d`, general category Nd) in Unicode 14, the version that
/// Python 3.11 has.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50,
    0xED0, 0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40,
    0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x11066,
    0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x11730, 0x118E0, 0x11950,
    0x11C50, 0x11D50, 0x11DA0, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6,
    0x1E140, 0x1E2F0, 0x1E950, 0x1FBF0,
];

/// The value of a decimal digit of any script.
pub fn digit_value(character: char) -> Option<u8> {
    let code = u32::from(character);
    let zero = ZEROS[..ZEROS.partition_point(|&zero| zero <= code)].last()?;
    u8::try_from(code - zero).ok().filter(|&value| value < 10)
}

/// The characters that `str.strip` removes: Unicode's white space and four ASCII separators.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&character)
}

/// `float(text)`, without the infinities and NaN.
pub fn parse_float(text: &str) -> Option<f64> {
    let mut ascii = String::with_capacity(text.len());
    let mut characters = text.trim_matches(is_space).chars().peekable();
    while let Some(character) = characters.next() {
        match (character, digit_value(character)) {
            (_, Some(value)) => ascii.push(char::from(b'0' + value)),
            ('+' | '-' | '.' | 'e' | 'E', _) => ascii.push(character),
            // An underscore is allowed only between two digits.
            ('_', _)
                if ascii.ends_with(|last: char| last.is_ascii_digit())
                    && characters.peek().is_some_and(|&next| digit_value(next).is_some()) => {}
            _ => return None,
        }
    }
    ascii.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_every_script_have_their_value_and_nothing_else_has_one() {
        for (character, want) in [
            ('0', Some(0)),
            ('9', Some(9)),
            ('٣', Some(3)),
            ('９', Some(9)),
            ('𝟗', Some(9)),
            ('/', None),
            (':', None),
            ('½', None),
            ('²', None),
            ('Ⅷ', None),
            ('a', None),
        ] {
            assert_eq!(digit_value(character), want, "{character}");
        }
    }

    #[test]
    fn a_float_is_any_text_that_python_reads_as_one() {
        for (text, want) in [
            ("12", Some(12.0)),
            ("-1", Some(-1.0)),
            ("+2", Some(2.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            (".00", Some(0.0)),
            ("1e5", Some(1e5)),
            ("1E-5", Some(1e-5)),
            ("1_000", Some(1000.0)),
            ("٣", Some(3.0)),
            (" 7\n", Some(7.0)),
            ("", None),
            (".", None),
            ("-", None),
            ("e5", None),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("1_.5", None),
            ("1,5", None),
            ("0x1F", None),
            ("(1", None),
            ("nan", None),
            ("inf", None),
            ("-Infinity", None),
            ("1e999", None),
        ] {
            assert_eq!(parse_float(text), want, "{text:?}");
        }
    }
}
