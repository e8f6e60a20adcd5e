//! Runs the statements of a template.

mod call;
mod expression;

use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use super::arguments::Args;
use super::ast::{Body, For, Statement, StatementKind, Step, Target};
use super::containers;
use super::display::write_value;
use super::limits::{Charge, Fault, Meter, RenderLimits, Result, failed};
use super::operators::iterate;
use super::text::{Builder, Text};
use super::value::{Closure, List, LoopValue, Value};

/// Maximum nesting of running statements, expressions and macros.
const DEPTH_MAX: usize = 3000;

/// The state of one rendering.
pub(super) struct Interpreter {
    pub(super) meter: Rc<Meter>,
    /// Local variables; the first frame is the template's own.
    frames: Vec<Frame>,
    /// The frame in which lookups of names start.
    current: usize,
    namespaces: Vec<Namespace>,
    /// Outputs being written: the prompt, then nested captures.
    outputs: Vec<Builder>,
    output_bytes_max: usize,
    depth: usize,
    /// Lists and mappings that were changed. They may contain themselves, so they are emptied at the end.
    changed: Vec<Value>,
    pub(super) now: SystemTime,
}

/// Names and their values.
pub(super) type Variables = Vec<(Arc<str>, Value)>;

/// Variables of a scope.
#[derive(Debug, Default)]
struct Frame {
    variables: Variables,
    /// The enclosing scope.
    parent: Option<usize>,
}

/// Fields of a namespace.
struct Namespace {
    fields: Variables,
    _charge: Charge,
}

/// Control flow after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Runs a template; returns its output.
pub(super) fn render(
    body: &Body,
    variables: impl FnOnce(&Rc<Meter>) -> Result<Variables>,
    limits: &RenderLimits,
    now: SystemTime,
) -> Result<Builder> {
    let meter = Meter::new(limits);
    let root = Frame { variables: variables(&meter)?, parent: None };
    let mut interpreter = Interpreter {
        frames: vec![root],
        current: 0,
        namespaces: Vec::new(),
        outputs: vec![Builder::new(&meter)?],
        output_bytes_max: limits.output_bytes,
        depth: 0,
        changed: Vec::new(),
        now,
        meter,
    };
    interpreter.run(body)?;
    Ok(interpreter.outputs.swap_remove(0))
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        // All are emptied before any is dropped, so that drops do not recurse.
        self.changed.iter().for_each(Value::empty);
    }
}

