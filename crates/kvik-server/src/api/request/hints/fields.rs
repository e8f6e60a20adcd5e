//! The fields that hold hints, under the names of the servers that define them.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::{DAY, HIGH, Hints, USUAL, not_understood};
use crate::{
    api::request::{parts::Part, place::Place},
    described::JsonSchema,
    http::json::Json,
};

/// Hints of any shape: none of them refuses a request.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct HintFields {
    /// OpenAI's: `24h` keeps the prompt before others for a day after its last use.
    #[schemars(with = "Option<Value>")]
    prompt_cache_retention: Option<Json>,
    /// OpenAI's: `flex` has the prompt evicted before others.
    #[schemars(with = "Option<Value>")]
    service_tier: Option<Json>,
    /// Anthropic's: `{"type": "ephemeral", "ttl": "5m"}` keeps the prompt before others for that time after its last use.
    #[schemars(with = "Option<Value>")]
    cache_control: Option<Json>,
    /// vLLM's: `{"start", "end", "priority", "duration"}` each; the whole prompt gets the highest priority, 0 to 100, for
    /// the longest duration, in seconds.
    #[schemars(with = "Option<Value>")]
    retention_directives: Option<Json>,
    /// vLLM's: `cache_control` in it, with `ttl` in seconds.
    #[schemars(with = "Option<Value>")]
    agent_hint: Option<Json>,
    /// Dynamo's: `cache_control`, and `priority` and `speculative_prefill` of `agent_hints`.
    #[schemars(with = "Option<Value>")]
    nvext: Option<Json>,
}

impl Part for HintFields {}

/// Reads a field, with notes on what of it is ignored; `None` if it is not understood.
type ReadHint = fn(&Place<'_>, &mut dyn FnMut(String)) -> Option<Hints>;

impl HintFields {
    pub(super) fn hints(&self, note: &mut dyn FnMut(String)) -> Hints {
        let fields: [(&str, &Option<Json>, ReadHint); 6] = [
            ("prompt_cache_retention", &self.prompt_cache_retention, |field, _| retention(field)),
            ("service_tier", &self.service_tier, |field, _| tier(field)),
            ("cache_control", &self.cache_control, |field, _| cache_control(field)),
            ("retention_directives", &self.retention_directives, |field, _| directives(field)),
            ("agent_hint", &self.agent_hint, agent_hint),
            ("nvext", &self.nvext, nvext),
        ];
        let mut hints = Hints::default();
        for (name, field, read) in fields {
            let Some(Json(value)) = field else { continue };
            match read(&Place::new(name, value), note) {
                Some(more) => hints = hints.and(more),
                None => note(not_understood(name)),
            }
        }
        hints
    }
}

fn retention(field: &Place<'_>) -> Option<Hints> {
    match field.value.as_str()? {
        "24h" => Some(Hints::raised(HIGH.into(), DAY)),
        "in_memory" | "in-memory" => Some(Hints::default()),
        _ => None,
    }
}

fn tier(field: &Place<'_>) -> Option<Hints> {
    match field.value.as_str()? {
        "flex" => Some(Hints::low()),
        "auto" | "default" => Some(Hints::default()),
        _ => None,
    }
}

/// Reads `{"type": "ephemeral", "ttl"}`, with a time in any of [these forms](time).
pub(super) fn cache_control(field: &Place<'_>) -> Option<Hints> {
    if field.get("type")?.value != "ephemeral" {
        return None;
    }
    field.get("ttl").map_or(Some(USUAL), |ttl| time(ttl.value)).map(Hints::kept_for)
}

fn directives(field: &Place<'_>) -> Option<Hints> {
    let mut hints = Hints::default();
    for directive in field.value.as_array()? {
        let directive = Place::new("", directive);
        let priority = directive.get("priority")?.whole().ok();
        let priority = priority.filter(|priority| (0..=100).contains(priority))?;
        let lasts = directive.get("duration").map_or(Some(DAY), |duration| time(duration.value))?;
        if priority > 0 {
            hints = hints.and(Hints::raised((priority + 1) / 2, lasts));
        }
    }
    Some(hints)
}

fn agent_hint(field: &Place<'_>, note: &mut dyn FnMut(String)) -> Option<Hints> {
    field.auxiliary(&["cache_control"]).ok()?.for_each(note);
    field.get("cache_control").map_or(Some(Hints::default()), |control| cache_control(&control))
}

fn nvext(field: &Place<'_>, note: &mut dyn FnMut(String)) -> Option<Hints> {
    field.auxiliary(&["agent_hints", "cache_control"]).ok()?.for_each(&mut *note);
    let mut hints = Hints::default();
    if let Some(control) = field.get("cache_control") {
        hints = cache_control(&control)?;
    }
    let Some(agent) = field.get("agent_hints") else { return Some(hints) };
    agent.auxiliary(&["priority", "speculative_prefill"]).ok()?.for_each(note);
    if let Some(priority) = agent.get("priority") {
        hints = hints.and(match priority.whole().ok()? {
            0 => Hints::default(),
            raised @ 1.. => Hints::raised(raised, USUAL),
            _ => Hints::low(),
        });
    }
    let next_turn = agent.get("speculative_prefill").map(|expected| expected.bool()).transpose().ok()?;
    Some(Hints { next_turn, ..hints })
}

/// Reads seconds, or a text with a unit.
fn time(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => duration_of(text),
        other => Duration::try_from_secs_f64(other.as_f64()?).ok(),
    }
}

/// Reads a number with the unit `s`, `m` or `h`.
pub(super) fn duration_of(text: &str) -> Option<Duration> {
    let (count, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    count.parse::<u32>().ok().map(|count| Duration::from_secs(u64::from(count) * seconds))
}
