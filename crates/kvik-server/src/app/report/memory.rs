//! `kvik.memory` in the OpenAPI document. The memory crate defines the object itself (`TurnReport`); the tests check
//! every answer that carries one against these types.

use crate::{app::memory::SummarySource, described::JsonSchema};

/// What was read of a conversation that is remembered beyond the context.
#[derive(JsonSchema)]
#[schemars(rename = "Memory")]
#[allow(dead_code, reason = "a description of what another module words")]
pub(super) struct MemoryReport {
    messages: Messages,
    tokens: Tokens,
    /// The first and the last index of each exchange that is quoted.
    quotes: Vec<[usize; 2]>,
    /// A new summary is made behind the answer.
    rebuilding: bool,
    rebuilt: bool,
    computed_ahead: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<SummaryReport>,
    /// How the client could have more reused.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(dead_code, reason = "as above")]
struct Messages {
    prefix: usize,
    summarised: usize,
    let_go: usize,
    recent: usize,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(dead_code, reason = "as above")]
struct Tokens {
    prefix: usize,
    summary: usize,
    recent: usize,
    discarded_since: usize,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(dead_code, reason = "as above")]
struct SummaryReport {
    age_s: u64,
    updates: u64,
    kind: SummarySource,
    /// Why no newer one was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}
