//! Grammars compared with a recogniser without lexemes: a term is the relation between the positions of a text
//! where a match may begin and end.

use proptest::prelude::*;

use super::super::COMPILER_FAILED;
use super::super::tests::{accepts, compiler};
use super::parse::{Grammar, parse};
use super::*;
use crate::forms::{Constraint, ConstraintError};

/// Maximum steps of a grammar of [`worst_grammars`]: tens of milliseconds in a release build.
const STEPS_WORST: usize = 20_000_000;

/// Pairs of positions of a text, by beginning and end.
type Relation = Vec<Vec<bool>>;

/// Whether a grammar accepts a text: the relations of all rules grow to a fixed point.
fn recognises(grammar: &Grammar, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let size = text.len() + 1;
    let nothing = vec![vec![false; size]; size];
    let mut rules = vec![nothing; grammar.rules.len()];
    loop {
        let next: Vec<Relation> = grammar.rules.iter().map(|term| relation(term, &rules, &text)).collect();
        if next == rules {
            return rules[0][0][size - 1];
        }
        rules = next;
    }
}

fn relation(term: &Term, rules: &[Relation], text: &[char]) -> Relation {
    let size = text.len() + 1;
    let of = |holds: &dyn Fn(usize, usize) -> bool| -> Relation {
        (0..size).map(|i| (0..size).map(|j| holds(i, j)).collect()).collect()
    };
    let then = |a: &Relation, b: &Relation| of(&|i, j| (0..size).any(|k| a[i][k] && b[k][j]));
    let or = |a: &Relation, b: &Relation| of(&|i, j| a[i][j] || b[i][j]);
    let same = of(&|i, j| i == j);
    match term {
        Term::Text(one) => of(&|i, j| i <= j && text[i..j].iter().copied().eq(one.chars())),
        Term::Class(set) => of(&|i, j| j == i + 1 && set.contains(text[i])),
        Term::Rule(rule) => rules[*rule].clone(),
        Term::Token(_) => panic!("no text is a token"),
        Term::Sequence(terms) => {
            terms.iter().fold(same, |so_far, term| then(&so_far, &relation(term, rules, text)))
        }
        Term::Choice(terms) => {
            terms.iter().fold(of(&|_, _| false), |so_far, term| or(&so_far, &relation(term, rules, text)))
        }
        Term::Repeat(term, min, max) => {
            let once = relation(term, rules, text);
            let mut times = (0..*min).fold(same, |so_far, _| then(&so_far, &once));
            // More non-empty repetitions do not fit in the text.
            for _ in 0..max.map_or(size, |max| (max - min) as usize) {
                times = or(&times, &then(&times, &once));
            }
            times
        }
    }
}

/// Characters of the grammars: two of them begin with the same byte.
const LETTERS: [&str; 4] = ["a", "b", "é", "è"];

fn term(rules: usize) -> impl Strategy<Value = String> {
    let letter = prop::sample::select(&LETTERS[..]);
    let literal =
        prop::collection::vec(letter.clone(), 1..4).prop_map(|text| format!("\"{}\"", text.concat()));
    let class = prop::collection::vec(letter, 1..3).prop_map(|text| format!("[{}]", text.concat()));
    let others = prop::sample::select(vec!["[^a]", "[a-b]", ".", "\"\""]).prop_map(str::to_owned);
    let rule = (0..rules).prop_map(|i| if i == 0 { "root".to_owned() } else { format!("r{i}") });
    let leaf = prop_oneof![3 => literal, 2 => class, 1 => others, 4 => rule];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let operator = prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}", "{2,}"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|terms| terms.join(" ")),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|terms| format!("({})", terms.join(" | "))),
            (inner, operator).prop_map(|(term, operator)| format!("({term}){operator}")),
        ]
    })
}

