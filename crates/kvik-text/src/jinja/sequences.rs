//! Filters of lists, mappings and other iterable values.

use std::cmp::Ordering;
use std::rc::Rc;

use super::arguments::Args;
use super::display::text_of;
use super::eval::Interpreter;
use super::limits::{Meter, Result, failed};
use super::operators::{add, compare, equal, iterate, reserve};
use super::sorting::{Keyed, sorted};
use super::text::Text;
use super::value::{List, Value};
use super::{checks, methods};

/// `value | name(args)`; `None` if no filter of sequences has this name.
pub(super) fn apply(
    interpreter: &mut Interpreter,
    name: &str,
    value: &Value,
    args: &mut Args,
) -> Result<Option<Value>> {
    let meter = interpreter.meter.clone();
    Ok(Some(match name {
        "first" | "last" => end(name, value, &meter)?,
        "list" => copied(value, &meter)?,
        "join" => join(interpreter, value, args)?,
        "reverse" => reverse(value, &meter)?,
        "sort" => sort(interpreter, value, args)?,
        "dictsort" => dict_sort(value, args, &meter)?,
        "unique" => unique(interpreter, value, args)?,
        "min" | "max" => extreme(interpreter, name, value, args)?,
        "sum" => sum(interpreter, value, args)?,
        "map" => map(interpreter, value, args)?,
        "select" | "reject" => select(interpreter, value, args, false, name == "select")?,
        "selectattr" | "rejectattr" => select(interpreter, value, args, true, name == "selectattr")?,
        "groupby" => group_by(interpreter, value, args)?,
        "batch" => batch(value, args, &meter)?,
        "slice" => slices(value, args, &meter)?,
        "split" => {
            let text = text_of(value, &meter)?;
            let args = std::mem::replace(args, Args::new(Vec::new(), Vec::new()));
            methods::of_text(&text, "split", args, &meter)?
        }
        _ => return Ok(None),
    }))
}

/// The first or the last item.
fn end(name: &str, value: &Value, meter: &Rc<Meter>) -> Result<Value> {
    if let Value::Text(text) = value {
        let whole = text.as_str();
        let characters = &mut whole.char_indices();
        let found = if name == "first" { characters.next() } else { characters.next_back() };
        let Some((at, c)) = found else { return Ok(Value::Undefined) };
        return text.slice(at..at + c.len_utf8(), meter).map(Value::Text);
    }
    let list = iterate(value, meter)?;
    let found = if name == "first" { list.items.first() } else { list.items.last() };
    Ok(found.cloned().unwrap_or(Value::Undefined))
}

fn join(interpreter: &Interpreter, value: &Value, args: &mut Args) -> Result<Value> {
    let meter = &interpreter.meter;
    let separator = match args.next("d") {
        Some(separator) => text_of(&separator, meter)?,
        None => Text::constant(&"".into()),
    };
    let items = match args.text("attribute")? {
        Some(path) => attributes(interpreter, value, path.as_str())?,
        None => value.clone(),
    };
    methods::join(&separator, &items, meter).map(Value::Text)
}

/// An attribute of each item.
fn attributes(interpreter: &Interpreter, value: &Value, path: &str) -> Result<Value> {
    let items = iterate(value, &interpreter.meter)?;
    let attributes = items.items.iter().map(|item| attribute(interpreter, item, path));
    Value::list(attributes.collect::<Result<_>>()?, &interpreter.meter)
}

/// `a.b.0` of a value; undefined if a part is missing.
fn attribute(interpreter: &Interpreter, value: &Value, path: &str) -> Result<Value> {
    path.split('.').try_fold(value.clone(), |value, part| {
        interpreter.meter.spend_bytes(part.len())?;
        match (&value, part.parse::<usize>()) {
            (Value::Undefined, _) => Ok(Value::Undefined),
            (Value::List(list), Ok(index)) => {
                Ok(list.get().items.get(index).cloned().unwrap_or(Value::Undefined))
            }
            _ => interpreter.attribute(&value, part),
        }
    })
}

/// The sort key of an item: itself or an attribute, in lower case unless `exact`.
fn key(interpreter: &Interpreter, item: &Value, path: Option<&Text>, exact: bool) -> Result<Value> {
    let value = match path {
        Some(path) => attribute(interpreter, item, path.as_str())?,
        None => item.clone(),
    };
    match value {
        Value::Text(text) if !exact => methods::lower(&text, &interpreter.meter).map(Value::Text),
        other => Ok(other),
    }
}

fn reverse(value: &Value, meter: &Rc<Meter>) -> Result<Value> {
    match value {
        Value::Text(_) => {
            let characters = reversed(iterate(value, meter)?.as_ref(), meter)?;
            methods::join(&Text::constant(&"".into()), &characters, meter).map(Value::Text)
        }
        other => reversed(iterate(other, meter)?.as_ref(), meter),
    }
}

