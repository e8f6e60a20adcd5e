//! `kvik replay`: the hit rate of a cache of a given size on a recorded trace.
//!
//! Reads the trace and the clock for [`kvik_cache::replay`], and prints its reports. It runs the real
//! cache code and no model.

mod restarts;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvik_cache::replay::{Capacity, Latency, ReplayReport, TraceRequest, optimum, replay_timed};
use kvik_cache::{Policy, UnknownPolicy};

use super::output::print;

/// Replay a recorded trace through the cache and print its hit rate.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Trace in Mooncake's format: one JSON object a line, with the `hash_ids` of the prompt's blocks and, for policies
    /// that learn how long sessions pause, its `timestamp` in milliseconds.
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
    /// Eviction policies to compare, or `all`.
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "lru", alias = "policy")]
    evict: Vec<PolicyChoice>,
    /// Instead, compare the policies of --cache-disk-write: what they write and what is found again when kvik is restarted
    /// this often, with one eviction policy
    #[arg(long, value_name = "N", conflicts_with = "json", value_parser = clap::value_parser!(u16).range(1..))]
    restarts: Option<u16>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A policy, or all of them.
#[derive(Debug, Clone, Copy)]
enum PolicyChoice {
    One(Policy),
    All,
}

impl FromStr for PolicyChoice {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<PolicyChoice, UnknownPolicy> {
        if name == "all" { Ok(PolicyChoice::All) } else { name.parse().map(PolicyChoice::One) }
    }
}

/// Runs the command.
pub(crate) fn run(args: ReplayArgs) -> anyhow::Result<()> {
    let (requests, times) = read_trace(&args.trace)?;
    let policies: Vec<Policy> = args.evict.iter().flat_map(PolicyChoice::policies).collect();
    if let Some(restarts) = args.restarts {
        let [policy] = policies[..] else { bail!("--restarts compares write policies; name one --evict") };
        // Without times, all at one moment.
        let times = times.into_iter().chain(std::iter::repeat(Duration::ZERO));
        let timed: Vec<(Duration, TraceRequest)> = times.zip(requests).collect();
        return print(&restarts::table(&timed, &args.blocks, policy, restarts.into())?);
    }
    let start = Instant::now();
    let pairs = policies.iter().flat_map(|&policy| args.blocks.iter().map(move |&blocks| (policy, blocks)));
    let reports =
        pairs.map(|(policy, blocks)| replay_timed(&requests, &times, blocks, policy, || start.elapsed()));
    let reports: Vec<ReplayReport> = reports.collect::<Result<_, _>>()?;
    let best: Vec<usize> = args.blocks.iter().map(|&blocks| optimum(&requests, blocks)).collect();
    let text = match policies.len() {
        _ if args.json => json(&reports, &best),
        1 => table(&reports),
        _ => comparison(&reports, &best),
    };
    print(&text)
}

impl PolicyChoice {
    fn policies(&self) -> Vec<Policy> {
        match *self {
            PolicyChoice::One(policy) => vec![policy],
            PolicyChoice::All => Policy::ALL.to_vec(),
        }
    }
}

/// The requests of a trace with their times; without times where a line has none.
fn read_trace(path: &Path) -> anyhow::Result<(Vec<TraceRequest>, Vec<Duration>)> {
    let file = File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
    let (mut requests, mut times) = (Vec::new(), Vec::new());
    for (line, number) in BufReader::new(file).lines().zip(1..) {
        let source = || format!("line {number} of the trace {}", path.display());
        let line = line.with_context(source)?;
        if !line.trim().is_empty() {
            let TraceLine { hash_ids, timestamp } = serde_json::from_str(&line).with_context(source)?;
            requests.push(hash_ids);
            let seconds = timestamp.map(|ms| ms / 1000.0);
            times.extend(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()));
        }
    }
    if times.len() < requests.len() {
        times.clear();
    }
    Ok((requests, times))
}

/// A line of a trace.
#[derive(serde::Deserialize)]
struct TraceLine {
    hash_ids: TraceRequest,
    timestamp: Option<f64>,
}

