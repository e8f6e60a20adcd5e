//! Usage of an answer, in OpenAI's form (`usage`) and in llama-server's (`timings`).
//!
//! Both are derived from the engine's report alone, so they state the work actually done.

use std::time::Duration;

use kvik_engine::api::Report;
use serde::Serialize;

use super::token_scale::TokenScale;
use crate::{accounts::prices::Prices, described::JsonSchema};

/// OpenAI's `usage`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokens,
    /// Of a chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<ReasoningTokens>,
    /// In the server's currency, where it has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

/// Of the tokens of a prompt those that came from the cache.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PromptTokens {
    pub(crate) cached_tokens: usize,
}

/// Of the tokens of an answer those of thoughts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ReasoningTokens {
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    /// Usage of a prompt and its answer.
    pub(crate) fn of(report: &Report, prices: Option<&Prices>) -> Usage {
        Usage {
            prompt_tokens: report.prompt_tokens,
            completion_tokens: report.generated_tokens,
            total_tokens: report.prompt_tokens + report.generated_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens: report.cached_tokens },
            completion_tokens_details: None,
            cost: prices.map(|prices| cost(report, prices)),
        }
    }

    /// Usage of one choice, from [its report](of_choice). The prompt is paid with the first.
    pub(crate) fn of_choice(own: &Report, choice: usize, prices: Option<&Prices>) -> Usage {
        let paid = match choice {
            0 => own.clone(),
            _ => Report { prompt_tokens: 0, cached_tokens: 0, ..own.clone() },
        };
        Usage { cost: prices.map(|prices| cost(&paid, prices)), ..Usage::of(own, None) }
    }

    /// Adds the number of thinking tokens in the answer.
    pub(crate) fn with_thoughts(self, reasoning_tokens: usize) -> Usage {
        Usage { completion_tokens_details: Some(ReasoningTokens { reasoning_tokens }), ..self }
    }

    /// The same counts in the scale of a client. The cost is that of the real ones.
    pub(crate) fn told(self, scale: TokenScale) -> Usage {
        let (prompt, all) = (self.prompt_tokens, self.total_tokens);
        let thoughts = |thoughts: ReasoningTokens| ReasoningTokens {
            reasoning_tokens: scale.between(prompt, prompt + thoughts.reasoning_tokens),
        };
        Usage {
            prompt_tokens: scale.told(prompt),
            completion_tokens: scale.between(prompt, all),
            total_tokens: scale.told(all),
            prompt_tokens_details: PromptTokens {
                cached_tokens: scale.told(self.prompt_tokens_details.cached_tokens),
            },
            completion_tokens_details: self.completion_tokens_details.map(thoughts),
            ..self
        }
    }
}

/// The report of one choice of a prompt, which is computed with the first: the others have it from the cache. Without the
/// counts of single choices, as before the end, nothing is generated.
pub(crate) fn of_choice(report: &Report, choice: usize) -> Report {
    let own = report.choices.get(choice).copied().unwrap_or_default();
    let first = Report {
        generated_tokens: own.generated,
        decoded_tokens: own.decoded,
        drafted_tokens: own.drafted,
        accepted_tokens: own.accepted,
        ..report.clone()
    };
    match choice {
        0 => first,
        _ => Report {
            cached_tokens: report.prompt_tokens,
            computed_tokens: 0,
            prefill: Duration::ZERO,
            prompt_time: Duration::ZERO,
            ..first
        },
    }
}

/// The cost of the numbers that an answer reports, so that the two agree.
pub(crate) fn cost(report: &Report, prices: &Prices) -> f64 {
    let shown = Report {
        computed_tokens: report.prompt_tokens.saturating_sub(report.cached_tokens),
        cached_tokens: report.cached_tokens,
        generated_tokens: report.generated_tokens,
        ..Report::default()
    };
    prices.cost(&shown).nearest()
}

/// llama-server's `timings`; times in milliseconds.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    draft_n: usize,
    draft_n_accepted: usize,
}

impl Timings {
    pub(crate) fn of(report: &Report) -> Timings {
        let (prompt_ms, predicted_ms) = (ms(report.prefill), ms(report.decode));
        let (prompt_n, predicted_n) = (report.computed_tokens, report.generated_tokens);
        Timings {
            cache_n: report.cached_tokens,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(1e3 * prompt_n as f64, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, predicted_n as f64),
            predicted_per_second: ratio(1e3 * predicted_n as f64, predicted_ms),
            draft_n: report.drafted_tokens,
            draft_n_accepted: report.accepted_tokens,
        }
    }
}

