//! The memory budget of compiled constraints, charged by requests and the pool's cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_cache::TenantId;

/// Maximum bytes of all compiled constraints.
const BYTES_MAX: usize = 256 << 20;
/// Maximum bytes of one tenant.
const TENANT_BYTES_MAX: usize = BYTES_MAX / 2;

/// Bytes held by tenant; clones share the state.
#[derive(Clone, Default)]
pub(super) struct MemoryBudget(Arc<Mutex<BTreeMap<TenantId, usize>>>);

/// Bytes taken from the budget; dropping it returns them.
pub(super) struct MemoryCharge {
    budget: MemoryBudget,
    tenant: TenantId,
    bytes: usize,
}

impl MemoryBudget {
    /// Takes bytes for a tenant, if enough are left.
    pub(super) fn take(&self, tenant: TenantId, bytes: usize) -> Option<MemoryCharge> {
        let mut held = self.lock();
        let all: usize = held.values().sum();
        let own = held.get(&tenant).copied().unwrap_or(0);
        if all + bytes > BYTES_MAX || own + bytes > TENANT_BYTES_MAX {
            return None;
        }
        held.insert(tenant, own + bytes);
        Some(MemoryCharge { budget: self.clone(), tenant, bytes })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantId, usize>> {
        // Each change is one insertion.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryCharge {
    /// Charges the same number of bytes again to the same tenant, if they are left.
    pub(super) fn once_more(&self) -> Option<MemoryCharge> {
        self.budget.take(self.tenant, self.bytes)
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        let left = held.get(&self.tenant).map_or(0, |own| own.saturating_sub(self.bytes));
        if left == 0 {
            held.remove(&self.tenant);
        } else {
            held.insert(self.tenant, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_gets_at_most_half_and_a_dropped_charge_is_returned() {
        let budget = MemoryBudget::default();
        let half = budget.take(TenantId(1), TENANT_BYTES_MAX).unwrap();
        assert!(budget.take(TenantId(1), 1).is_none());
        let other = budget.take(TenantId(2), TENANT_BYTES_MAX).unwrap();
        assert!(budget.take(TenantId(3), 1).is_none());
        drop(half);
        assert!(budget.take(TenantId(3), 1).is_some());
        drop(other);
        assert!(budget.lock().is_empty());
    }
}
