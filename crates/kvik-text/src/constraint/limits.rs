//! Limits on the cost of a constraint, checked before it is compiled.
//!
//! llguidance limits its own work ("fuel") nearly everywhere. This module covers the two gaps: it runs
//! the first 256 steps of the lexer with fuel, because a `multipleOf` with a large divisor explores one
//! state for each remainder there; and it bounds the length of grammars, because llguidance recurses
//! along rules and references, so that its stack is large enough ([`STACK_BYTES`]).

use llguidance::api::ParserLimits;
use llguidance::earley::lexerspec::LexerSpec;

/// Maximum bytes of a schema, and of the tools of one request.
pub(super) const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of a grammar generated from a schema, in which each part of the schema is in several rules.
const GENERATED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum bytes of a regular expression: each of its classes can cost thousands of nodes.
pub const REGEX_BYTES_MAX: usize = 16 * 1024;
/// Maximum bytes of a Lark grammar.
const LARK_BYTES_MAX: usize = 64 * 1024;
/// Maximum names and literals of a Lark grammar: the first row of its parser is quadratic in them
/// if it is ambiguous, and a chain of rules takes 5 KB of stack for each.
const LARK_WORDS_MAX: usize = 6_000;
/// Maximum classes such as `\pL` and `\w` in an expression or grammar: each can have hundreds of
/// ranges, which take up to 230 us, and 35 KB.
const UNICODE_CLASSES_MAX: usize = 500;
/// Stack of a compiling thread: several times the need of the deepest permitted grammar.
pub(super) const STACK_BYTES: usize = 64 << 20;
/// Maximum fuel for building a lexer: 20 ms, and 6 MB.
const LEXER_FUEL_MAX: u64 = 1_000_000;
/// Maximum fuel for one mask.
const MASK_FUEL_MAX: u64 = 200_000;
/// Maximum symbols of a grammar.
const GRAMMAR_SYMBOLS_MAX: usize = 30_000;
/// Maximum states of a lexer, 1 to 2 KB each.
const LEXER_STATES_MAX: usize = 10_000;
/// Maximum parser items for one mask; comparing them is quadratic.
const MASK_ITEMS_MAX: usize = 20_000;

/// Approximate bytes of a symbol of a compiled grammar.
const SYMBOL_BYTES: usize = 500;

/// The limits that llguidance enforces itself.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: LEXER_FUEL_MAX,
        step_lexer_fuel: MASK_FUEL_MAX,
        max_grammar_size: GRAMMAR_SYMBOLS_MAX,
        max_lexer_states: LEXER_STATES_MAX,
        step_max_items: MASK_ITEMS_MAX,
        // The precomputation walks the whole vocabulary for each large lexeme, without a limit on their number.
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Runs the first steps of the lexer as llguidance will, but with fuel. Returns the size of the lexer in
/// bytes after them.
pub(super) fn probe_lexer(spec: &LexerSpec, extra_lexemes: &[String]) -> Result<usize, String> {
    let mut limits = parser_limits();
    let mut spec = spec.clone();
    spec.add_extra_lexemes(extra_lexemes);
    let too_complex = |error: &str| {
        format!(
            "it is too complex to be enforced while decoding ({error}); use shorter patterns, a smaller `multipleOf` or smaller counts"
        )
    };
    let mut lexer = spec.to_regex_vec(&mut limits).map_err(|error| too_complex(&error.to_string()))?;
    lexer.set_fuel(LEXER_FUEL_MAX);
    lexer.set_max_states(LEXER_STATES_MAX);
    let start = lexer.initial_state(&spec.all_lexemes());
    for byte in 0..=u8::MAX {
        lexer.transition(start, byte);
        if let Some(error) = lexer.get_error() {
            return Err(too_complex(&error));
        }
    }
    Ok(lexer.num_bytes())
}

/// Approximate bytes of a compiled grammar.
pub(super) fn grammar_bytes(symbols: usize, lexer_bytes: usize) -> usize {
    // Once in the grammar's lexer and once in the parser's.
    symbols * SYMBOL_BYTES + 2 * lexer_bytes
}

/// Refuses a long schema.
pub(super) fn check_schema_bytes(bytes: usize) -> Result<(), String> {
    at_most("bytes", bytes, SCHEMA_BYTES_MAX)
}

/// Refuses a long grammar of a schema.
pub(super) fn check_generated(bytes: usize) -> Result<(), String> {
    at_most("bytes as a grammar", bytes, GENERATED_BYTES_MAX)
}

/// Refuses a long expression.
pub(super) fn check_regex(regex: &str) -> Result<(), String> {
    at_most("bytes", regex.len(), REGEX_BYTES_MAX)?;
    check_classes(unicode_classes(regex))
}

