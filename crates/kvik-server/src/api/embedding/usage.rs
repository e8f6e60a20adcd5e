//! Cost and cache report of vectors, over all prompts of a request.

use std::collections::BTreeMap;

use kvik_cache::{StopReason, Token};
use kvik_engine::api::{Report, Request};
use serde::Serialize;

use crate::{
    app::{
        keys::Caller,
        report::{
            cache::{Asked, ByTier, CacheReport, Found},
            usage::{self, PromptTokens, Timings},
        },
        state::App,
        vectors::Computed,
    },
    described::JsonSchema,
};

/// What is said of the prompts of a request when all have ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Ending {
    usage: PromptUsage,
    timings: Timings,
    kvik: CacheOnly,
}

/// OpenAI's `usage`: nothing is generated.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PromptUsage {
    prompt_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
    /// In the server's currency, where it has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

/// The object `kvik`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CacheOnly {
    cache: Cache,
}

/// Of a single prompt as in every other answer, of many all together.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Cache {
    Only(CacheReport),
    Together(Together),
}

/// `kvik.cache` of many prompts: a report for each would be longer than the vectors.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Together {
    prompts: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    by_tier: ByTier,
    /// How many stopped for which reason.
    reasons: BTreeMap<&'static str, usize>,
}

/// Returns the tokens of a request's only prompt, for which the answer reports where reuse stopped; none for
/// several.
pub(super) fn only_prompt(requests: &[Request]) -> Option<Vec<Token>> {
    if let [only] = requests { Some(only.prompt.clone()) } else { None }
}

impl Ending {
    /// Sums up the reports of all vectors; `only` is the prompt, if there is exactly one.
    pub(super) fn new(app: &App, caller: &Caller, computed: &[Computed], only: Option<Vec<Token>>) -> Ending {
        let mut total = Report::default();
        computed.iter().for_each(|computed| total.add(&computed.report));
        let texts = app.serving.texts.clone();
        let cache = match only {
            Some(tokens) => {
                Cache::Only(Asked { texts, tokens, messages: None }.cache_report((&total).into()))
            }
            None => Cache::Together(Together::of(computed, &total)),
        };
        Ending {
            usage: PromptUsage {
                prompt_tokens: total.prompt_tokens,
                total_tokens: total.prompt_tokens,
                prompt_tokens_details: PromptTokens { cached_tokens: total.cached_tokens },
                cost: app
                    .prices(caller)
                    .map(|prices| usage::cost(&Report { generated_tokens: 0, ..total.clone() }, &prices)),
            },
            timings: Timings::of(&total),
            kvik: CacheOnly { cache },
        }
    }
}

impl Together {
    fn of(computed: &[Computed], total: &Report) -> Together {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for stop in computed.iter().filter_map(|computed| computed.report.cache) {
            *reasons.entry(StopReason::name(stop)).or_default() += 1;
        }
        Together {
            prompts: computed.len(),
            prompt_tokens: total.prompt_tokens,
            cached_tokens: total.cached_tokens,
            by_tier: Found::from(total).by_tier(),
            reasons,
        }
    }
}
