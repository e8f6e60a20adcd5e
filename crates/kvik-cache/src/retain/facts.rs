//! What a policy may know, what it asks for, and what it decides: plain data.

use std::ops::Range;

/// What must be observed of a sequence's attention between two points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Watch {
    /// Nothing.
    Nothing,
    /// How much rows attend to each stored position.
    Attention {
        /// Which rows.
        rows: WatchedRows,
        /// What becomes of a row's weights.
        reduce: Reduce,
    },
    /// First and second moments of the queries before rotation.
    Queries {
        /// Leading positions of the sequence that do not count.
        skip: usize,
    },
    /// How much the sequence attends to each position while it repeats itself after its end.
    Repeat,
}

/// Whose attention is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchedRows {
    /// Every row from position 0 on.
    All,
    /// The last so many rows before each point, but at most half of the sequence: [`super::Points::watched`].
    Last(usize),
}

impl WatchedRows {
    /// Which rows of a sequence of `at` tokens are observed if it was not observed before: the last ones are at most half
    /// of it, so that something stays to be judged.
    pub fn before(self, at: usize) -> Range<usize> {
        match self {
            WatchedRows::All => 0..at,
            WatchedRows::Last(rows) => at - window(rows, at)..at,
        }
    }
}

/// `rows`, but at most half of the `at` tokens of a sequence, and at least one.
pub(super) fn window(rows: usize, at: usize) -> usize {
    rows.min((at / 2).max(1)).min(at)
}

/// How the weights of watched rows become one number for each position, `w` being the mean weight over the
/// query heads of a KV head. Rows count in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduce {
    /// The sum of `w`.
    Sum,
    /// The sum of `w`, which each further row multiplies by this.
    Decayed(f32),
    /// In how many rows `w` is above that of a row that attends to all positions alike.
    Above,
    /// The largest weight of any query head.
    Max,
}

/// What a policy must know of every stored position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// [`HeadFacts::key_norms`]
    pub key_norms: bool,
    /// [`HeadFacts::value_norms`]
    pub value_norms: bool,
    /// [`HeadFacts::likeness`]
    pub likeness: bool,
    /// [`HeadFacts::redundancy`]
    pub redundancy: bool,
    /// [`HeadFacts::expected`]
    pub expected: bool,
}

/// What is known of the stored positions of one KV head. Vectors are `[stored]`, or empty where not needed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadFacts {
    /// Which positions of the sequence it stores, ascending.
    pub positions: Vec<u32>,
    /// What [`Watch::Attention`] or [`Watch::Repeat`] observed.
    pub mass: Vec<f32>,
    /// Euclidean norms of keys.
    pub key_norms: Vec<f32>,
    /// Euclidean norms of values.
    pub value_norms: Vec<f32>,
    /// Cosine of each key and the mean of all keys' directions.
    pub likeness: Vec<f32>,
    /// Mean cosine of each key and the other stored keys.
    pub redundancy: Vec<f32>,
    /// The share of attention that queries like those observed, at the positions to come, are expected to pay:
    /// softmax over the positions after the skipped ones, mean over query heads; 0 at the skipped ones.
    pub expected: Vec<f32>,
}

/// What is known of one layer, `[kv_heads]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerFacts {
    /// Its KV heads.
    pub heads: Vec<HeadFacts>,
}

/// What is kept: for each layer and KV head, indices into [`HeadFacts::positions`], ascending; at least one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// `[layers][kv_heads]`
    pub kept: Vec<Vec<Vec<u32>>>,
}
