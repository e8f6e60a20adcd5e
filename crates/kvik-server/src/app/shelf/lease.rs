//! Leases on models, and requests that wait for one.

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
use kvik_cache::TenantId;

use tokio::sync::oneshot;

use super::{Place, Shelf};
use crate::app::generation::{AnswerComputed, AnswerGoesOn};
use kvik_serving::settings::keep_alive::KeepAlive;

/// A lease, which keeps a model in memory until it is dropped.
pub(crate) struct Lease {
    /// The shelf and index where the lease is counted; `None` for an unloaded model.
    counted: Option<(Arc<Shelf>, usize)>,
    pub(crate) routes: Router,
    /// The tenant that uses the model; `None` for a question about the server, which does not extend the model's stay.
    user: Option<TenantId>,
    /// How long the model stays after this use; as its entry says with `None`.
    keep_alive: Option<KeepAlive>,
    /// How long the request waited for it.
    pub(crate) waited: Option<Duration>,
}

impl Lease {
    /// A lease for a tenant's use of a model, already counted.
    pub(super) fn of_use(shelf: Arc<Shelf>, index: usize, routes: Router, tenant: TenantId) -> Lease {
        Lease::new(Some((shelf, index)), routes, Some(tenant))
    }

    /// A lease for a question about the server that a model answers, already counted.
    pub(super) fn of_question(shelf: Arc<Shelf>, index: usize, routes: Router) -> Lease {
        Lease::new(Some((shelf, index)), routes, None)
    }

    /// A lease on the shade of an unloaded model, which answers questions about the server.
    pub(super) fn of_shade(routes: Router) -> Lease {
        Lease::new(None, routes, None)
    }

    fn new(counted: Option<(Arc<Shelf>, usize)>, routes: Router, user: Option<TenantId>) -> Lease {
        Lease { counted, routes, user, keep_alive: None, waited: None }
    }

    /// Sets how long the model stays after this use, on behalf of this tenant.
    pub(super) fn keeping(mut self, keep_alive: Option<KeepAlive>) -> Lease {
        self.keep_alive = keep_alive;
        self
    }

    pub(super) fn after(mut self, waited: Option<Duration>) -> Lease {
        self.waited = waited;
        self
    }

    /// Attaches the lease to a response, so that the model stays in memory until the whole answer is computed, however
    /// slowly its client reads. A complete answer no longer needs the model.
    pub(crate) fn until_the_end_of(self, response: Response) -> Response {
        let is_whole = response.body().size_hint().exact().is_some();
        if is_whole || self.user.is_none() || self.counted.as_ref().is_none_or(|(shelf, _)| shelf.has_one()) {
            return response;
        }
        if let Some(goes_on) = response.extensions().get::<AnswerGoesOn>().cloned() {
            tokio::spawn(async move {
                goes_on.wait().await;
                drop(self);
            });
            return response;
        }
        let computed = response.extensions().get::<AnswerComputed>().cloned();
        let held = match computed {
            Some(computed) => Held::ByTask { _read: self.until(computed) },
            None => Held::ByBody { _lease: self },
        };
        response.map(|body| Body::new(Leased { body, held: Some(held) }))
    }

    /// Releases the lease when the answer is computed, or the returned sender is dropped.
    fn until(self, computed: AnswerComputed) -> oneshot::Sender<()> {
        let (read, is_read) = oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                () = computed.wait() => {}
                _ = is_read => {}
            }
            drop(self);
        });
        read
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((shelf, index)) = self.counted.take() else { return };
        let now = shelf.now();
        let mut places = shelf.places();
        let Place { entry, standing, stay, .. } = &mut places[index];
        standing.in_use -= 1;
        if let Some(tenant) = self.user {
            let time = self.keep_alive.map_or(entry.keep_alive, |KeepAlive(time)| time);
            standing.used = now;
            standing.stays_until = stay.used(tenant, now, time);
        }
        drop(places);
        shelf.changed.notify_one();
    }
}

/// The body of an answer, with the lease on its model.
struct Leased {
    body: Body,
    held: Option<Held>,
}

/// A holder of a lease, which releases it when dropped at the latest.
enum Held {
    ByBody { _lease: Lease },
    ByTask { _read: oneshot::Sender<()> },
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
            self.held = None;
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

/// A request that waits for a model, counted until it is dropped.
pub(super) struct Waiting {
    shelf: Arc<Shelf>,
    index: usize,
}

impl Waiting {
    pub(super) fn begin(shelf: &Arc<Shelf>, index: usize) -> Waiting {
        shelf.places()[index].waiting += 1;
        Waiting { shelf: shelf.clone(), index }
    }

    /// Asks for the model, also once more: a failure to load it answers all who wait, but a reload may forget the failure
    /// before they have heard of it.
    pub(super) fn ask(&self) {
        let now = self.shelf.now();
        let mut places = self.shelf.places();
        let place = &mut places[self.index];
        // Requests do not wait for a removed model: they find out on their next lookup.
        if !place.is_gone {
            place.standing.awaited.get_or_insert(now);
        }
        drop(places);
        self.shelf.changed.notify_one();
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
