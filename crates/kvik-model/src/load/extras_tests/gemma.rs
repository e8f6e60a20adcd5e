//! Gemma 4 and Gemma 3n: layers of two kinds that differ in their heads, that share keys and values, and that have inputs
//! of their own.

use super::*;

/// The keys of a Gemma 4 with four layers, of which the second and the last see all positions.
fn gemma4(keys: &mut Keys<'_>) {
    keys.count("attention.key_length", 32).count("attention.key_length_swa", 16);
    keys.count("attention.value_length", 32).count("attention.value_length_swa", 16);
    keys.count("attention.sliding_window", 8).count("embedding_length_per_layer_input", 0);
    keys.flags("attention.sliding_window_pattern", &[true, false, true, false]);
}

#[test]
fn gemma4_has_heads_of_two_widths_and_counts_by_layer() {
    let config = gguf("gemma4", |keys| {
        keys.counts("attention.head_count_kv", &[4, 2, 4, 2])
            .counts("feed_forward_length", &[96, 96, 192, 192]);
        keys.count("rope.dimension_count_swa", 8);
        gemma4(keys);
    })
    .unwrap();
    let layer = |index: usize| {
        let shape = config.layer(index);
        (shape.kv_heads, shape.head_dim, shape.rotation)
    };
    assert_eq!([0, 1, 3].map(layer), [(4, 16, Some(1)), (2, 32, Some(0)), (2, 32, Some(0))]);
    assert_eq!((config.kv_heads, config.d_ff, config.ropes()[1].0.dims), (4, 192, 8));
    assert_eq!(config.kv_layers().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn settings_of_gemma4_that_do_not_fit_its_layers_are_named() {
    let refused = |key: &str, expect: &str, add: &dyn Fn(&mut Keys<'_>)| {
        let error = gguf("gemma4", |keys| {
            add(keys);
            gemma4(keys);
        })
        .unwrap_err();
        assert!(
            error.contains(key) && error.contains(expect),
            "{error:?} does not contain {key} and {expect}"
        );
    };
    let kv = "attention.head_count_kv";
    refused("gemma4.attention.head_count_kv", "4 layers", &|keys| {
        keys.counts(kv, &[4, 2]);
    });
    refused("key/value heads", "divisor", &|keys| {
        keys.counts(kv, &[4, 2, 3, 2]);
    });
    refused("key/value heads", "1 to", &|keys| {
        keys.counts(kv, &[4, 0, 4, 2]);
    });
    refused("gemma4.attention.value_length_swa", "the key length, 16", &|keys| {
        keys.count("attention.value_length_swa", 8);
    });
    refused("gemma4.attention.sliding_window", "0", &|keys| {
        keys.count("attention.sliding_window", 0);
    });
    refused("gemma4.attention.sliding_window_pattern", "4 layers", &|keys| {
        keys.flags("attention.sliding_window_pattern", &[true]);
    });
    refused("rotary dimensions", "16", &|keys| {
        keys.count("rope.dimension_count_swa", 18);
    });
    let bare = gguf("gemma4", |keys| {
        keys.count("attention.sliding_window", 8).count("embedding_length_per_layer_input", 0);
    });
    assert!(bare.unwrap_err().contains("gemma4.attention.sliding_window_pattern"));
}

#[test]
fn layers_that_share_keys_and_values_read_those_of_their_kind() {
    let file = |sharing: u32, kv_heads: &[u32]| {
        gguf("gemma4", |keys| {
            gemma4(keys);
            keys.count("attention.shared_kv_layers", sharing).counts("attention.head_count_kv", kv_heads);
        })
    };
    let config = file(2, &[4, 2, 4, 2]).unwrap();
    let sources: Vec<Option<usize>> = (0..4).map(|index| config.layer(index).source).collect();
    assert_eq!(sources, [None, None, Some(0), Some(1)]);
    assert_eq!(config.kv_layers().collect::<Vec<_>>(), [0, 1]);
    let layout = crate::ModelRunner::uniform_layout(&config, kvik_kernels::KvFormat::F16);
    // A block may have more bytes: the windowed part begins at a page boundary.
    let stored: usize = layout.layers().iter().flat_map(|layer| layer.part_bytes()).sum();
    assert_eq!(stored, 16 * 2 * 2 * (4 * 16 + 2 * 32));
    let refused = |sharing, kv_heads: &[u32], expect: &str| {
        let error = file(sharing, kv_heads).unwrap_err();
        assert!(error.contains("layers that share keys and values") && error.contains(expect), "{error}");
    };
    for sharing in [4, 5, u32::MAX] {
        refused(sharing, &[4, 2, 4, 2], "fewer than the 4 layers");
    }
    // Only layer 0 stores, and it has a window.
    refused(3, &[4, 2, 4, 2], "as layer 1");
    refused(2, &[4, 2, 2, 2], "in layer 2, as in layer 0");
}

#[test]
fn gemma3n_takes_what_files_do_not_say_from_llama_cpp() {
    let window = |keys: &mut Keys<'_>| {
        keys.count("attention.sliding_window", 8);
    };
    let plain = gguf("gemma3n", window).unwrap().extras;
    assert_eq!((plain.altup, plain.laurel_rank, plain.per_layer_width), (Some(4), Some(64), Some(256)));
    assert_eq!((plain.sharing_layers, plain.sparsity.clone()), (0, vec![Some(1.644_853_6); 4]));
    let listed = gguf("gemma3n", |keys| {
        window(keys);
        keys.numbers("activation_sparsity_scale", &[1.5, f32::NEG_INFINITY, 0.0, 2.0]);
        keys.count("altup.num_inputs", 2);
    });
    assert_eq!(listed.unwrap().extras.sparsity, [Some(1.5), None, None, Some(2.0)]);
    let refused = |expect: &str, add: &dyn Fn(&mut Keys<'_>)| {
        let error = gguf("gemma3n", |keys| {
            window(keys);
            add(keys);
        })
        .unwrap_err();
        assert!(error.contains(expect), "{error:?} does not contain {expect}");
    };
    for streams in [0, 1, 17, u32::MAX] {
        refused("gemma3n.altup.num_inputs", &|keys| {
            keys.count("altup.num_inputs", streams);
        });
    }
    refused("gemma3n.altup.active_idx", &|keys| {
        keys.count("altup.active_idx", 1);
    });
    for scales in [&[1.5][..], &[f32::INFINITY; 4], &[1.0, 1.0, 1.0, 1.0, 1.0]] {
        refused("activation_sparsity_scale", &|keys| {
            keys.numbers("activation_sparsity_scale", scales);
        });
    }
    refused("per-layer embeddings", &|keys| {
        keys.count("embedding_length_per_layer_input", 0);
    });
    assert!(gguf("gemma3n", |_| ()).unwrap_err().contains("gemma3n.attention.sliding_window"));
}

#[test]
fn missing_tensors_of_new_parts_are_named() {
    for (file, tensor) in [
        ("arch-gemma3n.gguf", "per_layer_token_embd.weight"),
        ("arch-gemma3n.gguf", "altup_unembd_proj.weight"),
        ("arch-gemma3n.gguf", "blk.7.laurel_r.weight"),
        ("arch-gemma3n.gguf", "blk.21.altup_predict_coef.weight"),
        ("arch-gemma4-shared.gguf", "per_layer_proj_norm.weight"),
        ("arch-gemma4-shared.gguf", "blk.7.inp_gate.weight"),
        ("arch-gemma4-shared.gguf", "blk.4.attn_k.weight"),
        ("arch-gemma4-experts.gguf", "blk.1.ffn_gate_inp.scale"),
        ("arch-gemma4-experts.gguf", "blk.1.pre_ffw_norm_2.weight"),
    ] {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(&kvik_testing::golden(file)).unwrap();
        let mut writer = GgufWriter::new();
        for name in tensors.names().filter(|name| *name != tensor) {
            let view = tensors.get(name).unwrap();
            writer.tensor(name, view.ty, &[view.rows, view.cols], view.data);
        }
        let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
        let tensors = TensorSource::from_gguf(file);
        let pool = kvik_kernels::Pool::new(1);
        let error = crate::Model::load(config, tensors, None, &pool, &|_, _| {}).err().unwrap();
        assert!(error.to_string().contains(tensor), "{error}");
    }
}
