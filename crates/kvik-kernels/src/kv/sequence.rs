//! The stored keys and values of a sequence in one layer: the view that writing and attention share.

use super::{BLOCK_POSITIONS, KvArena, KvKind, KvLayer};

/// The stored keys and values of one sequence in one layer.
#[derive(Debug, Clone, Copy)]
pub struct SeqKv<'a> {
    /// Block `i` holds stored positions `16 i .. 16 i + 16` of every KV head; other sequences may share it.
    pub blocks: &'a [u32],
    /// The tail of each KV head after the blocks, `[kv_heads]`; or empty if there are none.
    pub tails: &'a [HeadTail<'a>],
}

/// The positions of a sequence that one KV head stores separately, after the blocks that all heads share.
///
/// Heads that have dropped positions store the others without gaps, so each has its own count.
#[derive(Debug, Clone, Copy)]
pub struct HeadTail<'a> {
    /// Tile `i`, as [`KvLayout::tile`](super::KvLayout::tile) numbers them, holds the head's stored positions
    /// `16 (blocks + i) .. 16 (blocks + i) + 16`. It may belong to another layer or head in its block if its shape
    /// and formats are those of this layer.
    pub tiles: &'a [u32],
    /// Number of positions of the sequence that this head has dropped.
    pub dropped: u32,
}

/// A row of a batch in its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRow {
    /// The sequence that the row belongs to.
    pub seq: u32,
    /// The row is the last of positions `0..len` of that sequence, and attends to those of them that are stored
    /// and visible under [`KvKind`].
    pub len: u32,
}

impl SeqKv<'_> {
    /// Number of positions that a KV head stores of the first `len`.
    pub(crate) fn stored(&self, head: usize, len: u32) -> usize {
        (len - self.dropped(head)) as usize
    }

    /// The maximum of [`SeqKv::stored`] over all heads.
    pub(crate) fn stored_max(&self, len: u32) -> usize {
        (len - self.tails.iter().map(|tail| tail.dropped).min().unwrap_or(0)) as usize
    }

    /// The tile that holds stored positions `16 index .. 16 index + 16` of a KV head.
    ///
    /// # Panics
    /// If the sequence has no such tile.
    pub(crate) fn tile(&self, arena: &KvArena, layer: usize, head: usize, index: usize) -> u32 {
        match self.blocks.get(index) {
            Some(&block) => arena.layout().tile(block, layer, head),
            None => self.tails[head].tiles[index - self.blocks.len()],
        }
    }

    fn dropped(&self, head: usize) -> u32 {
        self.tails.get(head).map_or(0, |tail| tail.dropped)
    }

    /// Number of positions that a KV head has room for.
    fn capacity(&self, head: usize) -> usize {
        (self.blocks.len() + self.tails.get(head).map_or(0, |tail| tail.tiles.len())) * BLOCK_POSITIONS
    }
}

/// Checks that the sequences and positions of `rows` exist.
///
/// # Panics
/// If a sequence has tails for some heads only, or a row belongs to an unknown sequence, to positions that its
/// blocks and tails have no room for, or to none that a head stores; or if a head has dropped positions in a
/// layer whose rows do not attend to all positions.
pub(crate) fn check(layer: &KvLayer, rows: &[SeqRow], seqs: &[SeqKv<'_>]) {
    // Another kind stores other positions, which must be handled here and in `SeqKv`.
    let (KvKind::Full | KvKind::Window { .. } | KvKind::Chunk { .. }) = layer.kind;
    seqs.iter().for_each(|kv| check_tails(layer, kv));
    for &SeqRow { seq, len } in rows {
        let kv = &seqs[seq as usize];
        for head in 0..kv.tails.len().max(1) {
            let (capacity, dropped) = (kv.capacity(head), kv.dropped(head));
            // With dropped positions, stored positions are not those of the sequence, so the extent of a
            // window is unknown.
            let countable = dropped == 0 || layer.kind == KvKind::Full;
            assert!(
                countable,
                "{dropped} positions dropped of sequence {seq} in a layer of {:?}",
                layer.kind
            );
            let fits = len > dropped && (len - dropped) as usize <= capacity;
            assert!(fits, "{len} positions, {dropped} dropped, of {capacity} in sequence {seq}");
        }
    }
}

/// Checks that all heads of a layer have tails, or none.
///
/// # Panics
/// If only some have.
pub(crate) fn check_tails(layer: &KvLayer, kv: &SeqKv<'_>) {
    let complete = kv.tails.is_empty() || kv.tails.len() == layer.kv_heads;
    assert!(complete, "{} tails of {} KV heads", kv.tails.len(), layer.kv_heads);
}
