//! The configuration of a store: its address, the fleet's key, and limits.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kvik_engine::store::Waker;
use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};
use url::Url;

use crate::error::RemoteError;

/// Default time to live of a value after its last use.
pub const TTL_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// Default minimum time limit of a response: the store's own thread has other things to do.
pub const DEADLINE_MIN: Duration = Duration::from_millis(50);

/// The configuration for opening a store.
#[derive(Clone)]
pub struct RemoteConfig {
    /// The address of the store.
    pub url: RemoteUrl,
    /// The secret that all nodes of the fleet share.
    pub key: FleetKey,
    /// Digest of everything that determines the bits of a block: model, KV format, layout, device.
    pub fingerprint: [u8; 32],
    /// Bytes of one block's keys and values; not 0.
    pub payload_bytes: usize,
    /// Time to live of a value after its last use, unless its request sets one.
    pub ttl: Duration,
    /// The limits of its size.
    pub budget: Budget,
    /// Minimum time limit of a response, even where the store is measured to be faster.
    pub deadline_min: Duration,
    /// Wakes the engine when an operation has completed.
    pub waker: Waker,
}

/// Limits of the bytes that the fleet stores.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    /// Limit of all owners together; `None` for no limit.
    pub total: Option<u64>,
    /// Limit of each owner; `None` for the total limit only.
    pub owner: Option<u64>,
}

/// The secret of a fleet, from which names and keys are derived.
#[derive(Clone)]
pub struct FleetKey(pub(crate) [u8; 32]);

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetKey(secret)")
    }
}

impl FleetKey {
    /// A key from its bytes.
    pub fn new(bytes: [u8; 32]) -> FleetKey {
        FleetKey(bytes)
    }

    /// Generates a key, as the text that [`FleetKey::parse`] reads.
    ///
    /// # Errors
    /// [`RemoteError::System`] if the system has no random numbers.
    pub fn generate() -> Result<String, RemoteError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| RemoteError::System(error.into()))?;
        Ok(BASE64_STANDARD.encode(bytes))
    }

    /// Parses a key of 32 bytes, in base64 or as hexadecimal digits.
    ///
    /// # Errors
    /// [`RemoteError::BadKey`] for anything else.
    pub fn parse(text: &str) -> Result<FleetKey, RemoteError> {
        let text = text.trim();
        let bytes = match blake3::Hash::from_hex(text) {
            Ok(bytes) => return Ok(FleetKey(*bytes.as_bytes())),
            Err(_) => BASE64_STANDARD.decode(text).unwrap_or_default(),
        };
        let bytes: [u8; 32] =
            bytes.try_into().map_err(|bytes: Vec<u8>| RemoteError::BadKey { bytes: bytes.len() })?;
        Ok(FleetKey(bytes))
    }

    /// Derives another secret of the fleet for one purpose, which is the `context` of BLAKE3's key derivation.
    pub fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }

    /// Reads a key from a file.
    ///
    /// # Errors
    /// [`RemoteError::NoKey`] and [`RemoteError::BadKey`].
    pub fn read(path: &Path) -> Result<FleetKey, RemoteError> {
        let text = read_small_text(path, SETTINGS_BYTES_MAX)
            .map_err(|source| RemoteError::NoKey { path: path.to_owned(), source })?;
        FleetKey::parse(&text)
    }
}

/// The address of a store. It is displayed without secrets.
#[derive(Clone)]
pub struct RemoteUrl {
    pub(crate) place: Place,
    shown: String,
}

#[derive(Clone)]
pub(crate) enum Place {
    /// The URL has the scheme `redis://`, even with TLS.
    Redis {
        url: Url,
        tls: bool,
    },
    S3 {
        bucket: String,
        prefix: String,
    },
    Directory(PathBuf),
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteUrl({})", self.shown)
    }
}

impl RemoteUrl {
    /// Parses an address.
    ///
    /// # Errors
    /// [`RemoteError::UnknownScheme`] and [`RemoteError::BadUrl`].
    pub fn parse(text: &str) -> Result<RemoteUrl, RemoteError> {
        let bad = |reason: &str| RemoteError::BadUrl { reason: reason.to_owned() };
        let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
        let place = match url.scheme() {
            "redis" | "rediss" => redis(&url).ok_or_else(|| bad("it has no host"))?,
            "s3" => s3(&url).ok_or_else(|| bad("it has no bucket: s3://BUCKET/PREFIX"))?,
            "file" => Place::Directory(
                url.to_file_path()
                    .map_err(|()| bad("a directory is written with three strokes: file:///DIRECTORY"))?,
            ),
            scheme => return Err(RemoteError::UnknownScheme { scheme: scheme.to_owned() }),
        };
        Ok(RemoteUrl { place, shown: without_secrets(url) })
    }
}

/// The address without user, password and query.
fn without_secrets(url: Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

fn redis(url: &Url) -> Option<Place> {
    url.host_str().filter(|host| !host.is_empty())?;
    let tls = url.scheme() == "rediss";
    // The crate parses `rediss` only with its own TLS enabled.
    let plain = url.as_str().replacen("rediss://", "redis://", 1);
    Some(Place::Redis { url: Url::parse(&plain).ok()?, tls })
}

fn s3(url: &Url) -> Option<Place> {
    let bucket = url.host_str().filter(|bucket| !bucket.is_empty())?;
    Some(Place::S3 { bucket: bucket.to_owned(), prefix: url.path().trim_matches('/').to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_secrets() {
        for (text, shown) in [
            ("redis://:pass@host:6380/2", "redis://host:6380/2"),
            ("rediss://user:pass@host", "rediss://host"),
            ("s3://bucket/a/b/", "s3://bucket/a/b/"),
            ("file:///shared/dir", "file:///shared/dir"),
            ("redis://host?password=pass", "redis://host"),
        ] {
            let url = RemoteUrl::parse(text).unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("pass"));
        }
    }

    #[test]
    fn other_addresses_are_refused_with_a_remedy() {
        for text in
            ["http://host", "redis://", "s3:///prefix", "file://host/dir", "host:6379", "", "rediss:///0"]
        {
            let error = RemoteUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains("address") || error.contains("redis://HOST:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn keys_are_32_bytes_in_either_form() {
        let text = FleetKey::generate().unwrap();
        let key = FleetKey::parse(&text).unwrap();
        let hex = blake3::Hash::from_bytes(key.0).to_hex();
        assert_eq!(FleetKey::parse(&format!("{hex}\n")).unwrap().0, key.0);
        assert_eq!(format!("{key:?}"), "FleetKey(secret)");
        for text in ["", "secret", &hex[1..], &text[4..], &format!("{hex}00")] {
            assert!(FleetKey::parse(text).is_err(), "{text}");
        }
    }
}
