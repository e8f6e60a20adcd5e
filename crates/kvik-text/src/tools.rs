//! Tools of a chat: the offered ones, those that must be called, and how calls are constrained and parsed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::{AnswerStart, ForcedCall, Offer, Reading, ToolForm};
use super::references::move_references;
#[cfg(feature = "grammars")]
use crate::constraint::schema::{Strictness, normalise};
use crate::forms::{CallStart, Calls, Constraint, JsonText};

/// Maximum calls of one answer, if several are allowed.
pub const CALLS_MAX: usize = 32;
/// Maximum calls of one answer, if a call is forced and several are allowed: only this bound ends the answer of a
/// weak model that repeats its call endlessly.
pub const FORCED_CALLS_MAX: usize = 8;

/// Offered tools, and whether one must be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// The tools in the format of templates; absent if there are none or the choice is [`ToolChoice::None`].
    pub offered: Option<Value>,
    functions: Vec<Function>,
    /// Whether the answer has to be calls of `functions`.
    pub forced: bool,
    calls_max: usize,
}

/// A tool that an answer may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// JSON schema of the arguments.
    pub parameters: Value,
    /// Whether the schema can be enforced. If it cannot, an optional call may have any arguments.
    pub enforceable: bool,
    /// Whether the client relies on arguments that satisfy the schema.
    pub strict: bool,
    /// What of the schema is not enforced, with the reasons.
    pub notes: Vec<String>,
}

impl Function {
    /// The function of a tool, without notes.
    fn of(tool: &OfferedTool) -> Function {
        let OfferedTool { name, parameters, .. } = tool.clone();
        let enforceable = is_enforceable(&parameters);
        Function { name, parameters, enforceable, strict: false, notes: Vec::new() }
    }

    /// The name, and the schema that the arguments are held to. A schema that cannot be enforced would leave the calls of
    /// all tools unconstrained, so it gives way, unless a call is `forced`: then it fails the request.
    fn held(&self, forced: bool) -> (String, Value) {
        let keeps = self.enforceable || forced;
        (self.name.clone(), if keeps { self.parameters.clone() } else { json!({"type": "object"}) })
    }
}

/// Whether a schema can be enforced.
#[cfg(feature = "grammars")]
fn is_enforceable(schema: &Value) -> bool {
    normalise(schema, Strictness::Lenient).is_ok()
}

/// Nothing is enforced in a build without grammars.
#[cfg(not(feature = "grammars"))]
fn is_enforceable(_: &Value) -> bool {
    false
}

/// A tool as offered by the client.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub description: Option<String>,
    /// JSON schema of the arguments, an object.
    pub parameters: Value,
}

impl OfferedTool {
    /// The tool in the format of templates.
    pub fn json(self) -> Value {
        let mut function = json!({"name": self.name});
        if let Some(description) = self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.parameters;
        json!({"type": "function", "function": function})
    }
}

/// The schema of the arguments of a function without parameters, as a client leaves them out.
pub fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}})
}

/// The tools that an answer may call.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolChoice {
    /// None of them.
    None,
    /// Any, or none.
    Auto,
    /// Any, but at least one.
    Any,
    /// This one.
    Named(String),
    /// A subset of the tools, at least one of them if `required`. The other tools stay in the prompt, so that the
    /// prompt does not change.
    Allowed {
        /// Their names.
        names: Vec<String>,
        /// Whether one has to be called.
        required: bool,
    },
}

/// The error for a choice of tools that are not offered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("asks for {0}, which `tools` does not have")]
pub struct NotOffered(String);

impl Tools {
    /// Tools offered by the client; `several` states whether an answer may call more than one, if the client
    /// states it.
    ///
    /// # Errors
    /// If the choice names a tool that is not among them.
    pub fn offered(
        tools: Vec<OfferedTool>,
        choice: ToolChoice,
        several: Option<bool>,
    ) -> Result<Tools, NotOffered> {
        let functions = tools.iter().map(Function::of).collect();
        Tools::of(tools.into_iter().map(OfferedTool::json).collect(), functions, choice, several)
    }

