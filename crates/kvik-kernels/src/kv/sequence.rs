//! What a layer of a sequence stores, and where: the view that writing and attention share.

use super::{BLOCK_POSITIONS, KvArena, KvKind, KvLayer};

/// The stored keys and values of one sequence in the layer at hand.
#[derive(Debug, Clone, Copy)]
pub struct SeqKv<'a> {
    /// Block `i` holds stored positions `16 i .. 16 i + 16` of every KV head; others may read it too.
    pub blocks: &'a [u32],
    /// What each KV head stores behind the blocks, `[kv_heads]`; or empty if that is nothing.
    pub tails: &'a [HeadTail<'a>],
}

/// What one KV head of one sequence stores by itself, behind the blocks that all heads share.
///
/// Heads that have dropped positions store the others without gaps, so each has its own count.
#[derive(Debug, Clone, Copy)]
pub struct HeadTail<'a> {
    /// Tile `i`, as [`KvLayout::tile`](super::KvLayout::tile) numbers them, holds the head's stored positions
    /// `16 (blocks + i) .. 16 (blocks + i) + 16`. It may be that of another layer or head in its block
    /// if its shape and formats are those of this layer.
    pub tiles: &'a [u32],
    /// Positions of the sequence that this head no longer stores.
    pub dropped: u32,
}

/// One row of a batch in its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRow {
    /// The sequence it belongs to.
    pub seq: u32,
    /// It is the last of positions `0..len` of that sequence, and attends to those of them that are stored and that
    /// [`KvKind`] lets it see.
    pub len: u32,
}

impl SeqKv<'_> {
    /// Positions that a KV head stores of the first `len`.
    pub(crate) fn stored(&self, head: usize, len: u32) -> usize {
        (len - self.dropped(head)) as usize
    }

    /// The maximum of the heads' [`SeqKv::stored`].
    pub(crate) fn stored_max(&self, len: u32) -> usize {
        (len - self.tails.iter().map(|tail| tail.dropped).min().unwrap_or(0)) as usize
    }

    /// The tile that holds stored positions `16 index .. 16 index + 16` of a KV head.
    ///
    /// # Panics
    /// When the sequence has no such tile.
    pub(crate) fn tile(&self, arena: &KvArena, layer: usize, head: usize, index: usize) -> u32 {
        match self.blocks.get(index) {
            Some(&block) => arena.layout().tile(block, layer, head),
            None => self.tails[head].tiles[index - self.blocks.len()],
        }
    }

    fn dropped(&self, head: usize) -> u32 {
        self.tails.get(head).map_or(0, |tail| tail.dropped)
    }

    /// Positions that a KV head has room for.
    fn capacity(&self, head: usize) -> usize {
        (self.blocks.len() + self.tails.get(head).map_or(0, |tail| tail.tiles.len())) * BLOCK_POSITIONS
    }
}

/// Checks that what `rows` refer to is there.
///
/// # Panics
/// When a sequence has tails of some heads only, or a row belongs to an unknown sequence, to positions that
/// its blocks and tails have no room for, or to none that a head stores; or when a head has dropped positions where
/// rows do not attend to all.
pub(crate) fn check(layer: &KvLayer, rows: &[SeqRow], seqs: &[SeqKv<'_>]) {
    // Another kind stores other positions: a new kind says here and in `SeqKv` which.
    let (KvKind::Full | KvKind::Window { .. } | KvKind::Chunk { .. }) = layer.kind;
    seqs.iter().for_each(|kv| check_tails(layer, kv));
    for &SeqRow { seq, len } in rows {
        let kv = &seqs[seq as usize];
        for head in 0..kv.tails.len().max(1) {
            let (capacity, dropped) = (kv.capacity(head), kv.dropped(head));
            // Stored positions then are not those of the sequence, so nobody knows which a window reaches.
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
/// When some have.
pub(crate) fn check_tails(layer: &KvLayer, kv: &SeqKv<'_>) {
    let complete = kv.tails.is_empty() || kv.tails.len() == layer.kv_heads;
    assert!(complete, "{} tails of {} KV heads", kv.tails.len(), layer.kv_heads);
}
