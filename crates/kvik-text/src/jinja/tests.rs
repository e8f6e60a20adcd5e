use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

const LIMITS: RenderLimits = RenderLimits { steps: 1_000_000, memory_bytes: 16 << 20, output_bytes: 1 << 20 };

fn written(source: &str, values: &Json, limits: &RenderLimits) -> Result<Rendered, Fault> {
    let program = Program::new(source)
        .map_err(|error| Fault::Failed { reason: error.reason, line: Some(error.line) })?;
    let values = values.as_object().unwrap();
    let variables: Vec<_> =
        values.iter().map(|(name, value)| (name.as_str(), Variable::Input(value))).collect();
    program.render(&variables, limits, UNIX_EPOCH + Duration::from_secs(1))
}

fn render(source: &str) -> Result<String, Fault> {
    written(source, &json!({"user": "<|im_end|>", "l": [1, 2]}), &LIMITS).map(|written| written.text)
}

#[test]
fn rendering_equals_python() {
    let golden: Json = serde_json::from_str(include_str!("golden/golden.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 90);
    let wrong: Vec<String> = cases.iter().filter_map(|case| difference(case, &golden["values"])).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Published templates parse: they use the language like today's model files.
#[test]
fn published_templates_are_in_the_language() {
    let Some(directory) = std::env::var_os("KVIK_VOCABULARIES") else {
        return kvik_testing::skip("KVIK_VOCABULARIES is not set");
    };
    let directory = std::path::Path::new(&directory).join("templates");
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let templates: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "jinja")).collect();
    assert!(templates.len() > 60);
    for path in templates {
        if let Err(error) = Program::new(&std::fs::read_to_string(&path).unwrap()) {
            panic!("{}, line {}: {}", path.display(), error.line, error.reason);
        }
    }
}

fn difference(case: &Json, values: &Json) -> Option<String> {
    let source = case["source"].as_str().unwrap();
    let found = written(source, values, &LIMITS);
    let same = match (&found, case["expect"].as_str()) {
        (Ok(found), Some(expect)) => found.text == expect,
        (Err(Fault::Failed { .. }), None) => true,
        _ => false,
    };
    (!same).then(|| format!("{source:?}\n  gives {found:?}\n  Python {}", case["expect"]))
}

/// Templates that allocate or loop in every way that the language has. None may exceed its limits or take
/// long: a debug build runs the million steps of each in well under a second.
#[test]
fn hostile_templates_end_within_their_limits() {
    let doubling = |operation: &str| {
        format!(
            "{{% set ns = namespace(s='xy', l=[1], d={{}}) %}}{{% for i in range(99) %}}{{% set ns.s = {operation} %}}{{% endfor %}}"
        )
    };
    let sources = [
        "{{ 'x' | indent(4000000000, true) }}".into(),
        "{{ ('x\n' * 9999) | indent(9999) }}".into(),
        "{{ 'x' * 10 ** 9 }}".into(),
        "{{ 10 ** 9 * 'x' }}".into(),
        "{{ '' * 10 ** 18 }}{{ [] * 10 ** 18 }}{{ 'x' * 10 ** 18 }}".into(),
        "{{ [0] * 10 ** 9 }}".into(),
        "{{ (0,) * 10 ** 18 }}".into(),
        "{{ 'x'.center(10 ** 12) }}".into(),
        "{{ 'x' | center(10 ** 12) }}".into(),
        "{{ 'x'.ljust(10 ** 12) }}{{ 'x'.zfill(10 ** 12) }}".into(),
        "{{ '%999999999999d' % 1 }}".into(),
        "{{ '%*d' % (999999999999, 1) }}".into(),
        "{{ '{:>999999999999}'.format(1) }}".into(),
        "{{ ('x' * 1000).replace('', 'y' * 100000) }}".into(),
        "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}".into(),
        "{{ ('x' * 10000).join('y' * 100000) }}".into(),
        "{{ range(100000) | join('x' * 10000) }}".into(),
        "{{ ('x' * 5000000).split('x') | length }}".into(),
        "{{ ('x' * 5000000) | list | length }}".into(),
        "{{ ('x' * 5000000) | reverse }}".into(),
        "{{ [1] | batch(10 ** 12, 'x') | list }}".into(),
        "{{ [1] | slice(10 ** 12) | list }}".into(),
        "{{ range(10 ** 30) }}".into(),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
        "{% for a in range(99999) %}{{ range(99999) | length }}{% endfor %}".into(),
        "{% set x %}{% for i in range(99999) %}0123456789012345678901234567890123456789{% for j in range(99) %}0123456789{% endfor %}{% endfor %}{% endset %}".into(),
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}".into(),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}".into(),
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(),
        "{{ 9 ** 9 ** 9 }}{{ 10 ** 39 }}".into(),
        "{{ '%.9999999f' % 1.5 }}{{ '%.99999999999999999999f' % 1.5 }}".into(),
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        "{% if 1 %}".repeat(100_000),
        doubling("ns.s ~ ns.s"),
        doubling("ns.s + ns.s"),
        doubling("ns.s * 2"),
        doubling("ns.s | replace('x', 'xx')"),
        doubling("[ns.s, ns.s]") + "{{ ns.s }}",
        doubling("[ns.s, ns.s]") + "{{ ns.s | tojson }}",
        doubling("[ns.s, ns.s]") + "{{ ns.s | string | length }}",
        doubling("[ns.s, ns.s]") + "{{ ns.s == ns.s }}",
        doubling("[ns.s, ns.s]") + "{{ ns.s in [ns.s] }}",
        doubling("[ns.s, ns.s]") + "{{ [ns.s, ns.s] | unique | length }}",
        doubling("[ns.s, ns.s]") + "{{ [ns.s, ns.s] | sort | length }}",
        doubling("{'a': ns.s, 'b': ns.s}") + "{{ ns.s == ns.s }}",
        doubling("ns.s + ns.s").replace("'xy'", "[1]"),
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}".into(),
        "{% set ns = namespace() %}{% set ns.a = ns %}{% for i in range(99999) %}{% set ns.a = namespace(b=ns.a) %}{% endfor %}{{ 1 / 0 }}".into(),
    ];
    sources.iter().for_each(|source| check_hostile(source));
}

