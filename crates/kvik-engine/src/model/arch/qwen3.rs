//! Qwen3: no biases, a norm on every query and key head.

use super::{Parts, Presence};

pub(super) const PARTS: Parts =
    Parts { qkv_bias: Presence::Optional, output_bias: Presence::Absent, qk_norm: Presence::Required };
