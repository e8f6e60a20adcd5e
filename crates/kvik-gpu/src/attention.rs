//! Attention over block tables.
//!
//! Query rows of one sequence and KV head that read the same keys and values form units of four. Positions are
//! processed in splits of 256. Either one work group processes all splits of a unit in order, or each split has a
//! work group of its own and the results are merged, to the same bits; the choice depends on the number of units.

use bytemuck::{Pod, Zeroable};
use kvik_kernels::{BLOCK_POSITIONS, KvKind, KvLayer, KvLayout};

use crate::kernel::Access::{self, Read, Write};
use crate::kernel::{Constant, Kernel, Piece, piece};
use crate::kv::{RowPlace, TileWords, constants, readers};
use crate::{Buffer, Device, DeviceArena, DeviceError, DeviceRows, Step};

/// Query rows of a unit.
const UNIT_ROWS: usize = 4;
/// Positions processed at a time. Part of the arithmetic: results change with it.
const SPLIT: u32 = 256;
/// Minimum number of units over all KV heads, below which splits are spread to keep the device busy.
const WHOLE_UNITS_MIN: usize = 128;

/// Maximum work groups in a dimension of a grid, on every device.
const GRID_MAX: usize = 65_535;

/// The distribution of a unit's splits over work groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// All splits in order, in one work group.
    Whole,
    /// Each split in a work group of its own, then merged.
    Parts,
}

/// Four query rows in the layout of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Unit {
    table: u32,
    first: u32,
    count: u32,
    first_split: u32,
    splits: u32,
    first_part: u32,
}

/// The units of the rows of a batch, for all layers of one kind with the same number of query heads per KV head.
#[derive(Debug)]
pub struct AttentionPlan {
    kind: KvKind,
    group: usize,
    units: Buffer<Unit>,
    /// Pairs of unit and split.
    parts: Buffer<[u32; 2]>,
    /// Positions whose keys and values are read, and the least: each sequence's once.
    positions: [u64; 2],
}

/// A buffer for the results of splits, which grows on demand unless it was [reserved](PartRoom::reserve).
#[derive(Debug, Default)]
pub struct PartRoom(Option<Buffer<[f32; 4]>>);

/// Attention of the rows of a batch in one layer: `softmax(scale q K) V`, head by head.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAttention<'a> {
    /// The arena that stores keys and values.
    pub arena: &'a DeviceArena,
    /// The layer whose keys and values are read.
    pub layer: usize,
    /// The rows of the batch.
    pub rows: &'a DeviceRows,
    /// The units of the rows.
    pub plan: &'a AttentionPlan,
    /// `[n, heads, key_dim]`; query head `h` reads KV head `h * kv_heads / heads`.
    pub q: &'a Buffer<f32>,
    /// Factor of every score.
    pub scale: f32,
    /// Soft cap of the scores: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Attention sinks: scores without a value that take part in every softmax, `[heads]`.
    pub sinks: Option<&'a Buffer<f32>>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AttentionParams {
    heads: u32,
    kv_heads: u32,
    layer_words: u32,
    head_words: u32,
    key_words: u32,
    reach: u32,
    scale: f32,
    cap: f32,
}

/// Buffers of the kernels that fold splits; the last one holds the sinks.
const WHOLE: [Access; 7] = [Read, Read, Read, Read, Read, Write, Read];
const MERGE: [Access; 4] = [Read, Read, Write, Read];

impl AttentionPlan {
    /// Plans for `group` query heads per KV head.
    ///
    /// # Errors
    /// If the device is lost or full.
    pub fn new(
        device: &Device,
        rows: &DeviceRows,
        kind: KvKind,
        group: usize,
    ) -> Result<AttentionPlan, DeviceError> {
        let units = units_of(&rows.places, kind, group);
        let parts = (0u32..).zip(&units).flat_map(|(number, unit)| {
            (unit.first_split..unit.first_split + unit.splits).map(move |split| [number, split])
        });
        let parts: Vec<_> = parts.collect();
        let units = device.upload_for_step("the units of attention", &units)?;
        let parts = device.upload_for_step("the parts of attention", &parts)?;
        let positions = positions_read(&rows.places, kind, group);
        Ok(AttentionPlan { kind, group, units, parts, positions })
    }

    /// Leaves the buffers of a submitted step to later ones.
    pub fn release(self, device: &Device) {
        device.reuse(self.units);
        device.reuse(self.parts);
    }

    /// The faster distribution for a layer of `kv_heads` KV heads.
    pub fn way(&self, kv_heads: usize) -> Way {
        way([self.units.len(), self.parts.len()], kv_heads)
    }
}

