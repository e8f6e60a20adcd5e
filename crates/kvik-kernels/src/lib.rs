//! Arithmetic of kvik: quantised matrix products, attention over paged KV, small operations, threads.
//!
//! The home of SIMD and of nearly all `unsafe`. Knows no sequence, tenant or tree.
//! `scalar` states every operation and its order; the variants equal it to the bit.

mod activations;
mod isa;
mod lanes;
mod matmul;
mod matrix;
mod quant;
mod scalar;
#[cfg(test)]
mod testing;
mod threads;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activations::Activations;
pub use isa::Isa;
pub use matmul::{matmul, matmul_many};
pub use matrix::{Matrix, MatrixError};
pub use quant::{WeightType, dequantize, quantize};
pub use threads::{Pool, performance_cores};
