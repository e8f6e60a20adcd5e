//! Qwen3: a norm on every query and key head; with `attention_bias`, biases on all four projections.

use super::{Parts, Presence};

pub(super) const PARTS: Parts =
    Parts { qkv_bias: Presence::Optional, output_bias: Presence::Optional, qk_norm: Presence::Required };
