//! Objects and arrays.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::copies::{text_weight, weight};
use super::pattern::Matcher;
use super::{Fields, Normaliser, Result, UnderStrict, failed, object_of, scalar, text};

/// Maximum optional properties of one object: each takes four items of a row of llguidance's parser,
/// which has 2,000.
const OPTIONAL_MAX: usize = 400;
/// Maximum optional properties of an object that limits their number: llguidance enumerates every
/// combination.
const COUNTED_MAX: usize = 16;

/// The names of an object's required properties.
struct Required<'f> {
    names: Vec<&'f str>,
    set: HashSet<&'f str>,
}

impl Required<'_> {
    /// How many of these properties are optional; an error if they are too many.
    fn count_optional<'n>(&self, names: impl Iterator<Item = &'n String>, at: &str) -> Result<usize> {
        let optional = names.filter(|name| !self.set.contains(name.as_str())).count();
        if optional <= OPTIONAL_MAX {
            return Ok(optional);
        }
        let message = format!(
            "has {optional} optional properties and the limit is {OPTIONAL_MAX}; list more of them in `required`"
        );
        Err(failed(&format!("{at}.properties"), message))
    }
}

/// The normalised schemas of an object's properties.
struct Entries {
    properties: Fields,
    patterns: Fields,
    additional: Value,
    /// Whether the schema lists properties, which closes the object.
    closes: bool,
}

