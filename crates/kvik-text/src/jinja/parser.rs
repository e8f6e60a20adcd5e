//! Parses lexemes into statements.

mod expression;

use std::sync::Arc;

use super::SyntaxError;
use super::ast::{Body, Expr, For, Macro, Statement, StatementKind, Step, Target};
use super::lexer::{Lexeme, Lexemes};

/// Maximum nesting of tags and brackets, because parsing and running recurse.
const DEPTH_MAX: usize = 100;

type Result<T> = std::result::Result<T, SyntaxError>;

/// The statements of a whole template.
pub(super) fn parse(lexemes: Lexemes) -> Result<Body> {
    let mut parser = Parser { lexemes, at: 0, depth: 0 };
    let (body, end) = parser.body(&[])?;
    debug_assert!(end.is_none(), "nothing ends the whole template");
    Ok(body)
}

struct Parser {
    lexemes: Lexemes,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Lexeme {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &Lexeme {
        // The last lexeme marks the end and is never consumed.
        &self.lexemes[(self.at + ahead).min(self.lexemes.len() - 1)].0
    }

    fn line(&self) -> u32 {
        self.lexemes[self.at.min(self.lexemes.len() - 1)].1
    }

    fn next(&mut self) -> Lexeme {
        let lexeme = self.peek().clone();
        self.at += 1;
        lexeme
    }

    fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(SyntaxError { reason: reason.into(), line: self.line() })
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let found = match self.peek() {
            Lexeme::Name(name) => format!("{name:?}"),
            Lexeme::Operator(operator) => format!("{operator:?}"),
            Lexeme::Text(_) => "a string".into(),
            Lexeme::Int(_) | Lexeme::Float(_) => "a number".into(),
            Lexeme::End | Lexeme::Raw(_) => "the end of the template".into(),
            Lexeme::EmitStart | Lexeme::EmitEnd | Lexeme::BlockStart | Lexeme::BlockEnd => {
                "the end of the tag".into()
            }
        };
        self.error(format!("expected {wanted}, found {found}"))
    }

    /// Consumes the operator, if it is next.
    fn operator(&mut self, operator: &str) -> bool {
        let found = matches!(self.peek(), Lexeme::Operator(next) if *next == operator);
        self.at += usize::from(found);
        found
    }

