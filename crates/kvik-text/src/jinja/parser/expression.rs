//! Parses expressions, from the lowest precedence to the highest.

use super::super::ast::{Arguments, Comparison, Conditional, Expr, Operator, Step};
use super::super::lexer::Lexeme;
use super::{Parser, Result};

impl Parser {
    /// Parses an expression, or several separated by commas.
    pub(super) fn tuple(&mut self) -> Result<Expr> {
        self.tuple_of(Parser::expression)
    }

    /// [`Parser::tuple`] without a conditional expression: `if` belongs to the loop.
    pub(super) fn tuple_without_condition(&mut self) -> Result<Expr> {
        self.tuple_of(|parser| parser.nested(Parser::or))
    }

    fn tuple_of(&mut self, parse: impl Fn(&mut Parser) -> Result<Expr>) -> Result<Expr> {
        let first = parse(self)?;
        if !matches!(self.peek(), Lexeme::Operator(",")) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.operator(",") {
            if self.at_end_of_list() {
                break;
            }
            items.push(parse(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    fn at_end_of_list(&self) -> bool {
        matches!(self.peek(), Lexeme::EmitEnd | Lexeme::BlockEnd | Lexeme::Operator(")" | "]" | "="))
    }

    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(Parser::conditional_expression)
    }

    fn conditional_expression(&mut self) -> Result<Expr> {
        let then = self.or()?;
        if !self.word("if") {
            return Ok(then);
        }
        let condition = self.or()?;
        let otherwise = if self.word("else") { Some(self.expression()?) } else { None };
        Ok(Expr::If(Box::new(Conditional { condition, then, otherwise })))
    }

    pub(super) fn or(&mut self) -> Result<Expr> {
        let mut terms = vec![self.and()?];
        while self.word("or") {
            terms.push(self.and()?);
        }
        Ok(if terms.len() == 1 { terms.remove(0) } else { Expr::Or(terms) })
    }

    fn and(&mut self) -> Result<Expr> {
        let mut terms = vec![self.not()?];
        while self.word("and") {
            terms.push(self.not()?);
        }
        Ok(if terms.len() == 1 { terms.remove(0) } else { Expr::And(terms) })
    }

    fn not(&mut self) -> Result<Expr> {
        if self.word("not") {
            return Ok(Expr::Not(Box::new(self.nested(Parser::not)?)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(operator) = self.comparison_operator() {
            rest.push((operator, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn comparison_operator(&mut self) -> Option<Comparison> {
        let (operator, length) = match (self.peek(), self.peek_at(1)) {
            (Lexeme::Operator("=="), _) => (Comparison::Equal, 1),
            (Lexeme::Operator("!="), _) => (Comparison::NotEqual, 1),
            (Lexeme::Operator("<"), _) => (Comparison::Less, 1),
            (Lexeme::Operator("<="), _) => (Comparison::LessEqual, 1),
            (Lexeme::Operator(">"), _) => (Comparison::Greater, 1),
            (Lexeme::Operator(">="), _) => (Comparison::GreaterEqual, 1),
            (Lexeme::Name(word), _) if &**word == "in" => (Comparison::In, 1),
            (Lexeme::Name(not), Lexeme::Name(word)) if &**not == "not" && &**word == "in" => {
                (Comparison::NotIn, 2)
            }
            _ => return None,
        };
        self.at += length;
        Some(operator)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(Parser::join, &[("+", Operator::Add), ("-", Operator::Subtract)])
    }

    fn join(&mut self) -> Result<Expr> {
        self.chain(Parser::product, &[("~", Operator::Join)])
    }

    fn product(&mut self) -> Result<Expr> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.chain(Parser::power, &operators)
    }

    fn power(&mut self) -> Result<Expr> {
        self.chain(Parser::unary, &[("**", Operator::Power)])
    }

    /// Left-associative operators of one precedence.
    fn chain(
        &mut self,
        operand: fn(&mut Parser) -> Result<Expr>,
        operators: &[(&str, Operator)],
    ) -> Result<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.operator(text)) {
            rest.push((*operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    fn unary(&mut self) -> Result<Expr> {
        let value = self.signed()?;
        let mut steps = Vec::new();
        self.filters_and_tests(&mut steps)?;
        Ok(path(value, steps))
    }

    /// A sign binds tighter than a filter and looser than an attribute.
    fn signed(&mut self) -> Result<Expr> {
        if self.operator("-") {
            return Ok(Expr::Negative(Box::new(self.nested(Parser::signed)?)));
        }
        if self.operator("+") {
            return Ok(Expr::Positive(Box::new(self.nested(Parser::signed)?)));
        }
        let value = self.primary()?;
        let mut steps = Vec::new();
        while let Some(step) = self.postfix()? {
            steps.push(step);
        }
        Ok(path(value, steps))
    }

    fn filters_and_tests(&mut self, steps: &mut Vec<Step>) -> Result<()> {
        loop {
            if self.operator("|") {
                steps.push(self.filter()?);
            } else if self.word("is") {
                steps.push(self.test()?);
            } else if !steps.is_empty() && matches!(self.peek(), Lexeme::Operator("(")) {
                steps.push(Step::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        match self.peek() {
            Lexeme::Name(_) | Lexeme::Text(_) | Lexeme::Int(_) | Lexeme::Float(_) => {}
            Lexeme::Operator("(" | "[" | "{") => return self.nested(Parser::bracketed),
            _ => return self.unexpected("a value"),
        }
        Ok(match self.next() {
            Lexeme::Int(value) => Expr::Int(value),
            Lexeme::Float(value) => Expr::Float(value),
            Lexeme::Text(text) => self.joined_texts(text),
            Lexeme::Name(name) => match &*name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(name),
            },
            _ => unreachable!("it was peeked at"),
        })
    }

    /// Joins adjacent string literals.
    fn joined_texts(&mut self, first: std::sync::Arc<str>) -> Expr {
        let mut joined = first;
        while let Lexeme::Text(next) = self.peek() {
            joined = [&*joined, &**next].concat().into();
            self.at += 1;
        }
        Expr::Text(joined)
    }

    fn bracketed(&mut self) -> Result<Expr> {
        if self.operator("(") {
            if self.operator(")") {
                return Ok(Expr::Tuple(Vec::new()));
            }
            let inside = self.tuple()?;
            self.expect_operator(")")?;
            return Ok(inside);
        }
        if self.operator("[") {
            return self.items("]").map(Expr::List);
        }
        self.expect_operator("{")?;
        let mut pairs = Vec::new();
        while !self.operator("}") {
            if !pairs.is_empty() {
                self.expect_operator(",")?;
                if self.operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_operator(":")?;
            pairs.push((key, self.expression()?));
        }
        Ok(Expr::Map(pairs))
    }

    /// Expressions up to the closing bracket.
    fn items(&mut self, close: &str) -> Result<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.operator(close) {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.operator(close) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    /// `.name`, `[..]` or `(..)`
    fn postfix(&mut self) -> Result<Option<Step>> {
        if self.operator(".") {
            if let Lexeme::Int(index) = *self.peek() {
                self.at += 1;
                return Ok(Some(Step::Item(Expr::Int(index))));
            }
            return self.name().map(|name| Some(Step::Attribute(name)));
        }
        if self.operator("[") {
            return self.nested(Parser::subscript).map(Some);
        }
        match self.peek() {
            Lexeme::Operator("(") => self.arguments().map(|arguments| Some(Step::Call(arguments))),
            _ => Ok(None),
        }
    }

    fn subscript(&mut self) -> Result<Step> {
        let mut parts = [None, None, None];
        let mut part = 0;
        loop {
            if self.operator(":") {
                part += 1;
                if part > 2 {
                    return self.unexpected("\"]\"");
                }
            } else if self.operator("]") {
                break;
            } else if parts[part].is_none() {
                parts[part] = Some(self.tuple()?);
            } else {
                return self.unexpected("\"]\"");
            }
        }
        match (part, parts) {
            (0, [Some(index), _, _]) => Ok(Step::Item(index)),
            (0, _) => self.unexpected("an index"),
            (_, parts) => Ok(Step::Slice(Box::new(parts))),
        }
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.nested(|parser| {
            let mut arguments = Arguments::default();
            parser.expect_operator("(")?;
            let mut first = true;
            while !parser.operator(")") {
                if !std::mem::take(&mut first) {
                    parser.expect_operator(",")?;
                    if parser.operator(")") {
                        break;
                    }
                }
                parser.argument(&mut arguments)?;
            }
            Ok(arguments)
        })
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<()> {
        let named = matches!((self.peek(), self.peek_at(1)), (Lexeme::Name(_), Lexeme::Operator("=")));
        if named {
            let name = self.name()?;
            self.expect_operator("=")?;
            arguments.named.push((name, self.expression()?));
        } else if arguments.named.is_empty() {
            arguments.positional.push(self.expression()?);
        } else {
            return self.error("a positional argument follows a named one");
        }
        Ok(())
    }

    pub(super) fn filter(&mut self) -> Result<Step> {
        let name = self.name()?;
        let arguments = match self.peek() {
            Lexeme::Operator("(") => self.arguments()?,
            _ => Arguments::default(),
        };
        Ok(Step::Filter(name, arguments))
    }

    /// A test after `is`.
    fn test(&mut self) -> Result<Step> {
        let negated = self.word("not");
        let name = self.name()?;
        let ends = ["else", "or", "and", "is", "if", "not", "in", "recursive"];
        let arguments = match self.peek() {
            Lexeme::Operator("(") => self.arguments()?,
            Lexeme::Name(next) if ends.contains(&&**next) => Arguments::default(),
            Lexeme::Name(_)
            | Lexeme::Text(_)
            | Lexeme::Int(_)
            | Lexeme::Float(_)
            | Lexeme::Operator("[" | "{") => {
                // `is divisibleby 3`
                Arguments { positional: vec![self.signed()?], named: Vec::new() }
            }
            _ => Arguments::default(),
        };
        Ok(Step::Test { name, negated, arguments })
    }
}

fn path(value: Expr, mut steps: Vec<Step>) -> Expr {
    if steps.is_empty() {
        return value;
    }
    match value {
        Expr::Path(value, mut first) => {
            first.append(&mut steps);
            Expr::Path(value, first)
        }
        value => Expr::Path(Box::new(value), steps),
    }
}
