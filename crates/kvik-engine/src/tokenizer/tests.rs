use std::path::PathBuf;

use super::*;
use crate::bytes::FileBytes;
use crate::gguf::Gguf;

fn data() -> Option<PathBuf> {
    let dir = std::env::var_os("KVIK_DATA").map(PathBuf::from);
    if dir.is_none() {
        println!("skipped: KVIK_DATA is not set");
    }
    dir
}

fn tiny() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/kvik-tiny-q8_0.gguf");
    Tokenizer::from_gguf(&Gguf::open(path.as_ref()).unwrap()).unwrap()
}

type Case = (String, Vec<Token>);

/// Cases and their ids, as llama.cpp publishes them.
fn vectors(name: &str) -> Option<(Tokenizer, Vec<Case>)> {
    let base = data()?.join("tokenizers");
    let file = Gguf::open(&base.join(format!("ggml-vocab-{name}.gguf"))).unwrap();
    let read = |ext| std::fs::read_to_string(base.join(format!("ggml-vocab-{name}.gguf.{ext}"))).unwrap();
    let (inputs, outputs) = (read("inp"), read("out"));
    let inputs = inputs.split("\n__ggml_vocab_test__\n");
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let cases: Vec<_> = inputs.map(str::to_owned).zip(outputs.lines().map(ids)).collect();
    assert_eq!(cases.len(), outputs.lines().count());
    Some((Tokenizer::from_gguf(&file).unwrap(), cases))
}

fn check_vectors(name: &str) {
    let Some((tokenizer, cases)) = vectors(name) else { return };
    assert!(cases.len() > 40);
    for (text, ids) in &cases {
        assert_eq!(&tokenizer.encode(text, false, false), ids, "{name}: {text:?}");
    }
}

#[test]
fn qwen2_vectors() {
    check_vectors("qwen2");
}

#[test]
fn gpt2_vectors() {
    check_vectors("gpt-2");
}

#[test]
fn llama_spm_vectors() {
    check_vectors("llama-spm");
}

#[test]
fn special_tokens_are_parsed_on_request() {
    let tokenizer = tiny();
    let end = tokenizer.token_of("<|im_end|>").unwrap();
    let text = "hello<|im_end|>\n";
    assert!(tokenizer.encode(text, false, true).contains(&end));
    assert!(!tokenizer.encode(text, false, false).contains(&end));
    assert_eq!(tokenizer.decode(&tokenizer.encode(text, true, false)), text);
    assert!(tokenizer.is_eog(end) && tokenizer.is_control(end));
    let think = tokenizer.token_of("<think>").unwrap();
    assert_eq!(tokenizer.encode("<think>", false, false), [think]);
    assert!(!tokenizer.is_control(think));
    assert_eq!((tokenizer.vocab_len(), tokenizer.add_bos()), (4096, false));
}

#[test]
fn ids_outside_the_vocabulary_are_empty() {
    assert_eq!(tiny().token_bytes(4096), b"");
    assert_eq!(tiny().token_bytes(u32::MAX), b"");
    assert_eq!(tiny().decode(&[5000]), "");
}

#[test]
fn nothing_is_not_a_vocabulary() {
    let file = Gguf::from_bytes(FileBytes::Owned(crate::gguf::write::Writer::new().to_bytes())).unwrap();
    assert!(matches!(Tokenizer::from_gguf(&file), Err(TokenizerError::Gguf(_))));
}
