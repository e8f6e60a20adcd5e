//! Python's methods of lists and mappings, including mutating ones.

use std::rc::Rc;

use super::arguments::Args;
use super::limits::{Fault, Meter, Result, failed};
use super::operators::{equal, from_end, iterate, reserve};
use super::sorting::sorted;
use super::text::Text;
use super::value::{List, Map, Reference, Value};

/// Whether the method mutates its list or mapping.
pub(super) fn is_change(name: &str) -> bool {
    const CHANGES: [&str; 11] = [
        "append",
        "clear",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    ];
    CHANGES.contains(&name)
}

/// Calls a method of a list or a tuple.
pub(super) fn of_list(
    list: &Reference<List>,
    name: &str,
    mut args: Args,
    meter: &Rc<Meter>,
) -> Result<Value> {
    let items = list.get();
    let value = match name {
        "index" => Value::Int(index_of(&items, &args.required("value")?, meter)? as i128),
        "count" => {
            let wanted = args.required("value")?;
            let mut count = 0;
            for item in &items.items {
                count += i128::from(equal(item, &wanted, meter)?);
            }
            Value::Int(count)
        }
        _ if items.is_tuple => return Err(no_method("a tuple", name)),
        "copy" => copy(&items, meter)?,
        _ => {
            // Releases the read reference, so that the list can be changed in place.
            drop(items);
            change_list(list, name, &mut args, meter)?
        }
    };
    args.finish()?;
    Ok(value)
}

fn index_of(list: &List, wanted: &Value, meter: &Rc<Meter>) -> Result<usize> {
    for (i, item) in list.items.iter().enumerate() {
        if equal(item, wanted, meter)? {
            return Ok(i);
        }
    }
    Err(failed("the value is not in the list"))
}

fn copy(list: &List, meter: &Rc<Meter>) -> Result<Value> {
    reserve(list.items.len(), meter)?;
    Value::list(list.items.clone(), meter)
}

fn change_list(list: &Reference<List>, name: &str, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    meter.spend(1)?;
    match name {
        "append" => {
            let item = [args.required("object")?];
            list.change(&item, meter, |items| items.extend_from_slice(&item))?;
        }
        "extend" => {
            let more = iterate(&args.required("iterable")?, meter)?;
            list.change(&more.items, meter, |items| items.extend_from_slice(&more.items))?;
        }
        "insert" => {
            let index = args.int("index")?.ok_or_else(|| failed("the argument `index` is missing"))?;
            let item = [args.required("object")?];
            let length = list.get().items.len();
            meter.spend(1 + length / 8)?;
            let from_start = if index < 0 { index.saturating_add(length as i128) } else { index };
            let at = from_start.clamp(0, length as i128) as usize;
            list.change(&item, meter, |items| items.splice(at..at, item.iter().cloned()).for_each(drop))?;
        }
        "pop" => return pop(list, args.int("index")?.unwrap_or(-1), meter),
        "remove" => {
            let at = index_of(&list.get(), &args.required("value")?, meter)?;
            remove(list, at, meter)?;
        }
        "clear" => drop(list.change(&[], meter, std::mem::take)?),
        "reverse" => {
            meter.spend(1 + list.get().items.len() / 8)?;
            list.change(&[], meter, |items| items.reverse())?;
        }
        "sort" => sort(list, args.bool("reverse")?.unwrap_or(false), meter)?,
        _ => return Err(no_method("a list", name)),
    }
    Ok(Value::None)
}

fn pop(list: &Reference<List>, index: i128, meter: &Rc<Meter>) -> Result<Value> {
    let length = list.get().items.len();
    let at = from_end(index, length).filter(|at| *at < length);
    let at = at.ok_or_else(|| failed("`pop` of an item that the list does not have"))?;
    remove(list, at, meter)
}

/// Removes an item. Those after it are moved.
fn remove(list: &Reference<List>, at: usize, meter: &Rc<Meter>) -> Result<Value> {
    meter.spend(1 + (list.get().items.len() - at) / 8)?;
    list.change(&[], meter, |items| items.remove(at))
}

fn sort(list: &Reference<List>, reverse: bool, meter: &Rc<Meter>) -> Result<()> {
    let items = list.get();
    reserve(items.items.len().saturating_mul(4), meter)?;
    let keyed = items.items.iter().map(|item| (item.clone(), item.clone())).collect();
    drop(items);
    let ordered = sorted(keyed, reverse, meter)?.into_iter().map(|(_, item)| item).collect();
    list.change(&[], meter, |items| std::mem::replace(items, ordered)).map(drop)
}

