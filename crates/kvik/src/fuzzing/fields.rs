//! Request bodies generated from the OpenAPI document, in which any value may be replaced by a hostile one.

use std::collections::BTreeMap;

use kvik_testing::fuzz::Random;
use serde_json::{Map, Value};

/// Inverse probability of a value that violates its schema.
const WRONG_ONE_IN: usize = 12;
/// Nesting depth to which a schema is followed.
const DEPTH_MAX: usize = 6;
/// Nesting depth of arrays or objects in a hostile value.
const NESTED: usize = 3000;

/// The routes with JSON bodies, and the schemas of these.
pub(super) struct Bodies {
    document: Value,
}

impl Bodies {
    pub(super) fn new() -> Bodies {
        Bodies {
            document: serde_json::from_str(include_str!("../../../kvik-server/src/api/openapi.json"))
                .unwrap(),
        }
    }

    /// Method and path of every route with a body in the document, and the schema of the body.
    pub(super) fn routes(&self) -> Vec<(String, &Value)> {
        self.dialects().into_values().flatten().collect()
    }

    /// The routes by dialect, which is their tag in the document.
    pub(super) fn dialects(&self) -> BTreeMap<&str, Vec<(String, &Value)>> {
        let mut dialects = BTreeMap::<_, Vec<_>>::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
                if schema.is_object() {
                    let route = (format!("{} {}", method.to_uppercase(), named(path)), schema);
                    dialects.entry(operation["tags"][0].as_str().unwrap()).or_default().push(route);
                }
            }
        }
        dialects
    }

    /// The alternatives that a schema allows, with references resolved.
    pub(super) fn kinds<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return self.kinds(&self.document["components"]["schemas"][name]);
        }
        let several = ["anyOf", "oneOf"].iter().find_map(|key| schema[key].as_array());
        match several {
            Some(kinds) => kinds.iter().flat_map(|kind| self.kinds(kind)).collect(),
            None => vec![schema],
        }
    }

    /// The fields of an object: name, schema, and whether it is required.
    pub(super) fn fields<'a>(&'a self, schema: &'a Value) -> Vec<(&'a str, &'a Value, bool)> {
        let needed = |name: &str| {
            schema["required"].as_array().is_some_and(|required| required.iter().any(|field| field == name))
        };
        let fields = schema["properties"].as_object().into_iter().flatten();
        fields.map(|(name, field)| (name.as_str(), field, needed(name))).collect()
    }

    /// The text of a value that conforms to a schema, except for random violations.
    pub(super) fn text(&self, schema: &Value, random: &mut Random, depth: usize) -> String {
        if random.below(WRONG_ONE_IN) == 0 || depth == DEPTH_MAX {
            return wrong(random);
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return self.text(&self.document["components"]["schemas"][name], random, depth);
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            if let Some(kinds) = schema[key].as_array() {
                return self.text(&kinds[random.below(kinds.len())], random, depth);
            }
        }
        if let Some(words) = schema["enum"].as_array() {
            return words[random.below(words.len())].to_string();
        }
        if schema["const"].is_string() {
            return schema["const"].to_string();
        }
        match kind(schema, random) {
            "object" => self.object(schema, random, depth),
            "array" => {
                let items: Vec<String> =
                    (0..random.below(3)).map(|_| self.text(&schema["items"], random, depth + 1)).collect();
                format!("[{}]", items.join(","))
            }
            "integer" => {
                (schema["minimum"].as_f64().unwrap_or(0.0) as i64 + random.below(4) as i64).to_string()
            }
            "number" => format!("{:.2}", random.below(100) as f64 / 100.0),
            "boolean" => (random.below(2) == 0).to_string(),
            "null" => "null".to_owned(),
            _ => Value::from(["hi", "user", "a", ""][random.below(4)]).to_string(),
        }
    }

    fn object(&self, schema: &Value, random: &mut Random, depth: usize) -> String {
        let nothing = Map::new();
        let fields = schema["properties"].as_object().unwrap_or(&nothing);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut texts = Vec::new();
        for (name, schema) in fields {
            // Answers are kept short, so that many requests can be sent.
            let is_length = name.contains("max_") || name.contains("predict");
            // A few of many settings, and most fields of a message or a tool.
            let is_there = random.below(if depth == 0 { 6 } else { 2 }) == 0;
            if is_length || required.contains(&name.as_str()) || is_there {
                texts.push(format!(
                    "{}:{}",
                    Value::from(name.as_str()),
                    self.text(schema, random, depth + 1)
                ));
            }
        }
        format!("{{{}}}", texts.join(","))
    }
}

/// A path with a name in place of each parameter.
fn named(path: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect::<Vec<_>>().join("/")
}

/// A random type that a schema allows.
fn kind<'a>(schema: &'a Value, random: &mut Random) -> &'a str {
    match &schema["type"] {
        Value::String(kind) => kind,
        Value::Array(kinds) if !kinds.is_empty() => {
            kinds[random.below(kinds.len())].as_str().unwrap_or("string")
        }
        _ => "string",
    }
}

/// A hostile value: nested deeply, at the end of a range, long, or of another type.
fn wrong(random: &mut Random) -> String {
    let nested = |open: &str, inner: &str, close: &str| open.repeat(NESTED) + inner + &close.repeat(NESTED);
    match random.below(16) {
        0 | 1 => nested("[", "", "]"),
        2 => nested("{\"a\":", "1", "}"),
        3 => nested("[{\"a\":", "0", "}]"),
        4 => u64::MAX.to_string(),
        5 => i64::MIN.to_string(),
        6 => "1e308".to_owned(),
        7 => "-1".to_owned(),
        8 => "1e-400".to_owned(),
        9 => "340282366920938463463374607431768211456".to_owned(),
        10 => format!("\"{}\"", "a ".repeat(20_000)),
        11 => "\"\\u0000\"".to_owned(),
        12 => format!("[{}]", vec!["0"; 5_000].join(",")),
        13 => "{}".to_owned(),
        14 => "[]".to_owned(),
        _ => "null".to_owned(),
    }
}
