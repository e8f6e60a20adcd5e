//! Retention on the real model: what serving answers is what the laboratory answers, cold and warm, alone and in a
//! batch, in one piece and in many.

use std::path::Path;
use std::sync::Arc;

use kvik_cache::retain::Retention;
use kvik_cache::{CacheConfig, Policy, Token};
use kvik_engine::api::Request;
use kvik_engine::config::EngineConfig;
use kvik_engine::engine::Engine;
use kvik_engine::retain::lab::Lab;
use kvik_engine::retain::repeat::RepeatPrompt;
use kvik_engine::retain::stream::Stream;
use kvik_kernels::{KvFormat, KvLayout, Pool};
use kvik_model::gates::{GateSchool, Gates};
use kvik_model::load::LoadedModel;
use kvik_model::{KvMap, Model, ModelRunner};
use kvik_testing::{golden, tiny_model};
use kvik_text::stream::Vocabulary;
use kvik_text::tokenizer::Tokenizer;

const CONTEXT: usize = 1024;

const RETENTIONS: [&str; 15] = [
    "sinks:0.5,every=512",
    "sample:0.5,every=512",
    "knorm:0.5,order=large,every=512",
    "vnorm:0.5,budget=all,every=512",
    "keydiff:0.5,every=512",
    "h2o:0.5,every=512",
    "snapkv:0.5,window=16,every=512",
    "snapkv:0.5,budget=layer,every=512",
    "expected:0.5,every=512",
    "kvzip:0.5,every=512",
    "kvzip:0.3,fit=false,every=512",
    "gated:0.5,every=512",
    // Less is kept than is protected: in all layers, and in the upper ones.
    "keydiff:0.1,protect=256,every=512",
    "knorm:0.5,protect=64,budget=pyramid,every=512",
    // The first keys are rotated anew, and nobody else's with them.
    "sinks:0.5,protect=64,every=512",
];

struct Tiny {
    model: Arc<Model>,
    tokenizer: Tokenizer,
    layout: KvLayout,
    words: RepeatPrompt,
    gates: Option<Arc<Gates>>,
}

fn tiny(format: KvFormat) -> Tiny {
    let path = tiny_model();
    let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(&path).unwrap();
    let model = Arc::new(Model::load(config, tensors, None, &Pool::new(2), &|_, _| {}).unwrap());
    let layout = ModelRunner::uniform_layout(model.config(), format);
    let encode = |text: &str| tokenizer.encode(text, false, true);
    let words = RepeatPrompt {
        prefix: encode("<|im_start|>user\n"),
        ask: encode(RepeatPrompt::ASK),
        ask_more: encode(RepeatPrompt::ASK_MORE),
        suffix: encode("<|im_end|>\n<|im_start|>assistant\n"),
    };
    let mut tiny = Tiny { model, layout, words, tokenizer, gates: None };
    tiny.gates = Some(Arc::new(tiny.trained()));
    tiny
}

impl Tiny {
    fn lab(&self) -> Lab {
        let (model, layout, words) = (self.model.clone(), self.layout.clone(), self.words.clone());
        let lab = Lab::new(model, Pool::new(2), layout, words, (CONTEXT, 4000)).unwrap();
        lab.with_gates(self.gates.clone())
    }

    /// Gates trained from its prompt.
    fn trained(&self) -> Gates {
        let (mut lab, mut school) = (self.lab(), GateSchool::new(&self.layout));
        lab.read(&self.prompt(), &["kvzip:0.5".parse().unwrap()]);
        lab.teach(&mut school);
        school.gates().unwrap()
    }

    fn engine(&self, blocks: usize, rows: usize) -> Engine {
        let config = EngineConfig {
            parallel_max: 8,
            prefill_rows_max: rows,
            prefill_rows_mixed_max: rows.div_ceil(3),
            repeat: self.words.clone(),
            gates: self.gates.clone(),
            ..EngineConfig::new(&self.layout, self.model.digest(), CONTEXT)
        };
        let runner =
            ModelRunner::new(self.model.clone(), Pool::new(2), self.layout.clone(), blocks, CONTEXT).unwrap();
        let cache = CacheConfig { blocks, policy: Policy::Lru, ghosts: blocks, pinned_max: 0 };
        Engine::start(runner, Vocabulary::from(&self.tokenizer), cache, config).unwrap()
    }

