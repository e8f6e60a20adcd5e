//! `allOf` and references with siblings: merges several schemas that all apply into one.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::valid::{equal, likeness, order};
use super::{
    DEPTH_MAX, Fields, NODES_MAX, NOT_A_SCHEMA, Normaliser, PATH_BYTES, Result, UnderStrict, excluded,
    failed, object_of, text,
};

/// Maximum parts within parts, which bounds the stack: a part that is a reference and its target, for the longest
/// chain of references.
const PARTS_DEPTH_MAX: usize = 2 * DEPTH_MAX;

/// Keywords that annotate a schema and do not restrict its values.
pub(super) fn is_annotation(keyword: &str) -> bool {
    const ANNOTATIONS: [&str; 19] = [
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "$vocabulary",
        "definitions",
        "title",
        "description",
        "default",
        "deprecated",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "readOnly",
        "writeOnly",
        "xml",
        "x-guidance",
    ];
    ANNOTATIONS.contains(&keyword)
}

/// A part of a combination.
#[derive(Clone, Copy)]
enum Part<'v> {
    /// What a reference refers to.
    Reference(&'v Value),
    /// A member of `allOf`.
    Schema(&'v Value),
}

/// What a part of a combination is within.
#[derive(Default)]
struct Enclosing {
    /// References whose targets it is within.
    references: Vec<String>,
    /// Number of parts that it is within.
    depth: usize,
}

impl Normaliser<'_> {
    /// The schema without `allOf`, and with a reference only if it has no siblings.
    pub(super) fn flatten(&mut self, fields: &Fields, at: &str) -> Result<Fields> {
        self.flatten_within(fields, at, &mut Enclosing::default())
    }

    /// The schema `{"allOf": [first, second]}`, flattened.
    pub(super) fn flatten_both(&mut self, first: &Value, second: &Value, at: &str) -> Result<Fields> {
        self.combine(&[Part::Schema(first), Part::Schema(second)], at, &mut Enclosing::default())
    }

    fn flatten_within(&mut self, fields: &Fields, at: &str, enclosing: &mut Enclosing) -> Result<Fields> {
        let present = self.present(fields, at)?;
        let fields = &*present;
        let parts = parts(fields, at)?;
        // A lone reference is not resolved: its target may contain itself.
        if let (Some(reference), false) = (lone_reference(&parts), fields.keys().any(|key| is_own(key))) {
            return Ok(Map::from_iter([("$ref".to_owned(), self.copy(reference, at)?)]));
        }
        let mut flat = self.combine(&parts, at, enclosing)?;
        let own = self.copy_fields(fields, is_own, at)?;
        self.merge(&mut flat, own, at)?;
        Ok(flat)
    }

    /// The restrictions of all parts together.
    fn combine(&mut self, parts: &[Part<'_>], at: &str, enclosing: &mut Enclosing) -> Result<Fields> {
        let mut flat = Map::new();
        for (index, part) in parts.iter().enumerate() {
            let at = format!("{at}.allOf[{index}]");
            let part = self.part(*part, &at, enclosing)?;
            self.merge(&mut flat, part, &at)?;
        }
        Ok(flat)
    }

    fn part(&mut self, part: Part<'_>, at: &str, enclosing: &mut Enclosing) -> Result<Fields> {
        match part {
            Part::Reference(reference) => {
                self.count_part(at, enclosing)?;
                self.referred(reference, at, enclosing)
            }
            Part::Schema(Value::Bool(true)) => Ok(Map::new()),
            Part::Schema(Value::Object(part)) => self.expand(part, at, enclosing),
            Part::Schema(Value::Bool(false)) => Err(excluded(at, "excludes everything")),
            Part::Schema(_) => Err(failed(at, NOT_A_SCHEMA)),
        }
    }

    fn count_part(&mut self, at: &str, enclosing: &Enclosing) -> Result<()> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || enclosing.references.len() > DEPTH_MAX {
            return Err(failed(at, "the schema combines too many parts"));
        }
        if enclosing.depth > PARTS_DEPTH_MAX {
            let message = format!("the schema combines parts within more than {PARTS_DEPTH_MAX} others");
            return Err(failed(at, message));
        }
        self.charge(at.len() / PATH_BYTES, at)
    }

    /// A part of a combination with its references resolved.
    fn expand(&mut self, part: &Fields, at: &str, enclosing: &mut Enclosing) -> Result<Fields> {
        self.count_part(at, enclosing)?;
        enclosing.depth += 1;
        let flat = self.flatten_within(part, at, enclosing)?;
        let expanded = match flat.get("$ref") {
            None => Ok(flat),
            Some(reference) => self.referred(reference, at, enclosing),
        };
        enclosing.depth -= 1;
        let mut expanded = expanded?;
        self.close_unevaluated(&mut expanded, at)?;
        Ok(expanded)
    }

    /// The target of a reference, with its own references resolved.
    fn referred(&mut self, reference: &Value, at: &str, enclosing: &mut Enclosing) -> Result<Fields> {
        let reference = text(reference, at, "$ref")?;
        if enclosing.references.iter().any(|known| known == reference) {
            return Err(failed(at, format!("combines {reference:?} with itself")));
        }
        match self.resolve(reference, at)? {
            Value::Bool(true) => Ok(Map::new()),
            Value::Object(target) => {
                enclosing.references.push(reference.to_owned());
                let target = self.expand(target, at, enclosing);
                enclosing.references.pop();
                target
            }
            Value::Bool(false) => Err(excluded(at, "excludes everything")),
            _ => Err(failed(at, NOT_A_SCHEMA)),
        }
    }

    /// Adds the restrictions of `more`.
    fn merge(&mut self, fields: &mut Fields, mut more: Fields, at: &str) -> Result<()> {
        self.restrict_unnamed(fields, &mut more, at)?;
        self.restrict_unnamed(&more, fields, at)?;
        for (key, value) in more {
            match fields.get_mut(&key) {
                None => {
                    fields.insert(key, value);
                }
                Some(first) if *first == value => {}
                Some(first) => {
                    // A list is compared as a whole, however short the other one is.
                    self.charge(first.as_array().map_or(0, Vec::len), at)?;
                    if let Some(second) = intersect(&key, first, value, at)? {
                        self.keep_both(fields, &key, second, at)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Preserves a second occurrence of a keyword that cannot be merged with the first, if possible.
    fn keep_both(&mut self, fields: &mut Fields, key: &str, value: Value, at: &str) -> Result<()> {
        let other = match key {
            "anyOf" => "oneOf",
            "oneOf" => "anyOf",
            _ => "",
        };
        if !other.is_empty() && !fields.contains_key(other) {
            fields.insert(other.to_owned(), value);
            return Ok(());
        }
        self.drop_keyword(at, key, "another one of the same combination is enforced", UnderStrict::Refused)
    }
}

/// Whether a keyword is merged with those of the parts.
fn is_own(key: &str) -> bool {
    !is_annotation(key) && !["$ref", "allOf"].contains(&key)
}

/// The parts of a combination: the reference, and the members of `allOf`.
fn parts<'v>(fields: &'v Fields, at: &str) -> Result<Vec<Part<'v>>> {
    let mut parts: Vec<Part<'v>> = fields.get("$ref").map(Part::Reference).into_iter().collect();
    match fields.get("allOf") {
        None => {}
        Some(Value::Array(members)) => parts.extend(members.iter().map(Part::Schema)),
        Some(_) => return Err(failed(&format!("{at}.allOf"), "must be an array of schemas")),
    }
    Ok(parts)
}

/// The reference of a single part that is nothing else.
fn lone_reference<'v>(parts: &[Part<'v>]) -> Option<&'v Value> {
    match parts {
        [Part::Reference(reference)] => Some(*reference),
        [Part::Schema(Value::Object(part))] => {
            let is_lone = part.keys().all(|key| key == "$ref" || is_annotation(key));
            part.get("$ref").filter(|_| is_lone)
        }
        _ => None,
    }
}

