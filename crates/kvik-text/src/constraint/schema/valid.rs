//! Validation of a value against a schema: most keywords that no grammar can enforce can be checked on a
//! known value.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::pattern::Matcher;
use super::{Fields, formats, known_type, pointed};

/// Maximum schemas within schemas.
const DEPTH_MAX: usize = 64;
/// Maximum keywords that are checked, over all values of a list; a pattern counts as one for this many bytes of text.
const CHECKS_MAX: usize = 200_000;
const BYTES_PER_CHECK: usize = 16;
/// Maximum patterns that are compiled, for the values of a list and for those of all lists of a schema: one can take
/// 256 KB, and a millisecond.
const PATTERNS_MAX: usize = 64;
const COMPILED_MAX: usize = 500;
/// Maximum steps over all lists of a schema, some nanoseconds each: schemas, and parts of keywords that are looked at. A
/// keyword with thousands of parts is one check, and a schema can have its list in thousands of places.
const STEPS_MAX: usize = 10_000_000;
/// The steps of matching a pattern.
const MATCH_STEPS: usize = 8;

/// What the checks of all lists of a schema may still cost.
pub(super) struct Effort {
    steps_left: usize,
    /// Patterns that can still be compiled.
    patterns_left: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { steps_left: STEPS_MAX, patterns_left: COMPILED_MAX }
    }
}

/// Checks values against a schema. A result is `None` if it depends on a keyword that cannot be checked.
pub(super) struct Validator<'a> {
    root: &'a Value,
    effort: &'a mut Effort,
    checks_left: usize,
    depth: usize,
    patterns: BTreeMap<String, Option<Matcher>>,
    /// The keywords that could not be checked.
    pub(super) unknown: BTreeSet<String>,
}