/// Milliseconds, to the microsecond.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// A ratio, or 0 for a zero divisor: JSON has no infinity.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use kvik_engine::api::ChoiceTokens;
    use serde_json::json;

    use super::*;
    use crate::http::answer::value;

    fn report() -> Report {
        Report {
            prompt_tokens: 200,
            cached_tokens: 160,
            retokenised: 0,
            computed_tokens: 40,
            generated_tokens: 10,
            drafted_tokens: 6,
            accepted_tokens: 4,
            prefill: Duration::from_millis(80),
            decode: Duration::from_millis(500),
            ..Report::default()
        }
    }

    #[test]
    fn timings_agree_with_the_report() {
        let expect = json!({
            "cache_n": 160, "prompt_n": 40,
            "prompt_ms": 80.0, "prompt_per_token_ms": 2.0, "prompt_per_second": 500.0,
            "predicted_n": 10, "predicted_ms": 500.0, "predicted_per_token_ms": 50.0,
            "predicted_per_second": 20.0, "draft_n": 6, "draft_n_accepted": 4,
        });
        assert_eq!(value(&Timings::of(&report())), expect);
    }

    #[test]
    fn usage_counts_the_cached_tokens() {
        let expect = json!({
            "prompt_tokens": 200, "completion_tokens": 10, "total_tokens": 210,
            "prompt_tokens_details": {"cached_tokens": 160},
        });
        assert_eq!(value(&Usage::of(&report(), None)), expect);
    }

    #[test]
    fn usage_in_a_clients_scale_adds_up_and_costs_the_same() {
        let prices: Prices = toml::from_str("input = 1.0\ncached = 0.5\noutput = 2.0").unwrap();
        let real = Usage::of(&report(), Some(&prices)).with_thoughts(4);
        let told = value(&real.clone().told(TokenScale::of(1_000, 300)));
        let expect = json!({
            "prompt_tokens": 667, "completion_tokens": 33, "total_tokens": 700,
            "prompt_tokens_details": {"cached_tokens": 534},
            "completion_tokens_details": {"reasoning_tokens": 13}, "cost": value(&real)["cost"],
        });
        assert_eq!(told, expect);
        assert_eq!(value(&real.clone().told(TokenScale::default())), value(&real));
    }

    #[test]
    fn the_choices_of_a_prompt_add_up_to_its_report() {
        let prices: Prices = toml::from_str("input = 1.0\ncached = 0.5\noutput = 2.0").unwrap();
        let tokens = |generated| ChoiceTokens { generated, drafted: 2, ..ChoiceTokens::default() };
        let whole = Report { choices: [7, 0, 3].map(tokens).into(), ..report() };
        let own: Vec<Report> = (0..3).map(|choice| of_choice(&whole, choice)).collect();
        let sum = |of: fn(&Report) -> usize| own.iter().map(of).sum::<usize>();
        assert_eq!(sum(|own| own.generated_tokens), whole.generated_tokens);
        assert_eq!(sum(|own| own.drafted_tokens), whole.drafted_tokens);
        assert_eq!(sum(|own| own.computed_tokens), whole.computed_tokens);
        assert_eq!(own.iter().map(|own| own.prefill).sum::<Duration>(), whole.prefill);
        let usage = own.iter().enumerate().map(|(i, own)| Usage::of_choice(own, i, Some(&prices)));
        let told: Vec<_> = usage.map(|usage| value(&usage)).collect();
        let costs: Vec<f64> = told.iter().filter_map(|usage| usage["cost"].as_f64()).collect();
        assert_eq!(costs, [40.0 + 80.0 + 14.0, 0.0, 6.0]);
        assert_eq!(costs.iter().sum::<f64>(), cost(&whole, &prices));
        let cached: Vec<_> =
            told.iter().map(|usage| &usage["prompt_tokens_details"]["cached_tokens"]).collect();
        assert_eq!(cached, [160, 200, 200]);
    }

    #[test]
    fn nothing_computed_divides_by_nothing() {
        let timings = value(&Timings::of(&Report::default()));
        assert_eq!(timings["prompt_per_second"], 0.0);
        assert_eq!(timings["predicted_per_token_ms"], 0.0);
    }

    #[test]
    fn reports_of_several_prompts_add_up() {
        let mut total = Report::default();
        total.add(&report());
        total.add(&report());
        assert_eq!(value(&Usage::of(&total, None))["total_tokens"], 420);
        assert_eq!(value(&Timings::of(&total))["prompt_ms"], 160.0);
    }
}
