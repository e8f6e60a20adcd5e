//! Latent attention (MLA, arXiv 2405.04434): keys and values of all heads are derived from one short vector per
//! position.
//!
//! The key of a position is that vector, normed, followed by a rotated part that all heads share; its value is the
//! vector. The projections from it to a head's keys and values are absorbed: multiplied into the head's queries, and
//! into the head's attention output. So attention is that of many query heads over one KV head, and nothing else is
//! stored.
//!
//! Matrices of heads are multiplied like those of experts: rows of the batch are grouped by head.

use kvik_kernels::{
    Activations, Groups, Matrix, Pool, RopeStyle, RopeTable, matmul, matmul_grouped, matmul_many,
    rms_norm_in_place, rope,
};
use kvik_text::files::TensorView;

use super::adapt::Adapt;
use super::convert::transposed;
use super::layer_tensor::{LayerTensor, Presence};
use super::loader::{LayerLoader, rows_of};
use super::{LatentConfig, ModelError};

/// The projections to keys and values of all heads, one below the other for each head, in one tensor.
pub(super) const FUSED: &str = "attn_kv_b.weight";
/// The projections to keys, and those to values, transposed relative to each other.
const KEYS: &str = "attn_k_b.weight";
const VALUES: &str = "attn_v_b.weight";
const COMPRESS: &str = "attn_kv_a_mqa.weight";
const NORM: &str = "attn_kv_a_norm.weight";
const QUERIES: &str = "attn_q.weight";
const QUERIES_DOWN: &str = "attn_q_a.weight";
const QUERIES_NORM: &str = "attn_q_a_norm.weight";
const QUERIES_UP: &str = "attn_q_b.weight";

/// Whether the tensor with this name is multiplied into queries and outputs head by head. Adapters cannot change those.
pub(super) fn is_absorbed(name: &str) -> bool {
    [FUSED, KEYS, VALUES].iter().any(|absorbed| name.ends_with(absorbed))
}

impl LatentConfig {
    /// The tensors in place of projections to queries, keys and values. `fused` says which of the two forms of the
    /// projections to heads the file has.
    pub(super) fn tensors(&self, d_model: usize, heads: usize, fused: bool) -> Vec<LayerTensor> {
        let LatentConfig { query_rank, rank, unrotated, rotated, value } = *self;
        let queries = heads * (unrotated + rotated);
        let mut tensors = match query_rank {
            0 => vec![(QUERIES, queries, d_model)],
            _ => vec![
                (QUERIES_DOWN, query_rank, d_model),
                (QUERIES_NORM, 1, query_rank),
                (QUERIES_UP, queries, query_rank),
            ],
        };
        tensors.extend([(COMPRESS, rank + rotated, d_model), (NORM, 1, rank)]);
        match fused {
            true => tensors.push((FUSED, heads * (unrotated + value), rank)),
            false => tensors.extend([(KEYS, heads * rank, unrotated), (VALUES, heads * value, rank)]),
        }
        tensors.into_iter().map(|(name, rows, cols)| (name, rows, cols, Presence::Required)).collect()
    }
}

/// The weights of a layer in place of projections to queries, keys and values.
pub(crate) struct Latent {
    shape: LatentConfig,
    queries: Queries,
    /// `[rank + rotated, d_model]`
    compress: Matrix,
    /// `[rank]`
    norm: Vec<f32>,
    /// `[heads][rank, unrotated]`
    keys: Vec<Matrix>,
    /// `[heads][value, rank]`
    values: Vec<Matrix>,
}

/// Projections to queries, `[heads * (unrotated + rotated), ..]`.
enum Queries {
    /// From the stream.
    Direct(Matrix),
    /// From a short vector.
    Compressed {
        /// `[query_rank, d_model]`
        down: Matrix,
        /// `[query_rank]`
        norm: Vec<f32>,
        up: Matrix,
    },
}

impl Queries {
    /// The matrix that multiplies the stream, with its name.
    fn first(&self) -> (&'static str, &Matrix) {
        match self {
            Queries::Direct(matrix) => (QUERIES, matrix),
            Queries::Compressed { down, .. } => (QUERIES_DOWN, down),
        }
    }
}