    /// [`Tools::offered`] for tools in the format of templates.
    ///
    /// # Errors
    /// If the choice names a tool that is not among them.
    pub fn of(
        tools: Vec<Value>,
        mut functions: Vec<Function>,
        choice: ToolChoice,
        several: Option<bool>,
    ) -> Result<Tools, NotOffered> {
        check_choice(&choice, &functions)?;
        let is_offered = choice != ToolChoice::None && !tools.is_empty();
        let forced = match &choice {
            ToolChoice::None | ToolChoice::Auto => false,
            ToolChoice::Allowed { required, .. } => *required,
            ToolChoice::Any | ToolChoice::Named(_) => true,
        };
        let calls_max = calls_max(&choice, forced, several);
        match choice {
            ToolChoice::Named(name) => functions.retain(|function| function.name == name),
            ToolChoice::Allowed { names, .. } => functions.retain(|function| names.contains(&function.name)),
            ToolChoice::None | ToolChoice::Auto | ToolChoice::Any => {}
        }
        Ok(Tools { offered: is_offered.then_some(Value::Array(tools)), functions, forced, calls_max })
    }

    /// No tools.
    pub fn none() -> Tools {
        Tools { offered: None, functions: Vec::new(), forced: false, calls_max: CALLS_MAX }
    }

    /// The functions that an answer may call.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The parser of an answer that begins with `start`, by a model whose calls have this form, and the constraint
    /// that enforces the form if tools are offered.
    pub fn reading(&self, start: AnswerStart, form: Option<ToolForm>) -> (Reading, Option<Constraint>) {
        let Some(form) = form.filter(|_| self.offered.is_some()) else {
            return (Reading::Tagged { start, offer: None }, None);
        };
        let forced = self.forced.then(|| ForcedCall { after: unclosed(&start), instead: None });
        let calls = self.calls(&form, &start, forced);
        if self.forced && calls.is_none() {
            return (Reading::ForcedCall, Some(Constraint::JsonSchema(self.one_call())));
        }
        let offer = self.offer(form, calls.is_some());
        (Reading::Tagged { start, offer: Some(offer) }, calls.map(Constraint::Calls))
    }

    /// As [`Tools::reading`], for an answer that is calls or a JSON text of this schema, after the reasoning in which it
    /// begins. `None` if nothing is offered and it begins in none, if the answer cannot be a call, or if no constraint
    /// holds it to all of this.
    pub fn reading_or_json(
        &self,
        start: AnswerStart,
        form: Option<ToolForm>,
        schema: Value,
    ) -> Option<(Reading, Constraint)> {
        let instead = Box::new(JsonText { schema, around: start.content_texts() });
        let Some(form) = form.filter(|_| self.offered.is_some()) else {
            return reasoning_and_json(start, instead);
        };
        let forced =
            start.may_call().then(|| ForcedCall { after: unclosed(&start), instead: Some(instead) })?;
        let calls = self.calls(&form, &start, Some(forced))?;
        let is_held = !matches!(calls.start, CallStart::Free { .. });
        Some((Reading::Tagged { start, offer: Some(self.offer(form, is_held)) }, Constraint::Calls(calls)))
    }

    /// The parser settings of calls in this form; `certain` if a constraint enforces the form, which a build without
    /// grammars does not.
    fn offer(&self, form: ToolForm, certain: bool) -> Arc<Offer> {
        let tool = |function: &Function| (function.name.clone(), function.parameters.clone());
        let (tools, calls_max) = (self.functions.iter().map(tool).collect(), self.calls_max);
        Arc::new(Offer { form, tools, calls_max, certain: certain && cfg!(feature = "grammars") })
    }

    /// The constraint that enforces this form. A forced call comes after reasoning that has begun; an optional
    /// call does not begin in reasoning.
    fn calls(&self, form: &ToolForm, start: &AnswerStart, forced: Option<ForcedCall>) -> Option<Calls> {
        let most = if forced.is_some() { FORCED_CALLS_MAX } else { CALLS_MAX };
        let functions: Vec<_> = self.functions.iter().map(|function| function.held(self.forced)).collect();
        let calls = form.constraint(&functions, forced, self.calls_max.min(most))?;
        Some(Calls { reasoning: Some(start.reasoning_texts()), ..calls })
    }

    /// Schema of an answer that is one call as JSON: for forms that no constraint describes.
    fn one_call(&self) -> Value {
        if let [function] = &self.functions[..] {
            return call_schema(function, "#");
        }
        let call = |(i, function)| call_schema(function, &format!("#/anyOf/{i}"));
        let calls: Vec<Value> = self.functions.iter().enumerate().map(call).collect();
        json!({"anyOf": calls})
    }
}

/// For an answer that is this JSON text after the reasoning in which it begins.
fn reasoning_and_json(start: AnswerStart, instead: Box<JsonText>) -> Option<(Reading, Constraint)> {
    let forced = ForcedCall { after: Some(unclosed(&start)?), instead: Some(instead) };
    let calls = ToolForm::empty().constraint(&[], Some(forced), 1)?;
    Some((Reading::Tagged { start, offer: None }, Constraint::Calls(calls)))
}

