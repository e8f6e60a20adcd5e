//! Metrics of the models of a server that has several.

use std::time::Duration;

use prometheus_client::{metrics::counter::Counter, registry::Registry};

use super::{
    per_model::{ModelLabels, PerModel, put, store},
    register::add,
};

/// The numbers of a model.
pub(crate) struct ModelNumbers<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_loaded: bool,
    /// Bytes that it may take in memory.
    pub(crate) bytes: u64,
    /// Requests that hold it, and that wait for it.
    pub(crate) in_use: usize,
    pub(crate) waiting: usize,
    /// Number of loads, and the duration of the last one.
    pub(crate) loads: u64,
    pub(crate) load_time: Duration,
}

/// Set at each scrape.
pub(crate) struct ShelfMetrics {
    is_loaded: PerModel,
    bytes: PerModel,
    in_use: PerModel,
    waiting: PerModel,
    load_ms: PerModel,
    loads: PerModel<Counter>,
}

impl ShelfMetrics {
    pub(super) fn new(r: &mut Registry) -> ShelfMetrics {
        ShelfMetrics {
            is_loaded: add(r, "model_in_memory", "1 while the model is in memory"),
            bytes: add(
                r,
                "model_bytes",
                "Memory that the model takes with its keys and values, or would take",
            ),
            in_use: add(r, "model_requests", "Requests that have the model"),
            waiting: add(r, "model_requests_waiting", "Requests that wait until it is in memory"),
            load_ms: add(r, "model_load_milliseconds", "What loading it took last"),
            loads: add(r, "model_loads", "Times that it was loaded"),
        }
    }

    /// Replaces all models by these.
    pub(crate) fn set<'a>(&self, models: impl IntoIterator<Item = ModelNumbers<'a>>) {
        let gauges = [&self.is_loaded, &self.bytes, &self.in_use, &self.waiting, &self.load_ms];
        gauges.iter().for_each(|family| family.clear());
        self.loads.clear();
        for model in models {
            let labels = ModelLabels::of(Some(model.name));
            let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            let load_ms = u64::try_from(model.load_time.as_millis()).unwrap_or(u64::MAX);
            let values =
                [usize::from(model.is_loaded), size(model.bytes), model.in_use, model.waiting, size(load_ms)];
            gauges.into_iter().zip(values).for_each(|(gauge, value)| put(gauge, &labels, value));
            store(&self.loads, &labels, model.loads);
        }
    }
}
