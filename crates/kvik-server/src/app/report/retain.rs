//! `kvik.retain`: the positions that a sequence retained, and the measured loss of that retention.

use std::ops::Range;

use kvik_cache::retain::Retention;
use kvik_engine::api::{Request, Retained};
use serde::Serialize;

use crate::described::JsonSchema;
use kvik_serving::retaining::{Reach, Retaining};

/// What was kept of the tokens of a prompt with a retention.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct RetainReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    positions_kept: Option<u64>,
    positions_dropped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_kept: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smallest_head: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_head: Option<usize>,
    /// How often memory was short and it forgot for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    tightened: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    positions: Option<KeptPositions>,
    policy: String,
    /// False where nobody has measured what this loses.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<MeasuredLoss>,
}

/// Which positions were kept.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct KeptPositions {
    layers: usize,
    heads: usize,
    tokens: usize,
    /// `[layers * heads][ranges]`, each its start and its end.
    kept: Vec<Vec<[u32; 2]>>,
}

/// What a policy was measured to lose.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct MeasuredLoss {
    mean_percent: f64,
    worst_percent: f64,
    worst_task: String,
    cases: usize,
}

/// The retention of a request.
pub(super) struct Given {
    /// The policy; `None` to retain everything, or the positions that the engine finds in a compressed prefix.
    retention: Option<Retention>,
    reach: Reach,
}

impl Given {
    pub(super) fn to(request: &Request) -> Given {
        let reach = if request.kept_prefix.is_some() { Reach::Prefix } else { Reach::Sequence };
        Given { retention: request.retention, reach }
    }

    /// The object `kvik.retain` for the reported retention; `None` if nothing was to be dropped.
    pub(super) fn report(&self, retained: Option<&Retained>, retaining: &Retaining) -> Option<RetainReport> {
        let retention = self.retention.or(retained.map(|retained| retained.retention))?;
        Some(report(&retention, self.reach, retained, retaining))
    }
}

/// The object `kvik.retain` of a retention with this reach, for the reported positions.
pub(crate) fn report(
    retention: &Retention,
    reach: Reach,
    retained: Option<&Retained>,
    retaining: &Retaining,
) -> RetainReport {
    let loss = retaining.loss(retention, reach).map(|loss| MeasuredLoss {
        mean_percent: loss.mean,
        worst_percent: loss.worst,
        worst_task: loss.worst_task,
        cases: loss.cases,
    });
    let measured = loss.is_none().then_some(false);
    let kept = retained.map(kept).unwrap_or_default();
    RetainReport { policy: retention.to_string(), measured, loss, ..kept }
}

/// The positions retained at the last compression.
fn kept(retained: &Retained) -> RetainReport {
    let all = retained.kept + retained.dropped;
    RetainReport {
        tokens: Some(retained.tokens),
        positions_kept: Some(retained.kept),
        positions_dropped: retained.dropped,
        share_kept: Some(if all > 0 { retained.kept as f64 / all as f64 } else { 1.0 }),
        smallest_head: Some(retained.smallest_head),
        largest_head: Some(retained.largest_head),
        tightened: Some(retained.tightened.len()),
        positions: retained.positions.as_ref().map(|positions| shown(positions, retained.tokens)),
        ..RetainReport::default()
    }
}

/// The retained positions, `[layers][kv_heads]`, as one list of heads.
fn shown(positions: &[Vec<Vec<Range<u32>>>], tokens: usize) -> KeptPositions {
    let ranges = |head: &Vec<Range<u32>>| head.iter().map(|range| [range.start, range.end]).collect();
    KeptPositions {
        layers: positions.len(),
        heads: positions.first().map_or(0, Vec::len),
        tokens,
        kept: positions.iter().flatten().map(ranges).collect(),
    }
}