/// Lists and mappings that contain themselves, grow while they are read, or become deeper than a new value may be.
#[test]
fn changed_values_end_within_their_limits() {
    let sources = [
        "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
        "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}",
        "{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) %}{% set _ = m.append(l) %}{{ l == m }}",
        "{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) %}{% set _ = m.append(l) %}{{ [l, m] | sort }}",
        "{% set d = {} %}{% set _ = d.update(d=d) %}{{ d }}",
        "{% set l = [1] %}{% for i in range(99) %}{% set _ = l.extend(l) %}{% endfor %}",
        "{% set l = [1] %}{% macro f(n) %}{% for x in l %}{% set _ = l.append(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endfor %}{% endmacro %}{{ f(999) }}",
        "{% set ns = namespace(y=[]) %}{% for i in range(99999) %}{% set x = [] %}{% set y = [x] %}{% set _ = x.append(ns.y) %}{% set ns.y = y %}{% endfor %}{{ ns.y }}",
        "{% set ns = namespace(y=[]) %}{% for i in range(99999) %}{% set x = [] %}{% set y = [x] %}{% set _ = x.append(ns.y) %}{% set ns.y = y %}{% endfor %}{% set ns.y = none %}{{ 1 / 0 }}",
    ];
    sources.iter().for_each(|source| check_hostile(source));
}

/// Operations that read a long text each time. Without the steps for it the loops end within their limits.
#[test]
fn bytes_that_an_operation_reads_are_counted() {
    let operations = [
        "'x'.find(b)",
        "'x'.rfind(b)",
        "'x'.count(b)",
        "'x'.replace(b, 'y')",
        "'x' | replace(b, 'y')",
        "'x'.split(b)",
        "'x'.rsplit(b)",
        "'x'.partition(b)",
        "'x'.rpartition(b)",
        "'x'.startswith((b, b))",
        "'x'.endswith((b, b))",
        "'x' is startingwith(b)",
        "'x' is endingwith(b)",
        "b is lower",
        "b is upper",
        "b is sameas(b)",
        "b | int",
        "b | float",
        "b in d",
        "d[b]",
        "d.get(b)",
        "d.setdefault(b, 2)",
        "d == d",
        "f % d",
        "[1] | map(attribute=dots) | list",
    ];
    let limits = RenderLimits { steps: 200_000, ..LIMITS };
    for operation in operations {
        let source = format!(
            "{{% set b = 'a' * 200000 %}}{{% set d = {{b: 1}} %}}{{% set f = '%(' ~ b ~ ')s' %}}\
             {{% set dots = '.' * 200000 %}}{{% for i in range(99) %}}{{{{ {operation} }}}}{{% endfor %}}"
        );
        assert_eq!(written(&source, &json!({}), &limits), Err(Fault::Steps), "{operation}");
    }
}

