//! The contents of a block for each layer of a model, and their layout in the block.

use std::ops::{Range, RangeInclusive};

use super::format::in_runs;
use super::rotate::rotated_together;
use super::tiles::{is_rotated, key_bytes, value_bytes};
use super::{BLOCK_POSITIONS, HEAD_DIM_MAX, KvFormat, KvFormats};
use crate::f32x16::LANES;

/// Version of the meaning of a block's bytes: blocks stored by an older version are not read by a newer one. Must
/// be incremented with every change of a format, of a rotation, of the order of tiles, and of the order of any
/// sum that keys and values are computed from.
pub const KV_LAYOUT_VERSION: u32 = 6;

/// The positions of a sequence that a layer attends to. Layers without attention are not in a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvKind {
    /// All positions: full attention.
    Full,
    /// A sliding window: a row attends to the last positions, including its own.
    ///
    /// Blocks store all positions, including those that no window will reach again and attention does not read:
    /// their memory can be returned to the system, see [`KvLayout::windowed_part`].
    Window {
        /// Maximum number of positions that a row attends to.
        positions: u32,
    },
    /// Chunks of positions: a row attends to the positions of its own chunk up to itself. Stored as for a window.
    Chunk {
        /// Positions of a chunk.
        positions: u32,
    },
}

impl KvKind {
    /// The first position that the last of `len` positions attends to.
    pub fn first_visible(self, len: u32) -> u32 {
        match self {
            KvKind::Full => 0,
            KvKind::Window { positions } => len.saturating_sub(positions),
            KvKind::Chunk { positions } => len.saturating_sub(1) / positions * positions,
        }
    }
}

/// The location of a layer's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvValues {
    /// In tiles of their own, next to those of the keys.
    Stored,
    /// In the keys, of which they are the first elements (latent attention): nothing is stored for them.
    OfKeys,
}

/// The data that one layer stores for a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    /// The positions that it attends to.
    pub kind: KvKind,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Length of a key vector, one of [`KvLayout::HEAD_DIMS`].
    pub key_dim: usize,
    /// Length of a value vector, one of [`KvLayout::HEAD_DIMS`].
    pub value_dim: usize,
    /// The location of its values.
    pub values: KvValues,
    /// Format of the keys.
    pub k: KvFormat,
    /// Format of the values; that of the keys if keys hold the values.
    pub v: KvFormat,
}

impl KvLayer {
    /// A layer of full attention whose keys and values have the same length.
    pub fn full(kv_heads: usize, head_dim: usize, k: KvFormat, v: KvFormat) -> KvLayer {
        let values = KvValues::Stored;
        KvLayer { kind: KvKind::Full, kv_heads, key_dim: head_dim, value_dim: head_dim, values, k, v }
    }

    /// A layer of latent attention: one vector per position, whose first `value_dim` elements are its value.
    pub fn latent(key_dim: usize, value_dim: usize, format: KvFormat) -> KvLayer {
        KvLayer { value_dim, values: KvValues::OfKeys, ..KvLayer::full(1, key_dim, format, format) }
    }

    /// A layer whose rows attend to the last `positions` positions.
    pub fn windowed(kv_heads: usize, head_dim: usize, k: KvFormat, v: KvFormat, positions: u32) -> KvLayer {
        KvLayer { kind: KvKind::Window { positions }, ..KvLayer::full(kv_heads, head_dim, k, v) }
    }

    /// The layer's formats as text: `f16`, or `q8/q4` if keys and values differ.
    fn format_name(&self) -> String {
        let KvLayer { kind, k, v, .. } = self;
        match kind {
            // Windows and chunks belong to the model, whose digest accompanies the name, and do not change the
            // contents of a block.
            KvKind::Full | KvKind::Window { .. } | KvKind::Chunk { .. } => {
                KvFormats { k: *k, v: *v }.to_string()
            }
        }
    }

    /// Bytes that a block stores for the layer, all its heads: for keys, for values.
    pub fn part_bytes(&self) -> [usize; 2] {
        let value_bytes = match self.values {
            KvValues::Stored => value_bytes(self.v, self.value_lanes()),
            KvValues::OfKeys => 0,
        };
        [key_bytes(self.k, self.key_dim), value_bytes].map(|bytes| bytes * self.kv_heads)
    }

