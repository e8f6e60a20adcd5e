use super::layout::byte_mask;
use super::*;
use crate::quant::{BlockUnit, Scales, quantize};
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
fn a_tile_is_what_its_blocks_say_one_by_one() {
    for ty in WeightType::ALL.into_iter().filter(|ty| ty.codes().is_some()) {
        let (rows, cols) = (21, 512);
        let raw = random_blocks(ty, rows * cols, 11);
        let matrix = Matrix::pack(ty, rows, cols, &raw, &Pool::new(1)).unwrap();
        let (codes, row_bytes) = (ty.codes().unwrap(), ty.row_bytes(cols).unwrap());
        for (number, rows) in raw.chunks(TILE_ROWS * row_bytes).enumerate() {
            let mut bytes = vec![0; matrix.layout.bytes];
            let mut tile = TileMut { codes: &codes, layout: &matrix.layout, bytes: &mut bytes };
            let mut block = Block::default();
            for (row, blocks) in rows.chunks_exact(row_bytes).enumerate() {
                for (number, bytes) in blocks.chunks_exact(ty.block_bytes()).enumerate() {
                    block.read(ty, bytes);
                    tile.write(row, number, &block);
                }
            }
            // Padding rows: zeros read as quantised values, with scale zero.
            block.read(ty, &vec![0; ty.block_bytes()]);
            let nothing = Block { codes: block.codes, scales: [0; 16], mins: [0; 16], ..Block::default() };
            for row in rows.len() / row_bytes..TILE_ROWS {
                (0..cols / codes.block_len).for_each(|number| tile.write(row, number, &nothing));
            }
            assert!(matrix.tile(number) == bytes, "{}, tile {number}", ty.name());
        }
    }
}

#[test]
fn a_matrix_that_is_converted_is_what_its_converted_rows_make() {
    for (ty, target) in [
        (WeightType::F16, WeightType::Q14_0),
        (WeightType::Q4K, WeightType::Q8_0),
        (WeightType::Q8_0, WeightType::F32),
        (WeightType::F32, WeightType::Bf16),
    ] {
        let (rows, cols) = (37, 512);
        let raw = random_blocks(ty, rows * cols, 5);
        let (mut values, mut converted) =
            (vec![0.0; rows * cols], vec![0; target.row_bytes(rows * cols).unwrap()]);
        dequantize(ty, &raw, &mut values);
        quantize(target, &values, &mut converted);
        let expect = Matrix::pack(target, rows, cols, &converted, &Pool::new(1)).unwrap();
        let matrix = Matrix::pack_as(target, ty, rows, cols, &raw, &Pool::new(2)).unwrap();
        assert!(matrix.memory.bytes() == expect.memory.bytes(), "{} as {}", ty.name(), target.name());
    }
    let refused = Matrix::pack_as(WeightType::Q8_0, WeightType::F16, 1, 33, &[0; 66], &Pool::new(1));
    assert!(matches!(refused, Err(MatrixError::Columns { ty: WeightType::Q8_0, cols: 33 })));
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
        let error = error.to_string();
        assert_eq!(error.split(';').next(), Some(expect), "{error}");
    };
    check(WeightType::Q8_0, 0, 32, 0, "a 0 x 32 matrix has no elements");
    check(WeightType::Q8_0, 4, 0, 0, "a 4 x 0 matrix has no elements");
    check(WeightType::Q4K, 4, 128, 288, "128 columns are not whole Q4_K blocks of 256");
    check(WeightType::Q8_0, 4, 32, 100, "a 4 x 32 matrix of Q8_0 does not take 100 bytes");
    let huge = "a 18446744073709551615 x 32 matrix of Q8_0 does not take 34 bytes";
    check(WeightType::Q8_0, usize::MAX, 32, 34, huge);
}

/// The reference for [`fill`](super::fill): writes one block of one row after another, by the layout's definition.
struct TileMut<'a> {
    codes: &'a Codes,
    layout: &'a TileLayout,
    bytes: &'a mut [u8],
}

impl TileMut<'_> {
    /// Writes block number `block` of `row` to the planes.
    fn write(&mut self, row: usize, block: usize, from: &Block) {
        let (codes, layout) = (self.codes, self.layout);
        let half_at = (block * TILE_ROWS + row) * 2;
        match codes.unit {
            BlockUnit::Half => self.put(layout.d + half_at, from.d.to_le_bytes()),
            BlockUnit::Exponent => self.put(layout.d + codes.unit_at(block) + row, [from.exponent]),
        }
        if codes.has_min {
            self.put(layout.m + half_at, from.m.to_le_bytes());
        }
        let subs = codes.block_len / codes.sub_len;
        for sub in 0..subs {
            let at = (block * subs + sub) * TILE_ROWS + row;
            let (scale, min) = (from.scales[sub] as u8, from.mins[sub]);
            match codes.scales {
                Scales::None => {}
                Scales::Signed => self.put(layout.scales + at, [scale]),
                Scales::Nibbles => self.put(layout.scales + at, [scale | min << 4]),
                Scales::WithMins => {
                    self.put(layout.scales + at, [scale]);
                    self.put(layout.mins + at, [min]);
                }
            }
        }
        let chunks = codes.block_len / CHUNK;
        for (chunk, values) in from.codes[..codes.block_len].chunks_exact(CHUNK).enumerate() {
            let (groups, _) = values.as_chunks::<4>();
            let words = std::array::from_fn(|group| u32::from_le_bytes(groups[group]));
            self.write_chunk(row, block * chunks + chunk, words);
        }
    }

    /// Writes a chunk: `words[group]` holds the quantised values of four columns.
    fn write_chunk(&mut self, row: usize, chunk: usize, words: [u32; GROUPS]) {
        let (low_bits, high_bits) = (self.codes.low_bits, self.codes.high_bits);
        self.write_bits(self.layout.low, row, chunk, words, low_bits);
        if high_bits > 0 {
            let high = words.map(|word| word >> low_bits & byte_mask(high_bits));
            self.write_bits(self.layout.high, row, chunk, high, high_bits);
        }
    }

    fn write_bits(&mut self, plane: usize, row: usize, chunk: usize, words: [u32; GROUPS], bits: usize) {
        let mask = byte_mask(bits);
        for (vector, groups) in words.chunks_exact(8 / bits).enumerate() {
            let packed =
                groups.iter().enumerate().fold(0, |packed, (i, word)| packed | (word & mask) << (i * bits));
            self.put(plane + (chunk * bits + vector) * VECTOR + row * 4, packed.to_le_bytes());
        }
    }

    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&bytes);
    }
}
