//! The syntax tree of a template. Chains of operators are lists, so that the depth of the tree is at most
//! the nesting of the source.

use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Statement {
    /// From 1.
    pub(super) line: u32,
    pub(super) kind: StatementKind,
}

pub(super) type Body = Vec<Statement>;

#[derive(Debug)]
pub(super) enum StatementKind {
    /// Text between tags.
    Raw(Arc<str>),
    /// `{{ .. }}`
    Emit(Expr),
    For(Arc<For>),
    If {
        branches: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    Set {
        target: Target,
        value: Expr,
    },
    /// `{% set x %}..{% endset %}`
    Capture {
        target: Target,
        filters: Vec<Step>,
        body: Body,
    },
    Macro(Arc<Macro>),
    /// `{% call f() %}..{% endcall %}`: the body is the macro `caller`.
    Call {
        call: Expr,
        caller: Arc<Macro>,
    },
    Filter {
        filters: Vec<Step>,
        body: Body,
    },
    With {
        values: Vec<(Target, Expr)>,
        body: Body,
    },
    /// Tags without effect on rendering, such as `{% generation %}`.
    Block(Body),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<(Arc<str>, Option<Expr>)>,
    pub(super) body: Body,
}

/// The target of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// A field of a namespace.
    Field(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// Left-associative operators of one precedence.
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    /// `a < b < c`
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    If(Box<Conditional>),
    /// A value and the steps applied to it: `.a[0](1) | trim is defined`.
    Path(Box<Expr>, Vec<Step>),
}

#[derive(Debug)]
pub(super) struct Conditional {
    pub(super) condition: Expr,
    pub(super) then: Expr,
    pub(super) otherwise: Option<Expr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Join,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

#[derive(Debug)]
pub(super) enum Step {
    Attribute(Arc<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Arguments),
    Filter(Arc<str>, Arguments),
    Test { name: Arc<str>, negated: bool, arguments: Arguments },
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
}
