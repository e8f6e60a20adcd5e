//! A compiled constraint, and an answer that follows it.
//!
//! Compiled grammars are shared: all prompts of a request, its choices and later requests of the
//! same tenant have one [`Template`]. An answer gets lexer caches of its own with its first token,
//! so that a queue of requests holds no more than their templates.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::{Matcher, TokenParser};
use toktrie::SimpleVob;

use super::budget::Charge;
use super::watch::Watch;

const UNSATISFIABLE: &str = "no answer can satisfy it";

/// A compiled constraint.
pub(super) struct Template {
    matcher: Mutex<Matcher>,
    watch: Watch,
    /// Bytes that it takes, about.
    pub(super) bytes: usize,
    /// What it was charged to, once it is shared.
    pub(super) charge: Mutex<Option<Charge>>,
}

/// A constraint together with the answer so far.
pub struct Guide {
    template: Arc<Template>,
    /// The answer's own parser, from its first token on.
    matcher: Option<Matcher>,
}

/// What a constraint says about the next token.
pub enum Allowed {
    /// One of these tokens.
    Tokens(SimpleVob),
    /// Nothing more: the answer is complete.
    Nothing,
}

impl Template {
    /// Makes sure that some answer can satisfy the constraint.
    pub(super) fn new(parser: TokenParser, bytes: usize, watch: &Watch) -> Result<Template, String> {
        let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
        match allowed(&mut matcher, watch)? {
            Allowed::Tokens(_) => {}
            Allowed::Nothing => return Err(UNSATISFIABLE.to_owned()),
        }
        let matcher = Mutex::new(matcher);
        Ok(Template { matcher, watch: watch.clone(), bytes, charge: Mutex::default() })
    }

    fn fork(&self) -> Matcher {
        // Cloning changes nothing, so what panicked in it left the original whole.
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

impl Guide {
    pub(super) fn new(template: Arc<Template>) -> Guide {
        Guide { template, matcher: None }
    }

    /// The tokens that may come next.
    pub fn allowed(&mut self) -> Result<Allowed, String> {
        let (matcher, watch) = self.parts();
        allowed(matcher, watch)
    }

    /// Takes note of the token that was chosen; whether the answer is complete with it.
    pub fn accept(&mut self, token: kvik_cache::Token) -> Result<bool, String> {
        let (matcher, watch) = self.parts();
        let _watched = matcher.cancellation_handle().map(|handle| watch.over(handle));
        matcher.consume_token(token).map_err(|error| worded(matcher, &error.to_string()))?;
        Ok(matcher.is_stopped())
    }

    /// A copy with its own lexer caches, for another choice.
    pub fn fork(&self) -> Guide {
        Guide { template: self.template.clone(), matcher: self.matcher.as_ref().map(Matcher::deep_clone) }
    }

    /// Whether both were compiled at the same time.
    #[cfg(test)]
    pub(super) fn is_one_with(&self, other: &Guide) -> bool {
        Arc::ptr_eq(&self.template, &other.template)
    }

    fn parts(&mut self) -> (&mut Matcher, &Watch) {
        (self.matcher.get_or_insert_with(|| self.template.fork()), &self.template.watch)
    }
}

fn allowed(matcher: &mut Matcher, watch: &Watch) -> Result<Allowed, String> {
    if matcher.is_stopped() && !matcher.is_error() {
        return Ok(Allowed::Nothing);
    }
    let _watched = matcher.cancellation_handle().map(|handle| watch.over(handle));
    let mask = matcher.compute_mask().map_err(|error| worded(matcher, &error.to_string()))?;
    Ok(if mask.is_zero() { Allowed::Nothing } else { Allowed::Tokens(mask) })
}

fn worded(matcher: &Matcher, error: &str) -> String {
    if matcher.is_cancelled() {
        return "it is too ambiguous: one token took longer than a step of all requests may; write each text in one way only"
            .to_owned();
    }
    if error.starts_with("NoExtension") {
        return UNSATISFIABLE.to_owned();
    }
    first_lines(error)
}

/// The start of a message; the rest of llguidance's is its own state.
pub(super) fn first_lines(message: &str) -> String {
    let message = ["\n<state>", "\n<non-verbose/>"]
        .iter()
        .fold(message, |message, end| message.find(end).map_or(message, |at| &message[..at]));
    message.chars().take(500).collect::<String>().trim().to_owned()
}

impl Clone for Guide {
    fn clone(&self) -> Guide {
        self.fork()
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").finish_non_exhaustive()
    }
}
