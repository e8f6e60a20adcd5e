//! Filters of single values; those of sequences are in [`super::sequences`].

use std::rc::Rc;

use super::arguments::Args;
use super::display::text_of;
use super::eval::Interpreter;
use super::format::printf;
use super::limits::{Charge, Meter, Result, failed};
use super::text::{Builder, Text};
use super::value::Value;
use super::{containers, json, methods, sequences};

/// `value | name(args)`
pub(super) fn apply(
    interpreter: &mut Interpreter,
    name: &str,
    value: Value,
    mut args: Args,
) -> Result<Value> {
    let meter = interpreter.meter.clone();
    let result = match name {
        "default" | "d" => default(value, &mut args)?,
        "safe" | "string" => Value::Text(text_of(&value, &meter)?),
        "tojson" => {
            let mut out = Builder::new(&meter)?;
            json::dumps(&value, args, &mut out)?;
            return Ok(Value::Text(out.finish()));
        }
        "from_json" => json::loads(&text_of(&value, &meter)?, &meter)?,
        "length" | "count" => Value::Int(length(&value, &meter)? as i128),
        "abs" => match value {
            Value::Float(value) => Value::Float(value.abs()),
            other => Value::Int(other.as_int().and_then(i128::checked_abs).ok_or_else(|| no_number(&other))?),
        },
        "int" => to_int(&value, &mut args, &meter)?,
        "float" => to_float(&value, &mut args, &meter)?,
        "round" => round(&value, &mut args)?,
        "bool" => Value::Bool(value.is_true()),
        "items" => match &value {
            Value::Map(map) => containers::items(&map.get(), &meter)?,
            Value::Undefined => Value::list(Vec::new(), &meter)?,
            other => return Err(failed(format!("{} has no items", other.kind()))),
        },
        "wordcount" => {
            let text = text_of(&value, &meter)?;
            meter.spend_bytes(text.as_str().len())?;
            Value::Int(text.as_str().split_whitespace().count() as i128)
        }
        "attr" => interpreter.attribute(&value, args.required_text("name")?.as_str())?,
        "format" => {
            let values = Value::tuple(args.rest(), &meter)?;
            printf(&text_of(&value, &meter)?, &values, &meter)?
        }
        _ => match sequences::apply(interpreter, name, &value, &mut args)? {
            Some(result) => result,
            None => Value::Text(of_text(name, &text_of(&value, &meter)?, &mut args, &meter)?),
        },
    };
    args.finish()?;
    Ok(result)
}

/// Filters of strings.
fn of_text(name: &str, text: &Text, args: &mut Args, meter: &Rc<Meter>) -> Result<Text> {
    meter.spend_bytes(text.as_str().len())?;
    match name {
        "upper" => methods::upper(text, meter),
        "lower" => methods::lower(text, meter),
        "capitalize" => methods::capitalize(text, meter),
        "title" => methods::title(text, meter),
        "trim" => methods::trimmed(text, args.text("chars")?.as_ref(), true, true, meter),
        "replace" => {
            let (old, new) = (args.required_text("old")?, args.required_text("new")?);
            methods::replace(text, &old, &new, args.count("count")?, meter)
        }
        "indent" => indent(text, args, meter),
        "center" => {
            let width = args.count("width")?.unwrap_or(80);
            let missing = width.saturating_sub(text.as_str().chars().count());
            let before = methods::centred(missing, width);
            let mut out = Builder::new(meter)?;
            out.pad(" ", before)?;
            out.push_text(text)?;
            out.pad(" ", missing - before)?;
            Ok(out.finish())
        }
        "escape" | "e" | "forceescape" => escape(text, meter),
        "urlencode" => url_encode(text, meter),
        _ => Err(failed(format!("there is no filter {name:?}"))),
    }
}

fn no_number(value: &Value) -> super::limits::Fault {
    failed(format!("{} is no number", value.kind()))
}

