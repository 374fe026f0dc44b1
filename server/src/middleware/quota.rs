//! The quotas of API keys: a request that exceeds its key's is rejected before any work, and responses report
//! the limits in OpenAI's headers.
//!
//! A request is counted when it begins, its tokens when they are known ([`RequestRecord`]). Reading routes
//! (`GET`) are not counted.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::AppError;
use crate::keys::ClientKey;
use crate::quota::{KeyQuota, Rate, Unit};
use crate::request::RequestRecord;
use crate::state::AppState;

/// The headers with the maximum, the remaining requests, and the time until all of them are available.
pub(super) const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];

/// The same for tokens.
pub(super) const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Passes requests that fit the quota of their key. Runs inside the layer that checks keys.
pub(crate) async fn check(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let Some(quota) = quota_of(&app, &request) else { return next.run(request).await };
    let mut response = match quota.begin() {
        Ok(()) => {
            if let Some(record) = request.extensions().get::<Arc<RequestRecord>>() {
                record.set_quota(quota.clone());
            }
            next.run(request).await
        }
        Err(exceeded) => AppError::from(exceeded).into_response(),
    };
    add_headers(response.headers_mut(), &quota);
    response
}

fn quota_of(app: &AppState, request: &Request) -> Option<KeyQuota> {
    if request.method().is_safe() {
        return None;
    }
    let key: &ClientKey = request.extensions().get()?;
    app.quotas.of(key.id(), key.quota)
}

fn add_headers(headers: &mut HeaderMap, quota: &KeyQuota) {
    for (unit, names) in [(Unit::Requests, REQUESTS), (Unit::Tokens, TOKENS)] {
        let Some(Rate { max, remaining, reset }) = quota.rate(unit) else { continue };
        // A time is plain text.
        let Ok(reset) = HeaderValue::try_from(duration(reset)) else { continue };
        for (name, value) in names.into_iter().zip([max.into(), remaining.into(), reset]) {
            headers.insert(name, value);
        }
    }
}

/// A time as OpenAI writes it, such as `8.64s` or `6m0s`, rounded up to milliseconds.
fn duration(time: Duration) -> String {
    let milliseconds = time.as_nanos().div_ceil(1_000_000);
    let minutes = milliseconds / 60_000;
    let seconds = (milliseconds % 60_000) as f64 / 1e3;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_units_that_they_need_and_are_rounded_up() {
        for (nanoseconds, want) in [
            (0, "0s"),
            (1, "0.001s"),
            (8_640_000_000, "8.64s"),
            (59_999_000_001, "1m0s"),
            (360_000_000_000, "6m0s"),
            (86_400_000_000_000, "24h0m0s"),
            (3_723_500_000_000, "1h2m3.5s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), want);
        }
    }
}
