//! Keys and values on the device: the arena of blocks, and the rows that store into it.
//!
//! A block has the layout of the arena of `kvik-kernels`, byte by byte, but each layer has a buffer of its own in
//! which its part of block `b` is at index `b`: so an arena may be larger than the maximum binding.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use kvik_kernels::{BLOCK_POSITIONS, KvFormat, KvLayer, KvLayout, KvValues, SeqKv, SeqRow};

use crate::kernel::Access::{Read, Write};
use crate::kernel::{Constant, Kernel, Piece, piece};
use crate::{Buffer, Device, DeviceError, Part, Step};

/// Blocks of stored keys and values on a device, addressed by number. The arena knows no owners.
#[derive(Debug)]
pub struct DeviceArena {
    layout: KvLayout,
    blocks: usize,
    layers: Vec<LayerStore>,
    /// Staging buffer for one layer's part of a block.
    room: Buffer<u32>,
}

/// A layer's part of all blocks.
#[derive(Debug)]
pub(crate) struct LayerStore {
    pub(crate) words: Buffer<u32>,
    pub(crate) sizes: TileWords,
    /// Byte range of the part in a block of the layout.
    place: Range<usize>,
}

/// Lengths in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TileWords {
    /// The layer's part of a block.
    pub(crate) layer: u32,
    /// A KV head's part of a layer's part.
    pub(crate) head: u32,
    /// The K tile of the head; the V tile follows.
    pub(crate) key: u32,
}

/// Destinations of the rows' keys and values, and the positions that rows attend to.
#[derive(Debug)]
pub struct DeviceRows {
    pub(crate) rows: Buffer<RowPlace>,
    pub(crate) tables: Buffer<u32>,
    pub(crate) places: Vec<RowPlace>,
}

/// A row in the layout of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RowPlace {
    /// Start of its sequence's blocks in the tables.
    pub(crate) table: u32,
    /// Number of positions up to and including its own.
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WriteParams {
    kv_heads: u32,
    layer_words: u32,
    head_words: u32,
    key_words: u32,
}

/// The pieces of a format of keys: reading and writing.
fn key_pieces(format: KvFormat) -> Option<[Piece; 2]> {
    match format {
        KvFormat::F16 => Some([piece!("kv/read_key_f16"), piece!("kv/write_key_f16")]),
        KvFormat::Q8 => Some([piece!("kv/read_key_q8"), piece!("kv/write_key_q8")]),
        _ => None,
    }
}

/// The pieces of a format of values.
fn value_pieces(format: KvFormat) -> Option<[Piece; 2]> {
    match format {
        KvFormat::F16 => Some([piece!("kv/read_value_f16"), piece!("kv/write_value_f16")]),
        KvFormat::Q8 => Some([piece!("kv/read_value_q8"), piece!("kv/write_value_q8")]),
        _ => None,
    }
}

/// The pieces that read a layer's formats.
pub(crate) fn readers(layer: &KvLayer) -> [Piece; 2] {
    let pieces = key_pieces(layer.k).zip(value_pieces(layer.v));
    pieces.map(|([key, _], [value, _])| [key, value]).expect("checked when the arena was made")
}

/// Whether vectors are rotated before they are stored.
fn is_rotated(format: KvFormat) -> bool {
    format == KvFormat::Q8
}

/// Maximum length of a vector with one scale in 8 bits.
const SCALED_TOGETHER_MAX: usize = 512;

/// Constants of kernels for a layer.
pub(crate) fn constants(layer: &KvLayer) -> Vec<(&'static str, Constant)> {
    // Vectors are rotated in pieces of the largest power of two that divides their length.
    let piece = |dim: usize| 1u32 << dim.trailing_zeros();
    let norm = |dim: usize| Constant::F32((1.0 / (piece(dim) as f32).sqrt()).to_bits());
    let lanes = value_lanes(layer);
    vec![
        ("KEY_DIM", Constant::U32(layer.key_dim as u32)),
        ("KEY_PIECE", Constant::U32(piece(layer.key_dim))),
        ("KEY_NORM", norm(layer.key_dim)),
        ("KEY_ROTATED", Constant::Bool(is_rotated(layer.k))),
        ("VALUE_DIM", Constant::U32(layer.value_dim as u32)),
        ("VALUE_PIECE", Constant::U32(piece(layer.value_dim))),
        ("VALUE_NORM", norm(layer.value_dim)),
        ("VALUE_ROTATED", Constant::Bool(is_rotated(layer.v))),
        ("VALUE_LANES", Constant::U32(lanes as u32)),
        ("VECTOR_LEN", Constant::U32(layer.key_dim.max(lanes) as u32)),
    ]
}

/// Length of a row of a V tile: whole lanes of the processor's kernels.
fn value_lanes(layer: &KvLayer) -> usize {
    layer.value_dim.next_multiple_of(BLOCK_POSITIONS)
}