/// The end of the reasoning in which an answer begins.
fn unclosed(start: &AnswerStart) -> Option<String> {
    let reasoning = start.reasoning_texts();
    reasoning.begun.then_some(reasoning.close)
}

/// Maximum calls of an answer. A forced call is a single one, unless the request allows several; a call of a tool
/// that the request names is always a single one.
fn calls_max(choice: &ToolChoice, forced: bool, several: Option<bool>) -> usize {
    match (choice, forced, several) {
        (ToolChoice::Named(_), ..) | (_, _, Some(false)) | (_, true, None) => 1,
        (_, true, Some(true)) => FORCED_CALLS_MAX,
        (_, false, _) => CALLS_MAX,
    }
}

/// Refuses a choice of tools that are not offered.
fn check_choice(choice: &ToolChoice, functions: &[Function]) -> Result<(), NotOffered> {
    let missing = |name: &&String| !functions.iter().any(|function| function.name == **name);
    let names = match choice {
        ToolChoice::None | ToolChoice::Auto => return Ok(()),
        ToolChoice::Any if functions.is_empty() => return Err(NotOffered("a call".to_owned())),
        ToolChoice::Any => return Ok(()),
        ToolChoice::Named(name) => std::slice::from_ref(name),
        ToolChoice::Allowed { names, .. } if names.is_empty() => {
            return Err(NotOffered("one of no tools".to_owned()));
        }
        ToolChoice::Allowed { names, .. } => &names[..],
    };
    names.iter().find(missing).map_or(Ok(()), |name| Err(NotOffered(format!("{name:?}"))))
}