/// Calls a method of a mapping.
pub(super) fn of_map(map: &Reference<Map>, name: &str, mut args: Args, meter: &Rc<Meter>) -> Result<Value> {
    let entries = map.get();
    meter.spend(1 + entries.entries.len() / 8)?;
    let value = match name {
        "get" => {
            let key = args.required("key")?;
            let default = args.next("default").unwrap_or(Value::None);
            entries.get_value(&key, meter)?.cloned().unwrap_or(default)
        }
        "keys" => Value::list(entries.entries.iter().map(|(key, _)| key.clone()).collect(), meter)?,
        "values" => Value::list(entries.entries.iter().map(|(_, value)| value.clone()).collect(), meter)?,
        "items" => items(&entries, meter)?,
        "copy" => {
            reserve(entries.entries.len().saturating_mul(2), meter)?;
            Value::map_of_distinct(entries.entries.clone(), meter)?
        }
        _ => {
            drop(entries);
            change_map(map, name, &mut args, meter)?
        }
    };
    args.finish()?;
    Ok(value)
}

fn change_map(map: &Reference<Map>, name: &str, args: &mut Args, meter: &Rc<Meter>) -> Result<Value> {
    match name {
        "update" => {
            let mut pairs = args.next("other").map_or(Ok(Vec::new()), |other| pairs_of(&other, meter))?;
            let named = args.rest_named().into_iter();
            pairs.extend(named.map(|(name, value)| (Value::Text(Text::constant(&name)), value)));
            pairs.into_iter().try_for_each(|(key, value)| put(map, key, value, meter))?;
            Ok(Value::None)
        }
        "setdefault" => {
            let key = args.required("key")?;
            let default = args.next("default").unwrap_or(Value::None);
            if let Some(known) = map.get().get_value(&key, meter)? {
                return Ok(known.clone());
            }
            put(map, key, default.clone(), meter)?;
            Ok(default)
        }
        "pop" => {
            let (key, default) = (args.required("key")?, args.next("default"));
            let at = map.get().position(&key, meter)?;
            match at {
                Some(at) => map.change(&[], meter, |entries| entries.remove(at)).map(|(_, value)| value),
                None => default.ok_or_else(|| failed("`pop` of a key that the mapping does not have")),
            }
        }
        "popitem" => {
            let last = map.change(&[], meter, Vec::pop)?;
            let (key, value) = last.ok_or_else(|| failed("`popitem` of an empty mapping"))?;
            Value::tuple(vec![key, value], meter)
        }
        "clear" => {
            drop(map.change(&[], meter, std::mem::take)?);
            Ok(Value::None)
        }
        _ => Err(no_method("a mapping", name)),
    }
}

/// The entries of a mapping, or a list of pairs.
fn pairs_of(value: &Value, meter: &Rc<Meter>) -> Result<Vec<(Value, Value)>> {
    if let Value::Map(map) = value {
        let map = map.get();
        reserve(map.entries.len().saturating_mul(2), meter)?;
        return Ok(map.entries.clone());
    }
    let list = iterate(value, meter)?;
    reserve(list.items.len().saturating_mul(2), meter)?;
    let pair = |item: &Value| {
        let pair = iterate(item, meter)?;
        match &pair.items[..] {
            [key, value] => Ok((key.clone(), value.clone())),
            _ => Err(failed("`update` needs pairs of a key and a value")),
        }
    };
    list.items.iter().map(pair).collect()
}

/// Sets the value of a key, in place if the mapping has it.
fn put(map: &Reference<Map>, key: Value, value: Value, meter: &Rc<Meter>) -> Result<()> {
    let at = map.get().position(&key, meter)?;
    let entry = [(key, value)];
    map.change(&entry, meter, |entries| match at {
        Some(at) => Some(std::mem::replace(&mut entries[at].1, entry[0].1.clone())),
        None => {
            entries.extend_from_slice(&entry);
            None
        }
    })
    .map(drop)
}

/// Pairs of keys and values.
pub(super) fn items(map: &Map, meter: &Rc<Meter>) -> Result<Value> {
    let pair = |(key, value): &(Value, Value)| Value::tuple(vec![key.clone(), value.clone()], meter);
    let pairs = map.entries.iter().map(pair).collect::<Result<_>>()?;
    Value::list(pairs, meter)
}

fn no_method(kind: &str, name: &str) -> Fault {
    failed(format!("{kind} has no method {name:?} in a chat template"))
}
