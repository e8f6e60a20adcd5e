//! Writes calls in the form of a model, for the prompt's record of its earlier calls.

use serde_json::{Map, Value};

use super::form::{ArgumentsForm, ToolForm};

impl ToolForm {
    /// Formats calls, given as names and arguments, as the model writes them. Arguments that are a string are
    /// written verbatim if the form is JSON.
    pub fn write(&self, calls: &[(&str, Value)]) -> String {
        let calls: Vec<String> = calls.iter().map(|(name, arguments)| self.call(name, arguments)).collect();
        [&*self.opening, &calls.join(&self.separator), &self.closing].concat()
    }

    fn call(&self, name: &str, arguments: &Value) -> String {
        [&*self.begin, name, &self.middle, &self.arguments.write(arguments), &self.end].concat()
    }
}

impl ArgumentsForm {
    fn write(&self, arguments: &Value) -> String {
        if let (ArgumentsForm::Json, Value::String(text)) = (self, arguments) {
            return if text.trim().is_empty() { "{}".to_owned() } else { text.clone() };
        }
        let object = object(arguments);
        let entries = object.iter();
        match self {
            ArgumentsForm::Json => Value::Object(object).to_string(),
            ArgumentsForm::Parameters { key, value, end } => {
                entries.map(|(name, item)| [&**key, name, value, &plain(item), end].concat()).collect()
            }
            ArgumentsForm::Python => {
                let entries: Vec<String> =
                    entries.map(|(name, item)| format!("{name}={}", python(item))).collect();
                format!("({})", entries.join(", "))
            }
            ArgumentsForm::Dict { quote } => dict(&object, quote),
        }
    }
}

/// Arguments as an object, also if they were sent as JSON text.
fn object(arguments: &Value) -> Map<String, Value> {
    match arguments {
        Value::Object(object) => object.clone(),
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        _ => Map::new(),
    }
}

/// A string verbatim, everything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn python(value: &Value) -> String {
    let listed = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Array(items) => format!("[{}]", listed(items.iter().map(python).collect())),
        Value::Object(entries) => {
            let entry = |(key, item): (&String, &Value)| format!("{}: {}", Value::from(&**key), python(item));
            format!("{{{}}}", listed(entries.iter().map(entry).collect()))
        }
        // A string in JSON is also one in Python.
        other => other.to_string(),
    }
}

fn dict(entries: &Map<String, Value>, quote: &str) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(key, item)| format!("{key}:{}", dict_value(item, quote))).collect();
    format!("{{{}}}", entries.join(","))
}

fn dict_value(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => [quote, text, quote].concat(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| dict_value(item, quote)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(entries) => dict(entries, quote),
        other => other.to_string(),
    }
}
