//! Conversion of a non-recursive Lark grammar to a regular expression.
//!
//! Supported are the features of Lark's grammar reference
//! (lark-parser.readthedocs.io/en/stable/grammar.html): rules and terminals with `|`, groups, `[optional]`,
//! `? * + ~ n..m`, strings, ranges, `/expressions/flags`, aliases, and the terminals of `common`.

use std::collections::{BTreeMap, BTreeSet};

type Result<T> = std::result::Result<T, String>;

/// Maximum bytes of a regular expression: a rule is repeated at each use.
const REGEX_BYTES_MAX: usize = 32 << 10;
/// Maximum bytes of the regular expressions of all rules.
const ALL_BYTES_MAX: usize = 1 << 20;
/// Maximum depth of nested groups and rules.
const DEPTH_MAX: usize = 32;
/// Maximum count of `~`.
const COUNT_MAX: u32 = 1000;

/// Terminals available to `%import common.NAME`.
const COMMON: [(&str, &str); 16] = [
    ("LF", r"\n"),
    ("CR", r"\r"),
    ("NEWLINE", r"(?:\r?\n)+"),
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9a-fA-F]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"),
    ("NUMBER", r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("LETTER", "[a-zA-Z]"),
    ("WORD", "[a-zA-Z]+"),
    ("CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"),
    ("WS", r"[ \t\f\r\n]+"),
    ("WS_INLINE", r"[ \t]+"),
    ("ESCAPED_STRING", r#""(?:[^"\\\n]|\\.)*""#),
];

/// Returns a regular expression for all texts of a grammar; the error is the end of a sentence.
pub(super) fn regex(grammar: &str) -> Result<String> {
    let rules = rules(grammar)?;
    let mut expanding = Expanding { rules: &rules, done: BTreeMap::new(), open: BTreeSet::new(), bytes: 0 };
    expanding.rule("start", 0)
}

/// Returns the bodies of all rules and terminals, by name.
fn rules(grammar: &str) -> Result<BTreeMap<String, String>> {
    let mut rules: BTreeMap<String, String> = BTreeMap::new();
    let mut last: Option<String> = None;
    for line in grammar.lines() {
        let line = without_comment(line);
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        if let Some(directive) = text.strip_prefix('%') {
            import(directive, &mut rules)?;
            last = None;
        } else if let Some((name, body)) = definition(text) {
            rules.insert(name.clone(), body.to_owned());
            last = Some(name);
        } else {
            // An alternative on a separate line.
            let body = last.as_ref().and_then(|name| rules.get_mut(name));
            let body = body.ok_or_else(|| format!("has a line that is no rule: {text:?}"))?;
            body.push(' ');
            body.push_str(text);
        }
    }
    Ok(rules)
}

/// Returns a line up to its comment, which `//` begins outside of strings and expressions.
fn without_comment(line: &str) -> &str {
    let mut quote: Option<char> = None;
    let mut letters = line.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (_, '\\') => drop(letters.next()),
            (None, '/') if letters.peek().is_some_and(|(_, next)| *next == '/') => return &line[..at],
            (None, '"' | '/') => quote = Some(letter),
            (Some(open), close) if open == close => quote = None,
            _ => {}
        }
    }
    line
}

/// Reads `%import common.LF`, `%import common (WS, INT)`, `%import common.LF -> NAME`.
fn import(directive: &str, rules: &mut BTreeMap<String, String>) -> Result<()> {
    let imported = directive.strip_prefix("import").map(str::trim);
    let imported = imported.and_then(|text| text.strip_prefix("common"));
    let imported = imported.ok_or_else(|| format!("has the directive `%{directive}`"))?;
    let (names, alias) = match imported.split_once("->") {
        Some((names, alias)) => (names, Some(alias.trim())),
        None => (imported, None),
    };
    for name in names.split(['.', '(', ')', ',', ' ']).filter(|name| !name.is_empty()) {
        let known = COMMON.iter().find(|(known, _)| *known == name);
        let (_, regex) = known.ok_or_else(|| format!("imports `common.{name}`"))?;
        rules.insert(alias.unwrap_or(name).to_owned(), format!("/{}/", regex.replace('/', r"\/")));
    }
    Ok(())
}

