//! How much each KV head of a model matters, as measured.

/// How much each KV head matters: the higher, the more is lost without it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadImportance {
    /// `[layers][kv_heads]`
    pub layers: Vec<Vec<f32>>,
}
