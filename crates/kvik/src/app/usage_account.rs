//! What a request costs: charged to its tenant when it ends, and written into its answer.

use std::{sync::Arc, time::Duration};

use kvik_engine::api::Report;
use serde_json::Value;

use super::{
    metrics::Metrics,
    tally::{Counts, Tally},
};
use crate::accounts::{ledger::Ledger, prices::Prices, tenants::Tenant};

/// Tells the time since some fixed moment.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// One HTTP request on its tenant's account.
pub(crate) struct UsageAccount {
    pub(crate) tenant: Arc<Tenant>,
    /// The tenant's prices, or the server's; with none an answer names no cost.
    pub(crate) prices: Option<Prices>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Clock,
}

impl UsageAccount {
    /// Charges what a prompt and its answer have cost, complete or not.
    pub(crate) fn charge(&self, report: &Report) {
        let tenant = &self.tenant;
        tenant.meter.charge(&tenant.limits, report.computed_tokens + report.generated_tokens, (self.clock)());
        let entry = self.ledger.enter(&tenant.name, report, self.prices.as_ref());
        self.metrics.charged(&tenant.name, report, &entry);
        self.count(Counts::tokens(report));
    }

    /// Counts for the tenant what happened to a prompt.
    pub(crate) fn count(&self, counts: Counts) {
        self.tally.add(&self.tenant.name, counts);
    }

    /// Writes into every `usage` of an answer what it costs: the cost of the numbers that stand
    /// there, so that the two cannot disagree.
    pub(crate) fn write_cost(&self, answer: &mut Value) {
        let Some(prices) = &self.prices else { return };
        match answer {
            Value::Array(answers) => answers.iter_mut().for_each(|answer| self.write_cost(answer)),
            answer => {
                // Dialects that count otherwise have no place for it.
                if let Some(Value::Object(usage)) = answer.get_mut("usage")
                    && usage.contains_key("prompt_tokens")
                {
                    let count = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0) as usize;
                    let cached =
                        usage.get("prompt_tokens_details").and_then(|tokens| tokens.get("cached_tokens"));
                    let (prompt, cached) = (count(usage.get("prompt_tokens")), count(cached));
                    let report = Report {
                        computed_tokens: prompt.saturating_sub(cached),
                        cached_tokens: cached,
                        generated_tokens: count(usage.get("completion_tokens")),
                        ..Report::default()
                    };
                    usage.insert("cost".to_owned(), prices.cost(&report).json());
                }
            }
        }
    }
}
