use super::*;
use clap::Parser;
use kvik_kernels::{KvFormats, KvLayer};
use kvik_model::{Arch, Extras, ModelConfig, RopeConfig, RopeScaling, RopeStyle};

/// A model with these layers, heads, KV heads and head dimension.
fn config(layers: usize, heads: usize, kv_heads: usize, head_dim: usize) -> ModelConfig {
    ModelConfig {
        arch: Arch::Llama,
        name: "shape".to_owned(),
        layers,
        d_model: heads * head_dim,
        d_ff: 4 * heads * head_dim,
        heads,
        kv_heads,
        head_dim,
        vocab: 32000,
        context: 4096,
        norm_eps: 1e-5,
        rope: RopeConfig {
            theta: 10_000.0,
            dims: head_dim,
            style: RopeStyle::Interleaved,
            scaling: RopeScaling::None,
        },
        extras: Extras::default(),
    }
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    plan: PlanArgs,
}

#[test]
fn weights_take_what_they_are_converted_to() {
    let bytes = |words: &[&str]| {
        let args = Line::try_parse_from([&["plan"], words].concat()).unwrap().plan;
        Plan::new(&args, &args.model.load().unwrap()).unwrap().weight_bytes
    };
    let (stored, converted) = (bytes(&[]), bytes(&["--weights", "f32"]));
    assert!((3 * stored..4 * stored).contains(&converted), "{stored} in q8_0, {converted} in f32");
}

/// The figures of published models: 2 x layers x kv_heads x tokens x head_dim x bytes.
#[test]
fn the_formula_holds_for_mha_gqa_and_mqa() {
    let cases = [
        (config(32, 32, 32, 128), 2048, KvFormat::F16, 1 << 30),
        (config(28, 16, 8, 128), 1, KvFormat::F32, 224 * 1024),
        (config(28, 16, 8, 128), 4096, KvFormat::F16, 448 << 20),
        (config(32, 32, 1, 128), 2048, KvFormat::F16, 32 << 20),
    ];
    for (config, tokens, format, expected) in cases {
        let layout = ModelRunner::uniform_layout(&config, format);
        let cost =
            FormatCost::new(&layout, ModelRunner::auxiliary(&config, &layout, STEP_ROWS), tokens, 1, 0, None);
        assert_eq!(cost.bytes_per_token * tokens as u64, expected);
    }
}

/// The plan of a golden model, by the flags without any.
fn plan_of(name: &str) -> (Plan, KvLayout) {
    let loaded = LoadedModel::open(&kvik_testing::golden(&format!("{name}.gguf"))).unwrap();
    let args = Line::try_parse_from(["plan"]).unwrap().plan;
    (Plan::new(&args, &loaded).unwrap(), ModelRunner::uniform_layout(&loaded.config, KvFormat::F16))
}

/// What a formula says for one token.
fn numbers_of_a_token(formula: &str) -> usize {
    let factor = |factor: &str| match factor {
        "tokens" => 1,
        _ => factor.split(' ').next().unwrap().parse::<usize>().unwrap(),
    };
    let terms = formula.trim_matches(['(', ')']).split(" + ");
    terms.map(|term| term.split(" x ").map(factor).product::<usize>()).sum()
}

