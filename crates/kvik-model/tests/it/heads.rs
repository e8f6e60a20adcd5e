//! Prediction heads: they say what a reference of its own says, the same in any history, and a file whose head cannot be
//! used computes without one.

use std::sync::Arc;

use kvik_model::batch::{Batch, Followed, Output, Row, Runner, SequenceKv, SequenceState, WantedTokens};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_text::files::bytes::FileBytes;
use serde_json::Value;

use crate::edited::Edited;
use kvik_cache::{BlockId, SeqId, StateId, Token};
use kvik_kernels::{KvFormat, Pool};
use kvik_testing::golden;

const FILES: [&str; 4] = ["head-deepseek2", "head-glm4moe", "head-qwen35", "head-qwen3next"];
/// Largest difference of a logit: the reference computes in double precision, and is at most 1.2e-4 away.
const ERROR_MAX: f32 = 5e-4;

/// A model with one sequence, and the tokens that it has.
pub(crate) struct Told {
    runner: ModelRunner,
    id: SeqId,
    blocks: Vec<BlockId>,
    state: StateId,
    tokens: Vec<Token>,
}

fn load(name: &str) -> LoadedModel {
    LoadedModel::open(&golden(&format!("{name}.gguf"))).unwrap()
}

pub(crate) fn told(loaded: LoadedModel, threads: usize) -> Told {
    let pool = Arc::new(Pool::new(threads));
    let layout = ModelRunner::uniform_layout(&loaded.config, KvFormat::F32);
    let model = Model::load(loaded.config, loaded.tensors, None, &pool, &|_, _| {}).unwrap();
    let runner = ModelRunner::new(Arc::new(model), pool, layout, 40, 600).unwrap().with_states(4).unwrap();
    Told {
        runner,
        id: SeqId(1),
        blocks: (0..10).map(BlockId).collect(),
        state: StateId(0),
        tokens: Vec::new(),
    }
}

impl Told {
    /// Another sequence in the place of the one before.
    fn restart(&mut self, id: u64) {
        (self.id, self.tokens) = (SeqId(id), Vec::new());
        self.runner.set_state(self.state, None);
    }

    /// Computes tokens, of which the last `tried` are drafts; returns the logits of the last one.
    pub(crate) fn feed(&mut self, tokens: &[Token], tried: usize) -> Vec<f32> {
        let first = self.tokens.len();
        let certain = first + tokens.len() - tried;
        let rows: Vec<Row> = (first as u32..)
            .zip(tokens)
            .map(|(position, &token)| Row {
                sequence: 0,
                token,
                position,
                cache_position: position,
                output: Output::logits_if(position as usize + 1 == first + tokens.len()),
            })
            .collect();
        let tentative = (tried > 0).then_some(certain as u32);
        let sequence = SequenceKv {
            state: Some(SequenceState { live: self.state, saves: &[], tentative }),
            followed: Some(Followed { id: self.id, from: 0 }),
            ..SequenceKv::in_blocks(&self.blocks)
        };
        let logits = self.runner.forward(&Batch { rows: &rows, sequences: &[sequence] }, &mut []).to_vec();
        self.runner.settle_state(self.state, certain as u32);
        self.tokens.extend(&tokens[..tokens.len() - tried]);
        logits
    }

    /// The tokens that the head guesses after `next`, and its logits of the last of them.
    pub(crate) fn guess(&mut self, next: Token, most: usize) -> (Vec<Token>, Vec<f32>) {
        let tokens = [&self.tokens[..], &[next]].concat();
        let wanted = [WantedTokens { id: self.id, tokens: &tokens, most }];
        let guessed = self.runner.head().unwrap().predict(&wanted).remove(0);
        (guessed, self.runner.predicted_logits().to_vec())
    }
}

fn reference(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(&format!("{name}.json"))).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn heads_say_what_the_reference_says() {
    for name in FILES {
        let file = reference(name);
        let all: Vec<Token> = numbers(&file["tokens"]).into_iter().map(|token| token as Token).collect();
        let mut told = told(load(name), 2);
        let mut id = 0;
        for asked in file["asked"].as_array().unwrap() {
            let len = asked["len"].as_u64().unwrap() as usize;
            for (pass, expect) in (1..).zip(asked["passes"].as_array().unwrap()) {
                id += 1;
                told.restart(id);
                told.feed(&all[..len - 1], 0);
                let (guessed, logits) = told.guess(all[len - 1], pass);
                let expect = numbers(expect);
                let worst = kvik_testing::largest(logits.iter().zip(&expect).map(|(a, b)| (a - b).abs()));
                assert!(
                    guessed.len() == pass && logits.len() == expect.len() && worst < ERROR_MAX,
                    "{name}, {len} tokens, pass {pass}: {worst} off"
                );
                told.runner.head().unwrap().follow_only(&|_| false);
            }
        }
    }
}

