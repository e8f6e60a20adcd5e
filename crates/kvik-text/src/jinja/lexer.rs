//! Splits the text of a template into lexemes, with Jinja's rules for white space next to tags.
//!
//! Blocks remove the line break after them and the white space before them on their line (`trim_blocks`
//! and `lstrip_blocks`), as Hugging Face sets it; `-` and `+` in a tag override that.

use std::sync::Arc;

use super::SyntaxError;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Lexeme {
    /// Text outside of tags, never empty.
    Raw(Arc<str>),
    /// `{{` and `}}`
    EmitStart,
    EmitEnd,
    /// `{%` and `%}`
    BlockStart,
    BlockEnd,
    Name(Arc<str>),
    Text(Arc<str>),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

/// Operators, longer ones first.
const OPERATORS: [&str; 29] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";", "!", "&", "@",
];

pub(super) type Lexemes = Vec<(Lexeme, u32)>;

/// The lexemes of a template, each with its line.
pub(super) fn lexemes(source: &str) -> Result<Lexemes, SyntaxError> {
    let mut lexer = Lexer { source, at: 0, line: 1, lexemes: Vec::new(), trim: Trim::None, line_start: true };
    while lexer.at < source.len() {
        lexer.text_and_tag()?;
    }
    lexer.lexemes.push((Lexeme::End, lexer.line));
    Ok(lexer.lexemes)
}

