//! `kvik explain`: asks a running server what a request would find in its cache.

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

/// Says what a request would find in the cache of a running server, without running it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik explain request.json                            the server on this machine
  kvik explain request.json --url http://host:8080     another one
  kvik explain request.json --json                     the answer as it is

A request is the body of a chat (`messages`) or of a completion (`prompt`). Nothing is computed
and nothing in the cache changes, not even what is evicted next.")]
pub(crate) struct ExplainArgs {
    /// The body of a request, as JSON
    #[arg(value_name = "REQUEST.JSON")]
    request: PathBuf,
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The key, where the server wants one
    #[arg(long, value_name = "KEY", hide_env_values = true, hide_default_value = true)]
    key: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let body = fs::read_to_string(&args.request)
        .with_context(|| format!("cannot read {}", args.request.display()))?;
    let answer = ask(args, &body)?;
    if args.json {
        println!("{answer:#}");
        return Ok(());
    }
    match &answer["kvik"]["cache"] {
        Value::Array(prompts) => {
            for (index, cache) in prompts.iter().enumerate() {
                println!("prompt {index}: {}", sentences(cache));
            }
        }
        cache => println!("{}", sentences(cache)),
    }
    Ok(())
}

fn ask(args: &ExplainArgs, body: &str) -> anyhow::Result<Value> {
    let url = format!("{}/v1/cache/explain", args.url.trim_end_matches('/'));
    let config = ureq::Agent::config_builder().http_status_as_error(false).build();
    let mut request = ureq::Agent::from(config).post(&url).header("content-type", "application/json");
    if let Some(key) = &args.key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request.send(body).with_context(|| format!("there is no answer from {url}"))?;
    let text =
        response.body_mut().read_to_string().with_context(|| format!("the answer of {url} broke off"))?;
    let answer: Value =
        serde_json::from_str(&text).with_context(|| format!("{url} did not answer as kvik does"))?;
    if !response.status().is_success() {
        bail!("{}", answer["error"]["message"].as_str().unwrap_or("the server refused the request"));
    }
    Ok(answer)
}

/// The object `kvik.cache` for people.
fn sentences(cache: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let mut text = format!(
        "{} of {} prompt tokens would come from the cache: {} from memory, {} from disk",
        number(&cache["cached_tokens"]),
        number(&cache["prompt_tokens"]),
        number(&cache["by_tier"]["ram"]),
        number(&cache["by_tier"]["disk"]),
    );
    let reason = cache["reason"].as_str().unwrap_or_default();
    let stopped = &cache["stopped_at"];
    if let (Some(before), Some(after)) = (stopped["before"].as_str(), stopped["after"].as_str()) {
        let message = match (stopped["message"].as_u64(), stopped["role"].as_str()) {
            (Some(index), Some(role)) => format!(", in messages[{index}] ({role})"),
            _ => String::new(),
        };
        text += &format!("\nreuse stops at token {}{message}: {reason}", number(&stopped["token"]));
        text += &match before {
            "" => format!("\n  {after:?}"),
            before => format!("\n  {before:?} is there, {after:?} is not"),
        };
    }
    if let Some(seconds) = cache["evicted"]["seconds_ago"].as_f64() {
        let policy = cache["evicted"]["policy"].as_str().unwrap_or_default();
        text += &format!("\nevicted {seconds:.0} s ago by {policy}");
    }
    format!("{text}\n{}", meaning(reason))
}

/// What a reason means and what can be done about it.
fn meaning(reason: &str) -> &'static str {
    match reason {
        "complete" => {
            "The whole prompt is there; only its last token is computed, because its answer begins there."
        }
        "first_seen" => "Nobody has asked this before.",
        "diverged" => "A known prompt goes on differently from here; `kvik lint` finds what changes.",
        "evicted" => "It was there and had to go; a larger --cache-ram, a priority or a pin keeps it.",
        "expired" => "It was there and has outlived its time to live.",
        "other_model" => "It was computed with another model.",
        "other_kv_format" => "It was computed with keys and values in another format (--kv).",
        "other_tenant_or_private" => "The request, or the one that computed it, is not shared.",
        "below_minimum" => "Too little of it is there to be worth taking over.",
        "still_computing" => "A running request is computing it; this one would wait for it.",
        "load_failed" => "It is on disk and could not be read.",
        "recompute_was_cheaper" => "It is on disk, and computing it takes less time than reading it.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::StopReason;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reason_has_a_meaning() {
        for reason in [
            StopReason::Complete,
            StopReason::FirstSeen,
            StopReason::Diverged,
            StopReason::Evicted,
            StopReason::Expired,
            StopReason::OtherModel,
            StopReason::OtherKvFormat,
            StopReason::Private,
            StopReason::BelowMinimum,
            StopReason::StillComputing,
            StopReason::LoadFailed,
            StopReason::RecomputeWasCheaper,
        ] {
            assert!(!meaning(reason.name()).is_empty(), "{reason:?}");
        }
    }

    #[test]
    fn a_report_is_worded() {
        let cache = json!({
            "prompt_tokens": 40, "cached_tokens": 16, "by_tier": {"ram": 10, "disk": 6},
            "stopped_at": {"token": 16, "message": 1, "role": "user", "before": "Which ", "after": "day"},
            "reason": "evicted", "evicted": {"seconds_ago": 12.4, "policy": "lru"},
        });
        let expect = "\
16 of 40 prompt tokens would come from the cache: 10 from memory, 6 from disk
reuse stops at token 16, in messages[1] (user): evicted
  \"Which \" is there, \"day\" is not
evicted 12 s ago by lru
It was there and had to go; a larger --cache-ram, a priority or a pin keeps it.";
        assert_eq!(sentences(&cache), expect);
    }
}
