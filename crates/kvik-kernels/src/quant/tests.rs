//! Tests against golden vectors of the `gguf` package, see `testdata/quant/generate.py`.

use super::*;

macro_rules! golden {
    ($name:literal) => {
        include_bytes!(concat!("../../testdata/quant/", $name)).as_slice()
    };
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn blocks_mean_what_the_reference_says() {
    let check = |ty: WeightType, blocks: &[u8], values: &[u8]| {
        let expect = floats(values);
        let mut out = vec![0.0; expect.len()];
        dequantize(ty, blocks, &mut out);
        assert_eq!(out, expect, "{}", ty.name());
    };
    check(WeightType::Q8_0, golden!("q8_0.blocks"), golden!("q8_0.values"));
    check(WeightType::Q4_0, golden!("q4_0.blocks"), golden!("q4_0.values"));
    check(WeightType::Q4_1, golden!("q4_1.blocks"), golden!("q4_1.values"));
    check(WeightType::Q5_0, golden!("q5_0.blocks"), golden!("q5_0.values"));
    check(WeightType::Q5_1, golden!("q5_1.blocks"), golden!("q5_1.values"));
    check(WeightType::Q2K, golden!("q2_k.blocks"), golden!("q2_k.values"));
    check(WeightType::Q3K, golden!("q3_k.blocks"), golden!("q3_k.values"));
    check(WeightType::Q4K, golden!("q4_k.blocks"), golden!("q4_k.values"));
    check(WeightType::Q5K, golden!("q5_k.blocks"), golden!("q5_k.values"));
    check(WeightType::Q6K, golden!("q6_k.blocks"), golden!("q6_k.values"));
    check(WeightType::Iq4Nl, golden!("iq4_nl.blocks"), golden!("iq4_nl.values"));
    check(WeightType::Mxfp4, golden!("mxfp4.blocks"), golden!("mxfp4.values"));
}

#[test]
fn quantisers_equal_the_reference_to_the_bit() {
    let x = floats(golden!("x.values"));
    let check = |ty: WeightType, expect: &[u8]| {
        let mut out = vec![0; expect.len()];
        quantize(ty, &x, &mut out);
        assert_eq!(out, expect, "{}", ty.name());
    };
    check(WeightType::F32, golden!("x.values"));
    check(WeightType::F16, golden!("f16.quantised"));
    check(WeightType::Bf16, golden!("bf16.quantised"));
    check(WeightType::Q8_0, golden!("q8_0.quantised"));
    check(WeightType::Q4_0, golden!("q4_0.quantised"));
}

#[test]
fn float_types_read_back_what_was_written() {
    let x = floats(golden!("x.values"));
    for (ty, tolerance) in [(WeightType::F32, 0.0), (WeightType::F16, 1e-3), (WeightType::Bf16, 8e-3)] {
        let mut raw = vec![0; ty.row_bytes(x.len()).unwrap()];
        let mut back = vec![0.0; x.len()];
        quantize(ty, &x, &mut raw);
        dequantize(ty, &raw, &mut back);
        let near = |(x, back): (&f32, &f32)| (x - back).abs() <= x.abs() * tolerance + 6e-8;
        // 1.28e6 is beyond F16; only that block may be infinite.
        let ok = x.iter().zip(&back).all(|pair| near(pair) || pair.0.abs() > 65_000.0);
        assert!(ok, "{}", ty.name());
    }
}

#[test]
fn every_half_float_is_widened_exactly() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut out = vec![0.0; halves.len() / 2];
    dequantize(WeightType::F16, &halves, &mut out);
    for (bits, out) in (0..=u16::MAX).zip(out) {
        let expect = half::f16::from_bits(bits).to_f32();
        assert!(out.to_bits() == expect.to_bits() || out.is_nan() && expect.is_nan(), "{bits:#x}: {out}");
    }
}

#[test]
fn codes_of_14_bits_stay_within_their_range_and_half_a_step() {
    let mut x = floats(golden!("x.values"));
    x.extend([0.0, -0.0, 1e-7, -6e-8, 65_504.0, -65_504.0, 1.0, -1.0].repeat(8));
    x.iter_mut().for_each(|x| *x = x.clamp(-65_504.0, 65_504.0));
    let mut raw = vec![0; WeightType::Q14_0.row_bytes(x.len()).unwrap()];
    let mut back = vec![0.0; x.len()];
    quantize(WeightType::Q14_0, &x, &mut raw);
    dequantize(WeightType::Q14_0, &raw, &mut back);
    let blocks = raw.chunks(ShortBlock::BYTES).map(ShortBlock::read);
    for ((x, back), block) in x.chunks(32).zip(back.chunks(32)).zip(blocks) {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        assert!(block.d.to_f32() >= largest && block.d.to_f32() <= largest * 1.001 + 6e-8, "{block:?}");
        assert!(block.codes.iter().all(|code| i32::from(*code).abs() <= SHORT_MAX), "{block:?}");
        let step = block.d.to_f32() / SHORT_MAX as f32;
        assert!(x.iter().zip(back).all(|(x, back)| (x - back).abs() <= step * 0.501), "{x:?} as {back:?}");
    }
    assert!(32 * SHORT_MAX * SHORT_MAX > 0 && 32i32.checked_mul((SHORT_MAX + 1).pow(2)).is_none());
}

#[test]
fn every_exponent_of_mxfp4_is_a_power_of_two() {
    for exponent in 0..=255u8 {
        // The quantised value of 0.5, whose doubled level is one.
        let block: Vec<u8> = [exponent].into_iter().chain([0x11; 16]).collect();
        let mut values = [0.0; 32];
        dequantize(WeightType::Mxfp4, &block, &mut values);
        let expect = 2.0_f64.powi(i32::from(exponent) - 128);
        assert!(values.iter().all(|value| f64::from(*value) == expect), "2^({exponent} - 128): {values:?}");
    }
}

#[test]
fn numbers_and_sizes_are_ggml_s() {
    let ids: Vec<u32> = WeightType::ALL.into_iter().filter_map(WeightType::ggml).collect();
    assert_eq!(ids, [0, 1, 30, 8, 2, 3, 6, 7, 10, 11, 12, 13, 14, 20, 39]);
    assert!(
        WeightType::ALL.iter().all(|ty| ty.ggml().is_none_or(|id| WeightType::from_ggml(id) == Some(*ty)))
    );
    assert_eq!(WeightType::Q14_0.ggml(), None);
    assert_eq!(WeightType::from_ggml(9), None, "Q8_1 is no weight type");
    assert_eq!(WeightType::Q4K.row_bytes(512), Some(288));
    assert_eq!(WeightType::Q4K.row_bytes(500), None);
    assert_eq!(WeightType::F32.row_bytes(usize::MAX), None);
}
