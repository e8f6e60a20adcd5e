//! Patterns of `tokenizer.json`, which are written in the syntax of Oniguruma, in that of kvik's regular expressions.
//!
//! Most of the syntax is common to both. What both accept with different meanings is rewritten where that gives the same
//! words for every text, and refused by name elsewhere: words cut in another way would silently give wrong tokens.

use super::TokenizerError;

/// A possessive option before a letter, which has to follow and which it cannot match, and the greedy one with the same
/// matches: a part of patterns in the style of GPT-4.
const BEFORE_LETTERS: [&str; 2] = [r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"];

/// Operators in classes that Oniguruma has not, or has with another meaning.
const IN_CLASSES: [&str; 3] = ["--", "~~", "[:"];

/// A pattern with the same matches.
pub(super) fn translated(pattern: &str) -> Result<String, TokenizerError> {
    let refused = |part: &str| TokenizerError::BadPattern {
        pattern: pattern.into(),
        reason: format!("kvik does not have {part} as Oniguruma means it"),
    };
    let known = pattern.replace(BEFORE_LETTERS[0], BEFORE_LETTERS[1]);
    let (mut out, mut rest, mut depth) = (String::new(), known.as_str(), 0_usize);
    while !rest.is_empty() {
        let (item, after) = rest.split_at(item_bytes(rest));
        rest = after;
        depth = deeper(depth, item);
        if let Some(part) = foreign(item, after) {
            return Err(refused(&format!("`{part}`")));
        }
        match (item, after.chars().next()) {
            // Both are about lines there, and about the whole text here.
            ("^" | "$", _) => out.extend(["(?m:", item, ")"]),
            ("?" | "*" | "+" | "}", Some(mode @ ('?' | '+'))) => {
                rest = &after[1..];
                out.push_str(item);
                match mode {
                    '?' => out.push('?'),
                    _ if item != "}" && depth == 0 && never_fails(alternative(rest)) => {}
                    _ => return Err(refused(&format!("`{item}+`, which gives nothing back,"))),
                }
            }
            _ => out.push_str(item),
        }
    }
    Ok(out)
}

/// Bytes of the first item of a pattern: an escape, a class, or one character.
fn item_bytes(pattern: &str) -> usize {
    let (mut chars, mut depth) = (pattern.chars(), 0_usize);
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let named = matches!(chars.next(), Some('p' | 'P' | 'x' | 'u'));
                if named && chars.as_str().starts_with('{') {
                    chars.by_ref().find(|&c| c == '}');
                }
            }
            '[' => {
                depth += 1;
                let inner = chars.as_str().strip_prefix('^').unwrap_or(chars.as_str());
                // A bracket that closes nothing is a character of the class.
                chars = inner.strip_prefix(']').unwrap_or(inner).chars();
            }
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    pattern.len() - chars.as_str().len()
}

/// Groups around what follows an item.
fn deeper(depth: usize, item: &str) -> usize {
    match item {
        "(" => depth + 1,
        ")" => depth.saturating_sub(1),
        _ => depth,
    }
}

/// A part of an item that has another meaning, other than possessive operators and anchors: operators in classes, and the
/// option `m`, which lets a dot match the end of a line there.
fn foreign<'p>(item: &'p str, after: &'p str) -> Option<&'p str> {
    if item.starts_with('[') {
        return IN_CLASSES.into_iter().find(|operator| item.contains(operator));
    }
    let options = after.strip_prefix('?').filter(|_| item == "(")?;
    let end = options.find(|c: char| !c.is_ascii_alphabetic() && c != '-').unwrap_or(options.len());
    options[..end].contains('m').then(|| &after[..=end])
}

/// The rest of an alternative that is in no group.
fn alternative(pattern: &str) -> &str {
    let (mut end, mut depth) = (0, 0);
    while end < pattern.len() {
        let item = &pattern[end..end + item_bytes(&pattern[end..])];
        if item == "|" && depth == 0 {
            break;
        }
        depth = deeper(depth, item);
        end += item.len();
    }
    &pattern[..end]
}

/// Whether a pattern matches at every place of every text, so that nothing before it has to give back what it matched.
fn never_fails(pattern: &str) -> bool {
    regex_syntax::parse(pattern).is_ok_and(|parsed| {
        let properties = parsed.properties();
        properties.minimum_len() == Some(0) && properties.look_set().is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_keep_their_meaning() {
        for (pattern, expect) in [
            (r"\s?[A-Z$^?+]+|\$\^\++|(?i:'s)?|\p{N}{1,3}|[a&&[^]^]]+?", None),
            (r"\s+$", Some(r"\s+(?m:$)")),
            ("^a", Some("(?m:^)a")),
            // In the style of GPT-4.
            (
                r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s+(?!\S)|\s+",
                Some(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"),
            ),
        ] {
            assert_eq!(translated(pattern).unwrap(), expect.unwrap_or(pattern));
        }
    }

    #[test]
    fn patterns_with_another_meaning_are_refused() {
        for (pattern, part) in [
            ("a?+a", "?+"),
            ("a*+b", "*+"),
            (r"\s++$", "++"),
            ("(a++)b", "++"),
            (r"\p{N}{1,3}+", "}+"),
            ("(?m:.)", "?m"),
            ("[a--b]", "--"),
            ("[[:alpha:]]", "[:"),
        ] {
            let error = translated(pattern).unwrap_err().to_string();
            assert!(error.contains(&format!("`{part}`")), "{pattern}: {error}");
        }
    }
}
