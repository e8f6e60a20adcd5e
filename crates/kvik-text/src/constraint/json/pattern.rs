//! Patterns of strings as terminals that match every JSON spelling of the characters.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::Terminals;
use super::spelling::{Range, characters, known};
use crate::constraint::schema::lark_pattern;

/// Maximum characters of one literal part, and maximum ranges of classes over all patterns of a schema: each has
/// many spellings.
pub(super) const RANGES_MAX: usize = 4_000;

/// A pattern as an expression of terminals; `None` if that is impossible.
pub(super) fn pattern(pattern: &str, terminals: &mut Terminals) -> Option<String> {
    let hir = regex_syntax::parse(&lark_pattern(pattern)).ok()?;
    search(&hir, terminals)
}

/// Texts that contain a match of the expression.
fn search(hir: &Hir, terminals: &mut Terminals) -> Option<String> {
    let parts = match hir.kind() {
        HirKind::Alternation(ways) => {
            let ways: Option<Vec<String>> = ways.iter().map(|way| search(way, terminals)).collect();
            return Some(format!("({})", ways?.join(" | ")));
        }
        HirKind::Capture(group) => return search(&group.sub, terminals),
        HirKind::Concat(parts) => &parts[..],
        _ => std::slice::from_ref(hir),
    };
    let begins = parts.iter().take_while(|part| is_look(part, Look::Start)).count();
    let ends = parts[begins..].iter().rev().take_while(|part| is_look(part, Look::End)).count();
    let inside = &parts[begins..parts.len() - ends];
    let mut found: Vec<String> = Vec::new();
    found.extend((begins == 0).then(|| "CHARACTER*".to_owned()));
    for part in inside {
        found.push(body(part, terminals)?);
    }
    found.extend((ends == 0).then(|| "CHARACTER*".to_owned()));
    Some(if found.is_empty() { "\"\"".to_owned() } else { format!("({})", found.join(" ")) })
}

fn is_look(hir: &Hir, look: Look) -> bool {
    matches!(hir.kind(), HirKind::Look(found) if *found == look)
}

/// Texts that match the expression as a whole.
fn body(hir: &Hir, terminals: &mut Terminals) -> Option<String> {
    match hir.kind() {
        HirKind::Empty => Some("\"\"".to_owned()),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            let mut spelled = String::new();
            for c in text.chars() {
                terminals.spend(1)?;
                spelled += &characters(&[(c, c)]);
            }
            Some(terminals.expression(&spelled))
        }
        HirKind::Class(class) => {
            let ranges: Vec<Range> = match class {
                Class::Unicode(class) => {
                    class.ranges().iter().map(|range| (range.start(), range.end())).collect()
                }
                Class::Bytes(class) if class.is_ascii() => {
                    class.ranges().iter().map(|range| (range.start().into(), range.end().into())).collect()
                }
                Class::Bytes(_) => return None,
            };
            if ranges.is_empty() {
                return None;
            }
            terminals.spend(ranges.len())?;
            Some(terminals.expression(&characters(&ranges)))
        }
        HirKind::Look(_) => None,
        HirKind::Repetition(repeated) => {
            let inside = body(&repeated.sub, terminals)?;
            Some(match (repeated.min, repeated.max) {
                (_, Some(0)) => "\"\"".to_owned(),
                (min, Some(max)) => format!("({inside}){{{min},{max}}}"),
                (min, None) => format!("({inside}){{{min},}}"),
            })
        }
        HirKind::Capture(group) => body(&group.sub, terminals),
        HirKind::Concat(parts) => {
            let parts: Option<Vec<String>> = parts.iter().map(|part| body(part, terminals)).collect();
            Some(format!("({})", parts?.join(" ")))
        }
        HirKind::Alternation(ways) => {
            let ways: Option<Vec<String>> = ways.iter().map(|way| body(way, terminals)).collect();
            Some(format!("({})", ways?.join(" | ")))
        }
    }
}

/// A known string in quotation marks, as a terminal.
pub(super) fn quoted(text: &str, terminals: &mut Terminals) -> String {
    if super::spelling::is_plain(text) {
        return crate::constraint::literals::quoted(&format!("\"{text}\""));
    }
    terminals.expression(&format!("\\x{{22}}{}\\x{{22}}", known(text)))
}
