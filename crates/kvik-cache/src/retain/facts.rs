//! The inputs and outputs of a policy: plain data.

/// The observation of a sequence's attention that a policy needs between two points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Watch {
    /// Nothing.
    Nothing,
    /// How much rows attend to each stored position.
    Attention {
        /// The observed rows.
        rows: WatchedRows,
        /// How the weights of the rows are combined.
        reduce: Reduce,
    },
    /// First and second moments of the queries before RoPE rotation.
    Queries {
        /// Leading positions of the sequence that are skipped.
        skip: usize,
    },
    /// How much the sequence attends to each position while it is repeated after its end.
    Repeat,
}

/// The rows whose attention is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchedRows {
    /// Every row from position 0 on.
    All,
    /// The last rows before each point, at most this many: [`super::Retention::rows_before`].
    Last(usize),
}

/// `rows`, but at most half of the `at` tokens of a sequence, so that some positions remain to be judged, and at least
/// one.
pub(super) fn window(rows: usize, at: usize) -> usize {
    rows.min((at / 2).max(1)).min(at)
}

/// How the weights of observed rows are combined into one number for each position. `w` is the mean weight over the
/// query heads of a KV head; rows are processed in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduce {
    /// The sum of `w`.
    Sum,
    /// The sum of `w`, which is multiplied by this before each further row.
    Decayed(f32),
    /// Number of rows in which `w` exceeds the uniform weight.
    Above,
    /// The largest weight of any query head.
    Max,
}

/// The facts of every stored position that a policy needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// [`HeadFacts::key_norms`]
    pub key_norms: bool,
    /// [`HeadFacts::value_norms`]
    pub value_norms: bool,
    /// [`HeadFacts::likeness`]
    pub likeness: bool,
    /// [`HeadFacts::expected`]
    pub expected: bool,
    /// [`HeadFacts::gated`]
    pub gated: bool,
}

/// Facts about the stored positions of one KV head. Vectors are `[stored]`, or empty where not needed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadFacts {
    /// The stored positions of the sequence, ascending.
    pub positions: Vec<u32>,
    /// The result of [`Watch::Attention`] or [`Watch::Repeat`].
    pub mass: Vec<f32>,
    /// Euclidean norms of keys.
    pub key_norms: Vec<f32>,
    /// Euclidean norms of values.
    pub value_norms: Vec<f32>,
    /// Cosine of each key with the mean of all keys' directions.
    pub likeness: Vec<f32>,
    /// The expected attention of queries like the observed ones, at future positions: softmax over the positions
    /// after the skipped ones, mean over query heads; 0 at the skipped ones.
    pub expected: Vec<f32>,
    /// The score that the head's trained gate gives each key and value.
    pub gated: Vec<f32>,
}

/// Facts about one layer, `[kv_heads]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerFacts {
    /// Its KV heads.
    pub heads: Vec<HeadFacts>,
}

/// The retained positions: for each layer and KV head, indices into [`HeadFacts::positions`], ascending; at least
/// one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// `[layers][kv_heads]`
    pub kept: Vec<Vec<Vec<u32>>>,
}
