//! Weight matrices packed for the kernels: tiles of sixteen rows, one layout for every instruction set.
//!
//! Owns the packed bytes. Invariants: tiles are 64-byte aligned and padded with zero rows; packing keeps every
//! bit of the file's blocks, so a packed matrix represents exactly the numbers of the file.

mod fill;
mod layout;
mod shorts;
#[cfg(test)]
mod tests;

use std::ops::Range;

use fill::{Rows, fill};
pub(crate) use layout::{
    CHUNK, GROUPS, STORED, TILE_ROWS, TOGETHER, TileLayout, TileRef, VECTOR, element_index, lane_cols,
};
pub(crate) use shorts::SPARE;

use crate::Pool;
use crate::memory::Memory;
use crate::quant::{Block, Codes, ShortBlock, WeightType, dequantize};
use crate::threads::Disjoint;

/// A `[rows, cols]` matrix of weights, packed for the kernels.
#[derive(Debug)]
pub struct Matrix {
    ty: WeightType,
    rows: usize,
    cols: usize,
    layout: TileLayout,
    memory: Memory,
}

/// The reason why a tensor cannot become a matrix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// The tensor has no elements.
    #[error("a {rows} x {cols} matrix has no elements; the file is corrupt, download it again")]
    Empty {
        /// Requested rows.
        rows: usize,
        /// Requested columns.
        cols: usize,
    },
    /// Rows are not whole blocks.
    #[error(
        "{cols} columns are not whole {ty} blocks of {block_len}; choose another type, or download the file again",
        ty = .ty.name(),
        block_len = .ty.block_len()
    )]
    Columns {
        /// Type of the tensor.
        ty: WeightType,
        /// Requested columns.
        cols: usize,
    },
    /// The length of the data does not match the shape.
    #[error(
        "a {rows} x {cols} matrix of {ty} does not take {bytes} bytes; the file is corrupt, download it again",
        ty = .ty.name()
    )]
    Length {
        /// Type of the tensor.
        ty: WeightType,
        /// Requested rows.
        rows: usize,
        /// Requested columns.
        cols: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// The system does not have enough memory.
    #[error("no memory for a {rows} x {cols} matrix: {source}; end other programs, or take a smaller model")]
    Memory {
        /// Requested rows.
        rows: usize,
        /// Requested columns.
        cols: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Matrix {
    /// Packs `raw`, the `[rows, cols]` tensor in file format.
    pub fn pack(
        ty: WeightType,
        rows: usize,
        cols: usize,
        raw: &[u8],
        pool: &Pool,
    ) -> Result<Matrix, MatrixError> {
        Matrix::pack_as(ty, ty, rows, cols, raw, pool)
    }

    /// Packs `raw`, a `[rows, cols]` tensor of type `ty`, as one of type `target`, a few rows at a time, so that
    /// the converted tensor never exists as a whole.
    ///
    /// # Panics
    /// If `target` differs from `ty` and [`quantize`](crate::quantize) does not support it.
    pub fn pack_as(
        target: WeightType,
        ty: WeightType,
        rows: usize,
        cols: usize,
        raw: &[u8],
        pool: &Pool,
    ) -> Result<Matrix, MatrixError> {
        if rows == 0 || cols == 0 {
            return Err(MatrixError::Empty { rows, cols });
        }
        let length = MatrixError::Length { ty, rows, cols, bytes: raw.len() };
        let row_bytes = ty.row_bytes(cols).ok_or(MatrixError::Columns { ty, cols })?;
        if row_bytes.checked_mul(rows) != Some(raw.len()) {
            return Err(length);
        }
        if !cols.is_multiple_of(target.block_len()) {
            return Err(MatrixError::Columns { ty: target, cols });
        }
        let layout = TileLayout::new(target, cols).ok_or(length)?;
        let bytes = layout.bytes.checked_mul(rows.div_ceil(TILE_ROWS));
        let memory = bytes.ok_or_else(|| std::io::ErrorKind::OutOfMemory.into()).and_then(Memory::new);
        let memory = memory.map_err(|source| MatrixError::Memory { rows, cols, source })?;
        let mut matrix = Matrix { ty: target, rows, cols, layout, memory };
        matrix.fill(Rows { ty, bytes: raw, stride: row_bytes }, pool);
        Ok(matrix)
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The type of the packed weights.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// Bytes of memory that the matrix occupies.
    pub fn bytes(&self) -> usize {
        self.layout.bytes * self.tiles()
    }

    /// Writes row `row` as floats, equal to [`dequantize`] of the file's row: an embedding.
    ///
    /// # Panics
    /// Unless `row < rows` and `out` holds `cols` values.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {} into {}", self.rows, out.len());
        match self.ty.codes() {
            Some(codes) => self.code_row(&codes, row, out),
            None if self.ty == WeightType::Q14_0 => self.short_row(row, out),
            None => self.float_row(row, out),
        }
    }

    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    pub(crate) fn layout(&self) -> &TileLayout {
        &self.layout
    }

    /// The bytes of tile `tile`.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.memory.bytes()[self.tile_range(tile)]
    }

    fn tile_range(&self, tile: usize) -> Range<usize> {
        tile * self.layout.bytes..(tile + 1) * self.layout.bytes
    }

    fn code_row(&self, codes: &Codes, row: usize, out: &mut [f32]) {
        let bytes = self.tile(row / TILE_ROWS);
        let tile = TileRef { codes, layout: &self.layout, bytes };
        let mut block = Block::default();
        for (number, out) in out.chunks_exact_mut(codes.block_len).enumerate() {
            tile.read(row % TILE_ROWS, number, &mut block);
            out.iter_mut().enumerate().for_each(|(index, out)| *out = codes.value(&block, index));
        }
    }

    fn short_row(&self, row: usize, out: &mut [f32]) {
        for (number, out) in out.chunks_exact_mut(ShortBlock::LEN).enumerate() {
            let block = self.short_block(row, number);
            out.iter_mut().enumerate().for_each(|(index, out)| *out = block.value(index));
        }
    }

    /// Block number `number` of a row of 14-bit values.
    pub(crate) fn short_block(&self, row: usize, number: usize) -> ShortBlock {
        let (tile, row) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        let d = self.layout.short_scale(row, number);
        ShortBlock {
            d: half::f16::from_le_bytes([tile[d], tile[d + 1]]),
            codes: std::array::from_fn(|i| self.layout.short_code(tile, row, number * ShortBlock::LEN + i)),
        }
    }

    fn float_row(&self, row: usize, out: &mut [f32]) {
        let (tile, width) = (self.tile(row / TILE_ROWS), self.ty.block_bytes());
        for (k, out) in out.iter_mut().enumerate() {
            let at = element_index(lane_cols(self.ty), row % TILE_ROWS, k) * width;
            dequantize(self.ty, &tile[at..at + width], std::slice::from_mut(out));
        }
    }

    fn fill(&mut self, rows: Rows<'_>, pool: &Pool) {
        let (target, cols, layout, tiles) = (self.ty, self.cols, self.layout, self.tiles());
        let bytes = layout.bytes * tiles;
        let memory = Disjoint::new(&mut self.memory.bytes_mut()[..bytes]);
        pool.run(tiles, &|tile| {
            // SAFETY: the ranges of tiles are disjoint, and the pool hands out each tile once.
            let bytes = unsafe { memory.range(tile * layout.bytes, layout.bytes) };
            let rows = rows.of_tile(tile);
            if rows.ty == target {
                return fill(rows, &layout, bytes);
            }
            let stride = target.row_bytes(cols).expect("its layout exists");
            let converted = rows.converted(target, cols);
            fill(Rows { ty: target, bytes: &converted, stride }, &layout, bytes);
        });
    }
}
