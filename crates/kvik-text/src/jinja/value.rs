//! The values of a template. Namespaces, lists and mappings can be changed, as in Python.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::ast::{For, Macro};
use super::limits::{Charge, Meter, Result, VALUE_DEPTH_MAX, failed};
use super::text::Text;

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// A variable or a part that does not exist.
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Reference<List>),
    Map(Reference<Map>),
    /// Its index among the namespaces of this rendering: a namespace may contain itself.
    Namespace(usize),
    Macro(Rc<Closure>),
    Loop(Rc<LoopValue>),
    Function(Function),
}

/// A shared list or mapping: all holders see changes.
#[derive(Debug)]
pub(super) struct Reference<T>(Rc<ReferencedContent<T>>);

#[derive(Debug)]
struct ReferencedContent<T> {
    content: RefCell<Rc<T>>,
    is_changed: Cell<bool>,
}

/// A list, or a tuple.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) is_tuple: bool,
    depth: u32,
    charge: Charge,
}

/// Pairs in insertion order with distinct keys.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) entries: Vec<(Value, Value)>,
    depth: u32,
    charge: Charge,
}

/// A macro, and the frame in which it was defined.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) definition: Arc<Macro>,
    pub(super) frame: usize,
}

/// The variable `loop` in one iteration.
#[derive(Debug)]
pub(super) struct LoopValue {
    pub(super) items: Rc<List>,
    pub(super) index0: usize,
    /// Depth of the recursive loop.
    pub(super) depth0: usize,
    /// The loop, to call it recursively on other items.
    pub(super) definition: Arc<For>,
}

/// Built-in functions of every template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

impl Value {
    pub(super) fn list(items: Vec<Value>, meter: &Rc<Meter>) -> Result<Value> {
        List::new(items, false, meter).map(|list| Value::List(Reference::new(list)))
    }

    pub(super) fn tuple(items: Vec<Value>, meter: &Rc<Meter>) -> Result<Value> {
        List::new(items, true, meter).map(|list| Value::List(Reference::new(list)))
    }

    /// Later pairs replace earlier ones of the same key.
    pub(super) fn map(pairs: Vec<(Value, Value)>, meter: &Rc<Meter>) -> Result<Value> {
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            check_key(&key)?;
            meter.spend_search(entries.len(), key.as_str().map_or(0, str::len))?;
            match entries.iter_mut().find(|(known, _)| known.same_scalar(&key)) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
        }
        Value::map_of_distinct(entries, meter)
    }

    /// A mapping of keys that are distinct.
    pub(super) fn map_of_distinct(entries: Vec<(Value, Value)>, meter: &Rc<Meter>) -> Result<Value> {
        Map::new(entries, meter).map(|map| Value::Map(Reference::new(map)))
    }

    /// A value from the request.
    pub(super) fn from_json(json: &Json, meter: &Rc<Meter>) -> Result<Value> {
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::Int(value.into()),
                (None, Some(value)) => Value::Int(value.into()),
                (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(Text::input(text, meter)?),
            Json::Array(items) => {
                let items = items.iter().map(|item| Value::from_json(item, meter));
                Value::list(items.collect::<Result<_>>()?, meter)?
            }
            Json::Object(fields) => {
                let entry = |(key, value): (&String, &Json)| {
                    Ok((Value::Text(Text::input(key, meter)?), Value::from_json(value, meter)?))
                };
                // The keys of a JSON object are distinct already.
                let entries = fields.iter().map(entry).collect::<Result<_>>()?;
                Value::map_of_distinct(entries, meter)?
            }
        })
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "an undefined value",
            Value::None => "none",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a string",
            Value::List(list) if list.get().is_tuple => "a tuple",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
            Value::Namespace(_) => "a namespace",
            Value::Macro(_) => "a macro",
            Value::Loop(_) => "a loop",
            Value::Function(_) => "a function",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.as_str().is_empty(),
            Value::List(list) => !list.get().items.is_empty(),
            Value::Map(map) => !map.get().entries.is_empty(),
            Value::Namespace(_) | Value::Macro(_) | Value::Loop(_) | Value::Function(_) => true,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// Booleans are integers, as in Python.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// Equality of values that can be keys; other values are never equal.
    pub(super) fn same_scalar(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => a.as_str() == b.as_str(),
            (Value::Namespace(a), Value::Namespace(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            (Value::Float(_), _) | (_, Value::Float(_)) => {
                matches!((self.as_float(), other.as_float()), (Some(a), Some(b)) if a == b)
            }
            _ => matches!((self.as_int(), other.as_int()), (Some(a), Some(b)) if a == b),
        }
    }

    /// Marks a list or mapping that is about to be changed; returns false if it is marked already.
    pub(super) fn begin_change(&self) -> bool {
        match self {
            Value::List(list) => !list.0.is_changed.replace(true),
            Value::Map(map) => !map.0.is_changed.replace(true),
            _ => false,
        }
    }

    /// Removes all items of a list or mapping.
    pub(super) fn empty(&self) {
        match self {
            Value::List(list) => list.set(List::empty(list.get().charge.meter())),
            Value::Map(map) => map.set(Map::empty(map.get().charge.meter())),
            _ => {}
        }
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(list) => list.get().depth,
            Value::Map(map) => map.get().depth,
            Value::Loop(state) => state.items.depth,
            _ => 0,
        }
    }
}

