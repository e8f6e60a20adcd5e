//! Normalises JSON schemas, as common tools print them, to schemas that can be enforced while decoding.
//!
//! A schema describes existing texts; a grammar generates new ones. So objects that list their
//! properties are closed (a small model never stops adding keys), a schema without a type gets the
//! type that its keywords imply, and keywords that can only be checked at the end (`uniqueItems`,
//! `not`, `if`) are dropped with a note. References and combinations (`allOf`, alternatives with
//! siblings) are resolved here: llguidance intersects them without a useful bound.

mod copies;
mod datetime;
mod formats;
mod literal;
mod merge;
mod object;
mod pattern;
mod scalar;
mod unnamed;
mod valid;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::limits::{check_regex, check_schema_bytes};
use crate::kinds::{Fields, implied_type, pointed};
use crate::measure::json_bytes;

/// Maximum schemas within the schema, each counted once per use in a combination.
const NODES_MAX: usize = 20_000;
/// Maximum nesting.
const DEPTH_MAX: usize = 128;
/// Maximum nesting of all definitions together: bounds the recursion of llguidance.
const LEVELS_MAX: usize = 2_000;
/// Maximum states of patterns that are counted.
const STATES_COUNTED_MAX: usize = 1_000;
/// Bytes of a schema's path that are charged like a value: a path has the names of all properties around it.
const PATH_BYTES: usize = 256;
/// Maximum notes.
const NOTES_MAX: usize = 50;
/// The message for what is no schema.
const NOT_A_SCHEMA: &str = "a schema is an object or a boolean";

/// The treatment of keywords that cannot be enforced while decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Refuse those that OpenAI refuses under `strict`.
    Strict,
    /// Drop them with a note.
    Lenient,
}

/// A normalised schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalised {
    /// The schema.
    pub schema: Value,
    /// Dropped keywords with the reason: `$.properties.x.pattern: why`.
    pub notes: Vec<String>,
}

/// The error for a schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct SchemaError {
    /// Path of the keyword, from `$`.
    pub path: String,
    /// The reason.
    pub message: String,
    /// Whether the schema is valid, but no value satisfies it.
    pub excludes_all: bool,
}

type Result<T> = std::result::Result<T, SchemaError>;

/// Normalises a schema; a normalised one stays unchanged. A long one is refused first: the cost of reading it, and the
/// stack that this takes, are bounded for schemas within that limit.
pub fn normalise(schema: &Value, strictness: Strictness) -> Result<Normalised> {
    check_schema_bytes(json_bytes(schema)).map_err(|error| failed("$", format!("is too long: {error}")))?;
    let mut normaliser = Normaliser::new(schema, strictness);
    let mut levels = 0;
    let mut normal = normaliser.node(schema, "$", 0)?;
    let mut definitions = Map::new();
    // Normalising a definition may find more of them.
    for index in 0.. {
        levels += normaliser.deepest + 1;
        if levels > LEVELS_MAX {
            return Err(failed("$", "its definitions refer to each other through too many levels"));
        }
        let Some(reference) = normaliser.definitions.get(index).cloned() else { break };
        normaliser.deepest = 0;
        let target = normaliser.resolve(&reference, "$")?;
        definitions.insert(format!("r{index}"), normaliser.node(target, &reference, 0)?);
    }
    if let (Value::Object(normal), false) = (&mut normal, definitions.is_empty()) {
        normal.insert("$defs".to_owned(), Value::Object(definitions));
    }
    if let (Value::Object(normal), Some(options)) = (&mut normal, normaliser.options_of_compiler()) {
        normaliser.check_options(options)?;
        normal.insert("x-guidance".to_owned(), options.clone());
    }
    Ok(Normalised { schema: normal, notes: normaliser.notes })
}

fn object_of(keyword: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(keyword.to_owned(), value)]))
}

fn failed(path: &str, message: impl Into<String>) -> SchemaError {
    SchemaError { path: path.to_owned(), message: message.into(), excludes_all: false }
}

