//! Fields that constrain the format of an answer; a request has at most one of them.

use kvik_engine::api::Constraint;
use kvik_text::constraint::{
    REGEX_BYTES_MAX, gbnf,
    schema::{Strictness, normalise},
};
use serde::Deserialize;
use serde_json::Value;

use super::parts::Part;
use crate::{
    described::JsonSchema,
    http::{error::ApiError, json::Json},
};

type Result<T> = std::result::Result<T, ApiError>;

/// What the answer must look like: at most one of these.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ConstraintFields {
    response_format: Option<ResponseFormat>,
    /// JSON of this schema; llama-server's.
    #[schemars(schema_with = "any_schema")]
    json_schema: Option<Json>,
    /// A grammar in GBNF; llama-server's. One that begins with `start:`, `?start:` or `%llguidance` is read as Lark.
    grammar: Option<String>,
    /// A Lark grammar, as llguidance reads it.
    grammar_lark: Option<String>,
    /// A regular expression for the whole answer.
    regex: Option<String>,
    structured_outputs: Option<StructuredOutputs>,
    /// JSON of this schema, or of the text of one; vLLM's earlier form.
    #[schemars(schema_with = "any_schema")]
    guided_json: Option<Json>,
    /// A regular expression; vLLM's earlier form.
    guided_regex: Option<String>,
    /// One of these texts; vLLM's earlier form.
    guided_choice: Option<Vec<String>>,
    /// A grammar in GBNF, as in `grammar`, or in Lark; vLLM's earlier form.
    guided_grammar: Option<String>,
}

impl Part for ConstraintFields {}

/// OpenAI's form of a constraint.
#[derive(Debug, Deserialize, JsonSchema)]
struct ResponseFormat {
    #[serde(default)]
    r#type: FormatKind,
    /// llama-server's: of `json_object`, and of `json_schema` without a field of that name.
    #[schemars(schema_with = "any_schema")]
    schema: Option<Json>,
    /// Of `json_schema`.
    json_schema: Option<NamedSchema>,
}

/// vLLM's form of a constraint: at most one of its fields.
#[derive(Debug, Deserialize, JsonSchema)]
struct StructuredOutputs {
    /// JSON of this schema, or of the text of one.
    #[schemars(schema_with = "any_schema")]
    json: Option<Json>,
    /// A regular expression for the whole answer.
    regex: Option<String>,
    /// One of these texts.
    choice: Option<Vec<String>>,
    /// A grammar in GBNF, or in Lark as in `grammar`.
    grammar: Option<String>,
    /// Any JSON object.
    #[serde(default)]
    json_object: bool,
    /// Refused unless it is empty: use `grammar`.
    #[schemars(schema_with = "any_schema")]
    structural_tag: Option<Json>,
    /// Refused unless it is empty: use `grammar`.
    #[schemars(schema_with = "any_schema")]
    whitespace_pattern: Option<Json>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    #[default]
    Text,
    JsonObject,
    JsonSchema,
}

/// A schema and how strictly it is read.
#[derive(Debug, Deserialize, JsonSchema)]
struct NamedSchema {
    /// Not read: it is for people.
    #[serde(rename = "name")]
    _name: Option<String>,
    /// Not read, likewise.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Refuse keywords that OpenAI refuses.
    #[serde(default)]
    strict: bool,
    #[schemars(schema_with = "any_schema")]
    schema: Json,
}

/// Schema of a field that holds a JSON schema.
#[cfg(test)]
fn any_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": ["object", "boolean", "string", "null"]})
}