    fn expect_operator(&mut self, operator: &str) -> Result<()> {
        if self.operator(operator) { Ok(()) } else { self.unexpected(&format!("{operator:?}")) }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Lexeme::Name(name) if &**name == word)
    }

    /// Consumes the word, if it is next.
    fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    fn name(&mut self) -> Result<Arc<str>> {
        match self.peek() {
            Lexeme::Name(_) => {}
            _ => return self.unexpected("a name"),
        }
        let Lexeme::Name(name) = self.next() else { unreachable!("it was peeked at") };
        Ok(name)
    }

    fn block_end(&mut self) -> Result<()> {
        match self.peek() {
            Lexeme::BlockEnd => {
                self.at += 1;
                Ok(())
            }
            _ => self.unexpected("the end of the tag"),
        }
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.error(format!("nested deeper than {DEPTH_MAX} levels"));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses statements up to a tag with one of the words, and consumes that word.
    fn body(&mut self, ends: &[&'static str]) -> Result<(Body, Option<&'static str>)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.next() {
                Lexeme::Raw(text) => StatementKind::Raw(text),
                Lexeme::EmitStart => self.emit()?,
                Lexeme::BlockStart => {
                    if let Some(end) = ends.iter().find(|end| self.is_word(end)) {
                        self.at += 1;
                        return Ok((body, Some(end)));
                    }
                    self.nested(Parser::block)?
                }
                Lexeme::End if ends.is_empty() => return Ok((body, None)),
                Lexeme::End => return self.error(format!("expected a tag {:?}", ends[ends.len() - 1])),
                _ => unreachable!("a tag consumes its lexemes"),
            };
            body.push(Statement { line, kind });
        }
    }

    /// Parses statements up to the tag `end`, and consumes that tag.
    fn body_until(&mut self, end: &'static str) -> Result<Body> {
        let (body, _) = self.body(&[end])?;
        // `{% endblock name %}` may repeat the name.
        if end == "endblock" && matches!(self.peek(), Lexeme::Name(_)) {
            self.at += 1;
        }
        self.block_end()?;
        Ok(body)
    }

    fn emit(&mut self) -> Result<StatementKind> {
        let value = self.tuple()?;
        match self.peek() {
            Lexeme::EmitEnd => {
                self.at += 1;
                Ok(StatementKind::Emit(value))
            }
            _ => self.unexpected("\"}}\""),
        }
    }

    fn block(&mut self) -> Result<StatementKind> {
        let word = self.name()?;
        match &*word {
            "for" => self.for_loop(),
            "if" => self.conditional(),
            "set" => self.set(),
            "macro" => self.macro_definition(),
            "call" => self.call(),
            "filter" => self.filter_block(),
            "with" => self.with(),
            "generation" => self.block_end_then("endgeneration"),
            "autoescape" => {
                self.expression()?;
                self.block_end_then("endautoescape")
            }
            "block" => {
                self.name()?;
                self.block_end_then("endblock")
            }
            "break" => self.block_end().map(|()| StatementKind::Break),
            "continue" => self.block_end().map(|()| StatementKind::Continue),
            other => self.error(format!("unknown tag {other:?}")),
        }
    }

    fn block_end_then(&mut self, end: &'static str) -> Result<StatementKind> {
        self.block_end()?;
        Ok(StatementKind::Block(self.body_until(end)?))
    }

    fn for_loop(&mut self) -> Result<StatementKind> {
        let target = self.target()?;
        if !self.word("in") {
            return self.unexpected("\"in\"");
        }
        let items = self.tuple_without_condition()?;
        let filter = if self.word("if") { Some(self.expression()?) } else { None };
        self.word("recursive");
        self.block_end()?;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.block_end()?;
        let otherwise = if end == Some("else") { self.body_until("endfor")? } else { Vec::new() };
        Ok(StatementKind::For(Arc::new(For { target, items, filter, body, otherwise })))
    }

    fn conditional(&mut self) -> Result<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple()?;
            self.block_end()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match end {
                Some("elif") => {}
                Some("else") => {
                    self.block_end()?;
                    let otherwise = self.body_until("endif")?;
                    return Ok(StatementKind::If { branches, otherwise });
                }
                _ => {
                    self.block_end()?;
                    return Ok(StatementKind::If { branches, otherwise: Vec::new() });
                }
            }
        }
    }

    fn set(&mut self) -> Result<StatementKind> {
        let target = self.target()?;
        if self.operator("=") {
            let value = self.tuple()?;
            self.block_end()?;
            return Ok(StatementKind::Set { target, value });
        }
        let filters = self.filters()?;
        self.block_end()?;
        let body = self.body_until("endset")?;
        Ok(StatementKind::Capture { target, filters, body })
    }

    fn macro_definition(&mut self) -> Result<StatementKind> {
        let name = self.name()?;
        let parameters = self.parameters()?;
        self.block_end()?;
        let body = self.body_until("endmacro")?;
        Ok(StatementKind::Macro(Arc::new(Macro { name, parameters, body })))
    }

    /// `(a, b=1)`
    fn parameters(&mut self) -> Result<Vec<(Arc<str>, Option<Expr>)>> {
        let mut parameters = Vec::new();
        self.expect_operator("(")?;
        while !self.operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            if self.operator(")") {
                break;
            }
            let name = self.name()?;
            let default = if self.operator("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn call(&mut self) -> Result<StatementKind> {
        let parameters =
            if matches!(self.peek(), Lexeme::Operator("(")) { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        self.block_end()?;
        let body = self.body_until("endcall")?;
        let caller = Arc::new(Macro { name: "caller".into(), parameters, body });
        Ok(StatementKind::Call { call, caller })
    }

    fn filter_block(&mut self) -> Result<StatementKind> {
        let first = self.filter()?;
        let mut filters = vec![first];
        filters.extend(self.filters()?);
        self.block_end()?;
        Ok(StatementKind::Filter { filters, body: self.body_until("endfilter")? })
    }

    /// `| a | b`
    fn filters(&mut self) -> Result<Vec<Step>> {
        let mut filters = Vec::new();
        while self.operator("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn with(&mut self) -> Result<StatementKind> {
        let mut values = Vec::new();
        while !matches!(self.peek(), Lexeme::BlockEnd) {
            if !values.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.single_target()?;
            self.expect_operator("=")?;
            values.push((target, self.expression()?));
        }
        self.block_end()?;
        Ok(StatementKind::With { values, body: self.body_until("endwith")? })
    }

    /// The target of an assignment; several names unpack a list.
    fn target(&mut self) -> Result<Target> {
        let first = self.single_target()?;
        if !matches!(self.peek(), Lexeme::Operator(",")) {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.operator(",") {
            if !matches!(self.peek(), Lexeme::Name(_) | Lexeme::Operator("(")) || self.is_word("in") {
                break;
            }
            targets.push(self.single_target()?);
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self) -> Result<Target> {
        if self.operator("(") {
            let target = self.nested(Parser::target)?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if self.operator(".") {
            return Ok(Target::Field(name, self.name()?));
        }
        Ok(Target::Name(name))
    }
}