/// The faster distribution of so many units in so many parts.
fn way([units, parts]: [usize; 2], kv_heads: usize) -> Way {
    match units * kv_heads < WHOLE_UNITS_MIN && parts <= GRID_MAX {
        true => Way::Parts,
        false => Way::Whole,
    }
}

/// Length of the results of so many parts in a layer.
fn vectors(parts: usize, layer: &KvLayer) -> usize {
    parts * layer.kv_heads * (2 + layer.value_dim.next_multiple_of(16))
}

/// Length of the results of as many parts as a layer may have, over sequences of up to so many positions.
fn vectors_max(layer: &KvLayer, positions: usize) -> usize {
    let units = (WHOLE_UNITS_MIN - 1) / layer.kv_heads;
    let parts = units * positions.div_ceil(SPLIT as usize);
    vectors(parts.min(GRID_MAX), layer)
}

/// The units of rows; rows of a sequence are contiguous.
fn units_of(rows: &[RowPlace], kind: KvKind, group: usize) -> Vec<Unit> {
    let (mut units, mut first_row, mut first_part) = (Vec::new(), 0, 0);
    for of_sequence in rows.chunk_by(|a, b| a.table == b.table) {
        for first in (0..of_sequence.len() * group).step_by(UNIT_ROWS) {
            let count = (of_sequence.len() * group - first).min(UNIT_ROWS);
            let rows = &of_sequence[first / group..=(first + count - 1) / group];
            let starts = rows.iter().map(|row| kind.first_visible(row.len));
            let first_split = starts.min().expect("a unit has rows") / SPLIT;
            let end = rows.iter().map(|row| row.len).max().expect("a unit has rows");
            let splits = end.div_ceil(SPLIT) - first_split;
            let table = rows[0].table;
            let first = (first_row * group + first) as u32;
            units.push(Unit { table, first, count: count as u32, first_split, splits, first_part });
            first_part += splits;
        }
        first_row += of_sequence.len();
    }
    units
}

/// Positions that the units of rows read, and the least: each sequence's once.
fn positions_read(rows: &[RowPlace], kind: KvKind, group: usize) -> [u64; 2] {
    let span = |rows: &[RowPlace]| {
        let starts = rows.iter().map(|row| kind.first_visible(row.len));
        let end = rows.iter().map(|row| row.len).max().unwrap_or(0);
        u64::from(end - starts.min().unwrap_or(end))
    };
    let (mut read, mut least) = (0, 0);
    for rows in rows.chunk_by(|a, b| a.table == b.table) {
        let all = rows.len() * group;
        let units = (0..all).step_by(UNIT_ROWS);
        read += units
            .map(|first| span(&rows[first / group..(all.min(first + UNIT_ROWS)).div_ceil(group)]))
            .sum::<u64>();
        least += span(rows);
    }
    [read, least]
}

/// The piece that defines the visible positions of a row, and their number.
fn seen(kind: KvKind) -> (Piece, u32) {
    match kind {
        KvKind::Full => (piece!("attention/seen_full"), 0),
        KvKind::Window { positions } => (piece!("attention/seen_window"), positions),
        KvKind::Chunk { positions } => (piece!("attention/seen_chunk"), positions),
    }
}

