//! `allOf` and references with siblings: merges several schemas that all apply into one.

use serde_json::{Map, Value, json};

use super::valid::equal;
use super::{DEPTH_MAX, Fields, NODES_MAX, Normaliser, Result, UnderStrict, excluded, failed, text};

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

impl Normaliser<'_> {
    /// The schema without `allOf`, and with a reference only if it has no siblings.
    pub(super) fn flatten(&mut self, fields: &Fields, at: &str) -> Result<Fields> {
        self.flatten_within(fields, at, &mut Vec::new())
    }

    fn flatten_within(&mut self, fields: &Fields, at: &str, path: &mut Vec<String>) -> Result<Fields> {
        let mut flat: Fields = Map::new();
        let kept = |key: &&String| !is_annotation(key) && !["$ref", "allOf"].contains(&key.as_str());
        let own: Fields = fields
            .iter()
            .filter(|(key, _)| kept(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let parts = parts(fields, at)?;
        // A lone reference is not resolved: its target may contain itself.
        if let ([Value::Object(part)], true) = (parts.as_slice(), own.is_empty())
            && let Some(reference) = part.get("$ref")
            && part.keys().all(|key| key == "$ref" || is_annotation(key))
        {
            flat.insert("$ref".to_owned(), reference.clone());
            return Ok(flat);
        }
        for (index, part) in parts.iter().enumerate() {
            let at = format!("{at}.allOf[{index}]");
            match part {
                Value::Bool(true) => {}
                Value::Object(part) => {
                    let part = self.expand(part, &at, path)?;
                    self.merge(&mut flat, part, &at)?;
                }
                _ => return Err(excluded(&at, "excludes everything")),
            }
        }
        self.merge(&mut flat, own, at)?;
        Ok(flat)
    }

    /// A part of a combination with its references resolved.
    fn expand(&mut self, part: &Fields, at: &str, path: &mut Vec<String>) -> Result<Fields> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || path.len() > DEPTH_MAX {
            return Err(failed(at, "the schema combines too many parts"));
        }
        let flat = self.flatten_within(part, at, path)?;
        let Some(reference) = flat.get("$ref") else { return Ok(flat) };
        let reference = text(reference, at, "$ref")?.to_owned();
        if path.contains(&reference) {
            return Err(failed(at, format!("combines {reference:?} with itself")));
        }
        match self.resolve(&reference, at)? {
            Value::Bool(true) => Ok(Map::new()),
            Value::Object(target) => {
                path.push(reference);
                let target = self.expand(target, at, path);
                path.pop();
                target
            }
            _ => Err(excluded(at, "excludes everything")),
        }
    }

    /// Adds the restrictions of `more`.
    fn merge(&mut self, fields: &mut Fields, more: Fields, at: &str) -> Result<()> {
        for (key, value) in more {
            match fields.get_mut(&key) {
                None => {
                    fields.insert(key, value);
                }
                Some(first) if *first == value => {}
                Some(first) => {
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

/// The parts of a combination: the reference, and the members of `allOf`.
fn parts(fields: &Fields, at: &str) -> Result<Vec<Value>> {
    let mut parts = Vec::new();
    if let Some(reference) = fields.get("$ref") {
        parts.push(json!({ "$ref": reference }));
    }
    match fields.get("allOf") {
        None => {}
        Some(Value::Array(members)) => parts.extend(members.iter().cloned()),
        Some(_) => return Err(failed(&format!("{at}.allOf"), "must be an array of schemas")),
    }
    Ok(parts)
}

/// Adds the restriction of `second` to `first`; returns `second` if JSON schema cannot express both.
fn intersect(key: &str, first: &mut Value, second: Value, at: &str) -> Result<Option<Value>> {
    match (key, &mut *first, second) {
        ("properties" | "patternProperties", Value::Object(first), Value::Object(second)) => {
            for (name, schema) in second {
                match first.get_mut(&name) {
                    Some(known) if *known != schema => *known = json!({"allOf": [known, schema]}),
                    Some(_) => {}
                    None => {
                        first.insert(name, schema);
                    }
                }
            }
        }
        ("required", Value::Array(first), Value::Array(second)) => {
            for name in second {
                if !first.contains(&name) {
                    first.push(name);
                }
            }
        }
        ("enum", Value::Array(first), Value::Array(second)) => {
            first.retain(|value| second.iter().any(|other| equal(value, other)));
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
        ("items" | "additionalProperties", _, second) => {
            *first = match (&first, &second) {
                (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
                _ => json!({"allOf": [first, second]}),
            };
        }
        ("nullable", _, second) => {
            *first = Value::Bool(*first == Value::Bool(true) && second == Value::Bool(true))
        }
        (key, _, second) if key.starts_with("min") || key == "exclusiveMinimum" => {
            if second.as_f64() > first.as_f64() {
                *first = second;
            }
        }
        (key, _, second) if key.starts_with("max") || key == "exclusiveMaximum" => {
            if second.as_f64() < first.as_f64() {
                *first = second;
            }
        }
        (_, _, second) => return Ok(Some(second)),
    }
    Ok(None)
}

fn common_types(first: &Value, second: &Value, at: &str) -> Result<Value> {
    let list = |value: &Value| match value {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    let (first, second) = (list(first), list(second));
    let is_in = |kind: &Value, kinds: &[Value]| {
        kinds.contains(kind) || (kind == "integer" && kinds.contains(&json!("number")))
    };
    let mut common: Vec<Value> = first.iter().filter(|kind| is_in(kind, &second)).cloned().collect();
    common.extend(second.iter().filter(|kind| is_in(kind, &first) && !first.contains(kind)).cloned());
    common.dedup();
    if common.is_empty() {
        return Err(excluded(&format!("{at}.type"), "excludes the type of the other part"));
    }
    Ok(if common.len() == 1 { common.remove(0) } else { Value::Array(common) })
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
    let distinct = |values: Vec<Option<&Value>>| {
        values.iter().all(Option::is_some) && (1..values.len()).all(|i| !values[..i].contains(&values[i]))
    };
    if distinct(options.iter().map(|option| option.get("type").filter(|kind| kind.is_string())).collect())
        || distinct(options.iter().map(|option| option.get("const")).collect())
    {
        return true;
    }
    let tags = options[0].get("properties").and_then(Value::as_object);
    tags.into_iter().flat_map(Map::keys).any(|tag| {
        distinct(options.iter().map(|option| single_value(option.get("properties")?.get(tag)?)).collect())
    })
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
