//! Regular terms as expressions of Lark terminals.

use super::Term;
use super::chars::character;

/// A regular term as the expression of a terminal; a token unchanged.
pub(super) fn expression(term: &Term) -> String {
    match term {
        Term::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Term::Text(text) => format!("/{}/", text.chars().map(character).collect::<String>()),
        Term::Class(set) => format!("/{}/", set.regex()),
        Term::Rule(rule) => format!("R{rule}"),
        Term::Token(token) => token.clone(),
        Term::Sequence(terms) if terms.is_empty() => "\"\"".to_owned(),
        Term::Sequence(terms) => terms.iter().map(part).collect::<Vec<_>>().join(" "),
        Term::Choice(terms) => terms.iter().map(part).collect::<Vec<_>>().join(" | "),
        Term::Repeat(term, min, max) => part(term) + &operator(*min, *max),
    }
}

/// A term as a part of another.
fn part(term: &Term) -> String {
    match term.parts() {
        [] => expression(term),
        _ => format!("({})", expression(term)),
    }
}

/// The operator of a repetition.
pub(super) fn operator(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) if min == max => format!("{{{min}}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}
