//! Reads the end of a certificate's validity from its DER form (RFC 5280, section 4.1), for a warning at the
//! start.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// A part of a certificate, and what follows it.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

/// The end of the validity of a certificate; `None` where it is not written as the standard says.
pub(super) fn not_after(der: &[u8]) -> Option<Timestamp> {
    let certificate = Element::tagged(der, SEQUENCE)?;
    let signed = Element::tagged(certificate.content, SEQUENCE)?.content;
    // The version may be missing.
    let mut fields = Element::tagged(signed, VERSION).map_or(signed, |version| version.rest);
    for _before_validity in ["serial number", "signature algorithm", "issuer"] {
        fields = Element::first(fields)?.rest;
    }
    let not_before = Element::first(Element::tagged(fields, SEQUENCE)?.content)?;
    let not_after = Element::first(not_before.rest)?;
    let text = std::str::from_utf8(not_after.content).ok()?.strip_suffix('Z')?;
    let written = match not_after.tag {
        // Years of two digits are from 1950 to 2049.
        UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let civil = DateTime::strptime("%Y%m%d%H%M%S", written).ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

impl<'a> Element<'a> {
    /// The element at the beginning of `der`.
    fn first(der: &'a [u8]) -> Option<Self> {
        let (&[tag, first], rest) = der.split_first_chunk()?;
        let (length, rest) = match first {
            0..0x80 => (usize::from(first), rest),
            _ => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let mut length = 0_usize;
                for &byte in bytes {
                    length = length.checked_mul(256)?.checked_add(usize::from(byte))?;
                }
                (length, rest)
            }
        };
        let (content, rest) = rest.split_at_checked(length)?;
        Some(Self { tag, content, rest })
    }

    /// The element at the beginning of `der`, if it has this tag.
    fn tagged(der: &'a [u8], tag: u8) -> Option<Self> {
        Self::first(der).filter(|element| element.tag == tag)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read_and_nothing_from_what_is_none() {
        let key = KeyPair::generate().unwrap();
        for (year, want) in
            [(2020, "2020-02-03T00:00:00Z"), (2049, "2049-02-03T00:00:00Z"), (2060, "2060-02-03T00:00:00Z")]
        {
            let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(year, 2, 3);
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(not_after(certificate.der()), Some(want.parse().unwrap()));
            for cut in 0..certificate.der().len().min(200) {
                assert_eq!(not_after(&certificate.der()[..cut]), None);
            }
        }
        assert_eq!(not_after(&[0x30, 0xff, 1, 1]), None);
    }
}