/// The two header lines of [`table`].
const HEADER: &str = concat!(
    "                                                  |       lookup, us        |       insert, us       \n",
    "   blocks      hits hit rate recomputed   evicted |     p50     p99     max |     p50     p99     max",
);

fn table(reports: &[ReplayReport]) -> String {
    let mut text = String::new();
    if let Some(report) = reports.first() {
        let ReplayReport { requests, blocks, first_seen, .. } = report;
        let policy = report.policy.name();
        text = format!("{requests} requests, {blocks} blocks, {first_seen} of them new, policy {policy}\n\n");
    }
    text += HEADER;
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

/// A table with a row per policy and a column per capacity; the offline optimum is the last row.
fn comparison(reports: &[ReplayReport], best: &[usize]) -> String {
    let Some(ReplayReport { requests, blocks, first_seen, .. }) = reports.first() else {
        return String::new();
    };
    let by_policy: Vec<&[ReplayReport]> = reports.chunks(best.len()).collect();
    let mut text = format!("{requests} requests, {blocks} blocks, {first_seen} of them new; hit rates\n\n");
    text += &format!("{:>9}", "blocks");
    by_policy[0].iter().for_each(|report| text += &format!(" {:>9}", report.capacity));
    for reports in by_policy {
        text += &format!("\n{:>9}", reports[0].policy.name());
        reports.iter().for_each(|report| text += &format!(" {:>9.4}", report.hit_rate()));
    }
    text += &format!("\n{:>9}", "optimum");
    best.iter().for_each(|&hits| text += &format!(" {:>9.4}", hits as f64 / (*blocks).max(1) as f64));
    text
}

fn columns(latency: Latency) -> String {
    let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(micros);
    format!("{p50:>7.1} {p99:>7.1} {max:>7.1}")
}

fn json(reports: &[ReplayReport], best: &[usize]) -> String {
    let latency = |latency: Latency| {
        let [p50, p99, max] = [latency.p50, latency.p99, latency.max].map(micros);
        serde_json::json!({ "p50_us": p50, "p99_us": p99, "max_us": max })
    };
    let report = |(report, best): (&ReplayReport, &usize)| {
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
            "hits_optimum": best,
            "first_seen": report.first_seen,
            "recomputed": report.recomputed,
            "evicted": report.evicted,
            "nodes": report.nodes,
            "lookup": latency(report.lookup),
            "insert": latency(report.insert),
        })
    };
    serde_json::Value::Array(reports.iter().zip(best.iter().cycle()).map(report).collect()).to_string()
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
        let (requests, times) = read_trace(file.path())?;
        let clock = || Duration::from_micros(5);
        let report = |&blocks| Ok(replay_timed(&requests, &times, blocks, Policy::Lru, clock)?);
        blocks.iter().map(report).collect()
    }

    const TRACE: &str = r#"{"timestamp": 0, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2]}

{"timestamp": 9, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 3]}
"#;

    #[test]
    fn the_table_has_one_row_per_size() {
        let table = table(&reports(TRACE, &[Capacity::Blocks(1), Capacity::Unlimited]).unwrap());
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[0].join(" "), "2 requests, 6 blocks, 4 of them new, policy lru");
        assert_eq!(rows[4][..5], ["1", "1", "0.1667", "1", "4"]);
        assert_eq!(rows[5][..5], ["unlimited", "2", "0.3333", "0", "0"]);
    }

    #[test]
    fn the_comparison_has_one_row_per_policy() {
        let sizes = [Capacity::Blocks(1), Capacity::Unlimited];
        let reports = [reports(TRACE, &sizes).unwrap(), reports(TRACE, &sizes).unwrap()].concat();
        let comparison = comparison(&reports, &[1, 2]);
        let rows: Vec<Vec<&str>> = comparison.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows[2], ["blocks", "1", "unlimited"]);
        assert_eq!(rows[4], ["lru", "0.1667", "0.3333"]);
        assert_eq!(rows[5], ["optimum", "0.1667", "0.3333"]);
    }

    #[test]
    fn the_json_has_the_figures_of_the_table() {
        let json = json(&reports(TRACE, &[Capacity::Unlimited]).unwrap(), &[2]);
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