impl ConstraintFields {
    /// Returns the constraint, if there is one; adds schema features that are not enforced to `notes`.
    pub(super) fn constraint(self, notes: &mut Vec<String>) -> Result<Option<Constraint>> {
        let structured = self.structured_outputs.map(|outputs| outputs.found(notes)).transpose()?;
        let json_schema = |json: Json| read_schema("json_schema", &json.0, Strictness::Lenient, notes);
        let json_schema = self.json_schema.map(json_schema).transpose()?;
        let guided_json = self.guided_json.map(|json| guided_json("guided_json", json, notes)).transpose()?;
        let found = [
            ("response_format", self.response_format.map_or(Ok(None), |format| format.constraint(notes))?),
            ("json_schema", json_schema),
            ("grammar", self.grammar.map_or(Ok(None), |text| grammar("grammar", text))?),
            ("grammar_lark", lark("grammar_lark", self.grammar_lark)?),
            ("guided_grammar", self.guided_grammar.map_or(Ok(None), guided_grammar)?),
            ("regex", regex(self.regex)),
            ("guided_json", guided_json),
            ("guided_regex", regex(self.guided_regex)),
            ("guided_choice", self.guided_choice.map(|texts| one_of("guided_choice", texts)).transpose()?),
        ];
        only_one(found.into_iter().chain(structured.into_iter().flatten()))
    }
}

