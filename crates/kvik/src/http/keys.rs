//! API keys: who may use the server.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

/// The keys that open the server. Only their digests are kept.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    /// With no key the server is open to all who can reach it.
    pub(crate) fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Keys {
        Keys(keys.into_iter().map(str::trim).filter(|key| !key.is_empty()).map(digest).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers may come in: `Authorization: Bearer KEY`, or
    /// `X-Api-Key: KEY` as some clients send it.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key)
        });
        let key = bearer.or_else(|| headers.get("x-api-key")?.to_str().ok());
        key.is_some_and(|key| self.holds(&digest(key.trim())))
    }

    /// Compares with every key in full, and by digests, so that the time says nothing about a key.
    fn holds(&self, offered: &[u8; 32]) -> bool {
        let mut found = false;
        for key in &self.0 {
            let difference = key.iter().zip(offered).fold(0, |bits, (a, b)| bits | (a ^ b));
            found |= difference == 0;
        }
        found
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_and_nothing_else_does() {
        let keys = Keys::new(["alpha", " beta\n", ""]);
        let check = |name: &'static str, value: &str, admitted: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(keys.admit(&headers), admitted, "{name}: {value}");
        };
        check("authorization", "Bearer alpha", true);
        check("authorization", "bearer beta", true);
        check("x-api-key", "beta", true);
        check("authorization", "Bearer alph", false);
        check("authorization", "Bearer alphaa", false);
        check("authorization", "Bearer ", false);
        check("authorization", "alpha", false);
        check("authorization", "Basic alpha", false);
        check("x-api-key", "", false);
        assert!(!keys.admit(&HeaderMap::new()));
    }

    #[test]
    fn without_keys_all_may_come() {
        assert!(Keys::new([]).admit(&HeaderMap::new()));
        assert!(Keys::new([" "]).admit(&HeaderMap::new()));
    }

    #[test]
    fn debug_output_shows_no_key() {
        assert_eq!(format!("{:?}", Keys::new(["secret"])), "Keys(1)");
    }
}