    /// Elements that a block stores for the layer, all its heads: of keys, of values.
    pub fn part_numbers(&self) -> [usize; 2] {
        [self.key_dim, self.stored_value_dim()].map(|dim| dim * self.kv_heads * BLOCK_POSITIONS)
    }

    /// Length of the vectors that are stored as values; 0 if keys hold them.
    pub fn stored_value_dim(&self) -> usize {
        match self.values {
            KvValues::Stored => self.value_dim,
            KvValues::OfKeys => 0,
        }
    }

    /// Length of a gathered value, and of a row of a V tile: that of a value rounded up to whole lanes, or if the
    /// value is a part of a rotated key, to whole rotated pieces.
    pub(crate) fn value_lanes(&self) -> usize {
        let together = match self.values {
            KvValues::OfKeys if is_rotated(self.k) => rotated_together(self.key_dim),
            _ => 1,
        };
        self.value_dim.next_multiple_of(together.max(LANES))
    }

    /// The length of the vectors, of which values are a prefix, that are rotated before they are stored.
    pub(crate) fn rotated_value_dim(&self) -> usize {
        match self.values {
            KvValues::Stored => self.value_dim,
            KvValues::OfKeys => self.key_dim,
        }
    }

    /// Whether tiles of both layers are interchangeable.
    fn has_tiles_of(&self, other: &KvLayer) -> bool {
        let shape = |layer: &KvLayer| (layer.key_dim, layer.value_dim, layer.values, layer.k, layer.v);
        shape(self) == shape(other)
    }
}

/// The layout of a block for its 16 positions: keys and values of all layers and KV heads.
///
/// ```text
/// block = [layers of full attention][KV heads of the layer] { K tile, V tile unless keys hold the values }
///         [layers with windows or chunks][KV heads of the layer] { the same }     page-aligned, if both
///         kinds exist
/// ```
///
/// Heads are numbered across all layers, in their order, so that a head of a layer is one number.
#[derive(Clone, PartialEq, Eq)]
pub struct KvLayout {
    layers: Vec<KvLayer>,
    /// The number of each layer's first head, `[layers]`.
    first_heads: Vec<usize>,
    /// `[heads of all layers]`
    heads: Vec<HeadTiles>,
    /// Offset of the tiles of layers with windows or chunks.
    windowed_from: usize,
    block_bytes: usize,
}

/// Alignment of a part of a block whose memory can be returned to the system: the page size of most systems, and
/// the same on all of them, since blocks are also stored on disk.
const PAGE: usize = 16 << 10;

/// Byte ranges of the tiles of one head of one layer in a block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HeadTiles {
    pub key: Range<usize>,
    /// The range of the key if keys hold the values.
    pub value: Range<usize>,
    /// The first layer with tiles of the same shape and formats.
    pub tiles_of: usize,
}

/// A layout under construction.
struct Tiles {
    heads: Vec<HeadTiles>,
    /// Bytes so far.
    end: usize,
}

impl Tiles {
    /// Adds the tiles of the layers for which `chosen` is true.
    fn add(&mut self, layers: &[KvLayer], first_heads: &[usize], chosen: impl Fn(&KvLayer) -> bool) {
        for (layer, &first) in layers.iter().zip(first_heads).filter(|(layer, _)| chosen(layer)) {
            let tiles_of = layers.iter().take_while(|first| !first.has_tiles_of(layer)).count();
            for head in &mut self.heads[first..first + layer.kv_heads] {
                let key = self.end..self.end + key_bytes(layer.k, layer.key_dim);
                let value = match layer.values {
                    KvValues::Stored => key.end..key.end + value_bytes(layer.v, layer.value_lanes()),
                    KvValues::OfKeys => key.clone(),
                };
                self.end = value.end;
                *head = HeadTiles { key, value, tiles_of };
            }
        }
    }
}

impl KvLayout {
    /// Valid lengths of a key or value vector.
    pub const HEAD_DIMS: RangeInclusive<usize> = 8..=HEAD_DIM_MAX;

