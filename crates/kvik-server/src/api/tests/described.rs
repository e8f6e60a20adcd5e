//! Checks every answer of every route test against the OpenAPI document.
//!
//! [`check`] wraps the router in tests, so that no request bypasses it: the body of each response is checked
//! against the schema published for its route, method, status and media type. Objects must have no fields
//! that the schema does not name, although clients must accept additional ones.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request},
    http::{StatusCode, header},
    middleware::Next,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};

use crate::{
    api::{dialects, tests::document},
    page,
};

pub(super) static DOCUMENT: LazyLock<Value> = LazyLock::new(|| document::document(&dialects()));

/// Checks the router's answer against the document.
pub(in crate::api) async fn check(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().replace("{*", "{"));
    let method = request.method().as_str().to_lowercase();
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
    let sent = Sent { path, method, status: response.status(), kind };
    response.map(|body| Body::new(Watched { body, seen: Vec::new(), sent: Some(sent) }))
}

/// Route, method, status and media type of an answer.
#[derive(Debug)]
struct Sent {
    /// None if there is no such route.
    path: Option<String>,
    method: String,
    status: StatusCode,
    kind: String,
}

/// A body that is checked when its last byte has been read.
struct Watched {
    body: Body,
    seen: Vec<u8>,
    sent: Option<Sent>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().cloned().unwrap_or_default();
            self.seen.extend_from_slice(&bytes);
        }
        if frame.is_none() || self.body.is_end_stream() {
            let seen = std::mem::take(&mut self.seen);
            if let Some(sent) = self.sent.take().filter(|_| !seen.is_empty()) {
                sent.check(&String::from_utf8_lossy(&seen));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Sent {
    fn check(&self, body: &str) {
        let schema = match self.schema() {
            Ok(schema) => schema,
            Err(error) => panic!("{self:?}: {error}: {body}"),
        };
        let check = |text: &str| {
            let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{self:?}: {text}"));
            if let Err(error) = conforms(&DOCUMENT, schema, &value) {
                panic!("{self:?}: {error}: {value}");
            }
        };
        match self.kind.as_str() {
            "application/json" if !self.is_file() => check(body),
            "application/x-ndjson" => body.lines().for_each(check),
            "text/event-stream" => {
                let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
                data.filter(|data| *data != "[DONE]").for_each(check);
            }
            _ => assert_eq!(schema["type"], "string", "{self:?}"),
        }
    }

    /// Returns the schema published for this route, method, status and media type.
    fn schema(&self) -> Result<&'static Value, String> {
        let item = self.path.as_ref().map_or(&Value::Null, |path| &DOCUMENT["paths"][path]);
        let operation = &item[&self.method];
        if operation.is_null() {
            return self.refusal(item);
        }
        let status = self.status.as_str();
        let response = &operation["responses"][status];
        let usual = &operation["responses"]["default"];
        let described = match (response.is_null(), self.status.is_success()) {
            (true, true) => return Err(format!("{status} is not described")),
            (true, false) => usual,
            (false, _) => response,
        };
        let kind = described["content"].get(&self.kind);
        kind.map(|kind| &kind["schema"]).ok_or_else(|| format!("{} is not described", self.kind))
    }

    /// Returns the error schema: OpenAI's for an unknown route, the dialect's for a wrong method of a known
    /// one.
    fn refusal(&self, item: &'static Value) -> Result<&'static Value, String> {
        static ERROR: LazyLock<Value> = LazyLock::new(|| json!({"$ref": "#/components/schemas/Error"}));
        if !self.status.is_client_error() {
            return Err("is not described".to_owned());
        }
        let errors = item.as_object().into_iter().flatten();
        let mut errors = errors
            .filter_map(|(_, other)| other.pointer("/responses/default/content/application~1json/schema"));
        Ok(errors.next_back().unwrap_or(&ERROR))
    }

    /// True for a file of the web page, which is sent as it is.
    fn is_file(&self) -> bool {
        let is_files = self.path.as_ref().is_some_and(|path| *path == page::FILES.replace("{*", "{"));
        is_files && self.status.is_success()
    }
}

/// Keywords that do not constrain a value, or only its numeric format.
const SILENT: [&str; 5] = ["description", "title", "default", "format", "deprecated"];

/// Checks that a value conforms to a schema of a document, and has no field that the schema does not name.
///
/// # Errors
/// If it does not conform, with the place.
pub(super) fn conforms(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let named = evaluate(document, schema, value)?;
    let Value::Object(fields) = value else { return Ok(()) };
    match fields.keys().find(|name| !named.contains(*name)) {
        Some(name) => Err(format!("`{name}` is not described")),
        None => Ok(()),
    }
}

/// Returns the names of the fields that the schema describes, if the value conforms.
fn evaluate(document: &Value, schema: &Value, value: &Value) -> Result<BTreeSet<String>, String> {
    let mut named = BTreeSet::new();
    let keywords = schema.as_object().ok_or_else(|| format!("{schema} describes anything"));
    let Ok(keywords) = keywords else {
        // `true`: another test checks where this is allowed.
        named.extend(value.as_object().into_iter().flatten().map(|(name, _)| name.clone()));
        return if schema == &json!(true) { Ok(named) } else { Err(format!("{schema} is no schema")) };
    };
    if keywords.keys().all(|name| SILENT.contains(&name.as_str())) {
        named.extend(value.as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    }
    for (keyword, said) in keywords {
        match keyword.as_str() {
            "$ref" if said == CHOSEN => named.extend(chosen(document, value)?),
            "$ref" => {
                let place = said.as_str().and_then(|place| place.strip_prefix('#')).unwrap_or_default();
                let schema = document.pointer(place).ok_or_else(|| format!("{said} leads nowhere"))?;
                named.extend(evaluate(document, schema, value)?);
            }
            "anyOf" | "oneOf" => named.extend(one_of(document, said, value)?),
            "allOf" => {
                for schema in said.as_array().into_iter().flatten() {
                    named.extend(evaluate(document, schema, value)?);
                }
            }
            "properties" | "additionalProperties" | "required" => {
                named.extend(fields(document, keywords, value)?);
            }
            "items" | "prefixItems" | "minItems" | "maxItems" => items(document, keywords, value)?,
            "type" if !is_of_type(said, value) => return Err(format!("{value} is not {said}")),
            "const" if said != value => return Err(format!("{value} is not {said}")),
            "enum" if !said.as_array().is_some_and(|all| all.contains(value)) => {
                return Err(format!("{value} is none of {said}"));
            }
            "minimum" if value.is_number() && value.as_f64() < said.as_f64() => {
                return Err(format!("{value} is below {said}"));
            }
            "maximum" if value.is_number() && value.as_f64() > said.as_f64() => {
                return Err(format!("{value} is above {said}"));
            }
            "type" | "const" | "enum" | "minimum" | "maximum" => {}
            keyword => assert!(SILENT.contains(&keyword), "no test knows `{keyword}`"),
        }
    }
    Ok(named)
}

/// The schema for the fields that `response_fields` of llama-server's routes names, and the schema that they
/// are selected from.
const CHOSEN: &str = "#/components/schemas/LlamaChosen";
const CHOSEN_FROM: &str = "/components/schemas/LlamaCompletion";

/// Checks an object whose field names are paths in an answer and whose values are the values at these paths.
fn chosen(document: &Value, value: &Value) -> Result<BTreeSet<String>, String> {
    let object = value.as_object().ok_or_else(|| format!("{value} is no object"))?;
    for (path, field) in object {
        let all = document.pointer(CHOSEN_FROM);
        let schema = path.split('/').try_fold(all, |schema, name| Some(field_of(document, schema?, name)));
        let schema = schema.flatten().ok_or_else(|| format!("`{path}` is not described"))?;
        conforms(document, schema, field).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(object.keys().cloned().collect())
}

/// Returns the schema of a field of an object with this schema.
fn field_of<'a>(document: &'a Value, schema: &'a Value, name: &str) -> Option<&'a Value> {
    let referred = schema["$ref"].as_str().and_then(|place| document.pointer(place.strip_prefix('#')?));
    let parts =
        ["anyOf", "oneOf", "allOf"].iter().filter_map(|keyword| schema[*keyword].as_array()).flatten();
    let mut others = referred.into_iter().chain(parts);
    schema["properties"].get(name).or_else(|| others.find_map(|part| field_of(document, part, name)))
}

fn one_of(document: &Value, schemas: &Value, value: &Value) -> Result<BTreeSet<String>, String> {
    let (mut named, mut faults, mut fits) = (BTreeSet::new(), Vec::new(), false);
    for schema in schemas.as_array().into_iter().flatten() {
        match evaluate(document, schema, value) {
            Ok(more) => {
                fits = true;
                named.extend(more);
            }
            Err(fault) => faults.push(fault),
        }
    }
    if fits { Ok(named) } else { Err(format!("none fits: {}", faults.join("; "))) }
}

fn fields(
    document: &Value,
    keywords: &serde_json::Map<String, Value>,
    value: &Value,
) -> Result<BTreeSet<String>, String> {
    let Value::Object(object) = value else { return Ok(BTreeSet::new()) };
    let required = keywords.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if !object.contains_key(name) {
            return Err(format!("`{name}` is missing"));
        }
    }
    let mut named = BTreeSet::new();
    for (name, field) in object {
        let own = keywords.get("properties").and_then(|fields| fields.get(name));
        let Some(schema) = own.or(keywords.get("additionalProperties")) else { continue };
        if schema == &json!(false) {
            return Err(format!("`{name}` must not be there"));
        }
        conforms(document, schema, field).map_err(|error| format!("{name}: {error}"))?;
        named.insert(name.clone());
    }
    Ok(named)
}

fn items(document: &Value, keywords: &serde_json::Map<String, Value>, value: &Value) -> Result<(), String> {
    let Value::Array(items) = value else { return Ok(()) };
    let bound = |name: &str, usual: u64| keywords.get(name).and_then(Value::as_u64).unwrap_or(usual);
    let (least, most) = (bound("minItems", 0), bound("maxItems", u64::MAX));
    if !(least..=most).contains(&(items.len() as u64)) {
        return Err(format!("{} items are not {least} to {most}", items.len()));
    }
    for (index, item) in items.iter().enumerate() {
        let own = keywords.get("prefixItems").and_then(|schemas| schemas.get(index));
        let Some(schema) = own.or(keywords.get("items")) else { continue };
        conforms(document, schema, item).map_err(|error| format!("[{index}]: {error}"))?;
    }
    Ok(())
}

fn is_of_type(said: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        // A number without a fraction, in any notation.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        name => panic!("no test knows the type `{name}`"),
    };
    match said {
        Value::Array(names) => names.iter().any(is),
        name => is(name),
    }
}

#[test]
fn what_does_not_conform_is_seen() {
    let document = json!({"components": {"schemas": {
        "Pair": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    }}});
    let pair = json!({"$ref": "#/components/schemas/Pair"});
    let both = json!({"allOf": [pair], "properties": {"b": {"enum": ["x", "y"]}}});
    let either = json!({"anyOf": [{"type": "null"}, pair, {"type": "array", "items": pair, "minItems": 2}]});
    let map = json!({"type": "object", "additionalProperties": {"type": ["number", "null"]}});
    let check = |schema: &Value, value: Value, fits: bool| {
        let found = conforms(&document, schema, &value);
        assert_eq!(found.is_ok(), fits, "{schema} {value} {found:?}");
    };
    check(&pair, json!({"a": 1}), true);
    check(&pair, json!({"a": 1.0}), true);
    check(&pair, json!({"a": 1.5}), false);
    check(&pair, json!({}), false);
    check(&pair, json!({"a": 1, "more": 1}), false);
    check(&pair, json!([]), false);
    check(&both, json!({"a": 1, "b": "x"}), true);
    check(&both, json!({"a": 1, "b": "z"}), false);
    check(&either, json!(null), true);
    check(&either, json!([{"a": 1}, {"a": 2}]), true);
    check(&either, json!([{"a": 1}]), false);
    check(&either, json!([{"a": 1}, {"a": 2, "c": 3}]), false);
    check(&either, json!({"a": 1, "c": 3}), false);
    check(&map, json!({"x": 1.5, "y": null}), true);
    check(&map, json!({"x": "1"}), false);
    check(&json!({"const": "x"}), json!("y"), false);
    check(&json!({"type": "number", "minimum": 0}), json!(-1), false);
}

#[test]
#[should_panic(expected = "status: ")]
fn an_answer_that_does_not_conform_fails_its_test() {
    let sent = |kind: &str| Sent {
        path: Some("/health".to_owned()),
        method: "get".to_owned(),
        status: StatusCode::OK,
        kind: kind.to_owned(),
    };
    sent("application/json").check(r#"{"status": "ok"}"#);
    assert!(sent("text/html").schema().is_err(), "a media type that is not described");
    sent("application/json").check(r#"{"status": "fine"}"#);
}
