//! Tensors as bytes in the type that they are converted to: a device has no tiles into which rows could be converted.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use kvik_kernels::{Pool, WeightType, dequantize, quantize};
use kvik_text::files::TensorView;

use crate::convert::check_conversion;
use crate::{Conversion, ModelError};

/// Number of rows that one task converts.
const ROWS_PER_TASK: usize = 16;

/// The bytes of a tensor or of a part of it, converted.
pub(super) fn converted<'v>(
    view: &TensorView<'v>,
    conversion: Conversion,
    pool: &Pool,
) -> Result<(WeightType, Cow<'v, [u8]>), ModelError> {
    match conversion.of_matrix(view) {
        ty if ty == view.ty => Ok((ty, Cow::Borrowed(view.data))),
        ty => Ok((ty, Cow::Owned(convert(view, ty, pool)?))),
    }
}

/// Converts a tensor to another type, row by row on the pool.
fn convert(view: &TensorView<'_>, target: WeightType, pool: &Pool) -> Result<Vec<u8>, ModelError> {
    let (from_bytes, to_bytes) = check_conversion(view, target)?;
    let mut out = vec![0; to_bytes * view.rows];
    let sources = view.data.chunks(from_bytes * ROWS_PER_TASK);
    let targets = out.chunks_mut(to_bytes * ROWS_PER_TASK);
    // Each task locks only its own rows; the lock distributes them without `unsafe`.
    let tasks: Vec<_> = sources.zip(targets).map(|(from, to)| (from, Mutex::new(to))).collect();
    pool.run(tasks.len(), &|i| {
        let (from, to) = &tasks[i];
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        let mut values = vec![0.0; view.cols];
        for (from, to) in from.chunks_exact(from_bytes).zip(to.chunks_exact_mut(to_bytes)) {
            dequantize(view.ty, from, &mut values);
            quantize(target, &values, to);
        }
    });
    drop(tasks);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CONVERT_TARGETS;

    #[test]
    fn rows_are_converted_alike_on_any_number_of_threads() {
        let values: Vec<f32> = (0..100 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 8.0).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = TensorView { ty: WeightType::F32, rows: 100, cols: 64, data: &bytes };
        for target in CONVERT_TARGETS {
            let one = convert(&view, target, &Pool::new(1)).unwrap();
            assert_eq!(one, convert(&view, target, &Pool::new(3)).unwrap());
            let mut back = vec![0.0; values.len()];
            dequantize(target, &one, &mut back);
            let worst = kvik_testing::largest(values.iter().zip(&back).map(|(a, b)| (a - b).abs()));
            let bound = if target == WeightType::Q4_0 { 0.8 } else { 0.05 };
            assert!(worst < bound, "{}: {worst}", target.name());
        }
    }
}