/// Schema of one call, located at `place` of the whole schema.
fn call_schema(Function { name, parameters, .. }: &Function, place: &str) -> Value {
    let mut arguments = parameters.clone();
    move_references(&mut arguments, &format!("{place}/properties/arguments"));
    json!({
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(choice: ToolChoice, several: Option<bool>) -> Tools {
        let parameters =
            json!({"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}});
        let offered = ["f", "g"].map(|name| OfferedTool {
            name: name.to_owned(),
            description: None,
            parameters: parameters.clone(),
        });
        Tools::offered(offered.into(), choice, several).unwrap()
    }

    #[test]
    fn references_inside_parameters_follow_them() {
        let check = |choice: ToolChoice, place: &str| {
            let schema = tools(choice, None).one_call();
            let reference =
                schema.pointer(&format!("{place}/properties/arguments/properties/x/$ref")).unwrap();
            let target = reference.as_str().unwrap().strip_prefix('#').unwrap();
            assert_eq!(schema.pointer(target), Some(&json!({"type": "string"})), "{reference}");
        };
        check(ToolChoice::Any, "/anyOf/0");
        check(ToolChoice::Any, "/anyOf/1");
        check(ToolChoice::Named("f".to_owned()), "");
    }

    #[test]
    fn calls_are_as_many_as_is_allowed() {
        let check = |choice: ToolChoice, several: Option<bool>, expect: usize| {
            let tools = tools(choice, several);
            let (reading, constraint) = tools.reading(AnswerStart::usual(false), Some(ToolForm::tagged()));
            let (Reading::Tagged { offer: Some(offer), .. }, Some(Constraint::Calls(calls))) =
                (&reading, &constraint)
            else {
                panic!("{reading:?}, {constraint:?}")
            };
            assert_eq!((calls.calls_max, offer.calls_max), (expect, expect));
        };
        check(ToolChoice::Auto, None, CALLS_MAX);
        check(ToolChoice::Auto, Some(true), CALLS_MAX);
        check(ToolChoice::Auto, Some(false), 1);
        check(ToolChoice::Any, None, 1);
        check(ToolChoice::Any, Some(true), FORCED_CALLS_MAX);
        for several in [None, Some(true), Some(false)] {
            check(ToolChoice::Named("f".to_owned()), several, 1);
        }
        let allowed = |required| ToolChoice::Allowed { names: vec!["f".to_owned()], required };
        check(allowed(true), Some(true), FORCED_CALLS_MAX);
        check(allowed(false), None, CALLS_MAX);
    }

    /// What one tool's schema has that is not understood leaves the calls of the others in their form, and its own.
    #[cfg(feature = "grammars")]
    #[test]
    fn a_schema_that_cannot_be_enforced_gives_way_unless_a_call_is_required() {
        let nonsense = json!({"type": "object", "properties": {"x": {"type": "any"}}});
        let sound = json!({"type": "object", "properties": {"x": {"type": "string"}}});
        let held = |choice: ToolChoice, instead: Option<Value>| -> Vec<Value> {
            let tool = |(name, parameters): (&str, &Value)| OfferedTool {
                name: name.to_owned(),
                description: None,
                parameters: parameters.clone(),
            };
            let offered = [("f", &sound), ("g", &nonsense)].map(tool);
            let tools = Tools::offered(offered.into(), choice, None).unwrap();
            let (start, form) = (AnswerStart::usual(false), Some(ToolForm::tagged()));
            let (reading, constraint) = match instead {
                Some(schema) => tools.reading_or_json(start, form, schema).unwrap(),
                None => {
                    let (reading, constraint) = tools.reading(start, form);
                    (reading, constraint.unwrap())
                }
            };
            let Reading::Tagged { offer: Some(offer), .. } = &reading else { panic!("{reading:?}") };
            assert_eq!(offer.tools[1].1, nonsense, "arguments are read by the schema that was sent");
            let Constraint::Calls(calls) = &constraint else { panic!("{constraint:?}") };
            calls.tools.iter().map(|tool| tool.schema.clone()).collect()
        };
        let any = json!({"type": "object"});
        assert_eq!(held(ToolChoice::Auto, None), [sound.clone(), any.clone()]);
        assert_eq!(held(ToolChoice::Auto, Some(json!(true))), [sound.clone(), any]);
        assert_eq!(held(ToolChoice::Any, None), [sound.clone(), nonsense.clone()]);
    }

    /// The calls of a form that cannot be enforced are free; a message that has begun as content is no call.
    #[cfg(feature = "grammars")]
    #[test]
    fn an_answer_is_json_or_a_call_in_any_form() {
        use crate::answer::{AnswerPlace, ReasoningForm};
        let read = |place: AnswerPlace, reasoning: ReasoningForm, form: ToolForm| {
            let start = AnswerStart { form: reasoning, place };
            let tools = tools(ToolChoice::Auto, None);
            let (reading, constraint) = tools.reading_or_json(start, Some(form), json!(true))?;
            let (Reading::Tagged { offer: Some(offer), .. }, Constraint::Calls(calls)) =
                (reading, constraint)
            else {
                panic!("calls are offered")
            };
            match calls.start {
                CallStart::Free { trigger, .. } => Some((offer.certain, trigger)),
                CallStart::Forced { instead: Some(text), .. } => {
                    let opens: Vec<String> = text.around.into_iter().map(|[open, _]| open).collect();
                    Some((offer.certain, opens.join(" or ")))
                }
                other => panic!("{other:?}"),
            }
        };
        let (tags, channels) = (ReasoningForm::default(), ReasoningForm::Channels);
        let actions = ReasoningForm::of_template("<|START_THINKING|>");
        let kimi = ToolForm::mentioned_in("<|im_system|>tool_declare<|im_middle|>").unwrap();
        let bare = ToolForm::mentioned_in("<|python_tag|>").unwrap();
        let loose = |form: ToolForm| ToolForm { loose: true, ..form };
        let content = "<|channel|>final<|message|>";
        use AnswerPlace::{Begin, Content, Reasoning};
        for (place, reasoning, form, expect) in [
            (Begin, tags, ToolForm::tagged(), Some((true, ""))),
            (Begin, actions, ToolForm::tagged(), Some((true, " or <|START_RESPONSE|>"))),
            (Begin, channels, ToolForm::channels(), Some((true, content))),
            (Reasoning, channels, ToolForm::channels(), Some((true, content))),
            (Content, channels, ToolForm::channels(), None),
            (Begin, tags, kimi, Some((false, "<|tool_calls_section_begin|>"))),
            (Reasoning, tags, loose(ToolForm::tagged()), Some((false, "<tool_call>"))),
            (Begin, tags, loose(bare), None),
        ] {
            let expect = expect.map(|(certain, text)| (certain, text.to_owned()));
            assert_eq!(read(place, reasoning, form.clone()), expect, "{place:?} {form:?}");
        }
    }

    #[test]
    fn without_an_offer_calls_are_text() {
        for tools in [Tools::none(), tools(ToolChoice::None, None)] {
            let (reading, constraint) = tools.reading(AnswerStart::usual(false), Some(ToolForm::tagged()));
            assert!(matches!(reading, Reading::Tagged { offer: None, .. }) && constraint.is_none());
        }
    }
}
