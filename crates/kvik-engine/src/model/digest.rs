//! Identity of a model: a hash of everything that decides what it computes.

use std::sync::Mutex;

use kvik_kernels::{Pool, WeightType};

use super::ModelConfig;
use crate::load::TensorSource;

/// Tensors are hashed in pieces of this size, so that large ones spread over the threads.
const PIECE_BYTES: usize = 4 << 20;

/// Hashes the shape and every byte of every tensor (BLAKE3, about 1 GB/s and thread).
pub(super) fn digest(
    config: &ModelConfig,
    tensors: &TensorSource,
    target: Option<WeightType>,
    pool: &Pool,
) -> [u8; 32] {
    let mut names: Vec<&str> = tensors.names().collect();
    names.sort_unstable();
    let views: Vec<_> = names.iter().filter_map(|name| tensors.get(name)).collect();
    let pieces: Vec<&[u8]> = views.iter().flat_map(|view| view.data.chunks(PIECE_BYTES)).collect();
    let hashes = Mutex::new(vec![[0u8; 32]; pieces.len()]);
    pool.run(pieces.len(), &|i| {
        let hash = *blake3::hash(pieces[i]).as_bytes();
        hashes.lock().expect("hashing does not panic")[i] = hash;
    });
    names.iter().for_each(|name| tensors.release(name));

    let mut whole = blake3::Hasher::new_derive_key("kvik 2026-11 model digest");
    whole.update(format!("{config:?} {target:?}").as_bytes());
    for (name, view) in names.iter().zip(&views) {
        whole.update(format!("\n{name} {:?} {} {}", view.ty, view.rows, view.cols).as_bytes());
    }
    for hash in hashes.into_inner().expect("hashing does not panic") {
        whole.update(&hash);
    }
    *whole.finalize().as_bytes()
}
