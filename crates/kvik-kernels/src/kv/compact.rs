//! Compaction: moves the positions that a head retains, while it drops the others, to tiles of its own.
//!
//! The stored bytes of a position depend on that position alone (see [`tile`](super::tile)), so floats, quantised
//! values, scales and minima are copied as they are, and a head's compacted tiles are byte for byte as if the
//! dropped positions had never existed. Copying has no arithmetic, so it is the same on all instruction sets.

use super::sequence::check_tails;
use super::tile::{Place, Tile};
use super::tiles::with_tile;
use super::{BLOCK_POSITIONS, KvArena, KvLayer, KvValues, SeqKv};
use crate::Pool;

/// Target tiles per task: enough work for a thread, few enough for all threads to finish together.
const TASK_TILES: usize = 8;
/// Number of target tiles below which waking other threads costs more than copying.
const PARALLEL_TILES_MIN: usize = 8;

impl KvArena {
    /// Copies the retained positions of each KV head of a layer to tiles of their own, byte for byte.
    ///
    /// Stored position `kept[h][i]` of head `h` becomes stored position `i` of a tail of the tiles `to[h]`.
    ///
    /// * `from`: the stored sequence; its blocks and tails are only read
    /// * `kept`: `[kv_heads]` ascending stored positions, not counting those that a head dropped before
    /// * `to`: `[kv_heads]` tiles as [`KvLayout::tile`](super::KvLayout::tile) numbers them, one per 16
    ///   retained positions
    ///
    /// # Panics
    /// If a shape does not fit, a retained position is not stored or does not ascend, a tile is not of the
    /// layer's shape and formats, or a tile of `to` is named twice or holds a retained position of `from`.
    pub fn move_positions(
        &mut self,
        pool: &Pool,
        layer: usize,
        from: &SeqKv<'_>,
        kept: &[&[u32]],
        to: &[&[u32]],
    ) {
        let shape = self.layout().layers()[layer];
        check_tails(&shape, from);
        let moves = Moves { arena: self, layer, shape, from, kept, to };
        moves.check();
        let longest = kept.iter().map(|kept| kept.len().div_ceil(BLOCK_POSITIONS)).max().unwrap_or(0);
        let tasks = longest.div_ceil(TASK_TILES) * shape.kv_heads;
        let run = |task: usize| moves.fill(task % shape.kv_heads, task / shape.kv_heads);
        if longest * shape.kv_heads < PARALLEL_TILES_MIN {
            (0..tasks).for_each(run);
        } else {
            pool.run(tasks, &run);
        }
    }
}

/// The positions that a call moves.
struct Moves<'a> {
    arena: &'a KvArena,
    layer: usize,
    shape: KvLayer,
    from: &'a SeqKv<'a>,
    kept: &'a [&'a [u32]],
    to: &'a [&'a [u32]],
}