/// The error for a schema that no value satisfies.
fn excluded(path: &str, message: impl Into<String>) -> SchemaError {
    SchemaError { excludes_all: true, ..failed(path, message) }
}

struct Normaliser<'a> {
    root: &'a Value,
    strictness: Strictness,
    notes: Vec<String>,
    /// References found so far; the `i`-th becomes the definition `ri`.
    definitions: Vec<String>,
    names: BTreeMap<String, usize>,
    nodes: usize,
    /// Values that combinations can still copy.
    copies_left: usize,
    deepest: usize,
    /// What checks of listed values may still cost.
    effort: valid::Effort,
    patterns: pattern::PatternReader,
    patterns_bytes: usize,
    /// Number of Unicode classes in the patterns so far.
    classes: usize,
    /// States of patterns that can still be counted.
    states_left: usize,
}

/// The treatment of a keyword that cannot be enforced in a `strict` schema.
#[derive(PartialEq, Eq)]
enum UnderStrict {
    /// Drops it with a note: tools print it for ordinary types.
    Tolerated,
    /// Refuses it, as OpenAI does.
    Refused,
}

impl<'a> Normaliser<'a> {
    fn new(root: &'a Value, strictness: Strictness) -> Normaliser<'a> {
        Normaliser {
            root,
            strictness,
            notes: Vec::new(),
            definitions: Vec::new(),
            names: BTreeMap::new(),
            nodes: 0,
            copies_left: copies::COPIES_MAX,
            deepest: 0,
            effort: valid::Effort::default(),
            patterns: pattern::PatternReader::default(),
            patterns_bytes: 0,
            classes: 0,
            states_left: STATES_COUNTED_MAX,
        }
    }

    /// Counts a schema at path `at`, `depth` levels below the last definition.
    fn enter(&mut self, at: &str, depth: usize) -> Result<()> {
        self.nodes += 1;
        self.deepest = self.deepest.max(depth);
        if self.nodes > NODES_MAX {
            return Err(failed(
                at,
                format!("the schema has more than {NODES_MAX} parts, with its combinations"),
            ));
        }
        if depth > DEPTH_MAX {
            return Err(failed(at, format!("the schema is nested deeper than {DEPTH_MAX} levels")));
        }
        self.charge(at.len() / PATH_BYTES, at)
    }

    /// Normalises one schema at path `at`, `depth` levels below the last definition.
    fn node(&mut self, schema: &Value, at: &str, depth: usize) -> Result<Value> {
        self.enter(at, depth)?;
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(fields) => {
                let fields = self.present(fields, at)?;
                if !["$ref", "allOf"].iter().any(|keyword| fields.contains_key(*keyword)) {
                    return self.fields(&fields, at, depth);
                }
                let fields = self.flatten(&fields, at)?;
                self.fields(&fields, at, depth)
            }
            _ => Err(failed(at, NOT_A_SCHEMA)),
        }
    }