fn grammars() -> impl Strategy<Value = String> {
    (1usize..4).prop_flat_map(|rules| {
        prop::collection::vec((term(rules), term(rules)), rules).prop_map(|bodies| {
            let name = |i: usize| if i == 0 { "root".to_owned() } else { format!("r{i}") };
            let line = |(i, (a, b)): (usize, &(String, String))| format!("{} ::= {a} | {b}", name(i));
            bodies.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
        })
    })
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    let text = prop::collection::vec(prop::sample::select(&LETTERS[..]), 0..7).prop_map(|text| text.concat());
    prop::collection::vec(text, 12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(kvik_testing::effort(50, 400)))]

    #[test]
    fn lark_accepts_what_gbnf_accepts(gbnf in grammars(), texts in texts()) {
        let grammar = parse(&gbnf).unwrap();
        let lark = to_lark(&gbnf);
        if lark == Err(GbnfError::NeverEnds) {
            prop_assert!(!texts.iter().any(|text| recognises(&grammar, text)), "{}", gbnf);
            return Ok(());
        }
        let lark = lark.unwrap();
        let constraint = Constraint::Lark(lark.clone());
        let compiled = compiler().compile(&constraint).map(|_| ());
        // derivre 0.3 panics if two alternatives match the same bytes with different expressions:
        // `"éé" | [é] [é]`.
        prop_assume!(compiled != Err(ConstraintError::Unusable(COMPILER_FAILED.to_owned())));
        prop_assert_eq!(compiled, Ok(()), "{}\n{}", gbnf, lark);
        for text in texts {
            prop_assert_eq!(accepts(&constraint, &text), recognises(&grammar, &text), "{:?} of\n{}\n{}", text, gbnf, lark);
        }
    }

    #[test]
    fn no_text_is_read_without_end(text in "[a-c\"\\[\\]()|*+?{},:=<>!. \n#\\\\0-9-]{0,60}") {
        let _ = to_lark(&text);
        let _ = to_lark(&format!("root ::= {text}"));
    }
}

fn check(gbnf: &str, accepted: &[&str], refused: &[&str]) {
    let lark = to_lark(gbnf).unwrap_or_else(|error| panic!("{gbnf}: {error}"));
    let constraint = Constraint::Lark(lark.clone());
    let grammar = parse(gbnf).unwrap();
    for (texts, expect) in [(accepted, true), (refused, false)] {
        for text in texts {
            assert_eq!(accepts(&constraint, text), expect, "{text:?} of\n{gbnf}\n{lark}");
            assert_eq!(recognises(&grammar, text), expect, "{text:?} of {gbnf}, naively");
        }
    }
}

