//! Qwen2 and Qwen2.5: biases on q, k and v.

use super::{Parts, Presence};

pub(super) const PARTS: Parts =
    Parts { qkv_bias: Presence::Required, output_bias: Presence::Absent, qk_norm: Presence::Absent };
