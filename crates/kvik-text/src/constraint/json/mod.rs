//! The grammar of JSON that satisfies a schema.
//!
//! A normalised schema becomes a grammar for llguidance that accepts every JSON spelling of a character in a
//! string: llguidance's own translation of schemas rejects `\/`, and accepts escapes of characters other than
//! control characters only if no pattern, format or list restricts the string. Numbers with a divisor are left to
//! llguidance.

mod pattern;
mod range;
mod spelling;

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::literals::quoted;
use super::schema::{format_pattern, pattern_matcher};
use super::{JSON_WHITE_SPACE, with_white_space};

type Fields = serde_json::Map<String, Value>;
type Result<T> = std::result::Result<T, Unreadable>;

/// The message if there is no grammar.
const EXCLUDED: &str = "no answer can satisfy it";
/// More than any answer has, and less than the limit of llguidance's counts.
const UNBOUNDED: usize = 1 << 30;
/// The error for a schema that only llguidance can translate.
struct Unreadable;

/// The grammar of a normalised schema, with the rule `start`; `None` if only llguidance can translate it.
pub(super) fn grammar(schema: &Value) -> std::result::Result<Option<String>, String> {
    let definitions = schema["$defs"].as_object().cloned().unwrap_or_default();
    let mut grammar = Grammar { rules: String::new(), known: HashMap::new(), terminals: Terminals::new() };
    let Ok(start) = grammar.node(schema) else { return Ok(None) };
    for (name, schema) in &definitions {
        let Ok(definition) = grammar.node(schema) else { return Ok(None) };
        grammar.define(&definition_rule(name), &definition.ok_or(EXCLUDED)?);
    }
    grammar.define("start", &start.ok_or(EXCLUDED)?);
    grammar.common();
    let options = "%llguidance {\"ignore_once\": true}\n";
    let ignored = format!("%ignore /{JSON_WHITE_SPACE}/\n");
    Ok(Some([options, &ignored, &grammar.rules, &grammar.terminals.rules].concat()))
}

/// The rules so far.
struct Grammar {
    rules: String,
    /// References to the rules of schemas, by digests of their texts, which hold those of all schemas within them; `None`
    /// for those that exclude every value.
    known: HashMap<u128, Option<String>>,
    terminals: Terminals,
}

/// The terminals so far.
struct Terminals {
    rules: String,
    known: HashMap<String, String>,
    ranges_left: usize,
}

impl Terminals {
    fn new() -> Terminals {
        Terminals { rules: String::new(), known: HashMap::new(), ranges_left: pattern::RANGES_MAX }
    }

    /// A terminal with this body.
    fn terminal(&mut self, body: &str) -> String {
        if let Some(name) = self.known.get(body) {
            return name.clone();
        }
        let name = format!("T{}", self.known.len());
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "{name}: {body}");
        self.known.insert(body.to_owned(), name.clone());
        name
    }

    /// A terminal of a regular expression.
    fn expression(&mut self, expression: &str) -> String {
        self.terminal(&format!("/{expression}/"))
    }

    /// Charges `ranges` to the common budget of all patterns.
    fn spend(&mut self, ranges: usize) -> Option<()> {
        self.ranges_left = self.ranges_left.checked_sub(ranges)?;
        Some(())
    }
}

impl Grammar {
    fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    /// A rule with this body.
    fn rule(&mut self, body: &str) -> String {
        let name = format!("n{}", self.rules.len());
        self.define(&name, body);
        name
    }

    /// Rules that every grammar has.
    fn common(&mut self) {
        self.rules += &format!("CHARACTER: /{}/\n", spelling::CHARACTER);
        self.rules += "STRING: \"\\\"\" CHARACTER* \"\\\"\"\n";
        self.rules += "INTEGER: /-?(?:0|[1-9][0-9]*)/\n";
        self.rules += "NUMBER: /-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/\n";
        self.rules += "WORD: \"true\" | \"false\"\n";
        self.rules += "any: \"null\" | WORD | NUMBER | STRING | any_array | any_object\n";
        self.rules += "any_array: \"[\" (any (\",\" any)*)? \"]\"\n";
        self.rules += "any_object: \"{\" (any_entry (\",\" any_entry)*)? \"}\"\n";
        self.rules += "any_entry: STRING \":\" any\n";
    }

    /// A reference to the rule of a schema; `None` if it excludes every value.
    fn node(&mut self, schema: &Value) -> Result<Option<String>> {
        let Value::Object(fields) = schema else {
            return Ok((schema != &Value::Bool(false)).then(|| "any".to_owned()));
        };
        let key = xxh3_128(schema.to_string().as_bytes());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let node = self.fields(fields)?;
        self.known.insert(key, node.clone());
        Ok(node)
    }

