//! Jinja for chat templates: a small interpreter with limits.
//!
//! Templates come with model files, so they are hostile input, and what they print decides what the
//! model takes for structure. Hence two things that general engines do not give: every step and every
//! byte is counted, so that any template ends with a typed error within its limits; and every byte of
//! the result is known to come from the template or from the request.
//!
//! The language is that of Jinja2 as Hugging Face sets it up: `trim_blocks`, `lstrip_blocks`, `break`
//! and `continue`, `{% generation %}`, `tojson`, `raise_exception`, `strftime_now`, and no method that
//! changes a value. Templates cannot include others. Where Jinja is Python, this is Python.

mod arguments;
mod ast;
mod checks;
mod display;
mod eval;
mod filters;
mod format;
mod json;
mod lexer;
mod limits;
mod methods;
mod parser;
mod sequences;
mod strftime;
mod text;
mod value;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use limits::Meter;
use text::Text;
use value::Value;

pub(crate) use limits::{Fault, Limits};

/// Bytes of a template's source at most.
const SOURCE_BYTES_MAX: usize = 4 << 20;

/// Room for the statements, expressions and macros inside one another that [`eval`] allows. The stack is
/// only reserved, pages that are not reached cost nothing.
const STACK_BYTES: usize = 64 << 20;

/// Why a template cannot be compiled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SyntaxError {
    pub(crate) reason: String,
    /// From 1.
    pub(crate) line: u32,
}

/// A compiled template.
#[derive(Debug)]
pub(crate) struct Program {
    body: ast::Body,
}

/// A variable that a template is given.
#[derive(Debug)]
pub(crate) enum Variable<'a> {
    /// The model's own words, such as the text of its first token.
    Trusted(&'a str),
    /// What a request brought.
    Input(&'a serde_json::Value),
    /// The messages of a request. Known roles are part of the format, not of what somebody wrote:
    /// templates put `<|` and `|>` around them.
    Messages(&'a [serde_json::Value]),
    Flag(bool),
    None,
}

/// What a template wrote.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Written {
    pub(crate) text: String,
    /// Ranges of the text that came in with the request, ascending.
    pub(crate) inputs: Vec<Range<usize>>,
}

/// Roles that are words of the format.
const ROLES: [&str; 8] =
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"];

impl Program {
    /// Compiles a template.
    pub(crate) fn new(source: &str) -> Result<Program, SyntaxError> {
        if source.len() > SOURCE_BYTES_MAX {
            let reason = format!("it has {} bytes, the limit is {SOURCE_BYTES_MAX}", source.len());
            return Err(SyntaxError { reason, line: 1 });
        }
        // As Jinja does: line breaks are one character, the last one is dropped.
        let source = source.replace("\r\n", "\n");
        let source = source.strip_suffix('\n').unwrap_or(&source);
        Ok(Program { body: parser::parse(lexer::tokens(source)?)? })
    }

    /// Runs it, on a thread of its own for the sake of the stack; starting one takes some 30 us.
    pub(crate) fn render(
        &self,
        variables: &[(&str, Variable<'_>)],
        limits: &Limits,
        now: SystemTime,
    ) -> Result<Written, Fault> {
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
            let thread = builder
                .spawn_scoped(scope, || self.render_here(variables, limits, now))
                .map_err(|error| limits::failed(error.to_string()))?;
            thread.join().map_err(|_| limits::failed("the template engine panicked"))?
        })
    }

    fn render_here(
        &self,
        variables: &[(&str, Variable<'_>)],
        limits: &Limits,
        now: SystemTime,
    ) -> Result<Written, Fault> {
        let variables = |meter: &Rc<Meter>| {
            let variable =
                |(name, variable): &(&str, Variable<'_>)| Ok((Arc::from(*name), value_of(variable, meter)?));
            variables.iter().map(variable).collect()
        };
        let (text, inputs) = eval::render(&self.body, variables, limits, now)?.into_parts();
        Ok(Written { text, inputs })
    }
}

fn value_of(variable: &Variable<'_>, meter: &Rc<Meter>) -> Result<Value, Fault> {
    Ok(match variable {
        Variable::Trusted(text) => Value::Text(Text::template(text, meter)?),
        Variable::Input(json) => Value::from_json(json, meter)?,
        Variable::Messages(messages) => {
            let messages = messages.iter().map(|message| message_value(message, meter));
            Value::list(messages.collect::<Result<_, _>>()?, meter)?
        }
        Variable::Flag(flag) => Value::Bool(*flag),
        Variable::None => Value::None,
    })
}

fn message_value(message: &serde_json::Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let Some(fields) = message.as_object() else { return Value::from_json(message, meter) };
    let field = |(name, value): (&String, &serde_json::Value)| {
        let role = value.as_str().filter(|role| name == "role" && ROLES.contains(role));
        let value = match role {
            Some(role) => Value::Text(Text::template(role, meter)?),
            None => Value::from_json(value, meter)?,
        };
        Ok((Value::Text(Text::input(name, meter)?), value))
    };
    let fields = fields.iter().map(field).collect::<Result<Vec<_>, Fault>>()?;
    Value::map(fields, meter)
}

#[cfg(test)]
mod tests;
