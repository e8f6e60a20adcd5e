//! Tests, the operands of `is`.

use std::rc::Rc;

use super::arguments::Args;
use super::ast::Comparison;
use super::limits::{Meter, Result, failed};
use super::names;
use super::operators::{contains, equal, holds};
use super::text::Text;
use super::value::Value;

/// `value is name(args)`
pub(super) fn check(name: &str, value: &Value, mut args: Args, meter: &Rc<Meter>) -> Result<bool> {
    let holds = match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        // A sequence is a value with a length and items, as in Python.
        "sequence" => matches!(value, Value::List(_) | Value::Text(_) | Value::Map(_)),
        "iterable" => matches!(value, Value::List(_) | Value::Text(_) | Value::Map(_) | Value::Undefined),
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Loop(_)),
        "escaped" => false,
        "odd" => number(value)? % 2 != 0,
        "even" => number(value)? % 2 == 0,
        "divisibleby" => {
            let divisor = args.int("num")?.filter(|divisor| *divisor != 0);
            let divisor = divisor.ok_or_else(|| failed("a number cannot be divided by that"))?;
            number(value)?.checked_rem(divisor) == Some(0)
        }
        "lower" => all_characters(value, meter, |c| c.to_lowercase().eq([c]))?,
        "upper" => all_characters(value, meter, |c| c.to_uppercase().eq([c]))?,
        "sameas" => {
            meter.spend_bytes(value.as_str().map_or(0, str::len))?;
            same(value, &args.required("other")?)
        }
        "in" => contains(&args.required("seq")?, value, meter)?,
        "containing" => contains(value, &args.required("item")?, meter)?,
        "startingwith" => text(value)?.starts_with(affix(&mut args, "prefix", meter)?.as_str()),
        "endingwith" => text(value)?.ends_with(affix(&mut args, "suffix", meter)?.as_str()),
        "eq" | "equalto" | "==" => equal(value, &args.required("other")?, meter)?,
        "filter" => value.as_str().is_some_and(names::is_filter),
        "test" => value.as_str().is_some_and(names::is_test),
        _ => match comparison(name) {
            Some(comparison) => holds(comparison, value, &args.required("other")?, meter)?,
            None => return Err(failed(format!("there is no test {name:?}"))),
        },
    };
    args.finish()?;
    Ok(holds)
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "ne" | "!=" => Comparison::NotEqual,
        "lt" | "lessthan" | "<" => Comparison::Less,
        "le" | "<=" => Comparison::LessEqual,
        "gt" | "greaterthan" | ">" => Comparison::Greater,
        "ge" | ">=" => Comparison::GreaterEqual,
        _ => return None,
    })
}

/// Python's `is`: the same object, or equal singletons.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::List(a), Value::List(b)) => a.is(b),
        (Value::Map(a), Value::Map(b)) => a.is(b),
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
        _ => a.same_scalar(b),
    }
}

/// Whether `is` holds for all characters of a string; false for other values. A mapping of case leaves a string
/// unchanged only if it leaves every character unchanged, because it removes none.
fn all_characters(value: &Value, meter: &Meter, is: impl Fn(char) -> bool) -> Result<bool> {
    let Some(text) = value.as_str() else { return Ok(false) };
    meter.spend_bytes(text.len())?;
    Ok(text.chars().all(is))
}

/// The argument that a string is compared with at one end.
fn affix(args: &mut Args, name: &str, meter: &Meter) -> Result<Text> {
    let affix = args.required_text(name)?;
    meter.spend_bytes(affix.as_str().len())?;
    Ok(affix)
}

fn number(value: &Value) -> Result<i128> {
    value.as_int().ok_or_else(|| failed(format!("{} is no integer", value.kind())))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| failed(format!("{} is no string", value.kind())))
}
