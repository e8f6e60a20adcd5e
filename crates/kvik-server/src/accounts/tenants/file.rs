//! The tenants file: TOML, applied only when all of it is valid.

use std::{
    collections::BTreeMap,
    io,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};
use serde::Deserialize;

use super::{KeyDigest, Share, TenantLimits};
use crate::accounts::prices::Prices;
use kvik_serving::{settings::size::ByteSize, system::warn_if_readable_by_others};

/// Maximum number of tenants of a server; each has its metrics and a ledger row per day and model.
const TENANTS_MAX: usize = 10_000;
/// Valid weights; larger ratios are errors and would starve the other tenants.
const WEIGHTS: std::ops::RangeInclusive<f64> = 0.001..=1000.0;

/// Reasons why the file cannot be used.
#[allow(missing_docs, reason = "the error texts name the fields")]
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("the tenants file {} cannot be read: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The file is not TOML, or has unknown keys.
    #[error("the tenants file {} is not valid: {error}", path.display())]
    Toml { path: PathBuf, error: toml::de::Error },
    /// A value is not usable.
    #[error("the tenants file {}: {what}", path.display())]
    Wrong { path: PathBuf, what: String },
}

/// A table `[tenant.NAME]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TenantSpec {
    /// Digests of its API keys.
    pub keys: Vec<KeyDigest>,
    /// Isolation of its cached prompts.
    #[serde(default)]
    pub share: Share,
    /// Share of the model and the cache, relative to other tenants.
    #[serde(default = "one")]
    pub weight: f64,
    /// Maximum bytes in RAM.
    pub ram: Option<ByteSize>,
    /// Maximum bytes on disk.
    pub disk: Option<ByteSize>,
    /// Maximum bytes of pinned prompts.
    pub pin: Option<ByteSize>,
    /// Rate limit of requests.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Rate limit of tokens.
    pub tokens_per_minute: Option<NonZeroU32>,
    /// Maximum requests at the same time.
    pub parallel: Option<NonZeroU32>,
    /// Prices of its tokens.
    pub prices: Option<Prices>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsFile {
    #[serde(default)]
    tenant: BTreeMap<String, TenantSpec>,
}

impl TenantSpec {
    pub(crate) fn limits(&self) -> TenantLimits {
        TenantLimits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            parallel: self.parallel,
        }
    }
}

fn one() -> f64 {
    1.0
}

/// Reads the file and checks all of it. Tenants are in the order of their names.
pub fn read(path: &Path) -> Result<BTreeMap<String, TenantSpec>, FileError> {
    let owned = || path.to_owned();
    let text =
        read_small_text(path, SETTINGS_BYTES_MAX).map_err(|error| FileError::Io { path: owned(), error })?;
    warn_if_readable_by_others(path, "the tenants file");
    let file: TenantsFile =
        toml::from_str(&text).map_err(|error| FileError::Toml { path: owned(), error })?;
    check(&file.tenant).map_err(|what| FileError::Wrong { path: owned(), what })?;
    Ok(file.tenant)
}

fn check(tenants: &BTreeMap<String, TenantSpec>) -> Result<(), String> {
    if tenants.is_empty() {
        return Err("it names no tenant; write [tenant.NAME] with keys = [...]".to_owned());
    }
    if tenants.len() > TENANTS_MAX {
        return Err(format!("it names {} tenants, the limit is {TENANTS_MAX}", tenants.len()));
    }
    let mut owners = BTreeMap::new();
    for (name, spec) in tenants {
        check_name(name)?;
        if !WEIGHTS.contains(&spec.weight) {
            return Err(format!("the weight of `{name}` is {}; it must be from 0.001 to 1000", spec.weight));
        }
        if spec.keys.is_empty() {
            return Err(format!("`{name}` has no key; `kvik tenant key {name}` makes one"));
        }
        for key in &spec.keys {
            if let Some(other) = owners.insert(key, name) {
                return Err(format!("a key of `{name}` is also a key of `{other}`; a key names one tenant"));
            }
        }
    }
    Ok(())
}