/// Splits a definition such as `?name.2: ...` into name and body.
fn definition(line: &str) -> Option<(String, &str)> {
    let (head, body) = line.split_once(':')?;
    let name = head.trim().trim_start_matches(['?', '!']);
    let name = name.split('.').next().unwrap_or_default().trim_end();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    is_name.then(|| (name.to_owned(), body))
}

/// Substitutes rules into each other.
struct Expanding<'a> {
    rules: &'a BTreeMap<String, String>,
    done: BTreeMap<String, String>,
    /// Rules that are being expanded.
    open: BTreeSet<String>,
    /// Total bytes of the expanded rules.
    bytes: usize,
}

impl Expanding<'_> {
    fn rule(&mut self, name: &str, depth: usize) -> Result<String> {
        if let Some(done) = self.done.get(name) {
            return Ok(done.clone());
        }
        let body = self.rules.get(name).ok_or_else(|| format!("has no rule `{name}`"))?;
        if depth > DEPTH_MAX {
            return Err(format!("nests more than {DEPTH_MAX} rules and groups at `{name}`"));
        }
        if !self.open.insert(name.to_owned()) {
            return Err(format!("is recursive at `{name}`"));
        }
        let mut parser = Parser { text: body, expanding: self };
        let regex = parser.alternatives(depth)?;
        if !parser.text.trim_start().is_empty() {
            return Err(format!("cannot be read at {:?}", parser.text.trim()));
        }
        self.open.remove(name);
        self.bytes += regex.len();
        if self.bytes > ALL_BYTES_MAX {
            return Err("has too many rules".to_owned());
        }
        self.done.insert(name.to_owned(), regex.clone());
        Ok(regex)
    }
}

/// The unparsed rest of a body.
struct Parser<'a, 'b, 'r> {
    text: &'a str,
    expanding: &'b mut Expanding<'r>,
}