impl Normaliser<'_> {
    pub(super) fn object(&mut self, fields: &Fields, out: &mut Fields, at: &str, depth: usize) -> Result<()> {
        let required = self.required(fields, at)?;
        // Too many are refused before they are normalised, which may copy a large schema for each.
        let listed = fields.get("properties").and_then(Value::as_object);
        required.count_optional(listed.into_iter().flat_map(Map::keys), at)?;
        let with_patterns = self.with_patterns(fields, at)?;
        let fields = with_patterns.as_ref().unwrap_or(fields);
        let entries = self.entries(fields, &required, at, depth)?;
        let optional = required.count_optional(entries.properties.keys(), at)?;
        let is_open = entries.additional != Value::Bool(false);
        self.property_counts(fields, out, at, optional, is_open || !entries.patterns.is_empty())?;
        insert_unless_empty(out, "properties", entries.properties);
        insert_unless_empty(out, "patternProperties", entries.patterns);
        if !required.names.is_empty() {
            out.insert("required".to_owned(), json!(required.names));
        }
        if entries.closes || entries.additional != Value::Bool(true) {
            out.insert("additionalProperties".to_owned(), entries.additional);
        }
        Ok(())
    }

    /// The required properties, whose names are copied to the normalised schema.
    fn required<'f>(&mut self, fields: &'f Fields, at: &str) -> Result<Required<'f>> {
        let names = required(fields, at)?;
        self.charge(fields.get("required").map_or(0, weight), at)?;
        let set = names.iter().copied().collect();
        Ok(Required { names, set })
    }

    /// Normalises the schemas of all properties.
    fn entries(
        &mut self,
        fields: &Fields,
        required: &Required<'_>,
        at: &str,
        depth: usize,
    ) -> Result<Entries> {
        let mut properties = self.schemas(fields, "properties", required, at, depth)?;
        let patterns = self.pattern_properties(fields, required, at, depth)?;
        let mut additional = self.additional(fields, at, depth)?;
        self.property_names(fields, &mut properties, &mut additional, at)?;
        let closes = fields.contains_key("properties") || !patterns.is_empty();
        // Dropped patterns leave the object open.
        let dropped = patterns.is_empty() && fields.contains_key("patternProperties");
        let additional = additional.unwrap_or(Value::Bool(dropped || !closes));
        if additional == Value::Bool(false) {
            self.allow_required(fields, required, &patterns, &mut properties, at)?;
        }
        Ok(Entries { properties, patterns, additional, closes })
    }

    /// Adds the required properties that no pattern describes: closing the object must not exclude them. If the schema
    /// closes it itself, a note says so.
    fn allow_required(
        &mut self,
        fields: &Fields,
        required: &Required<'_>,
        patterns: &Fields,
        properties: &mut Fields,
        at: &str,
    ) -> Result<()> {
        let listed = properties.len();
        let unlisted = required.names.iter().copied().filter(|name| !properties.contains_key(*name));
        let unlisted: Vec<&str> = unlisted.collect();
        if unlisted.is_empty() {
            return Ok(());
        }
        let matchers: Vec<Matcher> = patterns.keys().filter_map(|pattern| Matcher::new(pattern)).collect();
        let is_described = |name: &str| matchers.iter().any(|matcher| matcher.matches(name) == Some(true));
        for name in unlisted.into_iter().filter(|name| !is_described(name)) {
            properties.insert(name.to_owned(), Value::Bool(true));
        }
        let closes = |keyword: &&str| match fields.get(*keyword) {
            Some(Value::Bool(is_open)) => !is_open,
            Some(names) => names.get("enum").is_some(),
            None => false,
        };
        let keywords = ["propertyNames", "additionalProperties", "unevaluatedProperties"];
        match keywords.into_iter().find(closes) {
            Some(keyword) if properties.len() > listed => {
                let why = "it excludes a property that is required";
                self.drop_keyword(at, keyword, why, UnderStrict::Tolerated)
            }
            _ => Ok(()),
        }
    }

    /// A map of schemas.
    fn schemas(
        &mut self,
        fields: &Fields,
        keyword: &str,
        required: &Required<'_>,
        at: &str,
        depth: usize,
    ) -> Result<Fields> {
        let at = format!("{at}.{keyword}");
        match fields.get(keyword) {
            None => Ok(Map::new()),
            Some(Value::Object(schemas)) => schemas
                .iter()
                .map(|(name, schema)| {
                    self.charge(text_weight(name), &at)?;
                    let normal = match self.node(schema, &format!("{at}.{name}"), depth + 1) {
                        // No value can satisfy it: the object lacks the property.
                        Err(error) if error.excludes_all && !required.set.contains(name.as_str()) => {
                            Value::Bool(false)
                        }
                        normal => normal?,
                    };
                    Ok((name.clone(), normal))
                })
                .collect(),
            Some(_) => Err(failed(&at, "must be an object of schemas")),
        }
    }

    /// llguidance requires patterns to be disjoint, which is expensive to check: only a single pattern is
    /// enforced.
    fn pattern_properties(
        &mut self,
        fields: &Fields,
        required: &Required<'_>,
        at: &str,
        depth: usize,
    ) -> Result<Fields> {
        let schemas = self.schemas(fields, "patternProperties", required, at, depth)?;
        let Some(name) = schemas.keys().next() else { return Ok(schemas) };
        let why = if schemas.len() > 1 {
            "only a single pattern can be enforced".to_owned()
        } else {
            self.count_pattern(name, &format!("{at}.patternProperties"))?;
            match self.patterns.check(name) {
                Ok(_) => return Ok(schemas),
                Err(why) => why,
            }
        };
        self.drop_keyword(at, "patternProperties", &why, UnderStrict::Refused)?;
        Ok(Map::new())
    }

    /// The schema of other properties; `None` if it is not given.
    fn additional(&mut self, fields: &Fields, at: &str, depth: usize) -> Result<Option<Value>> {
        let keywords = ["additionalProperties", "unevaluatedProperties"];
        let Some(keyword) = keywords.into_iter().find(|keyword| fields.contains_key(*keyword)) else {
            return Ok(None);
        };
        self.node(&fields[keyword], &format!("{at}.{keyword}"), depth + 1).map(Some)
    }

    /// Converts a list of names to properties.
    fn property_names(
        &mut self,
        fields: &Fields,
        properties: &mut Fields,
        additional: &mut Option<Value>,
        at: &str,
    ) -> Result<()> {
        let Some(names) = fields.get("propertyNames") else { return Ok(()) };
        let is_trivial = |names: &Fields| names.iter().all(|(key, value)| key == "type" && value == "string");
        if names == &Value::Bool(true) || names.as_object().is_some_and(is_trivial) {
            return Ok(());
        }
        let Some(listed) = names.get("enum").and_then(Value::as_array) else {
            return self.drop_keyword(
                at,
                "propertyNames",
                "only a list of names (`enum`) can be enforced",
                UnderStrict::Refused,
            );
        };
        let schema = additional.take().unwrap_or(Value::Bool(true));
        let allowed: HashSet<&str> = listed.iter().filter_map(Value::as_str).collect();
        for (name, schema) in properties.iter_mut() {
            if !allowed.contains(name.as_str()) {
                *schema = Value::Bool(false);
            }
        }
        for name in listed.iter().filter_map(Value::as_str) {
            if !properties.contains_key(name) {
                self.charge(text_weight(name), at)?;
                properties.insert(name.to_owned(), self.copy(&schema, at)?);
            }
        }
        *additional = Some(Value::Bool(false));
        Ok(())
    }

    fn property_counts(
        &mut self,
        fields: &Fields,
        out: &mut Fields,
        at: &str,
        optional: usize,
        open: bool,
    ) -> Result<()> {
        let min = scalar::count(fields, "minProperties", at)?.unwrap_or(0);
        let max = scalar::count(fields, "maxProperties", at)?;
        // llguidance can count properties if none is optional, or require exactly one.
        let one_of_few = min <= 1 && max.unwrap_or(1) == 1 && !open && optional <= COUNTED_MAX;
        if optional > 0 && !one_of_few {
            for (keyword, is_there) in [("minProperties", min > 0), ("maxProperties", max.is_some())] {
                if is_there {
                    self.drop_keyword(
                        at,
                        keyword,
                        "the object has optional properties",
                        UnderStrict::Tolerated,
                    )?;
                }
            }
            return Ok(());
        }
        if min > 0 {
            out.insert("minProperties".to_owned(), json!(min));
        }
        if let Some(max) = max {
            out.insert("maxProperties".to_owned(), json!(max));
        }
        Ok(())
    }

    /// The fields with the pattern's schema added to properties whose names it matches; `None` if there is no
    /// such property.
    fn with_patterns(&mut self, fields: &Fields, at: &str) -> Result<Option<Fields>> {
        let Some((names, schema)) = matched_by_pattern(fields) else { return Ok(None) };
        let mut fields = self.copy_fields(fields, |_| true, at)?;
        let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
        for (name, property) in properties.into_iter().flatten() {
            if names.contains(name.as_str()) {
                let both = vec![property.take(), self.copy(schema, at)?];
                *property = object_of("allOf", Value::Array(both));
            }
        }
        Ok(Some(fields))
    }

    pub(super) fn array(&mut self, fields: &Fields, out: &mut Fields, at: &str, depth: usize) -> Result<()> {
        if fields.get("uniqueItems") == Some(&Value::Bool(true)) {
            self.drop_keyword(
                at,
                "uniqueItems",
                "it can only be checked at the end",
                UnderStrict::Tolerated,
            )?;
        }
        for keyword in ["contains", "minContains", "maxContains"] {
            if fields.contains_key(keyword) {
                self.drop_keyword(at, keyword, "it can only be checked at the end", UnderStrict::Refused)?;
            }
        }
        let (prefix, items) = prefix_and_items(fields, at)?;
        let items = match fields.get("unevaluatedItems") {
            Some(unevaluated) if items.is_none() && fields.contains_key("contains") => {
                if unevaluated != &Value::Bool(true) {
                    let why = "it does not apply to items that `contains` describes";
                    self.drop_keyword(at, "unevaluatedItems", why, UnderStrict::Refused)?;
                }
                None
            }
            unevaluated => items.or(unevaluated),
        };
        if let Some(prefix) = prefix {
            let normal = prefix.iter().enumerate();
            let normal =
                normal.map(|(i, item)| self.item(item, &format!("{at}.prefixItems[{i}]"), depth + 1));
            out.insert("prefixItems".to_owned(), Value::Array(normal.collect::<Result<_>>()?));
        }
        match items {
            Some(items) => {
                out.insert("items".to_owned(), self.item(items, &format!("{at}.items"), depth + 1)?);
            }
            // A tuple is closed, as an object that lists its properties.
            None if prefix.is_some() => {
                out.insert("items".to_owned(), Value::Bool(false));
            }
            None => {}
        }
        scalar::counts(fields, out, "minItems", "maxItems", at)
    }

    /// Normalises the schema of an item; if no value can satisfy it, the array ends before the item.
    fn item(&mut self, schema: &Value, at: &str, depth: usize) -> Result<Value> {
        match self.node(schema, at, depth) {
            Err(error) if error.excludes_all => Ok(Value::Bool(false)),
            normal => normal,
        }
    }
}

