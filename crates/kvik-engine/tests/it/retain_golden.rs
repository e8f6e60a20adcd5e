//! Compares what kvik keeps of a prompt with what NVIDIA's kvpress keeps of it: the files in `golden/retain/`, which
//! `bench/retain/kvpress_kept.py` writes.
//!
//! `RETAIN_GOLDEN` names another folder of such files; `--nocapture` shows the table.

use std::collections::{BTreeSet, HashSet};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kvik_cache::Token;
use kvik_cache::retain::{Decision, Keep, Retention};
use kvik_engine::retain::lab::Lab;
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_kernels::{KvFormat, Pool, WeightType};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_testing::repository;
use serde_json::Value;

/// The smallest share of the kept positions that are the same.
const AGREEMENT_MIN: f64 = 0.99;
/// The same of one prompt and one share removed, where one position of few heads counts.
const LOWEST_MIN: f64 = 0.98;
/// Presses and budgets that the golden files compare.
const PRESSES_MIN: usize = 27;

#[test]
fn the_positions_kept_are_those_that_kvpress_keeps() {
    let goldens = Golden::read_all();
    let mut presses = Press::read_all(&goldens);
    for golden in &goldens {
        let mut lab = golden.lab();
        let keeps = golden.removed.iter().map(|removed| Keep::Share((1.0 - removed) as f32));
        let of_press = |press: &Press| {
            let retention = press.retention;
            keeps.clone().map(move |keep| Retention { keep, ..retention })
        };
        let retentions: Vec<Retention> = presses.iter().flat_map(of_press).collect();
        lab.read(&golden.prompt, &retentions);
        for (press, retentions) in presses.iter_mut().zip(retentions.chunks(golden.removed.len())) {
            for (index, retention) in retentions.iter().enumerate() {
                let decision = lab.decide(retention, None);
                press.tally.add(&decision, &golden.kept(&press.name, index));
            }
        }
    }
    print(&goldens, &presses);
    for Press { name, text, tally, .. } in &presses {
        let share = tally.settled.share();
        assert!(share >= AGREEMENT_MIN, "`{text}` keeps {:.2}% of what {name} keeps", 100.0 * share);
        let lowest = tally.lowest.unwrap();
        assert!(
            lowest >= LOWEST_MIN,
            "`{text}` keeps {:.2}% of what {name} keeps of a prompt",
            100.0 * lowest
        );
    }
}

/// A press of kvpress, how it is written here, and how much both agree.
struct Press {
    name: String,
    text: String,
    retention: Retention,
    tally: Tally,
}

impl Press {
    /// Those of the golden files.
    fn read_all(goldens: &[Golden]) -> Vec<Press> {
        let text = fs::read_to_string(repository().join("bench/retain/presses.json")).unwrap();
        let written: Vec<(String, String)> = serde_json::from_str(&text).unwrap();
        let compared: BTreeSet<&str> =
            goldens.iter().flat_map(|golden| golden.presses.keys()).map(String::as_str).collect();
        let presses: Vec<Press> = written
            .into_iter()
            .filter(|(name, _)| compared.contains(&name[..]))
            .map(|(name, text)| Press {
                retention: text.parse().unwrap(),
                tally: Tally::default(),
                name,
                text,
            })
            .collect();
        let known: BTreeSet<&str> = presses.iter().map(|press| &press.name[..]).collect();
        assert_eq!(known, compared, "every press is written in presses.json");
        assert!(presses.len() >= PRESSES_MIN, "the golden files are whole");
        presses
    }
}

/// How much of what is kept is the same.
#[derive(Default)]
struct Tally {
    /// Of all positions.
    raw: Overlap,
    /// Of those whose score is not that of the border.
    settled: Overlap,
    /// The smallest share of [`Tally::settled`] in a prompt at one share removed.
    lowest: Option<f64>,
}

/// Positions that are kept, summed up.
#[derive(Default, Clone, Copy)]
struct Overlap {
    here: usize,
    there: usize,
    both: usize,
}

impl Tally {
    fn add(&mut self, decision: &Decision, kept: &[HeadKept]) {
        let heads: Vec<&Vec<u32>> = decision.kept.iter().flatten().collect();
        assert_eq!(heads.len(), kept.len(), "layers and KV heads are the same");
        let mut settled = Overlap::default();
        for (here, there) in heads.into_iter().zip(kept) {
            let here: HashSet<u32> = here.iter().copied().collect();
            self.raw.add(&here, &there.kept);
            settled.add(&(&here - &there.ties), &(&there.kept - &there.ties));
        }
        self.settled = self.settled + settled;
        self.lowest = Some(self.lowest.unwrap_or(1.0).min(settled.share()));
    }
}

impl Overlap {
    fn add(&mut self, here: &HashSet<u32>, there: &HashSet<u32>) {
        let both = here.intersection(there).count();
        *self = *self + Overlap { here: here.len(), there: there.len(), both };
    }

