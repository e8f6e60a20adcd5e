//! The worst known grammars: each is refused, or compiled and followed for some tokens, within bounds
//! of time and memory.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use kvik_cache::{TenantId, Token};
use serde_json::{Value, json};

use super::tests::compiler;
use super::*;

/// A release build takes a tenth of this; tests share the processors.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum growth of the process over all cases; a single case once took gigabytes.
const GROWTH_MAX: usize = 400 << 20;
const STEPS: usize = 40;

struct Client(Sender<Result<Guide, ConstraintError>>);

impl Waiter for Client {
    fn is_closed(&self) -> bool {
        false
    }

    fn done(self: Box<Self>, guide: Result<Guide, ConstraintError>) {
        self.0.send(guide).unwrap();
    }
}

fn schema(schema: Value) -> Constraint {
    Constraint::JsonSchema(schema)
}

fn many<T>(count: usize, each: impl Fn(usize) -> T) -> Vec<T> {
    (0..count).map(each).collect()
}

fn schemas() -> Vec<(&'static str, Constraint)> {
    let object = |properties: Vec<(String, Value)>| json!({"type": "object", "properties": serde_json::Map::from_iter(properties)});
    let integer = || json!({"type": "integer"});
    let chained = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (format!("d{i}"), object(vec![("a".into(), next)]))
    };
    let mut chain = many(5000, chained);
    chain.push(("d5000".into(), integer()));
    let mut nested = json!({"type": "string"});
    for _ in 0..12 {
        nested = json!({"anyOf": [nested, {"type": "array", "items": nested}]});
    }
    let copy = |i: usize| (format!("p{i}"), json!({"$ref": "#/$defs/list", "minimum": 0}));
    let mut copies = object(many(300, copy));
    copies["$defs"] = json!({"list": {"enum": vec![1; 60_000]}});
    let choices = many(6, |i| {
        let options = many(6, |j| object(vec![(format!("a{j}"), integer()), (format!("b{i}"), integer())]));
        json!({ "anyOf": options })
    });
    vec![
        ("multipleOf", schema(json!({"type": "integer", "multipleOf": 10_000_019}))),
        (
            "multipleOf with a range",
            schema(json!({"type": "integer", "multipleOf": 1_000_003, "minimum": 1})),
        ),
        ("long strings", schema(json!({"type": "string", "minLength": 100_000, "maxLength": 200_000}))),
        (
            "long arrays",
            schema(json!({"type": "array", "items": integer(), "minItems": 1_000_000_000_000_u64})),
        ),
        ("a large enum", schema(json!({"enum": many(10_000, |i| format!("value-{i}"))}))),
        ("many properties", schema(object(many(2500, |i| (format!("property{i}"), integer()))))),
        (
            "many patterns",
            schema(object(many(1000, |i| {
                (format!("p{i}"), json!({"type": "string", "pattern": format!("^\\w{{1,{}}}x$", i + 1)}))
            }))),
        ),
        (
            "an exponential pattern",
            schema(json!({"type": "string", "pattern": "^(a|b)*a(a|b){30}$", "maxLength": 50})),
        ),
        (
            "patterns that exclude each other",
            schema(json!({"allOf": [
            {"type": "string", "pattern": "^(x|a(b|c)*b(b|c){24}d)$"}, {"pattern": "^(x|a(b|c)*c(b|c){24}e)$"}]})),
        ),
        (
            "many objects",
            schema(json!({"anyOf": many(1500, |i| object(vec![("k".into(), json!({"const": i}))]))})),
        ),
        ("nested alternatives", schema(nested)),
        (
            "a combination of many parts",
            schema(json!({"allOf": many(5000, |i| json!({"items": {"minimum": i}}))})),
        ),
        ("copies of a list", schema(copies)),
        ("a product of alternatives", schema(json!({ "allOf": choices }))),
        (
            "a chain of references",
            schema(json!({"$ref": "#/$defs/d0", "$defs": serde_json::Map::from_iter(chain)})),
        ),
        (
            "a reference to itself",
            schema(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
        ),
        ("classes of white space", classes_of_white_space()),
    ]
}

fn classes_of_white_space() -> Constraint {
    let class = |i: usize| format!("[{}a]", char::from_u32(0x4e00 + i as u32).unwrap());
    schema(json!({"type": "object", "x-guidance": {"whitespace_pattern": many(30_000, class).concat()}}))
}