impl Parser<'_, '_, '_> {
    /// Parses `one | other`, as a group.
    fn alternatives(&mut self, depth: usize) -> Result<String> {
        let mut options = vec![self.sequence(depth)?];
        let mut bytes = options[0].len();
        while self.takes("|") {
            let option = self.sequence(depth)?;
            // Thousands of alternatives may be of one long rule.
            bytes += option.len() + 1;
            if bytes > REGEX_BYTES_MAX {
                return Err(too_long());
            }
            options.push(option);
        }
        if let [one] = &mut options[..] {
            return Ok(std::mem::take(one));
        }
        bounded(format!("(?:{})", options.join("|")))
    }

    fn sequence(&mut self, depth: usize) -> Result<String> {
        let mut regex = String::new();
        loop {
            if self.takes("->") {
                self.name();
                return bounded(regex);
            }
            let Some(atom) = self.atom(depth)? else { return bounded(regex) };
            regex.push_str(&self.repeated(atom)?);
            regex = bounded(regex)?;
        }
    }

    /// Parses one item; returns none at the end of a sequence.
    fn atom(&mut self, depth: usize) -> Result<Option<String>> {
        if depth > DEPTH_MAX {
            return Err("is nested too deeply".to_owned());
        }
        self.text = self.text.trim_start();
        for (open, close, optional) in [("(", ")", ""), ("[", "]", "?")] {
            if self.takes(open) {
                let inner = self.alternatives(depth + 1)?;
                if !self.takes(close) {
                    return Err(format!("lacks `{close}`"));
                }
                return Ok(Some(format!("(?:{inner}){optional}")));
            }
        }
        match self.text.chars().next() {
            Some('"') => self.string().map(Some),
            Some('/') => self.expression().map(Some),
            Some(letter) if letter == '_' || letter.is_ascii_alphanumeric() => {
                let name = self.name();
                let rule = self.expanding.rule(&name, depth + 1)?;
                Ok(Some(format!("(?:{rule})")))
            }
            _ => Ok(None),
        }
    }

    /// Applies the repetition that follows an item: `?`, `*`, `+`, `~ 2` or `~ 2..5`.
    fn repeated(&mut self, atom: String) -> Result<String> {
        for mark in ["?", "*", "+"] {
            if self.text.starts_with(mark) {
                self.text = &self.text[1..];
                return Ok(format!("(?:{atom}){mark}"));
            }
        }
        if !self.takes("~") {
            return Ok(atom);
        }
        let least = self.count()?;
        let most = if self.takes("..") { self.count()? } else { least };
        Ok(format!("(?:{atom}){{{least},{most}}}"))
    }

    fn count(&mut self) -> Result<u32> {
        let digits: String = self.text.trim_start().chars().take_while(char::is_ascii_digit).collect();
        self.text = &self.text.trim_start()[digits.len()..];
        let count = digits.parse().ok().filter(|count| *count <= COUNT_MAX);
        count.ok_or_else(|| "has a `~` without a small number".to_owned())
    }

    /// Parses `"text"`, `"text"i`, or the range `"a".."z"`.
    fn string(&mut self) -> Result<String> {
        let text = self.quoted('"')?;
        if self.text.starts_with("..") {
            self.text = self.text[2..].trim_start();
            let last = self.quoted('"')?;
            return match (one(&text), one(&last)) {
                (Some(first), Some(last)) => Ok(format!("[{}-{}]", escaped(first), escaped(last))),
                _ => Err("has a range of more than letters".to_owned()),
            };
        }
        let regex: String = text.chars().map(escaped).collect();
        let ignores_case = self.text.starts_with('i');
        if ignores_case {
            self.text = &self.text[1..];
        }
        Ok(if ignores_case { format!("(?i:{regex})") } else { regex })
    }

    /// Parses `/expression/flags`.
    fn expression(&mut self) -> Result<String> {
        let raw = self.raw('/')?.replace(r"\/", "/");
        let end = self.text.find(|letter: char| !letter.is_ascii_lowercase()).unwrap_or(self.text.len());
        let (flags, rest) = self.text.split_at(end);
        if !flags.chars().all(|flag| "imsx".contains(flag)) {
            return Err(format!("has the flags {flags:?}"));
        }
        self.text = rest;
        Ok(if flags.is_empty() { format!("(?:{raw})") } else { format!("(?{flags}:{raw})") })
    }

    /// Returns the text of a string, with its escapes resolved.
    fn quoted(&mut self, quote: char) -> Result<String> {
        let raw = self.raw(quote)?;
        // Lark's escapes are Python's; grammars use those that JSON shares.
        serde_json::from_str(&format!("\"{raw}\"")).map_err(|_| format!("has the string {raw:?}"))
    }

    /// Returns the text between two quotes, with escapes unresolved.
    fn raw(&mut self, quote: char) -> Result<String> {
        let inner = self.text.strip_prefix(quote).ok_or_else(|| format!("lacks `{quote}`"))?;
        let mut letters = inner.char_indices();
        while let Some((at, letter)) = letters.next() {
            if letter == '\\' {
                letters.next();
            } else if letter == quote {
                self.text = &inner[at + letter.len_utf8()..];
                return Ok(inner[..at].to_owned());
            }
        }
        Err(format!("lacks `{quote}`"))
    }

    fn name(&mut self) -> String {
        let text = self.text.trim_start();
        let is_other = |letter: char| !(letter == '_' || letter.is_ascii_alphanumeric());
        let (name, rest) = text.split_at(text.find(is_other).unwrap_or(text.len()));
        self.text = rest;
        name.to_owned()
    }

    fn takes(&mut self, mark: &str) -> bool {
        let rest = self.text.trim_start().strip_prefix(mark);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }
}

fn bounded(regex: String) -> Result<String> {
    if regex.len() <= REGEX_BYTES_MAX { Ok(regex) } else { Err(too_long()) }
}

fn too_long() -> String {
    format!("takes more than {} KiB as a regular expression", REGEX_BYTES_MAX >> 10)
}

