//! A request and its answer on a connection.
//!
//! An answer may be ready before the request's body has been read: a key is missing, the route does not
//! exist, a rate limit is exceeded. Then the rest of the body is read, up to a limit, so that the next
//! request on the connection can be parsed; beyond the limit, the answer announces that the connection
//! closes.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, Version, header},
};
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint},
    service::Service,
};
use hyper_util::service::TowerToHyperService;
use tokio::time::timeout;

use super::{
    connections::{Open, Phase},
    front::Front,
};

/// Maximum bytes of the rest of a body that are read to keep the connection open.
const REST_BYTES: u64 = 1 << 20;
/// Maximum time for reading the rest: the answer waits meanwhile.
const REST_TIME: Duration = Duration::from_secs(1);

/// Answers the requests of one connection.
pub(super) struct Exchange {
    front: Arc<Front>,
    open: Arc<Open>,
    /// True if an answer was sent before all of its request was read.
    left_unread: Arc<AtomicBool>,
}

impl Exchange {
    pub(super) fn new(front: Arc<Front>, open: Arc<Open>) -> Exchange {
        Exchange { front, open, left_unread: Arc::default() }
    }

    /// A flag that tells, after the end of the connection, whether the client may still be sending.
    pub(super) fn left_unread(&self) -> Arc<AtomicBool> {
        self.left_unread.clone()
    }
}

impl Service<Request<Incoming>> for Exchange {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (open, left_unread) = (self.open.clone(), self.left_unread.clone());
        open.set_knows_interim(request.version() > Version::HTTP_10);
        let (parts, body) = request.into_parts();
        let body = Received::new(body, open.clone());
        let may_hold_back = parts.headers.contains_key(header::EXPECT);
        let request = Request::from_parts(parts, Body::new(body.clone()));
        let answer = TowerToHyperService::new(self.front.router()).call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            if !body.read_rest(may_hold_back).await {
                left_unread.store(true, Ordering::Relaxed);
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            open.enter(Phase::Responding);
            Ok(answer.map(|body| Answer { body, open }))
        })
    }
}

/// The body of a request, which outlives its reader.
#[derive(Clone)]
struct Received {
    state: Arc<Mutex<State>>,
    open: Arc<Open>,
}

struct State {
    body: Incoming,
    /// True once the body was polled; before, the client may be waiting for `100 Continue`.
    is_asked: bool,
    has_ended: bool,
}

impl Received {
    fn new(body: Incoming, open: Arc<Open>) -> Received {
        let has_ended = body.is_end_stream();
        open.enter(if has_ended { Phase::Working } else { Phase::Receiving });
        Received { state: Arc::new(Mutex::new(State { body, is_asked: false, has_ended })), open }
    }

    /// Reads the rest of the body; returns false if it is too long or too slow.
    async fn read_rest(mut self, may_hold_back: bool) -> bool {
        let (is_held_back, has_ended, left) = {
            let state = self.lock();
            (may_hold_back && !state.is_asked, state.has_ended, state.body.size_hint().lower())
        };
        if has_ended || is_held_back || left > REST_BYTES {
            return has_ended;
        }
        let mut rest = REST_BYTES;
        let read = async {
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut self).poll_frame(cx)).await {
                let length = frame.ok()?.data_ref().map_or(0, Bytes::len) as u64;
                rest = rest.checked_sub(length)?;
            }
            Some(())
        };
        timeout(REST_TIME, read).await.is_ok_and(|read| read.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // hyper's body stays usable after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut state = self.lock();
        state.is_asked = true;
        let frame = ready!(Pin::new(&mut state.body).poll_frame(cx));
        if frame.is_none() || state.body.is_end_stream() {
            state.has_ended = true;
            if self.open.phase() == Phase::Receiving {
                self.open.enter(Phase::Working);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

/// The body of an answer. Dropping it ends the exchange.
pub(super) struct Answer {
    body: Body,
    open: Arc<Open>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.open.enter(Phase::Idle);
    }
}
