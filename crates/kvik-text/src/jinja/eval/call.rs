//! Calls of macros, loops, built-in functions and methods.

use std::rc::Rc;

use super::super::arguments::Args;
use super::super::limits::{Charge, Fault, Result, failed};
use super::super::operators::reserve;
use super::super::strftime;
use super::super::text::Text;
use super::super::value::{Closure, Function, Value};
use super::super::{containers, methods};
use super::{Interpreter, write_value};

/// Maximum numbers of one `range`, as in Jinja's sandbox.
const RANGE_MAX: i128 = 100_000;

/// The built-in function of this name.
pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        _ => return None,
    })
}

impl Interpreter {
    pub(super) fn call(&mut self, callee: &Value, args: Args, caller: Option<Value>) -> Result<Value> {
        match callee {
            Value::Macro(closure) => self.call_macro(closure, args, caller),
            Value::Function(function) => self.call_function(*function, args),
            Value::Loop(state) => {
                let mut args = args;
                let items = args.required("iterable")?;
                args.finish()?;
                self.outputs.push(super::Builder::new(&self.meter)?);
                self.deeper(|this| this.for_loop(&state.definition, &items, state.depth0 + 1))?;
                let text = self.outputs.pop().expect("it was pushed above").finish();
                Ok(Value::Text(text))
            }
            other => Err(failed(format!("{} cannot be called", other.kind()))),
        }
    }

    /// `value.name(..)`
    pub(super) fn call_attribute(
        &mut self,
        value: &Value,
        name: &str,
        args: Args,
        caller: Option<Value>,
    ) -> Result<Value> {
        match value {
            Value::Text(text) => methods::of_text(text, name, args, &self.meter),
            Value::List(list) => {
                self.keep_if_changed(value, name);
                containers::of_list(list, name, args, &self.meter)
            }
            Value::Map(map) => match map.get().get(name, &self.meter)? {
                Some(callee @ Value::Macro(_)) => self.call(callee, args, caller),
                _ => {
                    self.keep_if_changed(value, name);
                    containers::of_map(map, name, args, &self.meter)
                }
            },
            Value::Loop(state) if name == "cycle" => {
                let mut args = args;
                let items = args.rest();
                args.finish()?;
                let index = state.index0.checked_rem(items.len());
                index.map(|index| items[index].clone()).ok_or_else(|| failed("`cycle` needs arguments"))
            }
            other => {
                let callee = self.attribute(other, name)?;
                if matches!(callee, Value::Undefined) {
                    return Err(failed(format!("{} has no method {name:?}", other.kind())));
                }
                self.call(&callee, args, caller)
            }
        }
    }

    fn call_macro(&mut self, closure: &Rc<Closure>, mut args: Args, caller: Option<Value>) -> Result<Value> {
        // A macro stored in a namespace can outlive the scope of its definition.
        let frame = if closure.frame < self.frames.len() { closure.frame } else { 0 };
        let definition = &closure.definition;
        self.scoped_in(frame, |this| {
            for (name, default) in &definition.parameters {
                this.meter.spend_search(args.named_len(), name.len())?;
                let value = match (args.next(name), default) {
                    (Some(value), _) => value,
                    (None, Some(default)) => this.evaluate(default)?,
                    (None, None) => Value::Undefined,
                };
                this.set(name, value)?;
            }
            if let Some(caller) = caller.or_else(|| args.named("caller")) {
                this.set(&"caller".into(), caller)?;
            }
            args.finish()?;
            this.captured(&definition.body).map(|(text, _)| text)
        })
    }

    fn call_function(&mut self, function: Function, mut args: Args) -> Result<Value> {
        let value = match function {
            Function::Namespace => return self.new_namespace(args),
            Function::Range => self.range(&mut args)?,
            Function::Dict => {
                let pairs = args.rest_named().into_iter();
                let pair = |(name, value)| (Value::Text(Text::constant(&name)), value);
                Value::map(pairs.map(pair).collect(), &self.meter)?
            }
            Function::RaiseException => {
                let mut message = super::Builder::new(&self.meter)?;
                write_value(&args.required("message")?, &mut message)?;
                return Err(Fault::Raised(message.into_parts().0));
            }
            Function::StrftimeNow => {
                let format = args.required_text("format")?;
                let bytes = format.as_str().len().saturating_mul(strftime::GROWTH);
                let _written = Charge::new(&self.meter, bytes)?;
                let time = strftime::format(self.now, format.as_str());
                Value::Text(Text::template(&time, &self.meter)?)
            }
        };
        args.finish()?;
        Ok(value)
    }

    fn range(&self, args: &mut Args) -> Result<Value> {
        let missing = || failed("`range` needs a number");
        let first = args.int("start")?.ok_or_else(missing)?;
        let (start, stop) = match args.int("stop")? {
            Some(stop) => (first, stop),
            None => (0, first),
        };
        let step = args.int("step")?.unwrap_or(1);
        if step == 0 {
            return Err(failed("the step of a range cannot be 0"));
        }
        let distance = if step > 0 { stop.checked_sub(start) } else { start.checked_sub(stop) };
        let count = match distance {
            Some(distance) if distance <= 0 => 0,
            Some(distance) => (distance - 1) / step.checked_abs().unwrap_or(i128::MAX) + 1,
            None => i128::MAX,
        };
        if count > RANGE_MAX {
            return Err(failed(format!("a range has at most {RANGE_MAX} numbers")));
        }
        reserve(count as usize, &self.meter)?;
        Value::list((0..count).map(|i| Value::Int(start + i * step)).collect(), &self.meter)
    }
}
