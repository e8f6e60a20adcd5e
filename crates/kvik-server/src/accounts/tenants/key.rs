//! API keys. The server keeps only their digests, so a leaked file grants no access.
//!
//! A single round of SHA-256 is enough: a key made by `kvik tenant key` has 256 random bits, which a slower
//! hash would not protect better.

use std::{fmt, str::FromStr};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use kvik_memory::hex;

/// Prefix of every generated key, by which people and secret scanners recognise it.
const KEY_PREFIX: &str = "kvik-";
/// Prefix of a digest in the tenants file.
const DIGEST_PREFIX: &str = "sha256:";

/// The SHA-256 of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of a key as a client sends it.
    pub fn of(key: &str) -> KeyDigest {
        KeyDigest(Sha256::digest(key.trim().as_bytes()).into())
    }

    /// Compares in constant time, so that timing does not reveal where two digests differ.
    pub(crate) fn equals(&self, other: &KeyDigest) -> bool {
        self.0.iter().zip(other.0).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
    }
}

impl FromStr for KeyDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyDigest, String> {
        let bad =
            || format!("`{text}` is not `sha256:` and 64 hexadecimal digits; `kvik tenant key` prints one");
        let digits = text.strip_prefix(DIGEST_PREFIX).ok_or_else(bad)?;
        hex::read(digits).map(KeyDigest).ok_or_else(bad)
    }
}

impl TryFrom<String> for KeyDigest {
    type Error = String;

    fn try_from(text: String) -> Result<KeyDigest, String> {
        text.parse()
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DIGEST_PREFIX}{}", hex::written(self.0))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(..)")
    }
}

/// A new key for the tenant `name`.
pub fn new_key(name: &str) -> Result<String, getrandom::Error> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits)?;
    Ok(format!("{KEY_PREFIX}{name}-{}", hex::written(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha256_and_reads_back() {
        // `printf %s alpha | sha256sum`
        let alpha = "sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";
        assert_eq!(KeyDigest::of("alpha").to_string(), alpha);
        assert_eq!(KeyDigest::of(" alpha\n"), alpha.parse().unwrap());
        assert_eq!(alpha.to_uppercase().replace("SHA", "sha").parse(), Ok(KeyDigest::of("alpha")));
    }

    #[test]
    fn invalid_digests_are_refused_with_the_remedy() {
        let short = format!("sha256:{}", "a".repeat(63));
        let accent = format!("sha256:{}é", "a".repeat(62));
        for text in
            ["", "alpha", "sha256:", "md5:00", &short, &accent, &format!("sha256:+{}", "a".repeat(63))]
        {
            let error = text.parse::<KeyDigest>().expect_err(text);
            assert!(error.contains("kvik tenant key"), "{error}");
        }
    }

    #[test]
    fn digests_are_equal_in_all_bytes_or_not_at_all() {
        let digest = KeyDigest::of("alpha");
        assert!(digest.equals(&KeyDigest::of("alpha")));
        for byte in 0..32 {
            let mut other = digest;
            other.0[byte] ^= 1;
            assert!(!digest.equals(&other), "byte {byte} counts");
        }
    }

    #[test]
    fn every_key_is_new_and_names_its_tenant() {
        let (one, other) = (new_key("acme").unwrap(), new_key("acme").unwrap());
        assert_ne!(one, other);
        assert!(one.starts_with("kvik-acme-") && one.len() == "kvik-acme-".len() + 64, "{one}");
    }

    #[test]
    fn debug_output_shows_no_digest() {
        assert_eq!(format!("{:?}", KeyDigest::of("alpha")), "KeyDigest(..)");
    }
}