impl StructuredOutputs {
    /// Returns the constraint of each field, by its path; adds schema features that are not enforced to `notes`.
    fn found(self, notes: &mut Vec<String>) -> Result<[(&'static str, Option<Constraint>); 5]> {
        const JSON: &str = "structured_outputs.json";
        const REGEX: &str = "structured_outputs.regex";
        const CHOICE: &str = "structured_outputs.choice";
        const GRAMMAR: &str = "structured_outputs.grammar";
        const JSON_OBJECT: &str = "structured_outputs.json_object";
        refuse_unless_empty("structured_outputs.structural_tag", self.structural_tag)?;
        refuse_unless_empty("structured_outputs.whitespace_pattern", self.whitespace_pattern)?;
        Ok([
            (JSON, self.json.map(|json| guided_json(JSON, json, notes)).transpose()?),
            (REGEX, regex(self.regex)),
            (CHOICE, self.choice.map(|texts| one_of(CHOICE, texts)).transpose()?),
            (GRAMMAR, self.grammar.map_or(Ok(None), |text| grammar(GRAMMAR, text))?),
            (JSON_OBJECT, self.json_object.then_some(Constraint::JsonObject)),
        ])
    }
}

/// Refuses a field of `structured_outputs` as `structural_tag` and `guided_whitespace_pattern` are refused in a body.
fn refuse_unless_empty(path: &str, value: Option<Json>) -> Result<()> {
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value.filter(|Json(value)| !is_empty(value)) {
        None => Ok(()),
        Some(_) => {
            Err(ApiError::field(path, format!("`{path}` is not supported with this value: use `grammar`")))
        }
    }
}

fn only_one(found: impl Iterator<Item = (&'static str, Option<Constraint>)>) -> Result<Option<Constraint>> {
    let mut constraint = None;
    for (name, value) in found {
        let Some(value) = value else { continue };
        if let Some((earlier, _)) = constraint {
            let message = format!("`{name}` and `{earlier}` both constrain the answer; send one of them");
            return Err(ApiError::field(name, message));
        }
        constraint = Some((name, value));
    }
    Ok(constraint.map(|(_, constraint)| constraint))
}

impl ResponseFormat {
    fn constraint(self, notes: &mut Vec<String>) -> Result<Option<Constraint>> {
        const SCHEMA: &str = "response_format.json_schema";
        match self.r#type {
            FormatKind::Text => Ok(None),
            FormatKind::JsonObject => match self.schema {
                Some(Json(schema)) => {
                    read_schema("response_format.schema", &schema, Strictness::Lenient, notes).map(Some)
                }
                None => Ok(Some(Constraint::JsonObject)),
            },
            FormatKind::JsonSchema => match (self.json_schema, self.schema) {
                (Some(NamedSchema { strict, schema, .. }), _) => {
                    let strictness = if strict { Strictness::Strict } else { Strictness::Lenient };
                    read_schema(&format!("{SCHEMA}.schema"), &schema.0, strictness, notes).map(Some)
                }
                (None, Some(Json(schema))) => {
                    read_schema("response_format.schema", &schema, Strictness::Lenient, notes).map(Some)
                }
                (None, None) => Err(ApiError::field(SCHEMA, format!("`{SCHEMA}` is missing"))),
            },
        }
    }
}

/// Reads vLLM's field: a schema as an object or as its text.
fn guided_json(path: &str, schema: Json, notes: &mut Vec<String>) -> Result<Constraint> {
    let Json(schema) = match schema {
        Json(Value::String(text)) => {
            Json::parse(&text).map_err(|error| ApiError::field(path, format!("`{path}` {error}")))?
        }
        schema => schema,
    };
    read_schema(path, &schema, Strictness::Lenient, notes)
}

/// Constrains the answer to one of the texts of the field `path`.
fn one_of(path: &str, choices: Vec<String>) -> Result<Constraint> {
    if choices.is_empty() {
        return Err(ApiError::field(path, format!("`{path}` is empty; send at least one text")));
    }
    let escaped = |text: &String| {
        let escaped = |c: char| if c.is_ascii_punctuation() { vec!['\\', c] } else { vec![c] };
        text.chars().flat_map(escaped).collect::<String>()
    };
    let choices: Vec<String> = choices.iter().map(escaped).collect();
    let regex = format!("(?:{})", choices.join("|"));
    if regex.len() > REGEX_BYTES_MAX {
        let message = format!(
            "`{path}` holds texts that take {} bytes as an expression, the limit is {REGEX_BYTES_MAX}; send fewer or shorter ones",
            regex.len()
        );
        return Err(ApiError::field(path, message));
    }
    Ok(Constraint::Regex(regex))
}

/// Reads the schema at `path` and normalises it to what can be enforced.
pub(crate) fn read_schema(
    path: &str,
    schema: &Value,
    strictness: Strictness,
    notes: &mut Vec<String>,
) -> Result<Constraint> {
    let normal = normalise(schema, strictness).map_err(|error| {
        let place = placed(path, &error.path);
        ApiError::field(&place, format!("`{place}` {}", error.message))
    })?;
    notes.extend(normal.notes);
    Ok(Constraint::JsonSchema(normal.schema))
}

/// Returns the place in the body of what begins with a path in the schema of the field `path`: there `$` stands for the
/// field.
pub(super) fn placed(path: &str, in_schema: &str) -> String {
    match in_schema.strip_prefix('$') {
        Some(rest) => format!("{path}{rest}"),
        None => format!("{path}: {in_schema}"),
    }
}

/// Reads a field with a grammar in GBNF. Earlier versions took Lark here, which is still read.
fn grammar(path: &str, text: String) -> Result<Option<Constraint>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    if is_lark(&text) {
        return Ok(Some(Constraint::Lark(text)));
    }
    let lark = gbnf::to_lark(&text).map_err(|error| {
        let hint = match text.contains("::=") {
            true => "",
            false => "; Lark goes into `grammar_lark`",
        };
        ApiError::field(path, format!("`{path}` is no GBNF that kvik reads: {error}{hint}"))
    })?;
    Ok(Some(Constraint::Lark(lark)))
}

/// True if a grammar begins like Lark, after blank lines and comments.
fn is_lark(text: &str) -> bool {
    let is_said = |line: &&str| !line.is_empty() && !line.starts_with("//") && !line.starts_with('#');
    let first = text.lines().map(str::trim).find(is_said).unwrap_or_default();
    // Lark marks rules with `?` and `!`, which say what its trees have of them, and nothing of their texts.
    let start = first.trim_start_matches(['!', '?']).strip_prefix("start").map(str::trim_start);
    first.starts_with('%') || start.is_some_and(|rest| rest.starts_with(':') && !rest.starts_with("::="))
}