/// Restricts names to plain characters, because metrics, logs and the ledger contain them.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err(format!("`{name}` is not a tenant's name; use 1 to 64 of A-Z a-z 0-9 - _ ."));
    }
    if name == super::DEFAULT_NAME {
        return Err(format!("`{name}` is the tenant of clients with an --api-key; choose another name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parse(text: &str) -> Result<BTreeMap<String, TenantSpec>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenants.toml");
        fs::write(&path, text).unwrap();
        read(&path).map_err(|error| error.to_string())
    }

    fn key(text: &str) -> String {
        format!("\"{}\"", KeyDigest::of(text))
    }

    #[test]
    fn every_field_is_read() {
        let text = format!(
            "[tenant.acme]
             keys = [{}, {}]
             share = \"public-prompts\"
             weight = 2.5
             ram = \"2GiB\"
             disk = \"4GiB\"
             pin = \"1GiB\"
             requests-per-minute = 600
             tokens-per-minute = 100000
             parallel = 4
             prices = {{ input = 2.5, cached = 0.1, output = 5 }}
             [tenant.beta]
             keys = [{}]",
            key("one"),
            key("two"),
            key("three")
        );
        let tenants = parse(&text).unwrap();
        let acme = &tenants["acme"];
        assert_eq!(acme.keys, [KeyDigest::of("one"), KeyDigest::of("two")]);
        assert_eq!((acme.share, acme.weight), (Share::PublicPrompts, 2.5));
        assert_eq!((acme.ram, acme.disk), (Some(ByteSize(2 << 30)), Some(ByteSize(4 << 30))));
        assert_eq!(acme.pin, Some(ByteSize(1 << 30)));
        let limits = TenantLimits {
            requests_per_minute: NonZeroU32::new(600),
            tokens_per_minute: NonZeroU32::new(100_000),
            parallel: NonZeroU32::new(4),
        };
        assert_eq!(acme.limits(), limits);
        assert!(acme.prices.is_some());
        let beta = &tenants["beta"];
        assert_eq!((beta.share, beta.weight, beta.ram), (Share::Isolated, 1.0, None));
        assert_eq!((beta.limits(), beta.prices), (TenantLimits::NONE, None));
    }

    #[test]
    fn errors_name_the_field() {
        let check = |text: String, words: &[&str]| {
            let error = parse(&text).expect_err(&text);
            for word in words.iter().chain(&["tenants.toml"]) {
                assert!(error.contains(word), "{error} says {word}");
            }
        };
        let tenant = |body: &str| format!("[tenant.acme]\nkeys = [{}]\n{body}", key("one"));
        check(String::new(), &["no tenant", "[tenant.NAME]"]);
        check("[tenant.acme".into(), &["line 1"]);
        check("[tenat.acme]".into(), &["tenat"]);
        check("[tenant.acme]\nshare = \"shared\"".into(), &["keys"]);
        check("[tenant.acme]\nkeys = []".into(), &["kvik tenant key acme"]);
        check("[tenant.acme]\nkeys = [\"plain text\"]".into(), &["sha256:", "kvik tenant key"]);
        check(tenant("shares = \"shared\""), &["shares"]);
        check(tenant("share = \"all\""), &["all", "isolated", "public-prompts", "shared"]);
        check(tenant("weight = 0"), &["weight", "0.001"]);
        check(tenant("weight = nan"), &["weight", "0.001"]);
        check(tenant("ram = \"much\""), &["much", "2GiB"]);
        check(tenant("parallel = 0"), &["parallel"]);
        check(tenant("requests-per-minute = -1"), &["requests-per-minute"]);
        check(tenant("prices = { input = -1 }"), &["-1"]);
        check(format!("[tenant.default]\nkeys = [{}]", key("x")), &["default", "--api-key"]);
        check(format!("[tenant.\"a b\"]\nkeys = [{}]", key("x")), &["a b", "A-Z"]);
        let twice = format!("{}\n[tenant.beta]\nkeys = [{}]", tenant(""), key("one"));
        check(twice, &["acme", "beta", "one tenant"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/nowhere/tenants.toml")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/tenants.toml"), "{error}");
    }
}
