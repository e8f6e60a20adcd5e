//! The account of a request, charged to its tenant when it ends.

use std::{sync::Arc, time::Duration};

use kvik_engine::api::Report;

use super::{
    metrics::Metrics,
    tally::{Counts, Tally},
};
use crate::{
    accounts::{ledger::Ledger, prices::Prices, tenants::Tenant},
    clock::Clock,
};

/// The account of one HTTP request, charged to its tenant.
pub(crate) struct UsageAccount {
    pub(crate) tenant: Arc<Tenant>,
    /// Name of the model.
    pub(crate) model: String,
    /// The tenant's prices, or the server's; without them an answer reports no cost.
    pub(crate) prices: Option<Prices>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Clock,
    /// When the request arrived, on this clock.
    pub(crate) arrived: Duration,
}

impl UsageAccount {
    /// Charges the cost of a prompt and its answer, complete or not.
    pub(crate) fn charge(&self, report: &Report) {
        let tenant = &self.tenant;
        tenant.meter.charge(&tenant.limits, report.computed_tokens + report.generated_tokens, (self.clock)());
        let entry = self.ledger.enter([&tenant.name, &self.model], report, self.prices.as_ref());
        self.metrics.charged(&tenant.name, report, &entry);
        self.count(Counts::tokens(report));
    }

    /// Measures the time to the first token of an answer. What the engine does not see counts too: reading the request,
    /// tokenizing it, and the step that it came in.
    pub(crate) fn first_token(&self) {
        self.metrics.first_token((self.clock)().saturating_sub(self.arrived));
    }

    /// Counts a complete answer.
    pub(crate) fn answered(&self, report: &Report) {
        self.count(Counts::ANSWERED);
        self.metrics.answered(report);
    }

    /// Adds a prompt's counts to the tenant's tally.
    pub(crate) fn count(&self, counts: Counts) {
        self.tally.add(&self.tenant.name, counts);
    }
}