    /// Of the larger of the two.
    fn share(self) -> f64 {
        match self.here.max(self.there) {
            0 => 1.0,
            larger => self.both as f64 / larger as f64,
        }
    }
}

impl std::ops::Add for Overlap {
    type Output = Overlap;

    fn add(self, other: Overlap) -> Overlap {
        Overlap {
            here: self.here + other.here,
            there: self.there + other.there,
            both: self.both + other.both,
        }
    }
}

fn print(goldens: &[Golden], presses: &[Press]) {
    for golden in goldens {
        println!("{}: {} tokens", golden.case, golden.prompt.len());
    }
    println!("\n| kvpress | kvik | kept by kvpress | by kvik | the same | ties aside | lowest |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    let percent = |share: f64| format!("{:.2}%", 100.0 * share);
    for Press { name, text, tally, .. } in presses {
        let Overlap { here, there, .. } = tally.raw;
        let shares = [tally.raw.share(), tally.settled.share(), tally.lowest.unwrap_or(1.0)].map(percent);
        println!("| {name} | `{text}` | {there} | {here} | {} |", shares.join(" | "));
    }
}

/// What kvpress keeps of one prompt.
struct Golden {
    case: String,
    model: PathBuf,
    repeat: RepeatPrompt,
    /// Shares removed.
    removed: Vec<f64>,
    prompt: Vec<Token>,
    presses: serde_json::Map<String, Value>,
}

/// What is kept of one KV head.
struct HeadKept {
    kept: HashSet<u32>,
    /// Positions whose score is that of the border: which of them are kept is chance.
    ties: HashSet<u32>,
}

impl Golden {
    fn read_all() -> Vec<Golden> {
        let own = repository().join("crates/kvik-model/tests/golden/retain");
        let folder = env::var_os("RETAIN_GOLDEN").map_or(own, PathBuf::from);
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.iter().map(|path| Golden::parse(&fs::read_to_string(path).unwrap())).collect()
    }

    fn parse(text: &str) -> Golden {
        let mut file: Value = serde_json::from_str(text).unwrap();
        let (repeat, prompt) = (&file["repeat"], tokens(&file["prompt"]));
        let repeat = RepeatPrompt {
            prefix: prompt[..repeat["prefix"].as_u64().unwrap() as usize].to_vec(),
            ask: tokens(&repeat["ask"]),
            ask_more: Vec::new(), // only prompts of several pieces need it
            suffix: tokens(&repeat["suffix"]),
        };
        Golden {
            case: file["case"].as_str().unwrap().to_owned(),
            model: repository().join(file["model"].as_str().unwrap()),
            repeat,
            removed: file["removed"]
                .as_array()
                .unwrap()
                .iter()
                .map(|share| share.as_f64().unwrap())
                .collect(),
            prompt,
            presses: std::mem::take(file["presses"].as_object_mut().unwrap()),
        }
    }

    /// A laboratory in which nothing is rounded beyond f32: that is how kvpress computed.
    fn lab(&self) -> Lab {
        let loaded = LoadedModel::open(&self.model).unwrap();
        let ask = loaded.tokenizer.encode(RepeatPrompt::ASK, false, false);
        assert_eq!(ask, self.repeat.ask, "both ask in the same words");
        let pool = Pool::new(1);
        let layout = ModelRunner::uniform_layout(&loaded.config, KvFormat::F32);
        let model =
            Model::load(loaded.config, loaded.tensors, Some(WeightType::F32), &pool, &|_, _| {}).unwrap();
        Lab::new(Arc::new(model), pool, layout, self.repeat.clone(), (self.prompt.len(), 0)).unwrap()
    }

    /// What a press keeps when it removes the share of that index, layer by layer and head by head.
    fn kept(&self, name: &str, index: usize) -> Vec<HeadKept> {
        let press = &self.presses[name];
        let ties = &press["ties"][index];
        let heads = press["kept"].as_array().unwrap().iter().enumerate();
        let head = |(head, digits): (usize, &Value)| HeadKept {
            kept: kept(digits.as_str().unwrap(), index),
            ties: runs(&ties[head.to_string()]),
        };
        heads.map(head).collect()
    }
}

/// The positions whose hexadecimal digit has that bit.
fn kept(digits: &str, bit: usize) -> HashSet<u32> {
    let digits = digits.chars().zip(0..);
    digits.filter(|(digit, _)| digit.to_digit(16).unwrap() >> bit & 1 == 1).map(|(_, at)| at).collect()
}

/// The numbers of ascending runs, each a start and an end; null is none.
fn runs(value: &Value) -> HashSet<u32> {
    let number = |run: &Value, side: usize| run[side].as_u64().unwrap() as u32;
    let runs = value.as_array().into_iter().flatten();
    runs.flat_map(|run| number(run, 0)..number(run, 1)).collect()
}

fn tokens(list: &Value) -> Vec<Token> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}