    fn prompt(&self) -> Vec<Token> {
        let facts =
            "The code of the shed is 4821. My sister lives in Rome. The red box holds nails. ".repeat(12);
        let text = format!("<|im_start|>user\n{facts}<|im_end|>\n<|im_start|>assistant\n");
        self.tokenizer.encode(&text, false, true)
    }

    /// A prompt of many different facts.
    fn facts(&self) -> Vec<Token> {
        let names = ["Ada", "Bert", "Cleo", "Dora", "Emil", "Fred", "Gina", "Hugo", "Ines", "Jack"];
        let things =
            ["the code of the shed", "the colour of the car", "the name of the dog", "the day of the trip"];
        let fact =
            |at: usize| format!("{} said that {} is {}. ", names[at % 10], things[at % 4], 1000 + 37 * at);
        let facts: String = (0..24).map(fact).collect();
        let text = format!("<|im_start|>user\n{facts}<|im_end|>\n<|im_start|>assistant\n");
        self.tokenizer.encode(&text, false, true)
    }

    fn request(&self, prompt: &[Token], retention: Option<&str>) -> Request {
        Request {
            ignore_eos: true,
            show_special: true,
            retention: retention.map(|text| text.parse().unwrap()),
            ..Request::new(prompt.to_vec(), 24)
        }
    }
}

fn text(engine: &Engine, request: Request) -> String {
    engine.generate(request).unwrap().choices[0].text.clone()
}

#[test]
fn serving_answers_what_the_laboratory_answers() {
    for format in [KvFormat::F16, KvFormat::Q8] {
        let tiny = tiny(format);
        let engine = tiny.engine(400, 512);
        let prompt = tiny.prompt();
        let mut lab = tiny.lab();
        for retention in RETENTIONS {
            let parsed: Retention = retention.parse().unwrap();
            let logits = lab.read(&prompt, &[parsed]);
            let first = first_of_the_likeliest(&logits);
            let decision = lab.decide(&parsed, None);
            let mut variants = [lab.keep(&decision, Some(&parsed))];
            let rest = lab.answer(&mut variants, &[first], 23, &[]);
            let expect = tiny.tokenizer.decode(&[&[first], &rest[0][..]].concat());
            let [variant] = variants;
            lab.drop(variant);
            assert_eq!(text(&engine, tiny.request(&prompt, Some(retention))), expect, "{format} {retention}");
        }
    }
}

#[test]
fn a_gate_finds_most_of_what_a_repetition_finds() {
    let tiny = tiny(KvFormat::F16);
    let (mut lab, prompt) = (tiny.lab(), tiny.prompt());
    let [zip, gated, random]: [Retention; 3] =
        ["kvzip:0.3", "gated:0.3", "random:0.3,budget=all"].map(|text| text.parse().unwrap());
    lab.read(&prompt, &[zip]);
    let wanted = lab.decide(&zip, None);
    let shared = |lab: &mut Lab, retention: &Retention| {
        let found = lab.decide(retention, None);
        let heads = wanted.kept.iter().flatten().zip(found.kept.iter().flatten());
        heads
            .map(|(wanted, found)| found.iter().filter(|index| wanted.contains(index)).count())
            .sum::<usize>()
    };
    let all: usize = wanted.kept.iter().flatten().map(Vec::len).sum();
    let (found, by_chance) = (shared(&mut lab, &gated), shared(&mut lab, &random));
    assert!(10 * found > 6 * all && found > by_chance + all / 5, "{found} of {all}, {by_chance} by chance");
}

/// The repetition to which values are fitted is predicted more nearly as with everything kept.
#[test]
fn fitted_values_make_up_for_what_is_dropped() {
    let tiny = tiny(KvFormat::F16);
    let (mut lab, prompt) = (tiny.lab(), tiny.facts());
    let repetition = [&tiny.words.ask, &tiny.words.suffix, &prompt[tiny.words.prefix.len()..]].concat();
    let retentions = ["kvzip:0.1", "kvzip:0.1,fit=false"].map(|text| text.parse::<Retention>().unwrap());
    lab.read(&prompt, &retentions);
    let (decision, everything) = (lab.decide(&retentions[0], None), lab.everything());
    let mut variants = vec![lab.keep(&everything, None)];
    variants.extend(retentions.iter().map(|retention| lab.keep(&decision, Some(retention))));
    let scored = lab.score(&mut variants, &repetition);
    let [fitted, plain] = [1, 2].map(|variant| divergence(&scored[0], &scored[variant]));
    println!("divergence of {fitted:.4} nats a token with fitted values, {plain:.4} without");
    assert!(fitted < 0.85 * plain, "{fitted} for {plain}");
}

