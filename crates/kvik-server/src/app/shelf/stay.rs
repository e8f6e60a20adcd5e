//! How long an unused model stays in memory.

use std::{collections::BTreeMap, time::Duration};

use kvik_cache::TenantId;

/// The time until which a model stays, by tenant: each tenant sets its own with its last use, and the latest applies.
/// So a tenant can shorten its own stay, but not the others'.
#[derive(Debug, Default)]
pub(super) struct Stay {
    until: BTreeMap<TenantId, Option<Duration>>,
}

/// The point in time `time` after `from`; `None`, which means for ever, without a `time` or on overflow.
pub(super) fn after(from: Duration, time: Option<Duration>) -> Option<Duration> {
    from.checked_add(time?)
}

impl Stay {
    /// Records that a tenant's use ended at `now` and wants the model for `time` more. Returns until when the model
    /// stays.
    pub(super) fn used(
        &mut self,
        tenant: TenantId,
        now: Duration,
        time: Option<Duration>,
    ) -> Option<Duration> {
        self.until.retain(|_, until| until.is_none_or(|until| until > now));
        self.until.insert(tenant, after(now, time));
        self.until.values().copied().max_by_key(|until| until.unwrap_or(Duration::MAX)).flatten()
    }

    /// Clears all recorded uses.
    pub(super) fn clear(&mut self) {
        self.until.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn a_tenant_shortens_its_own_time_alone() {
        let mut stay = Stay::default();
        let at = Duration::from_secs;
        assert_eq!(stay.used(A, at(10), secs(300)), secs(310));
        assert_eq!(stay.used(B, at(20), secs(0)), secs(310), "another's stays");
        assert_eq!(stay.used(A, at(30), secs(0)), secs(30), "its own goes");
        assert_eq!(stay.used(B, at(40), None), None, "for ever");
        assert_eq!(stay.used(A, at(50), secs(1)), None);
        assert_eq!(stay.used(B, at(60), secs(2)), secs(62));
    }

    #[test]
    fn no_time_is_too_long() {
        let mut stay = Stay::default();
        assert_eq!(stay.used(A, Duration::from_secs(2), secs(u64::MAX)), None);
        assert_eq!(after(Duration::MAX, secs(1)), None);
    }
}
