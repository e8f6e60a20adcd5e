//! `tojson` as Hugging Face renders it: the same characters as Python's `json.dumps`.

use std::fmt::Write;
use std::rc::Rc;

use serde_json::Value as Json;

use super::arguments::Args;
use super::display::finite_float;
use super::limits::{Charge, Meter, Result, failed};
use super::text::{Builder, Text};
use super::value::{Map, Value};

/// Maximum spaces of one level.
const INDENT_MAX: i128 = 64;

/// The style of the JSON.
struct Style {
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    item_separator: Text,
    key_separator: Text,
}

/// Writes a value as JSON in the style that the filter's arguments set.
pub(super) fn dumps(value: &Value, mut args: Args, out: &mut Builder) -> Result<()> {
    let style = Style::read(&mut args)?;
    args.finish()?;
    style.value(value, 0, out)
}

impl Style {
    fn read(args: &mut Args) -> Result<Style> {
        // Reads the arguments in their order in transformers.
        let ascii = args.bool("ensure_ascii")?.unwrap_or(false);
        let indent = args.int("indent")?;
        if indent.is_some_and(|indent| !(0..=INDENT_MAX).contains(&indent)) {
            return Err(failed(format!("tojson: `indent` is not in 0..={INDENT_MAX}")));
        }
        let separators = args.next("separators").filter(|value| !matches!(value, Value::None));
        let sorted = args.bool("sort_keys")?.unwrap_or(false);
        let default_item = if indent.is_some() { "," } else { ", " };
        let (item, key) = match &separators {
            None => (Text::constant(&default_item.into()), Text::constant(&": ".into())),
            Some(pair) => pair_of(pair)?,
        };
        let indent = indent.map(|indent| indent as usize);
        Ok(Style { indent, ascii, sorted, item_separator: item, key_separator: key })
    }

    fn value(&self, value: &Value, level: usize, out: &mut Builder) -> Result<()> {
        match value {
            Value::None => out.push_template("null"),
            Value::Bool(value) => out.push_template(if *value { "true" } else { "false" }),
            Value::Int(value) => out.push_template(&value.to_string()),
            Value::Float(value) => out.push_template(&float(*value)),
            Value::Text(text) => self.text(text, out),
            Value::List(list) => {
                let write = |item: &Value, out: &mut Builder| self.value(item, level + 1, out);
                self.list("[", &list.get().items, "]", level, out, write)
            }
            Value::Map(map) => self.map(&map.get(), level, out),
            other => Err(failed(format!("tojson: {} is not JSON serializable", other.kind()))),
        }
    }

    fn map(&self, map: &Map, level: usize, out: &mut Builder) -> Result<()> {
        let mut pairs: Vec<&(Value, Value)> = map.entries.iter().collect();
        if self.sorted {
            spend_sort(&pairs, out.meter())?;
            pairs.sort_by(|a, b| a.0.as_str().cmp(&b.0.as_str()));
        }
        self.list("{", &pairs, "}", level, out, |(key, item), out| {
            self.key(key, out)?;
            out.push_template(self.key_separator.as_str())?;
            self.value(item, level + 1, out)
        })
    }

    fn list<T>(
        &self,
        open: &str,
        items: &[T],
        close: &str,
        level: usize,
        out: &mut Builder,
        write_item: impl Fn(&T, &mut Builder) -> Result<()>,
    ) -> Result<()> {
        out.push_template(open)?;
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_template(self.item_separator.as_str())?;
            }
            self.new_line(level + 1, out)?;
            let meter = out.meter().clone();
            meter.inside(|| write_item(item, out))?;
        }
        if !items.is_empty() {
            self.new_line(level, out)?;
        }
        out.push_template(close)
    }

    fn new_line(&self, level: usize, out: &mut Builder) -> Result<()> {
        match self.indent {
            Some(indent) => out.push_template(&format!("\n{}", " ".repeat(indent * level))),
            None => Ok(()),
        }
    }

    /// Python converts keys that are not strings to their JSON text.
    fn key(&self, key: &Value, out: &mut Builder) -> Result<()> {
        if let Value::Text(text) = key {
            return self.text(text, out);
        }
        out.push_template("\"")?;
        self.value(key, 0, out)?;
        out.push_template("\"")
    }

    fn text(&self, text: &Text, out: &mut Builder) -> Result<()> {
        out.push_template("\"")?;
        for (piece, input) in text.pieces() {
            out.push_mapped(piece, input, |c, out| self.character(c, out))?;
        }
        out.push_template("\"")
    }

    fn character(&self, c: char, out: &mut String) {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 || (self.ascii && !matches!(c, ' '..='~')) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a string cannot fail");
                }
            }
            c => out.push(c),
        }
    }
}

/// Spends the steps for sorting: each round of merges compares every key once.
fn spend_sort(pairs: &[&(Value, Value)], meter: &Meter) -> Result<()> {
    let rounds = 1 + pairs.len().checked_ilog2().unwrap_or(0) as usize;
    let bytes: usize = pairs.iter().filter_map(|(key, _)| key.as_str()).map(str::len).sum();
    meter.spend(rounds.saturating_mul(pairs.len()))?;
    meter.spend_bytes(rounds.saturating_mul(bytes))
}

/// Two strings, the separators of items and of keys.
fn pair_of(value: &Value) -> Result<(Text, Text)> {
    let pair = match value {
        Value::List(pair) => Some(pair.get()),
        _ => None,
    };
    match pair.as_ref().map(|pair| &pair.items[..]) {
        Some([Value::Text(item), Value::Text(key)]) => Ok((item.clone(), key.clone())),
        _ => Err(failed("tojson: `separators` must be a pair of strings")),
    }
}

/// Parses JSON. llama.cpp has this filter, and templates that it publishes use it.
pub(super) fn loads(text: &Text, meter: &Rc<Meter>) -> Result<Value> {
    // A parsed value takes more memory than its text.
    let parsed = Charge::new(meter, text.as_str().len().saturating_mul(size_of::<Json>()))?;
    let json: Json = serde_json::from_str(text.as_str())
        .map_err(|error| failed(format!("from_json: the text is not valid JSON: {error}")))?;
    let value = Value::from_json(&json, meter);
    drop(parsed);
    value
}

fn float(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        x => finite_float(x),
    }
}
