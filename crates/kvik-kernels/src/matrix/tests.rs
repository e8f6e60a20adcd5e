use super::*;
use crate::testing::random_blocks;

#[test]
fn a_packed_row_means_what_the_file_said() {
    for ty in WeightType::ALL {
        for (rows, cols) in [(1, 256), (16, 512), (37, 768)] {
            let raw = random_blocks(ty, rows * cols, 7);
            let matrix = Matrix::pack(ty, rows, cols, &raw, &Pool::new(2)).unwrap();
            let (mut expect, mut out) = (vec![0.0; rows * cols], vec![0.0; cols]);
            dequantize(ty, &raw, &mut expect);
            for (row, expect) in expect.chunks_exact(cols).enumerate() {
                matrix.row(row, &mut out);
                assert_eq!(out, expect, "{} row {row} of {rows} x {cols}", ty.name());
            }
        }
    }
}

#[test]
fn packing_costs_at_most_five_percent_more_memory() {
    for ty in WeightType::ALL {
        let raw = random_blocks(ty, 64 * 1024, 7);
        let matrix = Matrix::pack(ty, 64, 1024, &raw, &Pool::new(1)).unwrap();
        assert!(
            matrix.bytes() * 100 <= raw.len() * 105,
            "{}: {} for {}",
            ty.name(),
            matrix.bytes(),
            raw.len()
        );
    }
}

#[test]
fn shapes_and_lengths_that_do_not_fit_are_refused() {
    let check = |ty, rows, cols, bytes, expect: &str| {
        let error = Matrix::pack(ty, rows, cols, &vec![0; bytes], &Pool::new(1)).unwrap_err();
        assert_eq!(error.to_string(), expect);
    };
    check(WeightType::Q8_0, 0, 32, 0, "a matrix of 0 x 32 has no elements");
    check(WeightType::Q8_0, 4, 0, 0, "a matrix of 4 x 0 has no elements");
    check(WeightType::Q4K, 4, 128, 288, "128 columns are not whole Q4_K blocks of 256");
    check(WeightType::Q8_0, 4, 32, 100, "a 4 x 32 matrix of Q8_0 needs other data than 100 bytes");
    let huge = "a 18446744073709551615 x 32 matrix of Q8_0 needs other data than 34 bytes";
    check(WeightType::Q8_0, usize::MAX, 32, 34, huge);
}