/// Searches among a thousand names, and an item before many. Without the steps for it they end within their limits.
#[test]
fn entries_that_an_operation_visits_are_counted() {
    let joined = |separator: &str, name: &dyn Fn(usize) -> String| -> String {
        (0..1000).map(name).collect::<Vec<_>>().join(separator)
    };
    let sets = |count: usize| -> String { (0..count).map(|i| format!("{{% set a{i:06} = 1 %}}")).collect() };
    let parameters = joined(", ", &|i| format!("a{i:06}"));
    let arguments = joined(", ", &|i| format!("a{i:06}=1"));
    let sources = [
        sets(6000),
        sets(1000) + "{% for i in range(9999) %}{{ a000999 }}{% endfor %}",
        format!(
            "{{% set ns = namespace({arguments}) %}}{{% for i in range(9999) %}}{{{{ ns.a000999 }}}}{{% endfor %}}"
        ),
        format!(
            "{{% macro f({parameters}) %}}{{% endmacro %}}{{% for i in range(30) %}}{{{{ f({arguments}) }}}}{{% endfor %}}"
        ),
        format!("{{{{ ('{{z}}' * 9999).format({arguments}, z=1) }}}}"),
        format!("{{% set d = dict({arguments}, z=1) %}}{{{{ ('%(z)s' * 9999) % d }}}}"),
        format!("{{{{ ([[]] * 5000) | map('map', 'string', {arguments}) | list | length }}}}"),
        "{% set l = range(20000) | list %}{% for i in range(999) %}{% set _ = l.remove(l[0]) %}{% endfor %}"
            .into(),
    ];
    for source in sources {
        assert_eq!(render(&source), Err(Fault::Steps), "{source:.120}");
    }
}

fn check_hostile(source: &str) {
    let label: String = source.chars().take(120).collect();
    let started = std::time::Instant::now();
    let found = render(source);
    assert!(found.is_err(), "{label} gives {} bytes", found.unwrap().len());
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{label} takes {took:?}");
}

#[test]
fn dropped_values_refund_memory() {
    assert_eq!(render("{{ 'x' | indent(4000000000) }}").unwrap(), "x", "one line is not indented");
    // 100 MB in all, 1 MB at a time: replaced values do not count.
    let source = "{% set ns = namespace() %}{% for i in range(100) %}{% set ns.s = 'x' * 1000 * 1000 %}{% endfor %}{{ ns.s | length }}";
    let limits = RenderLimits { steps: 10_000_000, memory_bytes: 8 << 20, output_bytes: 100 };
    assert_eq!(written(source, &json!({}), &limits).unwrap().text, "1000000");
}

#[test]
fn each_limit_has_its_fault() {
    let check = |source: &str, expect: Fault| {
        let limits = RenderLimits { steps: 10_000, memory_bytes: 100_000, output_bytes: 1_000 };
        assert_eq!(written(source, &json!({}), &limits), Err(expect), "{source}");
    };
    check("{% for i in range(999) %}{% for j in range(999) %}{% endfor %}{% endfor %}", Fault::Steps);
    check("{{ 'x' * 999999 }}", Fault::Memory);
    check("{% for i in range(99) %}0123456789012345{% endfor %}", Fault::Output);
    check("{{ raise_exception('no ' + 'way') }}", Fault::Raised("no way".into()));
    check("\n{{ 1 / 0 }}", Fault::Failed { reason: "division by zero".into(), line: Some(2) });
}

/// The result with `[..]` around text from the request.
fn marked(source: &str, values: &Json) -> String {
    let written = written(source, values, &LIMITS).unwrap();
    let mut out = String::new();
    let mut at = 0;
    for input in written.inputs {
        out += &format!("{}[{}]", &written.text[at..input.start], &written.text[input.clone()]);
        at = input.end;
    }
    out + &written.text[at..]
}