fn default(value: Value, args: &mut Args) -> Result<Value> {
    let default = args.next("default_value");
    let falsy = args.bool("boolean")?.unwrap_or(false);
    let missing = matches!(value, Value::Undefined) || (falsy && !value.is_true());
    match (missing, default) {
        (false, _) => Ok(value),
        (true, Some(default)) => Ok(default),
        (true, None) => Ok(Value::Text(Text::constant(&"".into()))),
    }
}

fn length(value: &Value, meter: &Rc<Meter>) -> Result<usize> {
    match value {
        Value::Text(text) => {
            meter.spend_bytes(text.as_str().len())?;
            Ok(text.as_str().chars().count())
        }
        Value::List(list) => Ok(list.get().items.len()),
        Value::Map(map) => Ok(map.get().entries.len()),
        Value::Undefined => Ok(0),
        other => Err(failed(format!("{} has no length", other.kind()))),
    }
}

fn to_int(value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let default = args.int("default")?.unwrap_or(0);
    let base = args.int("base")?.and_then(|base| u32::try_from(base).ok()).filter(|b| (2..=36).contains(b));
    let from_float = |value: f64| value.is_finite().then_some(value as i128);
    let read = match value {
        Value::Float(value) => from_float(*value),
        Value::Text(text) => {
            // The copy without underscores, which Python allows between digits.
            let _copy = Charge::new(meter, text.as_str().len())?;
            let text = text.as_str().trim();
            let whole = i128::from_str_radix(&text.replace('_', ""), base.unwrap_or(10)).ok();
            whole.or_else(|| text.parse().ok().and_then(from_float))
        }
        other => other.as_int(),
    };
    Ok(Value::Int(read.unwrap_or(default)))
}

fn to_float(value: &Value, args: &mut Args, meter: &Meter) -> Result<Value> {
    let default = args.next("default").and_then(|value| value.as_float()).unwrap_or(0.0);
    let read = match value {
        Value::Text(text) => {
            meter.spend_bytes(text.as_str().len())?;
            text.as_str().trim().parse().ok()
        }
        other => other.as_float(),
    };
    Ok(Value::Float(read.unwrap_or(default)))
}

fn round(value: &Value, args: &mut Args) -> Result<Value> {
    let digits = args.int("precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let method = args.text("method")?;
    let number = value.as_float().ok_or_else(|| no_number(value))?;
    let scale = 10f64.powi(digits);
    let scaled = number * scale;
    let rounded = match method.as_ref().map_or("common", Text::as_str) {
        "ceil" => scaled.ceil(),
        "floor" => scaled.floor(),
        _ => scaled.round_ties_even(),
    };
    Ok(Value::Float(if rounded.is_finite() { rounded / scale } else { number }))
}

fn indent(text: &Text, args: &mut Args, meter: &Rc<Meter>) -> Result<Text> {
    let width = match args.next("width") {
        Some(Value::Text(blanks)) => Err(blanks),
        Some(value) => {
            let width = value.as_int().ok_or_else(|| no_number(&value))?;
            Ok(usize::try_from(width.max(0)).unwrap_or(usize::MAX))
        }
        None => Ok(4),
    };
    let (first, blank) = (args.bool("first")?.unwrap_or(false), args.bool("blank")?.unwrap_or(false));
    let mut out = Builder::new(meter)?;
    let mut at = 0;
    for (i, line) in text.as_str().split('\n').enumerate() {
        if i > 0 {
            out.push_part(text, at - 1..at)?;
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            match &width {
                Ok(width) => out.pad(" ", *width)?,
                Err(blanks) => out.push_text(blanks)?,
            }
        }
        out.push_part(text, at..at + line.len())?;
        at += line.len() + 1;
    }
    Ok(out.finish())
}

fn escape(text: &Text, meter: &Rc<Meter>) -> Result<Text> {
    methods::map_characters(text, meter, |c, out| match c {
        '&' => out.push_str("&amp;"),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        '\'' => out.push_str("&#39;"),
        '"' => out.push_str("&#34;"),
        c => out.push(c),
    })
}

fn url_encode(text: &Text, meter: &Rc<Meter>) -> Result<Text> {
    methods::map_characters(text, meter, |c, out| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' | '~' | '/' => out.push(c),
        c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out.push_str(&format!("%{byte:02X}"))),
    })
}
