//! How to continue a prompt: the fields that all three completion endpoints share.
//!
//! OpenAI's names, llama-server's where OpenAI has none. Each endpoint brings its own defaults.

use kvik_cache::{Retain, Token};
use kvik_engine::api::{Constraint, Sampling};
use kvik_engine::text::constraint::schema::{Strictness, normalise};
use serde_json::Value;

use super::keep::Keep;
use super::unsupported;
use crate::{
    http::{
        error::ApiError,
        fields::{Fields, whole, wrong},
        json::Budget,
    },
    random::random,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Bytes of one stop string: the engine holds back that much text at most.
const STOP_BYTES_MAX: usize = 4096;
/// Entries of `logit_bias`, and tokens that they name.
const BIASES_MAX: usize = 1024;
/// Bytes of a text whose tokens are biased: a word or a phrase.
const BIASED_BYTES_MAX: usize = 256;
/// `top_logprobs` at most, as in OpenAI's API.
pub(crate) const LOGPROBS_MAX: i64 = 20;
/// Bytes of a constraint, times the prompts that it holds for.
const COPIED_CONSTRAINT_BYTES_MAX: usize = 1 << 20;
/// Seeds that kvik draws and reports: JavaScript's numbers hold them.
const SEED_BITS: u64 = (1 << 53) - 1;
/// Asks for such a seed.
const RANDOM_SEED: u64 = 0xffff_ffff;
/// `n` at most: choices share the prompt's blocks, and each needs blocks of its own to go on.
const CHOICES_MAX: i64 = 64;

/// What holds where a request says nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Defaults {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    /// Tokens that penalties look back on; 0 means all.
    penalty_last_n: usize,
    /// Lowest temperature; below 0 is greedy as well.
    temperature_min: f64,
    /// Largest bias, either way.
    bias_max: f64,
    /// Stop strings that one request may bring.
    stop_strings_max: usize,
}

/// OpenAI's: sample from the whole distribution, penalties look at the whole answer.
pub(crate) const OPENAI: Defaults = Defaults {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    penalty_last_n: 0,
    temperature_min: 0.0,
    bias_max: 100.0,
    stop_strings_max: 16,
};

/// llama-server's.
pub(crate) const LLAMA_SERVER: Defaults = Defaults {
    temperature: 0.8,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.05,
    penalty_last_n: 64,
    temperature_min: f64::MIN,
    bias_max: 1e9,
    stop_strings_max: 256,
};

/// How to continue a prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) choices: u32,
    pub(crate) reuse: bool,
    pub(crate) retain: Retain,
    pub(crate) constraint: Option<Constraint>,
    /// What of a schema is not enforced, and why.
    pub(crate) schema_notes: Vec<String>,
}

impl Options {
    /// Reads them; `encode` gives the tokens of a text, for biases that name one.
    pub(crate) fn read(
        fields: &mut Fields,
        defaults: Defaults,
        encode: &dyn Fn(&str) -> Vec<Token>,
    ) -> Result<Options> {
        unsupported::refuse_generating(fields)?;
        let Keep { reuse, retain } = Keep::read(fields)?;
        let mut schema_notes = Vec::new();
        Ok(Options {
            sampling: sampling(fields, defaults, encode)?,
            stop: stop(fields, defaults.stop_strings_max)?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            choices: fields.integer("n", 1..=CHOICES_MAX)?.unwrap_or(1) as u32,
            reuse,
            retain,
            constraint: constraint(fields, &mut schema_notes)?,
            schema_notes,
        })
    }
}

impl Options {
    /// Refuses a large constraint for many prompts: each of them takes a copy.
    pub(crate) fn check_copies(&self, prompts: usize) -> Result<()> {
        let bytes = match &self.constraint {
            _ if prompts == 1 => return Ok(()),
            Some(Constraint::JsonSchema(schema)) => schema.to_string().len(),
            Some(Constraint::Regex(text) | Constraint::Lark(text)) => text.len(),
            _ => return Ok(()),
        };
        if bytes.saturating_mul(prompts) <= COPIED_CONSTRAINT_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "`prompt` holds {prompts} prompts under a constraint of {bytes} bytes; together these may be {COPIED_CONSTRAINT_BYTES_MAX}: send fewer prompts at a time"
        );
        Err(ApiError::field("prompt", message))
    }
}