fn reversed(list: &List, meter: &Rc<Meter>) -> Result<Value> {
    reserve(list.items.len(), meter)?;
    Value::list(list.items.iter().rev().cloned().collect(), meter)
}

/// Copies the items to a new list, so that changing it does not affect the value.
fn copied(value: &Value, meter: &Rc<Meter>) -> Result<Value> {
    let list = iterate(value, meter)?;
    reserve(list.items.len(), meter)?;
    Value::list(list.items.clone(), meter)
}

fn items_of(keyed: Keyed, meter: &Rc<Meter>) -> Result<Value> {
    Value::list(keyed.into_iter().map(|(_, item)| item).collect(), meter)
}

fn sort(interpreter: &Interpreter, value: &Value, args: &mut Args) -> Result<Value> {
    let (reverse, exact) =
        (args.bool("reverse")?.unwrap_or(false), args.bool("case_sensitive")?.unwrap_or(false));
    let path = args.text("attribute")?;
    let meter = &interpreter.meter;
    let list = iterate(value, meter)?;
    reserve(list.items.len().saturating_mul(4), meter)?;
    let mut keyed = Vec::with_capacity(list.items.len());
    for item in &list.items {
        let keys = match &path {
            None => key(interpreter, item, None, exact)?,
            Some(path) => {
                let parts = path.as_str().split(',').map(|part| {
                    let part = Text::template(part.trim(), meter)?;
                    key(interpreter, item, Some(&part), exact)
                });
                Value::tuple(parts.collect::<Result<_>>()?, meter)?
            }
        };
        keyed.push((keys, item.clone()));
    }
    items_of(sorted(keyed, reverse, meter)?, meter)
}

fn dict_sort(value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let exact = args.bool("case_sensitive")?.unwrap_or(false);
    let by_value = args.text("by")?.is_some_and(|by| by.as_str() == "value");
    let reverse = args.bool("reverse")?.unwrap_or(false);
    let Value::Map(map) = value else { return Err(failed(format!("{} has no items", value.kind()))) };
    let map = map.get();
    reserve(map.entries.len().saturating_mul(4), meter)?;
    let mut keyed = Vec::with_capacity(map.entries.len());
    for (key, value) in &map.entries {
        let by = match if by_value { value } else { key } {
            Value::Text(text) if !exact => Value::Text(methods::lower(text, meter)?),
            other => other.clone(),
        };
        keyed.push((by, Value::tuple(vec![key.clone(), value.clone()], meter)?));
    }
    items_of(sorted(keyed, reverse, meter)?, meter)
}

fn unique(interpreter: &Interpreter, value: &Value, args: &mut Args) -> Result<Value> {
    let exact = args.bool("case_sensitive")?.unwrap_or(false);
    let path = args.text("attribute")?;
    let meter = &interpreter.meter;
    let (mut seen, mut kept): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    'items: for item in &iterate(value, meter)?.items {
        let key = key(interpreter, item, path.as_ref(), exact)?;
        for known in &seen {
            if equal(known, &key, meter)? {
                continue 'items;
            }
        }
        seen.push(key);
        kept.push(item.clone());
    }
    Value::list(kept, meter)
}

fn extreme(interpreter: &Interpreter, name: &str, value: &Value, args: &mut Args) -> Result<Value> {
    let exact = args.bool("case_sensitive")?.unwrap_or(false);
    let path = args.text("attribute")?;
    let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
    let meter = &interpreter.meter;
    let mut best: Option<(Value, Value)> = None;
    for item in &iterate(value, meter)?.items {
        let key = key(interpreter, item, path.as_ref(), exact)?;
        let better = match &best {
            Some((known, _)) => compare(&key, known, meter)? == Some(wanted),
            None => true,
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined, |(_, item)| item))
}

fn sum(interpreter: &Interpreter, value: &Value, args: &mut Args) -> Result<Value> {
    let path = args.text("attribute")?;
    let mut total = args.next("start").unwrap_or(Value::Int(0));
    for item in &iterate(value, &interpreter.meter)?.items {
        let item = match &path {
            Some(path) => attribute(interpreter, item, path.as_str())?,
            None => item.clone(),
        };
        total = add(&total, &item, &interpreter.meter)?;
    }
    Ok(total)
}

/// Iterates a value, or nothing if it is falsy: Jinja accepts `none | select`.
fn iterate_if_true(value: &Value, meter: &Rc<Meter>) -> Result<Rc<List>> {
    iterate(if value.is_true() { value } else { &Value::Undefined }, meter)
}

