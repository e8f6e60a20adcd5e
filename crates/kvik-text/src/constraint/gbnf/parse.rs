//! Parser of GBNF.
//!
//! The language is llama.cpp's: `grammars/README.md` there describes it, `src/llama-grammar.cpp` is
//! authoritative. In addition, a name may contain `_`. Input is hostile: length, nesting and the number of rules
//! are bounded.

use std::collections::HashMap;

use super::chars::CharSet;
use super::{GbnfError, Term};

/// Maximum bytes of a grammar.
const BYTES_MAX: usize = 64 * 1024;
/// Maximum rules of a grammar.
const RULES_MAX: usize = 2_000;
/// Maximum nesting of parentheses.
const DEPTH_MAX: usize = 64;
/// Maximum operators after one term.
const OPERATORS_MAX: usize = 4;
/// Maximum count in braces, as in llama.cpp.
const COUNT_MAX: u32 = 2_000;
/// The name of the rule of the whole answer.
const ROOT: &str = "root";

type Result<T> = std::result::Result<T, GbnfError>;

/// The rules of a grammar; the first is the root.
#[derive(Debug)]
pub(super) struct Grammar {
    /// The term of each rule.
    pub(super) rules: Vec<Term>,
}

/// Parses a grammar.
pub(super) fn parse(text: &str) -> Result<Grammar> {
    if text.len() > BYTES_MAX {
        return Err(GbnfError::TooLarge { what: "bytes", count: text.len(), max: BYTES_MAX });
    }
    let mut source = Source { text, at: 0, depth: 0, names: HashMap::new(), rules: Vec::new() };
    source.rule_of(ROOT)?;
    source.space(true);
    while source.peek().is_some() {
        source.rule()?;
    }
    source.finish()
}

/// A text being parsed.
struct Source<'a> {
    text: &'a str,
    /// The byte to read next.
    at: usize,
    depth: usize,
    names: HashMap<&'a str, usize>,
    /// For each name its term, if it is defined already, and its first use.
    rules: Vec<(Option<Term>, &'a str, usize)>,
}

