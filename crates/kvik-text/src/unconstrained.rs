//! Replacement of `constraint` without the feature `grammars`: a request with a constraint is refused, and one
//! whose constraint only guides optional calls continues without it.

use std::sync::Arc;

use kvik_cache::{TenantId, Token};

use super::stream::Vocabulary;
use crate::forms::{Constraint, ConstraintError};
use crate::sampler::{Sampler, Scratch};

/// An uninhabited type in place of compiled constraints.
#[derive(Debug, Clone)]
pub enum Guide {}

/// A compiler pool that refuses all constraints.
pub struct CompilerPool;

/// Receives a compiled constraint.
pub trait Waiter: Send {
    /// Takes the result.
    fn done(self: Box<Self>, guide: Result<Guide, ConstraintError>);
    /// Whether the client has disconnected.
    fn is_closed(&self) -> bool;
}

impl CompilerPool {
    /// A pool that refuses constraints over any vocabulary.
    pub fn of(_: Arc<Vocabulary>, _: usize) -> CompilerPool {
        CompilerPool
    }

    /// Reports to `waiter` that there are no grammars.
    ///
    /// # Errors
    /// None: errors are reported to `waiter`.
    pub fn compile(
        &self,
        _: TenantId,
        _: &Constraint,
        waiter: Box<dyn Waiter>,
    ) -> Result<(), ConstraintError> {
        if !waiter.is_closed() {
            waiter.done(Err(ConstraintError::NoGrammars));
        }
        Ok(())
    }
}

impl Guide {
    /// The next token.
    pub fn choose(&mut self, _: &Sampler, _: &[f32], _: &mut Scratch) -> Result<Option<Token>, String> {
        match *self {}
    }

    /// Accepts a token.
    pub fn accept(&mut self, _: Token) -> Result<bool, String> {
        match *self {}
    }

    /// Tokens that must come next.
    pub fn forced(&mut self, _: usize) -> Vec<Token> {
        match *self {}
    }

    /// Prepares the next choice.
    pub fn look_ahead(&mut self) {
        match *self {}
    }

    /// A copy for another continuation.
    pub fn fork(&self) -> Guide {
        match *self {}
    }
}
