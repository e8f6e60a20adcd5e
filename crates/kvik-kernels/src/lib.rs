//! Arithmetic of kvik: quantised matrix products, attention over paged KV, small operations, threads.
//!
//! The home of SIMD and of nearly all `unsafe`. Knows no sequence, tenant or tree.
//! `scalar` states every operation and its order; the variants equal it to the bit.

mod isa;
mod threads;

pub use isa::Isa;
pub use threads::{Pool, performance_cores};
