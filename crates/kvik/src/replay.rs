//! `kvik replay`: how well would a cache of a given size have served a recorded trace?
//!
//! Reads the trace and the clock for [`kvik_cache::replay`], and prints its reports. The real
//! cache code runs; no model does.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use kvik_cache::Policy;
use kvik_cache::replay::{Capacity, Latency, ReplayReport, TraceRequest, replay};

/// Replay a recorded trace through the cache and print its hit rate.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Trace in Mooncake's format: one JSON object with `hash_ids` a line.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Blocks kept between requests, or `unlimited`; several to compare.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_values = ["1000", "5000", "10000", "30000", "unlimited"]
    )]
    blocks: Vec<Capacity>,
    /// Which blocks go when space is short.
    #[arg(long, default_value = "lru")]
    policy: Policy,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: ReplayArgs) -> anyhow::Result<()> {
    let requests = read_trace(&args.trace)?;
    let start = Instant::now();
    let reports =
        args.blocks.iter().map(|&blocks| replay(&requests, blocks, args.policy, || start.elapsed()));
    let reports: Vec<ReplayReport> = reports.collect::<Result<_, _>>()?;
    let text = if args.json { json(&reports) } else { table(&reports) };
    // A reader that has seen enough, as `head`, is no failure.
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn read_trace(path: &Path) -> anyhow::Result<Vec<TraceRequest>> {
    let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
    let mut requests = Vec::new();
    for (line, number) in BufReader::new(file).lines().zip(1..) {
        let place = || format!("line {number} of the trace {}", path.display());
        let line = line.with_context(place)?;
        if !line.trim().is_empty() {
            requests.push(parse_request(&line).with_context(place)?);
        }
    }
    Ok(requests)
}

fn parse_request(line: &str) -> serde_json::Result<TraceRequest> {
    #[derive(serde::Deserialize)]
    struct Line {
        hash_ids: TraceRequest,
    }
    serde_json::from_str(line).map(|Line { hash_ids }| hash_ids)
}

fn table(reports: &[ReplayReport]) -> String {
    let mut text = String::new();
    if let Some(report) = reports.first() {
        let ReplayReport { requests, blocks, first_seen, .. } = report;
        let policy = report.policy.name();
        text = format!("{requests} requests, {blocks} blocks, {first_seen} of them new, policy {policy}\n\n");
    }
    text += &format!(
        "{:>9} {:>9} {:>8} {:>10} {:>9} | {:^23} | {:^23}\n{:>9} {:>9} {:>8} {:>10} {:>9} | {:>7} {:>7} {:>7} | {:>7} {:>7} {:>7}",
        "",
        "",
        "",
        "",
        "",
        "lookup, us",
        "insert, us",
        "blocks",
        "hits",
        "hit rate",
        "recomputed",
        "evicted",
        "p50",
        "p99",
        "max",
        "p50",
        "p99",
        "max",
    );
    for report in reports {
        text += &format!(
            "\n{:>9} {:>9} {:>8.4} {:>10} {:>9} | {} | {}",
            report.capacity,
            report.hits,
            report.hit_rate(),
            report.recomputed,
            report.evicted,
            columns(report.lookup),
            columns(report.insert),
        );
    }
    text
}

fn columns(latency: Latency) -> String {
    let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(micros);
    format!("{p50:>7.1} {p99:>7.1} {max:>7.1}")
}

fn json(reports: &[ReplayReport]) -> String {
    let latency = |latency: Latency| {
        let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(micros);
        serde_json::json!({ "p50_us": p50, "p99_us": p99, "max_us": max })
    };
    let report = |report: &ReplayReport| {
        serde_json::json!({
            "blocks_max": match report.capacity {
                Capacity::Blocks(blocks) => Some(blocks),
                Capacity::Unlimited => None,
            },
            "policy": report.policy.name(),
            "requests": report.requests,
            "blocks": report.blocks,
            "hits": report.hits,
            "hit_rate": report.hit_rate(),
            "first_seen": report.first_seen,
            "recomputed": report.recomputed,
            "evicted": report.evicted,
            "nodes": report.nodes,
            "lookup": latency(report.lookup),
            "insert": latency(report.insert),
        })
    };
    serde_json::Value::Array(reports.iter().map(report).collect()).to_string()
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(trace: &str, blocks: &[Capacity]) -> anyhow::Result<Vec<ReplayReport>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), trace)?;
        let requests = read_trace(file.path())?;
        let report = |&blocks| Ok(replay(&requests, blocks, Policy::Lru, || Duration::from_micros(5))?);
        blocks.iter().map(report).collect()
    }

    const TRACE: &str = r#"{"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]}

{"timestamp": 9, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 3]}
"#;

    #[test]
    fn the_table_shows_a_row_a_size() {
        let table = table(&reports(TRACE, &[Capacity::Blocks(1), Capacity::Unlimited]).unwrap());
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0].join(" "), "2 requests, 6 blocks, 4 of them new, policy lru");
        assert_eq!(rows[4][..5], ["1", "1", "0.1667", "1", "4"]);
        assert_eq!(rows[5][..5], ["unlimited", "2", "0.3333", "0", "0"]);
    }

    #[test]
    fn the_json_holds_the_same() {
        let json = json(&reports(TRACE, &[Capacity::Unlimited]).unwrap());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json[0]["blocks_max"], serde_json::Value::Null);
        assert_eq!(json[0]["hits"], 2);
        assert_eq!(json[0]["lookup"]["p99_us"], 0.0);
    }

    #[test]
    fn a_bad_line_is_named() {
        for bad in ["{}", "[]", "{\"hash_ids\": [-1]}", "{\"hash_ids\": 3}", "\u{0}"] {
            let error = reports(&format!("{TRACE}{bad}\n"), &[]).unwrap_err();
            assert!(error.to_string().starts_with("line 4 of the trace"), "{bad}: {error:#}");
        }
        assert!(reports("", &[Capacity::Blocks(10)]).unwrap()[0].hit_rate() == 0.0);
    }
}
