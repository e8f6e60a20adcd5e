//! Hints of clients that were written for other servers, as one value whatever the dialect: how long a prompt is worth
//! keeping, and whether its next turn is expected; `docs/hints.md` has a row for each.
//!
//! A hint orders the prefixes of its own tenant alone, by a priority from `low` to `high` of which a raised one ends within
//! a day of the last use; kvik's own fields win. A hint that is not understood is ignored with a note, because the servers
//! that it is meant for change its form.

mod fields;

use std::time::Duration;

use kvik_cache::{Lifetime, RaisedPriority};
use serde_json::Value;

use super::{cache::Keep, parts::FromBody, place::Place};
use crate::http::{error::ApiError, json::Body};
use fields::HintFields;

/// Priority of a prompt that is evicted before others; `low` of `kvik.priority`.
const LOW: i8 = -50;
/// Priority of a prompt that is to be kept for some minutes.
const RAISED: i8 = 25;
/// Priority of a prompt that is to be kept for an hour or longer, and the highest of a hint; `high` of `kvik.priority`.
const HIGH: i8 = 50;
/// How long a priority is raised where the client gives no time, as in Anthropic's API.
const USUAL: Duration = Duration::from_secs(300);
/// From this time on, a prompt is to be kept for long.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Maximum time for which a hint raises a priority.
const DAY: Duration = Duration::from_secs(86400);

/// The hints of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Hints {
    raised: Option<RaisedPriority>,
    /// Whether the prompt is evicted before others.
    is_low: bool,
    /// Whether the next turn of the chat is expected, if the client says so.
    pub(crate) next_turn: Option<bool>,
}

impl Hints {
    /// Reads the hints of a body in OpenAI's or llama-server's form.
    fn of(body: &Body) -> Hints {
        // The values are of any shape, so that only a body beyond its memory fails, whose other fields then say so.
        let fields: HintFields = body.read().unwrap_or_default();
        fields.hints(&mut |note| body.note(note))
    }

    /// Returns the hint of Anthropic's `cache_control` with this `ttl`.
    pub(crate) fn of_ttl(ttl: Option<&str>) -> Hints {
        Hints::kept_for(ttl.and_then(fields::duration_of).unwrap_or(USUAL))
    }

    /// Reads `cache_control` of messages and of the parts of their contents, with a note on the first that is not understood.
    pub(crate) fn in_messages(messages: &[Value], note: &mut dyn FnMut(String)) -> Hints {
        let (mut hints, mut ignored) = (Hints::default(), None);
        for (index, message) in messages.iter().enumerate() {
            let message = Place::new(format!("messages[{index}]"), message);
            let content = message.get("content").filter(|content| content.value.is_array());
            let parts = content.and_then(|content| content.items().ok()).into_iter().flatten();
            let parts: Vec<Place<'_>> = parts.collect();
            for control in [message].iter().chain(&parts).filter_map(|part| part.get("cache_control")) {
                match fields::cache_control(&control) {
                    Some(more) => hints = hints.and(more),
                    None => ignored = ignored.or(Some(control.path)),
                }
            }
        }
        ignored.into_iter().for_each(|path| note(not_understood(&path)));
        hints
    }

    /// Combines two hints: the stronger in each respect.
    pub(crate) fn and(self, other: Hints) -> Hints {
        let raised = RaisedPriority::either(self.raised, other.raised);
        let next_turn = self.next_turn.or(other.next_turn);
        Hints { raised, is_low: self.is_low || other.is_low, next_turn }
    }

    /// Returns how long the prompt is kept: as kvik's own fields say, or by the hints where none of those is there.
    pub(crate) fn lifetime(self, own: &Keep) -> Lifetime {
        if own.says_lifetime {
            return own.lifetime;
        }
        Lifetime { priority: if self.is_low { LOW } else { 0 }, raised: self.raised, ..own.lifetime }
    }

    /// Keeps the prompt before others, from 1 to [`HIGH`], for a time after its last use.
    fn raised(priority: i64, lasts: Duration) -> Hints {
        let priority = priority.clamp(1, HIGH.into()) as i8;
        Hints { raised: Some(RaisedPriority { priority, lasts: lasts.min(DAY) }), ..Hints::default() }
    }

    /// Keeps the prompt for a time; what is to be kept for longer comes before.
    fn kept_for(lasts: Duration) -> Hints {
        Hints::raised(if lasts >= HOUR { HIGH } else { RAISED }.into(), lasts)
    }

    /// Evicts the prompt before others.
    fn low() -> Hints {
        Hints { is_low: true, ..Hints::default() }
    }
}

impl FromBody for Hints {
    fn from_body(body: &Body) -> Result<Hints, ApiError> {
        Ok(Hints::of(body))
    }

    #[cfg(test)]
    fn describe(generator: &mut schemars::SchemaGenerator, schema: &mut serde_json::Map<String, Value>) {
        HintFields::describe(generator, schema);
    }
}

/// The note on a hint that has no effect.
fn not_understood(path: &str) -> String {
    format!("`{path}` is a hint that is not understood, and was ignored")
}

#[cfg(test)]
mod tests;
