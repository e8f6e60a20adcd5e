//! Patterns: checks that llguidance can parse them, and counts the states of their automata.

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder, StateID};
use regex_automata::meta::{Builder, Config, Regex};

use super::lark_pattern;

/// Maximum bytes of one pattern.
const PATTERN_BYTES_MAX: usize = 4096;
/// Maximum size of the automaton of a pattern that is matched against values.
const NFA_BYTES_MAX: usize = 256 << 10;
/// Fuel for each step of the count.
const FUEL: u64 = 10_000;

/// Parses patterns; it expands each Unicode class once for all of them.
#[derive(Default)]
pub(super) struct PatternReader {
    builder: RegexBuilder,
}

impl PatternReader {
    /// Checks that a pattern can be enforced; the error is the reason if it cannot.
    pub(super) fn check(&mut self, pattern: &str) -> Result<(), String> {
        self.read(pattern).map(|_| ())
    }

    fn read(&mut self, pattern: &str) -> Result<ExprRef, String> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!("it has {} bytes and the limit is {PATTERN_BYTES_MAX}", pattern.len()));
        }
        let expression = self.builder.mk_regex_for_serach(&lark_pattern(pattern));
        expression.map_err(|_| "kvik cannot read this expression".to_owned())
    }

    /// Whether no text of an allowed length matches a pattern.
    pub(super) fn is_empty(&mut self, pattern: &str, min: u64, max: Option<u64>) -> bool {
        let max = max.map(|max| max.to_string()).unwrap_or_default();
        let Ok(expression) = self.read(pattern) else { return false };
        let length = RegexAst::Regex(format!("(?s:.{{{min},{max}}})"));
        let both = self.builder.mk(&RegexAst::And(vec![RegexAst::ExprRef(expression), length]));
        let regex = both.and_then(|both| self.builder.to_regex_limited(both, FUEL));
        regex.is_ok_and(|mut regex| regex.always_empty())
    }

    /// Number of states of a pattern's automaton; `None` if there are more than `max`.
    pub(super) fn states(&mut self, pattern: &str, max: usize) -> Option<usize> {
        let expression = self.read(pattern).ok()?;
        // Only `&` and `~` need fuel here, and patterns have neither.
        let mut regex = self.builder.to_regex_limited(expression, FUEL).ok()?;
        let mut letters: Vec<u8> = (0..=u8::MAX).collect();
        letters.sort_by_key(|&byte| regex.alpha().map(byte));
        letters.dedup_by_key(|byte| regex.alpha().map(*byte));
        let mut found = vec![regex.initial_state()];
        let mut next = 0;
        while next < found.len() {
            if found.len() > max {
                return None;
            }
            for &letter in &letters {
                let state = regex.transition(found[next], letter);
                if state != StateID::DEAD && !found.contains(&state) {
                    found.push(state);
                }
            }
            next += 1;
        }
        Some(found.len())
    }
}

/// Matches texts like the grammar of a pattern.
pub(super) struct Matcher {
    regex: Regex,
    /// The pattern has lookaheads, which only exclude texts.
    looks: bool,
}

impl Matcher {
    /// `None` if the pattern cannot be read.
    pub(super) fn new(pattern: &str) -> Option<Matcher> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return None;
        }
        let (without, looks) = without_lookaheads(pattern);
        let config = Config::new().nfa_size_limit(Some(NFA_BYTES_MAX));
        let regex = Builder::new().configure(config).build(&lark_pattern(&without)).ok()?;
        Some(Matcher { regex, looks })
    }

    /// Whether a text matches; `None` if a lookahead may decide it.
    pub(super) fn matches(&self, text: &str) -> Option<bool> {
        match self.regex.is_match(text) {
            true if self.looks => None,
            found => Some(found),
        }
    }
}

