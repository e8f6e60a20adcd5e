//! `kvik bench --server --prefix N`: the time to the first token of a long prefix, computed and found by the server.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use kvik_cache::{BLOCK_POSITIONS, Token};
use serde::Serialize;
use serde_json::json;

use super::local::TokenStream;
use super::{BenchArgs, Form};
use crate::command::{
    backend::Backend,
    client::{Answered, INTERRUPTED},
};

/// Tokens of the question behind a prefix.
const QUESTION: usize = 8;
/// Time in which a server copies blocks to the tiers below.
const SETTLE: Duration = Duration::from_secs(1);

/// When a prefix is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Asked {
    /// Nobody has asked it before.
    New,
    /// It was the last one.
    Again,
    /// Another one was asked since: a cache with room for one has evicted it.
    Before,
}

/// A row of the report.
#[derive(Debug, Serialize)]
struct PrefixRow {
    prefix: Asked,
    prefix_tokens: usize,
    /// Median.
    first_token_ms: f64,
    samples_ms: Vec<f64>,
    /// Tokens found in each tier by the last request.
    by_tier: BTreeMap<String, u64>,
}

/// The times of a kind of request, and where the last one found its prefix.
#[derive(Default)]
struct Samples {
    ms: Vec<f64>,
    by_tier: BTreeMap<String, u64>,
}

/// Asks new prefixes, each again, and each once another one was asked.
pub(super) fn run(args: &BenchArgs, tokens: usize, backend: &Backend, vocab: u64) -> anyhow::Result<()> {
    let mut stream = TokenStream { state: now_ns(), vocab };
    let mut samples: BTreeMap<Asked, Samples> = BTreeMap::new();
    let mut before: Option<Vec<Token>> = None;
    for _ in 0..=args.repetitions {
        let prefix: Vec<Token> = (0..tokens).map(|_| stream.token()).collect();
        let mut ask = |asked: Asked, prefix: &[Token]| -> anyhow::Result<()> {
            let question: Vec<Token> = (0..QUESTION).map(|_| stream.token()).collect();
            let (ms, by_tier) = once(backend, &[prefix, &question].concat())?;
            let found: u64 = by_tier.values().sum();
            anyhow::ensure!(
                asked != Asked::New || found < BLOCK_POSITIONS as u64,
                "the server found {found} of {tokens} tokens of a prefix that was made just now, so the time of a new \
                 one is not measured; run it again after `kvik cache clear`"
            );
            let samples = samples.entry(asked).or_default();
            samples.ms.push(ms);
            samples.by_tier = by_tier;
            Ok(())
        };
        ask(Asked::New, &prefix)?;
        ask(Asked::Again, &prefix)?;
        if let Some(before) = before.replace(prefix) {
            std::thread::sleep(SETTLE);
            ask(Asked::Before, &before)?;
        }
    }
    let row = |(prefix, Samples { ms, by_tier })| PrefixRow {
        prefix,
        prefix_tokens: tokens,
        first_token_ms: median(&ms),
        samples_ms: ms,
        by_tier,
    };
    print(args.form(), &samples.into_iter().map(row).collect::<Vec<PrefixRow>>())
}

fn print(form: Form, rows: &[PrefixRow]) -> anyhow::Result<()> {
    match form {
        Form::Table => rows.iter().for_each(|row| println!("{}", row.line())),
        Form::Json => println!("{}", serde_json::to_string_pretty(rows)?),
        Form::JsonLines => {
            for row in rows {
                println!("{}", serde_json::to_string(row)?);
            }
        }
    }
    Ok(())
}

/// A seed that no earlier run had: its prefixes may be in the server's cache.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

/// Milliseconds to the first token behind a prompt, and the tokens found by tier.
fn once(backend: &Backend, prompt: &[Token]) -> anyhow::Result<(f64, BTreeMap<String, u64>)> {
    let mut body = backend.fields();
    body["prompt"] = json!(prompt);
    body["max_tokens"] = json!(1);
    body["ignore_eos"] = json!(true);
    body["temperature"] = json!(0);
    let answer = match backend.client.answer("/v1/completions", body, &mut |_| {})? {
        Answered::Whole(answer) => answer,
        Answered::Stopped => std::process::exit(INTERRUPTED),
    };
    let ms = answer.first_token.as_secs_f64() * 1e3;
    let tiers = answer.report["kvik"]["cache"]["by_tier"].as_object();
    let tiers = tiers.context("the server does not say where it found the prompt")?;
    let found = tiers.iter().filter_map(|(tier, tokens)| Some((tier.clone(), tokens.as_u64()?)));
    Ok((ms, found.collect()))
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

impl PrefixRow {
    fn line(&self) -> String {
        let what = match self.prefix {
            Asked::New => "new",
            Asked::Again => "asked again",
            Asked::Before => "asked before another",
        };
        let tiers: Vec<String> =
            self.by_tier.iter().map(|(tier, tokens)| format!("{tier} {tokens}")).collect();
        let Self { first_token_ms: ms, prefix_tokens, .. } = self;
        format!("{prefix_tokens} tokens, {what:<21} {ms:>10.1} ms  found: {}", tiers.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_lines() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0]), median(&[5.0])), (2.0, 2.5, 5.0));
        let by_tier = BTreeMap::from([("disk".to_owned(), 0), ("ram".to_owned(), 4_000)]);
        let row = PrefixRow {
            prefix: Asked::Again,
            prefix_tokens: 4_000,
            first_token_ms: 51.7,
            samples_ms: vec![51.7],
            by_tier,
        };
        assert!(row.line().ends_with("51.7 ms  found: disk 0, ram 4000"), "{}", row.line());
    }
}