fn sampling(
    fields: &mut Fields,
    defaults: Defaults,
    encode: &dyn Fn(&str) -> Vec<Token>,
) -> Result<Sampling> {
    let number = |fields: &mut Fields, name: &str, range, default: f32| -> Result<f32> {
        Ok(fields.number(name, range)?.map_or(default, |x| x as f32))
    };
    let mut sampling = Sampling {
        temperature: number(
            fields,
            "temperature",
            defaults.temperature_min..=f64::INFINITY,
            defaults.temperature,
        )?,
        top_k: fields
            .integer("top_k", -1..=i64::MAX)?
            .map_or(defaults.top_k, |k| usize::try_from(k).unwrap_or(0)),
        top_p: number(fields, "top_p", 0.0..=1.0, defaults.top_p)?,
        min_p: number(fields, "min_p", 0.0..=1.0, defaults.min_p)?,
        repetition_penalty: repetition_penalty(fields)?,
        presence_penalty: number(fields, "presence_penalty", -2.0..=2.0, 0.0)?,
        frequency_penalty: number(fields, "frequency_penalty", -2.0..=2.0, 0.0)?,
        penalty_last_n: defaults.penalty_last_n,
        logit_bias: logit_bias(fields, defaults.bias_max, encode)?,
        min_tokens: fields.integer("min_tokens", 0..=i64::MAX)?.unwrap_or(0) as usize,
        seed: seed(fields)?,
    };
    match fields.integer("repeat_last_n", -1..=i64::MAX)? {
        Some(0) => {
            sampling.repetition_penalty = 1.0;
            sampling.presence_penalty = 0.0;
            sampling.frequency_penalty = 0.0;
        }
        Some(last_n) => sampling.penalty_last_n = usize::try_from(last_n).unwrap_or(0),
        None => {}
    }
    Ok(sampling)
}

/// Tokens of an answer at most, by whichever name; -1 (and -2, in older clients) is as many as the
/// context holds.
pub(crate) fn max_tokens(fields: &mut Fields, context: usize) -> Result<Option<usize>> {
    let mut max_tokens = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        let asked = fields.integer(name, -2..=i64::MAX)?;
        max_tokens = max_tokens.or(asked.map(|max| usize::try_from(max).unwrap_or(context)));
    }
    Ok(max_tokens)
}

/// Any number that fits 64 bits. Clients send -1 for "random"; 4294967295 is how older ones of
/// llama-server write it.
fn seed(fields: &mut Fields) -> Result<u64> {
    let path = fields.path("seed");
    let Some(value) = fields.take("seed")? else { return Ok(random() & SEED_BITS) };
    let seed =
        value.as_u64().or_else(|| whole(&value).map(|seed| u64::try_from(seed).unwrap_or(RANDOM_SEED)));
    match seed.ok_or_else(|| wrong(path, "a whole number", &value))? {
        RANDOM_SEED => Ok(random() & SEED_BITS),
        seed => Ok(seed),
    }
}

/// `repeat_penalty` is llama-server's name, `repetition_penalty` everybody else's.
fn repetition_penalty(fields: &mut Fields) -> Result<f32> {
    let mut penalty = 1.0;
    for name in ["repetition_penalty", "repeat_penalty"] {
        penalty = fields.number(name, 0.01..=100.0)?.map_or(penalty, |x| x as f32);
    }
    Ok(penalty)
}

fn stop(fields: &mut Fields, strings_max: usize) -> Result<Vec<String>> {
    let path = fields.path("stop");
    let stop = match fields.take("stop")? {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => strings(&path, items)?,
        Some(other) => return Err(wrong(path, "a string or an array of strings", &other)),
    };
    if stop.len() > strings_max {
        return Err(ApiError::field(
            &path,
            format!("`{path}` has {} strings, the limit is {strings_max}", stop.len()),
        ));
    }
    if stop.iter().any(|text| text.len() > STOP_BYTES_MAX) {
        return Err(ApiError::field(
            &path,
            format!("a string in `{path}` is longer than {STOP_BYTES_MAX} bytes"),
        ));
    }
    // An empty stop string would end every answer before its first character.
    Ok(stop.into_iter().filter(|text| !text.is_empty()).collect())
}

/// An array of strings that stands at `path`.
pub(crate) fn strings(path: &str, items: Vec<Value>) -> Result<Vec<String>> {
    items
        .into_iter()
        .enumerate()
        .map(|(i, item)| match item {
            Value::String(text) => Ok(text),
            other => Err(wrong(format!("{path}[{i}]"), "a string", &other)),
        })
        .collect()
}