/// The schemas of the first items of an array, and that of the items behind them.
fn prefix_and_items<'f>(fields: &'f Fields, at: &str) -> Result<(Option<&'f [Value]>, Option<&'f Value>)> {
    match (fields.get("prefixItems"), fields.get("items")) {
        // Earlier drafts write a tuple as an array of `items`.
        (None, Some(Value::Array(prefix))) => Ok((Some(prefix.as_slice()), fields.get("additionalItems"))),
        (Some(Value::Array(prefix)), items) => Ok((Some(prefix.as_slice()), items)),
        (Some(_), _) => Err(failed(&format!("{at}.prefixItems"), "must be an array of schemas")),
        (None, items) => Ok((None, items)),
    }
}

/// The names of the properties that a single pattern matches, and the pattern's schema; `None` if it is theirs already.
fn matched_by_pattern(fields: &Fields) -> Option<(HashSet<&str>, &Value)> {
    let patterns = fields.get("patternProperties")?.as_object().filter(|patterns| patterns.len() == 1)?;
    let (pattern, schema) = patterns.iter().next()?;
    let properties = fields.get("properties")?.as_object()?;
    let matcher = Matcher::new(pattern)?;
    let differing = properties.iter().filter(|(_, property)| *property != schema);
    let matched = differing.filter(|(name, _)| matcher.matches(name) == Some(true));
    let names: HashSet<&str> = matched.map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then_some((names, schema))
}

fn required<'f>(fields: &'f Fields, at: &str) -> Result<Vec<&'f str>> {
    match fields.get("required") {
        None => Ok(Vec::new()),
        Some(Value::Array(names)) => names.iter().map(|name| text(name, at, "required")).collect(),
        // In draft 3 it is a boolean of the property and does not restrict the object.
        Some(Value::Bool(_)) => Ok(Vec::new()),
        Some(_) => Err(failed(&format!("{at}.required"), "must be an array of names")),
    }
}

fn insert_unless_empty(out: &mut Fields, keyword: &str, schemas: Fields) {
    if !schemas.is_empty() {
        out.insert(keyword.to_owned(), Value::Object(schemas));
    }
}
