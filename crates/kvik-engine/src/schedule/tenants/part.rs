//! A tenant's share of the engine, as data.

use kvik_cache::TenantId;

/// A tenant's share of the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantPart {
    /// The tenant, as requests name it.
    pub tenant: TenantId,
    /// Its weight in sharing the model's time with other tenants; more than 0.
    pub weight: f64,
    /// The owner of its cached prompts: itself, or one tenant that represents all who share.
    pub owner: TenantId,
    /// The owner's share of cache and disk when space is short; more than 0.
    pub owner_weight: f64,
    /// Maximum memory of the owner's cached prompts, bytes.
    pub owner_ram_bytes: Option<u64>,
    /// Maximum disk space of the owner's cached prompts, bytes of keys and values.
    pub owner_disk_bytes: Option<u64>,
    /// Separates its prompts, as in its requests.
    pub salt: [u8; 16],
    /// Maximum memory of the owner's pinned prompts, bytes; `None` for its share by weight of the total pin limit.
    pub owner_pin_bytes: Option<u64>,
    /// Whether its requests may share public prompts.
    pub public: bool,
}

impl TenantPart {
    /// The share of a tenant without a configured one.
    pub fn own(tenant: TenantId) -> TenantPart {
        let (owner_ram_bytes, owner_disk_bytes) = (None, None);
        TenantPart {
            tenant,
            weight: 1.0,
            owner: tenant,
            owner_weight: 1.0,
            owner_ram_bytes,
            owner_disk_bytes,
            owner_pin_bytes: None,
            salt: [0; 16],
            public: false,
        }
    }
}
