//! Anthropic's Messages API.

mod answer;
mod body;
mod client_tools;
mod count;
mod error;
mod event;
mod messages;
mod route;
mod thread;
mod tools;
mod version;

use axum::middleware;

pub(super) use self::body::{ManageFields, TellFields};

use super::route::{Dialect, Errors, at, gives};

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let message = gives::<event::Message>("Answers a conversation")
        .takes::<body::Fields>()
        .streams::<event::StreamEvent>();
    let count = gives::<count::MessageTokens>("Counts the tokens of a conversation").takes::<count::Fields>();
    let routes = [
        at(&["/v1/messages"]).post(route::route, message),
        at(&["/v1/messages/count_tokens"]).post(count::route, count),
    ];
    let versioned =
        routes.map(|route| route.through(|methods| methods.route_layer(middleware::from_fn(version::check))));
    Dialect {
        name: "anthropic",
        errors: Errors::of::<error::ErrorBody>(),
        routes: versioned.into(),
        of_server: Vec::new(),
    }
}