fn expressions() -> Vec<(&'static str, Constraint)> {
    let regex = |text: &str| Constraint::Regex(text.to_owned());
    vec![
        ("a count", regex("a{1,100000}")),
        ("counts of counts", regex("((a{1,1000}){1,1000}){1,1000}")),
        ("an exponential expression", regex("(a|b)*a(a|b){500}c")),
        ("many classes", regex(&many(700, |i| format!("[\\w!{i}]{{1,9}}{i}")).join("|"))),
        ("classes of both cases", regex(&format!("(?i){}", many(480, |i| format!("[\\pL{i}]?")).concat()))),
        ("words", regex(&"(\\w+\\s?)+".repeat(200))),
        ("nested stars", regex(&format!("{}a*{}", "(".repeat(80), ")*".repeat(80)))),
        ("optional and needed", regex("(a?){1000}a{1000}")),
    ]
}

fn grammars() -> Vec<(&'static str, Constraint)> {
    let lark = |text: String| Constraint::Lark(text);
    let sums = |count: usize| many(count, |n| vec!["a"; n + 2].join(" ")).join(" | ");
    let chain = |name: &str| {
        let rules = many(2900, |i| format!("{name}{i}: {name}{}\n", i + 1)).concat();
        format!("start: {name}0\n{rules}{name}2900: \"x\"\n")
    };
    vec![
        ("an ambiguous grammar", lark(format!("start: a\na: {} | \"x\"\n", sums(28)))),
        ("an ambiguous grammar with nothing", lark("start: a\na: a a a a a | a a a | \"x\" | \"\"\n".into())),
        ("a large ambiguous grammar", lark(format!("start: a\na: {} | \"x\" | \"\"\n", sums(105)))),
        ("a chain of rules", lark(chain("r"))),
        ("a chain of terminals", lark(chain("T"))),
        ("deep brackets", lark(format!("start: {}\"a\"{}\n", "(".repeat(20_000), ")".repeat(20_000)))),
        ("repeated repetitions", lark("start: ((\"a\"|\"b\"){0,1000} (\"a\" \"b\"?){0,1000}){0,1000}\n".into())),
        ("many alternatives", lark(format!("start: {}\n", many(2900, |i| format!("\"w{i}\"")).join(" | ")))),
        ("a complement", lark("start: A\nA: /(.|\\n)*/ & ~(/(.|\\n)*a(.|\\n){18}x(.|\\n)*/ | /(.|\\n)*[^a](.|\\n){18}y(.|\\n)*/)\n".into())),
        ("a substring", lark(format!("start: S\nS: %regex {{\"substring_chars\": \"{}\"}}\n", "abcdefghij".repeat(3000)))),
        ("a schema inside", lark("start: %json {\"type\": \"integer\", \"multipleOf\": 10000019}\n".into())),
    ]
}

/// Follows the grammar with random tokens.
fn follow(guide: &mut Guide) -> Result<(), String> {
    let mut random = 1u64;
    for _ in 0..STEPS {
        let Allowed::Tokens(mask) = guide.allowed()? else { return Ok(()) };
        let tokens: Vec<Token> = mask.iter().collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if guide.accept(tokens[(random >> 33) as usize % tokens.len()])? {
            return Ok(());
        }
    }
    Ok(())
}

/// Peak memory of this process; 0 if the system does not report it.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) << 10
}

#[test]
fn the_worst_grammars_stay_within_time_and_memory() {
    let before = peak_bytes();
    let pool = CompilerPool::new(compiler());
    let (sender, outcomes) = channel();
    for (name, constraint) in [schemas(), expressions(), grammars()].concat() {
        let started = Instant::now();
        pool.compile(TenantId(0), &constraint, Box::new(Client(sender.clone()))).unwrap();
        let compiled = outcomes.recv_timeout(Duration::from_secs(60)).expect(name);
        let compile_time = started.elapsed();
        let outcome = compiled.map_err(|error| error.to_string()).and_then(|mut guide| follow(&mut guide));
        let time = started.elapsed();
        let outcome = outcome.err().unwrap_or_default();
        println!("{name}: {compile_time:?} of {time:?}, {} MB, {outcome:.120}", peak_bytes() >> 20);
        assert!(compile_time < TIME_MAX, "{name}: compiled in {compile_time:?}");
        assert!(time < TIME_MAX * 2, "{name}: {time:?}");
    }
    let grown = peak_bytes() - before;
    assert!(grown < GROWTH_MAX, "{} MB", grown >> 20);
}
