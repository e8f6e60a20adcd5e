//! Recurrent layers and their shapes, as read from files; and which settings are refused.

use kvik_text::files::gguf::write::GgufWriter;

use super::*;
use crate::Recurrence;

/// A value of a key.
#[derive(Clone, Copy)]
enum Value {
    Count(u32),
    Counts(&'static [i32]),
    Number(f32),
    Absent,
}
use Value::{Absent, Count, Counts, Number};

/// The settings of a file, without the prefix of the architecture; of equal keys the last counts.
type Settings = [(&'static str, Value)];

const BASE: [(&str, Value); 10] = [
    ("block_count", Count(4)),
    ("embedding_length", Count(64)),
    ("feed_forward_length", Count(96)),
    ("attention.head_count", Count(4)),
    ("attention.head_count_kv", Count(2)),
    ("context_length", Count(128)),
    ("shortconv.l_cache", Count(3)),
    ("rope.dimension_count", Count(16)),
    (EPSILON, Number(1e-5)),
    ("logit_scale", Number(1.0)),
];

const EPSILON: &str = "attention.layer_norm_rms_epsilon";

const MATRICES: [(&str, Value); 5] = [
    ("ssm.conv_kernel", Count(4)),
    ("ssm.inner_size", Count(80)),
    ("ssm.state_size", Count(20)),
    ("ssm.time_step_rank", Count(4)),
    ("ssm.group_count", Count(2)),
];

fn read(arch: &str, settings: &Settings) -> Result<ModelConfig, String> {
    let mut writer = GgufWriter::new();
    writer.text("general.architecture", arch).texts("tokenizer.ggml.tokens", &["a", "b"]);
    let all: Vec<_> = BASE.iter().chain(&MATRICES).chain(settings).collect();
    for (index, (key, value)) in all.iter().enumerate() {
        let name = format!("{arch}.{key}");
        match value {
            _ if all[index + 1..].iter().any(|(later, _)| later == key) => {}
            Count(value) => drop(writer.u32(&name, *value)),
            Counts(values) => drop(writer.i32s(&name, values)),
            Number(value) => drop(writer.f32(&name, *value)),
            Absent => {}
        }
    }
    let file = Gguf::from_bytes(FileBytes::Owned(writer.to_bytes())).unwrap();
    model_config(&file).map_err(|error| error.to_string())
}

fn recurrence(arch: &str, settings: &Settings) -> Recurrence {
    read(arch, settings).unwrap().extras.recurrence.unwrap()
}

const KV_HEADS: (&str, Value) = ("attention.head_count_kv", Counts(&[0, 2, 0, 2]));

#[test]
fn layers_without_kv_heads_keep_a_state() {
    for arch in ["lfm2", "lfm2moe", "granitehybrid", "nemotron_h"] {
        let config = read(arch, &[KV_HEADS]).unwrap();
        let recurrence = config.extras.recurrence.clone().unwrap();
        assert_eq!(recurrence.layers, [true, false, true, false], "{arch}");
        assert_eq!((config.kv_heads, config.kv_layers().collect::<Vec<_>>()), (2, vec![1, 3]), "{arch}");
    }
    assert_eq!(recurrence("lfm2", &[]).layers, [false; 4]);
    let alone = ("feed_forward_length", Counts(&[0, 0, 96, 0]));
    let halves = recurrence("nemotron_h", &[KV_HEADS, alone]);
    assert_eq!(
        (halves.layers, halves.feed_forward_alone),
        (vec![true, false, false, false], vec![false, false, true, false])
    );
}

#[test]
fn listed_layers_keep_a_state_or_all_but_every_so_many() {
    for arch in ["qwen35", "qwen35moe", "qwen3next"] {
        assert_eq!(recurrence(arch, &[]).layers, [true, true, true, false], "{arch}");
        let every_second = ("full_attention_interval", Count(2));
        assert_eq!(recurrence(arch, &[every_second]).layers, [true, false, true, false], "{arch}");
        let listed = ("attention.recurrent_layers", Counts(&[0, 1, 1, 0, 0]));
        assert_eq!(recurrence(arch, &[listed, every_second]).layers, [false, true, true, false], "{arch}");
    }
}

#[test]
fn numbers_that_make_no_state_are_refused_by_their_key() {
    let refused = |arch: &str, (key, value): (&'static str, Value)| {
        let error = read(arch, &[kv_heads_of(arch), (key, value)]).unwrap_err();
        assert!(error.contains(&format!("{arch}.{key}")), "{arch} {key}: {error}");
    };
    for value in [Absent, Count(0), Count(9), Count(u32::MAX)] {
        refused("lfm2", ("shortconv.l_cache", value));
    }
    for arch in ["qwen35", "qwen3next", "granitehybrid", "nemotron_h"] {
        for (key, value) in [
            ("ssm.conv_kernel", Count(0)),
            ("ssm.conv_kernel", Count(9)),
            ("ssm.conv_kernel", Absent),
            ("ssm.inner_size", Count(0)),
            ("ssm.inner_size", Count(u32::MAX)),
            ("ssm.state_size", Count(0)),
            ("ssm.state_size", Count(u32::MAX)),
            ("ssm.state_size", Absent),
            ("ssm.time_step_rank", Count(0)),
            ("ssm.time_step_rank", Count(3)),
            ("ssm.group_count", Count(0)),
            ("ssm.group_count", Count(3)),
        ] {
            refused(arch, (key, value));
        }
    }
    // Keys as long as values.
    refused("qwen35", ("ssm.inner_size", Count(160)));
    refused("qwen35", ("full_attention_interval", Count(0)));
    refused("qwen35", ("attention.recurrent_layers", Counts(&[1, 1, 0])));
    refused("lfm2", ("attention.head_count_kv", Counts(&[0, 2, 0])));
    refused("lfm2", ("attention.head_count_kv", Counts(&[0, 2, 0, 4])));
    refused("lfm2", ("attention.head_count_kv", Counts(&[0; 4])));
    refused("qwen35", ("attention.recurrent_layers", Counts(&[1; 4])));
    refused("nemotron_h", ("feed_forward_length", Counts(&[0, 96, 0, 96])));
}

/// The KV heads in a file of the architecture.
fn kv_heads_of(arch: &str) -> (&'static str, Value) {
    if arch.starts_with("qwen") { BASE[4] } else { KV_HEADS }
}

/// A pair beyond the sections of images would not rotate in llama.cpp.
#[test]
fn sections_of_rotation_are_those_of_all_pairs() {
    let sections = |sections| read("qwen35", &[("rope.dimension_sections", Counts(sections))]);
    assert!(sections(&[3, 3, 2, 0]).is_ok());
    assert!(sections(&[11, 11, 10, 0]).is_ok());
    for wrong in [&[8, 0, 0, 0], &[3, 2, 2, 1], &[0; 4]] {
        let error = sections(wrong).unwrap_err();
        assert!(error.contains("qwen35.rope.dimension_sections"), "{error}");
    }
}

#[test]
fn nemotron_h_may_name_its_epsilon_otherwise() {
    let other = ("attention.layer_norm_epsilon", Number(0.25));
    let epsilon = |arch| read(arch, &[KV_HEADS, (EPSILON, Absent), other]).map(|config| config.norm_eps);
    assert_eq!((epsilon("nemotron_h"), epsilon("nemotron_h_moe")), (Ok(0.25), Ok(0.25)));
    assert!(epsilon("lfm2").unwrap_err().contains(EPSILON));
}