impl<'a> Validator<'a> {
    pub(super) fn new(root: &'a Value, effort: &'a mut Effort) -> Validator<'a> {
        Validator {
            root,
            effort,
            checks_left: CHECKS_MAX,
            depth: 0,
            patterns: BTreeMap::new(),
            unknown: BTreeSet::new(),
        }
    }

    /// Whether the keywords of a schema allow a value.
    pub(super) fn allows(&mut self, fields: &Fields, value: &Value) -> Option<bool> {
        if self.is_exhausted() && !fields.is_empty() {
            self.note_all(fields);
            return None;
        }
        all(fields.iter().map(|(keyword, rule)| {
            let allowed = self.keyword(keyword, rule, fields, value);
            if allowed.is_none() && self.depth == 0 {
                self.unknown.insert(keyword.clone());
            }
            allowed
        }))
    }

    /// Whether no keyword can be checked any more.
    fn is_exhausted(&self) -> bool {
        self.checks_left == 0 || self.effort.steps_left == 0
    }

    /// Notes all keywords of the schema beside the list, once.
    fn note_all(&mut self, fields: &Fields) {
        if self.depth == 0 && self.unknown.len() < fields.len() {
            self.unknown.extend(fields.keys().cloned());
        }
    }

    /// Takes steps, before they are made; `None` if none is left after them.
    fn step(&mut self, steps: usize) -> Option<()> {
        self.effort.steps_left = self.effort.steps_left.saturating_sub(steps);
        (self.effort.steps_left > 0).then_some(())
    }

    fn schema(&mut self, schema: &Value, value: &Value) -> Option<bool> {
        self.step(1)?;
        match schema {
            Value::Bool(allowed) => Some(*allowed),
            Value::Object(fields) if self.depth < DEPTH_MAX => {
                self.depth += 1;
                let allowed = self.allows(fields, value);
                self.depth -= 1;
                allowed
            }
            _ => None,
        }
    }

    fn keyword(&mut self, keyword: &str, rule: &Value, fields: &Fields, value: &Value) -> Option<bool> {
        self.checks_left = self.checks_left.checked_sub(1)?;
        self.step(1 + breadth(rule))?;
        match keyword {
            "type" => has_type(rule, fields, value),
            "const" => Some(equal(rule, value)),
            "enum" => Some(rule.as_array()?.iter().any(|listed| equal(listed, value))),
            "$ref" => self.schema(pointed(self.root, rule.as_str()?)?, value),
            "allOf" => all(rule.as_array()?.iter().map(|part| self.schema(part, value))),
            "anyOf" => any(rule.as_array()?.iter().map(|part| self.schema(part, value))),
            "oneOf" => one(rule.as_array()?.iter().map(|part| self.schema(part, value))),
            "not" => self.schema(rule, value).map(|allowed| !allowed),
            "if" => {
                let branch = if self.schema(rule, value)? { "then" } else { "else" };
                fields.get(branch).map_or(Some(true), |branch| self.schema(branch, value))
            }
            "unevaluatedProperties" if value.is_object() => None,
            "unevaluatedItems" if value.is_array() => None,
            _ => match value {
                Value::String(text) => self.of_text(keyword, rule, text),
                Value::Number(_) => of_number(keyword, rule, fields, value),
                Value::Array(items) => self.of_items(keyword, rule, fields, items),
                Value::Object(entries) => self.of_entries(keyword, rule, fields, entries, value),
                Value::Null | Value::Bool(_) => Some(true),
            },
        }
    }

    fn of_text(&mut self, keyword: &str, rule: &Value, text: &str) -> Option<bool> {
        let length = || text.chars().count() as f64;
        match keyword {
            "minLength" => Some(length() >= rule.as_f64()?),
            "maxLength" => Some(length() <= rule.as_f64()?),
            "pattern" => self.matches(rule.as_str()?, text),
            "format" => self.matches(&formats::pattern(rule.as_str()?)?, text),
            _ => Some(true),
        }
    }

    /// Whether a pattern matches a text.
    pub(super) fn matches(&mut self, pattern: &str, text: &str) -> Option<bool> {
        self.checks_left = self.checks_left.checked_sub(text.len() / BYTES_PER_CHECK)?;
        self.step(MATCH_STEPS)?;
        if !self.patterns.contains_key(pattern) {
            let matcher = self.compiled(pattern);
            self.patterns.insert(pattern.to_owned(), matcher);
        }
        self.patterns.get(pattern)?.as_ref()?.matches(text)
    }

    /// The pattern's matcher, if it can be read and others do not take too much.
    fn compiled(&mut self, pattern: &str) -> Option<Matcher> {
        if self.patterns.len() >= PATTERNS_MAX {
            return None;
        }
        self.effort.patterns_left = self.effort.patterns_left.checked_sub(1)?;
        Matcher::new(pattern)
    }

    fn of_items(&mut self, keyword: &str, rule: &Value, fields: &Fields, items: &[Value]) -> Option<bool> {
        match keyword {
            "minItems" => Some(items.len() as f64 >= rule.as_f64()?),
            "maxItems" => Some(items.len() as f64 <= rule.as_f64()?),
            "uniqueItems" if rule == &Value::Bool(true) => {
                self.checks_left = self.checks_left.checked_sub(items.len().saturating_pow(2))?;
                Some((1..items.len()).all(|at| !items[..at].iter().any(|other| equal(other, &items[at]))))
            }
            // Earlier drafts write a tuple as an array of `items`.
            "prefixItems" | "items" if rule.is_array() => {
                all(rule.as_array()?.iter().zip(items).map(|(schema, item)| self.schema(schema, item)))
            }
            "items" => {
                let prefix = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                all(items.iter().skip(prefix).map(|item| self.schema(rule, item)))
            }
            "additionalItems" => match fields.get("items") {
                Some(Value::Array(prefix)) => {
                    all(items.iter().skip(prefix.len()).map(|item| self.schema(rule, item)))
                }
                _ => Some(true),
            },
            "contains" => {
                let found: Vec<Option<bool>> = items.iter().map(|item| self.schema(rule, item)).collect();
                let certain = found.iter().filter(|allowed| **allowed == Some(true)).count() as f64;
                let possible = found.iter().filter(|allowed| **allowed != Some(false)).count() as f64;
                let bound = |key: &str, usual| fields.get(key).map_or(Some(usual), Value::as_f64);
                let (min, max) = (bound("minContains", 1.0)?, bound("maxContains", f64::INFINITY)?);
                match (certain >= min && possible <= max, possible < min || certain > max) {
                    (true, _) => Some(true),
                    (_, true) => Some(false),
                    _ => None,
                }
            }
            _ => Some(true),
        }
    }

    /// Whether a keyword allows a value with these entries.
    fn of_entries(
        &mut self,
        keyword: &str,
        rule: &Value,
        fields: &Fields,
        entries: &Fields,
        value: &Value,
    ) -> Option<bool> {
        match keyword {
            "minProperties" => Some(entries.len() as f64 >= rule.as_f64()?),
            "maxProperties" => Some(entries.len() as f64 <= rule.as_f64()?),
            "required" => Some(has_all(rule, entries)),
            "properties" => all(rule.as_object()?.iter().filter_map(|(name, schema)| {
                let value = entries.get(name)?;
                Some(self.schema(schema, value))
            })),
            "patternProperties" => {
                let patterns = rule.as_object()?;
                self.step(patterns.len().saturating_mul(entries.len()))?;
                let pairs =
                    patterns.iter().flat_map(|pattern| entries.iter().map(move |entry| (pattern, entry)));
                all(pairs.map(|((pattern, schema), (name, value))| match self.matches(pattern, name) {
                    Some(false) => Some(true),
                    Some(true) => self.schema(schema, value),
                    None => None,
                }))
            }
            "additionalProperties" => {
                all(entries.iter().map(|(name, value)| match self.is_additional(fields, name) {
                    Some(true) => self.schema(rule, value),
                    Some(false) => Some(true),
                    None => None,
                }))
            }
            "propertyNames" => all(entries.keys().map(|name| self.schema(rule, &Value::from(name.as_str())))),
            "dependentRequired" | "dependentSchemas" | "dependencies" => {
                all(rule.as_object()?.iter().filter(|(name, _)| entries.contains_key(*name)).map(
                    |(_, needs)| match needs {
                        Value::Array(names) => {
                            self.step(names.len())?;
                            Some(has_all(needs, entries))
                        }
                        schema => self.schema(schema, value),
                    },
                ))
            }
            _ => Some(true),
        }
    }

    /// Whether a property is not described by `properties` or `patternProperties`.
    pub(super) fn is_additional(&mut self, fields: &Fields, name: &str) -> Option<bool> {
        let described = |keyword: &str| fields.get(keyword).and_then(Value::as_object);
        if described("properties").is_some_and(|properties| properties.contains_key(name)) {
            return Some(false);
        }
        self.step(described("patternProperties").map_or(0, Fields::len))?;
        let patterns = described("patternProperties").into_iter().flat_map(Fields::keys);
        any(patterns.map(|pattern| self.matches(pattern, name))).map(|is_described| !is_described)
    }
}

