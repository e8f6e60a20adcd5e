//! Where the blocks of the fake model are: in RAM, or in the memory of a device.

use kvik_cache::BLOCK_POSITIONS;

use crate::fake::ragged::Cell;

/// The whole ones of a block; 0 where nothing is stored.
pub(crate) type Block = [u64; BLOCK_POSITIONS];

/// Blocks, by their numbers.
pub(crate) enum Arena {
    Ram(Vec<Block>),
    #[cfg(feature = "gpu")]
    Device(Box<device::Blocks>),
}

impl Arena {
    pub(crate) fn in_ram(blocks: usize) -> Arena {
        Arena::Ram(vec![[0; BLOCK_POSITIONS]; blocks])
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn on_device(blocks: usize) -> Arena {
        Arena::Device(Box::new(device::Blocks::new(blocks)))
    }

    pub(crate) fn get(&self, (block, offset): Cell) -> u64 {
        match self {
            Arena::Ram(blocks) => blocks[block][offset],
            #[cfg(feature = "gpu")]
            Arena::Device(blocks) => blocks.get(block)[offset],
        }
    }

    pub(crate) fn set(&mut self, (block, offset): Cell, stored: u64) {
        match self {
            Arena::Ram(blocks) => blocks[block][offset] = stored,
            #[cfg(feature = "gpu")]
            Arena::Device(blocks) => blocks.set(block, offset, stored),
        }
    }

    pub(crate) fn block(&self, block: usize) -> Block {
        match self {
            Arena::Ram(blocks) => blocks[block],
            #[cfg(feature = "gpu")]
            Arena::Device(blocks) => blocks.get(block),
        }
    }

    pub(crate) fn replace(&mut self, block: usize, whole: Block) {
        match self {
            Arena::Ram(blocks) => blocks[block] = whole,
            #[cfg(feature = "gpu")]
            Arena::Device(blocks) => blocks.replace(block, whole),
        }
    }

    /// Copies the first positions of a block; of the others of `to` nothing may be read.
    pub(crate) fn copy(&mut self, from: usize, to: usize, positions: usize) {
        match self {
            Arena::Ram(blocks) => {
                let source = blocks[from];
                blocks[to] = [0; BLOCK_POSITIONS];
                blocks[to][..positions].copy_from_slice(&source[..positions]);
            }
            #[cfg(feature = "gpu")]
            Arena::Device(blocks) => blocks.copy(from, to),
        }
    }

    /// A batch reads what is stored, not what is remembered of it.
    pub(crate) fn begin_batch(&mut self) {
        #[cfg(feature = "gpu")]
        if let Arena::Device(blocks) = self {
            blocks.forget();
        }
    }
}

#[cfg(feature = "gpu")]
pub(crate) use device::has_device;

#[cfg(feature = "gpu")]
mod device {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use kvik_kernels::{KvFormat, KvLayer, KvLayout};
    use kvik_model::device::{Choice, Device, DeviceArena, devices};

    use super::Block;

    pub(crate) fn has_device() -> bool {
        let has = !devices().is_empty();
        if !has {
            kvik_testing::skip("no GPU was found, nor a driver that computes on the processor");
        }
        has
    }

    /// Blocks of a layout whose bytes hold those of the fake model, spread over two layers.
    pub(crate) struct Blocks {
        device: Device,
        arena: DeviceArena,
        /// What was read or written since the batch began.
        seen: RefCell<HashMap<usize, Block>>,
    }

    /// Bytes of a block in each layer.
    const PIECE: usize = size_of::<Block>() / 2;

    impl Blocks {
        pub(crate) fn new(blocks: usize) -> Blocks {
            let device = Device::open(Choice::Index(0)).unwrap();
            let layout = KvLayout::uniform(2, KvLayer::full(1, 8, KvFormat::F16, KvFormat::F16));
            assert!(layout.block_bytes() / 2 >= PIECE);
            let arena = DeviceArena::new(&device, layout, blocks).unwrap();
            Blocks { device, arena, seen: RefCell::default() }
        }

        /// Where in a block of the layout the halves of one of the model are.
        fn halves(&self) -> [usize; 2] {
            [0, self.arena.layout().block_bytes() / 2]
        }

        pub(crate) fn get(&self, block: usize) -> Block {
            let read = || {
                let mut bytes = vec![0; self.arena.layout().block_bytes()];
                self.arena.read_block(&self.device, block as u32, &mut bytes).unwrap();
                let halves = self.halves().map(|start| &bytes[start..start + PIECE]);
                let mut words = halves.into_iter().flat_map(|half| half.chunks_exact(8));
                Block::default().map(|_| u64::from_le_bytes(words.next().unwrap().try_into().unwrap()))
            };
            *self.seen.borrow_mut().entry(block).or_insert_with(read)
        }

        pub(crate) fn set(&mut self, block: usize, offset: usize, stored: u64) {
            let mut whole = self.get(block);
            whole[offset] = stored;
            self.replace(block, whole);
        }

        pub(crate) fn replace(&mut self, block: usize, whole: Block) {
            let words: Vec<u8> = whole.iter().flat_map(|word| word.to_le_bytes()).collect();
            let mut bytes = vec![0; self.arena.layout().block_bytes()];
            for (start, half) in self.halves().into_iter().zip(words.chunks_exact(PIECE)) {
                bytes[start..start + PIECE].copy_from_slice(half);
            }
            self.arena.write_block(&self.device, block as u32, &bytes).unwrap();
            self.seen.borrow_mut().insert(block, whole);
        }

        pub(crate) fn copy(&mut self, from: usize, to: usize) {
            let mut step = self.device.step();
            step.copy_block(&mut self.arena, from as u32, to as u32);
            step.submit().unwrap();
            self.seen.borrow_mut().remove(&to);
        }

        pub(crate) fn forget(&mut self) {
            self.seen.borrow_mut().clear();
        }
    }
}
