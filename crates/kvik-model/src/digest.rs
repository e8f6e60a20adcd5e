//! Identity of a model: a hash of everything that determines its results, and of nothing else.
//!
//! The name is excluded, so that a renamed or moved model finds its cache again, and so is the context that the file
//! declares: it does not affect positions within it.

use std::sync::Mutex;

use kvik_kernels::Pool;
use kvik_text::files::TensorSource;

use super::{Conversion, Extras, ModelConfig, RopeConfig, RopeScaling, RopeStyle};

/// The domain of the hash. Its version is increased with every change of what is hashed or how it is encoded: caches of
/// another version are then not found.
const DOMAIN: &str = "kvik 2026-11-22 model digest v2";

/// Tensors are hashed in pieces of this size, so that large ones spread over the threads.
const PIECE_BYTES: usize = 4 << 20;

/// [`Model::digest`](super::Model::digest) of a model that is not loaded: hashes the shape and every byte of every
/// tensor (BLAKE3, about 1 GB/s per thread), unless the digest of its files is
/// [known](TensorSource::with_known_digests).
pub fn digest(
    config: &ModelConfig,
    tensors: &TensorSource,
    conversion: impl Into<Conversion>,
    pool: &Pool,
) -> [u8; 32] {
    let head = format!("{}weights {}\n", canonical(config), conversion.into().of(tensors).name());
    let Some((known, key)) = tensors.known().zip(key_of_files(&head, tensors)) else {
        return hash(&head, tensors, pool);
    };
    known.find(&key).unwrap_or_else(|| {
        let digest = hash(&head, tensors, pool);
        if tensors.stamps().is_some_and(|stamps| stamps.iter().all(|stamp| stamp.is_unchanged())) {
            known.keep(&key, &digest);
        }
        digest
    })
}

fn hash(head: &str, tensors: &TensorSource, pool: &Pool) -> [u8; 32] {
    let mut whole = blake3::Hasher::new_derive_key(DOMAIN);
    whole.update(head.as_bytes());
    update_with_tensors(&mut whole, tensors, pool);
    *whole.finalize().as_bytes()
}

/// The key under which a digest is stored: everything that determines it, with the stamps of the files instead of their
/// bytes.
fn key_of_files(head: &str, tensors: &TensorSource) -> Option<[u8; 32]> {
    let mut key = blake3::Hasher::new_derive_key("kvik 2026-11-26 files of a model digest v2");
    key.update(head.as_bytes());
    tensors.stamps()?.iter().for_each(|stamp| {
        key.update(format!("{}\n", stamp.text()).as_bytes());
    });
    Some(*key.finalize().as_bytes())
}

/// The digest of a model in contexts of up to `context` tokens: some models rotate differently in longer ones.
pub(super) fn within(config: &ModelConfig, digest: [u8; 32], context: usize) -> [u8; 32] {
    match config.rope.scaling {
        RopeScaling::Long { original_context, .. } if context <= original_context => {
            let mut short = blake3::Hasher::new_derive_key("kvik 2026-11-24 within the original context");
            *short.update(&digest).finalize().as_bytes()
        }
        _ => digest,
    }
}

/// Hashes names, shapes and every byte of all tensors.
pub(super) fn update_with_tensors(whole: &mut blake3::Hasher, tensors: &TensorSource, pool: &Pool) {
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

    for (name, view) in names.iter().zip(&views) {
        whole.update(format!("tensor {name} {} {} {}\n", view.ty.name(), view.rows, view.cols).as_bytes());
    }
    for hash in hashes.into_inner().expect("hashing does not panic") {
        whole.update(&hash);
    }
}

/// Parts that are not written for models without them: their identity is the same as before these parts existed. What
/// is loaded only for drafts is never written.
const ABSENT: [&str; 13] = [
    ", latent: None",
    ", recurrence: None",
    ", by_layer: ByLayer { kv_heads: [], d_ff: [] }",
    ", sharing_layers: 0",
    ", sparsity: []",
    ", altup: None",
    ", laurel_rank: None",
    ", per_layer_width: None",
    ", per_layer_rows: None",
    ", grouped: false",
    ", ranked_by_best: false",
    ", predicts: false",
    ", predicts: true",
];

/// The values that determine the results, one per line. Floats are written as their bits.
fn canonical(config: &ModelConfig) -> String {
    // Without `..`, so that a new field cannot be forgotten here.
    let ModelConfig {
        arch,
        name: _,
        layers,
        d_model,
        d_ff,
        heads,
        kv_heads,
        head_dim,
        vocab,
        context: _,
        norm_eps,
        rope,
        extras,
    } = config;
    // A plain transformer has none: its identity is the same as before extras existed.
    let extras = match *extras == Extras::default() {
        true => String::new(),
        false => ABSENT.iter().fold(format!("extras {extras:?}\n"), |text, absent| text.replace(absent, "")),
    };
    format!(
        "arch {}\nlayers {layers}\nd_model {d_model}\nd_ff {d_ff}\nheads {heads}\nkv_heads {kv_heads}\n\
         head_dim {head_dim}\nvocab {vocab}\nnorm_eps {}\n{}{extras}",
        arch.name(),
        bits(*norm_eps),
        canonical_rope(rope)
    )
}

