//! What vectors have cost and what the cache did, over all prompts of a request.

use std::collections::BTreeMap;

use kvik_cache::{StopReason, Token};
use kvik_engine::api::{Report, Request};
use serde_json::{Value, json};

use crate::app::{
    keys::Caller,
    report::{cache::Asked, usage},
    state::App,
    vectors::Computed,
};

/// What is said of the prompts of a request when all have ended.
pub(super) struct Ending {
    /// OpenAI's `usage`: nothing is generated.
    pub(super) usage: Value,
    /// llama-server's `timings`.
    pub(super) timings: Value,
    /// The object `kvik`.
    pub(super) kvik: Value,
}

/// The tokens of a request's prompt, where it has one only: then the answer says where reuse stopped in it.
pub(super) fn only_prompt(requests: &[Request]) -> Option<Vec<Token>> {
    if let [only] = requests { Some(only.prompt.clone()) } else { None }
}

impl Ending {
    /// Of all that was computed; `only` is the prompt where there is one only.
    pub(super) fn new(app: &App, caller: &Caller, computed: &[Computed], only: Option<Vec<Token>>) -> Ending {
        let mut total = Report::default();
        computed.iter().for_each(|computed| usage::add(&mut total, &computed.report));
        let mut answer = json!({"usage": {
            "prompt_tokens": total.prompt_tokens,
            "total_tokens": total.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": total.cached_tokens},
        }});
        app.write_cost(caller, &mut answer);
        let tokenizer = app.serving.tokenizer.clone();
        let cache = match only {
            Some(tokens) => Asked { tokenizer, tokens, messages: None }.cache_report((&total).into()),
            None => together(computed, &total),
        };
        Ending {
            usage: answer["usage"].take(),
            timings: usage::timings(&total),
            kvik: json!({"cache": cache}),
        }
    }
}

/// `kvik.cache` of many prompts: a report for each would be longer than the vectors.
fn together(computed: &[Computed], total: &Report) -> Value {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for stop in computed.iter().filter_map(|computed| computed.report.cache) {
        *reasons.entry(StopReason::name(stop)).or_default() += 1;
    }
    json!({
        "prompts": computed.len(),
        "prompt_tokens": total.prompt_tokens,
        "cached_tokens": total.cached_tokens,
        "by_tier": {
            "ram": total.cached_tokens.saturating_sub(total.disk_tokens),
            "disk": total.disk_tokens,
        },
        "reasons": reasons,
    })
}