/// Chunks of a prompt, drafts that were refused, other guesses before: the same bits as in one piece.
#[test]
fn what_a_head_says_does_not_depend_on_what_was_tried_before() {
    for name in FILES {
        let all: Vec<Token> = numbers(&reference(name)["tokens"]).into_iter().map(|x| x as Token).collect();
        let mut alone = told(load(name), 1);
        alone.feed(&all[..60], 0);
        let expect = alone.guess(all[60], 3);
        let mut other = told(load(name), 3);
        other.restart(7);
        other.feed(&all[..5], 0);
        other.feed(&all[5..31], 0);
        other.guess(all[31], 4);
        // Two drafts that turn out wrong, and one that turns out right but is computed again.
        other.feed(&[&all[31..32], &[3, 4]].concat(), 2);
        other.guess(all[32], 2);
        other.feed(&all[32..40], 3);
        other.feed(&all[37..60], 0);
        assert_eq!(other.guess(all[60], 3), expect, "{name}");
    }
}

/// The logits of a model do not depend on its head.
#[test]
fn a_head_changes_no_logit() {
    for name in FILES {
        let all: Vec<Token> = numbers(&reference(name)["tokens"]).into_iter().map(|x| x as Token).collect();
        let mut with = told(load(name), 2);
        let loaded = load(name);
        let mut without = told(LoadedModel { config: loaded.config.without_head(), ..loaded }, 2);
        let mut plain = told(load(&name.replace("head-", "arch-")), 2);
        assert!(
            with.runner.head().is_some() && without.runner.head().is_none() && plain.runner.head().is_none()
        );
        let expect = plain.feed(&all[..50], 0);
        assert!(with.feed(&all[..50], 0) == expect && without.feed(&all[..50], 0) == expect, "{name}");
        assert_eq!(
            with.runner.model().digest(),
            without.runner.model().digest(),
            "and so its caches are the same"
        );
    }
}

/// What is loaded of a file after `change`: whether it has a head.
fn has_head(name: &str, change: impl Fn(&mut Edited)) -> Result<bool, String> {
    let mut file = Edited::read(&golden(&format!("{name}.gguf")));
    change(&mut file);
    let loaded =
        LoadedModel::from_bytes(FileBytes::Owned(file.bytes())).map_err(|error| error.to_string())?;
    let model = Model::load(loaded.config, loaded.tensors, None, &Pool::new(1), &|_, _| {});
    model.map(|model| model.predicts()).map_err(|error| error.to_string())
}

#[test]
fn a_file_whose_head_cannot_be_used_computes_without_one() {
    for name in ["head-glm4moe", "head-qwen35"] {
        assert_eq!(has_head(name, |_| {}), Ok(true), "{name}");
        let file = Edited::read(&golden(&format!("{name}.gguf")));
        let layers = load(name).config.layers;
        let of_head = |tensor: &str| tensor.starts_with(&format!("blk.{layers}."));
        let optional = ["shared_head_norm.weight", "embed_tokens.weight", "shared_head_head.weight"];
        // What trunks of these families may lack, heads may lack, too.
        let may_lack = ["_norm.weight", ".bias"];
        let mut left_out = 0;
        for tensor in file.tensors.iter().map(|tensor| &tensor.name).filter(|tensor| of_head(tensor)) {
            let missing = has_head(name, |file| file.tensors.retain(|other| other.name != *tensor)).unwrap();
            let is_optional = optional.iter().any(|part| tensor.ends_with(part));
            let may = is_optional || may_lack.iter().any(|part| tensor.ends_with(part));
            assert!(missing == is_optional || may, "{name} without {tensor}");
            left_out += usize::from(!missing);
            let odd = has_head(name, |file| {
                let tensor = file.tensors.iter_mut().find(|other| other.name == *tensor).unwrap();
                tensor.dims[0] *= 2;
                tensor.data.extend(tensor.data.clone());
            });
            assert_eq!(odd, Ok(false), "{name} with a larger {tensor}");
        }
        assert!(left_out >= 8, "{name}: {left_out}");
        assert_eq!(has_head(name, |file| file.tensors.retain(|tensor| !of_head(&tensor.name))), Ok(false));
    }
}
