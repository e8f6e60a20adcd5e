//! Description of a dialect: its routes, their inputs and outputs, and its error format.

#![cfg_attr(not(test), expect(dead_code, reason = "the document of all routes is made of these, in a test"))]

use std::{convert::Infallible, sync::Arc};

use axum::{
    handler::Handler,
    routing::{MethodFilter, MethodRouter},
};
use serde::Serialize;
use serde_json::Value;

use super::request::parts::{self, FromBody};
use crate::{
    app::{App, shelf::Shelf},
    described::{JsonSchema, SchemaOf},
    http::{answer::value, error::ApiError},
};

/// An HTTP API that clients speak.
pub(super) struct Dialect {
    /// Name of the dialect in the OpenAPI document.
    pub(super) name: &'static str,
    pub(super) errors: Errors,
    /// Routes that are answered by a model.
    pub(super) routes: Vec<Route>,
    /// Routes that are answered by the server, whatever models it has.
    pub(super) of_server: Vec<Route<Arc<Shelf>>>,
}

/// The error format of a dialect.
#[derive(Clone, Copy)]
pub(super) struct Errors {
    /// Formats an error as the body that the dialect sends.
    pub(super) word: fn(&ApiError) -> Value,
    pub(super) schema: SchemaOf,
}

impl Dialect {
    /// Iterates over all routes: their paths and their operations.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&'static [&'static str], &[Operation])> {
        let of_models = self.routes.iter().map(|route| (route.paths, route.operations.as_slice()));
        of_models.chain(self.of_server.iter().map(|route| (route.paths, route.operations.as_slice())))
    }
}

impl Errors {
    /// Returns the format of errors whose body is a `T`.
    pub(super) fn of<T>() -> Errors
    where
        T: for<'a> From<&'a ApiError> + Serialize + JsonSchema,
    {
        Errors { word: |error| value(&T::from(error)), schema: SchemaOf::of::<T>() }
    }
}

/// Paths with one handler table and its documentation. Handlers take the state `S`: a model, or the server.
pub(super) struct Route<S = Arc<App>> {
    pub(super) paths: &'static [&'static str],
    pub(super) methods: MethodRouter<S>,
    pub(super) operations: Vec<Operation>,
}

/// The inputs and outputs of one method of a route.
pub(super) struct Operation {
    /// The method in lower case, as OpenAPI writes it.
    pub(super) method: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Option<SchemaOf>,
    /// Query parameters, each with its description.
    pub(super) query: &'static [(&'static str, &'static str)],
    pub(super) answer: Answer,
    /// Frames of the stream, if the body may ask for one.
    pub(super) stream: Option<Frames>,
    /// Statuses whose body has a schema of its own.
    pub(super) others: &'static [(&'static str, SchemaOf)],
}

/// The frames of a stream.
#[derive(Clone, Copy)]
pub(super) struct Frames {
    pub(super) media_type: &'static str,
    /// Schema of an event's data, or of a line.
    pub(super) schema: SchemaOf,
    /// True if a failing stream ends with the dialect's error object; otherwise a regular frame reports the
    /// error.
    pub(super) ends_with_error: bool,
}

/// The answer of a route.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// JSON of this schema.
    Json(SchemaOf),
    /// Bytes of one of these media types.
    Text(&'static [&'static str]),
    /// JSON of this schema, or text of this media type.
    JsonOrText(SchemaOf, &'static str),
    /// Errors only.
    Refusal,
}

/// Returns a route with these paths and no methods yet.
pub(super) fn at<S: Clone>(paths: &'static [&'static str]) -> Route<S> {
    Route { paths, methods: MethodRouter::new(), operations: Vec::new() }
}

/// Returns an operation that answers with JSON of type `T`.
pub(super) fn gives<T: JsonSchema>(summary: &'static str) -> Operation {
    answers(Answer::Json(SchemaOf::of::<T>()), summary)
}

/// Returns an operation with this answer.
pub(super) fn answers(answer: Answer, summary: &'static str) -> Operation {
    Operation { method: "", summary, body: None, query: &[], answer, stream: None, others: &[] }
}

impl Operation {
    /// Adds a request body.
    pub(super) fn takes<T: FromBody>(self) -> Operation {
        Operation { body: Some(parts::described::<T>()), ..self }
    }

    /// Adds query parameters.
    pub(super) fn asks(self, query: &'static [(&'static str, &'static str)]) -> Operation {
        Operation { query, ..self }
    }

    /// Adds a stream of server-sent events with this data, on request; a failing stream ends with the
    /// dialect's error.
    pub(super) fn streams<T: JsonSchema>(self) -> Operation {
        self.sends::<T>("text/event-stream", true)
    }

    /// Adds a stream of server-sent events that report failures themselves.
    pub(super) fn streams_all<T: JsonSchema>(self) -> Operation {
        self.sends::<T>("text/event-stream", false)
    }

    /// Adds a stream of JSON lines; a failing stream ends with the dialect's error.
    pub(super) fn streams_lines<T: JsonSchema>(self) -> Operation {
        self.sends::<T>("application/x-ndjson", true)
    }

    fn sends<T: JsonSchema>(self, media_type: &'static str, ends_with_error: bool) -> Operation {
        let frames = Frames { media_type, schema: SchemaOf::of::<T>(), ends_with_error };
        Operation { stream: Some(frames), ..self }
    }
}

/// Defines methods that add a handler with its description.
macro_rules! methods {
    ($($name:ident)*) => {
        impl<S: Clone + Send + Sync + 'static> Route<S> {$(
            pub(super) fn $name<H, T>(self, handler: H, operation: Operation) -> Route<S>
            where
                H: Handler<T, S>,
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
    /// Routes all methods of this route to one handler; other methods are refused as by the route itself.
    pub(super) fn behind<H, T, S>(&self, handler: H) -> MethodRouter<S>
    where
        H: Handler<T, S>,
        T: 'static,
        S: Clone + Send + Sync + 'static,
    {
        let methods = self.operations.iter().map(|operation| match operation.method {
            "get" => MethodFilter::GET,
            "post" => MethodFilter::POST,
            "put" => MethodFilter::PUT,
            "delete" => MethodFilter::DELETE,
            other => unreachable!("routes have no method {other}"),
        });
        methods.fold(MethodRouter::new(), |router, method| router.on(method, handler.clone()))
    }
}

impl<S> Route<S> {
    /// Wraps the handlers in a layer, such as one that admits administrators only.
    pub(super) fn through(
        self,
        layer: impl FnOnce(MethodRouter<S, Infallible>) -> MethodRouter<S>,
    ) -> Route<S> {
        Route { methods: layer(self.methods), ..self }
    }
}