#[test]
fn the_forms_of_gbnf() {
    check("root ::= \"a\"{5,5}", &["aaaaa"], &["aaaa", "aaaaaa"]);
    check(
        "# what it is\nroot ::= # begins\n  \"x\" |\n  ( \"y\"\n \"z\" ) # ends\n",
        &["x", "yz"],
        &["y", ""],
    );
    check(r#"root ::= "\x41\u00e9\U0001F600\n\"\\[\]\-""#, &["Aé😀\n\"\\[]-"], &["A"]);
    check("root ::= [^\\n\"]+ [a-]", &["bc-", "é\u{7f}a"], &["a\na", "a"]);
    check("root ::= .{2}", &["\né", "ab"], &["a", "abc"]);
    check("root ::= a-b_C2\r\na-b_C2 ::= \"x\"?\r\n", &["x", ""], &["xx"]);
    check("root ::= \"a\"{0} \"b\"{,2}".replace("{,2}", "{0,2}").as_str(), &["", "bb"], &["a", "bbb"]);
    check("root ::= \"a\"\nroot ::= \"b\"", &["b"], &["a"]);
    check("root ::= [\\uD7FF-\\uE000]", &["\u{D7FF}", "\u{E000}"], &["a"]);
    let marks = r##"root ::= "/ #-^&~<>()[]{}|*+?.$\\" [/#^\]-]"##;
    check(marks, &[r"/ #-^&~<>()[]{}|*+?.$\/", r"/ #-^&~<>()[]{}|*+?.$\^"], &[r"/ #-^&~<>()[]{}|*+?.$\a"]);
}

/// A grammar counts as it is written, not as it is translated.
#[test]
fn many_names_are_compiled_in_every_script() {
    for (count, name) in [(520, "北京市海淀区"), (1_510, "New York ")] {
        let names: Vec<String> = (0..count).map(|i| format!("\"{name}{i}\"")).collect();
        let lark = to_lark(&format!("root ::= {}", names.join(" | "))).unwrap();
        let constraint = Constraint::Lark(lark);
        assert!(accepts(&constraint, &format!("{name}{}", count - 1)), "{name}");
        assert!(!accepts(&constraint, &format!("{name}{count}")), "{name}");
    }
}

#[test]
fn recursion_at_the_end_of_a_rule_repeats() {
    let gbnf = "root ::= ws \"x\" ws\nws ::= ([ \\t\\n] ws)?";
    check(gbnf, &["x", " \n x\t"], &["", "xx", "x x"]);
    assert_eq!(to_lark(gbnf).unwrap().lines().filter(|line| line.starts_with('r')).count(), 0);
    check("root ::= \"a\" root | \"b\" (\"c\" root | \"d\")", &["abcbd", "bd"], &["b", "abc"]);
}

#[test]
fn recursion_that_is_none_of_a_regular_language() {
    check("root ::= \"(\" root \")\" | \"\"", &["", "(())"], &["(()", "())"]);
    check("root ::= root \"a\" | \"a\"", &["a", "aaa"], &["", "b"]);
    check("root ::= \"a\" root \"a\" | \"aa\" | \"a\"", &["a", "aa", "aaa", "aaaa", "aaaaaa"], &["", "b"]);
    check("root ::= [a-z]+ \"b\" root? \"c\"", &["abc", "abbabcc"], &["abab", "bc"]);
}

#[test]
fn ways_that_never_end_are_not_taken() {
    check("root ::= [b] (r1) | [a]\nr1 ::= (r1)+ | (r1)+", &["a"], &["b", "", "ab"]);
    check("root ::= \"a\" (\"b\" r1)* r2?\nr1 ::= \"c\" r2\nr2 ::= r1", &["a"], &["ab", "abc", "ac"]);
}

/// Some begin with characters that an answer could have: they are refused in advance.
#[test]
fn a_grammar_of_which_no_way_ends_is_refused() {
    for gbnf in [
        "root ::= root",
        "root ::= root | [a] r1\nr1 ::= (r1) | r1",
        "root ::= \"a\" r1\nr1 ::= \"b\" r1 \"c\"",
    ] {
        assert_eq!(to_lark(gbnf), Err(GbnfError::NeverEnds), "{gbnf}");
    }
}

#[test]
fn json_is_cut_into_its_tokens() {
    let gbnf = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    let accepted = [r#"{"a": [1, -2.5e3, "x\u00e9", {}, true], "b": null}"#, "{}", "{ \"a\":\n  1}"];
    check(gbnf, &accepted, &["[]", r#"{"a": 01}"#, r#"{"a" 1}"#, r#"{"a":  1}"#]);
    // A string is one lexeme: its thousands of tokens are not split.
    let lark = to_lark(gbnf).unwrap();
    let steps = Steps::at_most(STEPS_MAX);
    let grammar = regular::Rules::of(parse(gbnf).unwrap(), &steps).unwrap();
    let lowered = lower(&grammar, &Cut::default(), &steps).unwrap();
    assert_eq!(overlap::find(&grammar, &lowered, &steps), Ok(Overlap::Nothing), "{lark}");
}

#[test]
fn errors_name_the_place() {
    let fail = |gbnf: &str| to_lark(gbnf).unwrap_err().to_string();
    assert_eq!(fail("root ::= \"a\"\n  b ::= x"), "line 2, column 9: the rule `x` is not defined");
    assert_eq!(fail("root = \"a\""), "line 1, column 6: `::=` is expected after the name `root`");
    assert!(fail("root ::= \"é\" \"").starts_with("line 1, column 14: a literal begins here"));
    assert!(fail("root ::= (\"a\"").contains("`)` is expected"));
    assert!(fail("root ::= [b-a]").contains("column 11: the range is empty"));
    assert!(fail("root ::= []").contains("column 10: the class holds no character"));
    assert!(fail("root ::= \"\\q\"").contains("column 11: the escapes are"));
    assert!(fail("root ::= \"\\uD800\"").contains("U+D800"));
    assert!(fail("root ::= *").contains("nothing before it"));
    assert!(fail("root ::= \"a\"{3,2}").contains("ends before it begins"));
    assert!(fail("root ::= \"a\" \"b\" ]").contains("the end of the line"));
    assert!(fail("x ::= \"a\"").contains("`root`"));
    assert!(fail("").contains("`root`"));
    assert!(fail(&"x".repeat(100_000)).contains("the limit is 65536"));
    assert!(fail(&format!("root ::= {}", "(".repeat(100))).contains("deeper"));
    assert!(fail(&format!("root ::= \"a\"{}", "*".repeat(100))).contains("repetitions follow"));
}

/// Short grammars whose translation is expensive.
fn worst_grammars() -> Vec<(&'static str, String)> {
    let chain = |n: usize, by: &str| {
        (0..n).map(|i| format!("r{i} ::= r{} {by} r{}\n", i + 1, i + 1)).collect::<String>()
    };
    let backwards: String = (0..1900).map(|i| format!("r{} ::= \"(\" r{i} \")\"\n", i + 1)).collect();
    // Each rule refers to one at the other end, so that a sweep over the rules never propagates more than one
    // step.
    let count = 1000;
    let far = |i: usize| if i < count / 2 { count - 1 - i } else { count - i };
    let to_and_fro = (0..count).filter(|&i| far(i) < count && i != count / 2);
    let to_and_fro: String =
        to_and_fro.map(|i| format!("z{i} ::= z{} [ab] [ab] [ab] [ab] [ab]\n", far(i))).collect();
    vec![
        ("doubling", format!("root ::= r0\n{}r1000 ::= \"a\"", chain(1000, ""))),
        ("doubled choices", format!("root ::= \"x\" r0 | root \"y\" root\n{}r150 ::= \"\"", chain(150, "|"))),
        ("overlapping", format!("root ::= ({})* root?", vec!["[a-y]"; 4000].join("|"))),
        ("backwards", format!("root ::= r1900\n{backwards}r0 ::= \"\" | \"x\" root")),
        ("to and fro", format!("root ::= z0 root \"x\" | \"y\"\n{to_and_fro}z{} ::= \"\"", count / 2)),
        ("nested", format!("root ::= {}\"a\"{}", "(\"a\" ".repeat(60), ")?".repeat(60))),
    ]
}

#[test]
fn the_worst_grammars_end() {
    for (name, gbnf) in worst_grammars() {
        let steps = Steps::at_most(STEPS_MAX);
        let lark = to_lark_within(&gbnf, &steps);
        println!("{name}: {} steps, {:?}", steps.taken(), lark.as_ref().map(String::len));
        assert!(steps.taken() < STEPS_WORST, "{name} took {} steps", steps.taken());
        let fewer = to_lark_within(&gbnf, &Steps::at_most(steps.taken() / 2));
        assert!(matches!(fewer, Err(GbnfError::TooLarge { .. })), "{name}: the limit ends it");
        if let Ok(lark) = lark {
            // llguidance has its own limits on its work, some in counts and some in time.
            let compile = move || compiler().compile(&Constraint::Lark(lark)).is_ok();
            let thread = std::thread::Builder::new().stack_size(super::super::limits::STACK_BYTES);
            thread.spawn(compile).unwrap().join().unwrap();
        }
    }
}