/// `{"token id": bias}` (OpenAI) or `[[token id or text, bias], ...]` (llama-server); a bias of
/// `false` forbids the token.
fn logit_bias(
    fields: &mut Fields,
    bias_max: f64,
    encode: &dyn Fn(&str) -> Vec<Token>,
) -> Result<Vec<(Token, f32)>> {
    let path = fields.path("logit_bias");
    let pairs: Vec<(Value, Value)> = match fields.take("logit_bias")? {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map.into_iter().map(|(id, bias)| (id_of(id), bias)).collect(),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(i, item)| match <[Value; 2]>::try_from(array_items(item)) {
                Ok([token, bias]) => Ok((token, bias)),
                Err(_) => Err(ApiError::field(
                    format!("{path}[{i}]"),
                    format!("`{path}[{i}]` must be a pair: [token id or text, bias]"),
                )),
            })
            .collect::<Result<_>>()?,
        Some(other) => return Err(wrong(path, "an object from token ids to biases", &other)),
    };
    if pairs.len() > BIASES_MAX {
        return Err(ApiError::field(
            &path,
            format!("`{path}` has {} entries, the limit is {BIASES_MAX}", pairs.len()),
        ));
    }
    let mut biases = Vec::new();
    for (token, bias) in pairs {
        let bias = bias_of(&path, &bias, bias_max)?;
        for token in biased_tokens(&path, &token, encode)? {
            biases.push((token, bias));
        }
        if biases.len() > BIASES_MAX {
            let message = format!("`{path}` names more than {BIASES_MAX} tokens, which is the limit");
            return Err(ApiError::field(path, message));
        }
    }
    Ok(biases)
}

/// A key of the object form is a token id in decimal; anything else stays text.
fn id_of(key: String) -> Value {
    key.parse::<Token>().map_or(Value::String(key), Value::from)
}

fn array_items(value: Value) -> Vec<Value> {
    if let Value::Array(items) = value { items } else { Vec::new() }
}

fn bias_of(path: &str, bias: &Value, bias_max: f64) -> Result<f32> {
    match (bias, bias.as_f64()) {
        (Value::Bool(false), _) => Ok(f32::NEG_INFINITY),
        // As OpenAI does: -100 is a ban, not merely a nudge.
        (_, Some(bias)) if (-bias_max..=-100.0).contains(&bias) => Ok(f32::NEG_INFINITY),
        (_, Some(bias)) if (-100.0..=bias_max).contains(&bias) => Ok(bias as f32),
        (other, _) => {
            let expected = format!("a map of biases from -{bias_max} to {bias_max} (or false)");
            Err(wrong(path.to_owned(), &expected, other))
        }
    }
}

fn biased_tokens(path: &str, token: &Value, encode: &dyn Fn(&str) -> Vec<Token>) -> Result<Vec<Token>> {
    match token {
        Value::String(text) if text.len() > BIASED_BYTES_MAX => {
            let message =
                format!("a text in `{path}` has {} bytes, the limit is {BIASED_BYTES_MAX}", text.len());
            Err(ApiError::field(path, message))
        }
        Value::String(text) => Ok(encode(text)),
        id => match whole(id).and_then(|id| Token::try_from(id).ok()) {
            Some(id) => Ok(vec![id]),
            None => Err(wrong(path.to_owned(), "a map whose keys are token ids or texts", id)),
        },
    }
}

/// What the answer must look like: at most one of the fields that say so.
fn constraint(fields: &mut Fields, notes: &mut Vec<String>) -> Result<Option<Constraint>> {
    let schema = fields.take("json_schema")?;
    let schema = schema.map(|schema| read_schema(fields, "json_schema", &schema, Strictness::Lenient, notes));
    let guided = fields.take("guided_json")?.map(|schema| guided_json(fields, schema, notes));
    let found = [
        ("response_format", response_format(fields, notes)?),
        ("json_schema", schema.transpose()?),
        ("grammar", grammar(fields)?),
        ("regex", fields.string("regex")?.map(Constraint::Regex)),
        ("guided_json", guided.transpose()?),
        ("guided_regex", fields.string("guided_regex")?.map(Constraint::Regex)),
        ("guided_choice", guided_choice(fields)?),
    ];
    let mut constraint = None;
    for (name, value) in found {
        let Some(value) = value else { continue };
        if let Some((earlier, _)) = constraint {
            return Err(ApiError::field(
                name,
                format!("`{name}` and `{earlier}` both constrain the answer; send one of them"),
            ));
        }
        constraint = Some((name, value));
    }
    Ok(constraint.map(|(_, constraint)| constraint))
}

