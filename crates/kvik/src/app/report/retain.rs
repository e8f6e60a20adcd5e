//! `kvik.retain`: what a sequence kept of its tokens, and what that costs by measurement.

use kvik_cache::retain::Retention;
use kvik_engine::api::{Report, Retained};
use serde_json::{Value, json};

use crate::{measured::Loss, serving::retaining::Retaining};

/// A retention that a request was given.
pub(super) struct Given {
    retention: Retention,
    /// What it was measured to lose, if it was.
    loss: Option<Loss>,
}

impl Given {
    pub(super) fn new(retention: Retention, retaining: &Retaining) -> Given {
        Given { retention, loss: retaining.loss(&retention) }
    }

    /// The object `kvik.retain`, when this was reported.
    pub(super) fn report(&self, report: &Report) -> Value {
        let mut retain = report.retained.as_deref().map_or_else(|| json!({"positions_dropped": 0}), kept);
        retain["policy"] = json!(self.retention.to_string());
        match &self.loss {
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
}

/// What it kept when it forgot last.
fn kept(retained: &Retained) -> Value {
    let all = retained.kept + retained.dropped;
    json!({
        "tokens": retained.tokens,
        "positions_kept": retained.kept,
        "positions_dropped": retained.dropped,
        "share_kept": if all > 0 { retained.kept as f64 / all as f64 } else { 1.0 },
        "smallest_head": retained.smallest_head,
        "largest_head": retained.largest_head,
    })
}
