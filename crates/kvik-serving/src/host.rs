//! The host's memory as a cache tier, if the model runs on a GPU.

use kvik_cache::tier::Tier;
use kvik_engine::{
    schedule::disk::{DiskSetup, DiskWrites, buffers, writes_max},
    stats::DiskRole,
    store::{Buffers, HostStore, Waker},
};
use kvik_session::KvBudget;

use super::disk::OpenDisk;
use crate::settings::size::ByteSize;
use kvik_memory::clock::unix_seconds;

/// Puts a tier of `bytes` bytes of host memory above the disk tier, or uses it alone.
pub(super) fn above(disk: Option<OpenDisk>, bytes: u64, budget: &KvBudget) -> Option<OpenDisk> {
    let blocks = bytes / budget.stored_bytes as u64;
    if blocks == 0 {
        return disk;
    }
    let line = format!("up to {} of RAM", ByteSize(blocks * budget.stored_bytes as u64));
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    Some(match disk {
        None => OpenDisk { setup: alone(blocks, budget), line: format!("off; {line} for the GPU") },
        Some(OpenDisk { setup, line: below }) => {
            if let Some(limit) = limit_of_disk(setup.store.role(), setup.writes) {
                tracing::warn!("{limit}");
            }
            let store = HostStore::above(setup.store, blocks as usize, setup.waker.clone());
            let setup = DiskSetup { store: Box::new(store), ..setup };
            OpenDisk { setup, line: format!("{below}, behind {line}") }
        }
    })
}

/// Why this memory holds less than there is room for: only blocks that are written to the disk below it.
fn limit_of_disk(role: DiskRole, writes: DiskWrites) -> Option<&'static str> {
    match (role, writes.day_bytes_max) {
        (DiskRole::Reader { .. }, _) => Some(
            "another process or model writes the disk cache: until that ends, --cache-ram holds what is read from there, and nothing \
             that this GPU computes; give this process a --cache-disk of its own, or off",
        ),
        (DiskRole::Writer, Some(_)) => Some(
            "--cache-ram holds only what is written to the disk cache: once --cache-disk-write-budget is spent, what this \
             GPU has no room for is computed again",
        ),
        (DiskRole::Writer, None) => None,
    }
}

fn alone(blocks: u32, budget: &KvBudget) -> DiskSetup {
    let (waker, buffers) = (Waker::default(), buffers(budget.stored_bytes));
    let store = HostStore::alone(Buffers::new(buffers, budget.stored_bytes), blocks as usize, waker.clone());
    DiskSetup {
        tier: Tier::new(blocks),
        store: Box::new(store),
        related: Vec::new(),
        warm_blocks: 0,
        writes_max: writes_max(buffers),
        writes: DiskWrites::default(),
        epoch_s: unix_seconds(),
        wall: Some(Box::new(unix_seconds)),
        waker,
        remote: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_no_writes_is_told() {
        let told = |role, day_bytes_max| {
            limit_of_disk(role, DiskWrites { day_bytes_max, ..DiskWrites::default() }).unwrap_or_default()
        };
        assert_eq!(told(DiskRole::Writer, None), "");
        assert!(told(DiskRole::Writer, Some(1)).contains("--cache-disk-write-budget"));
        assert!(told(DiskRole::Reader { of: None }, None).contains("a --cache-disk of its own"));
    }
}
