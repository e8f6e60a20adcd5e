//! Arguments of a call, by position or by name; each can be taken once.

use std::sync::Arc;

use super::limits::{Result, failed};
use super::text::Text;
use super::value::Value;

#[derive(Debug)]
pub(super) struct Args {
    positional: std::vec::IntoIter<Value>,
    named: Vec<(Arc<str>, Value)>,
}

impl Args {
    pub(super) fn new(positional: Vec<Value>, named: Vec<(Arc<str>, Value)>) -> Args {
        Args { positional: positional.into_iter(), named }
    }

    /// The next positional argument, else the argument of this name.
    pub(super) fn next(&mut self, name: &str) -> Option<Value> {
        self.positional.next().or_else(|| self.named(name))
    }

    /// The argument of this name, if it was given by name.
    pub(super) fn named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(known, _)| &**known == name)?;
        Some(self.named.remove(at).1)
    }

    /// Number of arguments given by name that are left.
    pub(super) fn named_len(&self) -> usize {
        self.named.len()
    }

    pub(super) fn required(&mut self, name: &str) -> Result<Value> {
        self.next(name).ok_or_else(|| failed(format!("the argument `{name}` is missing")))
    }

    /// A string; `none` counts as absent.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<Text>> {
        match self.next(name) {
            None | Some(Value::None | Value::Undefined) => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    pub(super) fn required_text(&mut self, name: &str) -> Result<Text> {
        self.text(name)?.ok_or_else(|| failed(format!("the argument `{name}` is missing")))
    }

    pub(super) fn int(&mut self, name: &str) -> Result<Option<i128>> {
        match self.next(name) {
            None | Some(Value::None | Value::Undefined) => Ok(None),
            Some(value) => value.as_int().map(Some).ok_or_else(|| wrong(name, "an integer", &value)),
        }
    }

    /// A count; negative integers give 0.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<usize>> {
        Ok(self.int(name)?.map(|value| usize::try_from(value.max(0)).unwrap_or(usize::MAX)))
    }

    pub(super) fn bool(&mut self, name: &str) -> Result<Option<bool>> {
        Ok(self.next(name).filter(|value| !matches!(value, Value::None)).map(|value| value.is_true()))
    }

    /// The remaining positional arguments.
    pub(super) fn rest(&mut self) -> Vec<Value> {
        self.positional.by_ref().collect()
    }

    /// The remaining named arguments.
    pub(super) fn rest_named(&mut self) -> Vec<(Arc<str>, Value)> {
        std::mem::take(&mut self.named)
    }

    /// Refuses remaining arguments.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.positional.next().is_some() {
            return Err(failed("too many arguments"));
        }
        match self.named.first() {
            Some((name, _)) => Err(failed(format!("there is no argument `{name}`"))),
            None => Ok(()),
        }
    }
}

fn wrong(name: &str, wanted: &str, found: &Value) -> super::limits::Fault {
    failed(format!("the argument `{name}` must be {wanted}, not {}", found.kind()))
}
