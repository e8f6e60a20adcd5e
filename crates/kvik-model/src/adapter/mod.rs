//! Low-rank adapters (LoRA, arXiv 2106.09685): two thin matrices added to a matrix `W` of the model, so that `y = W x +
//! scale B (A x)`.
//!
//! `load` reads and checks the weights of an adapter, `apply` adds the contributions of adapters to the rows of a batch
//! that want them. Rows without an adapter are computed as if there were none.

mod apply;
mod load;
mod mix;

use std::sync::Arc;

use kvik_kernels::Matrix;

pub(super) use apply::{AdaptedRows, Adapting, Buffers, InLayer};
pub use load::{AdapterError, LoadedAdapter};
pub use mix::{AdapterId, AdapterMix, AdapterUse};

/// Maximum number of adapters of a model.
pub const ADAPTERS_MAX: usize = 64;

/// An adapter, packed for the kernels.
pub struct Adapter {
    /// By layer, and one more entry for matrices outside the layers.
    parts: Vec<Vec<Part>>,
    digest: [u8; 32],
}

/// The pair of matrices that adapts one matrix of the model.
struct Part {
    /// The name of the matrix in its layer, as `attn_q.weight`.
    name: String,
    /// `[rank, cols]`
    a: Matrix,
    /// `[rows, rank]`
    b: Matrix,
    /// `alpha / rank`
    scale: f32,
}

/// A matrix of the model that adapters may change.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// A matrix of a layer, by its name in it.
    Layer(usize, &'static str),
    /// The output matrix, if it is not the embedding.
    Output,
}

impl Adapter {
    /// Identity of its weights: a digest of them and of `alpha`, independent of names and paths.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Bytes of packed weights in memory.
    pub fn bytes(&self) -> usize {
        self.parts.iter().flatten().map(|part| part.a.bytes() + part.b.bytes()).sum()
    }

    /// Number of matrices of the model that it changes.
    pub fn matrices(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    fn part(&self, place: Place) -> Option<&Part> {
        let (parts, name) = match place {
            Place::Layer(layer, name) => (self.parts.get(layer)?, name),
            Place::Output => (self.parts.last()?, "output.weight"),
        };
        parts.iter().find(|part| part.name == name)
    }
}

/// The adapters of a model; an [`AdapterId`] is an index into them.
#[derive(Clone, Default)]
pub struct Adapters(Vec<Arc<Adapter>>);

impl Adapters {
    /// A set of adapters that were loaded for one model.
    pub fn new(adapters: Vec<Adapter>) -> Adapters {
        Adapters(adapters.into_iter().map(Arc::new).collect())
    }

    /// Number of adapters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of packed weights in memory.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|adapter| adapter.bytes()).sum()
    }

    /// The mix for a request that uses these adapters; `None` if that is the model alone. Unknown adapters are left
    /// out.
    pub fn mix(&self, uses: impl IntoIterator<Item = AdapterUse>) -> Option<AdapterMix> {
        AdapterMix::new(uses.into_iter().filter_map(|used| Some((used, self.get(used.adapter)?.digest()))))
    }

    fn get(&self, id: AdapterId) -> Option<&Adapter> {
        self.0.get(id.0 as usize).map(Arc::as_ref)
    }
}
