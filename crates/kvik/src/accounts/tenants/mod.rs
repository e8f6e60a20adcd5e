//! Tenants: who may ask, with whom they share, and how much they may take.
//!
//! A tenant is known by its API key and by nothing else a client sends. From the tenants file and
//! the server's secret come, for each: a [`TenantId`], by which the engine gives turns and shares
//! of the cache; a salt, which separates its cached prompts from those of others; limits; prices.
//!
//! | module   | cares about                                    |
//! |----------|------------------------------------------------|
//! | `key`    | keys and their digests                         |
//! | `file`   | the tenants file, checked as a whole           |
//! | `secret` | the server's secret and the salts from it      |
//! | `meter`  | rates and the number of prompts at a time      |

pub(crate) mod file;
pub(crate) mod key;
mod meter;
mod secret;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use kvik_cache::TenantId;
use kvik_engine::{api::Request, schedule::TenantPart};
use serde::Deserialize;

use super::prices::Prices;
use crate::settings::size::ByteSize;

pub(crate) use file::{FileError, TenantSpec, warn_if_readable_by_others};
pub(crate) use key::KeyDigest;
pub(crate) use meter::{AdmissionPermit, AdmissionSlots, Allowance, Meter, Refusal, TenantLimits};
pub(crate) use secret::Secret;

/// The tenant of those who come with `--api-key`, or without a key where none is asked for.
pub(crate) const DEFAULT_NAME: &str = "default";

/// Owns the cached prompts of all tenants that share; never a tenant's own id.
const COMMON_OWNER: TenantId = TenantId(u32::MAX);

/// Whose cached prompts a tenant may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Share {
    /// Its own.
    #[default]
    Isolated,
    /// Its own, and registered prompts that are marked public.
    PublicPrompts,
    /// Those of all tenants in this mode; each can find out by the time what the others asked.
    Shared,
}

/// One tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// The same as long as this server runs, whatever becomes of the file.
    pub(crate) id: TenantId,
    /// The prompt registry asks this before it lends a public prompt.
    pub(crate) share: Share,
    /// Its part of the model's time and of the cache, in relation to the others'.
    pub(crate) weight: f64,
    /// Memory that its cached prompts may take.
    pub(crate) ram: Option<ByteSize>,
    /// Disk that its cached prompts may take.
    pub(crate) disk: Option<ByteSize>,
    /// Memory that its pins may take; its part by weight when `None`.
    pub(crate) pin: Option<ByteSize>,
    pub(crate) limits: TenantLimits,
    /// Where they differ from the server's.
    pub(crate) prices: Option<Prices>,
    pub(crate) meter: Arc<Meter>,
    salt: [u8; 16],
}

/// All tenants of a server.
#[derive(Debug)]
pub(crate) struct Tenants {
    /// For those who come without a tenant's key.
    pub(crate) default: Arc<Tenant>,
    /// By name.
    named: BTreeMap<String, Arc<Tenant>>,
    keys: Vec<(KeyDigest, Arc<Tenant>)>,
    /// Ids given out, also to tenants that are gone: nobody inherits another's blocks and debts.
    ids: BTreeMap<String, TenantId>,
}

/// The tenants file and the secret that goes with it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) secret: Secret,
}

impl Tenant {
    fn new(name: &str, id: TenantId, spec: &TenantSpec, meter: Arc<Meter>, secret: &Secret) -> Tenant {
        Tenant {
            name: name.to_owned(),
            id,
            share: spec.share,
            weight: spec.weight,
            ram: spec.ram,
            disk: spec.disk,
            pin: spec.pin,
            limits: spec.limits(),
            prices: spec.prices,
            meter,
            salt: secret.salt(name, spec.share),
        }
    }

    /// The tenant of a server that has no others: without salt, limits or prices of its own.
    fn unnamed() -> Tenant {
        Tenant {
            name: DEFAULT_NAME.to_owned(),
            id: TenantId::default(),
            share: Share::Isolated,
            weight: 1.0,
            ram: None,
            disk: None,
            pin: None,
            limits: TenantLimits::NONE,
            prices: None,
            meter: Arc::default(),
            salt: [0; 16],
        }
    }

