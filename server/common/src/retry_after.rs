//! The header `Retry-After` of a server that is busy.

use std::time::{Duration, SystemTime};

/// Parses `Retry-After` in either of its forms: seconds, or a date. A date that has passed means 0. At most
/// `u32::MAX` seconds, so that a later time exists.
#[expect(clippy::disallowed_methods, reason = "`Retry-After` may be a date")]
pub fn retry_after(text: &str) -> Option<Duration> {
    const MAX: Duration = Duration::from_secs(u32::MAX as u64);
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.parse().map_or(MAX, Duration::from_secs).min(MAX));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    Some(until.duration_since(SystemTime::now()).unwrap_or_default().min(MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "`Retry-After` may be a date")]
    fn a_pause_may_be_seconds_or_a_date() {
        let seconds = |text: &str| retry_after(text).map(|pause| pause.as_secs());
        assert_eq!((seconds(" 7 "), seconds("0")), (Some(7), Some(0)));
        assert_eq!(seconds(&"9".repeat(30)), Some(u32::MAX.into()));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        assert!(seconds(&later).is_some_and(|seconds| (60..=90).contains(&seconds)));
        assert_eq!((seconds("soon"), seconds("-1"), seconds("")), (None, None, None));
    }
}