    /// A block of `layers`, in their order.
    ///
    /// # Panics
    /// If there is no layer, a layer has no heads or attends to no position, a length is not in
    /// [`KvLayout::HEAD_DIMS`], or values in keys are longer than the keys or in another format.
    pub fn new(layers: Vec<KvLayer>) -> KvLayout {
        assert!(!layers.is_empty(), "a layout without layers");
        let (mut first_heads, mut heads) = (Vec::new(), 0);
        for layer in &layers {
            check(layer);
            first_heads.push(heads);
            heads += layer.kv_heads;
        }
        let mut tiles = Tiles { heads: vec![HeadTiles::default(); heads], end: 0 };
        tiles.add(&layers, &first_heads, |layer| layer.kind == KvKind::Full);
        let sees_some = layers.iter().any(|layer| layer.kind != KvKind::Full);
        tiles.end = if sees_some { tiles.end.next_multiple_of(PAGE) } else { tiles.end };
        let windowed_from = tiles.end;
        tiles.add(&layers, &first_heads, |layer| layer.kind != KvKind::Full);
        let block_bytes = if sees_some { tiles.end.next_multiple_of(PAGE) } else { tiles.end };
        KvLayout { layers, first_heads, heads: tiles.heads, windowed_from, block_bytes }
    }

    /// A block of `layers` equal layers.
    ///
    /// # Panics
    /// As [`KvLayout::new`].
    pub fn uniform(layers: usize, layer: KvLayer) -> KvLayout {
        KvLayout::new(vec![layer; layers])
    }

    /// The contents of each layer, `[layers]`.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// The bytes of a block that belong to layers with windows or chunks; empty if there are none. Whole pages.
    pub fn windowed_part(&self) -> Range<usize> {
        self.windowed_from..self.block_bytes
    }

    /// The bytes of a block that belong to a layer, all its heads: layers of full attention come first, then the
    /// others, each in their order.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn layer_part(&self, layer: usize) -> Range<usize> {
        let first = self.first_heads[layer];
        let heads = &self.heads[first..first + self.layers[layer].kv_heads];
        heads[0].key.start..heads[heads.len() - 1].value.end
    }

    /// Bytes per position: a sixteenth of a block.
    pub fn token_bytes(&self) -> usize {
        self.block_bytes / BLOCK_POSITIONS
    }

    /// Average bits per stored element, including scales, minima and padding.
    pub fn bits_per_number(&self) -> f64 {
        let numbers: usize = self.layers.iter().flat_map(KvLayer::part_numbers).sum();
        8.0 * self.block_bytes as f64 / numbers as f64
    }

    /// The formats as text, by which namespaces and disk caches distinguish blocks.
    ///
    /// Either the format of all layers, `f16` or `q8/q4` (keys, values), or runs of equal layers, as in
    /// `0-3:f16,4-27:q8/q4`. Heads and lengths belong to the model, whose identity accompanies the name.
    pub fn format_name(&self) -> String {
        text_of(self.layers.iter().map(KvLayer::format_name).collect())
    }

    /// The formats of the keys alone, and of the values alone, in the syntax of
    /// [`format_name`](KvLayout::format_name).
    pub fn part_names(&self) -> [String; 2] {
        let keys = self.layers.iter().map(|layer| layer.k.to_string());
        let values = self.layers.iter().map(|layer| layer.v.to_string());
        [text_of(keys.collect()), text_of(values.collect())]
    }

    /// The number of the K and V tile that `block` stores for a layer and KV head.
    ///
    /// # Panics
    /// If the layer or head does not exist.
    pub fn tile(&self, block: u32, layer: usize, head: usize) -> u32 {
        block * self.heads() as u32 + self.head(layer, head) as u32
    }

    /// The first layer whose tiles are interchangeable with those of `layer`.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn tile_class(&self, layer: usize) -> usize {
        self.tiles(self.first_heads[layer]).tiles_of
    }

    /// The block of a tile, and its head among those of all layers.
    pub(crate) fn block_and_head(&self, tile: u32) -> (u32, usize) {
        let heads = self.heads() as u32;
        (tile / heads, (tile % heads) as usize)
    }

    /// Byte ranges of the tiles of a head.
    pub(crate) fn tiles(&self, head: usize) -> &HeadTiles {
        &self.heads[head]
    }

    /// Number of KV heads of all layers.
    pub(crate) fn heads(&self) -> usize {
        self.heads.len()
    }

    /// The number of a layer's head among those of all layers.
    ///
    /// # Panics
    /// If the layer or head does not exist.
    pub(crate) fn head(&self, layer: usize, head: usize) -> usize {
        let kv_heads = self.layers[layer].kv_heads;
        assert!(head < kv_heads, "head {head} of {kv_heads} in layer {layer}");
        self.first_heads[layer] + head
    }
}

/// The common name of all layers, or names by runs of layers.
fn text_of(mut layers: Vec<String>) -> String {
    match layers.iter().all(|name| *name == layers[0]) {
        true => layers.swap_remove(0),
        false => in_runs(&layers),
    }
}

