//! Random weights and inputs for the tests of this crate.

use std::sync::Once;

use half::f16;
use proptest::test_runner::Config;

use crate::quant::SHORT_MAX;
use crate::{Isa, WeightType};

/// The number of cases of a property: `all` where a release is proven, with a change half of them, other ones each
/// time, and one in eight under emulation, which takes a hundred times as long.
pub(crate) fn cases(all: u32) -> Config {
    let is_emulated = std::env::var_os("KVIK_EMULATED").is_some();
    Config::with_cases(kvik_testing::effort(all.div_ceil(if is_emulated { 8 } else { 2 }), all))
}

/// The families that this machine executes, slowest first; the others are reported once, by the first test that asks.
pub(crate) fn isas() -> Vec<Isa> {
    static REPORTED: Once = Once::new();
    let available = Isa::available();
    REPORTED.call_once(|| {
        for isa in Isa::OF_THIS_ARCHITECTURE.iter().filter(|isa| !available.contains(isa)) {
            kvik_testing::skip(&format!("this machine has no {}, which tests of all skip", isa.name()));
        }
    });
    available
}

/// Defines a module with one test `check(isa)` per family; on machines that lack the family, the test reports it.
macro_rules! for_each_isa {
    ($module:ident: $check:path) => {
        mod $module {
            use crate::Isa;

            $crate::testing::for_each_isa! {@each $check;
                scalar: Scalar, avx2: Avx2, avx_vnni: AvxVnni, avx512: Avx512, avx512_bf16: Avx512Bf16,
                amx: Amx, neon: Neon, neon_dot: NeonDot, neon_i8mm: NeonI8mm,
            }
        }
    };
    (@each $check:path; $($name:ident: $isa:ident,)*) => {$(
        #[test]
        fn $name() {
            match Isa::available().contains(&Isa::$isa) {
                true => $check(Isa::$isa),
                false => kvik_testing::skip(&format!("this machine has no {}", Isa::$isa.name())),
            }
        }
    )*};
}
pub(crate) use for_each_isa;

/// A small generator (splitmix64): tests need reproducible numbers, not good ones.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Uniform in -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// `len` values of `ty` in file format: random quantised values and scales, half floats of ordinary size.
pub(crate) fn random_blocks(ty: WeightType, len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut raw: Vec<u8> = (0..ty.row_bytes(len).unwrap()).map(|_| random.bits() as u8).collect();
    for block in raw.chunks_exact_mut(ty.block_bytes()) {
        for at in half_floats(ty) {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(random.float() * 0.02).to_le_bytes());
        }
        match ty {
            WeightType::F32 => block.copy_from_slice(&random.float().to_le_bytes()),
            WeightType::Bf16 => block.copy_from_slice(&half::bf16::from_f32(random.float()).to_le_bytes()),
            WeightType::Mxfp4 => block[0] = 112 + block[0] % 12,
            WeightType::Q14_0 => limit_codes(block),
            _ => {}
        }
    }
    raw
}

/// Limits random 16-bit values to 14 bits, one in eight to the largest magnitude.
fn limit_codes(block: &mut [u8]) {
    for code in block[2..].as_chunks_mut::<2>().0 {
        let random = i32::from(i16::from_le_bytes(*code));
        let limited = if random % 8 == 0 { random.signum() * SHORT_MAX } else { random % (SHORT_MAX + 1) };
        *code = (limited as i16).to_le_bytes();
    }
}

/// Offsets of the half floats in a block.
pub(crate) fn half_floats(ty: WeightType) -> &'static [usize] {
    match ty {
        WeightType::F32 | WeightType::Mxfp4 => &[],
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
        WeightType::Q2K => &[80, 82],
        WeightType::Q3K => &[108],
        WeightType::Q6K => &[208],
        _ => &[0],
    }
}