/// Returns the constraint; an empty expression counts as absent, like an empty grammar.
fn regex(text: Option<String>) -> Option<Constraint> {
    text.filter(|text| !text.is_empty()).map(Constraint::Regex)
}

/// Reads vLLM's earlier field: GBNF, whose rules alone have `::=`, or Lark however it begins.
fn guided_grammar(text: String) -> Result<Option<Constraint>> {
    const FIELD: &str = "guided_grammar";
    if text.contains("::=") { grammar(FIELD, text) } else { lark(FIELD, Some(text)) }
}

/// Reads a field with a Lark grammar.
fn lark(name: &str, text: Option<String>) -> Result<Option<Constraint>> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    if text.contains("::=") {
        let message = format!("`{name}` looks like GBNF (`::=`) and takes Lark; send it as `grammar`");
        return Err(ApiError::field(name, message));
    }
    Ok(Some(Constraint::Lark(text)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::request::generation::tests::{param, read};

    #[test]
    fn what_a_schema_wants_and_cannot_have_is_noted_or_refused() {
        let format = |strict: bool, schema: Value| {
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "x", "strict": strict, "schema": schema}}})
        };
        let secret = json!({"type": "object", "properties": {"x": {"type": "string", "format": "password"}}});
        for body in
            [format(false, secret.clone()), format(true, secret.clone()), json!({"json_schema": secret})]
        {
            let options = read(body).unwrap();
            assert_eq!(options.schema_notes.len(), 1, "{:?}", options.schema_notes);
            assert!(options.schema_notes[0].starts_with("$.properties.x.format: "));
            let Some(Constraint::JsonSchema(schema)) = options.constraint else { panic!("no schema") };
            assert_eq!(schema["additionalProperties"], json!(false));
        }
        let unequal = json!({"type": "object", "properties": {"x": {"not": {"type": "string"}}}});
        assert!(read(format(false, unequal.clone())).is_ok());
        assert_eq!(param(format(true, unequal)), "response_format.json_schema.schema.properties.x.not");
        assert_eq!(param(json!({"json_schema": {"type": "nonsense"}})), "json_schema.type");
    }

    /// The grammar of vLLM's page on structured outputs.
    const SQL: &str = r#"root ::= select_statement

select_statement ::= "SELECT " column " from " table " where " condition

column ::= "col_1 " | "col_2 "

table ::= "table_1 " | "table_2 "

condition ::= column "= " number

