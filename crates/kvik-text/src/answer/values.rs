//! Conversion of arguments in other notations to JSON: Python's and Gemma's.
//!
//! The result for a text does not change with the text that follows, so an invalid text stays invalid however
//! it continues.

/// The notation of values.
#[derive(Debug, Clone, Copy)]
pub(super) enum Notation<'q> {
    /// `a=1, b='x', c=[None, True]`
    Python,
    /// `a:1,b:<|"|>x<|"|>,c:[null,true]`, with this text around strings.
    Dict(&'q str),
}

/// The reason why a text is not a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// The text ends too early.
    Incomplete,
    /// The text is invalid, however it continues.
    Wrong,
}

type Result<T> = std::result::Result<T, Unread>;

/// Maximum nesting of values.
const DEPTH_MAX: usize = 64;

/// Named arguments in parentheses: as JSON, and their length in bytes.
pub(super) fn python_arguments(text: &str) -> Result<(String, usize)> {
    let mut reader = Reader { text, at: 0, notation: Notation::Python, out: String::new() };
    reader.expect('(')?;
    reader.entries(')', Reader::named, DEPTH_MAX)?;
    Ok((reader.out, reader.at))
}

/// An object in Gemma's notation: as JSON, and its length in bytes. `quote` is the text around strings.
pub(super) fn dict(text: &str, quote: &str) -> Result<(String, usize)> {
    let mut reader = Reader { text, at: 0, notation: Notation::Dict(quote), out: String::new() };
    reader.expect('{')?;
    reader.entries('}', Reader::keyed, DEPTH_MAX)?;
    Ok((reader.out, reader.at))
}

/// A text that is one Python value, as JSON; `None` if it is not one, or just a number.
pub(super) fn python_literal(text: &str) -> Option<String> {
    match text {
        "None" => return Some("null".into()),
        "True" => return Some("true".into()),
        "False" => return Some("false".into()),
        _ if !text.starts_with(['[', '{', '(']) => return None,
        _ => {}
    }
    let mut reader = Reader { text, at: 0, notation: Notation::Python, out: String::new() };
    reader.value(DEPTH_MAX).ok()?;
    (reader.at == text.len()).then_some(reader.out)
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    notation: Notation<'t>,
    /// The output, in JSON.
    out: String,
}

