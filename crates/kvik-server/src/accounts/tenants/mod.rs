//! Tenants: keys, sharing of cached prompts, quotas and limits.
//!
//! The API key alone identifies a tenant. The tenants file and the server's secret give each tenant a
//! [`TenantId`], by which the engine schedules turns and divides the cache; a salt, which separates its
//! cached prompts from those of others; limits; and prices.
//!
//! | module   | content                                        |
//! |----------|------------------------------------------------|
//! | `key`    | keys and their digests                         |
//! | `file`   | the tenants file, checked as a whole           |
//! | `secret` | the server's secret and the salts from it      |
//! | `meter`  | rates and the number of prompts at a time      |

pub mod file;
pub mod key;
mod meter;
mod secret;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use kvik_cache::TenantId;
use kvik_engine::{api::Request, schedule::TenantPart};
use serde::Deserialize;

use super::prices::Prices;
use kvik_serving::settings::size::ByteSize;

pub(crate) use file::{FileError, TenantSpec};
pub(crate) use key::KeyDigest;
pub(crate) use meter::{AdmissionPermit, AdmissionSlots, Allowance, Meter, Refusal, TenantLimits};
pub use secret::{Secret, SecretError};

/// The tenant of clients with an `--api-key`, or of all clients where no key is required.
pub(crate) const DEFAULT_NAME: &str = "default";

/// Owner of the cached prompts of all tenants that share; never a tenant's own id.
const COMMON_OWNER: TenantId = TenantId(u32::MAX);

/// The tenants whose cached prompts a tenant may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Only itself.
    #[default]
    Isolated,
    /// Itself, and registered prompts that are marked public.
    PublicPrompts,
    /// All tenants in this mode; each can infer by timing which prompts the others have sent.
    Shared,
}

/// A tenant.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    /// Stays the same while this server runs, whatever changes in the file.
    pub(crate) id: TenantId,
    /// The prompt registry checks this before it shares a public prompt.
    pub(crate) share: Share,
    /// Its share of compute and of the cache, relative to the others' weights.
    pub(crate) weight: f64,
    /// Quota of its cached prompts in memory.
    pub(crate) ram: Option<ByteSize>,
    /// Quota of its cached prompts on disk.
    pub(crate) disk: Option<ByteSize>,
    /// Quota of its pins in memory; its share by weight when `None`.
    pub(crate) pin: Option<ByteSize>,
    pub(crate) limits: TenantLimits,
    /// Its own prices, instead of the server's.
    pub(crate) prices: Option<Prices>,
    pub(crate) meter: Arc<Meter>,
    salt: [u8; 16],
}

/// All tenants of a server.
#[derive(Debug)]
pub struct Tenants {
    /// The tenant of clients without a tenant's key.
    pub(crate) default: Arc<Tenant>,
    /// Tenants by name.
    named: BTreeMap<String, Arc<Tenant>>,
    keys: Vec<(KeyDigest, Arc<Tenant>)>,
    /// All ids ever assigned, also to removed tenants: no tenant inherits another's blocks or debts.
    ids: BTreeMap<String, TenantId>,
}

/// The tenants file and the server's secret.
#[derive(Debug)]
pub struct Source {
    /// The file of tenants.
    pub path: PathBuf,
    /// The secret from which salts are derived.
    pub secret: Secret,
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

    /// The tenant of a server without a tenants file: no salt, limits or prices of its own.
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

    /// The salt that separates its prompts from those of other tenants.
    pub(crate) fn salt(&self) -> [u8; 16] {
        self.salt
    }

    /// Assigns a request to this tenant: overwrites its tenant and salt, whatever the client sent.
    pub(crate) fn sign(&self, request: &mut Request) {
        request.tenant = self.id;
        request.salt = self.salt;
    }
}

impl Tenants {
    /// The default tenant only.
    pub fn none() -> Tenants {
        let default = Arc::new(Tenant::unnamed());
        Tenants { default, named: BTreeMap::new(), keys: Vec::new(), ids: BTreeMap::new() }
    }

    /// The tenants of `specs`. Tenants in `before` keep their ids and meters.
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

    /// True if there are tenants besides the default one.
    pub(crate) fn are_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Every tenant, the default one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        std::iter::once(&self.default).chain(self.named.values())
    }

    /// Weights and quotas for the engine. Tenants that share their prompts have one owner, with the sum
    /// of their weights and quotas.
    pub fn parts(&self) -> Vec<TenantPart> {
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

    /// Whether the tenant of this name has this salt, as others that share with it have.
    pub(crate) fn have_salt(&self, name: &str, salt: [u8; 16]) -> bool {
        self.all().any(|tenant| tenant.name == name && tenant.salt == salt)
    }

    /// The name of a tenant or owner; tenants that share have the owner `shared`.
    pub(crate) fn name_of(&self, id: TenantId) -> &str {
        self.all().find(|tenant| tenant.id == id).map_or("shared", |tenant| &tenant.name)
    }

    /// The digests of all keys, with their tenants.
    pub(crate) fn keys(&self) -> &[(KeyDigest, Arc<Tenant>)] {
        &self.keys
    }
}

/// The sum of quotas; unlimited when one of them is.
fn sum(mut quotas: impl Iterator<Item = Option<ByteSize>>) -> Option<u64> {
    quotas.try_fold(0, |sum: u64, quota| Some(sum.saturating_add(quota?.0)))
}

impl Source {
    /// Reads the file again; tenants in `before` keep their ids and meters.
    pub fn read(&self, before: &Tenants) -> Result<Tenants, FileError> {
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
        Request { salt: [9; 16], tenant: TenantId(77), ..Request::new(vec![1], 1) }
    }

    fn tenant(name: &str, more: &str) -> String {
        format!("[tenant.{name}]\nkeys = [\"{}\"]\n{more}\n", KeyDigest::of(name))
    }

    #[test]
    fn a_tenant_keeps_its_id_salt_and_debts_when_the_file_changes() {
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
    fn a_request_gets_its_tenant_whatever_it_carried() {
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
    fn tenants_that_share_have_one_owner_with_the_sum_of_their_quotas() {
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
    fn only_tenants_that_share_have_one_salt() {
        let text = tenant("a", "share = \"shared\"") + &tenant("b", "share = \"shared\"");
        let (_dir, source) = source(&(text + &tenant("c", "") + &tenant("d", "share = \"public-prompts\"")));
        let tenants = source.read(&Tenants::none()).unwrap();
        let salt = |name: &str| tenants.named[name].salt;
        assert_eq!(salt("a"), salt("b"));
        let distinct = std::collections::BTreeSet::from([salt("a"), salt("c"), salt("d"), [0; 16]]);
        assert_eq!(distinct.len(), 4);
    }
}
