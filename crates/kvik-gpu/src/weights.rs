//! Weights on the device, in file format.

use kvik_kernels::WeightType;

use crate::kernel::{Piece, piece};
use crate::{Buffer, Device, DeviceError};

/// A `[rows, cols]` matrix on a device, in the format of its file.
#[derive(Debug)]
pub struct DeviceMatrix {
    ty: WeightType,
    rows: usize,
    cols: usize,
    /// As few bands as the device allows.
    bands: Vec<Band>,
}

/// Consecutive rows of a matrix in one binding.
#[derive(Debug)]
pub(crate) struct Band {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    pub(crate) words: Buffer<u32>,
}

/// The pieces that read weights of a type; `None` if there is no kernel for it.
pub(crate) fn pieces(ty: WeightType) -> Option<Vec<Piece>> {
    let words = piece!("weights/words");
    let plain = piece!("weights/plain");
    let scales = piece!("weights/k_scales");
    Some(match ty {
        WeightType::F32 => vec![words, plain, piece!("weights/f32")],
        WeightType::F16 => vec![words, plain, piece!("weights/f16")],
        WeightType::Bf16 => vec![words, plain, piece!("weights/bf16")],
        WeightType::Q8_0 => vec![words, piece!("weights/q8_0")],
        WeightType::Q4_0 => vec![words, piece!("weights/q4_0")],
        WeightType::Q4K => vec![words, scales, piece!("weights/q4_k")],
        WeightType::Q5K => vec![words, scales, piece!("weights/q5_k")],
        WeightType::Q6K => vec![words, piece!("weights/q6_k")],
        WeightType::Mxfp4 => vec![words, piece!("weights/mxfp4")],
        _ => return None,
    })
}

/// Kernels process at least this many columns together.
const COLS_STEP: usize = 8;
/// Maximum rows of a band: a kernel has a work group for eight of them.
const BAND_ROWS_MAX: usize = 1 << 18;

/// Bytes of a row of a matrix, or an error if there is no kernel for the type or the number of columns.
pub(crate) fn check_type(name: &str, ty: WeightType, [rows, cols]: [usize; 2]) -> Result<usize, DeviceError> {
    let step = ty.block_len().next_multiple_of(COLS_STEP);
    if pieces(ty).is_none() || cols == 0 || !cols.is_multiple_of(step) {
        let what = format!("{name}: {rows} x {cols} numbers in {}", ty.name());
        return Err(DeviceError::Unsupported { what });
    }
    Ok(ty.row_bytes(cols).expect("whole blocks"))
}

impl DeviceMatrix {
    /// Uploads `raw`, the `[rows, cols]` tensor `name` in file format.
    ///
    /// # Errors
    /// If there is no kernel for the type or the number of columns, or no memory.
    ///
    /// # Panics
    /// If the length of `raw` does not match the shape.
    pub fn upload(
        device: &Device,
        name: &str,
        ty: WeightType,
        [rows, cols]: [usize; 2],
        raw: &[u8],
    ) -> Result<DeviceMatrix, DeviceError> {
        DeviceMatrix::upload_together(device, (name, 1), ty, [rows, cols], raw)
    }

    /// Uploads two `[rows, cols]` matrices as one of `2 * rows` rows, which takes them from both in turn: the work groups
    /// of a product then have a row of each ([`Step::matmul_gated`](crate::Step::matmul_gated)).
    ///
    /// # Errors
    /// As [`DeviceMatrix::upload`].
    ///
    /// # Panics
    /// As [`DeviceMatrix::upload`].
    pub fn upload_pairs(
        device: &Device,
        name: &str,
        ty: WeightType,
        [rows, cols]: [usize; 2],
        [first, second]: [&[u8]; 2],
    ) -> Result<DeviceMatrix, DeviceError> {
        let row_bytes = check_type(name, ty, [rows, cols])?;
        assert_eq!(first.len(), second.len(), "{name} is two matrices of one shape");
        let pairs = first.chunks_exact(row_bytes).zip(second.chunks_exact(row_bytes));
        let raw: Vec<u8> = pairs.flat_map(|(first, second)| [first, second]).flatten().copied().collect();
        DeviceMatrix::upload_together(device, (name, 2), ty, [2 * rows, cols], &raw)
    }

    /// [`DeviceMatrix::upload`] with bands of whole groups of `together` rows.
    fn upload_together(
        device: &Device,
        (name, together): (&str, usize),
        ty: WeightType,
        [rows, cols]: [usize; 2],
        raw: &[u8],
    ) -> Result<DeviceMatrix, DeviceError> {
        let row_bytes = check_type(name, ty, [rows, cols])?;
        assert_eq!(raw.len(), rows * row_bytes, "{name} is [{rows}, {cols}] in {}", ty.name());
        let limit = device.info().binding_bytes_max as usize;
        // Kernels may read four bytes where two are left.
        let band_rows = (limit.saturating_sub(16) / row_bytes).min(BAND_ROWS_MAX) / together * together;
        if band_rows == 0 {
            let (bytes, limit) = ((together * row_bytes) as u64, limit as u64);
            return Err(DeviceError::Limit { what: format!("a row of {name}"), bytes, limit });
        }
        let band = |(index, raw): (usize, &[u8])| {
            let words = device.zeros(name, raw.len().div_ceil(4))?;
            device.put(&words, 0, raw)?;
            Ok(Band { first_row: index * band_rows, rows: raw.len() / row_bytes, words })
        };
        let bands = raw.chunks(band_rows * row_bytes).enumerate().map(band).collect::<Result<_, _>>()?;
        Ok(DeviceMatrix { ty, rows, cols, bands })
    }

    /// The type of its elements.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// Number of rows: the length of a result.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the length of an input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes in the memory of the device.
    pub fn bytes(&self) -> usize {
        self.bands.iter().map(|band| band.words.len() * size_of::<u32>()).sum()
    }

    pub(crate) fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// The pieces that read the matrix, and `more`.
    pub(crate) fn pieces(&self, more: &[Piece]) -> Vec<Piece> {
        let mut pieces = pieces(self.ty).expect("checked when it was uploaded");
        pieces.extend_from_slice(more);
        pieces
    }
}