fn canonical_rope(rope: &RopeConfig) -> String {
    let RopeConfig { theta, dims, style, scaling } = rope;
    let style = match style {
        RopeStyle::Interleaved => "interleaved",
        RopeStyle::HalfSplit => "half-split",
    };
    let scaling = match scaling.clone() {
        RopeScaling::None => "none".to_owned(),
        RopeScaling::Proportional { pairs } => format!("proportional {pairs}"),
        RopeScaling::Linear { factor } => format!("linear {}", bits(factor)),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => format!(
            "llama3 {} {} {} {original_context}",
            bits(factor),
            bits(low_freq_factor),
            bits(high_freq_factor)
        ),
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate } => {
            let (factor, beta_fast, beta_slow) = (bits(factor), bits(beta_fast), bits(beta_slow));
            let attention_factor = attention_factor.map_or("derived".to_owned(), bits);
            // Not written where it is true: models had this identity before it could be false.
            let untruncated = if truncate { "" } else { " untruncated" };
            format!(
                "yarn {factor} {original_context} {beta_fast} {beta_slow} {attention_factor}{untruncated}"
            )
        }
        RopeScaling::Long { factor, long, short, original_context, attention_factor } => {
            let all = |divisors: Vec<f32>| divisors.into_iter().map(bits).collect::<Vec<_>>().join(",");
            let (factor, attention_factor) = (bits(factor), bits(attention_factor));
            format!("long {factor} {original_context} {attention_factor} {} {}", all(long), all(short))
        }
    };
    format!("rope_theta {}\nrope_dims {dims}\nrope_style {style}\nrope_scaling {scaling}\n", bits(*theta))
}

/// A number as its bits.
pub(super) fn bits(x: f32) -> String {
    format!("{:08x}", x.to_bits())
}

#[cfg(test)]
mod tests {
    use kvik_kernels::WeightType;
    use kvik_testing::tiny_model;

    use super::*;
    use crate::load::LoadedModel;
    use crate::{Arch, ExpertsConfig, LatentConfig, Recurrence};
    use kvik_text::files::KnownDigests;

    fn tiny() -> LoadedModel {
        LoadedModel::open(&tiny_model()).unwrap()
    }

    #[test]
    fn what_does_not_decide_the_numbers_does_not_decide_the_digest() {
        let (LoadedModel { config, tensors, .. }, pool) = (tiny(), Pool::new(1));
        let before = digest(&config, &tensors, None, &pool);
        let renamed = ModelConfig { name: "elsewhere".into(), context: 77, ..config };
        assert_eq!(digest(&renamed, &tensors, None, &pool), before);
        assert_eq!(digest(&renamed, &tensors, None, &Pool::new(3)), before);
    }