impl Moves<'_> {
    /// Checks that no tile is written twice, or written and read, so that any thread may fill any tile.
    fn check(&self) {
        let Moves { arena, layer, shape, from, kept, to } = *self;
        let heads = shape.kv_heads;
        assert!(kept.len() == heads && to.len() == heads, "kept and to are [{heads}]");
        let mut targets = Vec::new();
        for (head, (kept, to)) in kept.iter().zip(to).enumerate() {
            assert!(kept.is_sorted_by(|a, b| a < b), "the kept positions of head {head} do not ascend");
            let tiles = kept.len().div_ceil(BLOCK_POSITIONS);
            assert!(tiles <= to.len(), "{} tiles for {} positions of head {head}", to.len(), kept.len());
            targets.extend_from_slice(&to[..tiles]);
        }
        targets.sort_unstable();
        let twice = targets.windows(2).find(|pair| pair[0] == pair[1]);
        assert!(twice.is_none(), "tile {} is named twice", twice.map_or(0, |pair| pair[0]));
        for (head, kept) in kept.iter().enumerate() {
            for of_tile in kept.chunk_by(|a, b| a / POSITIONS == b / POSITIONS) {
                let tile = from.tile(arena, layer, head, (of_tile[0] / POSITIONS) as usize);
                assert!(targets.binary_search(&tile).is_err(), "tile {tile} is read and written");
            }
        }
    }

    /// Fills one task's tiles of a head.
    fn fill(&self, head: usize, task: usize) {
        let [copy_key, copy_value] = copiers(&self.shape);
        let targets = self.kept[head].chunks(BLOCK_POSITIONS).zip(self.to[head]);
        for (kept, &target) in targets.skip(task * TASK_TILES).take(TASK_TILES) {
            let target = self.arena.tiles(target, self.layer).map(<*const u8>::cast_mut);
            for (position, &stored) in kept.iter().enumerate() {
                let stored = stored as usize;
                let tile = self.from.tile(self.arena, self.layer, head, stored / BLOCK_POSITIONS);
                let source = self.arena.tiles(tile, self.layer);
                let from = source.map(|tile| Place { tile, position: stored % BLOCK_POSITIONS });
                let to = target.map(|tile| Place { tile, position });
                // SAFETY: the tiles exist and have the shape and formats of the layer; `check` has seen that no
                // other task writes or reads the target, and `&mut self` keeps all others away.
                unsafe {
                    copy_key(from[0], to[0], self.shape.key_dim);
                    copy_value(from[1], to[1], self.shape.value_lanes());
                }
            }
        }
    }
}

const POSITIONS: u32 = BLOCK_POSITIONS as u32;

/// Copies a key or a value of so many numbers from one tile to another of its format.
type CopyVector = unsafe fn(Place<*const u8>, Place<*mut u8>, usize);