impl Latent {
    pub(super) fn load(
        shape: LatentConfig,
        heads: usize,
        layer: &mut LayerLoader<'_, '_>,
    ) -> Result<Latent, ModelError> {
        let queries = match shape.query_rank {
            0 => Queries::Direct(layer.matrix(QUERIES)?),
            _ => Queries::Compressed {
                down: layer.matrix(QUERIES_DOWN)?,
                norm: layer.vector(QUERIES_NORM)?,
                up: layer.matrix(QUERIES_UP)?,
            },
        };
        let (compress, norm) = (layer.matrix(COMPRESS)?, layer.vector(NORM)?);
        let [keys, values] = match layer.has(FUSED) {
            true => split(&shape, heads, layer)?,
            false => [layer.stack(KEYS, heads)?, layer.stack(VALUES, heads)?],
        };
        Ok(Latent { shape, queries, compress, norm, keys, values })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let mut matrices = vec![&self.compress, self.queries.first().1];
        if let Queries::Compressed { up, .. } = &self.queries {
            matrices.push(up);
        }
        matrices.extend(self.keys.iter().chain(&self.values));
        matrices
    }
}

/// Splits the matrices of heads out of the tensor that holds both kinds.
fn split(
    shape: &LatentConfig,
    heads: usize,
    layer: &mut LayerLoader<'_, '_>,
) -> Result<[Vec<Matrix>; 2], ModelError> {
    let name = layer.name(FUSED);
    let loader = &mut *layer.loader;
    let view = loader.take(&name)?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for head in 0..heads {
        let first = head * (shape.unrotated + shape.value);
        let between = first + shape.unrotated;
        let of_keys = rows_of(&view, first..between);
        let (ty, data) = transposed(&of_keys);
        let turned = TensorView { ty, rows: of_keys.cols, cols: of_keys.rows, data: &data };
        keys.push(loader.pack_silently(&name, &turned, loader.conversion)?);
        loader.report(of_keys.data.len());
        values.push(loader.pack(
            &name,
            &rows_of(&view, between..between + shape.value),
            loader.conversion,
        )?);
    }
    loader.tensors.release(&name);
    Ok([keys, values])
}

/// Buffers that the layers of a pass share; `places` is the number of grouped rows, see [`Groups`].
#[derive(Default)]
pub(super) struct Buffers {
    /// `[n, query_rank]`
    compressed: Vec<f32>,
    /// `[n, heads, unrotated + rotated]`
    queries: Vec<f32>,
    /// `[n, rank]`
    latents: Vec<f32>,
    /// Rotated parts: of keys `[n, rotated]`, then of queries `[n, heads, rotated]`.
    rotated: Vec<f32>,
    heads: HeadProducts,
}

/// The context of the rows of a batch.
pub(super) struct Rows<'a> {
    pub(super) pool: &'a Pool,
    pub(super) norm_eps: f32,
    pub(super) table: &'a RopeTable,
    pub(super) style: RopeStyle,
    /// `[n]`
    pub(super) positions: &'a [u32],
}

impl Latent {
    /// Projects normed rows `h`, `[n, d_model]`, to queries `[n, heads, key_dim]` and keys `[n, key_dim]`.
    pub(super) fn project(
        &self,
        rows: &Rows<'_>,
        h: &[f32],
        inputs: &mut Activations,
        buffers: &mut Buffers,
        [q, k]: [&mut Vec<f32>; 2],
        adapt: &mut dyn Adapt,
    ) {
        self.project_stream(rows, h, inputs, (&mut *buffers, k), adapt);
        if let Queries::Compressed { norm, up, .. } = &self.queries {
            let Buffers { compressed, queries, .. } = buffers;
            std::mem::swap(compressed, queries);
            rms_norm_in_place(rows.pool, compressed, norm, rows.norm_eps);
            inputs.set(rows.pool, compressed, up.cols(), &[up]);
            queries.resize(rows.positions.len() * up.rows(), 0.0);
            matmul(rows.pool, up, inputs, queries);
            adapt.add(QUERIES_UP, compressed, queries);
        }
        self.finish_keys(rows, buffers, k);
        self.absorb(rows, buffers, q);
    }

