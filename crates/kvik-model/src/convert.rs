//! Converting weights while loading.

use kvik_kernels::{WeightType, dequantize, quantize};
use kvik_text::files::{TensorSource, TensorView};

use super::ModelError;

/// The types that weights can be converted to.
pub const CONVERT_TARGETS: [WeightType; 6] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::Bf16,
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::Q14_0,
];

/// The conversion of matrices when a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// None: the types of the file.
    Stored,
    /// Half floats become 14-bit quantised values, which are multiplied almost twice as fast, with an error below that
    /// of the rounding to half floats; other types stay as they are.
    Halves,
    /// Converts every matrix whose rows are whole blocks of this type, one of [`CONVERT_TARGETS`].
    To(WeightType),
}

impl From<Option<WeightType>> for Conversion {
    /// `None` means the types of the file.
    fn from(target: Option<WeightType>) -> Conversion {
        target.map_or(Conversion::Stored, Conversion::To)
    }
}

impl Conversion {
    /// The effective conversion for a file: [`Conversion::Stored`] if it would change nothing.
    pub fn of(self, tensors: &TensorSource) -> Conversion {
        let is_changed = |view: TensorView<'_>| view.rows > 1 && self.of_matrix(&view) != view.ty;
        match self {
            Conversion::Halves if !tensors.names().filter_map(|name| tensors.get(name)).any(is_changed) => {
                Conversion::Stored
            }
            conversion => conversion,
        }
    }

    /// Bytes of the tensors of a file once they are loaded: of matrices in the types that they are converted to.
    pub fn bytes(self, tensors: &TensorSource) -> u64 {
        let of_view = |view: TensorView<'_>| {
            let row = self.of_matrix(&view).row_bytes(view.cols).filter(|_| view.rows > 1);
            row.map_or(view.data.len() as u64, |row| row as u64 * view.rows as u64)
        };
        tensors.names().filter_map(|name| tensors.get(name)).map(of_view).sum()
    }

    /// Its name in a digest.
    pub(super) fn name(self) -> &'static str {
        match self {
            Conversion::Stored => "stored",
            Conversion::Halves => "halves in q14_0",
            Conversion::To(ty) => ty.name(),
        }
    }

    /// The conversion for a device, which multiplies half floats as they are.
    #[cfg(feature = "gpu")]
    pub(super) fn on_device(self) -> Conversion {
        match self {
            Conversion::Halves => Conversion::Stored,
            conversion => conversion,
        }
    }

    /// The type of a matrix after loading.
    pub(super) fn of_matrix(self, view: &TensorView<'_>) -> WeightType {
        let target = match self {
            Conversion::Stored => view.ty,
            Conversion::Halves if view.ty == WeightType::F16 => WeightType::Q14_0,
            Conversion::Halves => view.ty,
            Conversion::To(ty) => ty,
        };
        if view.cols.is_multiple_of(target.block_len()) { target } else { view.ty }
    }
}

/// The bytes of a row of a tensor, and of the same row in `target`; an error if there is no conversion.
pub(super) fn check_conversion(
    view: &TensorView<'_>,
    target: WeightType,
) -> Result<(usize, usize), ModelError> {
    let is_known = target == view.ty || CONVERT_TARGETS.contains(&target);
    let refusal = ModelError::NoConversion { from: view.ty.name(), to: target.name(), cols: view.cols };
    let bytes = view.ty.row_bytes(view.cols).zip(target.row_bytes(view.cols));
    bytes.filter(|_| is_known).ok_or(refusal)
}

/// Rows and columns of a tile that is transposed at once: 64 rows of it fit the L1 cache.
const TILE: usize = 64;

/// Transposes a matrix: floats keep their type; quantised types, whose blocks run along rows, become F16.
pub(super) fn transposed(view: &TensorView<'_>) -> (WeightType, Vec<u8>) {
    let TensorView { ty, rows, cols, data } = *view;
    if ty.block_len() == 1 {
        return (ty, turned(data, rows, cols));
    }
    let mut values = vec![0.0; rows * cols];
    dequantize(ty, data, &mut values);
    let mut halves = vec![0; 2 * values.len()];
    quantize(WeightType::F16, &values, &mut halves);
    (WeightType::F16, turned(&halves, rows, cols))
}

/// Transposes elements of equal size, `[rows, cols]`, to `[cols, rows]`.
fn turned(data: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let size = data.len() / (rows * cols);
    let mut turned = vec![0; data.len()];
    for (first_row, first_col) in
        (0..rows).step_by(TILE).flat_map(|row| (0..cols).step_by(TILE).map(move |col| (row, col)))
    {
        for row in first_row..rows.min(first_row + TILE) {
            for col in first_col..cols.min(first_col + TILE) {
                let (from, to) = ((row * cols + col) * size, (col * rows + row) * size);
                turned[to..to + size].copy_from_slice(&data[from..from + size]);
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use kvik_text::files::gguf::Gguf;

    use super::*;

    #[test]
    fn a_transposed_matrix_has_its_numbers_the_other_way_round() {
        // More than a tile.
        const ROWS: usize = TILE + 1;
        let values: Vec<f32> = (0..ROWS * 128).map(|i| (i * 37 % 101) as f32 / 4.0 - 12.0).collect();
        for (ty, stays) in [
            (WeightType::F32, WeightType::F32),
            (WeightType::F16, WeightType::F16),
            (WeightType::Bf16, WeightType::Bf16),
            (WeightType::Q8_0, WeightType::F16),
        ] {
            let mut data = vec![0; ty.row_bytes(128).unwrap() * ROWS];
            quantize(ty, &values, &mut data);
            let mut stored = vec![0.0; ROWS * 128];
            dequantize(ty, &data, &mut stored);
            let (turned_ty, bytes) = transposed(&TensorView { ty, rows: ROWS, cols: 128, data: &data });
            assert_eq!(turned_ty, stays);
            let mut turned = vec![0.0; ROWS * 128];
            dequantize(turned_ty, &bytes, &mut turned);
            for (i, turned) in turned.iter().enumerate() {
                let x = stored[i % ROWS * 128 + i / ROWS];
                assert!((turned - x).abs() <= x.abs() / 2048.0, "{} {i}: {turned} of {x}", ty.name());
            }
        }
    }

    #[test]
    fn bytes_are_those_of_the_types_after_loading() {
        let file = Gguf::open(&kvik_testing::golden("type-f16.gguf")).unwrap();
        let tensors = TensorSource::from_gguf(file);
        let stored = tensors.total_bytes();
        let views = tensors.names().filter_map(|name| tensors.get(name));
        let halves: u64 =
            views.filter(|view| view.ty == WeightType::F16).map(|view| view.data.len() as u64).sum();
        assert!(halves > 0, "a file of half floats");
        assert_eq!(Conversion::Stored.bytes(&tensors), stored);
        assert_eq!(Conversion::To(WeightType::F32).bytes(&tensors), stored + halves);
        let short = WeightType::Q14_0;
        let shorts = halves / (2 * short.block_len() as u64) * short.block_bytes() as u64;
        assert_eq!(Conversion::Halves.bytes(&tensors), stored - halves + shorts);
    }

    #[test]
    fn what_cannot_be_converted_is_refused() {
        let view = TensorView { ty: WeightType::F32, rows: 1, cols: 33, data: &[0; 132] };
        assert!(check_conversion(&view, WeightType::Q8_0).is_err());
        assert!(check_conversion(&view, WeightType::Q6K).is_err());
        assert!(check_conversion(&view, WeightType::F16).is_ok());
    }
}
