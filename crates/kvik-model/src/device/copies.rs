//! Keys and values that do not stay on the device, for comparison: every step copies in the blocks it reads and copies
//! out the blocks it wrote, as in engines whose cache is in RAM.

use std::collections::{BTreeSet, HashMap};

use kvik_gpu::{Device, DeviceArena, DeviceError};
use kvik_kernels::BLOCK_POSITIONS;

use crate::batch::Batch;

/// The blocks in RAM, of which those on the device are copies.
#[derive(Default)]
pub(super) struct Copies {
    blocks: HashMap<u32, Vec<u8>>,
    /// Bytes copied in either direction.
    pub(super) bytes_moved: u64,
}

/// The blocks that a batch reads and the blocks that it writes, without duplicates.
struct Touched {
    read: BTreeSet<u32>,
    written: BTreeSet<u32>,
}

impl Touched {
    fn of(batch: &Batch<'_>) -> Touched {
        let mut touched = Touched { read: BTreeSet::new(), written: BTreeSet::new() };
        for (index, sequence) in batch.sequences.iter().enumerate() {
            let own = batch.rows.iter().filter(|row| row.sequence as usize == index);
            let positions = own.map(|row| row.cache_position as usize);
            let (Some(first), Some(last)) = (positions.clone().min(), positions.max()) else { continue };
            let blocks = |range: std::ops::Range<usize>| sequence.blocks[range].iter().map(|block| block.0);
            touched.read.extend(blocks(0..first.div_ceil(BLOCK_POSITIONS)));
            touched.written.extend(blocks(first / BLOCK_POSITIONS..last / BLOCK_POSITIONS + 1));
        }
        touched
    }
}

impl Copies {
    /// Copies in the blocks that a batch reads.
    pub(super) fn bring(
        &mut self,
        device: &Device,
        arena: &mut DeviceArena,
        batch: &Batch<'_>,
    ) -> Result<(), DeviceError> {
        for block in Touched::of(batch).read {
            if let Some(bytes) = self.blocks.get(&block) {
                arena.write_block(device, block, bytes)?;
                self.bytes_moved += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// Copies out the blocks that a batch wrote.
    pub(super) fn fetch(
        &mut self,
        device: &Device,
        arena: &DeviceArena,
        batch: &Batch<'_>,
    ) -> Result<(), DeviceError> {
        for block in Touched::of(batch).written {
            let mut bytes = vec![0; arena.layout().block_bytes()];
            arena.read_block(device, block, &mut bytes)?;
            self.bytes_moved += bytes.len() as u64;
            self.blocks.insert(block, bytes);
        }
        Ok(())
    }

    /// Records that a block was copied to another one.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        if let Some(bytes) = self.blocks.get(&from).cloned() {
            self.blocks.insert(to, bytes);
        }
    }

    /// Records that a block was replaced.
    pub(super) fn replace(&mut self, block: u32, bytes: &[u8]) {
        self.blocks.insert(block, bytes.to_vec());
    }
}
