//! A Llama in f64 that keeps nothing: every row attends to whatever it is said to see.

use kvik_cache::Token;
use kvik_kernels::dequantize;
use kvik_model::load::LoadedModel;

/// Rows of numbers.
type Matrix = Vec<Vec<f64>>;

/// The logits of every row of `tokens`, each rotated by its position. `sees(layer, KV head, row, at)` says
/// whether a row attends to what row `at` has stored.
pub(crate) fn logits(
    model: &LoadedModel,
    tokens: &[(Token, u32)],
    sees: &dyn Fn(usize, usize, usize, usize) -> bool,
) -> Matrix {
    let (config, embedding) = (&model.config, tensor(model, "token_embd.weight"));
    let mut x: Matrix = tokens.iter().map(|&(token, _)| embedding[token as usize].clone()).collect();
    for layer in 0..config.layers {
        let part = |name: &str| tensor(model, &format!("blk.{layer}.{name}.weight"));
        let h = norm(&x, &part("attn_norm"), config.norm_eps);
        let (mut q, mut k) = (times(&h, &part("attn_q")), times(&h, &part("attn_k")));
        for (rows, &(_, position)) in q.iter_mut().zip(&mut k).zip(tokens) {
            rotate(rows.0, config.head_dim, config.rope.theta, position);
            rotate(rows.1, config.head_dim, config.rope.theta, position);
        }
        let v = times(&h, &part("attn_v"));
        let attended: Matrix = (0..x.len())
            .map(|row| {
                let of_head = |head: usize| {
                    let kv_head = head * config.kv_heads / config.heads;
                    let seen = (0..x.len()).filter(|&at| sees(layer, kv_head, row, at)).collect::<Vec<_>>();
                    attend(piece(&q[row], head, config.head_dim), &seen, [&k, &v], kv_head)
                };
                (0..config.heads).flat_map(of_head).collect()
            })
            .collect();
        add(&mut x, &times(&attended, &part("attn_output")));
        let h = norm(&x, &part("ffn_norm"), config.norm_eps);
        let (mut gate, up) = (times(&h, &part("ffn_gate")), times(&h, &part("ffn_up")));
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate *= up / (1.0 + (-*gate).exp());
        }
        add(&mut x, &times(&gate, &part("ffn_down")));
    }
    times(&norm(&x, &tensor(model, "output_norm.weight"), config.norm_eps), &tensor(model, "output.weight"))
}

fn tensor(model: &LoadedModel, name: &str) -> Matrix {
    let view = model.tensors.get(name).unwrap();
    let mut values = vec![0.0; view.rows * view.cols];
    dequantize(view.ty, view.data, &mut values);
    values.chunks_exact(view.cols).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
}

/// Every row of `x` times every row of `weights`.
fn times(x: &Matrix, weights: &Matrix) -> Matrix {
    x.iter().map(|x| weights.iter().map(|row| dot(x, row)).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut Matrix, y: &Matrix) {
    x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
}

fn norm(x: &Matrix, weight: &Matrix, eps: f32) -> Matrix {
    let of_row = |row: &Vec<f64>| {
        let scale = (dot(row, row) / row.len() as f64 + f64::from(eps)).sqrt();
        row.iter().zip(&weight[0]).map(|(x, weight)| x / scale * weight).collect()
    };
    x.iter().map(of_row).collect()
}

/// Rotates neighbours in every head.
fn rotate(heads: &mut [f64], head_dim: usize, theta: f32, position: u32) {
    for head in heads.chunks_exact_mut(head_dim) {
        for (pair, numbers) in head.chunks_exact_mut(2).enumerate() {
            let frequency = f64::from(theta).powf(-2.0 * pair as f64 / head_dim as f64);
            let (sin, cos) = (f64::from(position) * frequency).sin_cos();
            (numbers[0], numbers[1]) =
                (numbers[0] * cos - numbers[1] * sin, numbers[0] * sin + numbers[1] * cos);
        }
    }
}

fn piece(row: &[f64], head: usize, head_dim: usize) -> &[f64] {
    &row[head * head_dim..][..head_dim]
}

fn attend(q: &[f64], seen: &[usize], [k, v]: [&Matrix; 2], kv_head: usize) -> Vec<f64> {
    let score = |&at: &usize| (dot(q, piece(&k[at], kv_head, q.len())) / (q.len() as f64).sqrt()).exp();
    let weights: Vec<f64> = seen.iter().map(score).collect();
    let sum: f64 = weights.iter().sum();
    let value = |d: usize| -> f64 {
        seen.iter().zip(&weights).map(|(&at, weight)| weight * piece(&v[at], kv_head, q.len())[d]).sum()
    };
    (0..q.len()).map(|d| value(d) / sum).collect()
}
