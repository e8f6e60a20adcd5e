//! The fuzz targets: every reader of untrusted bytes. A target must return for any input.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use kvik_engine::files::TensorSource;
use kvik_engine::files::bytes::FileBytes;
use kvik_engine::files::gguf::Gguf;
use kvik_engine::load::{LoadedModel, config_from_json};
use kvik_engine::text::answer::{AnswerDelta, AnswerParser, AnswerStart, Offer, ToolForm};
use kvik_engine::text::template::{ChatTemplate, RenderInput};
use kvik_engine::text::tokenizer::{Tokenizer, TokenizerHints};

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

/// A GGUF file: its header, every value, the model's shape, and encoding with its tokenizer.
pub(crate) fn gguf(data: &[u8]) {
    let Ok(file) = Gguf::from_bytes(FileBytes::Owned(data.to_vec())) else { return };
    for key in file.keys() {
        let _ = file.describe(key);
        let _ = (file.text(key), file.integer(key), file.number(key), file.boolean(key));
        let _ = (file.strings(key), file.floats(key), file.integers(key));
    }
    for info in file.tensors() {
        assert_eq!(Some(file.data(info).len()), info.ty.row_bytes(info.cols).map(|row| row * info.rows));
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&file) {
        use_tokenizer(&tokenizer);
    }
    if let Ok(model) = LoadedModel::from_bytes(FileBytes::Owned(data.to_vec())) {
        assert!(model.tokenizer.vocab_len() <= model.config.vocab);
        let _ = model.template(None);
    }
}

/// One safetensors file.
pub(crate) fn safetensors(data: &[u8]) {
    let Ok(source) = TensorSource::from_safetensors(data.to_vec()) else { return };
    for name in source.names() {
        let view = source.get(name).expect("the name is the source's own");
        assert_eq!(Some(view.data.len()), view.ty.row_bytes(view.cols).map(|row| row * view.rows));
    }
}

/// A config.json.
pub(crate) fn config(data: &[u8]) {
    let _ = config_from_json(data, "fuzzed");
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