impl DeviceAttention<'_> {
    /// Adds the attention to a step; results go to `out`, `[n, heads, value_dim]`.
    ///
    /// # Errors
    /// If the driver refuses a kernel, or there is no memory for the results of splits.
    ///
    /// # Panics
    /// If a shape does not fit, or the plan is for a layer of another kind.
    pub fn run(
        &self,
        step: &mut Step<'_>,
        room: &mut PartRoom,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let way = match self.plan.way(self.shape().kv_heads) {
            Way::Parts if self.vectors() > PartRoom::allowed(step.device()) => Way::Whole,
            way => way,
        };
        self.run_as(way, step, room, out)
    }

    /// [`DeviceAttention::run`] with a given distribution, to the same bits.
    ///
    /// # Errors
    /// As [`DeviceAttention::run`].
    ///
    /// # Panics
    /// As [`DeviceAttention::run`].
    pub fn run_as(
        &self,
        way: Way,
        step: &mut Step<'_>,
        room: &mut PartRoom,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        self.check(out);
        let bytes = self.shape().part_bytes().iter().sum::<usize>() as u64 / BLOCK_POSITIONS as u64;
        let [read, least] = self.plan.positions.map(|positions| positions * bytes);
        step.device().count(|work| {
            work.kv_bytes += read;
            work.kv_bytes_least += least;
        });
        match way {
            Way::Whole => self.whole(step, out),
            Way::Parts => {
                let parts = room.grow(step.device(), self.vectors())?;
                self.parts(step, parts)?;
                self.merge(step, parts, out)
            }
        }
    }

    fn shape(&self) -> &KvLayer {
        &self.arena.layout().layers()[self.layer]
    }

    /// Length of the results of its parts.
    fn vectors(&self) -> usize {
        vectors(self.plan.parts.len(), self.shape())
    }

    fn heads(&self) -> usize {
        self.plan.group * self.shape().kv_heads
    }

    fn check(&self, out: &Buffer<f32>) {
        let (shape, n, heads) = (self.shape(), self.rows.len(), self.heads());
        assert_eq!(shape.kind, self.plan.kind, "the plan is for another kind of layer");
        assert!(self.q.len() >= n * heads * shape.key_dim, "q is [{n}, {heads}, {}]", shape.key_dim);
        assert!(out.len() >= n * heads * shape.value_dim, "out is [{n}, {heads}, {}]", shape.value_dim);
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == heads), "sinks are [{heads}]");
    }

    fn params(&self) -> AttentionParams {
        let TileWords { layer, head, key } = self.arena.layer(self.layer).sizes;
        AttentionParams {
            heads: self.heads() as u32,
            kv_heads: self.shape().kv_heads as u32,
            layer_words: layer,
            head_words: head,
            key_words: key,
            reach: seen(self.plan.kind).1,
            scale: self.scale,
            cap: self.softcap.unwrap_or(0.0),
        }
    }

    fn kernel(&self, pieces: Vec<Piece>, buffers: &'static [Access]) -> Kernel {
        let mut constants = constants(self.shape());
        constants.push(("GROUP", Constant::U32(self.plan.group as u32)));
        Kernel { pieces, constants, buffers, params: size_of::<AttentionParams>() }
    }

    /// A kernel that folds splits: it starts from the sinks, the last of its buffers, if there are any.
    fn folding(&self, mut pieces: Vec<Piece>, buffers: &'static [Access]) -> Kernel {
        let sinks = buffers.len() - 1;
        pieces.push(piece!("attention/fold"));
        if self.sinks.is_none() {
            pieces.push(piece!("attention/no_sinks"));
            return self.kernel(pieces, &buffers[..sinks]);
        }
        pieces.push(piece!("attention/sinks"));
        let mut kernel = self.kernel(pieces, buffers);
        kernel.constants.push(("SINKS", Constant::U32(sinks as u32)));
        kernel
    }

    /// The pieces that process a split, and `more`.
    fn split_pieces(&self, more: Piece) -> Vec<Piece> {
        let [key, value] = readers(self.shape());
        let mut pieces =
            vec![piece!("attention/unit"), seen(self.plan.kind).0, piece!("kv/hadamard"), key, value];
        match self.softcap {
            Some(_) => pieces.extend([piece!("soft_cap"), piece!("attention/capped")]),
            None => pieces.push(piece!("attention/uncapped")),
        }
        pieces.extend([piece!("attention/split"), more]);
        pieces
    }

    fn whole(&self, step: &mut Step<'_>, out: &Buffer<f32>) -> Result<(), DeviceError> {
        let kernel = self.folding(self.split_pieces(piece!("attention/whole")), &WHOLE);
        let (rows, stored) = (self.rows, &self.arena.layer(self.layer).words);
        let units = self.plan.units.raw();
        let mut buffers =
            vec![rows.rows.raw(), rows.tables.raw(), units, self.q.raw(), stored.raw(), out.raw()];
        buffers.extend(self.sinks.map(Buffer::raw));
        step.dispatch(&kernel, &buffers, &self.params(), self.grid(self.plan.units.len()))
    }

    fn parts(&self, step: &mut Step<'_>, out: &Buffer<[f32; 4]>) -> Result<(), DeviceError> {
        let kernel = self.kernel(
            self.split_pieces(piece!("attention/part")),
            &[Read, Read, Read, Read, Read, Read, Write],
        );
        let (rows, stored) = (self.rows, &self.arena.layer(self.layer).words);
        let [units, parts] = [self.plan.units.raw(), self.plan.parts.raw()];
        let buffers =
            [rows.rows.raw(), rows.tables.raw(), units, self.q.raw(), stored.raw(), parts, out.raw()];
        step.dispatch(&kernel, &buffers, &self.params(), self.grid(self.plan.parts.len()))
    }

    fn merge(
        &self,
        step: &mut Step<'_>,
        parts: &Buffer<[f32; 4]>,
        out: &Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let pieces = vec![piece!("attention/unit"), piece!("kv/hadamard"), piece!("attention/merge")];
        let kernel = self.folding(pieces, &MERGE);
        let mut buffers = vec![self.plan.units.raw(), parts.raw(), out.raw()];
        buffers.extend(self.sinks.map(Buffer::raw));
        step.dispatch(&kernel, &buffers, &self.params(), self.grid(self.plan.units.len()))
    }

    fn grid(&self, count: usize) -> [u32; 3] {
        [count as u32, self.shape().kv_heads as u32, 1]
    }
}