/// Mean divergence of predictions from exact ones, nats a token.
fn divergence(exact: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
    };
    let of_row = |(exact, found): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let pairs = log_softmax(exact).into_iter().zip(log_softmax(found));
        pairs.map(|(exact, found)| exact.exp() * (exact - found)).sum()
    };
    exact.iter().zip(found).map(of_row).sum::<f64>() / exact.len() as f64
}

#[test]
fn protected_positions_are_the_same_whether_they_are_shared() {
    let tiny = tiny(KvFormat::F16);
    let (prompt, retention) = (tiny.prompt(), Some("kvzip:0.4,protect=64"));
    let cold = text(&tiny.engine(200, 512), tiny.request(&prompt, retention));
    let engine = tiny.engine(200, 512);
    text(&engine, tiny.request(&prompt[..80], None));
    assert_eq!(text(&engine, tiny.request(&prompt, retention)), cold);
}

/// A prompt of no more tokens than the template writes before a message once had nothing to repeat, and so no scores: the
/// step that decided what stays panicked, and with it everybody's request.
#[test]
fn a_prompt_within_the_opening_of_the_template_is_repeated() {
    let tiny = tiny(KvFormat::F16);
    let (engine, prompt) = (tiny.engine(200, 512), tiny.prompt());
    let beside = text(&engine, tiny.request(&prompt, None));
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| text(&engine, tiny.request(&prompt, None)));
        for count in 1..=tiny.words.prefix.len() {
            let request = tiny.request(&tiny.words.prefix[..count], Some("kvzip:0.5"));
            let answer = engine.generate(request).unwrap_or_else(|error| panic!("{count} tokens: {error}"));
            assert_eq!(answer.choices[0].tokens.len(), 24, "{count} tokens");
        }
        assert_eq!(whole.join().unwrap(), beside, "nobody else's answer changes");
    });
}

#[test]
fn a_request_is_refused_without_gates() {
    let mut tiny = tiny(KvFormat::F16);
    let prompt = tiny.prompt();
    tiny.gates = None;
    let error = tiny.engine(200, 512).generate(tiny.request(&prompt, Some("gated:0.5"))).err().unwrap();
    assert!(error.to_string().contains("kvik eval --calibrate"), "{error}");
}

#[test]
fn everything_kept_answers_as_if_nothing_was_forgotten() {
    let tiny = tiny(KvFormat::F16);
    let prompt = tiny.prompt();
    let engine = tiny.engine(200, 512);
    let whole = text(&engine, tiny.request(&prompt, None));
    for retention in ["keydiff:1.0", "kvzip:1.0", "h2o:1.0,every=16", "snapkv:900,every=64"] {
        assert_eq!(text(&engine, tiny.request(&prompt, Some(retention))), whole, "{retention}");
    }
}

#[test]
fn answers_do_not_depend_on_pieces_batches_or_what_is_cached() {
    let tiny = tiny(KvFormat::F16);
    let prompt = tiny.prompt();
    let cold: Vec<String> = RETENTIONS
        .iter()
        .map(|retention| text(&tiny.engine(200, 512), tiny.request(&prompt, Some(retention))))
        .collect();
    let whole = text(&tiny.engine(200, 512), tiny.request(&prompt, None));
    // Together, in pieces, with room for a few at a time, after a part of the prompt was cached.
    let engine = tiny.engine(130, 48);
    text(&engine, tiny.request(&prompt[..200], None));
    std::thread::scope(|scope| {
        let ask = |retention| {
            scope.spawn({
                let (engine, tiny, prompt) = (engine.clone(), &tiny, &prompt);
                move || text(&engine, tiny.request(prompt, retention))
            })
        };
        let whole_again = ask(None);
        let answers: Vec<_> = RETENTIONS.iter().map(|retention| ask(Some(*retention))).collect();
        assert_eq!(whole_again.join().unwrap(), whole, "who forgets changes nobody else's answer");
        for ((answer, cold), retention) in answers.into_iter().zip(&cold).zip(RETENTIONS) {
            assert_eq!(&answer.join().unwrap(), cold, "{retention}");
        }
    });
}

