//! The fuzz targets: every reader of untrusted bytes. A target must return for any input.

use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use kvik_cache::{BLOCK_POSITIONS, BlockId, StateId, Token};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, SequenceState};
use kvik_model::load::{LoadedModel, config_from_json, model_config};
use kvik_model::{Model, ModelRunner};
use kvik_text::answer::{AnswerDelta, AnswerParser, AnswerStart, Offer, ToolForm};
use kvik_text::files::TensorSource;
use kvik_text::files::bytes::FileBytes;
use kvik_text::files::gguf::{Gguf, GgufError};
use kvik_text::template::{ChatTemplate, RenderInput};
use kvik_text::tokenizer::{Tokenizer, TokenizerHints};

/// Reads untrusted bytes.
pub(crate) type Target = fn(&[u8]);

/// Targets by name; their corpora have the same names.
pub(crate) const TARGETS: [(&str, Target); 6] = [
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("config", config),
    ("tokenizer", tokenizer),
    ("template", template),
    ("answer", answer),
];

const TEXT: &str =
    "Hello  wörld\n\n<|im_start|>user\n12345 don't 🦙 ▁ <s></s> \u{0}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A GGUF file: its header, every value, the model's shape, encoding with its tokenizer, and a step of the model.
///
/// Where the file ends before its tensors do, they hold [`weights`] instead: so a header alone is a whole model.
pub(crate) fn gguf(data: &[u8]) {
    let Some(file) = whole_file(data) else { return };
    for key in file.keys() {
        let _ = file.describe(key);
        let _ = (file.text(key), file.integer(key), file.number(key), file.boolean(key));
        let _ = (file.strings(key), file.floats(key), file.integers(key), file.flags(key));
    }
    for info in file.tensors() {
        assert_eq!(Some(file.data(info).len()), info.ty.row_bytes(info.cols).map(|row| row * info.rows));
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
        use_tokenizer(&tokenizer);
    }
    if model_config(&file).is_ok()
        && let Ok(model) = LoadedModel::from_bytes(FileBytes::Owned(file.bytes().to_vec()))
    {
        assert!(model.tokenizer.vocab_len() <= model.config.vocab);
        let _ = model.template(None);
        compute(model);
    }
}

/// The file, with made-up numbers where it ends before its tensors do.
fn whole_file(data: &[u8]) -> Option<Gguf> {
    let mut file = Gguf::from_bytes(FileBytes::Owned(data.to_vec()));
    // Few models need many.
    for bytes in [WEIGHTS_BYTES / 16, WEIGHTS_BYTES] {
        if matches!(file, Err(GgufError::OutOfFile { .. })) {
            file = Gguf::from_bytes(FileBytes::Owned([data, &weights()[..bytes]].concat()));
        }
    }
    file.ok()
}

/// Computes a prompt and a token behind it, if the tensors are those of the model's shape.
fn compute(model: LoadedModel) {
    const POSITIONS: usize = 20;
    let pool = Pool::new(1);
    let vocab = model.config.vocab as Token;
    let Ok(model) = Model::load(model.config, model.tensors, None, &pool, &|_, _| {}) else { return };
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::Q8);
    let blocks = POSITIONS.div_ceil(BLOCK_POSITIONS);
    let runner = ModelRunner::new(Arc::new(model), pool, layout, blocks, POSITIONS);
    // A state may be larger than the memory that the system has; the scheduler counts it before.
    let Ok(mut runner) = runner.and_then(|runner| runner.with_states(1)) else { return };
    let row = |position: usize| Row {
        sequence: 0,
        token: position as Token % vocab,
        position: position as u32,
        cache_position: position as u32,
        output: Output::logits_if(position + 2 >= POSITIONS),
    };
    let rows: Vec<Row> = (0..POSITIONS).map(row).collect();
    let table: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
    runner.set_state(StateId(0), None);
    let state = Some(SequenceState { live: StateId(0), saves: &[], tentative: None });
    let sequences = [SequenceKv { state, ..SequenceKv::in_blocks(&table) }];
    for rows in [&rows[..POSITIONS - 1], &rows[POSITIONS - 1..]] {
        let logits = runner.forward(&Batch { rows, sequences: &sequences }, &mut []);
        assert_eq!(logits.len(), vocab as usize);
    }
}