    /// What separates its prompts from those of others.
    pub(crate) fn salt(&self) -> [u8; 16] {
        self.salt
    }

    /// Makes a request this tenant's: nothing in it that says whose it is may come from elsewhere.
    pub(crate) fn sign(&self, request: &mut Request) {
        request.tenant = self.id;
        request.salt = self.salt;
    }
}

impl Tenants {
    /// Nobody but the default tenant.
    pub(crate) fn none() -> Tenants {
        let default = Arc::new(Tenant::unnamed());
        Tenants { default, named: BTreeMap::new(), keys: Vec::new(), ids: BTreeMap::new() }
    }

    /// These tenants. Those that were there `before` keep their id and what they have taken.
    fn new(specs: &BTreeMap<String, TenantSpec>, secret: &Secret, before: &Tenants) -> Tenants {
        let mut tenants = Tenants { default: before.default.clone(), ..Tenants::none() };
        tenants.ids.clone_from(&before.ids);
        for (name, spec) in specs {
            let next = TenantId(tenants.ids.len() as u32 + 1);
            let id = *tenants.ids.entry(name.clone()).or_insert(next);
            let meter = before.named.get(name).map(|tenant| tenant.meter.clone()).unwrap_or_default();
            let tenant = Arc::new(Tenant::new(name, id, spec, meter, secret));
            tenants.keys.extend(spec.keys.iter().map(|&key| (key, tenant.clone())));
            tenants.named.insert(name.clone(), tenant);
        }
        tenants
    }

    /// Whether there are others than the default tenant.
    pub(crate) fn are_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Every tenant, the default one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        std::iter::once(&self.default).chain(self.named.values())
    }

    /// What the engine is to give each of them. The prompts of those who share belong to all of
    /// them together: one owner, with the sum of their parts.
    pub(crate) fn parts(&self) -> Vec<TenantPart> {
        let sharing: Vec<&Arc<Tenant>> = self.all().filter(|tenant| tenant.share == Share::Shared).collect();
        let part = |tenant: &Arc<Tenant>| {
            let (owner, of) = match tenant.share {
                Share::Isolated | Share::PublicPrompts => (tenant.id, std::slice::from_ref(&tenant)),
                Share::Shared => (COMMON_OWNER, sharing.as_slice()),
            };
            TenantPart {
                tenant: tenant.id,
                weight: tenant.weight,
                owner,
                owner_weight: of.iter().map(|tenant| tenant.weight).sum(),
                owner_ram_bytes: sum(of.iter().map(|tenant| tenant.ram)),
                owner_disk_bytes: sum(of.iter().map(|tenant| tenant.disk)),
                owner_pin_bytes: sum(of.iter().map(|tenant| tenant.pin)),
                salt: tenant.salt,
                public: tenant.share == Share::PublicPrompts,
            }
        };
        self.all().map(part).collect()
    }

    /// The tenant of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Tenant>> {
        self.all().find(|tenant| tenant.name == name).cloned()
    }

    /// The name of a tenant; those who share go by a common one.
    pub(crate) fn name_of(&self, id: TenantId) -> &str {
        self.all().find(|tenant| tenant.id == id).map_or("shared", |tenant| &tenant.name)
    }

    /// The digests of all keys and whose they are.
    pub(crate) fn keys(&self) -> &[(KeyDigest, Arc<Tenant>)] {
        &self.keys
    }
}

/// Quotas together; without a bound as soon as one has none.
fn sum(mut quotas: impl Iterator<Item = Option<ByteSize>>) -> Option<u64> {
    quotas.try_fold(0, |sum: u64, quota| Some(sum.saturating_add(quota?.0)))
}

