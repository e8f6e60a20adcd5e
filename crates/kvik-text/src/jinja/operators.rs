//! Arithmetic, comparison, items and slices, with Python's semantics.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::{Comparison, Operator};
use super::display::write_value;
use super::format::printf;
use super::limits::{Charge, Fault, Meter, Result, failed};
use super::text::{Builder, Text};
use super::value::{List, Reference, Value};

pub(super) fn binary(operator: Operator, a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<Value> {
    match operator {
        Operator::Add => add(a, b, meter),
        Operator::Join => {
            let mut joined = Builder::new(meter)?;
            write_value(a, &mut joined)?;
            write_value(b, &mut joined)?;
            Ok(Value::Text(joined.finish()))
        }
        Operator::Multiply => multiply(a, b, meter),
        Operator::Remainder => match a {
            Value::Text(format) => printf(format, b, meter),
            _ => number(operator, a, b),
        },
        _ => number(operator, a, b),
    }
}

/// `a + b`
pub(super) fn add(a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<Value> {
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            let mut sum = Builder::new(meter)?;
            sum.push_text(a)?;
            sum.push_text(b)?;
            Ok(Value::Text(sum.finish()))
        }
        (Value::List(a), Value::List(b)) if a.get().is_tuple == b.get().is_tuple => {
            let (a, b) = (a.get(), b.get());
            reserve(a.items.len() + b.items.len(), meter)?;
            let items = a.items.iter().chain(&b.items).cloned().collect();
            Ok(Value::List(Reference::new(List::new(items, a.is_tuple, meter)?)))
        }
        _ => number(Operator::Add, a, b),
    }
}

fn multiply(a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<Value> {
    let times = |value: &Value| value.as_int().map(|n| usize::try_from(n.max(0)).unwrap_or(usize::MAX));
    match (a, b, times(a), times(b)) {
        (Value::Text(text), _, _, Some(times)) | (_, Value::Text(text), Some(times), _) => {
            let mut product = Builder::new(meter)?;
            product.push_repeated(text, times)?;
            Ok(Value::Text(product.finish()))
        }
        (Value::List(list), _, _, Some(times)) | (_, Value::List(list), Some(times), _) => {
            let list = list.get();
            let length = list.items.len().saturating_mul(times);
            reserve(length, meter)?;
            let items = list.items.iter().cycle().take(length).cloned().collect();
            Ok(Value::List(Reference::new(List::new(items, list.is_tuple, meter)?)))
        }
        _ => number(Operator::Multiply, a, b),
    }
}

/// Checks that a list of this many items fits into memory before it is created.
pub(super) fn reserve(items: usize, meter: &Rc<Meter>) -> Result<()> {
    Charge::new(meter, items.saturating_mul(size_of::<Value>())).map(drop)
}

pub(super) fn negative(value: &Value) -> Result<Value> {
    match value {
        Value::Float(value) => Ok(Value::Float(-value)),
        other => match other.as_int().and_then(i128::checked_neg) {
            Some(value) => Ok(Value::Int(value)),
            None => Err(failed(format!("{} has no negative", other.kind()))),
        },
    }
}

fn number(operator: Operator, a: &Value, b: &Value) -> Result<Value> {
    let impossible = || failed(format!("{} and {} cannot be {}", a.kind(), b.kind(), verb(operator)));
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int())
        && let Some(result) = whole(operator, a, b)?
    {
        return Ok(Value::Int(result));
    }
    match (a.as_float(), b.as_float()) {
        (Some(a), Some(b)) => real(operator, a, b).map(Value::Float),
        _ => Err(impossible()),
    }
}

fn verb(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "added",
        Operator::Subtract => "subtracted",
        Operator::Multiply => "multiplied",
        Operator::Divide | Operator::FloorDivide | Operator::Remainder => "divided",
        Operator::Power => "raised to a power",
        Operator::Join => "joined",
    }
}

/// The result, if it is an integer.
fn whole(operator: Operator, a: i128, b: i128) -> Result<Option<i128>> {
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::FloorDivide | Operator::Remainder if b == 0 => return Err(failed("division by zero")),
        // Python rounds down, so that the remainder has the sign of the divisor.
        Operator::FloorDivide => a.checked_div(b).map(|q| q - i128::from(a % b != 0 && (a < 0) != (b < 0))),
        Operator::Remainder => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
        Operator::Power if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        Operator::Power | Operator::Divide | Operator::Join => return Ok(None),
    };
    result.map(Some).ok_or_else(|| failed("the number is too large"))
}