/// More tokens than the context has, in constant memory; and serving answers what the stream expects.
#[test]
fn a_stream_goes_on_beyond_the_context() {
    let tiny = tiny(KvFormat::F16);
    let prompt = tiny.prompt().repeat(8);
    assert!(prompt.len() > 2 * CONTEXT, "{}", prompt.len());
    for retention in ["sinks:128,every=64", "knorm:128,order=large,every=64", "h2o:128,every=64"] {
        let parsed: Retention = retention.parse().unwrap();
        let (model, layout) = (tiny.model.clone(), tiny.layout.clone());
        let mut stream = Stream::new(model, Pool::new(2), layout, (parsed, None)).unwrap();
        let (mut blocks, mut likeliest) = (0, 0);
        for piece in prompt.chunks(100) {
            stream.read(piece, &mut |logits| likeliest = first_of_the_likeliest(logits));
            blocks = blocks.max(stream.blocks());
        }
        assert_eq!(stream.tokens(), prompt.len());
        assert!(blocks <= 2 * (128 + 64) / 16 + 4, "{retention}: {blocks} blocks");
        if parsed.rotated_sinks() > 0 {
            let request = Request { max_tokens: 1, ..tiny.request(&prompt, Some(retention)) };
            let expect = tiny.tokenizer.decode(&[likeliest]);
            assert_eq!(text(&tiny.engine(60, 48), request), expect, "{retention}");
        }
    }
}

/// The first layer of a pyramid keeps twice the mean, in blocks that no layer of another format fills: there were too few
/// of them.
#[test]
fn a_stream_has_room_where_formats_differ_by_layer() {
    let tiny = tiny(KvFormat::F16);
    let map: KvMap = "0:f32,1-5:q8".parse().unwrap();
    let layout = ModelRunner::layout(tiny.model.config(), &map).unwrap();
    let retention = "knorm:512,budget=pyramid,every=32".parse().unwrap();
    let mut stream = Stream::new(tiny.model.clone(), Pool::new(2), layout, (retention, None)).unwrap();
    stream.read(&tiny.prompt().repeat(5)[..1200], &mut |_| {});
    assert_eq!(stream.tokens(), 1200);
}

#[test]
fn what_never_ends_is_not_kept_in_shares() {
    let tiny = tiny(KvFormat::F16);
    for (retention, field) in
        [("sinks:0.5", "retain.keep"), ("kvzip:512", "retain.policy"), ("gated:512", "retain.policy")]
    {
        let (model, parsed) = (tiny.model.clone(), retention.parse().unwrap());
        let error = Stream::new(model, Pool::new(1), tiny.layout.clone(), (parsed, None)).err().unwrap();
        assert!(error.to_string().contains(field), "{error}");
    }
}

/// Streams were once read of models that serving refuses: with windows this panicked, and a calibrated budget without
/// the importance of heads kept what `budget=head` keeps.
#[test]
fn a_stream_refuses_what_serving_refuses() {
    let refused = |path: &Path, retention: &str| {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(path).unwrap();
        let model = Arc::new(Model::load(config, tensors, None, &Pool::new(1), &|_, _| {}).unwrap());
        let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
        let parsed = retention.parse().unwrap();
        Stream::new(model, Pool::new(1), layout, (parsed, None)).err().unwrap().to_string()
    };
    let said = refused(&tiny_model(), "sinks:64,budget=calibrated");
    assert!(said.contains("measured importance"), "{said}");
    let models = [("arch-gemma3", "window"), ("arch-gpt-oss", "window"), ("arch-deepseek2", "latent")];
    for (name, word) in models {
        let said = refused(&golden(&format!("{name}.gguf")), "sinks:64");
        assert!(said.contains(word), "{name}: {said}");
    }
}

fn first_of_the_likeliest(logits: &[f32]) -> Token {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.unwrap() as Token
}