/// Parses an entry of an object.
type Entry<'t> = fn(&mut Reader<'t>, usize) -> Result<()>;

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// The next character that is not white space.
    fn peek(&mut self) -> Result<char> {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest().chars().next().ok_or(Unread::Incomplete)
    }

    fn expect(&mut self, wanted: char) -> Result<()> {
        if self.peek()? != wanted {
            return Err(Unread::Wrong);
        }
        self.at += wanted.len_utf8();
        Ok(())
    }

    /// Whether `text` follows. Incomplete if the input ends with a prefix of it.
    fn follows(&self, text: &str) -> Result<bool> {
        match self.rest() {
            rest if rest.starts_with(text) => Ok(true),
            rest if text.starts_with(rest) => Err(Unread::Incomplete),
            _ => Ok(false),
        }
    }

    /// Entries of an object up to `close`.
    fn entries(&mut self, close: char, entry: Entry<'t>, depth: usize) -> Result<()> {
        self.out.push('{');
        self.separated(close, entry, depth)?;
        self.out.push('}');
        Ok(())
    }

    /// Parses elements separated by commas, up to `close`. A trailing comma is allowed.
    fn separated(&mut self, close: char, read: Entry<'t>, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or(Unread::Wrong)?;
        let mut first = true;
        while self.peek()? != close {
            if !first {
                self.out.push_str(", ");
            }
            first = false;
            read(self, depth)?;
            match self.peek()? {
                ',' => self.at += 1,
                next if next == close => {}
                _ => return Err(Unread::Wrong),
            }
        }
        self.at += close.len_utf8();
        Ok(())
    }

    /// `name=value`
    fn named(&mut self, depth: usize) -> Result<()> {
        self.peek()?;
        // Names in schemas need not be words: only these marks cannot be in one that is read.
        let end = self.rest().find(['=', ',', '(', ')', '"', '\'']).ok_or(Unread::Incomplete)?;
        let name = self.rest()[..end].trim_end();
        if name.is_empty() {
            return Err(Unread::Wrong);
        }
        self.push_text(name);
        self.at += end;
        self.expect('=')?;
        self.out.push_str(": ");
        self.value(depth)
    }

    /// `key:value`
    fn keyed(&mut self, depth: usize) -> Result<()> {
        let quoted = self.quoted()?;
        match (quoted, self.notation) {
            (Some(key), _) => self.push_text(&key),
            (None, Notation::Dict(_)) => {
                let end = self.rest().find([':', ',', '{', '}']).ok_or(Unread::Incomplete)?;
                let key = self.rest()[..end].trim();
                self.push_text(key);
                self.at += end;
            }
            (None, Notation::Python) => return Err(Unread::Wrong),
        }
        self.expect(':')?;
        self.out.push_str(": ");
        self.value(depth)
    }

    fn value(&mut self, depth: usize) -> Result<()> {
        if let Some(text) = self.quoted()? {
            self.push_text(&text);
            return Ok(());
        }
        match self.peek()? {
            '{' => {
                self.at += 1;
                self.entries('}', Reader::keyed, depth)
            }
            open @ ('[' | '(') => {
                self.at += 1;
                self.out.push('[');
                self.separated(if open == '[' { ']' } else { ')' }, Reader::value, depth)?;
                self.out.push(']');
                Ok(())
            }
            _ => self.plain(),
        }
    }

    /// Parses a number, or a word that represents a value.
    fn plain(&mut self) -> Result<()> {
        let word = self.word()?;
        match word {
            "None" | "null" => self.out.push_str("null"),
            "True" | "true" => self.out.push_str("true"),
            "False" | "false" => self.out.push_str("false"),
            number => {
                let number = number.strip_prefix('+').unwrap_or(number);
                serde_json::from_str::<serde_json::Number>(number).map_err(|_| Unread::Wrong)?;
                self.out.push_str(number);
            }
        }
        Ok(())
    }

    /// Parses a word of letters, digits and the other characters of numbers.
    fn word(&mut self) -> Result<&'t str> {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.');
        let end = self.rest().find(|c| !is_part(c)).ok_or(Unread::Incomplete)?;
        let word = &self.rest()[..end];
        self.at += end;
        if word.is_empty() { Err(Unread::Wrong) } else { Ok(word) }
    }

    /// Parses a string in quotation marks; `None` if none begins here.
    fn quoted(&mut self) -> Result<Option<String>> {
        let next = self.peek()?;
        match self.notation {
            Notation::Dict(quote) if self.follows(quote)? => {
                let text = &self.rest()[quote.len()..];
                let end = text.find(quote).ok_or(Unread::Incomplete)?;
                self.at += end + 2 * quote.len();
                Ok(Some(text[..end].to_owned()))
            }
            Notation::Python if next == '\'' => self.escaped('\'').map(Some),
            _ if next == '"' => self.escaped('"').map(Some),
            _ => Ok(None),
        }
    }

    /// Parses a string with escapes up to this quotation mark.
    fn escaped(&mut self, quote: char) -> Result<String> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += at + c.len_utf8();
                    return Ok(text);
                }
                '\\' => {
                    let (_, escape) = chars.next().ok_or(Unread::Incomplete)?;
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    let code: String = chars.by_ref().take(digits).map(|(_, digit)| digit).collect();
                    if code.chars().count() < digits {
                        return Err(Unread::Incomplete);
                    }
                    push_escape(&mut text, escape, &code)?;
                }
                c => text.push(c),
            }
        }
        Err(Unread::Incomplete)
    }

    /// Writes a string as JSON.
    fn push_text(&mut self, text: &str) {
        self.out.push_str(&serde_json::Value::from(text).to_string());
    }
}