impl PartRoom {
    /// Room for the layers of a layout over sequences of up to `positions` positions; or as much of it as the device
    /// allows, beyond which splits are not spread.
    ///
    /// # Errors
    /// If there is no memory left.
    pub fn reserve(device: &Device, layout: &KvLayout, positions: usize) -> Result<PartRoom, DeviceError> {
        let vectors = layout.layers().iter().map(|layer| vectors_max(layer, positions)).max().unwrap_or(0);
        let mut room = PartRoom::default();
        room.grow(device, vectors.min(PartRoom::allowed(device)))?;
        Ok(room)
    }

    /// Its maximum length on a device.
    fn allowed(device: &Device) -> usize {
        device.info().binding_bytes_max as usize / size_of::<[f32; 4]>()
    }

    fn grow(&mut self, device: &Device, vectors: usize) -> Result<&Buffer<[f32; 4]>, DeviceError> {
        if self.0.as_ref().is_none_or(|room| room.len() < vectors) {
            self.0 = Some(device.zeros("the results of splits", vectors)?);
        }
        Ok(self.0.as_ref().expect("it was made if it was not there"))
    }
}

#[cfg(test)]
mod tests {
    use kvik_kernels::KvFormat;

    use super::*;

    fn place(table: u32, len: u32) -> RowPlace {
        RowPlace { table, len }
    }

    #[test]
    fn units_hold_four_query_rows_of_one_sequence() {
        let rows = [place(0, 255), place(0, 256), place(0, 257), place(40, 600)];
        let units = units_of(&rows, KvKind::Full, 2);
        let counts: Vec<_> = units.iter().map(|unit| (unit.table, unit.first, unit.count)).collect();
        assert_eq!(counts, [(0, 0, 4), (0, 4, 2), (40, 6, 2)]);
        let splits: Vec<_> =
            units.iter().map(|unit| (unit.first_split, unit.splits, unit.first_part)).collect();
        assert_eq!(splits, [(0, 1, 0), (0, 2, 1), (0, 3, 3)]);
    }

    #[test]
    fn splits_that_nobody_sees_are_left_out() {
        let unit = |kind| units_of(&[place(0, 1000), place(0, 1001)], kind, 1)[0];
        let window = unit(KvKind::Window { positions: 100 });
        assert_eq!((window.first_split, window.splits), (3, 1));
        let chunk = unit(KvKind::Chunk { positions: 1000 });
        assert_eq!((chunk.first_split, chunk.splits), (0, 4));
    }

    #[test]
    fn a_unit_reads_the_positions_of_its_rows_once() {
        let rows = [place(0, 255), place(0, 256), place(0, 257), place(40, 600)];
        // Two heads of three rows are two units; those of the other sequence are one.
        assert_eq!(positions_read(&rows, KvKind::Full, 2), [256 + 257 + 600, 257 + 600]);
        // Seven heads of one row are two units.
        assert_eq!(positions_read(&rows[3..], KvKind::Full, 7), [2 * 600, 600]);
        assert_eq!(positions_read(&rows[3..], KvKind::Window { positions: 100 }, 1), [100, 100]);
    }

    #[test]
    fn heads_of_a_row_may_fall_into_two_units() {
        let units = units_of(&[place(0, 3), place(0, 4)], KvKind::Full, 3);
        let counts: Vec<_> = units.iter().map(|unit| (unit.first, unit.count)).collect();
        assert_eq!(counts, [(0, 4), (4, 2)]);
    }

    #[test]
    fn parts_fill_one_dimension_of_a_grid_at_most() {
        assert_eq!(way([60, GRID_MAX], 2), Way::Parts);
        assert_eq!(way([60, GRID_MAX + 1], 2), Way::Whole);
        assert_eq!(way([64, 64], 2), Way::Whole);
    }

    #[test]
    fn what_is_reserved_for_a_context_holds_whatever_is_spread() {
        for (kv_heads, group, positions) in [(1, 4, 40_000u32), (2, 2, 2048), (8, 7, 1000), (200, 1, 512)] {
            let layer = KvLayer::full(kv_heads, 64, KvFormat::F16, KvFormat::F16);
            let reserved = vectors_max(&layer, positions as usize);
            let mut largest = 0;
            for rows in 1..150 {
                let rows = vec![place(0, positions); rows];
                let units = units_of(&rows, KvKind::Full, group);
                let parts = units.iter().map(|unit| unit.splits as usize).sum();
                if way([units.len(), parts], kv_heads) == Way::Parts {
                    largest = largest.max(vectors(parts, &layer));
                }
            }
            assert!(largest <= reserved && 2 * largest >= reserved, "{largest} of {reserved}");
        }
    }
}