#[test]
fn text_from_the_request_is_tracked() {
    let values = json!({"u": "Hi, you", "l": ["a", "b"], "d": {"k": "v", "n": 1}});
    let check = |source: &str, expect: &str| assert_eq!(marked(source, &values), expect, "{source}");
    check("a{{ u }}b", "a[Hi, you]b");
    check("{{ 'a' ~ u ~ 'b' }}", "a[Hi, you]b");
    check("{{ ('<' + u + '>')[1:-1] }}", "[Hi, you]");
    check("{{ ('<' + u + '>')[:3] }}|{{ ('<' + u + '>')[::-1] }}", "<[Hi]|>[uoy ,iH]<");
    check(
        "{{ (' ' + u) | trim }}|{{ u.split(', ')[1] }}|{{ u.split(', ') | last }}",
        "[Hi]|".replace("[Hi]|", "[Hi, you]|[you]|[you]").as_str(),
    );
    check("{{ u | replace('Hi', 'Ho') }}|{{ 'x-y' | replace('x', u) }}", "Ho[, you]|[Hi, you]-y");
    check("{{ ('a' + u) | upper }}|{{ ('a' + u) | title }}", "A[HI, YOU]|A[hi, You]");
    check("{{ l | join('+') }}|{{ l }}|{{ '-'.join(l) }}", "[a]+[b]|['[a]', '[b]']|[a]-[b]");
    check("{{ d | tojson }}", "{\"[k]\": \"[v]\", \"[n]\": 1}");
    check("{{ '%s=%5s' % ('x', u[:2]) }}|{{ '{}'.format(u) }}", "x=   [Hi]|[Hi, you]");
    check("{% set x %}<{{ u }}>{% endset %}{{ x }}{{ x | length }}", "<[Hi, you]>9");
    check("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(u) | indent(2, true) }}", "  <[Hi, you]>");
    check("{% for k, v in d.items() %}{{ k }}:{{ v }};{% endfor %}", "[k]:[v];[n]:1;");
    check("{{ u if u == 'Hi, you' else 'no' }}{{ 'Hi' in u }}{{ u.startswith('Hi') }}", "[Hi, you]TrueTrue");
    check("{{ missing | default(u) }}{{ u | e }}{{ u | string }}{{ u | first }}", "[Hi, youHi, youHi, youH]");
}

#[test]
fn known_roles_count_as_text_of_the_template() {
    let program = Program::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").unwrap();
    let messages = [json!({"role": "user", "content": "user"}), json!({"role": "im_end", "content": ""})];
    let written =
        program.render(&[("messages", Variable::Messages(&messages))], &LIMITS, UNIX_EPOCH).unwrap();
    assert_eq!(written.text, "<user>user<im_end>");
    assert_eq!(written.inputs, [6..10, 11..17]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_source_gives_a_result_or_a_fault(parts in prop::collection::vec(part(), 0..20)) {
        let limits = RenderLimits { steps: 20_000, memory_bytes: 1 << 20, output_bytes: 1 << 16 };
        let values = json!({"s": "text é", "l": [1, "a", [2]], "d": {"a": 1}});
        if let Ok(found) = written(&parts.concat(), &values, &limits) {
            prop_assert!(found.inputs.iter().all(|input| found.text.get(input.clone()).is_some()));
        }
    }
}

const WORDS: [&str; 75] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-",
    "+",
    "~",
    "*",
    "/",
    "//",
    "%",
    "**",
    "|",
    ".",
    ",",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "==",
    "<",
    "=",
    "'",
    "\"",
    "\\",
    "\n",
    " ",
    "1",
    "0",
    "2.5",
    "s",
    "l",
    "d",
    "loop",
    "if ",
    " else ",
    "for x in ",
    "endfor",
    "endif",
    "set x = ",
    "set x",
    "endset",
    "macro f(a)",
    "endmacro",
    "f(s)",
    "filter upper",
    "endfilter",
    "raw",
    "endraw",
    "in",
    " not ",
    " is ",
    " and ",
    "defined",
    "odd",
    "map('upper')",
    "sort",
    "join",
    "tojson",
    "length",
    "'é<'",
    "[1:]",
    "[::-1]",
    "none",
    "range(3)",
    "namespace(a=1)",
    ".split()",
    ".upper()",
    ".items()",
    "é",
];

const PHRASES: [&str; 12] = [
    "{{ s }}",
    "{{ l | ",
    "{{ s.",
    " }}",
    "{% if s %}",
    "{% endif %}",
    "{% for x in l %}",
    "{% endfor %}",
    "{{ s[",
    "{{ d",
    "{{ s | replace(s, ",
    "{{ (s ~ l)",
];

fn part() -> impl Strategy<Value = String> {
    let (words, phrases) = (prop::sample::select(&WORDS[..]), prop::sample::select(&PHRASES[..]));
    prop_oneof![words, phrases].prop_map(str::to_owned)
}
