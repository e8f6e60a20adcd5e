//! `kvik.retain`: what a sequence kept of its tokens, and what that costs by measurement.

use std::ops::Range;

use kvik_cache::retain::Retention;
use kvik_engine::api::{Request, Retained};
use serde_json::{Value, json};

use crate::serving::retaining::{Reach, Retaining};

/// What a request was given to keep.
pub(super) struct Given {
    /// By what policy; `None`: all, or what the engine finds kept of a prefix.
    retention: Option<Retention>,
    reach: Reach,
}

impl Given {
    pub(super) fn to(request: &Request) -> Given {
        let reach = if request.kept_prefix.is_some() { Reach::Prefix } else { Reach::Sequence };
        Given { retention: request.retention, reach }
    }

    /// The object `kvik.retain`, when this was kept; `None` where nothing was to be forgotten.
    pub(super) fn report(&self, retained: Option<&Retained>, retaining: &Retaining) -> Option<Value> {
        let retention = self.retention.or(retained.map(|retained| retained.retention))?;
        Some(report(&retention, self.reach, retained, retaining))
    }
}

/// The object `kvik.retain` of a retention with this reach, when this was kept.
pub(crate) fn report(
    retention: &Retention,
    reach: Reach,
    retained: Option<&Retained>,
    retaining: &Retaining,
) -> Value {
    let mut retain = retained.map_or_else(|| json!({"positions_dropped": 0}), kept);
    retain["policy"] = json!(retention.to_string());
    match retaining.loss(retention, reach) {
        None => retain["measured"] = json!(false),
        Some(loss) => {
            retain["loss"] = json!({
                "mean_percent": loss.mean,
                "worst_percent": loss.worst,
                "worst_task": loss.worst_task,
                "cases": loss.cases,
            });
        }
    }
    retain
}

/// What it kept when it forgot last.
fn kept(retained: &Retained) -> Value {
    let all = retained.kept + retained.dropped;
    let mut said = json!({
        "tokens": retained.tokens,
        "positions_kept": retained.kept,
        "positions_dropped": retained.dropped,
        "share_kept": if all > 0 { retained.kept as f64 / all as f64 } else { 1.0 },
        "smallest_head": retained.smallest_head,
        "largest_head": retained.largest_head,
        "tightened": retained.tightened.len(),
    });
    if let Some(positions) = &retained.positions {
        said["positions"] = shown(positions, retained.tokens);
    }
    said
}

/// Which positions were kept, `[layers][kv_heads]`, as one list of heads.
fn shown(positions: &[Vec<Vec<Range<u32>>>], tokens: usize) -> Value {
    let ranges =
        |head: &Vec<Range<u32>>| json!(head.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>());
    json!({
        "layers": positions.len(),
        "heads": positions.first().map_or(0, Vec::len),
        "tokens": tokens,
        "kept": positions.iter().flatten().map(ranges).collect::<Vec<Value>>(),
    })
}
