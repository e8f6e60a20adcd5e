//! Divergence, sensitivity and choice on the embedded model.

use std::path::Path;
use std::sync::Arc;

use kvik_engine::engine::perplexity::Windows;
use kvik_engine::eval::choice::{ChoiceError, choose};
use kvik_engine::eval::divergence::measure;
use kvik_engine::eval::sensitivity::Sensitivity;
use kvik_kernels::{KvFormat, Pool};
use kvik_model::load::LoadedModel;
use kvik_model::{KvMap, Model, ModelConfig, ModelRunner};
use kvik_testing::{golden, tiny_file, tiny_model};

const WINDOW_TOKENS: usize = 256;

/// The embedded model, and the first `windows` of its held-out stories.
fn open(windows: usize) -> (ModelRunner, Windows) {
    let text = std::fs::read_to_string(tiny_file("eval-text.txt")).unwrap();
    open_file(&tiny_model(), &text, (WINDOW_TOKENS, windows))
}

/// A model, and as many windows of a text as are wanted, of so many tokens.
fn open_file(path: &Path, text: &str, (tokens, windows): (usize, usize)) -> (ModelRunner, Windows) {
    let loaded = LoadedModel::open(path).unwrap();
    let windows = Windows::new(&loaded.tokenizer, text, tokens, windows).unwrap();
    let LoadedModel { config, tensors, .. } = loaded;
    let pool = Pool::new(2);
    let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap());
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    (ModelRunner::new(model, pool, layout, windows.blocks(), tokens).unwrap(), windows)
}

/// Bits a number that a map takes.
fn bits(config: &ModelConfig, map: &KvMap) -> f64 {
    ModelRunner::layout(config, map).unwrap().bits_per_number()
}

#[test]
fn coarser_formats_diverge_more_and_f32_not_at_all() {
    let (mut runner, windows) = open(2);
    let layouts = KvFormat::ALL.map(|format| ModelRunner::uniform_layout(runner.model().config(), format));
    let mut steps = 0;
    let found = measure(&mut runner, &windows, &layouts, &mut || steps += 1).unwrap();
    assert_eq!(steps, windows.count() * (1 + layouts.len()));
    let [f32, f16, bf16, q8, q6, q5, q4, q3] = std::array::from_fn(|i| found[i].mean());
    assert_eq!(f32, 0.0);
    assert!(0.0 < f16 && f16 < bf16 && f16 < q8, "{found:?}");
    assert!(q8 < q6 && q6 < q5 && q5 < q4 && q4 < q3, "{found:?}");
    assert!(found.iter().all(|divergence| divergence.positions() == 2 * WINDOW_TOKENS));
    let distances: Vec<usize> = found[1].by_distance().iter().map(|(distance, _)| *distance).collect();
    assert_eq!(distances, [1, 2, 4, 8, 16, 32, 64, 128, 256]);
}

#[test]
fn what_is_chosen_fits_and_loses_less_with_more_bits() {
    let (mut runner, windows) = open(1);
    let mut steps = 0;
    let sensitivity = Sensitivity::measure(&mut runner, &windows, &mut || steps += 1).unwrap();
    let config = runner.model().config().clone();
    assert_eq!(steps, windows.count() * Sensitivity::computations(&config));
    assert_eq!(sensitivity.positions, WINDOW_TOKENS);

    let mut before = f64::INFINITY;
    for asked in [3.125, 3.5, 4.5, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0] {
        let choice = choose(&config, &sensitivity, asked).unwrap();
        assert!(bits(&config, &choice.map) <= asked, "{asked}: {}", choice.map);
        assert!(choice.expected <= before, "{asked}: {}", choice.map);
        before = choice.expected;
    }
    assert_eq!(
        choose(&config, &sensitivity, 16.0).unwrap().map.layers(6).unwrap(),
        [KvFormat::F16.into(); 6]
    );
    assert_eq!(
        choose(&config, &sensitivity, 3.125).unwrap().map.layers(6).unwrap(),
        [KvFormat::Q3.into(); 6]
    );
    let too_few = ChoiceError::TooFewBits { asked: 3.0, coarsest: KvFormat::Q3, least: 3.125 };
    assert_eq!(choose(&config, &sensitivity, 3.0), Err(too_few));
    let other = ModelConfig { layers: 7, ..config };
    assert_eq!(choose(&other, &sensitivity, 5.0), Err(ChoiceError::OtherLayers { measured: 6, model: 7 }));
}

/// The last layers of Gemma 3n read what others store: formats were once measured and chosen for them, which panicked.
#[test]
fn layers_that_store_nothing_take_no_bits() {
    let text = "the quick brown fox jumps over the lazy dog ".repeat(3);
    let (mut runner, windows) = open_file(&golden("arch-gemma3n.gguf"), &text, (48, 1));
    let config = runner.model().config().clone();
    assert_eq!((config.layers, config.kv_layers().count()), (23, 20));
    let mut steps = 0;
    let sensitivity = Sensitivity::measure(&mut runner, &windows, &mut || steps += 1).unwrap();
    assert_eq!(steps, Sensitivity::computations(&config));
    for rows in [&sensitivity.keys, &sensitivity.values] {
        let measured: Vec<bool> = rows.iter().map(|row| row.iter().any(|&loss| loss > 0.0)).collect();
        assert_eq!((measured.len(), &measured[20..]), (23, &[false; 3][..]), "{rows:?}");
        assert!(measured[0], "{rows:?}");
    }
    for format in [KvFormat::Q3, KvFormat::Q4, KvFormat::F16] {
        let asked = bits(&config, &format.into());
        let choice = choose(&config, &sensitivity, asked).unwrap();
        assert!(bits(&config, &choice.map) <= asked, "{asked}: {}", choice.map);
    }
}