/// The white space that the last tag removes after it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trim {
    None,
    Newline,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Tag {
    Emit,
    Block,
    Comment,
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    lexemes: Lexemes,
    trim: Trim,
    /// Whether the next text begins a line.
    line_start: bool,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Advances by `bytes`, counting lines.
    fn skip(&mut self, bytes: usize) {
        let skipped = &self.source.as_bytes()[self.at..self.at + bytes];
        self.line += skipped.iter().filter(|&&byte| byte == b'\n').count() as u32;
        self.at += bytes;
    }

    fn push(&mut self, lexeme: Lexeme) {
        self.lexemes.push((lexeme, self.line));
    }

    fn text_and_tag(&mut self) -> Result<(), SyntaxError> {
        self.trim_start();
        let rest = self.rest();
        let Some((at, tag)) = next_tag(rest) else {
            self.raw(rest);
            self.skip(rest.len());
            return Ok(());
        };
        let mark = rest[at + 2..].chars().next().filter(|mark| matches!(mark, '-' | '+'));
        self.raw(self.before_tag(&rest[..at], tag, mark));
        self.skip(at);
        let open = 2 + usize::from(mark.is_some());
        match tag {
            Tag::Comment => self.comment(),
            Tag::Block if raw_block(&rest[at + open..]).is_some() => {
                self.skip(open);
                self.raw_block()
            }
            Tag::Emit | Tag::Block => {
                self.push(if tag == Tag::Emit { Lexeme::EmitStart } else { Lexeme::BlockStart });
                self.skip(open);
                self.inside(tag)
            }
        }
    }

    fn raw(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Lexeme::Raw(text.into()));
        }
    }

    /// Drops the white space that the last tag removes.
    fn trim_start(&mut self) {
        let rest = self.rest();
        let taken = match self.trim {
            Trim::None => 0,
            Trim::Newline => usize::from(rest.starts_with('\n')),
            Trim::All => rest.len() - rest.trim_start().len(),
        };
        if taken > 0 {
            self.line_start = rest[..taken].ends_with('\n');
        }
        self.trim = Trim::None;
        self.skip(taken);
    }

    /// The text before a tag, without the white space that the tag removes.
    fn before_tag<'t>(&self, text: &'t str, tag: Tag, mark: Option<char>) -> &'t str {
        match mark {
            Some('-') => text.trim_end(),
            None if tag != Tag::Emit => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let whole_line = line > 0 || self.line_start;
                let blank = text[line..].trim_start().is_empty();
                if whole_line && blank { &text[..line] } else { text }
            }
            _ => text,
        }
    }

    /// Sets the state after a tag that ends with this mark.
    fn after_tag(&mut self, tag: Tag, mark: Option<char>) {
        self.line_start = false;
        self.trim = match mark {
            Some('-') => Trim::All,
            None if tag != Tag::Emit => Trim::Newline,
            _ => Trim::None,
        };
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let end = self.rest().find("#}").ok_or_else(|| self.error("a comment is not closed"))?;
        let mark = self.rest()[..end].chars().next_back().filter(|mark| matches!(mark, '-' | '+'));
        self.skip(end + 2);
        self.after_tag(Tag::Comment, mark);
        Ok(())
    }

    /// Reads a raw block, from after its `{%` to the end of `{% endraw %}`.
    fn raw_block(&mut self) -> Result<(), SyntaxError> {
        let (length, mark) = raw_block(self.rest()).expect("the caller has seen it");
        self.skip(length);
        let body = self.rest();
        let mut from = 0;
        while let Some(found) = body[from..].find("{%") {
            let start = from + found;
            if let Some((tag, open, close)) = end_raw(&body[start..]) {
                let text = if mark == Some('-') { body[..start].trim_start() } else { &body[..start] };
                self.raw(self.before_tag(text, Tag::Block, open));
                self.skip(start + tag);
                self.after_tag(Tag::Block, close);
                return Ok(());
            }
            from = start + 2;
        }
        Err(self.error("a raw block is not closed"))
    }

    /// The lexemes of a tag and its end.
    fn inside(&mut self, tag: Tag) -> Result<(), SyntaxError> {
        let end = if tag == Tag::Emit { "}}" } else { "%}" };
        let mut braces = 0;
        loop {
            let rest = self.rest();
            self.skip(rest.len() - rest.trim_start().len());
            let rest = self.rest();
            let mark = rest.chars().next().filter(|&mark| mark == '-' || (mark == '+' && tag == Tag::Block));
            let close = if mark.is_some() && rest[1..].starts_with(end) { 3 } else { 2 };
            if braces == 0 && (close == 3 || rest.starts_with(end)) {
                self.push(if tag == Tag::Emit { Lexeme::EmitEnd } else { Lexeme::BlockEnd });
                self.skip(close);
                self.after_tag(tag, mark.filter(|_| close == 3));
                return Ok(());
            }
            self.lexeme()?;
            match self.lexemes.last() {
                Some((Lexeme::Operator("{"), _)) => braces += 1,
                Some((Lexeme::Operator("}"), _)) => braces -= 1,
                _ => {}
            }
        }
    }

    fn lexeme(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Err(self.error("a tag is not closed")) };
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        if first.is_ascii_digit() {
            return self.number();
        }
        if is_name(first) {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            self.push(Lexeme::Name(rest[..end].into()));
            self.skip(end);
            return Ok(());
        }
        if matches!(first, '"' | '\'') {
            return self.text(first);
        }
        match OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
            Some(operator) => {
                self.push(Lexeme::Operator(operator));
                self.skip(operator.len());
                Ok(())
            }
            None => Err(self.error(&format!("unexpected character {first:?}"))),
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        if radix != 10 {
            let digits = run_of(&rest[2..], |c| c.is_digit(radix) || c == '_');
            let value = i128::from_str_radix(&digits.replace('_', ""), radix);
            self.push(Lexeme::Int(value.map_err(|_| self.error("a number cannot be read"))?));
            self.skip(2 + digits.len());
            return Ok(());
        }
        let whole = run_of(rest, |c| c.is_ascii_digit() || c == '_').len();
        let length = whole + float_tail(&rest[whole..]);
        let text = rest[..length].replace('_', "");
        let unreadable = || self.error("a number cannot be read");
        let lexeme = match length == whole {
            true => Lexeme::Int(text.parse().map_err(|_| unreadable())?),
            false => Lexeme::Float(text.parse().map_err(|_| unreadable())?),
        };
        self.push(lexeme);
        self.skip(length);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let mut chars = rest.char_indices().skip(1);
        let end = loop {
            match chars.next() {
                Some((at, c)) if c == quote => break at,
                Some((_, '\\')) => drop(chars.next()),
                Some(_) => {}
                None => return Err(self.error("a string is not closed")),
            }
        };
        self.push(Lexeme::Text(unescape(&rest[1..end]).into()));
        self.skip(end + 1);
        Ok(())
    }

    fn error(&self, reason: &str) -> SyntaxError {
        SyntaxError { reason: reason.into(), line: self.line }
    }
}