/// Of every architecture: layers that keep a state, that read the keys and values of others, of several shapes, latent.
#[test]
fn the_formula_is_that_of_the_layers_that_store_keys_and_values() {
    let files = std::fs::read_dir(kvik_testing::golden("")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names
        .filter(|name| name.starts_with("arch-"))
        .filter_map(|name| name.strip_suffix(".gguf").map(str::to_owned))
        .collect();
    assert!(names.len() >= 55, "some of the golden files are gone: {names:?}");
    for name in names {
        let (plan, layout) = plan_of(&name);
        let (formula, layers) = (plan.numbers(), layout.layers());
        let numbers = numbers_of_a_token(&formula);
        let block: usize = layers.iter().flat_map(KvLayer::part_numbers).sum();
        assert_eq!(numbers, block / kvik_cache::BLOCK_POSITIONS, "{name}: {formula}");
        let row = plan.kv_formats.iter().find(|cost| cost.kv == "f16").unwrap();
        let more = row.bytes_per_token - 2 * numbers as u64;
        // Layers with windows are in whole pages, of which a block of these small models fills little.
        let pages = if layout.windowed_part().is_empty() { 1 } else { 2048 };
        assert!(more < pages, "{name}: {formula}, and {} bytes a token", row.bytes_per_token);
        assert_eq!(plan.kv_layers.iter().map(|stored| stored.layers).sum::<usize>(), layers.len());
    }
}

#[test]
fn the_formula_has_a_term_for_each_shape() {
    let check = |name: &str, shapes: &str, sharing: &str, expect: &str| {
        let (plan, _) = plan_of(name);
        assert_eq!(plan.numbers(), expect, "{name}");
        let table = plan.table();
        assert!(table.contains(&format!(" heads, {shapes})\n{sharing}")), "{table}");
        assert!(table.contains(&format!("KV        {expect} x bytes per value\n")), "{table}");
    };
    let half = "grouped-query: 2 heads share";
    let whole = "2 x 2 layers x 2 KV heads x tokens x 16";
    let one_of_four = "2 x 1 of 4 layers x 2 KV heads x tokens x 16";
    check("arch-qwen3", "2 KV heads of 16", half, whole);
    check("arch-granitehybrid", "2 KV heads of 16", half, one_of_four);
    check("arch-lfm2", "2 KV heads of 16", half, one_of_four);
    let storing = "2 x 20 of 23 layers x 1 KV heads x tokens x 8";
    check("arch-gemma3n", "1 KV heads of 8", "multi-query", storing);
    let two = "(2 x 5 of 7 layers x 2 KV heads x tokens x 16 + 2 x 2 of 7 layers x 1 KV heads x tokens x 32)";
    check("arch-gemma4", "2 KV heads of 16, 1 KV heads of 32", "grouped-query: 2 or 4 heads share", two);
    check("arch-deepseek2-lite", "1 KV heads of 32", "latent", "3 layers x tokens x 32");
}

#[test]
fn json_says_how_many_layers_store_keys_and_values() {
    let json = serde_json::to_value(plan_of("arch-granitehybrid").0).unwrap();
    let stored = serde_json::json!([{"layers": 1, "kv_heads": 2, "key_dim": 16, "value_dim": 16}]);
    assert_eq!((&json["layers"], &json["kv_layers"]), (&serde_json::json!(4), &stored));
}

/// DeepSeek V2-Lite: 27 layers, 16 heads, one vector of 512 and 64 rotated dimensions.
#[test]
fn latent_attention_stores_one_vector_a_position() {
    let latent = LatentConfig { query_rank: 0, rank: 512, unrotated: 128, rotated: 64, value: 128 };
    let extras = Extras { latent: Some(latent), ..Extras::default() };
    let model = ModelConfig { arch: Arch::DeepSeek2, extras, ..config(27, 16, 16, 192) };
    let cost = |format| {
        let layout = ModelRunner::uniform_layout(&model, format);
        FormatCost::new(&layout, AuxiliaryState::default(), 1, 1, 0, None).bytes_per_token
    };
    assert_eq!(cost(KvFormat::F16), 27 * 576 * 2);
    assert_eq!(cost(KvFormat::Q8), 27 * (576 + 8));
    let formats = KvFormats { k: KvFormat::Q8, v: KvFormat::F32 };
    assert_eq!(ModelRunner::uniform_layout(&model, formats).format_name(), "q8", "keys hold the values");
}

#[test]
fn users_that_forget_are_more_and_one_of_them_is_at_its_prompt() {
    let layout = ModelRunner::uniform_layout(&config(2, 4, 2, 64), KvFormat::F16);
    let block = layout.block_bytes() as u64;
    let cost = |retain: &str, blocks| RetainedCost::new(retain.parse().unwrap(), &layout, 1600, Some(blocks));
    let quarter = cost("keydiff:0.25,every=16", 4 * 100);
    // 400 positions and 16 more; 1,600 and the 400 that are copied.
    assert_eq!((quarter.bytes_per_context, quarter.bytes_per_prompt), (26 * block, 125 * block));
    assert_eq!(quarter.users_that_fit, Some(1 + 275 / 26));
    assert_eq!(cost("keydiff:0.25,every=16", 124).users_that_fit, Some(0));
    let tokens = cost("keydiff:160,every=16", 100);
    assert_eq!(tokens.bytes_per_context, 11 * block);
    assert_eq!(tokens.bytes_per_prompt, 21 * block, "a long prompt is thinned on the way");
    let bytes = format!("keydiff:{}B,every=16", 160 * layout.token_bytes());
    assert_eq!(cost(&bytes, 100), tokens, "bytes are those of all layers and heads");
}

#[test]
fn what_fits_is_counted_in_whole_blocks_beside_the_weights() {
    let model = config(32, 32, 32, 128);
    let layout = ModelRunner::uniform_layout(&model, KvFormat::F16);
    let (held, gib, weights) = (ModelRunner::auxiliary(&model, &layout, STEP_ROWS), 1u64 << 30, 3u64 << 30);
    let cost = FormatCost::new(&layout, held, 2048, 2, weights, Some(weights + 5 * gib / 2));
    assert_eq!(cost.bytes_with_weights, weights + 2 * gib);
    assert_eq!((cost.users_that_fit, cost.tokens_that_fit), (Some(2), Some(5120)));
    let none = FormatCost::new(&layout, held, 2048, 2, weights, Some(gib));
    assert_eq!((none.users_that_fit, none.tokens_that_fit), (Some(0), Some(0)));
}

#[test]
fn what_no_machine_holds_does_not_fit() {
    let model = config(32, 32, 32, 128);
    let layout = ModelRunner::uniform_layout(&model, KvFormat::F16);
    let held = ModelRunner::auxiliary(&model, &layout, STEP_ROWS);
    for (context, users) in [(1 << 60, 1), (2048, usize::MAX), (u32::MAX as usize, u32::MAX as usize)] {
        let cost = FormatCost::new(&layout, held, context, users, 1, Some(64 << 30));
        assert_eq!(cost.bytes_with_weights, u64::MAX, "{users} users of {context} tokens");
        assert!(cost.row(Some(64 << 30)).contains("no: "), "{users} users of {context} tokens");
    }
}

#[test]
fn numbers_of_flags_have_bounds() {
    let read = |flag: &str, number: &str| Line::try_parse_from(["plan", flag, number]);
    for flag in ["--users", "--context"] {
        assert!(read(flag, "4294967295").is_ok(), "{flag}");
        for number in ["0", "4294967296", "18446744073709551615"] {
            assert!(read(flag, number).is_err(), "{flag} {number}");
        }
    }
}