impl<'a> Source<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn skip(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn expect(&mut self, c: char, after: &'static str) -> Result<()> {
        if self.skip(c) { Ok(()) } else { Err(self.wrong(format!("`{c}` is expected {after}"))) }
    }

    fn wrong(&self, message: impl Into<String>) -> GbnfError {
        self.wrong_at(self.at, message)
    }

    fn wrong_at(&self, at: usize, message: impl Into<String>) -> GbnfError {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        GbnfError::Syntax { line, column, message: message.into() }
    }

    /// Skips blanks and comments, and line breaks if the rule may continue after them.
    fn space(&mut self, lines: bool) {
        let rest = &self.text.as_bytes()[self.at..];
        let mut comment = false;
        let skipped = rest.iter().take_while(|&&byte| {
            let end = matches!(byte, b'\n' | b'\r');
            comment = (comment && !end) || byte == b'#';
            comment || matches!(byte, b' ' | b'\t') || (lines && end)
        });
        self.at += skipped.count();
    }

    fn name(&mut self) -> Result<&'a str> {
        let rest = &self.text[self.at..];
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.wrong("the name of a rule is expected"));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// The index of the rule with this name.
    fn rule_of(&mut self, name: &'a str) -> Result<usize> {
        if let Some(&rule) = self.names.get(name) {
            return Ok(rule);
        }
        let rule = self.rules.len();
        if rule == RULES_MAX {
            return Err(GbnfError::TooLarge { what: "rules", count: rule + 1, max: RULES_MAX });
        }
        self.names.insert(name, rule);
        self.rules.push((None, name, self.at - name.len().min(self.at)));
        Ok(rule)
    }

    /// `name ::= choices`, to the end of its line. The last definition of a name counts, as in llama.cpp.
    fn rule(&mut self) -> Result<()> {
        let name = self.name()?;
        let rule = self.rule_of(name)?;
        self.space(false);
        if !self.text[self.at..].starts_with("::=") {
            return Err(self.wrong(format!("`::=` is expected after the name `{name}`")));
        }
        self.at += 3;
        self.space(true);
        let body = self.choices(false)?;
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return Err(self.wrong(format!("the end of the line is expected after the rule `{name}`")));
        }
        self.rules[rule].0 = Some(body);
        self.space(true);
        Ok(())
    }

    /// Sequences separated by `|`; in parentheses line breaks are allowed anywhere.
    fn choices(&mut self, nested: bool) -> Result<Term> {
        let mut choices = vec![self.sequence(nested)?];
        while self.skip('|') {
            self.space(true);
            choices.push(self.sequence(nested)?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { Term::Choice(choices) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Term> {
        let mut terms = Vec::new();
        while let Some(term) = self.item()? {
            self.space(nested);
            terms.push(self.repeated(term, nested)?);
        }
        Ok(if terms.len() == 1 { terms.remove(0) } else { Term::Sequence(terms) })
    }

    fn item(&mut self) -> Result<Option<Term>> {
        let Some(c) = self.peek() else { return Ok(None) };
        Ok(Some(match c {
            '"' => self.literal()?,
            '[' => self.class()?,
            '.' => {
                self.at += 1;
                Term::Class(CharSet::all())
            }
            '(' => self.group()?,
            '<' => self.token()?,
            '!' => {
                return Err(self.wrong("tokens cannot be excluded here; list the characters that may stand"));
            }
            '*' | '+' | '?' | '{' => return Err(self.wrong(format!("`{c}` has nothing before it to repeat"))),
            c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                let name = self.name()?;
                Term::Rule(self.rule_of(name)?)
            }
            _ => return Ok(None),
        }))
    }

    fn group(&mut self) -> Result<Term> {
        self.at += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(
                self.wrong(format!("parentheses are nested deeper than {DEPTH_MAX}; use rules instead"))
            );
        }
        self.space(true);
        let term = self.choices(true)?;
        self.expect(')', "at the end of a group")?;
        self.depth -= 1;
        Ok(term)
    }

    /// A token of the vocabulary: `<[id]>`, or `<name>` of a control token.
    fn token(&mut self) -> Result<Term> {
        let rest = &self.text[self.at..];
        let end = rest.find('>').filter(|&end| end > 1);
        let Some(token) = end.map(|end| &rest[..=end]) else {
            return Err(self.wrong("a token is written as `<name>` or `<[id]>`"));
        };
        if token[1..].contains(|c: char| c == '<' || c.is_whitespace()) {
            return Err(self.wrong("the name of a token holds neither `<` nor blanks; write it as `<[id]>`"));
        }
        let id = token.strip_prefix("<[").and_then(|id| id.strip_suffix("]>"));
        if id.is_some_and(|id| id.parse::<u32>().is_err()) {
            return Err(self.wrong(format!("`{token}` must hold a token id")));
        }
        self.at += token.len();
        Ok(Term::Token(token.to_owned()))
    }

    fn literal(&mut self) -> Result<Term> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        while !self.skip('"') {
            let at = self.at;
            let code = self.character(start, "a literal")?;
            let c = char::from_u32(code);
            text.push(c.ok_or_else(|| self.wrong_at(at, format!("U+{code:04X} is no character")))?);
        }
        Ok(Term::Text(text))
    }

    fn class(&mut self) -> Result<Term> {
        let start = self.at;
        self.at += 1;
        let negated = self.skip('^');
        let mut ranges = Vec::new();
        while !self.skip(']') {
            let at = self.at;
            let low = self.character(start, "a class")?;
            let is_range = self.peek() == Some('-') && !self.text[self.at..].starts_with("-]");
            let high = if is_range {
                self.at += 1;
                self.character(start, "a class")?
            } else {
                low
            };
            if low > high {
                return Err(self.wrong_at(at, "the range is empty: its first character is after its last"));
            }
            ranges.push((low, high));
        }
        let named = !ranges.is_empty();
        let set = CharSet::of(ranges);
        let set = if negated { set.negated() } else { set };
        if !named || set.is_empty() {
            return Err(self.wrong_at(start, "the class holds no character"));
        }
        Ok(Term::Class(set))
    }

    /// Parses a code point, written as itself or escaped; surrogates are allowed here, because ranges may name them.
    fn character(&mut self, start: usize, inside: &str) -> Result<u32> {
        let Some(c) = self.peek() else {
            return Err(self.wrong_at(start, format!("{inside} begins here and does not end")));
        };
        let at = self.at;
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c as u32);
        }
        let escaped = self.peek();
        self.at += escaped.map_or(0, char::len_utf8);
        match escaped {
            Some('n') => Ok(u32::from('\n')),
            Some('r') => Ok(u32::from('\r')),
            Some('t') => Ok(u32::from('\t')),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => Ok(u32::from(c)),
            Some('x') => self.hexadecimal(2),
            Some('u') => self.hexadecimal(4),
            Some('U') => self.hexadecimal(8),
            _ => Err(self.wrong_at(at, r#"the escapes are \n \r \t \\ \" \[ \] \- \x \u and \U"#)),
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u32> {
        let text = self.text.get(self.at..self.at + digits);
        let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = text.and_then(|text| u32::from_str_radix(text, 16).ok());
        let code = code.filter(|&code| code <= char::MAX as u32);
        let code = code
            .ok_or_else(|| self.wrong(format!("{digits} hexadecimal digits of a character are expected")))?;
        self.at += digits;
        Ok(code)
    }

    /// Applies the operators that follow a term.
    fn repeated(&mut self, mut term: Term, nested: bool) -> Result<Term> {
        for _ in 0..=OPERATORS_MAX {
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.counts(nested)?,
                _ => return Ok(term),
            };
            self.at += 1;
            self.space(nested);
            term = match (min, max) {
                (1, Some(1)) => term,
                (_, Some(0)) => Term::Sequence(Vec::new()),
                _ => Term::Repeat(Box::new(term), min, max),
            };
        }
        Err(self.wrong(format!("more than {OPERATORS_MAX} repetitions follow each other")))
    }

    /// `{n}`, `{n,}` or `{n,m}`, up to its last brace.
    fn counts(&mut self, nested: bool) -> Result<(u32, Option<u32>)> {
        let start = self.at;
        self.at += 1;
        self.space(nested);
        let min = self.count()?;
        self.space(nested);
        let mut max = Some(min);
        if self.skip(',') {
            self.space(nested);
            max = if self.peek() == Some('}') { None } else { Some(self.count()?) };
            self.space(nested);
        }
        if self.peek() != Some('}') {
            return Err(self.wrong("`}` is expected at the end of a count"));
        }
        if min > COUNT_MAX {
            return Err(self.wrong_at(start, format!("a count is {COUNT_MAX} at most")));
        }
        if max.is_some_and(|max| max < min) {
            return Err(self.wrong_at(start, "the count ends before it begins"));
        }
        // As in llama.cpp, a larger maximum is unlimited.
        Ok((min, max.filter(|&max| max <= COUNT_MAX)))
    }

    fn count(&mut self) -> Result<u32> {
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        if digits.is_empty() {
            return Err(self.wrong("a count is expected"));
        }
        let count = digits.parse().unwrap_or(u32::MAX);
        self.at += digits.len();
        Ok(count)
    }

    /// The rules, all of which must be defined.
    fn finish(self) -> Result<Grammar> {
        if let Some((_, name, at)) = self.rules.iter().find(|(body, ..)| body.is_none()) {
            return Err(match *name {
                ROOT => GbnfError::NoRoot,
                _ => self.wrong_at(*at, format!("the rule `{name}` is not defined")),
            });
        }
        Ok(Grammar { rules: self.rules.into_iter().filter_map(|(body, ..)| body).collect() })
    }
}