fn next_tag(text: &str) -> Option<(usize, Tag)> {
    let bytes = text.as_bytes();
    let tag = |second: u8| match second {
        b'{' => Some(Tag::Emit),
        b'%' => Some(Tag::Block),
        b'#' => Some(Tag::Comment),
        _ => None,
    };
    bytes.windows(2).enumerate().find_map(
        |(at, pair)| {
            if pair[0] == b'{' { Some((at, tag(pair[1])?)) } else { None }
        },
    )
}

/// Length and mark of `raw %}`, if the text starts with it.
fn raw_block(text: &str) -> Option<(usize, Option<char>)> {
    tag_of_word(text, "raw")
}

fn tag_of_word(text: &str, word: &str) -> Option<(usize, Option<char>)> {
    let rest = text.trim_start().strip_prefix(word)?.trim_start();
    let mark = rest.chars().next().filter(|mark| matches!(mark, '-' | '+'));
    let rest = rest[usize::from(mark.is_some())..].strip_prefix("%}")?;
    Some((text.len() - rest.len(), mark))
}

/// Length and marks of a tag `{% endraw %}`.
fn end_raw(text: &str) -> Option<(usize, Option<char>, Option<char>)> {
    let inside = text.strip_prefix("{%")?;
    let open = inside.chars().next().filter(|mark| matches!(mark, '-' | '+'));
    let skipped = usize::from(open.is_some());
    let (length, close) = tag_of_word(&inside[skipped..], "endraw")?;
    Some((2 + skipped + length, open, close))
}

fn run_of(text: &str, accept: impl Fn(char) -> bool) -> &str {
    &text[..text.find(|c| !accept(c)).unwrap_or(text.len())]
}

/// Bytes of `.5`, `e-3` or both.
fn float_tail(text: &str) -> usize {
    let digits = |text: &str| run_of(text, |c| c.is_ascii_digit() || c == '_').len();
    let fraction = match text.strip_prefix('.').map(digits) {
        Some(length) if length > 0 => 1 + length,
        _ => 0,
    };
    let rest = &text[fraction..];
    let Some(exponent) = rest.strip_prefix(['e', 'E']) else { return fraction };
    let sign = usize::from(exponent.starts_with(['+', '-']));
    match digits(&exponent[sign..]) {
        0 => fraction,
        length => fraction + 1 + sign + length,
    }
}

/// Resolves Python's escapes; unknown escapes stay unchanged.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let (read, character) = escape(&rest[at + 1..]);
        match character {
            Some(character) => out.extend(character),
            None => out.push_str(&rest[at..at + 1 + read]),
        }
        rest = &rest[at + 1 + read..];
    }
    out.push_str(rest);
    out
}

/// Bytes of the escape after a backslash, and its value: one character, or nothing; `None` if it is not an
/// escape.
fn escape(text: &str) -> (usize, Option<Option<char>>) {
    let Some(first) = text.chars().next() else { return (0, None) };
    let simple = match first {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '\\' | '\'' | '"' => first,
        '\n' => return (1, Some(None)),
        'x' => return code(text, 2),
        'u' => return code(text, 4),
        'U' => return code(text, 8),
        '0'..='7' => {
            let digits = &text[..text.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count()];
            let value = u32::from_str_radix(digits, 8).ok().and_then(char::from_u32);
            return (digits.len(), value.map(Some));
        }
        other => return (other.len_utf8(), None),
    };
    (1, Some(Some(simple)))
}

fn code(text: &str, digits: usize) -> (usize, Option<Option<char>>) {
    let value = text.get(1..1 + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    match value.and_then(char::from_u32) {
        Some(character) => (1 + digits, Some(Some(character))),
        None => (1, None),
    }
}