/// The pattern without its lookaheads, and whether it has any: they only exclude texts, so the
/// remaining pattern accepts every text that the whole accepts.
pub(super) fn without_lookaheads(pattern: &str) -> (String, bool) {
    let mut left = String::new();
    let mut read = 0;
    for (at, letter) in outside_classes(pattern) {
        let group = &pattern[at..];
        let is_lookahead = letter == '(' && (group.starts_with("(?!") || group.starts_with("(?="));
        if at < read || !is_lookahead {
            continue;
        }
        let Some(length) = group_length(group) else { return (pattern.to_owned(), read > 0) };
        left.push_str(&pattern[read..at]);
        let end = at + length;
        read = end + quantifier_length(&pattern[end..]);
    }
    left.push_str(&pattern[read..]);
    (left, read > 0)
}

/// The letters of an expression that are neither escaped nor of a class, with their places.
fn outside_classes(pattern: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut in_class, mut escaped) = (false, false);
    pattern.char_indices().filter(move |&(_, letter)| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match letter {
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            _ => return !in_class,
        }
        false
    })
}

/// Bytes of the group that `text` starts with.
fn group_length(text: &str) -> Option<usize> {
    let mut open = 0;
    for (at, letter) in outside_classes(text) {
        match letter {
            '(' => open += 1,
            ')' => {
                open -= 1;
                if open == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Bytes of the quantifier that `text` starts with: JavaScript allows one behind a lookahead.
fn quantifier_length(text: &str) -> usize {
    let behind_count = || {
        let count = text.strip_prefix('{').filter(|count| count.starts_with(|c: char| c.is_ascii_digit()))?;
        count.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',').strip_prefix('}')
    };
    let Some(rest) = text.strip_prefix(['*', '+', '?']).or_else(behind_count) else { return 0 };
    text.len() - rest.strip_prefix('?').unwrap_or(rest).len()
}

/// Whether every group and class of an expression is closed, which all dialects require.
pub(super) fn is_closed(pattern: &str) -> bool {
    let (mut groups, mut in_class) = (0_i64, false);
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => groups += 1,
            ')' => groups -= 1,
            _ => {}
        }
        if groups < 0 {
            return false;
        }
    }
    groups == 0 && !in_class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_automata_are_counted() {
        assert_eq!(PatternReader::default().states("^a{3}$", 100), Some(4));
        assert_eq!(PatternReader::default().states("^(a|b)*a(a|b){30}$", 100), None);
        for bad in ["(?<=a)b", "(", r"(a)\1"] {
            assert!(PatternReader::default().check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lookaheads_are_removed() {
        let check = |pattern: &str, left: &str| {
            assert_eq!(without_lookaheads(pattern), (left.to_owned(), left != pattern), "{pattern}");
        };
        check(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?0*\d*\.?\d*$");
        check(r"(?=.*[)])(?!(a|(b)))c", "c");
        check(r"\(?=a", r"\(?=a");
        check("(a)|b", "(a)|b");
        for of_class in [r"^[(?!)]+$", r"^[A-Za-z0-9 .,(?!)-]+$", r"[\](?=a)]", r"\\[(?=[)]"] {
            check(of_class, of_class);
        }
        check(r"[(?!](?![)])[a)]", "[(?!][a)]");
    }

    /// What repeats a lookahead must not repeat what stands before it.
    #[test]
    fn quantifiers_of_lookaheads_are_removed() {
        for quantifier in ["", "*", "+", "?", "*?", "{2}", "{2,}", "{2,3}?"] {
            let (left, found) = without_lookaheads(&format!("a(?!b){quantifier}c"));
            assert_eq!((&*left, found), ("ac", true), "{quantifier}");
        }
        assert_eq!(without_lookaheads("(?!b){a}").0, "{a}");
    }

    #[test]
    fn groups_and_classes_are_closed() {
        for closed in ["", "a", "(a(b)|[(])", r"\(\[", r"[\]]", "[^)(]+", "(?<=a)(?!b)", "]"] {
            assert!(is_closed(closed), "{closed}");
        }
        for open in ["(", ")", "a)(", "[a", r"(\)", "((a)", "[(a)"] {
            assert!(!is_closed(open), "{open}");
        }
    }
}
