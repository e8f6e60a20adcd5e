//! The host's memory as a cache tier, if the model runs on a GPU.

use kvik_cache::tier::Tier;
use kvik_engine::{
    schedule::disk::{DiskSetup, DiskWrites, buffers, writes_max},
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
            let store = HostStore::above(setup.store, blocks as usize, setup.waker.clone());
            let setup = DiskSetup { store: Box::new(store), ..setup };
            OpenDisk { setup, line: format!("{below}, behind {line}") }
        }
    })
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
        waker,
        remote: None,
    }
}
