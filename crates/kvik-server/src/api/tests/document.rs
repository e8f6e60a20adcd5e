//! Generation of the OpenAPI 3.1 document from the route table and the types of bodies and answers;
//! `openapi.json` must match it.

#[cfg(test)]
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::api::{
    dialects, openapi,
    route::{Answer, Dialect, Errors, Frames, Operation},
};

/// Schema generators: a type is described as it is deserialised or as it is serialised.
struct Schemas {
    read: SchemaGenerator,
    sent: SchemaGenerator,
}

/// Generates the document.
pub(super) fn document(dialects: &[Dialect]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let sent = settings.clone().for_serialize().into_generator();
    let mut schemas = Schemas { read: settings.into_generator(), sent };
    let mut paths = Map::new();
    for dialect in dialects {
        for (paths_of, listed) in dialect.listed() {
            for path in paths_of {
                paths.insert(path.replace("{*", "{"), operations(&mut schemas, dialect, listed, path));
            }
        }
    }
    let mut named = schemas.read.take_definitions(true);
    named.extend(schemas.sent.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "kvik",
            "description": "A local LLM server whose centre is the KV cache. Fields that a schema does not name are ignored, and null counts as absent.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        // A server that was started without keys requires none.
        "security": [{"bearer": []}, {"key": []}, {}],
    })
}

fn operations(schemas: &mut Schemas, dialect: &Dialect, listed: &[Operation], path: &str) -> Value {
    let mut operations = Map::new();
    let parameter =
        |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let parameters: Vec<Value> = parameters(path).map(parameter).collect();
    if !parameters.is_empty() {
        operations.insert("parameters".to_owned(), Value::Array(parameters));
    }
    for operation in listed {
        operations.insert(operation.method.to_owned(), described(schemas, dialect, operation));
    }
    Value::Object(operations)
}

/// Returns the names of a path's variable segments.
fn parameters(path: &str) -> impl Iterator<Item = &str> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    names.map(|(name, _)| name.trim_start_matches('*'))
}

fn described(schemas: &mut Schemas, dialect: &Dialect, operation: &Operation) -> Value {
    let mut described = json!({
        "tags": [dialect.name],
        "summary": operation.summary,
        "responses": responses(schemas, dialect.errors, operation),
    });
    if let Some(body) = operation.body {
        let content = json!({"application/json": {"schema": (body.schema)(&mut schemas.read)}});
        described["requestBody"] = json!({"required": true, "content": content});
    }
    if !operation.query.is_empty() {
        let parameter = |(name, meaning): &(&str, &str)| json!({"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}});
        described["parameters"] = operation.query.iter().map(parameter).collect();
    }
    described
}

/// Returns the responses by status; the default covers every status that is not listed.
fn responses(schemas: &mut Schemas, errors: Errors, operation: &Operation) -> Value {
    let mut responses = Map::new();
    let content = content(schemas, errors, operation);
    if !content.is_empty() {
        responses.insert("200".to_owned(), json!({"description": operation.summary, "content": content}));
    }
    let usual = Value::from((errors.schema.schema)(&mut schemas.sent));
    for (status, schema) in operation.others {
        let either = json!({"anyOf": [(schema.schema)(&mut schemas.sent), usual]});
        responses
            .insert((*status).to_owned(), refusal("What is wrong, or what else there is to say", &either));
    }
    let description = "What is wrong, at which field, and under which code";
    responses.insert("default".to_owned(), refusal(description, &usual));
    Value::Object(responses)
}

fn refusal(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

/// Returns the body schemas of an answer by media type; for streams, the schema of one event's data or of a
/// line.
fn content(schemas: &mut Schemas, errors: Errors, operation: &Operation) -> Map<String, Value> {
    let mut content = Map::new();
    let mut is = |kind: &str, schema: Value| drop(content.insert(kind.to_owned(), json!({"schema": schema})));
    let string = || json!({"type": "string"});
    match operation.answer {
        Answer::Json(schema) => is("application/json", (schema.schema)(&mut schemas.sent).into()),
        Answer::Text(kinds) => kinds.iter().for_each(|kind| is(kind, string())),
        Answer::JsonOrText(schema, kind) => {
            is("application/json", (schema.schema)(&mut schemas.sent).into());
            is(kind, string());
        }
        Answer::Refusal => {}
    }
    if let Some(Frames { media_type, schema, ends_with_error }) = operation.stream {
        let frame = (schema.schema)(&mut schemas.sent);
        let schema = match ends_with_error {
            true => json!({"anyOf": [frame, (errors.schema.schema)(&mut schemas.sent)]}),
            false => frame.into(),
        };
        is(media_type, schema);
    }
    content
}

/// Serialises the document as it is checked in: one line per path and per schema, so that a change of one is
/// visible as such.
fn written(document: &Value) -> String {
    let mut text = String::new();
    write_fields(document, &["paths", "components", "schemas"], &mut text);
    text.push('\n');
    text
}

/// Writes an object with one line per field, recursively for the fields named in `split`.
fn write_fields(value: &Value, split: &[&str], text: &mut String) {
    text.push('{');
    for (i, (name, value)) in value.as_object().into_iter().flatten().enumerate() {
        text.push_str(if i == 0 { "\n" } else { ",\n" });
        text.push_str(&format!("{}: ", json!(name)));
        match split.contains(&name.as_str()) {
            true => write_fields(value, split, text),
            false => text.push_str(&value.to_string()),
        }
    }
    text.push_str("\n}");
}

#[test]
fn the_document_that_is_checked_in_is_made_from_the_types() {
    let made = document(&dialects());
    let text = written(&made);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), made, "lines change nothing");
    if std::env::var_os("KVIK_WRITE_OPENAPI").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/openapi.json");
        std::fs::write(file, &text).unwrap();
        return;
    }
    // Not `assert_eq!`, which would print both.
    assert!(
        text == openapi::DOCUMENT,
        "KVIK_WRITE_OPENAPI=1 cargo test -p kvik-server --lib document writes it again"
    );
}
