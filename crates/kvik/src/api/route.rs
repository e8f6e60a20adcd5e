//! What a dialect brings: its routes, what each takes and gives, and the words of its errors.

use std::{convert::Infallible, sync::Arc};

use axum::{handler::Handler, routing::MethodRouter};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use super::request::parts::{self, FromBody};
use crate::{app::App, http::error::ApiError};

/// One API that programs speak.
pub(super) struct Dialect {
    /// Its name in the document of all routes.
    pub(super) name: &'static str,
    /// The body of an error in its shape.
    pub(super) error: ErrorBody,
    pub(super) routes: Vec<Route>,
}

/// Words an error.
pub(super) type ErrorBody = fn(&ApiError) -> Value;

/// Paths that lead to the same, what answers there, and what is said about it.
pub(super) struct Route {
    pub(super) paths: &'static [&'static str],
    pub(super) methods: MethodRouter<Arc<App>>,
    pub(super) operations: Vec<Operation>,
}

/// What one method of a route takes and gives.
pub(super) struct Operation {
    /// In lower case, as OpenAPI writes it.
    pub(super) method: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Option<fn(&mut SchemaGenerator) -> Schema>,
    /// Parameters of the query, each with what it means.
    pub(super) query: &'static [(&'static str, &'static str)],
    pub(super) answer: Answer,
    /// The answer may be a stream of events.
    pub(super) streams: bool,
}

/// What a route answers with.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// JSON of this schema.
    Json(fn() -> Value),
    /// Bytes of one of these media types.
    Text(&'static [&'static str]),
}

/// One route under all its names.
pub(super) fn at(paths: &'static [&'static str]) -> Route {
    Route { paths, methods: MethodRouter::new(), operations: Vec::new() }
}

/// An operation that answers with JSON.
pub(super) fn gives(answer: fn() -> Value, summary: &'static str) -> Operation {
    Operation { method: "", summary, body: None, query: &[], answer: Answer::Json(answer), streams: false }
}

impl Operation {
    /// Reads a body.
    pub(super) fn takes<T: FromBody>(self) -> Operation {
        Operation { body: Some(parts::schema::<T>), ..self }
    }

    /// Takes parameters in the query.
    pub(super) fn asks(self, query: &'static [(&'static str, &'static str)]) -> Operation {
        Operation { query, ..self }
    }

    /// Answers with a stream where the body asks for it.
    pub(super) fn streams(self) -> Operation {
        Operation { streams: true, ..self }
    }
}

/// A method of a route, which comes with what is said about it.
macro_rules! methods {
    ($($name:ident)*) => {
        impl Route {$(
            pub(super) fn $name<H, T>(self, handler: H, operation: Operation) -> Route
            where
                H: Handler<T, Arc<App>>,
                T: 'static,
            {
                let mut operations = self.operations;
                operations.push(Operation { method: stringify!($name), ..operation });
                Route { methods: self.methods.$name(handler), operations, ..self }
            }
        )*}
    };
}

methods! { get post put delete }

impl Route {
    /// The same for the admin only, and other conditions that a layer holds.
    pub(super) fn through(
        self,
        layer: impl FnOnce(MethodRouter<Arc<App>, Infallible>) -> MethodRouter<Arc<App>>,
    ) -> Route {
        Route { methods: layer(self.methods), ..self }
    }
}
