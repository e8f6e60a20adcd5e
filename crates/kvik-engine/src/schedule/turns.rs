//! Fair sharing between tenants: they share the model by weight, however many requests each has waiting.
//!
//! Start-time fair queueing. Every tenant has a *virtual time*: the rows that were computed for it, divided by its
//! weight. The tenant with the smallest one is next. Rows that a running sequence still has to compute count as
//! computed, so that several admissions in one step alternate too. A tenant that comes back after a pause starts at the
//! virtual time of the last admission: it has accumulated no credit. So a tenant that was idle precedes all that have
//! been served since, and no flood can delay it by more than what already runs. The rows of a step are divided by the
//! same times, without the promised rows. Nor does a tenant that comes back wait for promised rows: those of a prompt
//! whose client goes are never computed.
//!
//! The background has virtual times of its own. Its rows are what the foreground leaves, so they do not count there.

use std::collections::BTreeMap;

use kvik_cache::TenantId;

/// The default weight of a tenant.
const WEIGHT: f64 = 1.0;

/// The turns in the foreground, and those in the background.
#[derive(Debug, Default)]
pub(super) struct AllTurns {
    foreground: Turns,
    background: Turns,
}

/// The tenants' virtual times.
#[derive(Debug, Default)]
pub(super) struct Turns {
    accounts: BTreeMap<TenantId, Account>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    weight: f64,
    /// Rows computed, divided by the weight.
    time: f64,
    /// The virtual time of its last admission, with the rows that were promised then.
    admitted: f64,
}

impl AllTurns {
    /// Sets the weights in both; weights that are not positive numbers count as 1.
    pub(super) fn set_weights(&mut self, weights: impl Iterator<Item = (TenantId, f64)> + Clone) {
        self.foreground.set_weights(weights.clone());
        self.background.set_weights(weights);
    }

    /// The turns in the background or in the foreground.
    pub(super) fn of(&self, background: bool) -> &Turns {
        if background { &self.background } else { &self.foreground }
    }

    /// The same, to change them.
    pub(super) fn of_mut(&mut self, background: bool) -> &mut Turns {
        if background { &mut self.background } else { &mut self.foreground }
    }
}

impl Turns {
    fn set_weights(&mut self, weights: impl IntoIterator<Item = (TenantId, f64)>) {
        for (tenant, weight) in weights {
            let usable = weight.is_finite() && weight > 0.0;
            self.account(tenant).weight = if usable { weight } else { WEIGHT };
        }
    }

    /// Records that a tenant without waiting or running sequences has one again.
    pub(super) fn come_back(&mut self, tenant: TenantId) {
        let now = self.now();
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

    /// Records an admission of a tenant at this virtual time.
    pub(super) fn admitted(&mut self, tenant: TenantId, time: f64) {
        self.account(tenant).admitted = time;
    }

    /// The virtual time of the last admission, as far as what was promised before it has been computed.
    fn now(&self) -> f64 {
        self.accounts.values().map(|account| account.admitted.min(account.time)).fold(0.0, f64::max)
    }

    fn account(&mut self, tenant: TenantId) -> &mut Account {
        self.accounts.entry(tenant).or_insert(Account::NEW)
    }
}

impl Account {
    const NEW: Account = Account { weight: WEIGHT, time: 0.0, admitted: 0.0 };
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
        turns.admitted(A, turns.time(A, 0));
        turns.charge(A, 30);
        turns.come_back(B);
        assert_eq!(turns.time(B, 0), 1000.0);
        turns.admitted(B, turns.time(B, 0));
        turns.come_back(A);
        assert_eq!(turns.time(A, 0), 1030.0, "what it had beyond the others still counts");
    }

    #[test]
    fn promised_rows_count_for_others_once_they_are_computed() {
        let mut turns = Turns::default();
        turns.charge(A, 10);
        turns.admitted(A, turns.time(A, 5000));
        turns.come_back(B);
        assert_eq!(turns.time(B, 0), 10.0);
        turns.charge(A, 6000);
        turns.come_back(B);
        assert_eq!(turns.time(B, 0), 5010.0);
    }
}
