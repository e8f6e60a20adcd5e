//! `kvik replay --restarts`: what each write policy writes to the disk, and what is found again after restarts.

use std::time::Duration;

use kvik_cache::replay::{Capacity, RestartConfig, RestartReport, Stop, TraceRequest, replay_restarts};
use kvik_cache::{CacheError, Policy, tier::WritePolicy};

/// One row of the table.
struct Row {
    blocks: Capacity,
    writes: WritePolicy,
    stop: Stop,
    report: RestartReport,
}

/// Replays every write policy at every capacity, with a graceful end and with a kill before each restart.
pub(super) fn table(
    requests: &[(Duration, TraceRequest)],
    capacities: &[Capacity],
    evict: Policy,
    restarts: usize,
) -> Result<String, CacheError> {
    let mut text = HEADER.to_owned();
    for &blocks in capacities {
        for stop in [Stop::Graceful, Stop::Kill] {
            let replay = |writes| {
                let config = RestartConfig { capacity: blocks, evict, writes, restarts, stop };
                replay_restarts(requests, config).map(|report| Row { blocks, writes, stop, report })
            };
            let rows = WritePolicy::ALL.into_iter().map(replay).collect::<Result<Vec<Row>, _>>()?;
            let all = rows.first().map(|row| row.report).unwrap_or_default();
            rows.iter().for_each(|row| text += &row.line(&all));
        }
    }
    Ok(text)
}

/// The two header lines; a new block is one that had to be computed.
const HEADER: &str = concat!(
    "                           |     written    | after the restarts\n",
    "   blocks      end  policy |  blocks  of new |  blocks found of all's from disk",
);

impl Row {
    /// Its line, with the hits as a part of those of `all`.
    fn line(&self, all: &RestartReport) -> String {
        let Row { blocks, writes, stop, report } = self;
        let end = match stop {
            Stop::Graceful => "graceful",
            Stop::Kill => "kill",
        };
        format!(
            "\n{blocks:>9} {end:>8} {:>7} | {:>7} {:>7.3} | {:>7} {:>5.3} {:>8.3} {:>9.3}",
            writes.name(),
            report.written,
            part(report.written, all.computed),
            report.blocks,
            part(report.hits, report.blocks),
            part(report.hits, all.hits),
            part(report.from_disk, report.blocks),
        )
    }
}

fn part(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_policy_end_and_size() {
        let request = |second: u64, ids: &[u64]| (Duration::from_secs(second), ids.to_vec());
        let requests = [request(1, &[1, 2]), request(2, &[3]), request(3, &[1, 2, 4]), request(4, &[3, 5])];
        let table = table(&requests, &[Capacity::Unlimited], Policy::Lru, 1).unwrap();
        let rows: Vec<Vec<&str>> =
            table.lines().skip(2).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 6);
        assert_eq!(
            rows[0],
            ["unlimited", "graceful", "all", "|", "5", "1.000", "|", "5", "0.600", "1.000", "0.600"]
        );
        assert_eq!(
            rows[5],
            ["unlimited", "kill", "auto", "|", "0", "0.000", "|", "5", "0.000", "0.000", "0.000"]
        );
    }
}
