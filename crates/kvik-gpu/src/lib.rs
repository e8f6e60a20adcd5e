//! Kernels for GPUs: matrix products of quantised weights, attention over block tables, small operations.
//!
//! The crate knows formats, shapes and block numbers; no sequence, tenant, tree or file. Results are those that
//! `kvik-kernels` specifies, up to rounding; blocks have its layout. A kernel is WGSL composed of pieces in
//! `wgsl`: a new weight format is a piece in `wgsl/weights` and an arm in `weights`, a KV format four in
//! `wgsl/kv` and an arm in `kv`, an activation one in `wgsl/activation` and an arm in `ops`.
//!
//! A row's result depends on that row alone, to the bit, on one device and driver: every sum has one order, which
//! depends neither on the other rows nor on their number.

#![forbid(unsafe_code)]

mod attention;
mod buffer;
mod device;
mod error;
mod experts;
mod kernel;
mod kv;
mod ops;
mod step;
mod weights;
mod work;

pub use attention::{AttentionPlan, DeviceAttention, PartRoom, Way};
pub use buffer::{Buffer, Part, Reading, replace_elements};
pub use device::{Choice, Device, DeviceInfo, DeviceKind, devices};
pub use error::DeviceError;
pub use experts::{DeviceChoices, DeviceStack, Gating, Routing, Weighted};
pub use kv::{DeviceArena, DeviceRows};
pub use ops::{HeadWork, NO_PLACE};
pub use step::Step;
pub use weights::DeviceMatrix;
pub use work::{KernelTime, Work};
