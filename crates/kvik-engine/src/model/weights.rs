//! The weights of a decoder, packed for the kernels.
//!
//! Every tensor is looked up under its canonical (GGUF) name and checked against the shape that the
//! configuration demands, so the forward pass can index without checks of its own.

use kvik_kernels::{Matrix, Pool, WeightType, dequantize};

use super::arch::{Parts, Presence};
use super::{ModelConfig, ModelError};
use crate::load::{TensorSource, TensorView, convert};

/// Weights of one transformer layer.
pub(crate) struct Layer {
    /// `[d_model]`
    pub(crate) attn_norm: Vec<f32>,
    /// `[heads * head_dim, d_model]`
    pub(crate) q: Linear,
    /// `[kv_heads * head_dim, d_model]`
    pub(crate) k: Linear,
    /// `[kv_heads * head_dim, d_model]`
    pub(crate) v: Linear,
    /// `[head_dim]` of queries and of keys
    pub(crate) qk_norm: Option<HeadNorms>,
    /// `[d_model, heads * head_dim]`
    pub(crate) output: Linear,
    /// `[d_model]`
    pub(crate) ffn_norm: Vec<f32>,
    /// `[d_ff, d_model]`
    pub(crate) gate: Matrix,
    /// `[d_ff, d_model]`
    pub(crate) up: Matrix,
    /// `[d_model, d_ff]`
    pub(crate) down: Matrix,
}

/// Weights of the norms on query heads and on key heads.
type HeadNorms = (Vec<f32>, Vec<f32>);

/// A projection with an optional bias.
pub(crate) struct Linear {
    /// `[rows, cols]`
    pub(crate) matrix: Matrix,
    /// `[rows]`
    pub(crate) bias: Option<Vec<f32>>,
}

/// All weights but the embedding, whose rows are read from the source.
pub(crate) struct Weights {
    pub(crate) layers: Vec<Layer>,
    /// `[d_model]`
    pub(crate) output_norm: Vec<f32>,
    /// `[vocab, d_model]`; the embedding where the model ties them.
    pub(crate) output: Matrix,
    /// Divisors of the rotary frequencies, `[rope_dims / 2]`.
    pub(crate) rope_divisors: Option<Vec<f32>>,
}

impl Weights {
    /// Bytes of packed matrices.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(Layer::matrices);
        layers.chain([&self.output]).map(Matrix::bytes).sum()
    }
}

impl Layer {
    fn matrices(&self) -> [&Matrix; 7] {
        let linear = [&self.q, &self.k, &self.v, &self.output].map(|linear| &linear.matrix);
        let [q, k, v, output] = linear;
        [q, k, v, output, &self.gate, &self.up, &self.down]
    }
}

/// Loads and packs weights, one tensor at a time, each in parallel on the pool.
pub(crate) struct Loader<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) tensors: &'a TensorSource,
    /// The type matrices are converted to; `None` keeps the file's.
    pub(crate) target: Option<WeightType>,
    pub(crate) pool: &'a Pool,
    /// Told `(bytes read, bytes in all)` after each tensor.
    pub(crate) progress: &'a dyn Fn(u64, u64),
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Loader<'_> {
    pub(crate) fn load(mut self) -> Result<Weights, ModelError> {
        let config = self.config;
        let parts = config.arch.parts();
        // Rows of the embedding are read from the source at every step, also where an output matrix is loaded.
        self.view("token_embd.weight", config.vocab, config.d_model)?;
        let layers = (0..config.layers).map(|i| self.layer(i, parts)).collect::<Result<_, _>>()?;
        let output_name = match self.tensors.get("output.weight") {
            Some(_) => "output.weight",
            None => "token_embd.weight",
        };
        Ok(Weights {
            layers,
            output_norm: self.vector("output_norm.weight", config.d_model)?,
            output: self.matrix(output_name, config.vocab, config.d_model)?,
            rope_divisors: self.optional_vector("rope_freqs.weight", config.rope.dims / 2)?,
        })
    }

    fn layer(&mut self, index: usize, parts: Parts) -> Result<Layer, ModelError> {
        let config = self.config;
        let (d, ff) = (config.d_model, config.d_ff);
        let (q_rows, kv_rows) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let name = |part: &str| format!("blk.{index}.{part}");
        Ok(Layer {
            attn_norm: self.vector(&name("attn_norm.weight"), d)?,
            q: self.linear(&name("attn_q"), q_rows, d, parts.qkv_bias)?,
            k: self.linear(&name("attn_k"), kv_rows, d, parts.qkv_bias)?,
            v: self.linear(&name("attn_v"), kv_rows, d, parts.qkv_bias)?,
            qk_norm: self.qk_norm(&name("attn"), parts.qk_norm)?,
            output: self.linear(&name("attn_output"), d, q_rows, parts.output_bias)?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), d)?,
            gate: self.matrix(&name("ffn_gate.weight"), ff, d)?,
            up: self.matrix(&name("ffn_up.weight"), ff, d)?,
            down: self.matrix(&name("ffn_down.weight"), d, ff)?,
        })
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize, bias: Presence) -> Result<Linear, ModelError> {
        Ok(Linear {
            matrix: self.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: self.present_vector(&format!("{name}.bias"), rows, bias)?,
        })
    }

    fn qk_norm(&mut self, name: &str, presence: Presence) -> Result<Option<HeadNorms>, ModelError> {
        let len = self.config.head_dim;
        let q = self.present_vector(&format!("{name}_q_norm.weight"), len, presence)?;
        let k = self.present_vector(&format!("{name}_k_norm.weight"), len, presence)?;
        Ok(q.zip(k))
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        let view = self.view(name, rows, cols)?;
        let packed = match self.target {
            Some(target) if target != view.ty && cols.is_multiple_of(target.block_len()) => {
                let converted = convert(&view, target, self.pool)?;
                Matrix::pack(target, rows, cols, &converted, self.pool)
            }
            _ => Matrix::pack(view.ty, rows, cols, view.data, self.pool),
        };
        self.tensors.release(name);
        self.report(view.data.len());
        packed.map_err(|source| ModelError::Matrix { tensor: name.to_owned(), source })
    }

    fn present_vector(
        &mut self,
        name: &str,
        len: usize,
        presence: Presence,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        match presence {
            Presence::Required => self.vector(name, len).map(Some),
            Presence::Optional => self.optional_vector(name, len),
            Presence::Absent => Ok(None),
        }
    }

    fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        self.tensors.get(name).is_some().then(|| self.vector(name, len)).transpose()
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let view = self.view(name, 1, len)?;
        let mut values = vec![0.0; len];
        dequantize(view.ty, view.data, &mut values);
        self.report(view.data.len());
        Ok(values)
    }

    fn view(&self, name: &str, rows: usize, cols: usize) -> Result<TensorView<'_>, ModelError> {
        let view =
            self.tensors.get(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.to_owned() })?;
        let whole_blocks = cols.is_multiple_of(view.ty.block_len());
        if (view.rows, view.cols) == (rows, cols) && whole_blocks {
            return Ok(view);
        }
        Err(ModelError::WrongShape {
            tensor: name.to_owned(),
            found: [view.rows, view.cols],
            expected: [rows, cols],
        })
    }

    fn report(&mut self, bytes: usize) {
        self.done_bytes += bytes as u64;
        (self.progress)(self.done_bytes, self.total_bytes);
    }
}
