//! `tojson` as Hugging Face renders it: Python's `json.dumps`, to the character.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// How to write JSON.
pub(super) struct Style {
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    item_separator: String,
    key_separator: String,
}

impl Style {
    pub(super) fn new(
        indent: Option<usize>,
        ascii: bool,
        sorted: bool,
        separators: Option<Vec<String>>,
    ) -> Result<Style, Error> {
        if indent.is_some_and(|indent| indent > 64) {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent above 64"));
        }
        let default_item = if indent.is_some() { "," } else { ", " };
        let [item_separator, key_separator] = match separators {
            None => [default_item.into(), ": ".into()],
            Some(pair) => pair.try_into().map_err(|_| {
                Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair of strings")
            })?,
        };
        Ok(Style { indent, ascii, sorted, item_separator, key_separator })
    }
}

/// Values inside values; a template can nest them without end.
const DEPTH_MAX: usize = 200;

/// Writes a value as JSON.
pub(super) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write_value(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_value(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), style.ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_list('[', &items, ']', style, depth, out, |item, out| {
                write_value(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let pairs = pairs(value, style.sorted)?;
            write_list('{', &pairs, '}', style, depth, out, |(key, item), out| {
                write_string(key, style.ascii, out);
                out.push_str(&style.key_separator);
                write_value(item, style, depth + 1, out)
            })?;
        }
        kind => {
            let message = format!("tojson: {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn write_list<T>(
    open: char,
    items: &[T],
    close: char,
    style: &Style,
    depth: usize,
    out: &mut String,
    write_item: impl Fn(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out);
        write_item(item, out)?;
    }
    if !items.is_empty() {
        new_line(style, depth, out);
    }
    out.push(close);
    Ok(())
}

fn new_line(style: &Style, depth: usize, out: &mut String) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

fn pairs(map: &Value, sorted: bool) -> Result<Vec<(String, Value)>, Error> {
    let pair = |key: Value| Ok((key_text(&key)?, map.get_item(&key)?));
    let mut pairs = map.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>()?;
    if sorted {
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
    }
    Ok(pairs)
}

/// Python turns keys that are no strings into their JSON text.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => number(key),
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} cannot be a key"))),
    }
}

fn number(value: &Value) -> Result<String, Error> {
    match value.is_integer() {
        true => Ok(value.to_string()),
        false => f64::try_from(value.clone()).map(float),
    }
}

/// Python's `repr` of a float: shortest digits, an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("{:e} writes a small exponent");
    match x == 0.0 || (-4..16).contains(&exponent) {
        true => format!("{x:?}"),
        false => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

fn write_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 || (ascii && !matches!(c, ' '..='~')) => write_escape(c, out),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("writing to a string cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_python_s() {
        let check = |x: f64, expect: &str| assert_eq!(float(x), expect);
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(1e-4, "0.0001");
        check(1e-5, "1e-05");
        check(1.5e-7, "1.5e-07");
        check(1e15, "1000000000000000.0");
        check(1e16, "1e+16");
        check(1.25e100, "1.25e+100");
        check(f64::NEG_INFINITY, "-Infinity");
    }
}