number ::= "1 " | "2 "
"#;

    #[test]
    fn constraints_in_every_form() {
        let schema = json!({"type": "object"});
        let check =
            |body: Value, expect: Option<Constraint>| assert_eq!(read(body).unwrap().constraint, expect);
        check(json!({"response_format": {"type": "text"}}), None);
        check(json!({"response_format": {"type": "json_object"}}), Some(Constraint::JsonObject));
        check(
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            Some(Constraint::JsonSchema(schema.clone())),
        );
        check(
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            Some(Constraint::JsonSchema(schema.clone())),
        );
        check(
            json!({"response_format": {"type": "json_schema", "schema": schema}}),
            Some(Constraint::JsonSchema(schema.clone())),
        );
        check(json!({"json_schema": schema}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"grammar": "start: \"a\""}), Some(Constraint::Lark("start: \"a\"".into())));
        check(
            json!({"grammar": "// first\n\nstart : x\nx: \"a\""}),
            Some(Constraint::Lark("// first\n\nstart : x\nx: \"a\"".into())),
        );
        check(
            json!({"grammar_lark": "a: \"a\"\nstart: a"}),
            Some(Constraint::Lark("a: \"a\"\nstart: a".into())),
        );
        let gbnf = "start ::= root\nroot ::= \"a\"";
        check(json!({"grammar": gbnf}), Some(Constraint::Lark(gbnf::to_lark(gbnf).unwrap())));
        check(json!({"grammar": "", "regex": "", "guided_regex": "", "grammar_lark": " "}), None);
        check(json!({"response_format": {}}), None);
        check(json!({"regex": "[a-z]+"}), Some(Constraint::Regex("[a-z]+".into())));
        check(json!({"guided_regex": "[a-z]+"}), Some(Constraint::Regex("[a-z]+".into())));
        check(json!({"guided_json": schema}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"guided_json": schema.to_string()}), Some(Constraint::JsonSchema(schema.clone())));
        for lark in ["start: \"a\"", "?start: \"a\"", "!?start : \"a\"", "a: \"a\"\nstart: a"] {
            check(json!({"guided_grammar": lark}), Some(Constraint::Lark(lark.into())));
        }
        check(json!({"grammar": "?start: \"a\""}), Some(Constraint::Lark("?start: \"a\"".into())));
        check(json!({"guided_grammar": SQL}), Some(Constraint::Lark(gbnf::to_lark(SQL).unwrap())));
        let choice = json!({"guided_choice": ["yes", "no (1.5)", "jå"]});
        check(choice, Some(Constraint::Regex(r"(?:yes|no \(1\.5\)|jå)".into())));
    }

    #[test]
    fn structured_outputs_are_their_guided_twins() {
        let schema = json!({"type": "object"});
        let check = |outputs: Value, expect: Option<Constraint>| {
            assert_eq!(read(json!({"structured_outputs": outputs})).unwrap().constraint, expect, "{outputs}");
        };
        let gbnf = "root ::= \"a\"";
        check(json!(null), None);
        check(json!({}), None);
        check(json!({"json": null, "regex": "", "grammar": "", "json_object": false}), None);
        check(json!({"json": schema}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"json": schema.to_string()}), Some(Constraint::JsonSchema(schema.clone())));
        check(json!({"regex": "[a-z]+"}), Some(Constraint::Regex("[a-z]+".into())));
        check(json!({"choice": ["yes", "no"]}), Some(Constraint::Regex("(?:yes|no)".into())));
        check(json!({"grammar": gbnf}), Some(Constraint::Lark(gbnf::to_lark(gbnf).unwrap())));
        check(json!({"grammar": "start: \"a\""}), Some(Constraint::Lark("start: \"a\"".into())));
        check(json!({"json_object": true}), Some(Constraint::JsonObject));
        let unread = json!({"json_object": true, "disable_any_whitespace": true, "disable_fallback": true});
        check(unread, Some(Constraint::JsonObject));
        check(json!({"whitespace_pattern": "", "structural_tag": {}}), None);
    }

    #[test]
    fn wrong_structured_outputs_name_their_field() {
        let check = |outputs: Value, field: &str| {
            let expect = format!("structured_outputs.{field}");
            assert_eq!(param(json!({"structured_outputs": outputs})), expect);
        };
        check(json!({"json": "{"}), "json");
        check(json!({"json": {"type": "nonsense"}}), "json.type");
        check(json!({"choice": []}), "choice");
        check(json!({"choice": [1]}), "choice[0]");
        let long: Vec<String> = (0..3_000).map(|i| format!("value-{i}")).collect();
        check(json!({"choice": long}), "choice");
        assert_eq!(param(json!({"guided_choice": long})), "guided_choice");
        check(json!({"grammar": "root ::= a"}), "grammar");
        check(json!({"json_object": "yes"}), "json_object");
        check(json!({"structural_tag": {"structures": []}}), "structural_tag");
        check(json!({"whitespace_pattern": "[ ]"}), "whitespace_pattern");
        check(json!({"json": {}, "regex": "a"}), "regex");
        for other in [
            json!({"guided_regex": "a"}),
            json!({"regex": "a"}),
            json!({"response_format": {"type": "json_object"}}),
        ] {
            let mut body = json!({"structured_outputs": {"choice": ["a"]}});
            body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
            assert_eq!(param(body), "structured_outputs.choice", "{other}");
        }
        assert_eq!(param(json!({"structured_outputs": "json"})), "structured_outputs");
    }
}
