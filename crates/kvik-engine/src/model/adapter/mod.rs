//! Low-rank adapters (LoRA, arXiv 2106.09685): beside a matrix `W` of the model two thin ones, so that
//! `y = W x + scale B (A x)`.
//!
//! `load` reads and checks the weights of one, `apply` adds what adapters say to the rows of a batch that want them.
//! Rows without an adapter take the path they would take if there were none.

mod apply;
mod load;

use std::sync::Arc;

use kvik_kernels::Matrix;

use crate::api::{AdapterId, AdapterMix, AdapterUse};

pub(super) use apply::{AdaptedRows, Adapting, Buffers, InLayer};
pub use load::{AdapterError, LoadedAdapter};

/// Adapters that one model may have.
pub const ADAPTERS_MAX: usize = 64;

/// An adapter, packed for the kernels.
pub struct Adapter {
    /// By layer, and one more for what is in none.
    parts: Vec<Vec<Part>>,
    digest: [u8; 32],
}

/// What an adapter does beside one matrix.
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
    /// One of a layer, by its name in it.
    Layer(usize, &'static str),
    /// The output matrix, where it is not the embedding.
    Output,
}

impl Adapter {
    /// Identity of its weights: they and `alpha` decide it, names and paths do not.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Bytes of packed weights in memory.
    pub fn bytes(&self) -> usize {
        self.parts.iter().flatten().map(|part| part.a.bytes() + part.b.bytes()).sum()
    }

    /// Matrices of the model that it changes.
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

/// The adapters beside a model; an [`AdapterId`] is an index into them.
#[derive(Clone, Default)]
pub struct Adapters(Vec<Arc<Adapter>>);

impl Adapters {
    /// These adapters, which were loaded for one model.
    pub fn new(adapters: Vec<Adapter>) -> Adapters {
        Adapters(adapters.into_iter().map(Arc::new).collect())
    }

    /// How many there are.
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

    /// What a request is computed with that wants these; `None` where that is the model alone. Unknown adapters are
    /// left out.
    pub fn mix(&self, uses: impl IntoIterator<Item = AdapterUse>) -> Option<AdapterMix> {
        AdapterMix::new(uses.into_iter().filter_map(|used| Some((used, self.get(used.adapter)?.digest()))))
    }

    fn get(&self, id: AdapterId) -> Option<&Adapter> {
        self.0.get(id.0 as usize).map(Arc::as_ref)
    }
}
