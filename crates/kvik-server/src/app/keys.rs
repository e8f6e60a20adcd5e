//! API keys: which requests may use the server, and on whose behalf.

use std::{fmt, sync::Arc};

use axum::http::{HeaderMap, header};
use kvik_memory::deletions::Owner;

use crate::{
    accounts::tenants::{KeyDigest, Tenant, Tenants},
    http::error::ApiError,
};

/// The sender of a request, as identified by its key.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(crate) tenant: Arc<Tenant>,
    /// Whether the caller may see data of all tenants.
    pub(crate) admin: bool,
    /// Deletable objects that the request is made for: a conversation, a stored response.
    pub(crate) owners: Arc<[Owner]>,
}

impl Caller {
    /// The caller of a request made for a deletable object as well.
    pub(crate) fn on_behalf_of(&self, owner: Owner) -> Caller {
        let owners = self.owners.iter().cloned().chain([owner]);
        Caller { owners: owners.collect(), ..self.clone() }
    }

    /// Refuses everyone but the admin.
    pub(crate) fn as_admin(&self) -> Result<(), ApiError> {
        if self.admin { Ok(()) } else { Err(ApiError::admins_only()) }
    }
}

/// A key with which a request would be of two senders.
#[derive(Debug, thiserror::Error)]
pub enum SharedKey {
    /// A tenant has the key of another sender.
    #[error("a key of the tenant `{tenant}` is also given to {flag}; a key names one tenant")]
    Tenant {
        /// The name of the tenant.
        tenant: String,
        /// The flag with the same key.
        flag: &'static str,
    },
    /// Every client has the admin's.
    #[error(
        "--admin-key is also given to --api-key, whose clients would read the data of all tenants; change one"
    )]
    Admin,
}

/// The keys of the server. Only their digests are stored.
pub struct Keys {
    /// Keys of the default tenant.
    api: Vec<KeyDigest>,
    admin: Option<KeyDigest>,
    tenants: Tenants,
}

impl Keys {
    /// The keys of the default tenant. Without any, the server is open to every client that can reach it.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Keys {
        let keys = keys.into_iter().map(str::trim).filter(|key| !key.is_empty());
        Keys { api: keys.map(KeyDigest::of).collect(), admin: None, tenants: Tenants::none() }
    }

    /// Restricts access to data of all tenants to this key.
    ///
    /// # Errors
    /// If other clients have it.
    pub fn with_admin(self, key: Option<&str>) -> Result<Keys, SharedKey> {
        let key = key.map(str::trim).filter(|key| !key.is_empty());
        Keys { admin: key.map(KeyDigest::of), ..self }.checked()
    }

    /// Replaces the tenants.
    ///
    /// # Errors
    /// If a key of theirs is not theirs alone.
    pub fn with_tenants(&self, tenants: Tenants) -> Result<Keys, SharedKey> {
        Keys { api: self.api.clone(), admin: self.admin, tenants }.checked()
    }

    fn checked(self) -> Result<Keys, SharedKey> {
        self.check(self.tenants.keys().iter().map(|(key, tenant)| (tenant.name.as_str(), key)))?;
        Ok(self)
    }

    /// Whether these keys can stand beside those of tenants, given with their names: each has one owner.
    ///
    /// # Errors
    /// If a key has two.
    pub fn check<'a>(
        &self,
        of_tenants: impl Iterator<Item = (&'a str, &'a KeyDigest)>,
    ) -> Result<(), SharedKey> {
        if self.admin.is_some_and(|admin| self.api.contains(&admin)) {
            return Err(SharedKey::Admin);
        }
        for (tenant, key) in of_tenants {
            let flag = match self.admin == Some(*key) {
                true => "--admin-key",
                false if self.api.contains(key) => "--api-key",
                false => continue,
            };
            return Err(SharedKey::Tenant { tenant: tenant.to_owned(), flag });
        }
        Ok(())
    }

    /// Whether requests need no key.
    pub fn are_open(&self) -> bool {
        self.api.is_empty() && !self.tenants.are_named()
    }

    /// Whether there is an admin's key.
    pub fn have_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// All tenants.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The caller of a request with these headers: `Authorization: Bearer KEY`, or `X-Api-Key: KEY` as some
    /// clients send it. `None` when the key is missing or wrong.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let found = offered(headers).and_then(|key| self.find(&KeyDigest::of(key)));
        found.or_else(|| self.are_open().then(|| self.default_tenant(self.all_are_admins())))
    }

    /// The error for a request without a valid key, which says where this server's keys are configured.
    pub(crate) fn refusal(&self) -> ApiError {
        ApiError::unauthorized(match (self.tenants.are_named(), self.api.is_empty()) {
            (false, _) => "that was given to `kvik serve --api-key`",
            (true, true) => {
                "of a tenant: `kvik tenant key NAME` makes one, and the tenants file has its digest"
            }
            (true, false) => {
                "of a tenant, whose digest is in the tenants file, or one that was given to `kvik serve --api-key`"
            }
        })
    }

    /// Compares with every key in full, so that the time reveals nothing about a key.
    fn find(&self, offered: &KeyDigest) -> Option<Caller> {
        let mut found = None;
        for (key, tenant) in self.tenants.keys() {
            if key.equals(offered) {
                found = Some(Caller { tenant: tenant.clone(), admin: false, owners: Arc::default() });
            }
        }
        for key in &self.api {
            if key.equals(offered) {
                found = Some(self.default_tenant(self.all_are_admins()));
            }
        }
        if self.admin.is_some_and(|key| key.equals(offered)) {
            found = Some(self.default_tenant(true));
        }
        found
    }

    /// Without named tenants and an admin's key, every caller is an admin.
    fn all_are_admins(&self) -> bool {
        self.admin.is_none() && !self.tenants.are_named()
    }

    fn default_tenant(&self, admin: bool) -> Caller {
        Caller { tenant: self.tenants.default.clone(), admin, owners: Arc::default() }
    }
}

