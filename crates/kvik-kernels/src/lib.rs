//! Arithmetic of kvik: quantised matrix products, attention over paged KV, small operations, threads.
//!
//! The crate contains all SIMD code and nearly all `unsafe`. It knows no sequence, tenant or prefix tree.
//! `scalar` specifies every operation and its order; the vector variants equal it to the bit.

mod activations;
#[cfg(target_arch = "aarch64")]
mod arm;
mod attention;
mod domains;
mod f32x16;
mod facts;
mod float_variants;
mod i32x16;
mod isa;
mod kv;
mod lanes;
mod lines;
mod matmul;
mod matrix;
mod memory;
mod narrow;
mod ops;
mod outputs;
mod quant;
mod recurrence;
#[cfg_attr(all(not(test), target_arch = "aarch64"), allow(dead_code, reason = "tests there use the rest"))]
mod scalar;
mod small_floats;
mod speed;
#[cfg(test)]
mod testing;
mod threads;
mod u32x16;
mod vectorised;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activations::{Activations, Group, Groups};
pub use attention::{Attention, AttnScratch, AttnWeights, WeightReduce};
pub use domains::{DomainError, MemoryDomain, bound_memory_domains, memory_domains, stay_in_memory_domain};
pub use facts::{QueryMoments, Rows, WeightedSums, expected_attention, likeness, row_norms};
pub use isa::{Isa, UnknownIsa};
pub use kv::{
    BLOCK_POSITIONS, HeadTail, KV_LAYOUT_VERSION, KvArena, KvFormat, KvFormats, KvKind, KvLayer, KvLayout,
    KvValues, SeqKv, SeqRow, StoredVectors, UnknownKvFormat, in_runs,
};
pub use matmul::{Activated, matmul, matmul_activated, matmul_grouped, matmul_many};
pub use matrix::{Matrix, MatrixError};
pub use ops::{
    Activation, Mass, RopeStyle, RopeTable, Weighing, activate, add, add_bias, largest, mass, multiply,
    product, rms_norm, rms_norm_groups, rms_norm_in_place, rope, rope_back, sigmoid, soft_cap, softmax,
    weigh,
};
pub use quant::{WeightType, dequantize, quantize};
pub use recurrence::{
    Columns, ConvWeights, KeySharing, LinearInputs, LinearShape, StateArena, StateRows, StateRule, advance,
    convolve, decays, softplus, unit_norm,
};
pub use speed::read_speed;
pub use threads::{Pool, PoolError, performance_cores};
pub use vectorised::vectorised;
