//! Converting weights while loading.

use std::sync::{Mutex, PoisonError};

use kvik_kernels::{Pool, WeightType, dequantize, quantize};

use super::ModelError;
use crate::files::TensorView;

/// Rows that one task converts.
const ROWS_PER_TASK: usize = 16;

/// The types that weights can be converted to.
pub const CONVERT_TARGETS: [WeightType; 6] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::Bf16,
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::Q14_0,
];

/// Rewrites a tensor in another type, row by row on the pool.
pub fn convert(view: &TensorView<'_>, target: WeightType, pool: &Pool) -> Result<Vec<u8>, ModelError> {
    let refuse = || ModelError::NoConversion { from: view.ty.name(), to: target.name(), cols: view.cols };
    let from_bytes = view.ty.row_bytes(view.cols).ok_or_else(refuse)?;
    let to_bytes = target.row_bytes(view.cols).filter(|_| CONVERT_TARGETS.contains(&target));
    let to_bytes = to_bytes.ok_or_else(refuse)?;
    let mut out = vec![0; to_bytes * view.rows];
    let sources = view.data.chunks(from_bytes * ROWS_PER_TASK);
    let targets = out.chunks_mut(to_bytes * ROWS_PER_TASK);
    // Each task locks only its own rows; the lock is how they are handed out without `unsafe`.
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
            let worst = values.iter().zip(&back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let bound = if target == WeightType::Q4_0 { 0.8 } else { 0.05 };
            assert!(worst < bound, "{}: {worst}", target.name());
        }
    }

    #[test]
    fn what_cannot_be_converted_is_refused() {
        let view = TensorView { ty: WeightType::F32, rows: 1, cols: 33, data: &[0; 132] };
        assert!(convert(&view, WeightType::Q8_0, &Pool::new(1)).is_err());
        assert!(convert(&view, WeightType::Q6K, &Pool::new(1)).is_err());
        assert!(convert(&view, WeightType::F16, &Pool::new(1)).is_ok());
    }
}