fn check(layer: &KvLayer) {
    assert!(layer.kv_heads > 0, "a layer without KV heads");
    let (KvKind::Full | KvKind::Window { positions: 1.. } | KvKind::Chunk { positions: 1.. }) = layer.kind
    else {
        panic!("a layer that attends to no position: {:?}", layer.kind)
    };
    for dim in [layer.key_dim, layer.value_dim] {
        let dims = KvLayout::HEAD_DIMS;
        assert!(dims.contains(&dim), "head dimension {dim} is not in {dims:?}");
    }
    if layer.values == KvValues::OfKeys {
        let KvLayer { key_dim, value_dim, k, v, .. } = *layer;
        assert!(value_dim <= key_dim, "values of {value_dim} numbers in keys of {key_dim}");
        assert!(k == v, "values in {v} in keys in {k}");
    }
}

impl std::fmt::Debug for KvLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The rest follows from the layers.
        f.debug_tuple("KvLayout").field(&self.layers).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every head's tiles follow the ones before, in the order of layers and heads.
    fn check_tiles(layout: &KvLayout) {
        let mut end = 0;
        for (index, layer) in layout.layers().iter().enumerate() {
            for head in 0..layer.kv_heads {
                let HeadTiles { key, value, .. } = layout.tiles(layout.head(index, head));
                assert_eq!(key.start, end);
                assert_eq!((key.start % 16, value.start % 16), (0, 0), "{layout:?}");
                assert_eq!(key.len(), key_bytes(layer.k, layer.key_dim));
                match layer.values {
                    KvValues::Stored => {
                        assert_eq!(value.start, key.end);
                        assert_eq!(value.len(), value_bytes(layer.v, layer.value_lanes()));
                    }
                    KvValues::OfKeys => assert_eq!(value, key),
                }
                end = value.end;
            }
        }
        assert_eq!(end, layout.block_bytes());
        assert_eq!(end, layout.layers().iter().flat_map(KvLayer::part_bytes).sum());
        assert_eq!(layout.heads(), layout.layers().iter().map(|layer| layer.kv_heads).sum());
    }

    #[test]
    fn layers_fill_a_block_without_meeting() {
        let full = KvLayer::full(2, 64, KvFormat::F16, KvFormat::Q8);
        let windowed = KvLayer::windowed(3, 128, KvFormat::Q8, KvFormat::Q8, 100);
        let latent = KvLayer::latent(64, 32, KvFormat::F16);
        for layers in [vec![full; 3], vec![full, windowed, latent, windowed], vec![windowed; 2]] {
            let layout = KvLayout::new(layers);
            let mut parts: Vec<_> =
                (0..layout.layers().len()).map(|layer| layout.layer_part(layer)).collect();
            for (layer, part) in layout.layers().iter().zip(&parts) {
                assert_eq!(part.len(), layer.part_bytes().iter().sum());
            }
            parts.sort_by_key(|part| part.start);
            assert!(parts.is_sorted_by(|a, b| a.end <= b.start), "{parts:?}");
            assert!(parts.last().is_some_and(|part| part.end <= layout.block_bytes()));
            let bytes: usize = parts.iter().map(Range::len).sum();
            assert!(layout.block_bytes() - bytes < 2 * PAGE, "pages are filled up, nothing else");
        }
    }

    #[test]
    fn tiles_follow_one_another_and_fill_the_block() {
        let formats = KvFormat::ALL.into_iter().flat_map(|k| KvFormat::ALL.map(|v| (k, v)));
        let mut mixed = Vec::new();
        for ((k, v), head_dim) in
            formats.flat_map(|kv| [8, 24, 64, 100, 128, 192, 256, 512, 576].map(|dim| (kv, dim)))
        {
            let layer = KvLayer::full(2, head_dim, k, v);
            check_tiles(&KvLayout::uniform(3, layer));
            mixed.push(KvLayer { kv_heads: 1 + mixed.len() % 3, value_dim: 584 - head_dim, ..layer });
            mixed.push(KvLayer::latent(head_dim, head_dim.div_ceil(2).max(8), k));
        }
        check_tiles(&KvLayout::new(mixed));
    }

    #[test]
    fn a_token_of_qwen3_takes_what_the_formula_says() {
        let check = |format, expect: usize| {
            let layout = KvLayout::uniform(28, KvLayer::full(8, 128, format, format));
            assert_eq!(layout.token_bytes(), expect, "{format}");
        };
        check(KvFormat::F32, 2 * 28 * 8 * 128 * 4);
        check(KvFormat::F16, 2 * 28 * 8 * 128 * 2);
        check(KvFormat::Bf16, 2 * 28 * 8 * 128 * 2);
        check(KvFormat::Q8, 2 * 28 * 8 * (128 + 4));
        check(KvFormat::Q6, 2 * 28 * 8 * (96 + 1));
        check(KvFormat::Q5, 2 * 28 * 8 * (80 + 1));
        check(KvFormat::Q4, 2 * 28 * 8 * (64 + 1));
        check(KvFormat::Q3, 2 * 28 * 8 * (48 + 1));
    }

    /// DeepSeek V2-Lite and V3: 512 elements of a latent and 64 of the rotated key, once.
    #[test]
    fn a_token_of_a_latent_layer_takes_its_key_alone() {
        let check = |format, expect: usize| {
            let layout = KvLayout::uniform(27, KvLayer::latent(576, 512, format));
            assert_eq!(layout.token_bytes(), 27 * expect, "{format}");
            assert_eq!(layout.layers()[0].part_bytes(), [16 * expect, 0]);
            assert_eq!(layout.layers()[0].part_numbers(), [16 * 576, 0]);
            assert_eq!(layout.format_name(), format.to_string());
        };
        check(KvFormat::F32, 576 * 4);
        check(KvFormat::F16, 576 * 2);
        check(KvFormat::Bf16, 576 * 2);
        // The latent and the rotated part have separate scales.
        check(KvFormat::Q8, 576 + 2 * 4);
        check(KvFormat::Q6, 432 + 2);
        check(KvFormat::Q5, 360 + 2);
        check(KvFormat::Q4, 288 + 2);
        check(KvFormat::Q3, 216 + 2);
    }

    /// Elements that were rotated together are rotated back together.
    #[test]
    fn values_in_keys_are_gathered_up_to_whole_pieces() {
        let lanes = |key_dim, value_dim, format| KvLayer::latent(key_dim, value_dim, format).value_lanes();
        assert_eq!(lanes(576, 512, KvFormat::Q8), 512);
        assert_eq!(lanes(160, 100, KvFormat::Q8), 128);
        assert_eq!(lanes(160, 100, KvFormat::F16), 112);
        assert_eq!(lanes(256, 129, KvFormat::Q4), 256);
        assert_eq!(lanes(36, 33, KvFormat::Q3), 48);
    }

    #[test]
    #[should_panic(expected = "values of 65 numbers in keys of 64")]
    fn values_that_keys_cannot_hold_are_refused() {
        KvLayout::uniform(1, KvLayer::latent(64, 65, KvFormat::F16));
    }

    /// Short heads take more bits: fewer elements share a scale, and values are padded to 16 dimensions.
    #[test]
    fn bits_are_those_of_numbers_scales_and_padding() {
        let check = |head_dim, expect: [f64; 8]| {
            let bits =
                |format| KvLayout::uniform(2, KvLayer::full(3, head_dim, format, format)).bits_per_number();
            assert_eq!(KvFormat::ALL.map(bits), expect, "{head_dim}");
        };
        check(128, [32.0, 16.0, 16.0, 8.25, 6.0625, 5.0625, 4.0625, 3.0625]);
        check(64, [32.0, 16.0, 16.0, 8.5, 6.125, 5.125, 4.125, 3.125]);
        check(8, [48.0, 24.0, 24.0, 16.0, 10.0, 8.5, 7.0, 5.5]);
    }

    /// The names of uniform layouts are part of the identity of every cache on disk.
    #[test]
    fn formats_have_one_name() {
        let layers = |runs: &[(usize, KvFormat, KvFormat)]| {
            let run = |&(count, k, v): &_| vec![KvLayer::full(2, 64, k, v); count];
            KvLayout::new(runs.iter().flat_map(run).collect())
        };
        let (f16, q8, q4) = (KvFormat::F16, KvFormat::Q8, KvFormat::Q4);
        assert_eq!(layers(&[(28, f16, f16)]).format_name(), "f16");
        assert_eq!(layers(&[(28, q8, q4)]).format_name(), "q8/q4");
        assert_eq!(layers(&[(4, f16, f16), (24, q8, q4)]).format_name(), "0-3:f16,4-27:q8/q4");
        assert_eq!(layers(&[(1, q8, q8), (1, f16, f16)]).format_name(), "0:q8,1:f16");
        assert_eq!(layers(&[(4, f16, f16), (24, q8, f16)]).part_names(), ["0-3:f16,4-27:q8", "f16"]);
    }

    #[test]
    fn tiles_of_equal_shape_and_formats_are_known() {
        let layer = KvLayer::full(2, 64, KvFormat::F16, KvFormat::Q8);
        let more_heads = KvLayer { kv_heads: 3, ..layer };
        let narrow = KvLayer { value_dim: 32, ..layer };
        let layout = KvLayout::new(vec![layer, narrow, more_heads, narrow]);
        let tiles_of: Vec<usize> = (0..4).map(|layer| layout.tiles(layout.head(layer, 1)).tiles_of).collect();
        assert_eq!(tiles_of, [0, 1, 0, 1]);
        let latent = KvLayer::latent(64, 64, KvFormat::F16);
        let stored = KvLayer { values: KvValues::Stored, ..latent };
        let layout = KvLayout::new(vec![latent, stored, latent]);
        assert_eq!([0, 1, 2].map(|layer| layout.tile_class(layer)), [0, 1, 0]);
    }

    #[test]
    #[should_panic(expected = "head dimension 577")]
    fn a_vector_that_is_too_long_is_refused() {
        KvLayout::uniform(1, KvLayer::full(1, 577, KvFormat::F16, KvFormat::F16));
    }

    #[test]
    fn the_first_visible_position_is_that_of_the_kind() {
        let check = |kind: KvKind, expect: [u32; 6]| {
            assert_eq!([1, 2, 15, 16, 17, 33].map(|len| kind.first_visible(len)), expect, "{kind:?}");
        };
        check(KvKind::Full, [0; 6]);
        check(KvKind::Window { positions: 1 }, [0, 1, 14, 15, 16, 32]);
        check(KvKind::Window { positions: 16 }, [0, 0, 0, 0, 1, 17]);
        check(KvKind::Window { positions: u32::MAX }, [0; 6]);
        check(KvKind::Chunk { positions: 1 }, [0, 1, 14, 15, 16, 32]);
        check(KvKind::Chunk { positions: 16 }, [0, 0, 0, 0, 16, 32]);
        check(KvKind::Chunk { positions: u32::MAX }, [0; 6]);
    }

    /// The name is part of the identity of caches; visibility of positions belongs to the model.
    #[test]
    fn windows_have_no_name_and_tiles_like_any_other() {
        let full = KvLayer::full(2, 64, KvFormat::F16, KvFormat::Q8);
        let windowed = KvLayer::windowed(2, 64, KvFormat::F16, KvFormat::Q8, 1024);
        assert_eq!(windowed.kind, KvKind::Window { positions: 1024 });
        let layout = KvLayout::new(vec![full, windowed]);
        assert_eq!(layout.format_name(), KvLayout::uniform(2, full).format_name());
        assert_eq!(layout.tile_class(1), 0);
    }

    /// The part of layers with windows is whole pages after all others, so that its memory can be returned.
    #[test]
    fn what_windows_see_stands_behind_the_rest() {
        let full = KvLayer::full(2, 64, KvFormat::F16, KvFormat::Q8);
        let windowed = KvLayer::windowed(2, 64, KvFormat::F16, KvFormat::Q8, 1024);
        let layout = KvLayout::new(vec![windowed, full, windowed]);
        let part = layout.windowed_part();
        assert_eq!((part.start % PAGE, part.end), (0, layout.block_bytes()));
        for (layer, is_in) in [(0, true), (1, false), (2, true)] {
            for head in 0..2 {
                let HeadTiles { key, value, .. } = layout.tiles(layout.head(layer, head));
                assert_eq!((key.start >= part.start, value.start >= part.start), (is_in, is_in));
                assert!(value.end <= part.end && (is_in || value.end <= part.start));
            }
        }
        assert!(KvLayout::uniform(3, full).windowed_part().is_empty());
        assert_eq!(KvLayout::uniform(3, windowed).windowed_part().start, 0);
    }

    #[test]
    #[should_panic(expected = "attends to no position")]
    fn an_empty_window_is_refused() {
        KvLayout::uniform(1, KvLayer::windowed(1, 64, KvFormat::F16, KvFormat::F16, 0));
    }
}
