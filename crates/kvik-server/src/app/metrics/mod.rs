//! Prometheus metrics: an explicit registry, no global.

pub(crate) mod ahead;
mod disk;
mod engines;
mod life;
pub(crate) mod memory;
mod per_model;
mod register;
mod remote;
mod retain;
pub(crate) mod shelf;

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use kvik_engine::api::Report;
use kvik_engine::stats::EngineStats;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use ahead::AheadMetrics;
use engines::EngineMetrics;
use life::LifeMetrics;
use memory::MemoryMetrics;
use register::add;
use retain::RetainMetrics;
use shelf::ShelfMetrics;

use crate::accounts::ledger::Totals;

/// Upper bounds in seconds: from a cached prompt on a fast machine to a long one on a phone.
const FIRST_TOKEN_BUCKETS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabels {
    tenant: String,
}

/// A usage metric of each tenant since the server's start.
type PerTenant<C = Counter> = Family<TenantLabels, C>;

/// All metrics of the server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    computed_tokens: Counter,
    retokenised_tokens: Counter,
    generated_tokens: Counter,
    decoded_tokens: Counter,
    prefill_seconds: Counter<f64, AtomicU64>,
    decode_seconds: Counter<f64, AtomicU64>,
    first_token: Histogram,
    retain: RetainMetrics,
    pub(crate) memory: MemoryMetrics,
    pub(crate) ahead: AheadMetrics,
    pub(crate) life: LifeMetrics,
    tenants: TenantCounters,
    engines: EngineMetrics,
    pub(crate) shelf: ShelfMetrics,
    /// Held while what is set at each scrape is set and written.
    scraping: Mutex<()>,
}

/// The usage of each tenant, as billed.
struct TenantCounters {
    requests: PerTenant,
    prompt_tokens: PerTenant,
    cached_tokens: PerTenant,
    computed_tokens: PerTenant,
    generated_tokens: PerTenant,
    cost: PerTenant<Counter<f64, AtomicU64>>,
    saved_seconds: PerTenant<Counter<f64, AtomicU64>>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut registry = Registry::with_prefix("kvik");
        let r = &mut registry;
        let first_token = Histogram::new(FIRST_TOKEN_BUCKETS);
        let help = "From the arrival of a request to the first token of its answer";
        r.register_with_unit("time_to_first_token", help, Unit::Seconds, first_token.clone());
        Metrics {
            requests: add(r, "http_requests", "HTTP requests by route and status"),
            prompt_tokens: add(r, "prompt_tokens", "Tokens of prompts"),
            cached_tokens: add(r, "cached_tokens", "Prompt tokens whose keys and values came from the cache"),
            computed_tokens: add(r, "computed_tokens", "Prompt tokens that were computed"),
            retokenised_tokens: add(
                r,
                "retokenised_tokens",
                "Prompt tokens of answers as they were generated, where the tokenizer would have chosen others",
            ),
            generated_tokens: add(r, "generated_tokens", "Tokens generated"),
            decoded_tokens: add(
                r,
                "decoded_tokens",
                "Of these, tokens after the first one of each answer, which take the time of decode_seconds",
            ),
            prefill_seconds: add(r, "prefill_seconds", "Time spent on prompts"),
            decode_seconds: add(r, "decode_seconds", "Time spent on generating"),
            first_token,
            retain: RetainMetrics::new(r),
            memory: MemoryMetrics::new(r),
            ahead: AheadMetrics::new(r),
            life: LifeMetrics::new(r),
            tenants: TenantCounters::new(r),
            engines: EngineMetrics::new(r),
            shelf: ShelfMetrics::new(r),
            scraping: Mutex::default(),
            registry,
        }
    }

    /// Counts an HTTP request.
    pub(crate) fn request(&self, route: String, status: u16) {
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
    }

    /// Counts the usage of a request of `tenant`, complete or not; `totals` is the same usage as billed.
    pub(crate) fn charged(&self, tenant: &str, report: &Report, totals: &Totals) {
        self.tenants.add(tenant, totals);
        self.prompt_tokens.inc_by(report.prompt_tokens as u64);
        self.cached_tokens.inc_by(report.cached_tokens as u64);
        self.computed_tokens.inc_by(report.computed_tokens as u64);
        self.retokenised_tokens.inc_by(report.retokenised as u64);
        self.generated_tokens.inc_by(report.generated_tokens as u64);
        self.decoded_tokens.inc_by(report.decoded_tokens as u64);
        self.prefill_seconds.inc_by(report.prefill.as_secs_f64());
        self.decode_seconds.inc_by(report.decode.as_secs_f64());
    }

    /// Measures how long a client waited for the first token of its answer.
    pub(crate) fn first_token(&self, waited: Duration) {
        self.first_token.observe(waited.as_secs_f64());
    }

    /// Counts a complete answer.
    pub(crate) fn answered(&self, report: &Report) {
        if let Some(retained) = &report.retained {
            self.retain.answered(retained);
        }
    }

    /// Begins a scrape. Two at once would clear each other's numbers.
    pub(crate) fn begin_scrape(&self) -> MutexGuard<'_, ()> {
        // It guards no data that a panic could leave half changed: all of it is set again.
        self.scraping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text that Prometheus scrapes, with the numbers of these engines; several models are told apart by
    /// the label `model`.
    pub(crate) fn text(&self, engines: &[(Option<String>, EngineStats)]) -> Result<String, fmt::Error> {
        self.engines.set(engines);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        // The encoder writes a family without labels as `{}` and a single metric without; both are normalised
        // to the latter.
        Ok(text.replace("{} ", " "))
    }
}

impl TenantCounters {
    fn new(registry: &mut Registry) -> TenantCounters {
        let r = registry;
        TenantCounters {
            requests: add(r, "tenant_requests", "Prompts of a tenant, given up ones included"),
            prompt_tokens: add(r, "tenant_prompt_tokens", "Tokens of a tenant's prompts"),
            cached_tokens: add(
                r,
                "tenant_cached_tokens",
                "A tenant's prompt tokens that came from the cache",
            ),
            computed_tokens: add(r, "tenant_computed_tokens", "A tenant's prompt tokens that were computed"),
            generated_tokens: add(r, "tenant_generated_tokens", "Tokens generated for a tenant"),
            cost: add(r, "tenant_cost", "What a tenant's requests cost, by the prices that are set"),
            saved_seconds: add(r, "tenant_saved_seconds", "Prefill time that a tenant's cached tokens saved"),
        }
    }

    fn add(&self, tenant: &str, totals: &Totals) {
        let labels = TenantLabels { tenant: tenant.to_owned() };
        let counts = [
            (&self.requests, totals.requests),
            (&self.prompt_tokens, totals.prompt_tokens),
            (&self.cached_tokens, totals.cached_tokens),
            (&self.computed_tokens, totals.computed_tokens),
            (&self.generated_tokens, totals.generated_tokens),
        ];
        for (counter, value) in counts {
            counter.get_or_create(&labels).inc_by(value);
        }
        self.cost.get_or_create(&labels).inc_by(totals.cost.as_f64());
        self.saved_seconds.get_or_create(&labels).inc_by(totals.saved_seconds());
    }
}