/// Refuses a long grammar.
pub(super) fn check_lark(lark: &str) -> Result<(), String> {
    at_most("bytes", lark.len(), LARK_BYTES_MAX)?;
    check_classes(unicode_classes(lark))?;
    at_most("names and literals", words(lark), LARK_WORDS_MAX)
}

/// Refuses too many classes of Unicode.
pub(super) fn check_classes(classes: usize) -> Result<(), String> {
    at_most("classes of Unicode", classes, UNICODE_CLASSES_MAX)
}

/// Approximate number of Unicode classes in an expression.
pub(super) fn unicode_classes(text: &str) -> usize {
    ["\\p", "\\P", "\\w", "\\W"].iter().map(|class| text.matches(class).count()).sum()
}

fn at_most(what: &str, count: usize, max: usize) -> Result<(), String> {
    if count <= max { Ok(()) } else { Err(format!("it has {count} {what} and the limit is {max}")) }
}

/// Names and literals of a grammar: runs of letters, texts in quotation marks, and expressions between slashes, which
/// are one each, but at least as many as their classes.
fn words(lark: &str) -> usize {
    let (mut count, mut rest) = (0, lark);
    while let Some(at) = rest.find(['"', '/', '#', '<']) {
        let (length, found) = marked(&rest[at..]);
        count += names(&rest[..at]) + found;
        rest = &rest[at + length..];
    }
    count + names(rest)
}

/// Bytes and words of the text, expression, comment or token that `lark` starts with, as llguidance reads it.
fn marked(lark: &str) -> (usize, usize) {
    let up_to = |mark: u8| {
        let end = unescaped(lark).skip(1).find(|(_, byte)| *byte == mark);
        end.map_or(lark.len(), |(at, _)| at + 1)
    };
    let with_names = |length: usize, more: usize| (length, names(&lark[..length]) + more);
    match lark.as_bytes() {
        [b'#', ..] | [b'/', b'/', ..] => with_names(lark.find('\n').unwrap_or(lark.len()), 0),
        [b'"', ..] => with_names(up_to(b'"'), 1),
        [b'/', ..] => {
            let (expression, behind) = lark.split_at(up_to(b'/'));
            let classes = unescaped(expression).filter(|(_, byte)| *byte == b'[').count();
            let escaped = ["\\d", "\\D", "\\s", "\\S"].map(|class| expression.matches(class).count());
            let flags = behind.find(|c: char| !"imslux".contains(c)).unwrap_or(behind.len());
            (expression.len() + flags, (classes + escaped.iter().sum::<usize>()).max(1))
        }
        // A token of the vocabulary.
        _ => {
            let ends = |c: char| matches!(c, '<' | '>') || c.is_whitespace();
            with_names(lark[1..].find(ends).map_or(lark.len(), |at| at + 1), 0)
        }
    }
}

/// The bytes of a text that are not of an escape, with their places.
fn unescaped(text: &str) -> impl Iterator<Item = (usize, u8)> {
    let mut escaped = false;
    text.bytes().enumerate().filter(move |(_, byte)| {
        let is_escaped = escaped;
        escaped = !is_escaped && *byte == b'\\';
        !is_escaped && *byte != b'\\'
    })
}

/// Runs of letters.
fn names(text: &str) -> usize {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
    let mut inside = false;
    let starts = text.bytes().filter(|&byte| {
        let starts = is_letter(byte) && !inside;
        inside = is_letter(byte);
        starts
    });
    starts.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_names_and_literals() {
        for (lark, expect) in [
            ("", 0),
            ("start: a b \"\" \"\"", 5),
            ("a:b|c_1", 3),
            ("a: \"New York\"", 4),
            ("a: /x/", 2),
            ("a: /x\\x{20}y/", 2),
            ("a: /New York|\\/b\\[c\\]/ b", 3),
            ("a: /[ab]+[c-e\n]/i b", 4),
            ("a: /\\S\\d\\D\\s/ b", 6),
            // What looks like an expression and is none hides nothing.
            ("a: \"/\" b c \"/\"", 5),
            ("a: \"\\\"/\" b /\"/ c", 5),
            ("a: b // c\n/d/ e\n# /\nf: g\n# /", 7),
            ("a: <b/c> d e <f/g>", 7),
            ("a: %json {\"b\": \"/\"} c d", 7),
        ] {
            assert_eq!(words(lark), expect, "{lark:?}");
        }
    }

    #[test]
    fn long_sources_name_their_limit() {
        let error = check_lark(&"a ".repeat(7000)).unwrap_err();
        assert_eq!(error, "it has 7000 names and literals and the limit is 6000");
        assert!(check_regex(&"a".repeat(20_000)).is_err());
        let classes = r"[\pL\w]".repeat(251);
        assert_eq!(check_regex(&classes).unwrap_err(), "it has 502 classes of Unicode and the limit is 500");
        assert!(check_lark(&format!("start: /{classes}/")).is_err());
        assert!(check_schema_bytes(300_000).is_err());
    }
}