    /// The keywords that a schema has: some programs print those that it lacks as null, such as Go an empty list. Only
    /// a value may be null.
    fn present<'f>(&mut self, fields: &'f Fields, at: &str) -> Result<Cow<'f, Fields>> {
        let is_present = |key: &str| !fields[key].is_null() || ["const", "default"].contains(&key);
        match fields.keys().all(|key| is_present(key)) {
            true => Ok(Cow::Borrowed(fields)),
            false => self.copy_fields(fields, is_present, at).map(Cow::Owned),
        }
    }

    /// Normalises a schema whose combinations are resolved.
    fn fields(&mut self, fields: &Fields, at: &str, depth: usize) -> Result<Value> {
        if let Some(reference) = fields.get("$ref") {
            let reference = text(reference, at, "$ref")?;
            return Ok(json!({"$ref": format!("#/$defs/r{}", self.definition(reference, at)?)}));
        }
        if let Some(literal) = self.literal(fields, at)? {
            return Ok(literal);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(options) = fields.get(keyword) {
                return self.options(keyword, options, fields, at, depth);
            }
        }
        self.refuse_combinations(fields, at)?;
        self.typed(fields, at, depth)
    }

    /// Normalises the alternatives of `fields`; their sibling keywords apply to each.
    fn options(
        &mut self,
        keyword: &str,
        options: &Value,
        fields: &Fields,
        at: &str,
        depth: usize,
    ) -> Result<Value> {
        let Some(options) = options.as_array().filter(|options| !options.is_empty()) else {
            return Err(failed(&format!("{at}.{keyword}"), "must be an array with at least one schema"));
        };
        if keyword == "oneOf" && !merge::are_disjoint(self, options) {
            let why = "the alternatives may overlap, and any of them is accepted";
            self.drop_keyword(at, keyword, why, UnderStrict::Tolerated)?;
        }
        let repeated = merge::states_type_of_all(self, fields, options);
        let alone = |key: &str| key == keyword || (key == "type" && repeated) || merge::is_annotation(key);
        let siblings = match fields.keys().all(|key| alone(key)) {
            true => None,
            false => {
                let is_sibling = |key: &str| key != keyword && !unnamed::is_unevaluated(key);
                Some(Value::Object(self.copy_fields(fields, is_sibling, at)?))
            }
        };
        let (mut normal, mut excluded) = (Vec::new(), None);
        for (index, option) in options.iter().enumerate() {
            let at = format!("{at}.{keyword}[{index}]");
            let one = match &siblings {
                None => self.node(option, &at, depth + 1),
                Some(siblings) => self.option_beside(siblings, option, fields, &at, depth + 1),
            };
            match one {
                Ok(one) => normal.push(one),
                // The other alternatives remain.
                Err(error) if error.excludes_all => excluded = Some(error),
                Err(error) => return Err(error),
            }
        }
        if let (true, Some(error)) = (normal.is_empty(), excluded) {
            return Err(error);
        }
        Ok(if normal.len() == 1 { normal.remove(0) } else { object_of("anyOf", Value::Array(normal)) })
    }

    /// Normalises an alternative of `fields` to which `siblings` apply. What `fields` says of the unevaluated applies to
    /// what neither names.
    fn option_beside(
        &mut self,
        siblings: &Value,
        option: &Value,
        fields: &Fields,
        at: &str,
        depth: usize,
    ) -> Result<Value> {
        self.enter(at, depth)?;
        let mut both = self.flatten_both(siblings, option, at)?;
        both.extend(self.copy_fields(fields, unnamed::is_unevaluated, at)?);
        self.fields(&both, at, depth)
    }

    /// Drops or refuses keywords that combine schemas in ways that cannot be enforced.
    fn refuse_combinations(&mut self, fields: &Fields, at: &str) -> Result<()> {
        let why = "it can only be checked at the end";
        for keyword in ["not", "if", "dependentRequired", "dependentSchemas", "dependencies"] {
            if fields.contains_key(keyword) {
                self.drop_keyword(at, keyword, why, UnderStrict::Refused)?;
            }
        }
        Ok(())
    }

    /// Normalises a schema with a stated or implied type.
    fn typed(&mut self, fields: &Fields, at: &str, depth: usize) -> Result<Value> {
        let Some(types) = types(fields, at)? else {
            return Ok(Value::Bool(true));
        };
        let mut normal = Map::new();
        for kind in &types {
            match *kind {
                "object" => self.object(fields, &mut normal, at, depth)?,
                "array" => self.array(fields, &mut normal, at, depth)?,
                "string" => self.string(fields, &mut normal, at)?,
                "integer" | "number" => self.number(fields, &mut normal, at)?,
                _ => {}
            }
        }
        let kind = if let [kind] = types[..] { json!(kind) } else { json!(types) };
        normal.insert("type".to_owned(), kind);
        Ok(Value::Object(normal))
    }

    /// The options of `x-guidance`, with which a schema is left to llguidance.
    fn options_of_compiler(&self) -> Option<&'a Value> {
        self.root.get("x-guidance").filter(|options| !options.is_null())
    }

    /// Checks the expressions among the options of `x-guidance`, which llguidance compiles as they are.
    fn check_options(&mut self, options: &Value) -> Result<()> {
        for key in ["whitespace_pattern", "item_separator", "key_separator"] {
            let Some(expression) = options.get(key).and_then(Value::as_str) else { continue };
            let at = format!("$.x-guidance.{key}");
            check_regex(expression).map_err(|error| failed(&at, error))?;
            self.count_pattern(expression, &at)?;
        }
        Ok(())
    }

    /// Drops a keyword with a note, or refuses it.
    fn drop_keyword(&mut self, at: &str, keyword: &str, why: &str, under: UnderStrict) -> Result<()> {
        if self.strictness == Strictness::Strict && under == UnderStrict::Refused {
            let message =
                format!("cannot be enforced while decoding: {why}; leave it out, or send `strict: false`");
            return Err(failed(&format!("{at}.{keyword}"), message));
        }
        let note = format!("{at}.{keyword}: not enforced: {why}");
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
            self.notes.push(note);
        }
        Ok(())
    }

    /// The index of the definition that a reference names.
    fn definition(&mut self, reference: &str, at: &str) -> Result<usize> {
        if let Some(index) = self.names.get(reference) {
            return Ok(*index);
        }
        self.resolve(reference, at)?;
        let index = self.definitions.len();
        self.definitions.push(reference.to_owned());
        self.names.insert(reference.to_owned(), index);
        Ok(index)
    }

    fn resolve(&self, reference: &str, at: &str) -> Result<&'a Value> {
        pointed(self.root, reference).ok_or_else(|| {
            let message =
                format!("refers to {reference:?}, which is not in the schema; refer to `#/$defs/NAME`");
            failed(&format!("{at}.$ref"), message)
        })
    }
}

