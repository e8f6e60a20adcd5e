//! Memory of the compiled constraints that requests and the cache hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvik_cache::TenantId;

/// Bytes of all compiled constraints at most.
const BYTES_MAX: usize = 256 << 20;
/// One tenant has this much of it at most.
const TENANT_BYTES_MAX: usize = BYTES_MAX / 2;

/// What is held, by tenant; a clone is the same one.
#[derive(Clone, Default)]
pub(super) struct Budget(Arc<Mutex<BTreeMap<TenantId, usize>>>);

/// Bytes taken from the budget; they come back with it.
pub(super) struct Charge {
    budget: Budget,
    tenant: TenantId,
    bytes: usize,
}

impl Budget {
    /// Takes bytes for a tenant, if there are so many left.
    pub(super) fn take(&self, tenant: TenantId, bytes: usize) -> Option<Charge> {
        let mut held = self.lock();
        let all: usize = held.values().sum();
        let own = held.get(&tenant).copied().unwrap_or(0);
        if all + bytes > BYTES_MAX || own + bytes > TENANT_BYTES_MAX {
            return None;
        }
        held.insert(tenant, own + bytes);
        Some(Charge { budget: self.clone(), tenant, bytes })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantId, usize>> {
        // Each change is one insertion.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Charge {
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
    fn a_tenant_has_half_and_what_is_dropped_comes_back() {
        let budget = Budget::default();
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
