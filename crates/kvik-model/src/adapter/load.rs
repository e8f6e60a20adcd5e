//! Reads the weights of an adapter and checks them against its model.

use std::collections::{BTreeMap, BTreeSet};

use kvik_kernels::{Matrix, MatrixError, Pool, WeightType};
use kvik_text::files::{TensorSource, TensorView};

use super::{Adapter, Part};
use crate::digest::{bits, update_with_tensors};
use crate::expected::matrices;
use crate::latent::is_absorbed;
use crate::layer_tensor::is_stack;
use crate::loader::rows_of;
use crate::{Arch, Model, ModelConfig};

/// The domain of an adapter's digest.
const DOMAIN: &str = "kvik 2026-11-23 adapter digest v1";

/// Suffixes of the two tensors of a pair.
const A: &str = ".lora_a";
const B: &str = ".lora_b";

/// An adapter whose file has been read and checked, and whose weights have not been packed yet.
#[derive(Debug)]
pub struct LoadedAdapter {
    /// Display name, if the file has one.
    pub name: Option<String>,
    /// The architecture of its model.
    pub arch: Arch,
    /// Scale of its contribution, to be divided by the rank; 0 if the weights are scaled already.
    pub alpha: f32,
    /// Description of the task it was trained for.
    pub task_name: String,
    /// Text with which its prompts begin.
    pub prompt_prefix: String,
    /// Weights by the name of the adapted matrix, with the suffix `.lora_a` or `.lora_b`.
    pub tensors: TensorSource,
}

/// Why an adapter cannot be used with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The adapter was trained for another architecture.
    #[error(
        "the adapter is for {found} and the model is {expected}; use an adapter that was trained on this model"
    )]
    WrongArch {
        /// The adapter's.
        found: &'static str,
        /// The model's.
        expected: &'static str,
    },
    /// The rows of queries and keys have another order in the model than in adapters.
    #[error(
        "GGUF orders the rows of {arch}'s queries and keys otherwise than the model's Hugging Face files do; \
         use the adapter with a GGUF file of the model"
    )]
    RowOrder {
        /// The architecture.
        arch: &'static str,
    },
    /// The adapter has no tensors.
    #[error("the adapter has no tensors; it would change nothing")]
    Empty,
    /// A tensor that belongs to no adaptable matrix of the model.
    #[error(
        "the adapter's tensor `{tensor}` belongs to no matrix that kvik can adapt in this model; it would be left \
         out, so the adapter is refused (embeddings and norms cannot be adapted: merge the adapter into the model)"
    )]
    UnknownTensor {
        /// Its name in the adapter.
        tensor: String,
    },
    /// A tensor that belongs to the matrices of experts.
    #[error(
        "the adapter's tensor `{tensor}` is for the matrices of experts, which kvik does not adapt; it would be left \
         out, so the adapter is refused: merge it into the model, or use one trained without the experts"
    )]
    ExpertTensor {
        /// Its name in the adapter.
        tensor: String,
    },
    /// A tensor that belongs to a matrix that latent attention multiplies into queries or outputs.
    #[error(
        "the adapter's tensor `{tensor}` is for a matrix that latent attention multiplies into queries or outputs head \
         by head, which kvik does not adapt; it would be left out, so the adapter is refused: merge it into the model, \
         or use one trained without kv_b_proj"
    )]
    AbsorbedTensor {
        /// Its name in the adapter.
        tensor: String,
    },
    /// A tensor of a pair is missing.
    #[error("the adapter has no tensor `{tensor}`; the file is incomplete")]
    MissingTensor {
        /// The name of the missing tensor.
        tensor: String,
    },
    /// The shape of a tensor does not fit its matrix, or the other tensor of its pair.
    #[error(
        "the adapter's tensor `{tensor}` is {found:?} and {expected:?} is needed (rows, cols); the adapter was \
         trained on another model"
    )]
    WrongShape {
        /// Its name in the adapter.
        tensor: String,
        /// Rows and columns in the file.
        found: [usize; 2],
        /// Rows and columns that fit.
        expected: [usize; 2],
    },
    /// A tensor cannot be packed.
    #[error("the adapter's tensor `{tensor}`: {source}")]
    Matrix {
        /// Its name in the adapter.
        tensor: String,
        /// The error of the kernels.
        source: MatrixError,
    },
}

impl Adapter {
    /// Packs the weights of `file` as f32 for `model`, on `pool`. Every tensor is used: a file with other tensors is
    /// refused.
    pub fn load(file: &LoadedAdapter, model: &Model, pool: &Pool) -> Result<Adapter, AdapterError> {
        check_arch(file, model)?;
        let loader = Loader { file, pool };
        let mut left: BTreeSet<&str> = file.tensors.names().collect();
        if left.is_empty() {
            return Err(AdapterError::Empty);
        }
        let layers = model.config().layers;
        let mut parts: Vec<Vec<Part>> = (0..=layers).map(|_| Vec::new()).collect();
        let mut places = places(model);
        for base in bases(&left) {
            let Some(place) = places.remove(base) else { continue };
            left.remove(format!("{base}{A}").as_str());
            left.remove(format!("{base}{B}").as_str());
            parts[place.layer.unwrap_or(layers)].extend(loader.parts(base, &place)?);
        }
        match left.first() {
            Some(&tensor) => Err(refusal(tensor)),
            None => Ok(Adapter { parts, digest: digest(file, pool) }),
        }
    }
}