/// The pattern of a string format, if kvik knows it.
pub(super) fn format_pattern(format: &str) -> Option<String> {
    formats::pattern(format)
}

/// What tells whether a text matches a pattern; `None` if that cannot be decided. The pattern is compiled once.
pub(super) fn pattern_matcher(pattern: &str) -> impl Fn(&str) -> Option<bool> {
    let matcher = pattern::Matcher::new(pattern);
    move |text: &str| matcher.as_ref()?.matches(text)
}

/// A pattern in llguidance's notation.
pub(super) fn lark_pattern(pattern: &str) -> String {
    llguidance::regex_to_lark(pattern, "dw")
}

/// The types of a schema, or the one that its keywords imply.
fn types(fields: &Fields, at: &str) -> Result<Option<Vec<&'static str>>> {
    let mut types = Vec::new();
    match fields.get("type") {
        None => types.extend(implied_type(fields)),
        Some(Value::String(kind)) => types.push(known_type(kind, at)?),
        Some(Value::Array(kinds)) if !kinds.is_empty() => {
            for kind in kinds {
                let kind = known_type(text(kind, at, "type")?, at)?;
                if !types.contains(&kind) {
                    types.push(kind);
                }
            }
        }
        Some(_) => {
            return Err(failed(&format!("{at}.type"), "must be the name of a type, or an array of them"));
        }
    }
    // The notation of OpenAPI 3.0.
    if fields.get("nullable") == Some(&Value::Bool(true)) && !types.is_empty() && !types.contains(&"null") {
        types.push("null");
    }
    Ok((!types.is_empty()).then_some(types))
}

fn known_type(kind: &str, at: &str) -> Result<&'static str> {
    const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let known = TYPES.into_iter().find(|known| *known == kind);
    known.ok_or_else(|| failed(&format!("{at}.type"), format!("is {kind:?}; JSON has {}", TYPES.join(", "))))
}

fn text<'v>(value: &'v Value, at: &str, keyword: &str) -> Result<&'v str> {
    value.as_str().ok_or_else(|| failed(&format!("{at}.{keyword}"), "must be a string"))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_beside;
#[cfg(test)]
mod tests_hostile;
