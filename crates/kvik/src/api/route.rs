//! What a dialect brings: its routes, what each takes and gives, and the words of its errors.

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

/// One API that programs speak.
pub(super) struct Dialect {
    /// Its name in the document of all routes.
    pub(super) name: &'static str,
    pub(super) errors: Errors,
    /// Routes that a model answers.
    pub(super) routes: Vec<Route>,
    /// Routes that the server answers, whatever models it has.
    pub(super) of_server: Vec<Route<Arc<Shelf>>>,
}

/// How a dialect words an error.
#[derive(Clone, Copy)]
pub(super) struct Errors {
    /// The body of an error in its shape.
    pub(super) word: fn(&ApiError) -> Value,
    pub(super) schema: SchemaOf,
}

impl Dialect {
    /// All its routes: their paths, and what each does.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&'static [&'static str], &[Operation])> {
        let of_models = self.routes.iter().map(|route| (route.paths, route.operations.as_slice()));
        of_models.chain(self.of_server.iter().map(|route| (route.paths, route.operations.as_slice())))
    }
}

impl Errors {
    /// Errors whose body is a `T`.
    pub(super) fn of<T>() -> Errors
    where
        T: for<'a> From<&'a ApiError> + Serialize + JsonSchema,
    {
        Errors { word: |error| value(&T::from(error)), schema: SchemaOf::of::<T>() }
    }
}

/// Paths that lead to the same, what answers there, and what is said about it. Handlers have `S`: the model, or the server.
pub(super) struct Route<S = Arc<App>> {
    pub(super) paths: &'static [&'static str],
    pub(super) methods: MethodRouter<S>,
    pub(super) operations: Vec<Operation>,
}

/// What one method of a route takes and gives.
pub(super) struct Operation {
    /// In lower case, as OpenAPI writes it.
    pub(super) method: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Option<SchemaOf>,
    /// Parameters of the query, each with what it means.
    pub(super) query: &'static [(&'static str, &'static str)],
    pub(super) answer: Answer,
    /// Where the body may ask for a stream.
    pub(super) stream: Option<Frames>,
    /// Statuses whose body has a shape of its own.
    pub(super) others: &'static [(&'static str, SchemaOf)],
}

/// What a stream is made of.
#[derive(Clone, Copy)]
pub(super) struct Frames {
    pub(super) media_type: &'static str,
    /// The data of an event, or a line.
    pub(super) schema: SchemaOf,
    /// A stream that fails ends with the error as the dialect words it; else one of the frames says it.
    pub(super) ends_with_error: bool,
}

/// What a route answers with.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// JSON of this schema.
    Json(SchemaOf),
    /// Bytes of one of these media types.
    Text(&'static [&'static str]),
    /// Either: JSON of this schema, or a text of this media type.
    JsonOrText(SchemaOf, &'static str),
    /// Nothing but errors.
    Refusal,
}

/// One route under all its names.
pub(super) fn at<S: Clone>(paths: &'static [&'static str]) -> Route<S> {
    Route { paths, methods: MethodRouter::new(), operations: Vec::new() }
}

/// An operation that answers with JSON of this type.
pub(super) fn gives<T: JsonSchema>(summary: &'static str) -> Operation {
    answers(Answer::Json(SchemaOf::of::<T>()), summary)
}

/// An operation that answers so.
pub(super) fn answers(answer: Answer, summary: &'static str) -> Operation {
    Operation { method: "", summary, body: None, query: &[], answer, stream: None, others: &[] }
}

impl Operation {
    /// Reads a body.
    pub(super) fn takes<T: FromBody>(self) -> Operation {
        Operation { body: Some(parts::described::<T>()), ..self }
    }

    /// Takes parameters in the query.
    pub(super) fn asks(self, query: &'static [(&'static str, &'static str)]) -> Operation {
        Operation { query, ..self }
    }

    /// Answers with a stream where the body asks for it: of events with this data, the error of one that fails too.
    pub(super) fn streams<T: JsonSchema>(self) -> Operation {
        self.sends::<T>("text/event-stream", true)
    }

    /// The same, of events that also say what went wrong.
    pub(super) fn streams_all<T: JsonSchema>(self) -> Operation {
        self.sends::<T>("text/event-stream", false)
    }

    /// The same, of lines.
    pub(super) fn streams_lines<T: JsonSchema>(self) -> Operation {
        self.sends::<T>("application/x-ndjson", true)
    }

    fn sends<T: JsonSchema>(self, media_type: &'static str, ends_with_error: bool) -> Operation {
        let frames = Frames { media_type, schema: SchemaOf::of::<T>(), ends_with_error };
        Operation { stream: Some(frames), ..self }
    }
}

/// A method of a route, which comes with what is said about it.
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
    /// One handler behind all its methods, which refuses others as the route itself does.
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
    /// The same for the admin only, and other conditions that a layer holds.
    pub(super) fn through(
        self,
        layer: impl FnOnce(MethodRouter<S, Infallible>) -> MethodRouter<S>,
    ) -> Route<S> {
        Route { methods: layer(self.methods), ..self }
    }
}