/// Appends the character of an escape; unknown escapes are copied.
fn push_escape(text: &mut String, escape: char, code: &str) -> Result<()> {
    match escape {
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'b' => text.push('\u{8}'),
        'f' => text.push('\u{c}'),
        '\n' => {}
        '\\' | '\'' | '"' | '/' => text.push(escape),
        'x' | 'u' | 'U' => {
            let code = u32::from_str_radix(code, 16).map_err(|_| Unread::Wrong)?;
            // Lone surrogates are not characters.
            text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        other => text.extend(['\\', other]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pythons_notation_is_json() {
        let check = |text: &str, expect: &str| {
            assert_eq!(python_arguments(text), Ok((expect.to_owned(), text.len())), "{text}");
        };
        check("()", "{}");
        check("(a=1, b = -2.5e3)", r#"{"a": 1, "b": -2.5e3}"#);
        check("(a='it\\'s', b=\"x, (y)\\n\",)", r#"{"a": "it's", "b": "x, (y)\n"}"#);
        check(
            "(l=[1, None, (True,)], d={'k': {\"x\": false}})",
            r#"{"l": [1, null, [true]], "d": {"k": {"x": false}}}"#,
        );
        check("(t='\\u00e9\\d')", r#"{"t": "é\\d"}"#);
        check("(स्थान='x', ที่อยู่=1)", r#"{"स्थान": "x", "ที่อยู่": 1}"#);
        check("(max results=2, $filter = 3)", r#"{"max results": 2, "$filter": 3}"#);
        for text in ["(1)", "(a)", "(a=b)", "(a=1 b=2)", "[a=1]", "(a=1_)", "(a='\\xzz')", "(=1)"] {
            assert_eq!(python_arguments(text), Err(Unread::Wrong), "{text}");
        }
        let deep = format!("(a={}", "[".repeat(100_000));
        assert_eq!(python_arguments(&deep), Err(Unread::Wrong));
    }

    #[test]
    fn gemmas_notation_is_json() {
        let check = |text: &str, expect: &str| {
            assert_eq!(dict(text, "<|\"|>"), Ok((expect.to_owned(), text.len())), "{text}");
        };
        check("{}", "{}");
        check("{city:<|\"|>São \"Paulo\"}<|\"|>,days:3}", r#"{"city": "São \"Paulo\"}", "days": 3}"#);
        check("{a:{b:[],<|\"|>c<|\"|>:null},d:true}", r#"{"a": {"b": [], "c": null}, "d": true}"#);
        check("{todos:[<|\"|>a<|\"|>,\"b\"],n:-7}", r#"{"todos": ["a", "b"], "n": -7}"#);
        for text in ["[1]", "{a}", "{a:b}", "{a:1 b:2}", "{a:1,,b:2}"] {
            assert_eq!(dict(text, "<|\"|>"), Err(Unread::Wrong), "{text}");
        }
    }

    proptest! {
        /// If a prefix is wrong or complete, it stays so.
        #[test]
        fn what_was_read_does_not_change_with_what_follows(
            text in "[(){}a1=:,'\"\\\\\\[\\] <|>-]{0,24}",
            cut in any::<prop::sample::Index>(),
        ) {
            let cut = &text[..cut.index(text.len() + 1)];
            for read in [python_arguments, |text: &str| dict(text, "<|\"|>")] {
                match read(cut) {
                    Err(Unread::Incomplete) => {}
                    found => prop_assert_eq!(found, read(&text)),
                }
                if let Ok((json, _)) = read(&text) {
                    let value: Result<serde_json::Value> = serde_json::from_str(&json).map_err(|_| Unread::Wrong);
                    prop_assert!(value.is_ok_and(|value| value.is_object()), "{json}");
                }
            }
        }
    }
}
