//! Sums of usage and cost.

use std::{fmt, ops::AddAssign, str::FromStr, time::Duration};

use kvik_cache::tier::Level;
use kvik_engine::api::Report;
use serde::{Deserialize, Serialize};

use super::Day;
use crate::{accounts::prices::Cost, described::JsonSchema};

/// Identifies one row: a tenant's requests to one model on one UTC day.
///
/// Written as `2026-11-21/acme/model`, which sorts by day. A tenant's name has no slash; a
/// model's may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LedgerRow {
    pub(crate) day: Day,
    pub(crate) tenant: String,
    pub(crate) model: String,
}

/// The sums of a row. Fields that a record lacks are 0, so that later versions can add fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    /// Prompts, each with its answers; cancelled ones included.
    pub(crate) requests: u64,
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens whose keys and values came from the cache.
    pub(crate) cached_tokens: u64,
    /// Cached prompt tokens that came from disk.
    pub(crate) disk_tokens: u64,
    /// Cached prompt tokens that came from the host's memory, where a GPU computes.
    pub(crate) host_tokens: u64,
    /// Cached prompt tokens that other nodes had computed.
    pub(crate) remote_tokens: u64,
    /// Prompt tokens that were computed.
    pub(crate) computed_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) cost: Cost,
    /// Prefill time that the cached tokens would have taken, microseconds.
    pub(crate) saved_us: u64,
}

/// A row as `/v1/usage` and `kvik usage --json` give it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UsageRow {
    day: String,
    tenant: String,
    model: String,
    requests: u64,
    prompt_tokens: u64,
    cached_tokens: CachedTokens,
    computed_tokens: u64,
    generated_tokens: u64,
    hit_rate: f64,
    /// In the server's currency, all digits.
    cost: String,
    saved_seconds: f64,
}

/// By where they came from.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CachedTokens {
    ram: u64,
    /// From the host's memory, where a GPU computes; absent where nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<u64>,
    disk: u64,
    /// From the store that nodes share; absent where nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<u64>,
}

impl Totals {
    /// The totals of one request.
    pub(crate) fn of(report: &Report, cost: Cost, saved: Duration) -> Totals {
        Totals {
            requests: 1,
            prompt_tokens: report.prompt_tokens as u64,
            cached_tokens: report.cached_tokens as u64,
            disk_tokens: report.loaded[Level::Disk] as u64,
            host_tokens: report.loaded[Level::Host] as u64,
            remote_tokens: report.loaded[Level::Remote] as u64,
            computed_tokens: report.computed_tokens as u64,
            generated_tokens: report.generated_tokens as u64,
            cost,
            saved_us: u64::try_from(saved.as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// Share of prompt tokens that came from the cache; 0 without prompt tokens. Tokens of prompts that were given up
    /// before they were looked up or computed are no misses.
    pub(crate) fn hit_rate(&self) -> f64 {
        let read = self.cached_tokens.saturating_add(self.computed_tokens);
        if read == 0 { 0.0 } else { self.cached_tokens as f64 / read as f64 }
    }

    fn by_tier(&self) -> CachedTokens {
        let Totals { disk_tokens: disk, host_tokens: host, remote_tokens: remote, .. } = *self;
        let where_any = |tokens: u64| Some(tokens).filter(|&tokens| tokens > 0);
        CachedTokens {
            ram: self.cached_tokens.saturating_sub(disk + host + remote),
            host: where_any(host),
            disk,
            remote: where_any(remote),
        }
    }

    pub(crate) fn saved_seconds(&self) -> f64 {
        self.saved_us as f64 / 1e6
    }

    /// The row as JSON; the cost is text, so that it stays exact.
    pub(crate) fn shown(&self, row: &LedgerRow) -> UsageRow {
        UsageRow {
            day: row.day.to_string(),
            tenant: row.tenant.clone(),
            model: row.model.clone(),
            requests: self.requests,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.by_tier(),
            computed_tokens: self.computed_tokens,
            generated_tokens: self.generated_tokens,
            hit_rate: self.hit_rate(),
            cost: self.cost.to_string(),
            saved_seconds: self.saved_seconds(),
        }
    }
}

impl AddAssign<&Totals> for Totals {
    fn add_assign(&mut self, other: &Totals) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.requests, other.requests);
        add(&mut self.prompt_tokens, other.prompt_tokens);
        add(&mut self.cached_tokens, other.cached_tokens);
        add(&mut self.disk_tokens, other.disk_tokens);
        add(&mut self.host_tokens, other.host_tokens);
        add(&mut self.remote_tokens, other.remote_tokens);
        add(&mut self.computed_tokens, other.computed_tokens);
        add(&mut self.generated_tokens, other.generated_tokens);
        add(&mut self.saved_us, other.saved_us);
        self.cost += other.cost;
    }
}

impl fmt::Display for LedgerRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.day, self.tenant, self.model)
    }
}

impl FromStr for LedgerRow {
    type Err = String;

    fn from_str(text: &str) -> Result<LedgerRow, String> {
        let mut parts = text.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(day), Some(tenant), Some(model)) => {
                Ok(LedgerRow { day: day.parse()?, tenant: tenant.to_owned(), model: model.to_owned() })
            }
            _ => Err(format!("`{text}` is not DAY/TENANT/MODEL")),
        }
    }
}
