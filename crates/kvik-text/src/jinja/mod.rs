//! Jinja for chat templates: a small interpreter with limits.
//!
//! Templates come with model files, so they are hostile input, and their output determines what the
//! model reads as structure. So this interpreter does two things that general engines do not: it counts
//! every step and every byte, so that any template ends within its limits or with a typed error; and it
//! tracks for every byte of the result whether it came from the template or from the request.
//!
//! The language is Jinja2 as Hugging Face configures it: `trim_blocks`, `lstrip_blocks`, `break` and
//! `continue`, `{% generation %}`, `tojson`, `raise_exception`, `strftime_now`; and, as in llama.cpp,
//! `from_json` and the methods that change a list or a mapping. Templates cannot include others. Where
//! Jinja has Python's semantics, this interpreter has them too.

mod arguments;
mod ast;
mod checks;
mod containers;
mod display;
mod eval;
mod filters;
mod format;
mod json;
mod lexer;
mod limits;
mod methods;
mod names;
mod operators;
mod parser;
mod sequences;
mod sorting;
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

pub(crate) use limits::{Fault, RenderLimits};

/// Maximum bytes of a template's source.
const SOURCE_BYTES_MAX: usize = 4 << 20;

/// Stack for the nesting of statements, expressions and macros that [`eval`] allows. It is only reserved:
/// pages that are never touched cost nothing.
const STACK_BYTES: usize = 64 << 20;

/// The error for a template that cannot be compiled.
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

/// A variable of a template.
#[derive(Debug)]
pub(crate) enum Variable<'a> {
    /// Text from the model's files, such as that of its begin token.
    Trusted(&'a str),
    /// A value from the request.
    Input(&'a serde_json::Value),
    /// The messages of a request. Known roles count as text of the template, not of the request: templates
    /// put `<|` and `|>` around them.
    Messages(&'a [serde_json::Value]),
    Flag(bool),
    None,
}

/// The output of a template.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Ranges of the text that came from the request, ascending.
    pub(crate) inputs: Vec<Range<usize>>,
}

/// Roles that count as text of the template.
const ROLES: [&str; 8] =
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"];

impl Program {
    /// Compiles a template.
    pub(crate) fn new(source: &str) -> Result<Program, SyntaxError> {
        if source.len() > SOURCE_BYTES_MAX {
            let reason = format!("it has {} bytes, the limit is {SOURCE_BYTES_MAX}", source.len());
            return Err(SyntaxError { reason, line: 1 });
        }
        // As in Jinja, line breaks are one character, and the last one is dropped.
        let source = source.replace("\r\n", "\n");
        let source = source.strip_suffix('\n').unwrap_or(&source);
        Ok(Program { body: parser::parse(lexer::lexemes(source)?)? })
    }

    /// Renders the template on a new thread, which has a larger stack; starting it takes about 30 us.
    pub(crate) fn render(
        &self,
        variables: &[(&str, Variable<'_>)],
        limits: &RenderLimits,
        now: SystemTime,
    ) -> Result<Rendered, Fault> {
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
        limits: &RenderLimits,
        now: SystemTime,
    ) -> Result<Rendered, Fault> {
        let variables = |meter: &Rc<Meter>| {
            let variable =
                |(name, variable): &(&str, Variable<'_>)| Ok((Arc::from(*name), value_of(variable, meter)?));
            variables.iter().map(variable).collect()
        };
        let (text, inputs) = eval::render(&self.body, variables, limits, now)?.into_parts();
        Ok(Rendered { text, inputs })
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