fn real(operator: Operator, a: f64, b: f64) -> Result<f64> {
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if divides && b == 0.0 {
        return Err(failed("division by zero"));
    }
    Ok(match operator {
        Operator::Add | Operator::Join => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => (a / b).floor(),
        Operator::Remainder => a - b * (a / b).floor(),
        Operator::Power => a.powf(b),
    })
}

pub(super) fn holds(comparison: Comparison, a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<bool> {
    Ok(match comparison {
        Comparison::Equal => equal(a, b, meter)?,
        Comparison::NotEqual => !equal(a, b, meter)?,
        Comparison::Less => compare(a, b, meter)?.is_some_and(Ordering::is_lt),
        Comparison::LessEqual => compare(a, b, meter)?.is_some_and(Ordering::is_le),
        Comparison::Greater => compare(a, b, meter)?.is_some_and(Ordering::is_gt),
        Comparison::GreaterEqual => compare(a, b, meter)?.is_some_and(Ordering::is_ge),
        Comparison::In => contains(b, a, meter)?,
        Comparison::NotIn => !contains(b, a, meter)?,
    })
}

/// Deep equality of two values.
pub(super) fn equal(a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<bool> {
    meter.spend_bytes(a.as_str().map_or(0, str::len))?;
    match (a, b) {
        (Value::List(a), Value::List(b)) => {
            let (a, b) = (a.get(), b.get());
            if a.is_tuple != b.is_tuple || a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !meter.inside(|| equal(a, b, meter))? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Map(a), Value::Map(b)) => {
            let (a, b) = (a.get(), b.get());
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                match b.get_value(key, meter)? {
                    Some(other) if meter.inside(|| equal(value, other, meter))? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        _ => Ok(a.same_scalar(b)),
    }
}

/// The order of two values; `None` if one of them is NaN.
pub(super) fn compare(a: &Value, b: &Value, meter: &Rc<Meter>) -> Result<Option<Ordering>> {
    meter.spend_bytes(a.as_str().map_or(0, str::len))?;
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Ok(Some(a.cmp(&b)));
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return Ok(a.partial_cmp(&b));
    }
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => Ok(Some(a.as_str().cmp(b.as_str()))),
        (Value::List(a), Value::List(b)) if a.get().is_tuple == b.get().is_tuple => {
            let (a, b) = (a.get(), b.get());
            for (a, b) in a.items.iter().zip(&b.items) {
                match meter.inside(|| compare(a, b, meter))? {
                    Some(Ordering::Equal) => {}
                    decided => return Ok(decided),
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => Err(failed(format!("{} and {} have no order", a.kind(), b.kind()))),
    }
}

/// Whether `part` is in `whole`.
pub(super) fn contains(whole: &Value, part: &Value, meter: &Rc<Meter>) -> Result<bool> {
    match (whole, part) {
        (Value::Text(whole), Value::Text(part)) => {
            meter.spend_bytes(whole.as_str().len() + part.as_str().len())?;
            Ok(whole.as_str().contains(part.as_str()))
        }
        (Value::Map(map), _) => Ok(map.get().get_value(part, meter)?.is_some()),
        (Value::List(list), _) => {
            for item in &list.get().items {
                if equal(item, part, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Undefined, _) => Ok(false),
        _ => Err(failed(format!("{} cannot be in {}", part.kind(), whole.kind()))),
    }
}

/// The items of a list, the keys of a mapping, the characters of a string.
pub(super) fn iterate(value: &Value, meter: &Rc<Meter>) -> Result<Rc<List>> {
    let items = match value {
        Value::List(list) => return Ok(list.get()),
        Value::Map(map) => map.get().entries.iter().map(|(key, _)| key.clone()).collect(),
        Value::Text(text) => {
            let characters = text.as_str().char_indices();
            let item = |(at, c): (usize, char)| text.slice(at..at + c.len_utf8(), meter).map(Value::Text);
            characters.map(item).collect::<Result<_>>()?
        }
        Value::Undefined => Vec::new(),
        other => return Err(failed(format!("{} cannot be iterated", other.kind()))),
    };
    Ok(Rc::new(List::new(items, false, meter)?))
}

/// `value[index]`
pub(super) fn item(value: &Value, index: &Value, meter: &Rc<Meter>) -> Result<Value> {
    let found = match value {
        Value::Undefined => return Err(failed("cannot read an item of an undefined value")),
        Value::Map(map) => map.get().get_value(index, meter)?.cloned(),
        Value::List(list) => {
            let list = list.get();
            let index = index.as_int().and_then(|index| from_end(index, list.items.len()));
            index.and_then(|index| list.items.get(index).cloned())
        }
        Value::Text(text) => match index.as_int() {
            Some(index) => character(text, index, meter)?,
            None => None,
        },
        _ => None,
    };
    Ok(found.unwrap_or(Value::Undefined))
}

/// Negative indices count from the end.
pub(super) fn from_end(index: i128, length: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok()
}

fn character(text: &Text, index: i128, meter: &Rc<Meter>) -> Result<Option<Value>> {
    meter.spend_bytes(text.as_str().len())?;
    let Some(index) = from_end(index, text.as_str().chars().count()) else { return Ok(None) };
    let found = text.as_str().char_indices().nth(index);
    found.map(|(at, c)| text.slice(at..at + c.len_utf8(), meter).map(Value::Text)).transpose()
}

/// `value[start:stop:step]`
pub(super) fn slice(value: &Value, bounds: &[Value; 3], meter: &Rc<Meter>) -> Result<Value> {
    match value {
        Value::List(list) => {
            let list = list.get();
            let indices = indices(bounds, list.items.len())?;
            reserve(indices.len(), meter)?;
            let items = indices.map(|index| list.items[index].clone()).collect();
            Ok(Value::List(Reference::new(List::new(items, list.is_tuple, meter)?)))
        }
        Value::Text(text) => slice_text(text, bounds, meter),
        Value::Undefined => Err(failed("an undefined value cannot be sliced")),
        other => Err(failed(format!("{} cannot be sliced", other.kind()))),
    }
}

fn slice_text(text: &Text, bounds: &[Value; 3], meter: &Rc<Meter>) -> Result<Value> {
    let whole = text.as_str();
    let starts_charge = Charge::new(meter, (whole.len() + 1).saturating_mul(size_of::<usize>()))?;
    let ends = whole.char_indices().map(|(at, _)| at).chain([whole.len()]);
    let starts: Vec<usize> = ends.collect();
    let indices = indices(bounds, starts.len() - 1)?;
    let mut out = Builder::new(meter)?;
    match indices {
        Indices { first, count, step: 1 } => {
            out.push_part(text, starts[first]..starts[first + count])?;
        }
        indices => {
            for index in indices {
                out.push_part(text, starts[index]..starts[index + 1])?;
            }
        }
    }
    drop(starts_charge);
    Ok(Value::Text(out.finish()))
}

/// The indices of a slice.
#[derive(Debug, Clone, Copy)]
struct Indices {
    first: usize,
    count: usize,
    step: i128,
}

impl Iterator for Indices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.count = self.count.checked_sub(1)?;
        let index = self.first;
        self.first = (index as i128 + self.step).max(0) as usize;
        Some(index)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Indices {}

/// Python's rules for the bounds of a slice.
fn indices(bounds: &[Value; 3], length: usize) -> Result<Indices> {
    let bound = |value: &Value| match value {
        Value::None | Value::Undefined => Ok(None),
        // Clamps bounds beyond any length.
        other => match other.as_int() {
            Some(bound) => Ok(Some(bound.clamp(-(1 << 62), 1 << 62))),
            None => Err(failed(format!("{} cannot be the bound of a slice", other.kind()))),
        },
    };
    let [start, stop, step] = [bound(&bounds[0])?, bound(&bounds[1])?, bound(&bounds[2])?];
    let (length, step) = (length as i128, step.unwrap_or(1));
    if step == 0 {
        return Err(Fault::Failed { reason: "the step of a slice cannot be 0".into(), line: None });
    }
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamped = |bound: i128| (if bound < 0 { bound + length } else { bound }).clamp(low, high);
    let (start, stop) = match step > 0 {
        true => (start.map_or(low, clamped), stop.map_or(high, clamped)),
        false => (start.map_or(high, clamped), stop.map_or(low, clamped)),
    };
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 };
    Ok(Indices { first: start.max(0) as usize, count: count as usize, step })
}