impl Interpreter {
    fn run(&mut self, body: &Body) -> Result<Flow> {
        self.deeper(|this| {
            for statement in body {
                let flow = this.statement(statement).map_err(|fault| at_line(fault, statement.line))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    /// Runs one level deeper; the limit on levels fits the stack.
    fn deeper<T>(&mut self, run: impl FnOnce(&mut Interpreter) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(failed("macros or expressions are nested too deeply"));
        }
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn statement(&mut self, statement: &Statement) -> Result<Flow> {
        self.meter.spend(1)?;
        match &statement.kind {
            StatementKind::Raw(text) => self.write(&Value::Text(Text::constant(text)))?,
            StatementKind::Emit(value) => {
                let value = self.evaluate(value)?;
                self.write(&value)?;
            }
            StatementKind::For(definition) => {
                let items = self.evaluate(&definition.items)?;
                self.for_loop(definition, &items, 0)?;
            }
            StatementKind::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.evaluate(condition)?.is_true() {
                        return self.run(body);
                    }
                }
                return self.run(otherwise);
            }
            StatementKind::Set { target, value } => {
                let value = self.evaluate(value)?;
                self.assign(target, value)?;
            }
            StatementKind::Capture { target, filters, body } => {
                let (text, flow) = self.captured(body)?;
                let value = self.filtered(text, filters)?;
                self.assign(target, value)?;
                return Ok(flow);
            }
            StatementKind::Macro(definition) => {
                let closure = Closure { definition: definition.clone(), frame: self.current };
                self.set(&definition.name, Value::Macro(Rc::new(closure)))?;
            }
            StatementKind::Call { call, caller } => {
                let caller = Closure { definition: caller.clone(), frame: self.current };
                let value = self.evaluate_calling(call, Value::Macro(Rc::new(caller)))?;
                self.write(&value)?;
            }
            StatementKind::Filter { filters, body } => {
                let (text, flow) = self.scoped(|this| this.captured(body))?;
                let value = self.filtered(text, filters)?;
                self.write(&value)?;
                return Ok(flow);
            }
            StatementKind::With { values, body } => return self.with(values, body),
            StatementKind::Block(body) => return self.run(body),
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn with(&mut self, values: &[(Target, super::ast::Expr)], body: &Body) -> Result<Flow> {
        let values = values.iter().map(|(target, value)| Ok((target, self.evaluate(value)?)));
        let values = values.collect::<Result<Vec<_>>>()?;
        self.scoped(|this| {
            for (target, value) in values {
                this.assign(target, value)?;
            }
            this.run(body)
        })
    }

    /// Writes to the innermost output.
    fn write(&mut self, value: &Value) -> Result<()> {
        let whole = self.outputs.len() == 1;
        let out = self.outputs.last_mut().expect("the first output stays");
        let bytes = out.len() + value.as_str().map_or(0, str::len);
        if whole && bytes > self.output_bytes_max {
            return Err(Fault::Output);
        }
        write_value(value, out)
    }

    /// Captures the output of statements as a text.
    fn captured(&mut self, body: &Body) -> Result<(Value, Flow)> {
        self.outputs.push(Builder::new(&self.meter)?);
        let flow = self.run(body)?;
        let text = self.outputs.pop().expect("it was pushed above").finish();
        Ok((Value::Text(text), flow))
    }

    fn filtered(&mut self, value: Value, filters: &[Step]) -> Result<Value> {
        filters.iter().try_fold(value, |value, filter| self.step(value, filter, None))
    }

    /// Runs in a new scope within the current one.
    fn scoped<T>(&mut self, run: impl FnOnce(&mut Interpreter) -> Result<T>) -> Result<T> {
        self.scoped_in(self.current, run)
    }

    /// Runs in a new scope within the given one.
    fn scoped_in<T>(&mut self, parent: usize, run: impl FnOnce(&mut Interpreter) -> Result<T>) -> Result<T> {
        let outer = self.current;
        self.current = self.frames.len();
        self.frames.push(Frame { variables: Vec::new(), parent: Some(parent) });
        let result = run(self);
        self.frames.pop();
        self.current = outer;
        result
    }

    /// Runs a loop over the items at recursion depth `depth0`.
    fn for_loop(&mut self, definition: &Arc<For>, items: &Value, depth0: usize) -> Result<()> {
        let mut items = iterate(items, &self.meter)?;
        if let Some(filter) = &definition.filter {
            let mut kept = Vec::new();
            for item in &items.items {
                let keep = self.scoped(|this| {
                    this.assign(&definition.target, item.clone())?;
                    Ok(this.evaluate(filter)?.is_true())
                })?;
                kept.extend(keep.then(|| item.clone()));
            }
            items = Rc::new(List::new(kept, false, &self.meter)?);
        }
        if items.items.is_empty() {
            return self.scoped(|this| this.run(&definition.otherwise)).map(drop);
        }
        for (index0, item) in items.items.iter().enumerate() {
            let state = LoopValue { items: items.clone(), index0, depth0, definition: definition.clone() };
            let flow = self.scoped(|this| {
                this.set(&"loop".into(), Value::Loop(Rc::new(state)))?;
                this.assign(&definition.target, item.clone())?;
                this.run(&definition.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.set(name, value)?,
            Target::Field(name, field) => match self.lookup(name)? {
                Value::Namespace(namespace) => self.set_field(namespace, field, value)?,
                other => {
                    return Err(failed(format!(
                        "only fields of a namespace can be set, not of {}",
                        other.kind()
                    )));
                }
            },
            Target::Tuple(targets) => {
                let items = iterate(&value, &self.meter)?;
                if items.items.len() != targets.len() {
                    let (wanted, found) = (targets.len(), items.items.len());
                    return Err(failed(format!("{found} values cannot be unpacked into {wanted} names")));
                }
                for (target, item) in targets.iter().zip(&items.items) {
                    self.assign(target, item.clone())?;
                }
            }
        }
        Ok(())
    }

    /// Sets a variable of the current scope.
    fn set(&mut self, name: &Arc<str>, value: Value) -> Result<()> {
        let variables = &mut self.frames[self.current].variables;
        self.meter.spend_search(variables.len(), name.len())?;
        match variables.iter_mut().find(|(known, _)| known == name) {
            Some(variable) => variable.1 = value,
            None => variables.push((name.clone(), value)),
        }
        Ok(())
    }

    fn lookup(&self, name: &str) -> Result<Value> {
        let (mut frame, mut searched, mut found) = (Some(self.current), 0, None);
        while let Some(Frame { variables, parent }) = frame.and_then(|at| self.frames.get(at)) {
            // A frame without variables counts too: scopes nest by the thousand.
            searched += 1 + variables.len();
            found = variables.iter().find(|(known, _)| &**known == name).map(|(_, value)| value.clone());
            frame = if found.is_some() { None } else { *parent };
        }
        self.meter.spend_search(searched, name.len())?;
        Ok(found.unwrap_or_else(|| call::function(name).map_or(Value::Undefined, Value::Function)))
    }

    /// Records a list or mapping that this method changes, to be emptied at the end.
    fn keep_if_changed(&mut self, value: &Value, method: &str) {
        if containers::is_change(method) && value.begin_change() {
            self.changed.push(value.clone());
        }
    }

    fn new_namespace(&mut self, mut args: Args) -> Result<Value> {
        let charge = Charge::new(&self.meter, size_of::<Namespace>())?;
        let namespace = self.namespaces.len();
        self.namespaces.push(Namespace { fields: Vec::new(), _charge: charge });
        for (name, value) in args.rest_named() {
            self.set_field(namespace, &name, value)?;
        }
        args.finish()?;
        Ok(Value::Namespace(namespace))
    }

    fn set_field(&mut self, namespace: usize, name: &Arc<str>, value: Value) -> Result<()> {
        let Namespace { fields, _charge: charge } = &mut self.namespaces[namespace];
        self.meter.spend_search(fields.len(), name.len())?;
        match fields.iter_mut().find(|(known, _)| known == name) {
            Some(field) => field.1 = value,
            None => {
                charge.grow(size_of::<(Arc<str>, Value)>() + name.len())?;
                fields.push((name.clone(), value));
            }
        }
        Ok(())
    }

    fn field(&self, namespace: usize, name: &str) -> Result<Value> {
        let fields = &self.namespaces[namespace].fields;
        self.meter.spend_search(fields.len(), name.len())?;
        let found = fields.iter().find(|(known, _)| &**known == name);
        Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
    }
}

fn at_line(fault: Fault, line: u32) -> Fault {
    match fault {
        Fault::Failed { reason, line: None } => Fault::Failed { reason, line: Some(line) },
        other => other,
    }
}
