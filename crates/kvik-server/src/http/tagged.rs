//! Content that does not change while the server runs: a client that has it gets `304 Not Modified`.

use std::borrow::Cow;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use kvik_memory::hex;

/// A file with its `ETag`.
#[derive(Clone)]
pub(crate) struct Tagged {
    pub(crate) kind: &'static str,
    pub(crate) bytes: Cow<'static, [u8]>,
    /// Hash of the bytes, in the form of `ETag`.
    pub(crate) tag: HeaderValue,
}

impl Tagged {
    /// Bytes of a media type, with their hash.
    pub(crate) fn new(kind: &'static str, bytes: Cow<'static, [u8]>, hash: &[u8; 32]) -> Tagged {
        let tag = format!("\"{}\"", hex::written(&hash[..16]));
        Tagged { kind, bytes, tag: HeaderValue::try_from(tag).expect("hexadecimal digits are a header") }
    }

    /// Sends the bytes, unless the client has them already.
    pub(crate) fn answer(self, headers: &HeaderMap) -> Response {
        let is_known = self.is_in(headers);
        let about = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.kind)),
            (header::ETAG, self.tag),
            // Revalidated each time, so that the client's copy and the server are of the same version.
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ];
        match is_known {
            true => (StatusCode::NOT_MODIFIED, about).into_response(),
            false => (about, self.bytes).into_response(),
        }
    }

    /// True if the client has these bytes.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let lists = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
        let mut tags = lists.flat_map(|list| list.split(',')).map(|tag| tag.trim().trim_start_matches("W/"));
        tags.any(|known| known == "*" || self.tag == known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_the_bytes_gets_none() {
        let file = Tagged::new("text/plain", b"bytes"[..].into(), &[7; 32]);
        let check = |known: &str, expect: u16| {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, known.parse().unwrap())]);
            assert_eq!(file.clone().answer(&headers).status().as_u16(), expect, "{known}");
        };
        let tag = file.tag.to_str().unwrap();
        for known in [tag, "*", &format!("W/{tag}"), &format!("\"x\", {tag}")] {
            check(known, 304);
        }
        for known in ["", "\"x\"", tag.trim_matches('"')] {
            check(known, 200);
        }
    }
}
