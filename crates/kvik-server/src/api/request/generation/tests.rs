use serde_json::{Value, json};

use super::*;
use crate::api::request::logit_bias::BIASED_BYTES_MAX;
use crate::api::request::{bounds::Usual, number};

pub(in crate::api::request) fn read(body: Value) -> Result<Options> {
    read_as::<Usual>(body, &|text| text.bytes().map(Token::from).collect())
}

fn read_as<B: Bounds>(body: Value, encode: &dyn Fn(&str) -> Vec<Token>) -> Result<Options> {
    let fields = GenerationFields::<B>::from_body(&Body::of(&body).unwrap())?;
    fields.options(&RequestDefaults::default(), encode, &Retaining::default())
}

pub(in crate::api::request) fn param(body: Value) -> String {
    let text = body.to_string();
    let error = read(body).expect_err(&text).body();
    error["error"]["param"].as_str().unwrap_or_else(|| panic!("{text}: {error}")).to_owned()
}

#[test]
fn the_defaults_are_kviks() {
    let options = read(json!({"seed": 3})).unwrap();
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_last_n: 64,
        logit_bias: vec![],
        min_tokens: 0,
        seed: 3,
    };
    assert_eq!(
        options,
        Options {
            sampling,
            seed_per_prompt: false,
            stop: vec![],
            ignore_eos: false,
            line_limits: LineLimits::default(),
            choices: 1,
            length: None,
            reuse: true,
            lifetime: Lifetime::default(),
            retention: None,
            show_kept: false,
            kept_prefix: None,
            memory: None,
            conversation: None,
            resume: false,
            stop_loops: false,
            settle: None,
            next_turn: None,
            constraint: None,
            schema_notes: vec![]
        }
    );
}

#[test]
fn an_absent_seed_is_random() {
    let seed = |body| read(body).unwrap().sampling.seed;
    assert_ne!(seed(json!({})), seed(json!({})));
    assert_ne!(seed(json!({"seed": -1})), seed(json!({"seed": -1})));
    assert_eq!(seed(json!({"seed": 7})), 7);
}

#[test]
fn every_seed_is_accepted_and_those_that_are_drawn_fit_javascripts_numbers() {
    let check = |seed: Value, expect: u64| {
        assert_eq!(read(json!({"seed": seed})).unwrap().sampling.seed, expect);
    };
    check(json!(u64::MAX), u64::MAX);
    check(json!(1_u64 << 63), 1 << 63);
    check(json!(7.0), 7);
    check(json!(0), 0);
    for asked in [json!(null), json!(-1), json!(-5), json!(0xffff_ffff_u32)] {
        let drawn: Vec<u64> = (0..50).map(|_| read(json!({"seed": asked})).unwrap().sampling.seed).collect();
        assert!(drawn.iter().all(|&seed| seed < 1 << 53) && drawn[0] != drawn[1], "{asked}: {drawn:?}");
        check(json!(drawn[0]), drawn[0]);
    }
}

#[test]
fn the_length_of_an_answer_has_three_names_and_no_limit_but_the_context() {
    let check = |body: Value, expect: usize| {
        assert_eq!(read(body.clone()).unwrap().max_tokens(16, 2048), expect, "{body}");
    };
    check(json!({}), 16);
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        check(json!({name: 4}), 4);
        check(json!({name: 0}), 0);
        check(json!({name: -1}), 2048);
        assert!(read(json!({name: -3})).is_err(), "{name}");
    }
    check(json!({"max_tokens": 4, "max_completion_tokens": 5, "n_predict": 6}), 5);
}

#[test]
fn a_line_may_end_an_answer() {
    let check = |body: Value, indent_min: usize, millis: Option<u64>| {
        let expect = LineLimits { indent_min, time_max: millis.map(Duration::from_millis) };
        assert_eq!(read(body.clone()).unwrap().line_limits, expect, "{body}");
    };
    check(json!({}), 0, None);
    check(json!({"n_indent": 4, "t_max_predict_ms": 250, "t_max_prompt_ms": 500}), 4, Some(250));
    check(json!({"n_indent": 0, "t_max_predict_ms": -1}), 0, None);
    check(json!({"t_max_predict_ms": 0}), 0, None);
}

#[test]
fn a_dialect_may_have_wider_bounds() {
    struct Wide;
    impl Bounds for Wide {
        type Temperature = number::AnyTemperature;
        const BIAS_MAX: f64 = 1e9;
        const STOP_STRINGS_MAX: usize = 256;
    }
    let read = |body: Value| read_as::<Wide>(body, &|_| Vec::new());
    assert!(read(json!({"temperature": -1})).unwrap().sampling.temperature <= 0.0);
    assert_eq!(read(json!({"stop": vec!["x"; 256]})).unwrap().stop.len(), 256);
    assert!(read(json!({"stop": vec!["x"; 257]})).is_err());
    let biases = read(json!({"logit_bias": [[5, 1000], [6, -1000]]})).unwrap().sampling.logit_bias;
    assert_eq!(biases, [(5, 1000.0), (6, f32::NEG_INFINITY)]);
    assert!(read(json!({"logit_bias": [[5, 1e30]]})).is_err());
}

