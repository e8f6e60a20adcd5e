//! The sockets: PUB for what happens, ROUTER for what was missed, as vLLM's `ZmqEventPublisher` has them.
//!
//! A message is `[topic, number, payload]`, a request `["", number]` (a REQ adds the empty part itself), its answers
//! `["", number, payload]`, the last of them with number -1 and nothing; numbers have 8 bytes, the largest first.
//!
//! Nothing is queued for a peer: each has the number of the step that it gets next, and holds one step at a time. A peer
//! that is slower than steps are dropped sees a gap in the numbers.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::steps::{Step, Steps};
use super::subscriptions::Subscriptions;
use super::zmtp::{self, Incoming, Receiver, Sender, SocketType, ZmtpError};

/// The number of the message that ends an answer.
const END: i64 = -1;
/// Requests and PINGs of a peer that wait for those before; a peer that sends more is not read meanwhile.
const WAITING_MAX: usize = 4;

/// Publishes all steps, as long as the runtime runs.
pub(super) fn publish(listener: TcpListener, topic: Bytes, steps: Arc<Steps>) -> io::Result<()> {
    zmtp::serve(listener, SocketType::Pub, move |receiver, sender| {
        to_subscriber(receiver, sender, topic.clone(), steps.clone())
    })
}

/// Answers peers that missed something, as long as the runtime runs.
pub(super) fn replay(listener: TcpListener, steps: Arc<Steps>) -> io::Result<()> {
    zmtp::serve(listener, SocketType::Router, move |receiver, sender| {
        answer_requests(receiver, sender, steps.clone())
    })
}

async fn to_subscriber<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    receiver: Receiver<R>,
    sender: Sender<W>,
    topic: Bytes,
    steps: Arc<Steps>,
) -> Result<(), ZmtpError> {
    let wanted = Mutex::default();
    let (pings, contexts) = mpsc::channel(WAITING_MAX);
    tokio::select! {
        ended = follow_wishes(receiver, &wanted, pings) => ended,
        ended = send_steps(sender, &wanted, contexts, topic, &steps) => ended,
    }
}

/// Keeps what a subscriber wants; ends with the connection.
async fn follow_wishes<R: AsyncRead + Unpin>(
    mut receiver: Receiver<R>,
    wanted: &Mutex<Subscriptions>,
    pings: mpsc::Sender<Bytes>,
) -> Result<(), ZmtpError> {
    // No call below panics while it is held.
    let wanted = || wanted.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(incoming) = receiver.receive().await? {
        match incoming {
            Incoming::Subscribe(topic) => wanted().add(topic)?,
            Incoming::Cancel(topic) => wanted().remove(&topic),
            Incoming::Message(parts) => wanted().take_message(&parts)?,
            // The other side ends with this one.
            Incoming::Ping(context) => pings.send(context).await.unwrap_or(()),
        }
    }
    Ok(())
}

/// Sends what happens from now on, as far as it is wanted.
async fn send_steps<W: AsyncWrite + Unpin>(
    mut sender: Sender<W>,
    wanted: &Mutex<Subscriptions>,
    mut pings: mpsc::Receiver<Bytes>,
    topic: Bytes,
    steps: &Steps,
) -> Result<(), ZmtpError> {
    let mut next = steps.end();
    loop {
        tokio::select! {
            Some(context) = pings.recv() => sender.pong(&context).await?,
            Step { number, payload } = steps.wait_from(next) => {
                next = number + 1;
                let is_wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner).want(&topic);
                if is_wanted {
                    sender.send(&[topic.clone(), number_bytes(number), payload]).await?;
                }
            }
        }
    }
}

async fn answer_requests<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut receiver: Receiver<R>,
    mut sender: Sender<W>,
    steps: Arc<Steps>,
) -> Result<(), ZmtpError> {
    while let Some(incoming) = receiver.receive().await? {
        match incoming {
            Incoming::Ping(context) => sender.pong(&context).await?,
            Incoming::Message(parts) => {
                if let Some(from) = requested(&parts) {
                    answer(&mut sender, from, &steps).await?;
                }
            }
            Incoming::Subscribe(_) | Incoming::Cancel(_) => {}
        }
    }
    Ok(())
}

/// The number from which on steps are asked for; none if it is no such request.
fn requested(parts: &[Bytes]) -> Option<u64> {
    let [empty, number] = parts else { return None };
    let number = <[u8; 8]>::try_from(number.as_ref()).ok().filter(|_| empty.is_empty())?;
    Some(u64::from_be_bytes(number))
}

/// Sends the kept steps from a number on, up to those that are there when the answer begins: later ones are not missed.
async fn answer<W: AsyncWrite + Unpin>(
    sender: &mut Sender<W>,
    mut from: u64,
    steps: &Steps,
) -> Result<(), ZmtpError> {
    let end = steps.end();
    while let Some(Step { number, payload }) = steps.first_from(from).filter(|step| step.number < end) {
        from = number + 1;
        sender.send(&[Bytes::new(), number_bytes(number), payload]).await?;
    }
    let last = Bytes::copy_from_slice(&END.to_be_bytes());
    sender.send(&[Bytes::new(), last, Bytes::new()]).await
}

fn number_bytes(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}
