//! The OpenAPI document: complete, valid, and equal to the routes.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{Server, document};
use crate::api::{dialects, route::Dialect};

const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

/// Paths with unusual bodies: Ollama's clients send a body with DELETE, and reload is a POST without one.
const UNUSUAL: [&str; 2] = ["/api/delete", "/v1/shelf/reload"];

/// Collects all values under a name, at any depth.
fn all<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            if key == name {
                found.push(value);
            }
            all(value, name, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| all(item, name, found)),
        _ => {}
    }
}

/// Returns the schema of an operation's JSON body.
fn body<'a>(document: &'a Value, path: &str, method: &str) -> &'a Value {
    &document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
}

#[tokio::test]
async fn the_document_is_openapi_in_structure() {
    let (status, document) = Server::saying("Hi!").get("/openapi.json").await;
    assert_eq!(status, 200);
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(path.starts_with('/') && !path.contains('*'), "{path}");
        let declared = item["parameters"].as_array().map_or(0, Vec::len);
        assert_eq!(declared, path.matches('{').count(), "{path}: its parameters are declared");
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            assert!(METHODS.contains(&method.as_str()), "{path} {method}");
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{path} {method}");
            let responses = operation["responses"].as_object().unwrap();
            // A route that always refuses has no other answer than the error.
            let refused = operation["summary"].as_str().is_some_and(|text| text.starts_with("Refused"));
            assert_eq!(responses.contains_key("200"), !refused, "{path} {method}");
            assert!(responses.contains_key("default"), "{path} {method}");
            assert!(responses.values().all(|response| response["description"].is_string()));
            let takes_body = !operation["requestBody"].is_null();
            let usual = ["post", "put"].contains(&method.as_str());
            assert_eq!(takes_body, usual != UNUSUAL.contains(&path.as_str()), "{path} {method}");
        }
    }
    let mut references = Vec::new();
    all(&document, "$ref", &mut references);
    assert!(references.len() > 10);
    for reference in references {
        let place = reference.as_str().unwrap().strip_prefix('#').unwrap();
        assert!(document.pointer(place).is_some(), "{reference} leads nowhere");
    }
}

#[tokio::test]
async fn every_operation_of_the_document_is_a_route() {
    let server = Server::saying("Hi!");
    let document = document::document(&dialects());
    let mut described = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = ["{name}", "{id}", "{item_id}", "{path}"]
            .iter()
            .fold(path.clone(), |path, parameter| path.replace(parameter, "x"));
        for method in METHODS {
            let response = server.send(&method.to_uppercase(), &path, "").await;
            let known = response.status() != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(known, item.get(method).is_some(), "{method} {path}: {}", response.status());
            described += usize::from(known);
        }
    }
    let of =
        |dialect: &Dialect| -> usize { dialect.listed().map(|(paths, list)| paths.len() * list.len()).sum() };
    assert_eq!(described, dialects().iter().map(of).sum::<usize>());
}

#[test]
fn bounds_defaults_and_choices_are_said() {
    let document = document::document(&dialects());
    let chat = body(&document, "/v1/chat/completions", "post");
    let check = |field: &str, name: &str, expect: Value| {
        assert_eq!(chat["properties"][field][name], expect, "{field}: {}", chat["properties"][field]);
    };
    check("temperature", "minimum", json!(0.0));
    // The default is the model's.
    check("temperature", "default", Value::Null);
    check("top_p", "maximum", json!(1.0));
    check("n", "maximum", json!(64));
    check("n", "default", json!(1));
    check("stream", "default", json!(false));
    check("top_logprobs", "maximum", json!(20));
    assert!(chat["required"].as_array().unwrap().contains(&json!("messages")));
    assert!(
        document["components"]["schemas"]["Effort"]["enum"].as_array().unwrap().contains(&json!("minimal"))
    );
    let llama = body(&document, "/completion", "post");
    assert!(llama["properties"]["temperature"].get("minimum").is_none());
    assert_eq!(document["components"]["schemas"]["KvikFields"]["additionalProperties"], false);
}

/// Described fields are read: each field refuses at least one of two invalid values, or says that it is a hint which is
/// not understood.
#[tokio::test]
async fn every_field_of_a_schema_is_read() {
    let server = Server::saying("Hi!");
    let document = document::document(&dialects());
    for path in ["/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"] {
        for name in body(&document, path, "post")["properties"].as_object().unwrap().keys() {
            let mut refused = false;
            for odd in [json!({"type": 5, "odd": [1]}), json!(-12345.5)] {
                let mut asked = super::with(super::hello(), json!({"prompt": "a", "content": "a"}));
                asked[name] = odd;
                let (status, answer) = server.post(path, asked).await;
                let ignored = format!("`{name}` is a hint that is not understood");
                refused |= status == 400 || answer["kvik"]["notes"].to_string().contains(&ignored);
            }
            assert!(refused, "{path}: `{name}` is described and not read");
        }
    }
}

/// A schema name stands for one type: request and answer types are described separately.
#[test]
fn schemas_of_bodies_and_answers_do_not_share_a_name() {
    let document = document::document(&dialects());
    let (mut read, mut sent) = (Vec::new(), Vec::new());
    for operation in
        document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap())
    {
        named(&document, &operation.1["requestBody"], &mut read);
        named(&document, &operation.1["responses"], &mut sent);
    }
    assert!(read.len() > 10 && sent.len() > 60, "{} {}", read.len(), sent.len());
    let shared: Vec<&String> = read.iter().filter(|name| sent.contains(name)).collect();
    assert!(shared.is_empty(), "{shared:?}");
}

/// Collects the names of the schemas that a part of the document refers to.
fn named(document: &Value, part: &Value, names: &mut Vec<String>) {
    let mut references = Vec::new();
    all(part, "$ref", &mut references);
    for reference in references {
        let name = reference.as_str().unwrap().strip_prefix("#/components/schemas/").unwrap().to_owned();
        if !names.contains(&name) {
            names.push(name.clone());
            named(document, &document["components"]["schemas"][&name], names);
        }
    }
}
