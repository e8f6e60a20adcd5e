//! Objects and arrays.

use serde_json::{Map, Value, json};

use super::pattern::Matcher;
use super::{Fields, Normaliser, Result, UnderStrict, failed, scalar, text};

/// Maximum optional properties of one object: each takes four items of a row of llguidance's parser,
/// which has 2,000.
const OPTIONAL_MAX: usize = 400;
/// Maximum optional properties of an object that limits their number: llguidance enumerates every
/// combination.
const COUNTED_MAX: usize = 16;

impl Normaliser<'_> {
    pub(super) fn object(&mut self, fields: &Fields, out: &mut Fields, at: &str, depth: usize) -> Result<()> {
        let with_patterns = with_patterns(fields);
        let fields = with_patterns.as_ref().unwrap_or(fields);
        let mut properties = self.schemas(fields, "properties", at, depth)?;
        let patterns = self.pattern_properties(fields, at, depth)?;
        let mut additional = self.additional(fields, at, depth)?;
        self.property_names(fields, &mut properties, &mut additional, at)?;
        let closes = fields.contains_key("properties") || !patterns.is_empty();
        // Dropped patterns leave the object open.
        let dropped = patterns.is_empty() && fields.contains_key("patternProperties");
        let additional = additional.unwrap_or(Value::Bool(dropped || !closes));
        let required = required(fields, at)?;
        for name in &required {
            // Closing the object must not exclude required properties.
            if !properties.contains_key(*name) && additional == Value::Bool(false) && patterns.is_empty() {
                properties.insert((*name).to_owned(), Value::Bool(true));
            }
        }
        let optional = properties.keys().filter(|name| !required.contains(&name.as_str())).count();
        if optional > OPTIONAL_MAX {
            let message = format!(
                "has {optional} optional properties and the limit is {OPTIONAL_MAX}; list more of them in `required`"
            );
            return Err(failed(&format!("{at}.properties"), message));
        }
        let is_open = additional != Value::Bool(false);
        self.property_counts(fields, out, at, optional, is_open || !patterns.is_empty())?;
        for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
            if fields.get(keyword).is_some_and(|value| !value.is_boolean()) {
                self.drop_keyword(at, keyword, "it depends on the rest of the schema", UnderStrict::Refused)?;
            }
        }
        insert_unless_empty(out, "properties", properties);
        insert_unless_empty(out, "patternProperties", patterns);
        if !required.is_empty() {
            out.insert("required".to_owned(), json!(required));
        }
        if closes || additional != Value::Bool(true) {
            out.insert("additionalProperties".to_owned(), additional);
        }
        Ok(())
    }

    /// A map of schemas.
    fn schemas(&mut self, fields: &Fields, keyword: &str, at: &str, depth: usize) -> Result<Fields> {
        let at = format!("{at}.{keyword}");
        match fields.get(keyword) {
            None => Ok(Map::new()),
            Some(Value::Object(schemas)) => schemas
                .iter()
                .map(|(name, schema)| {
                    let normal = match self.node(schema, &format!("{at}.{name}"), depth + 1) {
                        // No value can satisfy it: the object lacks the property.
                        Err(error) if error.excludes_all && !needs(fields, name) => Value::Bool(false),
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
    fn pattern_properties(&mut self, fields: &Fields, at: &str, depth: usize) -> Result<Fields> {
        let schemas = self.schemas(fields, "patternProperties", at, depth)?;
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
        if let Some(schema) = fields.get("additionalProperties") {
            return self.node(schema, &format!("{at}.additionalProperties"), depth + 1).map(Some);
        }
        if let Some(Value::Bool(open)) = fields.get("unevaluatedProperties") {
            return Ok(Some(Value::Bool(*open)));
        }
        Ok(None)
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
        for (name, schema) in properties.iter_mut() {
            if !listed.iter().any(|listed| listed == name) {
                *schema = Value::Bool(false);
            }
        }
        for name in listed.iter().filter_map(Value::as_str) {
            properties.entry(name).or_insert_with(|| schema.clone());
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
        // Earlier drafts write a tuple as an array of `items`.
        let (prefix, items) = match (fields.get("prefixItems"), fields.get("items")) {
            (None, Some(Value::Array(prefix))) => (Some(prefix), fields.get("additionalItems")),
            (Some(Value::Array(prefix)), items) => (Some(prefix), items),
            (Some(_), _) => return Err(failed(&format!("{at}.prefixItems"), "must be an array of schemas")),
            (None, items) => (None, items),
        };
        if let Some(prefix) = prefix {
            let normal = prefix.iter().enumerate();
            let normal =
                normal.map(|(i, item)| self.node(item, &format!("{at}.prefixItems[{i}]"), depth + 1));
            out.insert("prefixItems".to_owned(), Value::Array(normal.collect::<Result<_>>()?));
        }
        match items {
            Some(items) => {
                out.insert("items".to_owned(), self.node(items, &format!("{at}.items"), depth + 1)?);
            }
            // A tuple is closed, as an object that lists its properties.
            None if prefix.is_some() => {
                out.insert("items".to_owned(), Value::Bool(false));
            }
            None => {}
        }
        scalar::counts(fields, out, "minItems", "maxItems", at)
    }
}

/// The fields with the pattern's schema added to properties whose names it matches; `None` if there is no
/// such property.
fn with_patterns(fields: &Fields) -> Option<Fields> {
    let patterns = fields.get("patternProperties")?.as_object().filter(|patterns| patterns.len() == 1)?;
    let (pattern, schema) = patterns.iter().next()?;
    let matcher = Matcher::new(pattern)?;
    let mut fields = fields.clone();
    for (name, property) in fields.get_mut("properties")?.as_object_mut()? {
        if matcher.matches(name) == Some(true) && property != schema {
            *property = json!({"allOf": [property.take(), schema]});
        }
    }
    Some(fields)
}

fn needs(fields: &Fields, name: &str) -> bool {
    let required = fields.get("required").and_then(Value::as_array);
    required.is_some_and(|required| required.iter().any(|required| required == name))
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
