//! The document of all routes in OpenAPI 3.1, made from the table of routes and the types of their bodies.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::route::{Answer, Dialect, Operation, Route};

/// The document.
pub(super) fn document(dialects: &[Dialect]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for dialect in dialects {
        for route in &dialect.routes {
            for path in route.paths {
                paths.insert(path.replace("{*", "{"), operations(&mut generator, dialect.name, route, path));
            }
        }
    }
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
            "schemas": generator.take_definitions(true),
            "responses": {"Error": error()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        // A server that was started without keys wants none.
        "security": [{"bearer": []}, {"key": []}, {}],
    })
}

fn operations(generator: &mut SchemaGenerator, dialect: &str, route: &Route, path: &str) -> Value {
    let mut operations = Map::new();
    if let Some(name) = parameter(path) {
        let parameter = json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
        operations.insert("parameters".to_owned(), json!([parameter]));
    }
    for operation in &route.operations {
        operations.insert(operation.method.to_owned(), described(generator, dialect, operation));
    }
    Value::Object(operations)
}

/// The name of the part of a path that varies.
fn parameter(path: &str) -> Option<&str> {
    let (_, rest) = path.split_once('{')?;
    rest.split_once('}').map(|(name, _)| name.trim_start_matches('*'))
}

fn described(generator: &mut SchemaGenerator, dialect: &str, operation: &Operation) -> Value {
    let mut described = json!({
        "tags": [dialect],
        "summary": operation.summary,
        "responses": {
            "200": {"description": operation.summary, "content": content(operation)},
            "default": {"$ref": "#/components/responses/Error"},
        },
    });
    if let Some(body) = operation.body {
        let content = json!({"application/json": {"schema": body(generator)}});
        described["requestBody"] = json!({"required": true, "content": content});
    }
    if !operation.query.is_empty() {
        let parameter = |(name, meaning): &(&str, &str)| json!({"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}});
        described["parameters"] = operation.query.iter().map(parameter).collect();
    }
    described
}

fn content(operation: &Operation) -> Value {
    let mut content = match operation.answer {
        Answer::Json(schema) => json!({"application/json": {"schema": schema()}}),
        Answer::Text(kinds) => {
            let string = |kind: &&str| ((*kind).to_owned(), json!({"schema": {"type": "string"}}));
            Value::Object(kinds.iter().map(string).collect())
        }
    };
    if operation.streams {
        let description = "Events whose data is JSON, one for each piece of the answer";
        content["text/event-stream"] = json!({"schema": {"type": "string", "description": description}});
    }
    content
}

fn error() -> Value {
    let fields = json!({
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"], "description": "Path of the field, as `messages[2].role`"},
        "code": {"type": ["string", "integer", "null"]},
    });
    let error = json!({"type": "object", "properties": fields, "required": ["message", "type"]});
    let schema = json!({"type": "object", "properties": {"error": error}, "required": ["error"]});
    json!({
        "description": "What is wrong, at which field, and under which code",
        "content": {"application/json": {"schema": schema}},
    })
}
