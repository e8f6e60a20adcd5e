//! A tenant's rate limits over HTTP: 429 with `Retry-After`, and OpenAI's `x-ratelimit-*` headers.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header::HeaderName};

use crate::{
    accounts::tenants::{Allowance, Refusal, Tenant},
    http::error::ApiError,
};

/// Names of the headers for requests and for tokens: limit, remaining, reset.
const HEADERS: [[&str; 3]; 2] = [
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
];

/// Counts a request, of any kind: reads take time as well.
pub(crate) fn take_request(tenant: &Tenant, now: Duration) -> Result<(), ApiError> {
    Ok(tenant.meter.take_request(&tenant.limits, now)?)
}

/// Refuses a tenant whose tokens are used up, before its next prompt is read.
pub(crate) fn check_tokens(tenant: &Tenant, now: Duration) -> Result<(), ApiError> {
    Ok(tenant.meter.check_tokens(&tenant.limits, now)?)
}

/// Adds the remaining allowance of the tenant's own limits.
pub(crate) fn add_headers(tenant: &Tenant, now: Duration, headers: &mut HeaderMap) {
    for (names, allowance) in HEADERS.iter().zip(tenant.meter.allowances(&tenant.limits, now)) {
        let Some(Allowance { limit, remaining, reset }) = allowance else { continue };
        let values = [limit.to_string(), remaining.to_string(), written(reset)];
        for (name, value) in names.iter().zip(values) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

/// A duration in OpenAI's notation: `6m0s`, `1.5s`, `20ms`.
fn written(time: Duration) -> String {
    let ms = time.as_millis();
    match (ms / 60_000, ms % 60_000) {
        (0, 0..1000) => format!("{ms}ms"),
        (0, ms) => format!("{}s", ms as f64 / 1e3),
        (minutes, ms) => format!("{minutes}m{}s", ms as f64 / 1e3),
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let limited = |limit: u32, what: &str, retry_after| {
            let message = format!("this key may have {limit} {what}; try again in {}", written(retry_after));
            ApiError::rate_limited(message, retry_after)
        };
        match refusal {
            Refusal::Requests { limit, retry_after } => limited(limit, "requests per minute", retry_after),
            Refusal::Tokens { limit, retry_after } => {
                limited(limit, "tokens per minute, computed and generated", retry_after)
            }
            Refusal::Parallel { limit, retry_after } => limited(limit, "prompts at a time", retry_after),
            Refusal::TooManyPrompts { limit, prompts } => ApiError::field(
                "prompt",
                format!(
                    "the request brings {prompts} prompts, and {limit} are admitted at a time; send fewer"
                ),
            ),
            Refusal::Crowded { running } => ApiError::busy(
                format!(
                    "{running} prompts of this key wait or run, and the places left are for others; try again in 1 s"
                ),
                1,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        let check = |ms: u64, text: &str| assert_eq!(written(Duration::from_millis(ms)), text);
        check(0, "0ms");
        check(20, "20ms");
        check(1000, "1s");
        check(1500, "1.5s");
        check(60_000, "1m0s");
        check(360_000, "6m0s");
    }
}
