//! Values as text: Python's `str` and `repr`.

use std::fmt::Write;
use std::rc::Rc;

use super::limits::{Meter, Result};
use super::text::{Builder, Text};
use super::value::{List, Map, Value};

/// Writes the value as `{{ .. }}` prints it.
pub(super) fn write_value(value: &Value, out: &mut Builder) -> Result<()> {
    match value {
        Value::Undefined => Ok(()),
        Value::Text(text) => out.push_text(text),
        other => write_repr(other, out),
    }
}

/// The value as printed text.
pub(super) fn text_of(value: &Value, meter: &Rc<Meter>) -> Result<Text> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        other => {
            let mut out = Builder::new(meter)?;
            write_value(other, &mut out)?;
            Ok(out.finish())
        }
    }
}

/// Writes the value as it is printed in a list.
fn write_repr(value: &Value, out: &mut Builder) -> Result<()> {
    match value {
        Value::Undefined => out.push_template("Undefined"),
        Value::None => out.push_template("None"),
        Value::Bool(value) => out.push_template(if *value { "True" } else { "False" }),
        Value::Int(value) => out.push_template(&value.to_string()),
        Value::Float(value) => out.push_template(&python_float(*value)),
        Value::Text(text) => write_quoted(text, out),
        Value::List(list) => nested(out, |out| write_list(&list.get(), out)),
        Value::Map(map) => nested(out, |out| write_map(&map.get(), out)),
        Value::Namespace(_) => out.push_template("<Namespace>"),
        Value::Macro(definition) => out.push_template(&format!("<Macro '{}'>", definition.definition.name)),
        Value::Loop(_) => out.push_template("<LoopContext>"),
        Value::Function(_) => out.push_template("<function>"),
    }
}

fn nested(out: &mut Builder, write: impl FnOnce(&mut Builder) -> Result<()>) -> Result<()> {
    let meter = out.meter().clone();
    meter.inside(|| write(out))
}

fn write_list(list: &List, out: &mut Builder) -> Result<()> {
    let (open, close) = if list.is_tuple { ("(", ")") } else { ("[", "]") };
    out.push_template(open)?;
    for (i, item) in list.items.iter().enumerate() {
        if i > 0 {
            out.push_template(", ")?;
        }
        write_repr(item, out)?;
    }
    if list.is_tuple && list.items.len() == 1 {
        out.push_template(",")?;
    }
    out.push_template(close)
}

fn write_map(map: &Map, out: &mut Builder) -> Result<()> {
    out.push_template("{")?;
    for (i, (key, value)) in map.entries.iter().enumerate() {
        if i > 0 {
            out.push_template(", ")?;
        }
        write_repr(key, out)?;
        out.push_template(": ")?;
        write_repr(value, out)?;
    }
    out.push_template("}")
}

fn write_quoted(text: &Text, out: &mut Builder) -> Result<()> {
    let quote = if text.as_str().contains('\'') && !text.as_str().contains('"') { '"' } else { '\'' };
    let quote_text = quote.to_string();
    out.push_template(&quote_text)?;
    for (piece, input) in text.pieces() {
        out.push_mapped(piece, input, |c, out| escape(c, quote, out))?;
    }
    out.push_template(&quote_text)
}

fn escape(c: char, quote: char, out: &mut String) {
    let code = u32::from(c);
    let written = match c {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        '\\' => write!(out, "\\\\"),
        c if c == quote => write!(out, "\\{c}"),
        c if c.is_control() || matches!(code, 0xa0 | 0xad) => write!(out, "\\x{code:02x}"),
        c => write!(out, "{c}"),
    };
    written.expect("writing to a string cannot fail");
}

/// Python's `str` of a float.
pub(super) fn python_float(x: f64) -> String {
    match x {
        x if x.is_nan() => "nan".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        x => finite_float(x),
    }
}

/// The shortest digits, with an exponent below 1e-4 and from 1e16.
pub(super) fn finite_float(x: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let check = |x: f64, expect: &str| assert_eq!(python_float(x), expect);
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(1e-4, "0.0001");
        check(1e-5, "1e-05");
        check(1.5e-7, "1.5e-07");
        check(1e15, "1000000000000000.0");
        check(1e16, "1e+16");
        check(1.25e100, "1.25e+100");
        check(f64::NEG_INFINITY, "-inf");
    }
}
