use proptest::prelude::*;

use super::*;
use crate::matmul::dispatch::coded;
use crate::matmul::family::{Avx2, Kernel};
use crate::matmul::tests::{Case, assert_same, cases, specified};
use crate::x86::amx::Emulated;
use crate::{Isa, Pool, WeightType};

tiled_family!(
    EmulatedAvx512,
    Emulated,
    crate::x86::avx512::Avx512<false>,
    Avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);
tiled_family!(EmulatedAvx2, Emulated, crate::x86::avx2::Avx2<false>, Avx2, "avx2,fma,f16c");

/// The product of a case by `kernel`, in spans of `width` tiles and two parts of the rows.
fn by_kernel(kernel: Kernel, case: &Case, width: usize) -> Vec<f32> {
    let (weights, x) = (case.weights(), case.inputs());
    let mut activations = Activations::new();
    activations.set_for(Isa::Amx, &Pool::new(1), &x, weights.cols(), &[&weights]);
    let mut out = vec![f32::NAN; activations.rows() * weights.rows()];
    let cut = (width * TALL).min(activations.rows());
    let job = Job::new(&weights, &mut out);
    for start in (0..weights.tiles()).step_by(width) {
        let span = start..weights.tiles().min(start + width);
        for rows in [0..cut, cut..activations.rows()].into_iter().filter(|rows| !rows.is_empty()) {
            // SAFETY: the machine has the instructions, as the caller found; the type is that of the weights.
            unsafe { kernel(&job, span.clone(), std::ptr::null(), &activations, rows) };
        }
    }
    out
}

macro_rules! emulated_equals_the_specification {
    ($($name:ident: $family:ty, $isa:expr;)*) => {$(
        #[test]
        fn $name() {
            if !Isa::available().contains(&$isa) {
                return kvik_testing::skip(&format!("this machine has no {}", $isa.name()));
            }
            proptest!(crate::testing::cases(200), |(case in cases(), width in 1..6usize)| {
                let kernel: Kernel = match case.ty {
                    WeightType::Bf16 => <$family>::run_bf16,
                    ty if ty.codes().is_some() => coded::<$family>(ty),
                    _ => return Ok(()),
                };
                assert_same(&by_kernel(kernel, &case, width), &specified(Isa::Amx, &case.weights(), &case.inputs()));
            });
        }
    )*};
}

emulated_equals_the_specification! {
    matrix_units_beside_avx512_equal_the_specification: EmulatedAvx512, Isa::Avx512;
    matrix_units_beside_avx2_equal_the_specification: EmulatedAvx2, Isa::Avx2;
}
