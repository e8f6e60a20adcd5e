//! Evaluates expressions.

use std::rc::Rc;
use std::sync::Arc;

use super::super::arguments::Args;
use super::super::ast::{Arguments, Conditional, Expr, Step};
use super::super::limits::{Result, failed};
use super::super::operators::{binary, holds, item, negative, slice};
use super::super::text::Text;
use super::super::value::{LoopValue, Value};
use super::super::{checks, filters};
use super::Interpreter;

impl Interpreter {
    pub(super) fn evaluate(&mut self, expression: &Expr) -> Result<Value> {
        self.meter.spend(1)?;
        match expression {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Float(value) => Ok(Value::Float(*value)),
            Expr::Text(text) => Ok(Value::Text(Text::constant(text))),
            Expr::Name(name) => self.lookup(name),
            other => self.deeper(|this| this.evaluate_inside(other)),
        }
    }

    fn evaluate_inside(&mut self, expression: &Expr) -> Result<Value> {
        match expression {
            Expr::List(items) => Value::list(self.evaluate_all(items)?, &self.meter),
            Expr::Tuple(items) => Value::tuple(self.evaluate_all(items)?, &self.meter),
            Expr::Map(pairs) => {
                let pairs = pairs.iter().map(|(key, value)| Ok((self.evaluate(key)?, self.evaluate(value)?)));
                let pairs = pairs.collect::<Result<_>>()?;
                Value::map(pairs, &self.meter)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.evaluate(value)?.is_true())),
            Expr::Negative(value) => negative(&self.evaluate(value)?),
            Expr::Positive(value) => self.evaluate(value),
            Expr::Chain(first, rest) => {
                let mut value = self.evaluate(first)?;
                for (operator, operand) in rest {
                    let operand = self.evaluate(operand)?;
                    value = binary(*operator, &value, &operand, &self.meter)?;
                }
                Ok(value)
            }
            Expr::Compare(first, rest) => {
                let mut left = self.evaluate(first)?;
                for (comparison, right) in rest {
                    let right = self.evaluate(right)?;
                    if !holds(*comparison, &left, &right, &self.meter)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::And(terms) => self.first_that_is(false, terms),
            Expr::Or(terms) => self.first_that_is(true, terms),
            Expr::If(conditional) => self.conditional(conditional),
            Expr::Path(value, steps) => {
                let value = self.evaluate(value)?;
                self.steps(value, steps, None)
            }
            _ => unreachable!("`evaluate` handles the leaves"),
        }
    }

    /// `and` and `or`: the first term with this truth value, else the last.
    fn first_that_is(&mut self, truth: bool, terms: &[Expr]) -> Result<Value> {
        let mut value = Value::Undefined;
        for term in terms {
            value = self.evaluate(term)?;
            if value.is_true() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn conditional(&mut self, conditional: &Conditional) -> Result<Value> {
        match (self.evaluate(&conditional.condition)?.is_true(), &conditional.otherwise) {
            (true, _) => self.evaluate(&conditional.then),
            (false, Some(otherwise)) => self.evaluate(otherwise),
            (false, None) => Ok(Value::Undefined),
        }
    }

    fn evaluate_all(&mut self, items: &[Expr]) -> Result<Vec<Value>> {
        items.iter().map(|item| self.evaluate(item)).collect()
    }

    /// Evaluates a call of a macro with a `caller`.
    pub(super) fn evaluate_calling(&mut self, call: &Expr, caller: Value) -> Result<Value> {
        match call {
            Expr::Path(value, steps) if matches!(steps.last(), Some(Step::Call(_))) => {
                let value = self.evaluate(value)?;
                self.steps(value, steps, Some(caller))
            }
            _ => Err(failed("a call block needs the call of a macro")),
        }
    }

    /// Applies the steps of a path; its last call gets the `caller`.
    fn steps(&mut self, mut value: Value, steps: &[Step], mut caller: Option<Value>) -> Result<Value> {
        let mut at = 0;
        while let Some(step) = steps.get(at) {
            self.meter.spend(1)?;
            // A method is not a value: it can only be called directly.
            value = match (step, steps.get(at + 1)) {
                (Step::Attribute(name), Some(Step::Call(arguments))) => {
                    at += 1;
                    let caller = if at + 1 == steps.len() { caller.take() } else { None };
                    let args = self.arguments(arguments)?;
                    self.call_attribute(&value, name, args, caller)?
                }
                _ => {
                    let caller = if at + 1 == steps.len() { caller.take() } else { None };
                    self.step(value, step, caller)?
                }
            };
            at += 1;
        }
        Ok(value)
    }

    pub(super) fn step(&mut self, value: Value, step: &Step, caller: Option<Value>) -> Result<Value> {
        match step {
            Step::Attribute(name) => self.attribute(&value, name),
            Step::Item(index) => {
                let index = self.evaluate(index)?;
                match (&value, index.as_str()) {
                    (Value::Namespace(_) | Value::Loop(_), Some(name)) => self.attribute(&value, name),
                    _ => item(&value, &index, &self.meter),
                }
            }
            Step::Slice(parts) => {
                let mut bound = |part: &Option<Expr>| match part {
                    Some(part) => self.evaluate(part),
                    None => Ok(Value::None),
                };
                let bounds = [bound(&parts[0])?, bound(&parts[1])?, bound(&parts[2])?];
                slice(&value, &bounds, &self.meter)
            }
            Step::Call(arguments) => {
                let args = self.arguments(arguments)?;
                self.call(&value, args, caller)
            }
            Step::Filter(name, arguments) => {
                let args = self.arguments(arguments)?;
                filters::apply(self, name, value, args)
            }
            Step::Test { name, negated, arguments } => {
                let args = self.arguments(arguments)?;
                Ok(Value::Bool(checks::check(name, &value, args, &self.meter)? != *negated))
            }
        }
    }

    /// `value | name(args)`, for filters that apply other filters.
    pub(in crate::jinja) fn filter(&mut self, name: &str, value: Value, args: Args) -> Result<Value> {
        self.deeper(|this| filters::apply(this, name, value, args))
    }

    fn arguments(&mut self, arguments: &Arguments) -> Result<Args> {
        let positional = self.evaluate_all(&arguments.positional)?;
        let named = arguments.named.iter().map(|(name, value)| Ok((name.clone(), self.evaluate(value)?)));
        let named = named.collect::<Result<Vec<(Arc<str>, Value)>>>()?;
        Ok(Args::new(positional, named))
    }

    /// `value.name`
    pub(in crate::jinja) fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        Ok(match value {
            Value::Undefined => return Err(failed(format!("cannot read {name:?} of an undefined value"))),
            Value::Map(map) => map.get().get(name, &self.meter)?.cloned().unwrap_or(Value::Undefined),
            Value::Namespace(namespace) => self.field(*namespace, name)?,
            Value::Loop(state) => loop_attribute(state, name),
            _ => Value::Undefined,
        })
    }
}

fn loop_attribute(state: &Rc<LoopValue>, name: &str) -> Value {
    let (index0, length) = (state.index0, state.items.items.len());
    let neighbour = |index: Option<usize>| {
        index.and_then(|index| state.items.items.get(index)).cloned().unwrap_or(Value::Undefined)
    };
    let number = |value: usize| Value::Int(value as i128);
    match name {
        "index" => number(index0 + 1),
        "index0" => number(index0),
        "revindex" => number(length - index0),
        "revindex0" => number(length - index0 - 1),
        "first" => Value::Bool(index0 == 0),
        "last" => Value::Bool(index0 + 1 == length),
        "length" => number(length),
        "previtem" => neighbour(index0.checked_sub(1)),
        "nextitem" => neighbour(Some(index0 + 1)),
        "depth" => number(state.depth0 + 1),
        "depth0" => number(state.depth0),
        _ => Value::Undefined,
    }
}