/// Enough for every small model in the tests.
const WEIGHTS_BYTES: usize = 4 << 20;

/// Numbers of ordinary size, and here and there one that is none.
fn weights() -> &'static [u8] {
    static WEIGHTS: OnceLock<Vec<u8>> = OnceLock::new();
    WEIGHTS.get_or_init(|| {
        let number = |index: u32| match index % 100_003 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            _ => (index.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 24) as f32 - 0.5,
        };
        (1..=WEIGHTS_BYTES as u32 / 4).flat_map(|index| number(index).to_le_bytes()).collect()
    })
}

/// One safetensors file.
pub(crate) fn safetensors(data: &[u8]) {
    let Ok(source) = TensorSource::from_safetensors(data.to_vec()) else { return };
    for name in source.names() {
        let view = source.get(name).expect("the name is the source's own");
        assert_eq!(Some(view.data.len()), view.ty.row_bytes(view.cols).map(|row| row * view.rows));
    }
}

/// A config.json: the model's shape, and what a block and a state of it take.
pub(crate) fn config(data: &[u8]) {
    let Ok(config) = config_from_json(data, "fuzzed") else { return };
    let layout = ModelRunner::uniform_layout(&config, KvFormat::F16);
    let _ = ModelRunner::auxiliary(&config, &layout, 512);
}

/// A tokenizer.json, and encoding with it.
pub(crate) fn tokenizer(data: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(data, &TokenizerHints::default()) {
        use_tokenizer(&tokenizer);
    }
}

fn use_tokenizer(tokenizer: &Tokenizer) {
    for parse_special in [false, true] {
        let tokens = tokenizer.encode(TEXT, true, parse_special);
        assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_len()));
        let _ = tokenizer.decode(&tokens);
    }
    for token in [0, 1, tokenizer.vocab_len() as u32, u32::MAX] {
        let _ = (tokenizer.token_bytes(token), tokenizer.is_eog(token), tokenizer.is_control(token));
    }
}

/// A chat template, rendered.
pub(crate) fn template(data: &[u8]) {
    let Ok(template) = ChatTemplate::new(&String::from_utf8_lossy(data), "<s>", "</s>") else { return };
    let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
    let _ = template.tool_form();
    let _ = template.render(&RenderInput {
        messages: serde_json::json!([
            message("system", "a"),
            message("user", "b"),
            message("assistant", "c")
        ]),
        tools: Some(serde_json::json!([{"type": "function", "function": {"name": "f"}}])),
        add_generation_prompt: true,
        enable_thinking: Some(false),
        kwargs: serde_json::Map::new(),
        now: UNIX_EPOCH,
    });
}

/// An answer, whole and character by character.
pub(crate) fn answer(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut buffer = [0; 4];
    for (thinking, tools) in [(false, false), (false, true), (true, true)] {
        let whole = parse(thinking, tools, &mut |parser| parser.push(&text));
        let mut by_char = |parser: &mut AnswerParser| {
            text.chars().flat_map(|c| parser.push(c.encode_utf8(&mut buffer))).collect()
        };
        assert_eq!(whole, parse(thinking, tools, &mut by_char));
    }
}

/// The answer's reasoning, content and calls, each joined.
fn parse(
    thinking: bool,
    tools: bool,
    push: &mut dyn FnMut(&mut AnswerParser) -> Vec<AnswerDelta>,
) -> [String; 3] {
    let offer = Offer { form: ToolForm::tagged(), tools: Vec::new(), calls_max: usize::MAX, certain: false };
    let mut parser = AnswerParser::new(AnswerStart::usual(thinking), tools.then(|| Arc::new(offer)), "");
    let mut deltas = push(&mut parser);
    deltas.extend(parser.finish());
    let mut joined: [String; 3] = Default::default();
    for delta in deltas {
        match delta {
            AnswerDelta::Reasoning(text) => joined[0].push_str(&text),
            AnswerDelta::Content(text) => joined[1].push_str(&text),
            AnswerDelta::Arguments { text, .. } => joined[2].push_str(&text),
            AnswerDelta::ToolCall { name, arguments, .. } => joined[2].push_str(&(name + &arguments)),
        }
    }
    joined
}