    fn fields(&mut self, fields: &Fields) -> Result<Option<String>> {
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap_or_default();
            return Ok(Some(definition_rule(name)));
        }
        if let Some(options) = fields.get("anyOf").and_then(Value::as_array) {
            let options: Vec<Option<String>> =
                options.iter().map(|option| self.node(option)).collect::<Result<_>>()?;
            return Ok(self.one_of(options.into_iter().flatten().collect()));
        }
        if let Some(value) = fields.get("const") {
            return Ok(Some(self.value(value)));
        }
        if let Some(values) = fields.get("enum").and_then(Value::as_array) {
            // A single terminal for all scalars: thousands of terminals would each be compared with the others.
            let (nested, scalars): (Vec<&Value>, Vec<&Value>) =
                values.iter().partition(|value| value.is_array() || value.is_object());
            let mut options: Vec<String> = nested.into_iter().map(|value| self.value(value)).collect();
            let scalars: Vec<String> = scalars.into_iter().map(|value| self.value(value)).collect();
            options.extend((!scalars.is_empty()).then(|| self.terminals.terminal(&scalars.join(" | "))));
            return Ok(self.one_of(options));
        }
        let kinds = match fields.get("type") {
            Some(Value::Array(kinds)) => kinds.clone(),
            Some(kind) => vec![kind.clone()],
            None => return Ok(Some("any".to_owned())),
        };
        let mut options = Vec::new();
        for kind in &kinds {
            options.extend(self.typed(kind.as_str().unwrap_or_default(), fields)?);
        }
        Ok(self.one_of(options))
    }

    fn one_of(&mut self, mut options: Vec<String>) -> Option<String> {
        match options.len() {
            0 => None,
            1 => options.pop(),
            _ => Some(self.rule(&options.join(" | "))),
        }
    }

    /// The expression of a constant.
    fn value(&mut self, value: &Value) -> String {
        match value {
            Value::String(text) => pattern::quoted(text, &mut self.terminals),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.value(item)).collect();
                self.rule(&format!("\"[\" {} \"]\"", items.join(" \",\" ")))
            }
            Value::Object(entries) => {
                let entries: Vec<String> =
                    entries.iter().map(|(name, value)| self.entry(name, value)).collect();
                self.rule(&format!("\"{{\" {} \"}}\"", entries.join(" \",\" ")))
            }
            scalar => quoted(&scalar.to_string()),
        }
    }

    fn entry(&mut self, name: &str, value: &Value) -> String {
        let name = pattern::quoted(name, &mut self.terminals);
        format!("{name} \":\" {}", self.value(value))
    }

    fn typed(&mut self, kind: &str, fields: &Fields) -> Result<Option<String>> {
        match kind {
            "null" => Ok(Some("\"null\"".to_owned())),
            "boolean" => Ok(Some("WORD".to_owned())),
            "integer" | "number" => Ok(self.number(kind, fields)),
            "string" => Ok(Some(self.string(fields))),
            "array" => self.array(fields),
            "object" => self.object(fields),
            _ => Err(Unreadable),
        }
    }

    fn number(&mut self, kind: &str, fields: &Fields) -> Option<String> {
        let bounds =
            range::BOUNDS.iter().filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone())));
        let mut schema: Fields = bounds.collect();
        if let Some(divisor) = fields.get("multipleOf") {
            schema.insert("multipleOf".to_owned(), divisor.clone());
            schema.insert("type".to_owned(), json!(kind));
            return Some(self.of_llguidance(schema));
        }
        match schema.is_empty() {
            true => Some(kind.to_uppercase()),
            false => Some(self.terminals.terminal(&range::numbers(kind == "integer", &schema)?)),
        }
    }

    fn of_llguidance(&mut self, schema: Fields) -> String {
        self.rule(&format!("%json {}", with_white_space(Value::Object(schema))))
    }

    fn string(&mut self, fields: &Fields) -> String {
        let text = |keyword: &str| fields.get(keyword).and_then(Value::as_str);
        let count = |keyword: &str| fields.get(keyword).and_then(Value::as_u64);
        let length = match (count("minLength").unwrap_or(0), count("maxLength")) {
            (0, None) => None,
            (_, Some(0)) => Some("\"\"".to_owned()),
            (min, Some(max)) => Some(format!("CHARACTER{{{min},{max}}}")),
            (min, None) => Some(format!("CHARACTER{{{min},}}")),
        };
        let wanted = text("pattern").map(str::to_owned).or_else(|| format_pattern(text("format")?));
        let form = match (&wanted, text("format")) {
            (Some(wanted), _) => pattern::pattern(wanted, &mut self.terminals),
            (None, Some(_)) => None,
            (None, None) => Some("CHARACTER*".to_owned()),
        };
        let Some(form) = form else {
            let keywords = ["type", "pattern", "format", "minLength", "maxLength"];
            let kept = keywords.iter().filter_map(|key| Some(((*key).to_owned(), fields.get(*key)?.clone())));
            let mut schema: Fields = kept.collect();
            schema.insert("type".to_owned(), json!("string"));
            return self.of_llguidance(schema);
        };
        let body = match (length, wanted) {
            (None, None) => return "STRING".to_owned(),
            (None, Some(_)) => form,
            (Some(length), None) => length,
            (Some(length), Some(_)) => self.terminals.terminal(&format!("{form} & {length}")),
        };
        self.terminals.terminal(&format!("\"\\\"\" {body} \"\\\"\""))
    }

    fn array(&mut self, fields: &Fields) -> Result<Option<String>> {
        let count = |keyword: &str| fields.get(keyword).and_then(Value::as_u64).map(|count| count as usize);
        let (min, mut max) = (count("minItems").unwrap_or(0), count("maxItems").unwrap_or(usize::MAX));
        let mut items = Vec::new();
        for item in fields.get("prefixItems").and_then(Value::as_array).into_iter().flatten().take(max) {
            match self.node(item)? {
                Some(item) => items.push(item),
                // No value is allowed at this position, so the array ends before it.
                None => {
                    max = items.len();
                    break;
                }
            }
        }
        let more = match fields.get("items") {
            Some(items) => self.node(items)?,
            None => Some("any".to_owned()),
        };
        let more = more.filter(|_| items.len() < max);
        if min > max || (more.is_none() && items.len() < min) {
            return Ok(None);
        }
        let tail = more.map(|more| {
            let (least, most) = (min.saturating_sub(items.len()), max.saturating_sub(items.len()));
            let repeated = self.rule(&repeated(&more, least.max(1), most));
            (repeated, least > 0)
        });
        let parts = items.into_iter().enumerate().map(|(at, item)| (item, at < min)).chain(tail);
        Ok(Some(self.enclosed("[", &parts.collect::<Vec<_>>(), "]")))
    }

    /// A rule of parts separated by commas, each with a flag whether it is required. In an array, the parts after
    /// a missing part are missing too.
    fn enclosed(&mut self, open: &str, parts: &[(String, bool)], close: &str) -> String {
        let is_array = open == "[";
        // The rest of the parts from here on: after other parts, and as the first.
        let (mut behind, mut first) = (String::new(), String::new());
        for (part, is_required) in parts.iter().rev() {
            let with = self.rule(&format!("{part} {behind}"));
            let next = match (is_required, is_array) {
                (true, _) => format!("\",\" {with}"),
                (false, true) => format!("(\",\" {with})?"),
                (false, false) => self.rule(&format!("(\",\" {part})? {behind}")),
            };
            first = match (is_required, is_array || first.is_empty()) {
                (true, _) => with,
                (false, true) => format!("({with})?"),
                (false, false) => self.rule(&format!("{with} | {first}")),
            };
            behind = next;
        }
        self.rule(&format!("{} {first} {}", quoted(open), quoted(close)))
    }

    fn object(&mut self, fields: &Fields) -> Result<Option<String>> {
        let none = Fields::new();
        let map = |keyword: &str| fields.get(keyword).and_then(Value::as_object).unwrap_or(&none);
        let (properties, patterns) = (map("properties"), map("patternProperties"));
        let additional = fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let required: Vec<&str> = fields
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let needed: HashSet<&str> = required.iter().copied().collect();
        let matchers: Vec<_> =
            patterns.iter().map(|(pattern, schema)| (pattern_matcher(pattern), schema)).collect();
        let unlisted = required.iter().filter(|name| !properties.contains_key(**name)).map(|name| {
            let pattern = matchers.iter().find(|(matches, _)| matches(name) == Some(true));
            (*name, pattern.map_or(&additional, |(_, schema)| *schema))
        });
        let named = properties.iter().map(|(name, schema)| (name.as_str(), schema)).chain(unlisted);
        let (mut parts, mut taken) = (Vec::new(), Vec::new());
        for (name, schema) in named {
            let is_required = needed.contains(name);
            let key = pattern::quoted(name, &mut self.terminals);
            match self.node(schema)? {
                Some(value) => {
                    let entry = format!("{key} \":\" {value}");
                    // An optional entry is used in two rules.
                    let entry = if is_required { entry } else { self.rule(&entry) };
                    parts.push((entry, is_required));
                }
                None if is_required => return Ok(None),
                None => {}
            }
            taken.push((name, key));
        }
        let others = self.other_entries(patterns, &additional, &taken)?;
        self.counted(fields, parts, others)
    }

    /// The forms of entries whose names are not listed.
    fn other_entries(
        &mut self,
        patterns: &Fields,
        additional: &Value,
        taken: &[(&str, String)],
    ) -> Result<Vec<String>> {
        let but = |form: &str, names: Vec<&str>| match names.is_empty() {
            true => form.to_owned(),
            false => format!("{form} & ~({})", names.join(" | ")),
        };
        let mut entries = Vec::new();
        let mut keys: Vec<String> = taken.iter().map(|(_, key)| key.clone()).collect();
        for (wanted, schema) in patterns {
            let form = pattern::pattern(wanted, &mut self.terminals).ok_or(Unreadable)?;
            let key = self.terminals.terminal(&format!("\"\\\"\" {form} \"\\\"\""));
            let matches = pattern_matcher(wanted);
            let names = taken.iter().filter(|(name, _)| matches(name) != Some(false));
            let body = but(&key, names.map(|(_, key)| key.as_str()).collect());
            if let Some(value) = self.node(schema)? {
                entries.push(format!("{} \":\" {value}", self.terminals.terminal(&body)));
            }
            keys.push(key);
        }
        if let Some(value) = self.node(additional)? {
            let body = but("STRING", keys.iter().map(String::as_str).collect());
            let key = if keys.is_empty() { body } else { self.terminals.terminal(&body) };
            entries.push(format!("{key} \":\" {value}"));
        }
        Ok(entries)
    }

    /// An object of these entries, with the schema's limits on their number.
    fn counted(
        &mut self,
        fields: &Fields,
        mut parts: Vec<(String, bool)>,
        others: Vec<String>,
    ) -> Result<Option<String>> {
        let count = |keyword: &str| fields.get(keyword).and_then(Value::as_u64).map(|count| count as usize);
        let certain = parts.iter().filter(|(_, is_required)| *is_required).count();
        let is_counted = fields.contains_key("minProperties") || fields.contains_key("maxProperties");
        let (min, max) = (count("minProperties").unwrap_or(0), count("maxProperties").unwrap_or(usize::MAX));
        if min > max || certain > max {
            return Ok(None);
        }
        let (least, most) = (min.saturating_sub(certain), max - certain);
        if is_counted && certain < parts.len() {
            return Ok(self.one_of_few(&parts, least, most));
        }
        if !others.is_empty() && most > 0 {
            let other = self.rule(&others.join(" | "));
            let repeated = self.rule(&repeated(&other, least.max(1), most));
            parts.push((repeated, least > 0));
        } else if least > 0 {
            return Ok(None);
        }
        Ok(Some(self.enclosed("{", &parts, "}")))
    }

    /// An object with at least one of its optional entries, or at most one, or exactly one, or none.
    fn one_of_few(&mut self, parts: &[(String, bool)], least: usize, most: usize) -> Option<String> {
        let mut options = Vec::new();
        for (chosen, (_, is_required)) in parts.iter().enumerate() {
            if *is_required || most == 0 {
                continue;
            }
            let with: Vec<(String, bool)> = parts
                .iter()
                .enumerate()
                .filter(|(at, (_, is_required))| most > 1 || *is_required || *at == chosen)
                .map(|(at, (part, is_required))| (part.clone(), *is_required || at == chosen))
                .collect();
            options.push(self.enclosed("{", &with, "}"));
        }
        if least == 0 {
            let without: Vec<(String, bool)> = parts.iter().filter(|part| part.1).cloned().collect();
            options.push(self.enclosed("{", &without, "}"));
        }
        self.one_of(options)
    }
}

fn definition_rule(name: &str) -> String {
    format!("definition_{name}")
}

/// A part repeated `least` to `most` times, separated by commas; `least` is one or more.
fn repeated(part: &str, least: usize, most: usize) -> String {
    let least = least - 1;
    match most {
        1 => part.to_owned(),
        UNBOUNDED.. => format!("{part} (\",\" {part}){{{least},}}"),
        most => format!("{part} (\",\" {part}){{{least},{}}}", most - 1),
    }
}

#[cfg(test)]
mod tests;
