//! Output of Lark for llguidance: productions are rules `r0`, `r1`, lexemes are terminals `L0`, and the regular
//! rules that these refer to are terminals `R0`.

use std::fmt::Write;

use super::Term;
use super::expression::{expression, operator};
use super::productions::{Lowered, Production, Symbol};
use super::regular::Rules;

/// The text of a grammar.
pub(super) fn grammar(rules: &Rules, lowered: &Lowered) -> String {
    let mut text = String::new();
    for (i, production) in lowered.productions.iter().enumerate() {
        let name = if i == 0 { "start".to_owned() } else { format!("r{i}") };
        let body = match production {
            Production::Choice(choices) => {
                let choices = choices.iter().map(|symbols| sequence(lowered, symbols));
                choices.collect::<Vec<_>>().join(" | ")
            }
            Production::Repeat(repeated, min, max) => symbol(lowered, *repeated) + &operator(*min, *max),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}: {body}");
    }
    for (i, lexeme) in lowered.lexemes.iter().enumerate() {
        let _ = match lexeme {
            lexeme if matches!(lexeme.term, Term::Token(_)) => Ok(()),
            lexeme if lexeme.nullable => writeln!(text, "L{i}: ({}) & /(?s:.)+/", lexeme.expression),
            lexeme => writeln!(text, "L{i}: {}", lexeme.expression),
        };
    }
    for rule in terminals(rules, lowered) {
        let _ = writeln!(text, "R{rule}: {}", expression(rules.term(rule)));
    }
    text
}

fn sequence(lowered: &Lowered, symbols: &[Symbol]) -> String {
    if symbols.is_empty() {
        return "\"\"".to_owned();
    }
    symbols.iter().map(|&one| symbol(lowered, one)).collect::<Vec<_>>().join(" ")
}

fn symbol(lowered: &Lowered, symbol: Symbol) -> String {
    match symbol {
        Symbol::Production(i) => format!("r{i}"),
        Symbol::Lexeme(i) => match &lowered.lexemes[i].term {
            Term::Token(token) => token.clone(),
            _ => format!("L{i}"),
        },
    }
}

/// The rules that lexemes refer to, directly or indirectly.
fn terminals(rules: &Rules, lowered: &Lowered) -> Vec<usize> {
    let mut found = vec![false; rules.count()];
    let mut open: Vec<&Term> = lowered.lexemes.iter().map(|lexeme| &lexeme.term).collect();
    while let Some(term) = open.pop() {
        if let Term::Rule(rule) = term
            && !std::mem::replace(&mut found[*rule], true)
        {
            open.push(rules.term(*rule));
        }
        open.extend(term.parts());
    }
    (0..rules.count()).filter(|&rule| found[rule]).collect()
}
