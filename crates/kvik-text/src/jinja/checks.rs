//! Tests, the operands of `is`.

use std::rc::Rc;

use super::arguments::Args;
use super::ast::Comparison;
use super::limits::{Meter, Result, failed};
use super::names;
use super::operators::{contains, equal, holds};
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
        "lower" => value.as_str().is_some_and(|text| text.to_lowercase() == text),
        "upper" => value.as_str().is_some_and(|text| text.to_uppercase() == text),
        "sameas" => same(value, &args.required("other")?),
        "in" => contains(&args.required("seq")?, value, meter)?,
        "containing" => contains(value, &args.required("item")?, meter)?,
        "startingwith" => text(value)?.starts_with(args.required_text("prefix")?.as_str()),
        "endingwith" => text(value)?.ends_with(args.required_text("suffix")?.as_str()),
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

fn number(value: &Value) -> Result<i128> {
    value.as_int().ok_or_else(|| failed(format!("{} is no integer", value.kind())))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| failed(format!("{} is no string", value.kind())))
}
