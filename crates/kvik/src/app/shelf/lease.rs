//! Who has a model, and who waits for one.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    response::Response,
};
use hyper::body::{Frame, SizeHint};

use super::Shelf;

/// A model that stays in memory until this is dropped.
pub(crate) struct Lease {
    /// Where it was counted, and which; nowhere for one that is out of memory.
    counted: Option<(Arc<Shelf>, usize)>,
    pub(crate) routes: Router,
    /// Whether the model has been of use by it.
    is_use: bool,
    /// How long the request waited for it.
    pub(crate) waited: Option<Duration>,
}

impl Lease {
    /// One that was counted.
    pub(super) fn new(shelf: Arc<Shelf>, index: usize, routes: Router) -> Lease {
        Lease { counted: Some((shelf, index)), routes, is_use: true, waited: None }
    }

    /// What is left of a model that is out of memory: it answers what is asked of the server.
    pub(super) fn of_shade(routes: Router) -> Lease {
        Lease { counted: None, routes, is_use: false, waited: None }
    }

    /// The same for who asks about the server: a model stays no longer for that.
    pub(super) fn for_a_question(mut self) -> Lease {
        self.is_use = false;
        self
    }

    pub(super) fn after(mut self, waited: Option<Duration>) -> Lease {
        self.waited = waited;
        self
    }

    /// The answer, which keeps the model in memory until its end; that to a question is whole and needs it no more.
    pub(crate) fn until_the_end_of(self, response: Response) -> Response {
        if !self.is_use || self.counted.as_ref().is_none_or(|(shelf, _)| shelf.has_one()) {
            return response;
        }
        response.map(|body| Body::new(Leased { body, lease: Some(self) }))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((shelf, index)) = self.counted.take() else { return };
        let now = shelf.now();
        let mut places = shelf.places();
        let standing = &mut places[index].standing;
        standing.in_use -= 1;
        if self.is_use {
            standing.used = now;
        }
        drop(places);
        shelf.changed.notify_one();
    }
}

/// The body of an answer, with the model that gives it.
struct Leased {
    body: Body,
    lease: Option<Lease>,
}

impl HttpBody for Leased {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.lease = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request that waits for a model; the place knows of it until this is dropped.
pub(super) struct Waiting {
    shelf: Arc<Shelf>,
    index: usize,
}

impl Waiting {
    pub(super) fn begin(shelf: &Arc<Shelf>, index: usize) -> Waiting {
        let now = shelf.now();
        let mut places = shelf.places();
        let place = &mut places[index];
        place.waiting += 1;
        // Nobody waits for what is gone: who looks again is told so.
        if !place.is_gone {
            place.standing.awaited.get_or_insert(now);
        }
        drop(places);
        shelf.changed.notify_one();
        Waiting { shelf: shelf.clone(), index }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut places = self.shelf.places();
        let place = &mut places[self.index];
        place.waiting -= 1;
        if place.waiting == 0 {
            place.standing.awaited = None;
        }
    }
}
