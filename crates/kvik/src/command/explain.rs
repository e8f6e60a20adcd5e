//! `kvik explain`: asks a running server which part of a request its cache would provide.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use ureq::http::Method;

use super::remote::{ServerArgs, read_json};

/// Tiers of a report, nearest first, and the places that they are; a server names those that it has.
const TIERS: [(&str, &str); 4] = [
    ("ram", "memory"),
    ("host", "the host's memory"),
    ("disk", "disk"),
    ("remote", "the store that nodes share"),
];

/// Shows what a request would find in the cache of a running server, without running it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik explain request.json                            the server on this machine
  kvik explain request.json --url http://host:8080     another server
  kvik explain request.json --json                     the answer as JSON

A request is the body of a chat (`messages`) or of a completion (`prompt`). Nothing is computed
and nothing in the cache changes, not even the order of eviction.")]
pub(crate) struct ExplainArgs {
    /// The body of a request, as JSON
    #[arg(value_name = "REQUEST.JSON")]
    request: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let body = read_json(&args.request)?;
    let answer = args.server.call(Method::POST, "/v1/cache/explain", Some(&body))?;
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

/// The object `kvik.cache` as sentences.
fn sentences(cache: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let from = |&(tier, place): &(&str, &str)| {
        let tokens = cache["by_tier"][tier].as_u64()?;
        Some(format!("{tokens} from {place}"))
    };
    let mut text = format!(
        "{} of {} prompt tokens would come from the cache: {}",
        number(&cache["cached_tokens"]),
        number(&cache["prompt_tokens"]),
        TIERS.iter().filter_map(from).collect::<Vec<_>>().join(", "),
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

/// The meaning of a reason, and a remedy if there is one.
fn meaning(reason: &str) -> &'static str {
    match reason {
        "complete" => {
            "The whole prompt is cached; only its last token is computed, because the answer begins with its logits."
        }
        "first_seen" => "No earlier prompt begins like this.",
        "diverged" => "A known prompt continues differently from here; `kvik lint` finds what changes.",
        "window_dropped" => {
            "It is cached, but what layers with a window need to go on behind it is not there any more; it is kept from now \
             on."
        }
        "no_state_kept" => {
            "It is cached, but no state of the recurrent layers was kept behind it; one is kept from now on."
        }
        "evicted" => "It was cached and then evicted; a larger --cache-ram, a priority or a pin keeps it.",
        "expired" => "It was cached and its time to live has expired.",
        "other_model" => "It was computed with another model.",
        "other_kv_format" => "It was computed with keys and values in another format (--kv).",
        "other_tenant_or_private" => "This request, or the request that computed it, is not shared.",
        "below_minimum" => "Too few of its tokens are cached to be worth reusing.",
        "still_computing" => "A running request is computing it; this request would wait for it.",
        "retained" => {
            "Retention computes it: its policy observes the attention there, or the request reads a compressed prefix."
        }
        "pooled" => "An embedding of all its tokens needs their hidden states, which are not cached.",
        "load_failed" => "It is on disk and could not be read.",
        "remote_down" => "The store that nodes share might have it, and does not answer.",
        "remote_failed" => "It is in the store that nodes share, and did not come in time or whole.",
        "remote_slower" => {
            "It is in the store that nodes share, and computing it takes less time than fetching it."
        }
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
        for reason in StopReason::ALL {
            assert!(!meaning(reason.name()).is_empty(), "{reason:?}");
        }
    }

    #[test]
    fn a_report_becomes_sentences() {
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
It was cached and then evicted; a larger --cache-ram, a priority or a pin keeps it.";
        assert_eq!(sentences(&cache), expect);
        let tiers = json!({"ram": 0, "host": 5, "disk": 6, "remote": 7});
        let cache = json!({"prompt_tokens": 40, "cached_tokens": 18, "by_tier": tiers, "reason": "complete"});
        let expect = "18 of 40 prompt tokens would come from the cache: 0 from memory, 5 from the host's memory, 6 from \
                      disk, 7 from the store that nodes share\n";
        assert!(sentences(&cache).starts_with(expect), "{}", sentences(&cache));
    }
}