/// Adds the restriction of `second` to `first`; returns `second` if JSON schema cannot express both.
fn intersect(key: &str, first: &mut Value, second: Value, at: &str) -> Result<Option<Value>> {
    match (key, &mut *first, second) {
        ("properties" | "patternProperties", Value::Object(first), Value::Object(second)) => {
            for (name, schema) in second {
                match first.get_mut(&name) {
                    Some(known) => add_part(known, schema),
                    None => {
                        first.insert(name, schema);
                    }
                }
            }
        }
        ("prefixItems", Value::Array(first), Value::Array(second)) => {
            let mut second = second.into_iter();
            for (known, schema) in first.iter_mut().zip(second.by_ref()) {
                add_part(known, schema);
            }
            first.extend(second);
        }
        ("required", Value::Array(first), Value::Array(second)) => {
            let is_new = are_new(first, &second);
            first.extend(second.into_iter().zip(is_new).filter_map(|(name, is_new)| is_new.then_some(name)));
        }
        ("enum", Value::Array(first), Value::Array(second)) => {
            keep_common(first, &second);
            if first.is_empty() {
                return Err(excluded(&format!("{at}.enum"), "has no value in common with the other one"));
            }
        }
        ("const", first, second) => {
            if !equal(first, &second) {
                return Err(excluded(&format!("{at}.const"), "is not the value of the other one"));
            }
        }
        ("type", _, second) => *first = common_types(first, &second, at)?,
        ("items" | "additionalProperties", _, Value::Bool(false)) => *first = Value::Bool(false),
        ("items" | "additionalProperties", Value::Bool(false), _) => {}
        ("items" | "additionalProperties", _, second) => add_part(first, second),
        ("nullable", _, second) => {
            *first = Value::Bool(*first == Value::Bool(true) && second == Value::Bool(true))
        }
        (key, _, second) if key.starts_with("min") || key == "exclusiveMinimum" => {
            if order(&second, first).is_gt() {
                *first = second;
            }
        }
        (key, _, second) if key.starts_with("max") || key == "exclusiveMaximum" => {
            if order(&second, first).is_lt() {
                *first = second;
            }
        }
        (_, _, second) => return Ok(Some(second)),
    }
    Ok(None)
}