fn one(text: &str) -> Option<char> {
    let mut letters = text.chars();
    letters.next().filter(|_| letters.next().is_none())
}

/// Escapes a character for a regular expression, inside or outside of a class.
fn escaped(letter: char) -> String {
    match letter {
        '\n' => r"\n".to_owned(),
        '\r' => r"\r".to_owned(),
        '\t' => r"\t".to_owned(),
        // `\<` and `\>` would be word boundaries.
        letter if letter.is_ascii_punctuation() && letter != '<' && letter != '>' => format!("\\{letter}"),
        letter => letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    /// The patch format of a coding agent.
    const PATCH: &str = r#"
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"#;

    fn takes(grammar: &str, text: &str) -> bool {
        let regex = Regex::new(&format!("^(?:{})$", regex(grammar).unwrap())).unwrap();
        regex.is_match(text)
    }

    #[test]
    fn patches_are_told_from_other_texts() {
        let patch = "*** Begin Patch\n*** Add File: a b.txt\n+one\n+\n*** Update File: c\n@@ fn x\n-old // no\n+new\n keep\n*** End Patch\n";
        assert!(takes(PATCH, patch));
        assert!(takes(PATCH, "*** Begin Patch\n*** Delete File: d\n*** End Patch"));
        for wrong in
            ["", "*** Begin Patch\n*** End Patch\n", &patch.replace("+one\n", "one\n"), &format!("x{patch}")]
        {
            assert!(!takes(PATCH, wrong), "{wrong:?}");
        }
    }

    #[test]
    fn every_construct_is_read() {
        let check = |grammar: &str, yes: &[&str], no: &[&str]| {
            yes.iter().for_each(|text| assert!(takes(grammar, text), "{grammar}: {text:?}"));
            no.iter().for_each(|text| assert!(!takes(grammar, text), "{grammar}: {text:?}"));
        };
        check("start: \"a\"~2..3 [\"b\"] // end", &["aa", "aaab"], &["a", "aaaa", "aabb"]);
        check("start: A\n  | b -> other\nA.2: \"x\"i\n?b: \"0\"..\"7\"", &["x", "X", "5"], &["8", ""]);
        check("start: (\"a\" | /b+/i)* \"\\n\\\"//\"", &["\n\"//", "abB\n\"//"], &["\n"]);
        check("start: /a.c/s\n", &["a\nc"], &["ac"]);
        check("start: /a\\/b/", &["a/b"], &["a\\/b"]);
        check(
            "start: INT WS word\n%import common.INT\n%import common (WS, WORD)\n%import common.WORD -> word",
            &["12 ab"],
            &["ab 12"],
        );
        check("start:\n  \"a\"\n", &["a"], &["b"]);
    }

    #[test]
    fn what_is_no_regular_expression_says_why() {
        let check = |grammar: &str, why: &str| {
            let error = regex(grammar).unwrap_err();
            assert!(error.contains(why), "{grammar}: {error}");
        };
        check("start: \"(\" start? \")\"", "recursive");
        check("start: a\na: b\nb: a", "recursive");
        let chain: String = (0..40).map(|rule| format!("r{rule}: \"a\" r{}\n", rule + 1)).collect();
        check(&format!("start: r0\n{chain}r40: \"a\""), "nests more than 32");
        check("start: missing", "no rule `missing`");
        check("nothing here", "no rule");
        check("%ignore WS\nstart: \"a\"", "%ignore");
        check("start: \"a", "lacks");
        check("start: (\"a\"", "lacks");
        check("%import common.NONSENSE\nstart: NONSENSE", "NONSENSE");
        check(&format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)), "deeply");
        let doubling: String = (0..30).map(|i| format!("r{i}: r{} r{}\n", i + 1, i + 1)).collect();
        check(&format!("start: r0\n{doubling}r30: \"abc\"\n"), "more than");
        // The second alternative is one too many; what follows is not read.
        check(&format!("start: {}(\nr: /{}/", "r | ".repeat(20), "a".repeat(20_000)), "more than");
    }
}