impl Source {
    /// Reads the file again; those who were there `before` go on as they were.
    pub(crate) fn read(&self, before: &Tenants) -> Result<Tenants, FileError> {
        Ok(Tenants::new(&file::read(&self.path)?, &self.secret, before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> (tempfile::TempDir, Source) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tenants.toml");
        std::fs::write(&path, text).unwrap();
        let secret = Secret::open(&dir.path().join("secret")).unwrap();
        (dir, Source { path, secret })
    }

    fn request_of_somebody_else() -> Request {
        Request {
            prompt: vec![1],
            choices: 1,
            max_tokens: 1,
            ignore_eos: false,
            stop: Vec::new(),
            sampling: kvik_engine::api::Sampling::GREEDY,
            logprobs: None,
            constraint: None,
            show_special: false,
            show: Vec::new(),
            reuse: true,
            salt: [9; 16],
            tenant: TenantId(77),
            retain: Default::default(),
        }
    }

    fn tenant(name: &str, more: &str) -> String {
        format!("[tenant.{name}]\nkeys = [\"{}\"]\n{more}\n", KeyDigest::of(name))
    }

    #[test]
    fn a_tenant_keeps_its_id_its_salt_and_its_debts_through_changes_of_the_file() {
        let (_dir, source) = source(&(tenant("beta", "tokens-per-minute = 10") + &tenant("delta", "")));
        let before = source.read(&Tenants::none()).unwrap();
        let beta = before.named["beta"].clone();
        beta.meter.charge(&beta.limits, 100, Default::default());

        let text = tenant("acme", "") + &tenant("beta", "tokens-per-minute = 20");
        std::fs::write(&source.path, text).unwrap();
        let after = source.read(&before).unwrap();
        let new_beta = &after.named["beta"];
        assert_eq!((new_beta.id, new_beta.salt), (beta.id, beta.salt));
        assert!(new_beta.meter.check_tokens(&new_beta.limits, Default::default()).is_err(), "still in debt");

        let ids: Vec<TenantId> = after.all().chain(before.all()).map(|tenant| tenant.id).collect();
        assert_eq!(ids.len(), 6);
        let distinct: std::collections::BTreeSet<_> = ids.into_iter().collect();
        assert_eq!(distinct.len(), 4, "default, acme, beta, delta");
    }

    #[test]
    fn requests_are_signed_whatever_they_carried() {
        let (_dir, source) = source(&(tenant("acme", "") + &tenant("beta", "")));
        let tenants = source.read(&Tenants::none()).unwrap();
        let sign = |name: &str| {
            let mut request = request_of_somebody_else();
            tenants.named[name].sign(&mut request);
            (request.tenant, request.salt)
        };
        let (acme, beta) = (sign("acme"), sign("beta"));
        assert!(acme.0 != beta.0 && acme.1 != beta.1);
        assert!(acme.1 != [9; 16] && acme.1 != [0; 16]);
    }

    #[test]
    fn the_prompts_of_those_who_share_have_one_owner_with_the_sum_of_their_parts() {
        let shared = |weight: u32, ram: &str| format!("share = \"shared\"\nweight = {weight}\n{ram}");
        let text = tenant("a", &shared(2, "ram = \"1GiB\"")) + &tenant("b", &shared(3, "ram = \"2GiB\""));
        let (_dir, source) = source(&(text + &tenant("c", "weight = 5")));
        let parts = source.read(&Tenants::none()).unwrap().parts();
        let [default, a, b, c] = parts.as_slice() else { panic!("{parts:?}") };
        assert_eq!((a.owner, a.owner_weight, a.owner_ram_bytes), (b.owner, 5.0, Some(3 << 30)));
        assert_eq!((b.owner_weight, b.owner_ram_bytes, b.owner_disk_bytes), (5.0, Some(3 << 30), None));
        assert_eq!((a.weight, b.weight), (2.0, 3.0));
        assert_eq!((c.owner, c.owner_weight, c.owner_ram_bytes), (c.tenant, 5.0, None));
        assert_eq!(default.owner, TenantId::default());
    }

    #[test]
    fn only_those_who_share_have_one_salt() {
        let text = tenant("a", "share = \"shared\"") + &tenant("b", "share = \"shared\"");
        let (_dir, source) = source(&(text + &tenant("c", "") + &tenant("d", "share = \"public-prompts\"")));
        let tenants = source.read(&Tenants::none()).unwrap();
        let salt = |name: &str| tenants.named[name].salt;
        assert_eq!(salt("a"), salt("b"));
        let distinct = std::collections::BTreeSet::from([salt("a"), salt("c"), salt("d"), [0; 16]]);
        assert_eq!(distinct.len(), 4);
    }
}