/// How many parts of its rule the check of a keyword may look at.
fn breadth(rule: &Value) -> usize {
    match rule {
        Value::Array(parts) => parts.len(),
        Value::Object(parts) => parts.len(),
        Value::String(text) => text.len() / BYTES_PER_CHECK,
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn of_number(keyword: &str, rule: &Value, fields: &Fields, number: &Value) -> Option<bool> {
    let is_exclusive = |keyword: &str| fields.get(keyword) == Some(&Value::Bool(true));
    let order_to_bound = || rule.is_number().then(|| order(number, rule));
    match keyword {
        // In draft 4 a boolean states whether a bound is exclusive.
        "minimum" if is_exclusive("exclusiveMinimum") => order_to_bound().map(Ordering::is_gt),
        "maximum" if is_exclusive("exclusiveMaximum") => order_to_bound().map(Ordering::is_lt),
        "exclusiveMinimum" | "exclusiveMaximum" if rule.is_boolean() => Some(true),
        "minimum" => order_to_bound().map(Ordering::is_ge),
        "maximum" => order_to_bound().map(Ordering::is_le),
        "exclusiveMinimum" => order_to_bound().map(Ordering::is_gt),
        "exclusiveMaximum" => order_to_bound().map(Ordering::is_lt),
        "multipleOf" => {
            let quotient = number.as_f64()? / rule.as_f64().filter(|divisor| *divisor != 0.0)?;
            // Decimal fractions are not exact in binary.
            Some((quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0))
        }
        _ => Some(true),
    }
}

fn has_type(rule: &Value, fields: &Fields, value: &Value) -> Option<bool> {
    if value.is_null() && fields.get("nullable") == Some(&Value::Bool(true)) {
        return Some(true);
    }
    let is_of = |kind: &Value| Some(is_of_type(value, known_type(kind.as_str()?, "").ok()?));
    match rule {
        Value::Array(kinds) => any(kinds.iter().map(is_of)),
        kind => is_of(kind),
    }
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(number) => {
            kind == "number" || (kind == "integer" && number.as_f64().is_some_and(|x| x.fract() == 0.0))
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

/// Whether an object has all properties in `names`.
fn has_all(names: &Value, entries: &Fields) -> bool {
    names.as_array().into_iter().flatten().filter_map(Value::as_str).all(|name| entries.contains_key(name))
}

/// Whether two values are equal: `1` equals `1.0`, as far as a float tells numbers apart, and the order of properties does
/// not matter.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) if x.is_f64() != y.is_f64() => x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| equal(x, y)))
        }
        _ => a == b,
    }
}

/// The order of two numbers, in which none is rounded; what is no number comes before all.
pub(super) fn order(a: &Value, b: &Value) -> Ordering {
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        // One of them has a fraction or is beyond all whole numbers of 64 bits, so rounding the other passes no number.
        _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
    }
}

/// The whole number that a value is, also as a float.
fn whole(value: &Value) -> Option<i128> {
    let integer = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let float = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e30);
    integer.or_else(|| float().map(|number| number as i128))
}

/// A text that values have in common if they are [`equal`]. Whole numbers beyond the precision of `f64` share theirs with
/// their neighbours.
pub(super) fn likeness(value: &Value) -> String {
    match value {
        // Zero has two signs, which are equal.
        Value::Number(number) => format!("{:?}", number.as_f64().map(|number| number + 0.0)),
        Value::Array(items) => format!("[{}]", items.iter().map(likeness).collect::<Vec<_>>().join(",")),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| format!("{key:?}:{}", likeness(value));
            let mut entries: Vec<String> = entries.iter().map(entry).collect();
            entries.sort_unstable();
            format!("{{{}}}", entries.join(","))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.to_string(),
    }
}

fn all(mut verdicts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    loop {
        match verdicts.next() {
            None => return all,
            Some(Some(false)) => return Some(false),
            Some(None) => all = None,
            Some(Some(true)) => {}
        }
    }
}

fn any(verdicts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(verdicts.map(|verdict| verdict.map(|allowed| !allowed))).map(|none| !none)
}

/// Whether exactly one verdict is true.
fn one(verdicts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let verdicts: Vec<Option<bool>> = verdicts.collect();
    let certain = verdicts.iter().filter(|verdict| **verdict == Some(true)).count();
    match (certain, verdicts.contains(&None)) {
        (2.., _) => Some(false),
        (_, true) => None,
        (count, false) => Some(count == 1),
    }
}