/// Returns an error if kernels do not support a layer's formats or shape.
fn check(index: usize, layer: &KvLayer) -> Result<(), DeviceError> {
    let has_pieces = key_pieces(layer.k).is_some() && value_pieces(layer.v).is_some();
    let [key, value] = [(layer.k, layer.key_dim), (layer.v, layer.value_dim)]
        .map(|(format, dim)| dim % 2 == 0 && (!is_rotated(format) || dim <= SCALED_TOGETHER_MAX));
    if has_pieces && key && value && layer.values == KvValues::Stored {
        return Ok(());
    }
    let KvLayer { key_dim, value_dim, k, v, values, .. } = layer;
    let what = format!("layer {index}: keys of {key_dim} in {k}, values of {value_dim} in {v}, {values:?}");
    Err(DeviceError::Unsupported { what })
}

impl TileWords {
    fn of(layer: &KvLayer) -> TileWords {
        let [key, value] = layer.part_bytes().map(|bytes| (bytes / layer.kv_heads / 4) as u32);
        TileWords { layer: (key + value) * layer.kv_heads as u32, head: key + value, key }
    }
}

impl DeviceArena {
    /// Whether kernels support the formats and shapes of a layout from layer `first` on.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] names the first layer that they do not support.
    pub fn check(layout: &KvLayout, first: usize) -> Result<(), DeviceError> {
        layout.layers().iter().enumerate().skip(first).try_for_each(|(index, layer)| check(index, layer))
    }

    /// Makes room for `blocks` zeroed blocks.
    ///
    /// # Errors
    /// If kernels lack a format or shape of the layout, a layer's part is larger than the device allows, or there
    /// is no memory left.
    pub fn new(device: &Device, layout: KvLayout, blocks: usize) -> Result<DeviceArena, DeviceError> {
        DeviceArena::check(&layout, 0)?;
        let mut layers = Vec::new();
        for (index, layer) in layout.layers().iter().enumerate() {
            let sizes = TileWords::of(layer);
            let what = format!("the keys and values of layer {index} in {blocks} blocks");
            let words = device.zeros(&what, blocks * sizes.layer as usize)?;
            layers.push(LayerStore { words, sizes, place: layout.layer_part(index) });
        }
        let longest = layers.iter().map(|layer| layer.sizes.layer).max().unwrap_or(0);
        let room = device.zeros("a block on its way", longest as usize)?;
        Ok(DeviceArena { layout, blocks, layers, room })
    }

    /// Maximum number of blocks of a layout that the device allows, if its memory suffices.
    pub fn blocks_max(device: &Device, layout: &KvLayout) -> usize {
        let largest = layout.layers().iter().map(|layer| layer.part_bytes().iter().sum::<usize>()).max();
        device.info().binding_bytes_max as usize / largest.unwrap_or(1).max(1)
    }

    /// The contents of a block.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerStore {
        &self.layers[layer]
    }

    /// Copies a block to `bytes`, in the layout of `kvik-kernels`, after all previous work is done.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If the block does not exist, or the length of `bytes` is not that of a block.
    pub fn read_block(&self, device: &Device, block: u32, bytes: &mut [u8]) -> Result<(), DeviceError> {
        assert_eq!(bytes.len(), self.layout.block_bytes(), "bytes of a block");
        let part = |layer: &LayerStore| {
            let bytes = u64::from(layer.sizes.layer) * 4;
            (layer.words.raw().clone(), self.number(block) * bytes..(self.number(block) + 1) * bytes)
        };
        let parts: Vec<_> = self.layers.iter().map(part).collect();
        let parts: Vec<_> = parts.iter().map(|(buffer, part)| Part::new(buffer, part.clone())).collect();
        device.bytes(&parts, |mut rest| {
            // Padding up to pages is zero.
            bytes.fill(0);
            for layer in &self.layers {
                let (part, others) = rest.split_at(layer.place.len());
                bytes[layer.place.clone()].copy_from_slice(part);
                rest = others;
            }
        })
    }

    /// Replaces a block by one that was read, or by one of `kvik-kernels`.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If the block does not exist, or `bytes` are not a whole block.
    pub fn write_block(&mut self, device: &Device, block: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        assert_eq!(bytes.len(), self.layout.block_bytes(), "bytes of a block");
        let number = self.number(block);
        for layer in &self.layers {
            let start = number * u64::from(layer.sizes.layer) * 4;
            device.put(&layer.words, start, &bytes[layer.place.clone()])?;
        }
        Ok(())
    }

    fn number(&self, block: u32) -> u64 {
        assert!((block as usize) < self.blocks, "block {block} of {}", self.blocks);
        u64::from(block)
    }
}