    /// The products with the stream: the first one for queries, and keys.
    fn project_stream(
        &self,
        rows: &Rows<'_>,
        h: &[f32],
        inputs: &mut Activations,
        (buffers, k): (&mut Buffers, &mut Vec<f32>),
        adapt: &mut dyn Adapt,
    ) {
        let (n, queries) = (rows.positions.len(), &mut buffers.queries);
        let (name, first) = self.queries.first();
        inputs.set(rows.pool, h, first.cols(), &[first, &self.compress]);
        queries.resize(n * first.rows(), 0.0);
        k.resize(n * self.shape.key_dim(), 0.0);
        matmul_many(rows.pool, &mut [(first, &mut queries[..]), (&self.compress, &mut k[..])], inputs);
        adapt.add(name, h, queries);
        adapt.add(COMPRESS, h, k);
    }

    /// Norms the part of keys that is also the value, and rotates the other.
    fn finish_keys(&self, rows: &Rows<'_>, buffers: &mut Buffers, k: &mut [f32]) {
        let Buffers { latents, rotated, .. } = buffers;
        let LatentConfig { rank, rotated: dims, .. } = self.shape;
        latents.clear();
        rotated.clear();
        for key in k.chunks_exact(rank + dims) {
            latents.extend_from_slice(&key[..rank]);
            rotated.extend_from_slice(&key[rank..]);
        }
        rms_norm_in_place(rows.pool, latents, &self.norm, rows.norm_eps);
        rope(rows.pool, rotated, dims, rows.positions, rows.table, rows.style);
        let parts = latents.chunks_exact(rank).zip(rotated.chunks_exact(dims));
        for (key, (latent, rotated)) in k.chunks_exact_mut(rank + dims).zip(parts) {
            key[..rank].copy_from_slice(latent);
            key[rank..].copy_from_slice(rotated);
        }
    }

    /// Multiplies each head's query by its key projection, so that it applies to the stored keys.
    fn absorb(&self, rows: &Rows<'_>, buffers: &mut Buffers, q: &mut Vec<f32>) {
        let Buffers { queries, rotated, heads, .. } = buffers;
        let LatentConfig { rank, unrotated, rotated: dims, .. } = self.shape;
        heads.run(rows.pool, &self.keys, queries, unrotated + dims);
        rotated.clear();
        queries
            .chunks_exact(unrotated + dims)
            .for_each(|query| rotated.extend_from_slice(&query[unrotated..]));
        rope(rows.pool, rotated, dims, rows.positions, rows.table, rows.style);
        let (count, key_dim) = (self.keys.len(), rank + dims);
        q.resize(rows.positions.len() * count * key_dim, 0.0);
        rows.pool.run_chunks(q, count * key_dim, |row, q| {
            for (head, q) in q.chunks_exact_mut(key_dim).enumerate() {
                let choice = row * count + head;
                q[..rank].copy_from_slice(heads.product(choice, rank));
                q[rank..].copy_from_slice(&rotated[choice * dims..][..dims]);
            }
        });
    }

    /// Replaces the attention outputs, `[n, heads, rank]`, by the outputs of heads, `[n, heads, value]`.
    pub(super) fn expand(&self, pool: &Pool, buffers: &mut Buffers, attended: &mut Vec<f32>) {
        let LatentConfig { rank, value, .. } = self.shape;
        let heads = &mut buffers.heads;
        heads.run(pool, &self.values, attended, rank);
        let count = attended.len() / rank;
        attended.resize(count * value, 0.0);
        for (choice, out) in attended.chunks_exact_mut(value).enumerate() {
            out.copy_from_slice(heads.product(choice, value));
        }
    }
}

/// Products of the heads of all rows, each with the matrix of its head.
#[derive(Default)]
struct HeadProducts {
    /// The head of each entry, `[n, heads]`.
    chosen: Vec<u32>,
    groups: Groups,
    /// `[places, cols of a matrix]`
    grouped: Vec<f32>,
    inputs: Activations,
    /// `[places, rows of a matrix]`
    products: Vec<f32>,
}

impl HeadProducts {
    /// Multiplies the first elements of each vector of `x`, `[n, heads, width]`, as many as a matrix has columns.
    fn run(&mut self, pool: &Pool, matrices: &[Matrix], x: &[f32], width: usize) {
        let HeadProducts { chosen, groups, grouped, inputs, products } = self;
        let (heads, rows, cols) = (matrices.len() as u32, matrices[0].rows(), matrices[0].cols());
        chosen.clear();
        chosen.extend((0..(x.len() / width) as u32).map(|choice| choice % heads));
        groups.set(chosen, matrices.len(), matrices.len());
        grouped.resize(groups.places() * cols, 0.0);
        for (choice, x) in x.chunks_exact(width).enumerate() {
            grouped[groups.place(choice) * cols..][..cols].copy_from_slice(&x[..cols]);
        }
        inputs.set_grouped(pool, grouped, &[&matrices[0]], groups);
        products.resize(groups.places() * rows, 0.0);
        matmul_grouped(pool, &mut [(matrices, &mut products[..])], inputs, groups);
    }

