//! `kvik.retain`: what a sequence kept of its tokens, and what that costs by measurement.

use kvik_cache::retain::Retention;
use kvik_engine::api::{Request, Retained};
use serde_json::{Value, json};

use crate::{
    measured::Loss,
    serving::retaining::{Reach, Retaining},
};

/// A retention that a request was given.
pub(crate) struct Given {
    retention: Retention,
    /// What it was measured to lose, if it was.
    loss: Option<Loss>,
}

impl Given {
    /// That of a request, if it was given one.
    pub(super) fn to(request: &Request, retaining: &Retaining) -> Option<Given> {
        let reach = if request.kept_prefix.is_some() { Reach::Prefix } else { Reach::Sequence };
        request.retention.map(|retention| Given::new(retention, reach, retaining))
    }

    pub(crate) fn new(retention: Retention, reach: Reach, retaining: &Retaining) -> Given {
        Given { retention, loss: retaining.loss(&retention, reach) }
    }

    /// The object `kvik.retain`, when this was kept.
    pub(crate) fn report(&self, retained: Option<&Retained>) -> Value {
        let mut retain = retained.map_or_else(|| json!({"positions_dropped": 0}), kept);
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
        "tightened": retained.tightened.len(),
    })
}