fn response_format(fields: &mut Fields, notes: &mut Vec<String>) -> Result<Option<Constraint>> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.string("type")?;
    match format.required("type", kind)?.as_str() {
        "text" => Ok(None),
        // llama-server's clients put a schema beside `json_object`.
        "json_object" => match format.take("schema")? {
            Some(schema) => read_schema(&format, "schema", &schema, Strictness::Lenient, notes).map(Some),
            None => Ok(Some(Constraint::JsonObject)),
        },
        "json_schema" => {
            let object = format.object("json_schema")?;
            let mut object = format.required("json_schema", object)?;
            let strict = object.bool("strict")?.unwrap_or(false);
            let strictness = if strict { Strictness::Strict } else { Strictness::Lenient };
            let schema = object.take("schema")?;
            let schema = object.required("schema", schema)?;
            read_schema(&object, "schema", &schema, strictness, notes).map(Some)
        }
        other => Err(format.error(
            "type",
            format!("is {other:?}; kvik knows \"text\", \"json_object\" and \"json_schema\""),
        )),
    }
}

/// vLLM takes a schema as an object or as the text of one.
fn guided_json(fields: &Fields, schema: Value, notes: &mut Vec<String>) -> Result<Constraint> {
    let schema = match schema {
        Value::String(text) => Budget::new()
            .build(text.as_bytes())
            .map_err(|error| fields.error("guided_json", error.to_string()))?,
        schema => schema,
    };
    read_schema(fields, "guided_json", &schema, Strictness::Lenient, notes)
}

/// One of these texts.
fn guided_choice(fields: &mut Fields) -> Result<Option<Constraint>> {
    let Some(items) = fields.array("guided_choice")? else { return Ok(None) };
    let choices = strings(&fields.path("guided_choice"), items)?;
    if choices.is_empty() {
        return Err(fields.error("guided_choice", "is empty; send at least one text"));
    }
    let escaped = |text: &String| {
        let escaped = |c: char| if c.is_ascii_punctuation() { vec!['\\', c] } else { vec![c] };
        text.chars().flat_map(escaped).collect::<String>()
    };
    let choices: Vec<String> = choices.iter().map(escaped).collect();
    Ok(Some(Constraint::Regex(format!("(?:{})", choices.join("|")))))
}

/// The schema that stands in a field, as it can be enforced.
fn read_schema(
    fields: &Fields,
    name: &str,
    schema: &Value,
    strictness: Strictness,
    notes: &mut Vec<String>,
) -> Result<Constraint> {
    let path = fields.path(name);
    let normal = normalise(schema, strictness).map_err(|error| {
        // Paths in a schema start with `$`, which is this field.
        let place = error.path.strip_prefix('$').map(|rest| format!("{path}{rest}"));
        let place = place.unwrap_or_else(|| format!("{path}: {}", error.path));
        ApiError::field(&place, format!("`{place}` {}", error.message))
    })?;
    notes.extend(normal.notes);
    Ok(Constraint::JsonSchema(normal.schema))
}

