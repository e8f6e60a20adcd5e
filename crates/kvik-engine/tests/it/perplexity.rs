//! Compares perplexity with llama.cpp's, and between KV formats.
//!
//! The peer's figures were printed by llama-perplexity of llama.cpp on the CPU with keys and values in
//! f16 and `-fa off`; each test names its `TEXT`:
//!
//! ```text
//! llama-perplexity -m MODEL -f TEXT -c WINDOW --chunks WINDOWS -ctk f16 -ctv f16 -fa off -t 2
//! ```

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kvik_engine::engine::perplexity::{Perplexity, Windows};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_testing::{outside_data, tiny_file, tiny_model};

/// Largest relative difference of two perplexities that count as equal.
const DIFFERENCE_MAX: f64 = 1e-3;

/// A model and the text it is scored on.
struct Case {
    model: PathBuf,
    text: PathBuf,
    window_tokens: usize,
    windows_max: usize,
}

impl Case {
    /// The embedded model and its held-out text: models/tiny/kvik-tiny-q8_0.gguf on all of eval-text.txt.
    fn tiny() -> Case {
        Case {
            model: tiny_model(),
            text: tiny_file("eval-text.txt"),
            window_tokens: 512,
            windows_max: usize::MAX,
        }
    }

    /// A model whose windows begin with a begin-of-text token: stories260K on WikiText-2.
    fn stories() -> Option<Case> {
        let data = outside_data()?;
        let (model, text) = (data.join("stories260K.gguf"), data.join("wikitext-2-raw.test.txt"));
        Some(Case { model, text, window_tokens: 256, windows_max: 100 })
    }

    fn perplexity(&self, kv: KvFormat) -> Perplexity {
        let pool = Pool::new(2);
        let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(&self.model).unwrap();
        let text = fs::read_to_string(&self.text).unwrap();
        let windows = Windows::new(&tokenizer, &text, self.window_tokens, self.windows_max).unwrap();
        let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap());
        let layout = ModelRunner::uniform_layout(model.config(), kv);
        let mut runner = ModelRunner::new(model, pool, layout, windows.blocks(), self.window_tokens).unwrap();
        windows.score(&mut runner, &mut |_| {})
    }
}

fn assert_equal(what: &str, value: f64, expect: f64) {
    let difference = value / expect - 1.0;
    assert!(difference.abs() < DIFFERENCE_MAX, "{what}: {value:.4}, not {expect:.4} ({difference:+.2e})");
}

#[test]
fn kvik_tiny_has_the_perplexity_of_llama_cpp() {
    let perplexity = Case::tiny().perplexity(KvFormat::F16);
    assert_eq!((perplexity.windows, perplexity.tokens), (17, 4335));
    assert_equal("perplexity", perplexity.value(), 5.7947);
    assert!((perplexity.error() / 0.30157 - 1.0).abs() < 0.01, "standard error {}", perplexity.error());
}

#[test]
fn eight_bit_keys_and_values_keep_the_perplexity_of_kvik_tiny() {
    let case = Case::tiny();
    let expect = case.perplexity(KvFormat::F32).value();
    assert_equal("q8 against f32", case.perplexity(KvFormat::Q8).value(), expect);
}

#[test]
fn stories_has_the_perplexity_of_llama_cpp() {
    let Some(case) = Case::stories() else { return };
    let perplexity = case.perplexity(KvFormat::F16);
    assert_eq!((perplexity.windows, perplexity.tokens), (100, 12_700));
    assert_equal("perplexity", perplexity.value(), 164.2802);
    assert!((perplexity.error() / 6.10826 - 1.0).abs() < 0.01, "standard error {}", perplexity.error());
}

#[test]
fn eight_bit_keys_and_values_keep_the_perplexity_of_stories() {
    // Over a hundred windows the two differ by chance as much as by rounding.
    let Some(stories) = Case::stories() else { return };
    let case = Case { windows_max: kvik_testing::effort(600, usize::MAX), ..stories };
    let expect = case.perplexity(KvFormat::F32).value();
    assert_equal("q8 against f32", case.perplexity(KvFormat::Q8).value(), expect);
}
