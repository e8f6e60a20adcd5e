use super::*;
use crate::testing::Random;

/// Maximum bytes of a register.
const BYTES: usize = ROWS * ROW_BYTES;

fn random_bytes(random: &mut Random) -> [u8; BYTES] {
    std::array::from_fn(|_| random.bits() as u8)
}

/// The contents of registers 0 to 2 after each instruction of a product of random matrices, stored `stride`
/// bytes apart.
fn states<T: Tiles>(config: &Config, stride: usize, seed: u64) -> Vec<[u8; BYTES]> {
    let mut random = Random(seed);
    let memory: [[u8; BYTES]; 3] = std::array::from_fn(|_| random_bytes(&mut random));
    let mut states = Vec::new();
    macro_rules! look {
        ($tiles:ident) => {{
            let mut read = [[0xa5; BYTES]; 3];
            $tiles.store::<0>(read[0].as_mut_ptr(), stride);
            $tiles.store::<1>(read[1].as_mut_ptr(), stride);
            $tiles.store::<2>(read[2].as_mut_ptr(), stride);
            states.extend(read);
        }};
    }
    // SAFETY: the caller has found the units; 16 rows of 64 bytes, at most that far apart, are inside a matrix.
    unsafe {
        let mut tiles = T::configured(config);
        look!(tiles);
        tiles.load::<0>(memory[0].as_ptr(), stride);
        tiles.load::<1>(memory[1].as_ptr(), stride);
        tiles.load::<2>(memory[2].as_ptr(), stride);
        look!(tiles);
        tiles.dot::<0, 1, 2>();
        look!(tiles);
        tiles.dot::<0, 1, 2>();
        look!(tiles);
        tiles.zero::<0>();
        look!(tiles);
        tiles.dot_unsigned::<0, 1, 2>();
        look!(tiles);
        tiles.dot_unsigned::<0, 1, 2>();
        look!(tiles);
    }
    states
}

#[test]
fn instructions_do_what_their_description_says() {
    if !usable() {
        return kvik_testing::skip("this machine has no amx");
    }
    let mut random = Random(7);
    for seed in 0..2000 {
        let [m, k, n] = [16, 16, 16].map(|most| random.bits() as usize % most + 1);
        let config = Config::new(&[[m, n * 4], [m, k * 4], [k, n * 4]]);
        // Rows may have gaps between them, but not overlap.
        let stride = 64 - random.bits() as usize % (65 - 4 * n.max(k));
        let expect = states::<Emulated>(&config, stride, seed);
        assert_eq!(states::<Amx>(&config, stride, seed), expect, "{m} {k} {n}, {stride} bytes apart");
    }
}

#[test]
fn a_product_is_that_of_matrices() {
    let mut random = Random(1);
    let shapes = [(8, 32, 16), (8, 16, 16), (16, 64, 16), (1, 4, 1), (3, 20, 7)];
    for ((m, k, n), unsigned) in shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        let (a, b) = (random_bytes(&mut random), random_bytes(&mut random));
        let config = Config::new(&[[m, n * 4], [m, k], [k / 4, n * 4]]);
        let mut c = [0i32; BYTES / 4];
        // SAFETY: all matrices have room for 16 rows of 64 bytes.
        unsafe {
            let mut tiles = Emulated::configured(&config);
            tiles.load::<1>(a.as_ptr(), 64);
            tiles.load::<2>(b.as_ptr(), 64);
            match unsigned {
                true => tiles.dot_unsigned::<0, 1, 2>(),
                false => tiles.dot::<0, 1, 2>(),
            }
            tiles.store::<0>(c.as_mut_ptr().cast(), 64);
        }
        for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
            let a = |i: usize| match a[row * 64 + i] {
                a if unsigned => i32::from(a),
                a => i32::from(a as i8),
            };
            let b = |i: usize| i32::from(b[i / 4 * 64 + col * 4 + i % 4] as i8);
            let expect: i32 = (0..k).map(|i| a(i) * b(i)).sum();
            assert_eq!(c[row * 16 + col], expect, "{m} {k} {n} {unsigned}: {row} {col}");
        }
    }
}

#[test]
fn sums_wrap() {
    let (ones, mut c) = ([1u8; BYTES], [i32::MAX; 16]);
    // SAFETY: one row of each.
    unsafe {
        let mut tiles = Emulated::configured(&Config::new(&[[1, 64], [1, 4], [1, 64]]));
        tiles.load::<0>(c.as_ptr().cast(), 64);
        tiles.load::<1>(ones.as_ptr(), 64);
        tiles.load::<2>(ones.as_ptr(), 64);
        tiles.dot::<0, 1, 2>();
        tiles.store::<0>(c.as_mut_ptr().cast(), 64);
    }
    assert_eq!(c, [i32::MIN + 3; 16]);
}

/// A product of bfloats of all magnitudes, including infinity, added to such floats.
fn sums_of_bfloats<T: Tiles>(pairs: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let bfloat =
        |random: &mut Random| f32::from_bits((random.bits() as u32) << 16 & 0xbfff_0000 | 0x1000_0000);
    let mut memory: [[[u8; 4]; 256]; 3] = std::array::from_fn(|_| [[0; 4]; 256]);
    for bytes in memory.iter_mut().flatten() {
        let [even, odd] = std::array::from_fn(|_| match random.bits() % 32 {
            0 => f32::from_bits(random.bits() as u32 & 0x807f_0000),
            1 => f32::INFINITY,
            _ => bfloat(&mut random),
        });
        *bytes = (even.to_bits() >> 16 | odd.to_bits()).to_le_bytes();
    }
    let mut sums = [0.0f32; 256];
    // SAFETY: the caller has found the units; all matrices have 16 rows of 64 bytes.
    unsafe {
        let mut tiles = T::configured(&Config::new(&[[16, 64], [16, pairs * 4], [pairs, 64]]));
        tiles.load::<0>(memory[0].as_ptr().cast(), 64);
        tiles.load::<1>(memory[1].as_ptr().cast(), 64);
        tiles.load::<2>(memory[2].as_ptr().cast(), 64);
        tiles.dot_bf16::<0, 1, 2>();
        tiles.dot_bf16::<0, 1, 2>();
        tiles.store::<0>(sums.as_mut_ptr().cast(), 64);
    }
    sums.to_vec()
}

#[test]
fn bfloats_are_summed_as_described() {
    if !usable() {
        return kvik_testing::skip("this machine has no amx");
    }
    let mut numbers = 0;
    for seed in 0..2000 {
        let pairs = seed as usize % 16 + 1;
        let (found, expect) = (sums_of_bfloats::<Amx>(pairs, seed), sums_of_bfloats::<Emulated>(pairs, seed));
        for (found, expect) in found.into_iter().zip(expect) {
            let same = found.to_bits() == expect.to_bits() || found.is_nan() && expect.is_nan();
            assert!(same, "{pairs} pairs, seed {seed}: {found:e} for {expect:e}");
            numbers += usize::from(!expect.is_nan());
        }
    }
    assert!(numbers > 100_000, "only {numbers} are numbers");
}