/// kvik's own field, and vLLM's.
fn grammar(fields: &mut Fields) -> Result<Option<Constraint>> {
    let own = fields.string("grammar")?.filter(|text| !text.trim().is_empty());
    let Some((name, grammar)) = (match own {
        Some(grammar) => Some(("grammar", grammar)),
        None => fields.string("guided_grammar")?.map(|grammar| ("guided_grammar", grammar)),
    }) else {
        return Ok(None);
    };
    if grammar.contains("::=") {
        return Err(fields.error(
            name,
            "looks like GBNF (`::=`); kvik takes Lark grammars, for example `start: \"yes\" | \"no\"`",
        ));
    }
    Ok(Some(Constraint::Lark(grammar)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Options> {
        let encode = |text: &str| text.bytes().map(Token::from).collect();
        Options::read(&mut Fields::of_body(body).unwrap(), OPENAI, &encode)
    }

    fn param(body: Value) -> String {
        let text = body.to_string();
        let error = read(body).expect_err(&text).body();
        error["error"]["param"].as_str().unwrap_or_else(|| panic!("{text}: {error}")).to_owned()
    }

    #[test]
    fn the_defaults_are_openais() {
        let options = read(json!({"seed": 3})).unwrap();
        let sampling = Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 0,
            logit_bias: vec![],
            min_tokens: 0,
            seed: 3,
        };
        assert_eq!(
            options,
            Options {
                sampling,
                stop: vec![],
                ignore_eos: false,
                choices: 1,
                reuse: true,
                retain: Retain::default(),
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
            let drawn: Vec<u64> =
                (0..50).map(|_| read(json!({"seed": asked})).unwrap().sampling.seed).collect();
            assert!(drawn.iter().all(|&seed| seed < 1 << 53) && drawn[0] != drawn[1], "{asked}: {drawn:?}");
            check(json!(drawn[0]), drawn[0]);
        }
    }

    #[test]
    fn the_length_of_an_answer_has_three_names_and_no_limit_but_the_context() {
        let check = |body: Value, expect: Option<usize>| {
            assert_eq!(max_tokens(&mut Fields::of_body(body.clone()).unwrap(), 2048), Ok(expect), "{body}");
        };
        check(json!({}), None);
        for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
            check(json!({name: 4}), Some(4));
            check(json!({name: 0}), Some(0));
            check(json!({name: -1}), Some(2048));
            assert!(max_tokens(&mut Fields::of_body(json!({name: -3})).unwrap(), 9).is_err(), "{name}");
        }
        check(json!({"max_tokens": 4, "max_completion_tokens": 5, "n_predict": 6}), Some(5));
    }

    #[test]
    fn llama_servers_bounds_are_wider() {
        let read = |body: Value| {
            let encode = |_: &str| Vec::new();
            Options::read(&mut Fields::of_body(body).unwrap(), LLAMA_SERVER, &encode)
        };
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
        check(json!({"guided_grammar": "root ::= \"a\""}), "guided_grammar");
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
        check(json!({"logit_bias": 3}), "logit_bias");
        check(json!({"logit_bias": {"5": 101}}), "logit_bias");
        check(json!({"logit_bias": [[5]]}), "logit_bias[0]");
        check(json!({"logit_bias": [[-5, 1]]}), "logit_bias");
        check(json!({"response_format": "json"}), "response_format");
        check(json!({"response_format": {}}), "response_format.type");
        check(json!({"response_format": {"type": "xml"}}), "response_format.type");
        check(json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema");
        check(
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.schema",
        );
        check(json!({"grammar": "root ::= \"a\""}), "grammar");
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

    #[test]
    fn biased_texts_are_limited_before_they_are_tokenized() {
        let encode = |text: &str| {
            assert!(text.len() <= BIASED_BYTES_MAX, "{} bytes were tokenized", text.len());
            vec![7; text.len()]
        };
        let read = |bias: Value| {
            let fields = &mut Fields::of_body(json!({"logit_bias": bias})).unwrap();
            Options::read(fields, OPENAI, &encode).map(|options| options.sampling.logit_bias.len())
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

    #[test]
    fn what_a_schema_wants_and_cannot_have_is_noted_or_refused() {
        let format = |strict: bool, schema: Value| {
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "x", "strict": strict, "schema": schema}}})
        };
        let secret = json!({"type": "object", "properties": {"x": {"type": "string", "format": "password"}}});
        for body in
            [format(false, secret.clone()), format(true, secret.clone()), json!({"json_schema": secret})]
        {
            let options = read(body).unwrap();
            assert_eq!(options.schema_notes.len(), 1, "{:?}", options.schema_notes);
            assert!(options.schema_notes[0].starts_with("$.properties.x.format: "));
            let Some(Constraint::JsonSchema(schema)) = options.constraint else { panic!("no schema") };
            assert_eq!(schema["additionalProperties"], json!(false));
        }
        let unequal = json!({"type": "object", "properties": {"x": {"not": {"type": "string"}}}});
        assert!(read(format(false, unequal.clone())).is_ok());
        assert_eq!(param(format(true, unequal)), "response_format.json_schema.schema.properties.x.not");
        assert_eq!(param(json!({"json_schema": {"type": "nonsense"}})), "json_schema.type");
    }

    #[test]
    fn constraints_in_every_form() {
        let schema = json!({"type": "object"});
        let check =
            |body: Value, expect: Option<Constraint>| assert_eq!(read(body).unwrap().constraint, expect);
        check(json!({"response_format": {"type": "text"}}), None);
        check(json!({"response_format": {"type": "json_object"}}), Some(Constraint::JsonObject));
        check(
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            Some(Constraint::JsonSchema(schema.clone())),
        );
        check(
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            Some(Constraint::JsonSchema(schema.clone())),
        );
        check(json!({"json_schema": schema}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"grammar": "start: \"a\""}), Some(Constraint::Lark("start: \"a\"".into())));
        check(json!({"grammar": ""}), None);
        check(json!({"regex": "[a-z]+"}), Some(Constraint::Regex("[a-z]+".into())));
        check(json!({"guided_regex": "[a-z]+"}), Some(Constraint::Regex("[a-z]+".into())));
        check(json!({"guided_json": schema}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"guided_json": schema.to_string()}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"guided_grammar": "start: \"a\""}), Some(Constraint::Lark("start: \"a\"".into())));
        let choice = json!({"guided_choice": ["yes", "no (1.5)", "jå"]});
        check(choice, Some(Constraint::Regex(r"(?:yes|no \(1\.5\)|jå)".into())));
    }
}
