//! Writes offered runs in the background, and renews and removes values.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use kvik_cache::Identity;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use crate::error::Fault;
use crate::names::Key;
use crate::node::{Node, count};
use crate::seal::HEADER_BYTES;
use crate::upkeep::Upkeep;

/// Concurrent writes: one is sealed while another is sent.
const WRITES_MAX: usize = 2;
/// Minimum time limit of a write, since no request waits for it.
const WRITE_TIME_MIN: Duration = Duration::from_secs(2);

/// Time limit for removing a chunk of values.
const FORGET_TIME: Duration = Duration::from_secs(10);

/// A run to be written.
pub(crate) struct Offer {
    pub(crate) owner: u64,
    pub(crate) end: Identity,
    pub(crate) bytes: Vec<u8>,
    pub(crate) ttl: Duration,
}

/// Writes the offered runs, until the channel is closed.
pub(crate) async fn write_all(node: Arc<Node>, offers: UnboundedReceiver<Offer>) {
    let next = async |mut offers: UnboundedReceiver<Offer>| offers.recv().await.map(|offer| (offer, offers));
    stream::unfold(offers, next).for_each_concurrent(WRITES_MAX, |offer| write(&node, offer)).await;
}

async fn write(node: &Node, offer: Offer) {
    let (key, blocks) = (node.run(offer.owner, &offer.end), offer.bytes.len() / node.payload_bytes);
    // A run that is to be deleted is not written.
    let is_forgotten = node.removals().is_forgetting(&key);
    let outcome = if is_forgotten { Err(None) } else { put(node, &key, offer).await };
    node.counters.writing_blocks.fetch_sub(blocks, Relaxed);
    match outcome {
        Ok(Some(bytes)) => {
            node.health.wrote();
            count(&node.counters.written_blocks, blocks);
            count(&node.counters.written_bytes, bytes);
        }
        Ok(None) => {}
        Err(fault) => {
            node.known().remove(&key);
            count(&node.counters.dropped_blocks, blocks);
            if let Some(fault) = fault {
                count(&node.counters.faults, 1);
                node.health.fault(&fault);
            }
        }
    }
    // Wakes an idle engine, which would show the counters of its last step otherwise.
    node.done.wake();
    end(node, &key).await;
}

/// Ends a write. A value that is to be removed by now is removed first: the removal that was asked for may have come
/// before it.
async fn end(node: &Node, key: &Key) {
    let has_ended = node.removals().end_write(key);
    if !has_ended {
        let is_removed = remove(node, std::slice::from_ref(key)).await;
        node.removals().end_removed_write(key, is_removed);
    }
}

/// Writes a run, unless another node has. Returns how many bytes were sent; an error without a fault while the
/// store is down.
async fn put(node: &Node, key: &Key, offer: Offer) -> Result<Option<usize>, Option<Fault>> {
    let deadline = node.health.deadline(offer.bytes.len() as u64).ok_or(None)?.max(WRITE_TIME_MIN);
    let retention = node.retention(offer.ttl);
    let write = async {
        let exists = node.backend.exists(&[*key]).await? == [true];
        if exists && node.backend.renew(key, &retention).await? {
            return Ok(None);
        }
        let value = node.seal(offer.owner, &offer.end, offer.ttl, &offer.bytes)?;
        let bytes = value.len();
        node.backend.put(key, value, &retention).await?;
        Ok(Some(bytes))
    };
    timeout(deadline, write).await.unwrap_or(Err(Fault::Late)).map_err(Some)
}

/// Renews and removes queued values, one at a time, forever.
pub(crate) async fn keep_up(node: Arc<Node>) {
    loop {
        match node.upkeep.next().await {
            Upkeep::Renew(key, ttl) => renew(&node, &key, ttl).await,
            Upkeep::Remove(key) => {
                remove(&node, &[key]).await;
            }
        }
    }
}

/// Reports the use of a value to the store. One that the store has lost is unknown from then on, so that it is offered
/// again.
async fn renew(node: &Node, key: &Key, ttl: Duration) {
    let bytes = node.run_max * node.payload_bytes + HEADER_BYTES;
    // Some stores renew a value by reading and writing it.
    let _permit = node.permit(bytes).await;
    let Some(deadline) = node.health.deadline(2 * bytes as u64) else {
        return node.known().report_failed(key);
    };
    let retention = node.retention(ttl);
    let renewal = node.backend.renew(key, &retention);
    match timeout(deadline.max(WRITE_TIME_MIN), renewal).await.unwrap_or(Err(Fault::Late)) {
        Ok(true) => {}
        Ok(false) => node.known().remove(key),
        Err(fault) => {
            node.known().report_failed(key);
            count(&node.counters.faults, 1);
            node.health.fault(&fault);
        }
    }
}

/// Removes the values that exist. Those that could not be removed are removed in a later call.
pub(crate) async fn forget(node: &Node, keys: Vec<Key>) {
    for some in keys.chunks(node.backend.questions_max().max(1)) {
        if !remove(node, some).await {
            return;
        }
        node.removals().removed(some);
    }
}

/// Removes the values that exist; returns whether that succeeded.
async fn remove(node: &Node, keys: &[Key]) -> bool {
    let removal = async {
        let there = node.backend.exists(keys).await?;
        for (key, _) in keys.iter().zip(there).filter(|(_, there)| *there) {
            node.backend.delete(key).await?;
        }
        Ok(())
    };
    let removed = timeout(FORGET_TIME, removal).await.unwrap_or(Err(Fault::Late));
    if let Err(fault) = &removed {
        count(&node.counters.faults, 1);
        node.health.fault(fault);
    }
    removed.is_ok()
}