fn offered(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.api.len() + self.tenants.keys().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::tenants::{Secret, Source};

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    /// Name and admin right of the caller with this key.
    fn who(keys: &Keys, key: &str) -> Option<(String, bool)> {
        let caller = keys.caller(&headers("x-api-key", key))?;
        Some((caller.tenant.name.clone(), caller.admin))
    }

    fn acme_and_beta() -> Tenants {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenants.toml");
        let tenant = |name: &str| {
            let keys =
                [name.to_owned(), format!("{name}-2")].map(|key| format!("\"{}\"", KeyDigest::of(&key)));
            format!("[tenant.{name}]\nkeys = [{}]\n", keys.join(", "))
        };
        std::fs::write(&path, tenant("acme") + &tenant("beta")).unwrap();
        let secret = Secret::open(&dir.path().join("secret")).unwrap();
        Source { path, secret }.read(&Tenants::none()).unwrap()
    }

    #[test]
    fn a_key_opens_and_nothing_else_does() {
        let keys = Keys::new(["alpha", " beta\n", ""]);
        let check = |name: &'static str, value: &str, admitted: bool| {
            assert_eq!(keys.caller(&headers(name, value)).is_some(), admitted, "{name}: {value}");
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
        assert!(keys.caller(&HeaderMap::new()).is_none());
    }

    #[test]
    fn without_keys_all_may_come() {
        for keys in [Keys::new([]), Keys::new([" "]), Keys::new([]).with_admin(Some(" ")).unwrap()] {
            let caller = keys.caller(&HeaderMap::new()).unwrap();
            assert!(caller.admin && caller.tenant.name == "default");
        }
    }

    #[test]
    fn a_key_says_whose_it_is_and_only_the_admins_sees_all() {
        let open = Keys::new([]).with_admin(Some("root")).unwrap();
        let closed = Keys::new(["plain"]).with_tenants(acme_and_beta()).unwrap();
        let with_admin = closed.with_tenants(acme_and_beta()).unwrap().with_admin(Some("root")).unwrap();
        let check = |keys: &Keys, key: &str, expect: Option<(&str, bool)>| {
            assert_eq!(who(keys, key), expect.map(|(name, admin)| (name.to_owned(), admin)), "{key}");
        };
        check(&open, "root", Some(("default", true)));
        check(&open, "anything", Some(("default", false)));
        for keys in [&closed, &with_admin] {
            check(keys, "acme", Some(("acme", false)));
            check(keys, "acme-2", Some(("acme", false)));
            check(keys, "beta", Some(("beta", false)));
            check(keys, "plain", Some(("default", false)));
            check(keys, "acm", None);
        }
        check(&closed, "root", None);
        check(&with_admin, "root", Some(("default", true)));
        check(&Keys::new([]).with_tenants(acme_and_beta()).unwrap(), "anything", None);
    }

    /// A tenant whose key was also an `--api-key` was the tenant `default`, without rates or quotas.
    #[test]
    fn a_key_has_one_owner() {
        let check = |api: &[&'static str], admin: &str, expect: &[&str]| {
            let keys = Keys::new(api.iter().copied()).with_admin(Some(admin));
            let error = keys.and_then(|keys| keys.with_tenants(acme_and_beta())).err();
            let error = error.map(|error| error.to_string());
            assert_eq!(error.is_some(), !expect.is_empty(), "{api:?} {admin}: {error:?}");
            let error = error.unwrap_or_default();
            assert!(expect.iter().all(|word| error.contains(word)), "{error} says {expect:?}");
        };
        check(&["plain", "other"], "root", &[]);
        check(&["plain", "acme-2"], "root", &["`acme`", "--api-key"]);
        check(&["plain"], "beta", &["`beta`", "--admin-key"]);
        check(&["plain", "root"], "root", &["--admin-key", "--api-key"]);
    }

    #[test]
    fn a_refusal_names_the_place_where_the_keys_are() {
        let of_tenants =
            |api: &[&'static str]| Keys::new(api.iter().copied()).with_tenants(acme_and_beta()).unwrap();
        for (keys, names_flag, names_file) in [
            (Keys::new(["plain"]), true, false),
            (of_tenants(&[]), false, true),
            (of_tenants(&[]).with_admin(Some("root")).unwrap(), false, true),
            (of_tenants(&["plain"]), true, true),
        ] {
            let message = keys.refusal().to_string();
            assert_eq!(message.contains("--api-key"), names_flag, "{message}");
            assert_eq!(message.contains("the tenants file"), names_file, "{message}");
        }
    }

    #[test]
    fn debug_output_shows_no_key() {
        assert_eq!(format!("{:?}", Keys::new(["secret"])), "Keys(1)");
    }
}