impl<T> Reference<T> {
    pub(super) fn new(content: T) -> Reference<T> {
        Reference(Rc::new(ReferencedContent {
            content: RefCell::new(Rc::new(content)),
            is_changed: Cell::new(false),
        }))
    }

    /// The current content, which later changes do not affect.
    pub(super) fn get(&self) -> Rc<T> {
        self.0.content.borrow().clone()
    }

    /// Whether both refer to the same content.
    pub(super) fn is(&self, other: &Reference<T>) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    fn set(&self, content: T) {
        let before = self.0.content.replace(Rc::new(content));
        // Dropped once the cell is no longer borrowed.
        drop(before);
    }
}

impl<T> Clone for Reference<T> {
    fn clone(&self) -> Reference<T> {
        Reference(self.0.clone())
    }
}

impl Reference<List> {
    /// Changes the items; `change` adds `added` to them.
    pub(super) fn change<R>(
        &self,
        added: &[Value],
        meter: &Rc<Meter>,
        change: impl FnOnce(&mut Vec<Value>) -> R,
    ) -> Result<R> {
        let depth = depth_above(added.iter())?;
        let mut content = self.0.content.borrow_mut();
        if Rc::get_mut(&mut content).is_none() {
            *content = Rc::new(List::new(content.items.clone(), content.is_tuple, meter)?);
        }
        let list = Rc::get_mut(&mut content).expect("nobody else holds it");
        list.charge.grow(size_of_val(added))?;
        list.depth = list.depth.max(depth);
        Ok(change(&mut list.items))
    }
}

impl Reference<Map> {
    /// Changes the entries; `change` adds at most `added`.
    pub(super) fn change<R>(
        &self,
        added: &[(Value, Value)],
        meter: &Rc<Meter>,
        change: impl FnOnce(&mut Vec<(Value, Value)>) -> R,
    ) -> Result<R> {
        added.iter().try_for_each(|(key, _)| check_key(key))?;
        let depth = depth_above(added.iter().map(|(_, value)| value))?;
        let mut content = self.0.content.borrow_mut();
        if Rc::get_mut(&mut content).is_none() {
            *content = Rc::new(Map::new(content.entries.clone(), meter)?);
        }
        let map = Rc::get_mut(&mut content).expect("nobody else holds it");
        map.charge.grow(size_of_val(added))?;
        map.depth = map.depth.max(depth);
        Ok(change(&mut map.entries))
    }
}

impl List {
    pub(super) fn new(items: Vec<Value>, is_tuple: bool, meter: &Rc<Meter>) -> Result<List> {
        let depth = depth_above(items.iter())?;
        let charge = Charge::new(meter, items.len() * size_of::<Value>())?;
        Ok(List { items, is_tuple, depth, charge })
    }

    fn empty(meter: &Rc<Meter>) -> List {
        List { items: Vec::new(), is_tuple: false, depth: 1, charge: Charge::nothing(meter) }
    }
}

impl Map {
    fn new(entries: Vec<(Value, Value)>, meter: &Rc<Meter>) -> Result<Map> {
        let depth = depth_above(entries.iter().map(|(_, value)| value))?;
        let charge = Charge::new(meter, entries.len() * size_of::<(Value, Value)>())?;
        Ok(Map { entries, depth, charge })
    }

    fn empty(meter: &Rc<Meter>) -> Map {
        Map { entries: Vec::new(), depth: 1, charge: Charge::nothing(meter) }
    }

    /// The value of a key. Like the other lookups, it spends the steps of its search.
    pub(super) fn get(&self, key: &str, meter: &Meter) -> Result<Option<&Value>> {
        meter.spend_search(self.entries.len(), key.len())?;
        Ok(self.entries.iter().find(|(known, _)| known.as_str() == Some(key)).map(|(_, value)| value))
    }

    pub(super) fn get_value(&self, key: &Value, meter: &Meter) -> Result<Option<&Value>> {
        Ok(self.position(key, meter)?.map(|at| &self.entries[at].1))
    }

    /// The index of a key's entry.
    pub(super) fn position(&self, key: &Value, meter: &Meter) -> Result<Option<usize>> {
        meter.spend_search(self.entries.len(), key.as_str().map_or(0, str::len))?;
        Ok(self.entries.iter().position(|(known, _)| known.same_scalar(key)))
    }
}

/// Refuses mutable values as keys.
fn check_key(key: &Value) -> Result<()> {
    match key {
        Value::List(_) | Value::Map(_) | Value::Undefined => {
            Err(failed(format!("{} cannot be a key", key.kind())))
        }
        _ => Ok(()),
    }
}

fn depth_above<'v>(values: impl Iterator<Item = &'v Value>) -> Result<u32> {
    match values.map(Value::depth).max().unwrap_or(0) + 1 {
        depth if depth > VALUE_DEPTH_MAX => Err(failed("values are nested too deeply")),
        depth => Ok(depth),
    }
}
