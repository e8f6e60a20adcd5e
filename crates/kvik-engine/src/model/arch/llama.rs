//! Llama 1 to 3.x, TinyLlama, SmolLM2: no norms on heads; some fine-tunes carry biases.

use super::{Parts, Presence};

pub(super) const PARTS: Parts =
    Parts { qkv_bias: Presence::Optional, output_bias: Presence::Optional, qk_norm: Presence::Absent };