    /// The product of entry `choice` among the heads of all rows, of `rows` elements.
    fn product(&self, choice: usize, rows: usize) -> &[f32] {
        &self.products[self.groups.place(choice) * rows..][..rows]
    }
}

#[cfg(test)]
mod tests {
    use kvik_kernels::WeightType;
    use kvik_testing::golden;

    use super::*;
    use crate::Model;
    use crate::load::LoadedModel;
    use kvik_text::files::TensorSource;
    use kvik_text::files::bytes::FileBytes;
    use kvik_text::files::gguf::Gguf;
    use kvik_text::files::gguf::write::GgufWriter;

    /// Loads a golden file whose tensors `change` renames, leaves out, or reshapes.
    fn changed(
        file: &str,
        target: Option<WeightType>,
        change: impl Fn(&str, [usize; 2]) -> Option<(String, [usize; 2])>,
    ) -> Result<Model, String> {
        let loaded = LoadedModel::open(&golden(file)).unwrap();
        let mut writer = GgufWriter::new();
        for name in loaded.tensors.names() {
            let view = loaded.tensors.get(name).unwrap();
            if let Some((name, shape)) = change(name, [view.rows, view.cols]) {
                writer.tensor(&name, view.ty, &shape, view.data);
            }
        }
        let tensors = TensorSource::from_gguf(Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap());
        let model = Model::load(loaded.config, tensors, target, &Pool::new(1), &|_, _| {});
        model.map_err(|error| error.to_string())
    }

    #[test]
    fn tensors_that_are_missing_or_do_not_fit_are_named() {
        for (file, names) in [
            ("arch-deepseek2-lite.gguf", vec![QUERIES, COMPRESS, NORM]),
            (
                "arch-deepseek2.gguf",
                vec![QUERIES_DOWN, QUERIES_NORM, QUERIES_UP, COMPRESS, NORM, KEYS, VALUES],
            ),
        ] {
            for part in names {
                let name = format!("blk.1.{part}");
                let missing =
                    changed(file, None, |other, shape| (other != name).then(|| (other.to_owned(), shape)));
                let missing = missing.err().unwrap();
                assert!(missing.contains(&format!("no tensor `{name}`")), "{missing}");
                let narrowed = |other: &str, [rows, cols]: [usize; 2]| {
                    let shape = if other == name { [rows * cols / 4, 4] } else { [rows, cols] };
                    Some((other.to_owned(), shape))
                };
                let wrong = changed(file, None, narrowed).err().unwrap();
                assert!(wrong.contains(&format!("tensor `{name}` is")), "{wrong}");
            }
        }
        // Neither of the two forms.
        let neither = changed("arch-deepseek2-lite.gguf", None, |name, shape| {
            (name != "blk.0.attn_kv_b.weight").then(|| (name.to_owned(), shape))
        });
        assert!(neither.err().unwrap().contains("no tensor `blk.0.attn_k_b.weight`"));
        // Both forms: it is ambiguous which of them the model uses.
        let both = changed("arch-deepseek2-dense.gguf", None, |name, shape| match name {
            "blk.1.attn_v_b.weight" => Some(("blk.1.attn_kv_b.weight".to_owned(), shape)),
            _ => Some((name.to_owned(), shape)),
        });
        assert!(both.err().unwrap().contains("attn_kv_b.weight"));
    }

    #[test]
    fn matrices_of_heads_are_converted_where_the_model_is() {
        let unchanged = |name: &str, shape| Some((name.to_owned(), shape));
        for file in ["arch-deepseek2-lite.gguf", "arch-deepseek2.gguf"] {
            let bytes = |target| changed(file, target, unchanged).unwrap().weight_bytes();
            assert!(bytes(Some(WeightType::F16)) < bytes(None), "{file}");
        }
    }
}