impl DeviceRows {
    /// Uploads the positions of `rows` in `seqs`.
    ///
    /// # Errors
    /// If the device is lost or full, or a sequence has dropped positions.
    ///
    /// # Panics
    /// If a row belongs to an unknown sequence, to no position or one without a block, or a block is not in
    /// the arena.
    pub fn new(
        device: &Device,
        arena: &DeviceArena,
        rows: &[SeqRow],
        seqs: &[SeqKv<'_>],
    ) -> Result<DeviceRows, DeviceError> {
        let (mut tables, mut starts) = (Vec::new(), Vec::new());
        for seq in seqs {
            if !seq.tails.is_empty() {
                return Err(DeviceError::Unsupported { what: "sequences that have forgotten".to_owned() });
            }
            starts.push(tables.len() as u32);
            seq.blocks.iter().for_each(|&block| assert!((block as usize) < arena.blocks, "block {block}"));
            tables.extend_from_slice(seq.blocks);
        }
        let place = |row: &SeqRow| {
            let room = seqs[row.seq as usize].blocks.len() * BLOCK_POSITIONS;
            let fits = row.len > 0 && row.len as usize <= room;
            assert!(fits, "{} positions of {room} in sequence {}", row.len, row.seq);
            RowPlace { table: starts[row.seq as usize], len: row.len }
        };
        let places: Vec<_> = rows.iter().map(place).collect();
        let rows = device.upload_for_step("the rows of a batch", &places)?;
        let tables = device.upload_for_step("the block tables of a batch", &tables)?;
        Ok(DeviceRows { rows, tables, places })
    }

    /// Leaves the buffers of a submitted step to later ones.
    pub fn release(self, device: &Device) {
        device.reuse(self.rows);
        device.reuse(self.tables);
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl Step<'_> {
    /// Stores the keys and values of `n` rows of a layer, in the formats of the layer.
    ///
    /// * `k`: `[n, kv_heads, key_dim]`; `v`: `[n, kv_heads, value_dim]`
    ///
    /// # Errors
    /// If the driver refuses the kernel.
    ///
    /// # Panics
    /// If a shape does not fit, or the layer does not exist.
    pub fn store(
        &mut self,
        arena: &mut DeviceArena,
        layer: usize,
        rows: &DeviceRows,
        [k, v]: [&Buffer<f32>; 2],
    ) -> Result<(), DeviceError> {
        let shape = arena.layout.layers()[layer];
        let KvLayer { kv_heads, key_dim, value_dim, .. } = shape;
        assert!(k.len() >= rows.len() * kv_heads * key_dim, "k is [n, {kv_heads}, {key_dim}]");
        assert!(v.len() >= rows.len() * kv_heads * value_dim, "v is [n, {kv_heads}, {value_dim}]");
        let pieces = key_pieces(shape.k).zip(value_pieces(shape.v));
        let ([_, write_key], [_, write_value]) = pieces.expect("checked when the arena was made");
        let [half, hadamard, quantise] = [piece!("kv/half"), piece!("kv/hadamard"), piece!("kv/quantise")];
        let kernel = Kernel {
            pieces: vec![half, hadamard, quantise, write_key, write_value, piece!("kv/write")],
            constants: constants(&shape),
            buffers: &[Read, Read, Read, Read, Write],
            params: size_of::<WriteParams>(),
        };
        let store = arena.layer(layer);
        let TileWords { layer: layer_words, head: head_words, key: key_words } = store.sizes;
        let params = WriteParams { kv_heads: kv_heads as u32, layer_words, head_words, key_words };
        let buffers = [k.raw(), v.raw(), rows.rows.raw(), rows.tables.raw(), store.words.raw()];
        self.dispatch(&kernel, &buffers, &params, [rows.len() as u32, kv_heads as u32, 1])
    }

    /// Copies block `from` to block `to`, all layers and heads.
    ///
    /// # Panics
    /// If a block does not exist.
    pub fn copy_block(&mut self, arena: &mut DeviceArena, from: u32, to: u32) {
        let [from, to] = [from, to].map(|block| arena.number(block));
        for LayerStore { words, sizes, .. } in &arena.layers {
            // A buffer cannot be copied to itself.
            let size = u64::from(sizes.layer);
            self.copy((words, from * size), (&arena.room, 0), size);
            self.copy((&arena.room, 0), (words, to * size), size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kernels_lack_is_named() {
        let has = KvLayer::full(2, 64, KvFormat::F16, KvFormat::Q8);
        assert_eq!(check(0, &has), Ok(()));
        let lacks = [
            KvLayer { k: KvFormat::Q4, ..has },
            KvLayer { v: KvFormat::Bf16, ..has },
            KvLayer::full(2, 65, KvFormat::F16, KvFormat::F16),
            KvLayer::full(1, 576, KvFormat::Q8, KvFormat::F16),
            KvLayer::latent(64, 32, KvFormat::F16),
        ];
        for layer in lacks {
            let error = check(7, &layer).unwrap_err().to_string();
            assert!(error.contains("layer 7") && error.contains("processor"), "{error}");
        }
        let layout = KvLayout::new(vec![has, lacks[0], has]);
        let error = DeviceArena::check(&layout, 0).unwrap_err().to_string();
        assert!(error.contains("layer 1") && error.contains("q4"), "{error}");
        assert_eq!(DeviceArena::check(&layout, 2), Ok(()), "the layers before are the processor's");
    }
}
