//! Metrics that each model has.

use std::sync::atomic::Ordering;

use prometheus_client::{
    encoding::{EncodeLabelSet, LabelSetEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

/// A metric of each model, and of each kind where the metric has kinds.
pub(super) type PerModel<M = Gauge> = Family<ModelLabels, M>;

/// The model, where there are several, and a label of the metric's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct ModelLabels {
    model: Option<String>,
    kind: Option<(&'static str, &'static str)>,
}

impl ModelLabels {
    /// Labels of a model; `None` for the only one.
    pub(super) fn of(model: Option<&str>) -> ModelLabels {
        ModelLabels { model: model.map(str::to_owned), kind: None }
    }

    /// Adds a label of the metric's own.
    pub(super) fn with(&self, label: &'static str, value: &'static str) -> ModelLabels {
        ModelLabels { kind: Some((label, value)), ..self.clone() }
    }
}

impl EncodeLabelSet for ModelLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let model = self.model.as_deref().map(|model| ("model", model));
        model.into_iter().chain(self.kind).collect::<Vec<_>>().encode(encoder)
    }
}

/// Sets a gauge of a model.
pub(super) fn put(gauge: &PerModel, labels: &ModelLabels, value: usize) {
    gauge.get_or_create(labels).set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Sets a counter of a model to a count maintained by the engine.
pub(super) fn store(counter: &PerModel<Counter>, labels: &ModelLabels, value: u64) {
    counter.get_or_create(labels).inner().store(value, Ordering::Relaxed);
}