    /// Models without a part keep the identity that they had before the part existed.
    #[test]
    fn parts_that_a_model_lacks_are_not_named() {
        let config = tiny().config;
        let change = |change: &dyn Fn(&mut Extras)| {
            let mut config = config.clone();
            config.extras.norm_offset = 1.0;
            change(&mut config.extras);
            canonical(&config)
        };
        let latent = LatentConfig { query_rank: 8, rank: 32, unrotated: 16, rotated: 8, value: 16 };
        let mut texts = vec![
            change(&|_| ()),
            change(&|extras| extras.latent = Some(LatentConfig { query_rank: 0, ..latent })),
            change(&|extras| extras.latent = Some(latent)),
            change(&|extras| extras.by_layer.kv_heads = vec![1; 6]),
            change(&|extras| extras.by_layer.d_ff = vec![1; 6]),
            change(&|extras| extras.sharing_layers = 1),
            change(&|extras| extras.sparsity = vec![None; 6]),
            change(&|extras| extras.altup = Some(4)),
            change(&|extras| extras.laurel_rank = Some(4)),
            change(&|extras| extras.per_layer_width = Some(4)),
            change(&|extras| extras.per_layer_rows = Some(4)),
            change(&|extras| extras.experts = Some(experts(false))),
            change(&|extras| extras.experts = Some(experts(true))),
        ];
        for absent in ABSENT {
            let part = absent.trim_start_matches(", ").split(':').next().unwrap();
            assert!(!texts[0].contains(part), "{part}: {}", texts[0]);
        }
        assert_eq!(texts.iter().filter(|text| text.contains("ranked_by_best")).count(), 1);
        let count = texts.len();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), count);
    }

    fn experts(ranked_by_best: bool) -> ExpertsConfig {
        ExpertsConfig {
            count: 8,
            used: 2,
            d_ff: 24,
            shared_d_ff: 0,
            dense_layers: 0,
            interval: 1,
            normalised: false,
            scale: 1.0,
            sigmoid: false,
            groups: Some([4, 2]),
            ranked_by_best,
        }
    }

    fn recurrence(conv_width: usize) -> Recurrence {
        Recurrence { layers: vec![true; 6], feed_forward_alone: Vec::new(), conv_width, matrices: None }
    }

    #[test]
    fn what_decides_the_numbers_decides_the_digest() {
        let config = tiny().config;
        let change = |change: &dyn Fn(&mut ModelConfig)| {
            let mut config = config.clone();
            change(&mut config);
            canonical(&config)
        };
        let scaling = |scaling: RopeScaling| change(&|config| config.rope.scaling = scaling.clone());
        let llama3 = |low_freq_factor, original_context| {
            let (factor, high_freq_factor) = (8.0, 4.0);
            scaling(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
        };
        let yarn = |original_context, beta_fast, attention_factor, truncate| {
            let (factor, beta_slow) = (4.0, 1.0);
            let yarn = RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate,
            };
            scaling(yarn)
        };
        let long = |original_context, divisor: f32| {
            let [long, short] = [divisor, 1.0].map(|divisor| vec![divisor; 32]);
            let (factor, attention_factor) = (1.0, 1.0);
            scaling(RopeScaling::Long { factor, long, short, original_context, attention_factor })
        };
        let mut texts = vec![
            canonical(&config),
            change(&|config| config.arch = Arch::Llama),
            change(&|config| config.layers += 1),
            change(&|config| config.d_model += 1),
            change(&|config| config.d_ff += 1),
            change(&|config| config.heads += 1),
            change(&|config| config.kv_heads += 1),
            change(&|config| config.head_dim += 1),
            change(&|config| config.vocab += 1),
            change(&|config| config.norm_eps = config.norm_eps.next_up()),
            change(&|config| config.rope.theta = config.rope.theta.next_up()),
            change(&|config| config.rope.dims += 2),
            change(&|config| config.rope.style = RopeStyle::Interleaved),
            scaling(RopeScaling::Linear { factor: 2.0 }),
            scaling(RopeScaling::Linear { factor: 4.0 }),
            llama3(1.0, 8192),
            llama3(2.0, 8192),
            llama3(1.0, 4096),
            yarn(8192, 32.0, None, true),
            yarn(8192, 32.0, None, false),
            yarn(8192, 32.0, Some(1.0), true),
            yarn(8192, 16.0, None, true),
            yarn(4096, 32.0, None, true),
            long(4096, 2.0),
            long(2048, 2.0),
            long(4096, 3.0),
            change(&|config| config.extras.multipliers.residual = 0.5),
            change(&|config| config.extras.attention_scale = Some(0.5)),
            change(&|config| config.extras.logit_cap = Some(30.0)),
            change(&|config| config.extras.score_cap = Some(30.0)),
            change(&|config| config.extras.unrotated = vec![true; 6]),
            change(&|config| config.extras.recurrence = Some(recurrence(3))),
            change(&|config| config.extras.recurrence = Some(recurrence(4))),
        ];
        let count = texts.len();
        assert_eq!(texts.iter().filter(|text| text.contains("recurrence")).count(), 2);
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), count);
    }

    #[test]
    fn the_type_of_the_weights_is_part_of_the_digest() {
        let (model, pool) = (tiny(), Pool::new(1));
        let stored = digest(&model.config, &model.tensors, None, &pool);
        assert_ne!(digest(&model.config, &model.tensors, Some(WeightType::F32), &pool), stored);
    }

    #[cfg(unix)]
    #[test]
    fn the_digest_of_files_that_did_not_change_is_known() {
        let (dir, pool) = (tempfile::tempdir().unwrap(), Pool::new(1));
        let path = dir.path().join("model.gguf");
        std::fs::copy(tiny_model(), &path).unwrap();
        // Older than the period within which a further change could go unnoticed.
        let settled = std::time::Duration::from_millis(3100);
        let known = KnownDigests::new(&dir.path().join("digests"));
        let read = || {
            let LoadedModel { config, tensors, .. } = LoadedModel::open(&path).unwrap();
            digest(&config, &tensors.with_known_digests(Some(known.clone())), None, &pool)
        };
        let kept = || std::fs::read_dir(dir.path().join("digests")).map_or(0, Iterator::count);
        let first = read();
        assert_eq!(kept(), 0, "the file has changed a moment ago");
        std::thread::sleep(settled);
        assert_eq!((read(), kept()), (first, 1));
        // A known digest is used: here a different one, to see it.
        let entry = std::fs::read_dir(dir.path().join("digests")).unwrap().next().unwrap().unwrap();
        let key = blake3::Hash::from_hex(entry.file_name().to_str().unwrap()).unwrap();
        known.keep(key.as_bytes(), &[7; 32]);
        assert_eq!(read(), [7; 32]);
        // After a changed byte the file is read again, although its modification time is reset.
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        std::thread::sleep(settled);
        let changed = read();
        assert!(changed != first && changed != [7; 32]);
    }

    /// A change of this digest orphans every cache on disk, and is noted in `docs/format.md`.
    #[test]
    fn the_digest_of_the_model_inside_stays() {
        let LoadedModel { config, tensors, .. } = tiny();
        let digest = blake3::Hash::from(digest(&config, &tensors, None, &Pool::new(1)));
        assert_eq!(
            digest.to_hex().as_str(),
            "2252a1c686913f2e68934e8bae3665064dfaf1c35f6d633a74bd6a32615653fa"
        );
    }
}