/// Makes a schema the combination of itself and `part`. A combination of several parts gets one more: another one around
/// it for each of thousands of parts would be too deep for the stack.
pub(super) fn add_part(schema: &mut Value, part: Value) {
    // A reference alone is not resolved, because its target may contain it.
    if *schema == part {
        return;
    }
    match several_parts(schema) {
        Some(parts) => parts.push(part),
        None => *schema = object_of("allOf", Value::Array(vec![schema.take(), part])),
    }
}

/// The parts of a schema that is nothing but a combination of several.
fn several_parts(schema: &mut Value) -> Option<&mut Vec<Value>> {
    let fields = schema.as_object_mut().filter(|fields| fields.len() == 1)?;
    fields.get_mut("allOf")?.as_array_mut().filter(|parts| parts.len() > 1)
}

/// For each of `others`, whether it is neither in `values` nor among the others before it.
fn are_new(values: &[Value], others: &[Value]) -> Vec<bool> {
    let mut known: HashSet<&Value> = values.iter().collect();
    others.iter().map(|other| known.insert(other)).collect()
}

/// Keeps the values that equal one of `others`.
fn keep_common(values: &mut Vec<Value>, others: &[Value]) {
    let mut alike: HashMap<String, Vec<&Value>> = HashMap::new();
    for other in others {
        alike.entry(likeness(other)).or_default().push(other);
    }
    values.retain(|value| {
        let others = alike.get(&likeness(value));
        others.is_some_and(|others| others.iter().any(|other| equal(value, other)))
    });
}

fn common_types(first: &Value, second: &Value, at: &str) -> Result<Value> {
    let (first, second) = (listed(first), listed(second));
    let in_first: HashSet<&Value> = first.iter().collect();
    let in_second: HashSet<&Value> = second.iter().collect();
    let number = json!("number");
    let is_in = |kind: &Value, kinds: &HashSet<&Value>| {
        kinds.contains(kind) || (kind == "integer" && kinds.contains(&number))
    };
    let mut common: Vec<Value> = first.iter().filter(|kind| is_in(kind, &in_second)).cloned().collect();
    let more = second.iter().filter(|kind| is_in(kind, &in_first) && !in_first.contains(*kind));
    common.extend(more.cloned());
    common.dedup();
    if common.is_empty() {
        return Err(excluded(&format!("{at}.type"), "excludes the type of the other part"));
    }
    Ok(if common.len() == 1 { common.remove(0) } else { Value::Array(common) })
}

/// The types of a keyword that is one of them or a list of them.
fn listed(types: &Value) -> &[Value] {
    types.as_array().map_or(std::slice::from_ref(types), Vec::as_slice)
}

/// Whether the type of `fields` only repeats the types that all alternatives state.
pub(super) fn states_type_of_all(normaliser: &Normaliser<'_>, fields: &Fields, options: &[Value]) -> bool {
    let Some(kind) = fields.get("type") else { return true };
    options.iter().all(|option| target(normaliser, option).get("type") == Some(kind))
}

/// Whether no value can match two alternatives: their types differ, their constants differ, or a
/// property has a different single value in each.
pub(super) fn are_disjoint(normaliser: &Normaliser<'_>, options: &[Value]) -> bool {
    let options: Vec<&Value> = options.iter().map(|option| target(normaliser, option)).collect();
    if are_distinct(options.iter().map(|option| option.get("type").filter(|kind| kind.is_string())))
        || are_distinct(options.iter().map(|option| option.get("const")))
    {
        return true;
    }
    let tags = options[0].get("properties").and_then(Value::as_object);
    tags.into_iter().flat_map(Map::keys).any(|tag| {
        are_distinct(options.iter().map(|option| single_value(option.get("properties")?.get(tag)?)))
    })
}

/// Whether all values are there, each once. The first that is not ends it: of thousands of alternatives with thousands of
/// properties, few have the same.
fn are_distinct<'v>(mut values: impl Iterator<Item = Option<&'v Value>>) -> bool {
    let mut known = HashSet::new();
    values.all(|value| value.is_some_and(|value| known.insert(value)))
}

fn target<'v>(normaliser: &'v Normaliser<'_>, option: &'v Value) -> &'v Value {
    let reference = option.get("$ref").and_then(Value::as_str);
    reference.and_then(|reference| normaliser.resolve(reference, "$").ok()).unwrap_or(option)
}

fn single_value(schema: &Value) -> Option<&Value> {
    let only = |values: &'_ Value| values.as_array().is_some_and(|values| values.len() == 1);
    schema
        .get("const")
        .or_else(|| schema.get("enum").filter(|values| only(values)).and_then(|values| values.get(0)))
}