#[test]
fn wrong_values_name_their_field() {
    let check = |body: Value, at: &str| assert_eq!(param(body), at);
    check(json!({"min_tokens": -1}), "min_tokens");
    check(json!({"mirostat": 1}), "mirostat");
    check(json!({"guided_choice": []}), "guided_choice");
    check(json!({"guided_choice": [1]}), "guided_choice[0]");
    check(json!({"guided_json": "{"}), "guided_json");
    check(json!({"guided_json": {}, "regex": "a"}), "guided_json");
    check(json!({"guided_grammar": "root ::= a"}), "guided_grammar");
    check(json!({"grammar_lark": "root ::= \"a\""}), "grammar_lark");
    check(json!({"temperature": -0.1}), "temperature");
    check(json!({"temperature": "warm"}), "temperature");
    check(json!({"top_p": 1.1}), "top_p");
    check(json!({"min_p": -1}), "min_p");
    check(json!({"top_k": 2.5}), "top_k");
    check(json!({"presence_penalty": 3}), "presence_penalty");
    check(json!({"frequency_penalty": []}), "frequency_penalty");
    check(json!({"repeat_penalty": 0}), "repeat_penalty");
    check(json!({"n": 0}), "n");
    check(json!({"n": 65}), "n");
    check(json!({"seed": 1.5}), "seed");
    check(json!({"stop": 1}), "stop");
    check(json!({"stop": ["a", 2]}), "stop[1]");
    check(json!({"stop": vec!["x"; 17]}), "stop");
    check(json!({"ignore_eos": "yes"}), "ignore_eos");
    check(json!({"n_indent": -1}), "n_indent");
    check(json!({"t_max_predict_ms": 1.5}), "t_max_predict_ms");
    check(json!({"t_max_prompt_ms": "soon"}), "t_max_prompt_ms");
    check(json!({"samplers": {}}), "samplers");
    check(json!({"logit_bias": 3}), "logit_bias");
    check(json!({"logit_bias": {"5": 101}}), "logit_bias");
    check(json!({"logit_bias": [[5]]}), "logit_bias[0]");
    check(json!({"logit_bias": [[-5, 1]]}), "logit_bias");
    check(json!({"response_format": "json"}), "response_format");
    check(json!({"response_format": {"type": "xml"}}), "response_format.type");
    check(json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema");
    check(
        json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
        "response_format.json_schema.schema",
    );
    check(json!({"grammar": "root ::= a"}), "grammar");
    check(json!({"grammar_lark": "root ::= \"a\""}), "grammar_lark");
    check(json!({"grammar": "root ::= \"a\"", "grammar_lark": "start: \"a\""}), "grammar_lark");
    check(json!({"grammar": "start: \"a\"", "json_schema": {}}), "grammar");
}

#[test]
fn biases_in_every_form() {
    let check = |bias: Value, expect: &[(Token, f32)]| {
        assert_eq!(read(json!({"logit_bias": bias})).unwrap().sampling.logit_bias, expect);
    };
    check(json!({"12": 1.5, "13": -100}), &[(12, 1.5), (13, f32::NEG_INFINITY)]);
    check(json!([[12, -1], [13, false]]), &[(12, -1.0), (13, f32::NEG_INFINITY)]);
    check(json!([["AB", 2]]), &[(65, 2.0), (66, 2.0)]);
    check(json!({}), &[]);
}

/// A number that is no token id was read as a text, and its digits were biased.
#[test]
fn a_key_that_is_a_whole_number_is_a_token_id() {
    let read = |key: &str| read(json!({"logit_bias": {key: 2}})).map(|options| options.sampling.logit_bias);
    for (key, token) in [("7", 7), ("007", 7), ("15043.0", 15_043), ("4294967295", u32::MAX)] {
        assert_eq!(read(key), Ok(vec![(token, 2.0)]), "{key}");
    }
    for key in ["-1", "-1.0", "4294967296", "99999999999999999999"] {
        assert!(read(key).is_err(), "{key} is no token id");
    }
    for key in [" 7", "3.14", "7.", ".5", "inf", "nan", "1e999", "2026-01-01", "A7"] {
        let texts = Ok(key.bytes().map(|byte| (Token::from(byte), 2.0)).collect());
        assert_eq!(read(key), texts, "{key} is a text");
    }
}

#[test]
fn biased_texts_are_limited_before_they_are_tokenized() {
    let encode = |text: &str| {
        assert!(text.len() <= BIASED_BYTES_MAX, "{} bytes were tokenized", text.len());
        vec![7; text.len()]
    };
    let read = |bias: Value| {
        let options = read_as::<Usual>(json!({"logit_bias": bias}), &encode);
        options.map(|options| options.sampling.logit_bias.len())
    };
    let text = |bytes: usize| "x".repeat(bytes);
    assert_eq!(read(json!({text(256): 1})), Ok(256));
    assert!(read(json!({text(257): 1})).is_err());
    assert!(read(json!([[text(1 << 20), 1]])).is_err());
    assert_eq!(read(json!(vec![json!([text(256), 1]); 4])), Ok(1024));
    assert!(read(json!(vec![json!([text(256), 1]); 5])).is_err());
}

#[test]
fn penalties_can_be_switched_off_by_their_window() {
    let sampling =
        read(json!({"presence_penalty": 1, "repeat_penalty": 1.2, "repeat_last_n": 0})).unwrap().sampling;
    assert_eq!((sampling.presence_penalty, sampling.repetition_penalty), (0.0, 1.0));
    assert_eq!(read(json!({"repeat_last_n": 32})).unwrap().sampling.penalty_last_n, 32);
    assert_eq!(read(json!({"repeat_last_n": -1})).unwrap().sampling.penalty_last_n, 0);
}