/// The error for a tensor that no part uses.
fn refusal(tensor: &str) -> AdapterError {
    let base = tensor.strip_suffix(A).or_else(|| tensor.strip_suffix(B)).unwrap_or(tensor);
    let tensor = tensor.to_owned();
    match base {
        base if is_stack(base) => AdapterError::ExpertTensor { tensor },
        base if is_absorbed(base) => AdapterError::AbsorbedTensor { tensor },
        _ => AdapterError::UnknownTensor { tensor },
    }
}

fn check_arch(file: &LoadedAdapter, model: &Model) -> Result<(), AdapterError> {
    let (arch, config) = (file.arch, model.config());
    if arch != config.arch {
        return Err(AdapterError::WrongArch { found: arch.name(), expected: config.arch.name() });
    }
    // An adapter does not record whether its model has RoPE sections.
    match config.rope.style == arch.gguf_rope(false) {
        true => Ok(()),
        false => Err(AdapterError::RowOrder { arch: arch.name() }),
    }
}

/// A matrix that an adapter may change.
struct MatrixPlace {
    /// `None` for the output matrix.
    layer: Option<usize>,
    /// The names in its layer of the matrices that the forward pass makes of it: one, or more of the same size, one
    /// below the other.
    names: Vec<String>,
    rows: usize,
    cols: usize,
}

/// The matrices of a model by name. The embedding is not among them, since it is looked up and not multiplied; nor is
/// the output matrix if it is the embedding.
fn places(model: &Model) -> BTreeMap<String, MatrixPlace> {
    let all = matrices(model.config()).into_iter().filter(|(name, ..)| model.tensors.get(name).is_some());
    let placed = all.map(|(name, rows, cols)| {
        let (layer, part) = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => (layer.parse().ok(), part),
            None => (None, name.as_str()),
        };
        let names = names(model.config(), layer, part);
        (name, MatrixPlace { layer, names, rows, cols })
    });
    placed.collect()
}

/// The names by which the forward pass asks for what an adapter adds to a tensor, from its upper rows to its lower.
fn names(config: &ModelConfig, layer: Option<usize>, part: &str) -> Vec<String> {
    let halves = layer.and_then(|layer| config.layer(layer).feed_forward.halves(part));
    halves.map_or_else(|| vec![part.to_owned()], |halves| halves.map(str::to_owned).to_vec())
}

/// The names of the matrices to which tensors belong.
fn bases<'a>(tensors: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    tensors.iter().filter_map(|name| name.strip_suffix(A).or_else(|| name.strip_suffix(B))).collect()
}

struct Loader<'a> {
    file: &'a LoadedAdapter,
    pool: &'a Pool,
}

impl Loader<'_> {
    /// What is added to each matrix of a place. `B` is cut where the place is, and every part has all of `A`.
    fn parts(&self, base: &str, place: &MatrixPlace) -> Result<Vec<Part>, AdapterError> {
        let (a_name, b_name) = (format!("{base}{A}"), format!("{base}{B}"));
        let (a, b) = (self.get(&a_name)?, self.get(&b_name)?);
        let rank = a.rows;
        check_shape(&a_name, &a, [rank, place.cols])?;
        check_shape(&b_name, &b, [place.rows, rank])?;
        // Converters that know no alpha store 0: the weights are scaled already.
        let scale = if self.file.alpha == 0.0 { 1.0 } else { self.file.alpha / rank as f32 };
        let rows = place.rows / place.names.len();
        let part = |(index, name): (usize, &String)| -> Result<Part, AdapterError> {
            let b = rows_of(&b, index * rows..(index + 1) * rows);
            let (a, b) = (self.matrix(&a_name, &a)?, self.matrix(&b_name, &b)?);
            Ok(Part { name: name.clone(), a, b, scale })
        };
        place.names.iter().enumerate().map(part).collect()
    }

    fn get(&self, name: &str) -> Result<TensorView<'_>, AdapterError> {
        let missing = || AdapterError::MissingTensor { tensor: name.to_owned() };
        self.file.tensors.get(name).ok_or_else(missing)
    }

    fn matrix(&self, name: &str, view: &TensorView<'_>) -> Result<Matrix, AdapterError> {
        let packed = Matrix::pack_as(WeightType::F32, view.ty, view.rows, view.cols, view.data, self.pool);
        packed.map_err(|source| AdapterError::Matrix { tensor: name.to_owned(), source })
    }
}

fn check_shape(name: &str, view: &TensorView<'_>, expected: [usize; 2]) -> Result<(), AdapterError> {
    let found = [view.rows, view.cols];
    match found == expected && found.iter().all(|&size| size > 0) {
        true => Ok(()),
        false => Err(AdapterError::WrongShape { tensor: name.to_owned(), found, expected }),
    }
}

fn digest(file: &LoadedAdapter, pool: &Pool) -> [u8; 32] {
    let mut whole = blake3::Hasher::new_derive_key(DOMAIN);
    whole.update(format!("alpha {}\n", bits(file.alpha)).as_bytes());
    update_with_tensors(&mut whole, &file.tensors, pool);
    *whole.finalize().as_bytes()
}
