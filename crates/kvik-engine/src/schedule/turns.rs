//! Fair sharing between tenants: they share the model by weight, however many requests each has waiting.
//!
//! Start-time fair queueing. Every tenant has a *virtual time*: the rows that were computed for it, divided by its
//! weight. The tenant with the smallest one is next. Rows that a running sequence still has to compute count as
//! computed, so that several admissions in one step alternate too. A tenant that comes back after a pause starts at the
//! virtual time of the last admission: it has accumulated no credit. So a tenant that was idle precedes all that have
//! been served since, and no flood can delay it by more than what already runs. The rows of a step are divided by the
//! same times, without the promised rows.

use std::collections::BTreeMap;

use kvik_cache::TenantId;

/// The default weight of a tenant.
const WEIGHT: f64 = 1.0;

/// The tenants' virtual times.
#[derive(Debug, Default)]
pub(super) struct Turns {
    accounts: BTreeMap<TenantId, Account>,
    /// The virtual time of the last admission; never goes back.
    now: f64,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    weight: f64,
    /// Rows computed, divided by the weight.
    time: f64,
}

impl Turns {
    /// Sets the weights; weights that are not positive numbers count as 1.
    pub(super) fn set_weights(&mut self, weights: impl IntoIterator<Item = (TenantId, f64)>) {
        for (tenant, weight) in weights {
            let usable = weight.is_finite() && weight > 0.0;
            self.account(tenant).weight = if usable { weight } else { WEIGHT };
        }
    }

    /// Records that a tenant without waiting or running sequences has one again.
    pub(super) fn come_back(&mut self, tenant: TenantId) {
        let now = self.now;
        let account = self.account(tenant);
        account.time = account.time.max(now);
    }

    /// Charges `rows` computed rows to a tenant.
    pub(super) fn charge(&mut self, tenant: TenantId, rows: usize) {
        let account = self.account(tenant);
        account.time += rows as f64 / account.weight;
    }

    /// A tenant's virtual time once it has had the rows that are promised to it.
    pub(super) fn time(&self, tenant: TenantId, promised_rows: usize) -> f64 {
        let account = self.accounts.get(&tenant).copied().unwrap_or(Account::NEW);
        account.time + promised_rows as f64 / account.weight
    }

    /// Records an admission at this virtual time of its tenant.
    pub(super) fn admitted(&mut self, time: f64) {
        self.now = self.now.max(time);
    }

    fn account(&mut self, tenant: TenantId) -> &mut Account {
        self.accounts.entry(tenant).or_insert(Account::NEW)
    }
}

impl Account {
    const NEW: Account = Account { weight: WEIGHT, time: 0.0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[test]
    fn work_counts_by_weight() {
        let mut turns = Turns::default();
        turns.set_weights([(A, 2.0), (B, f64::NAN)]);
        turns.charge(A, 100);
        turns.charge(B, 100);
        assert_eq!((turns.time(A, 0), turns.time(B, 0)), (50.0, 100.0));
        assert_eq!((turns.time(A, 10), turns.time(B, 10)), (55.0, 110.0));
    }

    #[test]
    fn a_pause_saves_nothing_up_and_costs_nothing() {
        let mut turns = Turns::default();
        turns.charge(A, 1000);
        turns.admitted(turns.time(A, 0));
        turns.charge(A, 30);
        turns.come_back(B);
        assert_eq!(turns.time(B, 0), 1000.0);
        turns.admitted(turns.time(B, 0));
        turns.come_back(A);
        assert_eq!(turns.time(A, 0), 1030.0, "what it had beyond the others still counts");
    }
}
