//! Reads runs of a prompt concurrently, and delivers them in order.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use kvik_cache::tier::runs;
use kvik_engine::store::remote::{Chain, RemoteDone};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use crate::backend::Value;
use crate::error::Fault;
use crate::names::Key;
use crate::node::{Node, count};
use crate::seal::HEADER_BYTES;
use crate::upkeep::Upkeep;

/// Concurrent reads of one fetch: enough that the store is never idle.
const READS_MAX: usize = 8;

/// Why a run was not read.
enum Lost {
    /// The value does not exist, or the store is not in use.
    Missing,
    Corrupt,
    Fault(Fault),
}

/// A run, with the permit for its bytes.
struct Run {
    first: usize,
    bytes: Vec<u8>,
    permit: OwnedSemaphorePermit,
}

/// Reads blocks of a prompt until one is unavailable.
pub(crate) async fn fetch(node: &Arc<Node>, ticket: u64, chain: &Chain, blocks: Range<usize>) {
    let end = blocks.end.min(chain.blocks.len());
    let runs = runs(end, node.run_max).filter(|run| run.end > blocks.start);
    let mut reads = pin!(stream::iter(runs).map(|run| read(node, chain, run)).buffered(READS_MAX));
    let mut failed = blocks.end > end;
    while let Some(read) = reads.next().await {
        match read {
            Ok(Run { first, bytes, permit }) => {
                count(&node.counters.read_blocks, bytes.len() / node.payload_bytes);
                node.done.push(RemoteDone::Read { ticket, first, bytes }, Some(permit));
            }
            Err(lost) => {
                report(node, &lost);
                failed = true;
                break;
            }
        }
    }
    node.done.push(RemoteDone::Ended { ticket, failed }, None);
}

fn report(node: &Node, lost: &Lost) {
    match lost {
        Lost::Missing => {}
        Lost::Corrupt => {
            count(&node.counters.corrupt, 1);
            node.health.corrupt();
        }
        Lost::Fault(fault) => {
            count(&node.counters.faults, 1);
            node.health.fault(fault);
        }
    }
}

/// Reads a run; returns its original bytes, or an error for anything else.
async fn read(node: &Arc<Node>, chain: &Chain, run: Range<usize>) -> Result<Run, Lost> {
    let end = &chain.blocks[run.end - 1];
    let key = node.run(chain.owner, end);
    let plain_bytes = run.len() * node.payload_bytes;
    let permit = node.permit(plain_bytes).await.ok_or(Lost::Missing)?;
    let since = Instant::now();
    let (value, transferred) = get(node, &key, plain_bytes + HEADER_BYTES).await?;
    let age = value.age.unwrap_or_default();
    let opened = node.open(chain.owner, end, run.len(), value.bytes).ok_or(Lost::Corrupt);
    let opened = opened.and_then(|(bytes, ttl)| unexpired(node, key, (age, ttl)).map(|()| (bytes, ttl)));
    let (bytes, ttl) = opened.inspect_err(|_| node.known().remove(&key))?;
    node.health.answered(transferred, since.elapsed());
    node.known().insert(key, false);
    node.use_known(key, ttl);
    Ok(Run { first: run.start, bytes, permit })
}

/// Refuses a value that is older than its time to live, as a store that does not expire values by itself may return
/// it, and has it removed: a value that exists is not written again, so nobody could read it until it is swept.
fn unexpired(node: &Node, key: Key, (age, ttl): (Duration, Duration)) -> Result<(), Lost> {
    if age <= ttl {
        return Ok(());
    }
    // If there is no room in the queue, the next reader has it removed.
    node.upkeep.push(Upkeep::Remove(key));
    Err(Lost::Missing)
}

/// Returns the value, and the number of bytes that were transferred until it was complete: its own and those
/// requested before.
async fn get(node: &Node, key: &Key, bytes: usize) -> Result<(Value, u64), Lost> {
    let reading = Reading::new(&node.reading_bytes, bytes as u64);
    let deadline = node.health.deadline(reading.with_those_before).ok_or(Lost::Missing)?;
    let answer = timeout(deadline, node.backend.get(key, bytes + 1)).await;
    let value = answer.map_err(|_| Lost::Fault(Fault::Late))?.map_err(Lost::Fault)?;
    let Some(value) = value else {
        node.known().remove(key);
        return Err(Lost::Missing);
    };
    count(&node.counters.read_bytes, value.bytes.len());
    Ok((value, reading.with_those_before))
}

/// Bytes that are requested, until this is dropped.
struct Reading<'a> {
    all: &'a AtomicU64,
    own: u64,
    with_those_before: u64,
}

impl<'a> Reading<'a> {
    fn new(all: &'a AtomicU64, own: u64) -> Reading<'a> {
        Reading { all, own, with_those_before: all.fetch_add(own, Relaxed) + own }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Relaxed);
    }
}