/// The copiers of keys and values of a layer.
fn copiers(shape: &KvLayer) -> [CopyVector; 2] {
    unsafe fn no_value(_from: Place<*const u8>, _to: Place<*mut u8>, _lanes: usize) {}
    let value: CopyVector = match shape.values {
        KvValues::Stored => with_tile!(shape.v, V => V::copy_value),
        KvValues::OfKeys => no_value,
    };
    [with_tile!(shape.k, K => K::copy_key), value]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::{HeadTail, KvFormat, KvLayout, SeqRow};
    use crate::testing::Random;

    /// The layer under test, between two with other contents.
    const LAYER: usize = 1;

    /// A sequence of `len` positions, stored in the first `shared` of its blocks and in tails after them.
    struct Stored {
        arena: KvArena,
        blocks: Vec<u32>,
        tails: Vec<Vec<u32>>,
        /// `[len, kv_heads, dim]`
        k: Vec<f32>,
        v: Vec<f32>,
    }

    impl Stored {
        fn new(layer: KvLayer, len: usize, shared: usize, seed: u64) -> Stored {
            let mut random = Random(seed);
            let neighbour = KvLayer { value_dim: 40, ..KvLayer::full(3, 24, KvFormat::Q8, KvFormat::F16) };
            let layout = KvLayout::new(vec![neighbour, layer, neighbour]);
            let own = len.div_ceil(BLOCK_POSITIONS);
            // Blocks of the sequence, in random order, then as many for its retained positions.
            let mut numbers: Vec<u32> = (0..own as u32).collect();
            (1..own).for_each(|i| numbers.swap(i, random.bits() as usize % (i + 1)));
            let (blocks, rest) = numbers.split_at(shared.min(own));
            let tails: Vec<Vec<u32>> = (0..layer.kv_heads)
                .map(|head| rest.iter().map(|&block| layout.tile(block, LAYER, head)).collect())
                .collect();
            let mut vector = |dim| (0..len * layer.kv_heads * dim).map(|_| random.float()).collect();
            let (k, v) = (vector(layer.key_dim), vector(layer.stored_value_dim()));
            let arena = KvArena::new(layout, 2 * own).unwrap();
            let mut stored = Stored { arena, blocks: blocks.to_vec(), tails, k, v };
            let rows: Vec<SeqRow> = (1..=len as u32).map(|len| SeqRow { seq: 0, len }).collect();
            let Stored { arena, blocks, tails, k, v } = &mut stored;
            arena.write(&Pool::new(1), LAYER, &rows, &[seq(blocks, &whole(tails))], [k, v]);
            stored
        }

        /// Tiles after those of the sequence, enough for `kept`.
        fn targets(&self, kept: &[Vec<u32>]) -> Vec<Vec<u32>> {
            let first = self.arena.blocks() as u32 / 2;
            let tile = |head: usize, i: u32| self.arena.layout().tile(first + i, LAYER, head);
            let tiles = kept.iter().map(|kept| kept.len().div_ceil(BLOCK_POSITIONS) as u32);
            tiles.enumerate().map(|(head, count)| (0..count).map(|i| tile(head, i)).collect()).collect()
        }

        fn compact(&mut self, threads: usize, kept: &[Vec<u32>], to: &[Vec<u32>]) {
            let tails = whole(&self.tails);
            let from = seq(&self.blocks, &tails);
            let kept: Vec<&[u32]> = kept.iter().map(Vec::as_slice).collect();
            let to: Vec<&[u32]> = to.iter().map(Vec::as_slice).collect();
            self.arena.move_positions(&Pool::new(threads), LAYER, &from, &kept, &to);
        }
    }

    fn whole(tails: &[Vec<u32>]) -> Vec<HeadTail<'_>> {
        tails.iter().map(|tiles| HeadTail { tiles, dropped: 0 }).collect()
    }

    fn seq<'a>(blocks: &'a [u32], tails: &'a [HeadTail<'a>]) -> SeqKv<'a> {
        SeqKv { blocks, tails }
    }

    /// The tiles of one head that was written with the retained positions only.
    fn written_directly(layer: KvLayer, head: usize, stored: &Stored, kept: &[u32]) -> Vec<u8> {
        let alone = KvLayer { kv_heads: 1, ..layer };
        let blocks: Vec<u32> = (0..kept.len().div_ceil(BLOCK_POSITIONS) as u32).collect();
        let mut arena = KvArena::new(KvLayout::uniform(1, alone), blocks.len()).unwrap();
        let pick = |from: &[f32], dim: usize| -> Vec<f32> {
            let at = |&position: &u32| (position as usize * layer.kv_heads + head) * dim;
            kept.iter().flat_map(|position| from[at(position)..][..dim].to_vec()).collect()
        };
        let (k, v) = (pick(&stored.k, layer.key_dim), pick(&stored.v, layer.stored_value_dim()));
        let rows: Vec<SeqRow> = (1..=kept.len() as u32).map(|len| SeqRow { seq: 0, len }).collect();
        arena.write(&Pool::new(1), 0, &rows, &[seq(&blocks, &[])], [&k, &v]);
        blocks.iter().flat_map(|&block| arena.block(block).to_vec()).collect()
    }

    fn tile_bytes(arena: &KvArena, tile: u32) -> &[u8] {
        let (block, head) = arena.layout().block_and_head(tile);
        let tiles = arena.layout().tiles(head);
        &arena.block(block)[tiles.key.start..tiles.value.end]
    }

    /// A layer, a length, shared blocks, and the retained positions of each head.
    fn case() -> impl Strategy<Value = (KvLayer, usize, usize, Vec<Vec<u32>>, u64)> {
        let formats = || prop::sample::select(KvFormat::ALL.to_vec());
        let dim = || prop::sample::select(vec![8_usize, 24, 40, 64, 100, 128, 256]);
        let lens = prop_oneof![1..700_usize, prop::sample::select(vec![15, 16, 17, 255, 256, 257])];
        let dims = (dim(), dim(), 1..4_usize, any::<bool>());
        (formats(), formats(), dims, lens, 0..40_usize, any::<u64>()).prop_flat_map(
            |(k, v, (key_dim, value_dim, kv_heads, latent), len, shared, seed)| {
                let layer = match latent {
                    true => KvLayer { kv_heads, ..KvLayer::latent(key_dim, value_dim.min(key_dim), k) },
                    false => KvLayer { value_dim, ..KvLayer::full(kv_heads, key_dim, k, v) },
                };
                let kept = prop::collection::vec(
                    prop::sample::subsequence((0..len as u32).collect::<Vec<_>>(), 0..=len),
                    kv_heads,
                );
                (Just(layer), Just(len), Just(shared), kept, Just(seed))
            },
        )
    }

    proptest! {
        #![proptest_config(crate::testing::cases(96))]

        #[test]
        fn what_is_kept_has_the_bytes_of_what_was_never_beside_others((layer, len, shared, kept, seed) in case()) {
            for threads in [1, 3] {
                let mut stored = Stored::new(layer, len, shared, seed);
                let own = stored.arena.blocks() as u32 / 2;
                let before: Vec<Vec<u8>> = (0..own).map(|block| stored.arena.block(block).to_vec()).collect();
                let to = stored.targets(&kept);
                stored.compact(threads, &kept, &to);
                for (head, (kept, to)) in kept.iter().zip(&to).enumerate() {
                    let moved: Vec<u8> =
                        to.iter().flat_map(|&tile| tile_bytes(&stored.arena, tile).to_vec()).collect();
                    prop_assert_eq!(moved, written_directly(layer, head, &stored, kept), "head {}", head);
                }
                for (block, before) in before.iter().enumerate() {
                    prop_assert_eq!(stored.arena.block(block as u32), &before[..], "its source");
                }
                let named: Vec<u32> = to.concat();
                let heads = stored.arena.layout().heads() as u32;
                for tile in (own * heads..2 * own * heads).filter(|tile| !named.contains(tile)) {
                    prop_assert!(tile_bytes(&stored.arena, tile).iter().all(|&byte| byte == 0), "its neighbour");
                }
            }
        }
    }

    /// Compacts two heads of 40 positions, of which each retains three, to tiles that `change` modifies.
    fn compact_to(change: impl Fn(&mut Vec<Vec<u32>>, &Stored), kept: [u32; 3]) {
        let mut stored = Stored::new(KvLayer::full(2, 8, KvFormat::F16, KvFormat::Q4), 40, 1, 1);
        let kept = vec![kept.to_vec(); 2];
        let mut to = stored.targets(&kept);
        change(&mut to, &stored);
        stored.compact(2, &kept, &to);
    }

    #[test]
    #[should_panic(expected = "is named twice")]
    fn a_tile_of_two_heads_is_refused() {
        compact_to(|to, _| to[1] = to[0].clone(), [0, 5, 39]);
    }

    #[test]
    #[should_panic(expected = "is read and written")]
    fn a_tile_that_another_head_reads_is_refused() {
        compact_to(|to, stored| to[0][0] = stored.tails[1][1], [0, 5, 39]);
    }

    #[test]
    #[should_panic(expected = "is not one of layer 1")]
    fn a_tile_of_another_shape_is_refused() {
        compact_to(|to, stored| to[0][0] = stored.arena.layout().tile(3, 0, 0), [0, 5, 39]);
    }

    #[test]
    #[should_panic(expected = "0 tiles for 3 positions of head 1")]
    fn too_few_tiles_are_refused() {
        compact_to(|to, _| to[1].clear(), [0, 5, 39]);
    }

    #[test]
    #[should_panic(expected = "do not ascend")]
    fn a_position_kept_twice_is_refused() {
        compact_to(|_, _| {}, [0, 5, 5]);
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_position_that_is_not_stored_is_refused() {
        compact_to(|_, _| {}, [0, 5, 48]);
    }
}
