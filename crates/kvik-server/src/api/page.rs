//! The routes of the web page; they require no key.

use super::route::{Answer, Dialect, Errors, Operation, answers, at};
use crate::{http::error::ErrorBody, page};

/// Returns the routes of this dialect, whose answers are files.
pub(super) fn dialect() -> Dialect {
    let index = file(&["text/html"], "The page for people: chat, and what the cache does");
    let rest = file(
        &[
            "text/html",
            "text/javascript",
            "text/css",
            "application/json",
            "image/svg+xml",
            "image/png",
            "image/x-icon",
        ],
        "What the page loads",
    );
    let of_server = vec![at(&[page::ROOT]).get(page::index, index), at(&[page::FILES]).get(page::file, rest)];
    Dialect { name: "page", errors: Errors::of::<ErrorBody>(), routes: Vec::new(), of_server }
}

fn file(kinds: &'static [&'static str], summary: &'static str) -> Operation {
    answers(Answer::Text(kinds), summary)
}