/// `map('filter', ..)` or `map(attribute='a', default=..)`
fn map(interpreter: &mut Interpreter, value: &Value, args: &mut Args) -> Result<Value> {
    let meter = interpreter.meter.clone();
    let list = iterate_if_true(value, &meter)?;
    let mut mapped = Vec::new();
    if let Some(path) = args.named("attribute") {
        let (path, default) = (text_of(&path, &meter)?, args.named("default"));
        for item in &list.items {
            let value = attribute(interpreter, item, path.as_str())?;
            let default = default.as_ref().filter(|_| matches!(value, Value::Undefined)).cloned();
            mapped.push(default.unwrap_or(value));
        }
        return Value::list(mapped, &meter);
    }
    let name = args.required_text("filter")?;
    let (positional, named) = (args.rest(), args.rest_named());
    for item in &list.items {
        meter.spend(1 + positional.len() + named.len())?;
        let args = Args::new(positional.clone(), named.clone());
        mapped.push(interpreter.filter(name.as_str(), item.clone(), args)?);
    }
    Value::list(mapped, &meter)
}

/// Items that pass a test, or that fail it.
fn select(
    interpreter: &Interpreter,
    value: &Value,
    args: &mut Args,
    by_attribute: bool,
    wanted: bool,
) -> Result<Value> {
    let meter = &interpreter.meter;
    let path = if by_attribute { Some(args.required_text("attribute")?) } else { None };
    let test = args.text("test")?;
    let (positional, named) = (args.rest(), args.rest_named());
    let mut kept = Vec::new();
    for item in &iterate_if_true(value, meter)?.items {
        let tested = match &path {
            Some(path) => attribute(interpreter, item, path.as_str())?,
            None => item.clone(),
        };
        meter.spend(1 + positional.len() + named.len())?;
        let holds = match &test {
            Some(test) => {
                let args = Args::new(positional.clone(), named.clone());
                checks::check(test.as_str(), &tested, args, meter)?
            }
            None => tested.is_true(),
        };
        kept.extend((holds == wanted).then(|| item.clone()));
    }
    Value::list(kept, meter)
}

/// Groups items by an attribute: sorted pairs of its value and the items.
fn group_by(interpreter: &Interpreter, value: &Value, args: &mut Args) -> Result<Value> {
    let path = args.required_text("attribute")?;
    let default = args.next("default");
    let exact = args.bool("case_sensitive")?.unwrap_or(false);
    let meter = &interpreter.meter;
    let mut keyed = Vec::new();
    for item in &iterate(value, meter)?.items {
        let by = match attribute(interpreter, item, path.as_str())? {
            Value::Undefined => default.clone().unwrap_or(Value::Undefined),
            found => found,
        };
        let by = key(interpreter, &by, None, exact)?;
        keyed.push((by, item.clone()));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (by, item) in sorted(keyed, false, meter)? {
        match groups.last_mut() {
            Some((known, items)) if equal(known, &by, meter)? => items.push(item),
            _ => groups.push((by, vec![item])),
        }
    }
    let pair = |(by, items): (Value, Vec<Value>)| {
        // The group takes the spelling of its first item.
        let by = match (&by, items.first()) {
            (Value::Text(_), Some(first)) => attribute(interpreter, first, path.as_str())?,
            _ => by,
        };
        Value::tuple(vec![by, Value::list(items, meter)?], meter)
    };
    Value::list(groups.into_iter().map(pair).collect::<Result<_>>()?, meter)
}

/// Splits into lists of `linecount` items; the last one is filled up.
fn batch(value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let count = args.count("linecount")?.filter(|count| *count > 0);
    let count = count.ok_or_else(|| failed("`batch` needs a number of items"))?;
    let fill = args.next("fill_with").filter(|fill| !matches!(fill, Value::None));
    let list = iterate(value, meter)?;
    let mut batches = Vec::new();
    for batch in list.items.chunks(count) {
        let mut batch = batch.to_vec();
        if let Some(fill) = &fill {
            reserve(count, meter)?;
            batch.resize(count, fill.clone());
        }
        batches.push(Value::list(batch, meter)?);
    }
    Value::list(batches, meter)
}

/// Splits into `slices` lists of nearly equal length; the shorter ones are filled up.
fn slices(value: &Value, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    let count = args.count("slices")?.filter(|count| *count > 0);
    let count = count.ok_or_else(|| failed("`slice` needs a number of lists"))?;
    let fill = args.next("fill_with").filter(|fill| !matches!(fill, Value::None));
    let list = iterate(value, meter)?;
    reserve(count, meter)?;
    let (each, longer) = (list.items.len() / count, list.items.len() % count);
    let mut at = 0;
    let mut slices = Vec::new();
    for i in 0..count {
        let end = at + each + usize::from(i < longer);
        let mut slice = list.items[at..end].to_vec();
        if i >= longer && longer > 0 {
            slice.extend(fill.clone());
        }
        slices.push(Value::list(slice, meter)?);
        at = end;
    }
    Value::list(slices, meter)
}
