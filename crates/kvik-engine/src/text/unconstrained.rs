//! Stands for `constraint` where the feature `grammars` is off: a request that has a constraint is refused, and one whose
//! constraint only guides calls that the model makes by itself goes on without.

use std::sync::Arc;

use kvik_cache::{TenantId, Token};

use super::stream::Vocabulary;
use crate::api::{Constraint, RequestError};
use crate::sampler::{Sampler, Scratch};

/// A compiled constraint: there is none.
#[derive(Debug, Clone)]
pub enum Guide {}

/// What compiles constraints: it refuses them.
pub(crate) struct CompilerPool;

/// Receives a compiled constraint.
pub(crate) trait Waiter: Send {
    /// Takes the result.
    fn done(self: Box<Self>, guide: Result<Guide, RequestError>);
    /// Whether the client has disconnected.
    fn is_closed(&self) -> bool;
}

impl CompilerPool {
    pub(crate) fn of(_: Arc<Vocabulary>, _: usize) -> CompilerPool {
        CompilerPool
    }

    /// Tells `waiter` that there are no grammars.
    ///
    /// # Errors
    /// None: what is wrong is told to `waiter`.
    pub(crate) fn compile(
        &self,
        _: TenantId,
        _: &Constraint,
        waiter: Box<dyn Waiter>,
    ) -> Result<(), RequestError> {
        if !waiter.is_closed() {
            waiter.done(Err(RequestError::NoGrammars));
        }
        Ok(())
    }
}

impl Guide {
    pub(crate) fn choose(
        &mut self,
        _: &Sampler,
        _: &[f32],
        _: &mut Scratch,
    ) -> Result<Option<Token>, String> {
        match *self {}
    }

    pub(crate) fn accept(&mut self, _: Token) -> Result<bool, String> {
        match *self {}
    }

    pub(crate) fn forced(&mut self, _: usize) -> Vec<Token> {
        match *self {}
    }

    pub(crate) fn look_ahead(&mut self) {
        match *self {}
    }

    pub(crate) fn fork(&self) -> Guide {
        match *self {}
    }
}
