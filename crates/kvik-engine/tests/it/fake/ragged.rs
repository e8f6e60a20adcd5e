//! What fake models share about sequences that forget: one layer, one KV head, and a number for each position
//! that is stored. Facts and attention are hashes of these numbers, so what is wrongly kept, moved or observed
//! changes the answer.

use kvik_cache::BLOCK_POSITIONS;
use kvik_cache::retain::{HeadFacts, LayerFacts, Needs, Reduce, Watch};
use kvik_kernels::{KvFormat, KvLayer, KvLayout};
use kvik_model::batch::{Batch, Row, SequenceKv, StoredLayer};
use kvik_model::observation::Watched;

use super::mix;

/// The memory of a fake model, one number a position. A block is one tile of the same number.
pub trait Cells {
    /// What is stored at a position of a block.
    ///
    /// # Panics
    /// When nothing is.
    fn get(&self, cell: Cell) -> u64;
    /// Stores at `to` what is stored at `from`.
    fn copy(&mut self, from: Cell, to: Cell);
}

/// A block and a position in it.
pub type Cell = (usize, usize);

/// What a block of a fake model stores.
pub fn layout() -> KvLayout {
    KvLayout::uniform(1, KvLayer::full(1, 8, KvFormat::F32, KvFormat::F32))
}

/// Where a sequence stores its stored position `index`.
pub fn cell(kv: &SequenceKv<'_>, index: usize) -> Cell {
    let (number, offset) = (index / BLOCK_POSITIONS, index % BLOCK_POSITIONS);
    let block = match kv.tails.first() {
        Some(tails) if number >= tails.blocks => tails.heads[0].tiles[number - tails.blocks] as usize,
        _ => kv.blocks[number].index(),
    };
    (block, offset)
}

/// Which stored position of its sequence a row becomes.
pub fn index(kv: &SequenceKv<'_>, row: &Row) -> usize {
    let dropped = kv.tails.first().map_or(0, |tails| tails.heads[0].dropped);
    (row.cache_position - dropped) as usize
}

/// What is known of the stored positions.
pub fn facts(cells: &dyn Cells, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts {
    let positions = &stored.positions[0];
    let of = |salt: u64, wanted: bool| {
        let numbers = (0..positions.len()).map(|index| cells.get(cell(&stored.kv, index)));
        if wanted { numbers.map(|number| fact(number, salt)).collect() } else { Vec::new() }
    };
    let mut mass = stored.observed.and_then(|observed| observed.mass.first().cloned()).unwrap_or_default();
    mass.resize(positions.len(), 0.0);
    let head = HeadFacts {
        positions: positions.clone(),
        mass,
        key_norms: of(1, needs.key_norms),
        value_norms: of(2, needs.value_norms),
        likeness: of(3, needs.likeness),
        expected: of(5, needs.expected),
        gated: of(6, needs.gated),
    };
    LayerFacts { heads: vec![head] }
}

/// One of the facts about a position that stores `number`.
pub fn fact(number: u64, salt: u64) -> f32 {
    (mix(number ^ salt) % 1000) as f32
}

/// How much a row that stores `query` attends to a position that stores `number`.
pub fn weight(query: u64, number: u64) -> f32 {
    (mix(query ^ number) % 1000) as f32 / 1000.0
}

/// What is stored of a first key once it is rotated to other positions, which begin at `position`.
pub fn rotated(key: f32, position: u32) -> u64 {
    mix(u64::from(key.to_bits()) ^ (u64::from(position) << 32)) | 1
}

/// Stores positions elsewhere.
pub fn move_positions(cells: &mut dyn Cells, from: &SequenceKv<'_>, kept: &[u32], to: &[u32]) {
    for (index, &position) in kept.iter().enumerate() {
        let target = (to[index / BLOCK_POSITIONS] as usize, index % BLOCK_POSITIONS);
        cells.copy(cell(from, position as usize), target);
    }
}

/// Lets the watched rows of a batch, which are stored already, attend.
pub fn observe(cells: &dyn Cells, batch: &Batch<'_>, watched: &mut [Watched<'_>]) {
    for watched in watched {
        let reduce = match watched.watch {
            Watch::Attention { reduce, .. } => reduce,
            Watch::Repeat => Reduce::Max,
            Watch::Nothing | Watch::Queries { .. } => continue,
        };
        let mass = &mut watched.observation.layer(0).mass;
        mass.resize_with(1, Vec::new);
        for row in &batch.rows[watched.rows.clone()] {
            attend(cells, &batch.sequences[row.sequence as usize], row, reduce, &mut mass[0]);
        }
    }
}

fn attend(cells: &dyn Cells, kv: &SequenceKv<'_>, row: &Row, reduce: Reduce, mass: &mut Vec<f32>) {
    let own = index(kv, row);
    mass.resize(mass.len().max(own + 1), 0.0);
    let query = cells.get(cell(kv, own));
    for (index, mass) in mass[..=own].iter_mut().enumerate() {
        let weight = weight(query, cells.get(cell(kv, index)));
        *mass = match reduce {
            Reduce::Sum => *mass + weight,
            Reduce::Decayed(factor) => *mass * factor + weight,
            Reduce::Above => *mass + f32::from(weight > 0.5),
            Reduce::Max => mass.max(weight),
        };
    }
}
