//! The sockets, as those of vLLM's `ZmqEventPublisher`: PUB for new steps, ROUTER for missed ones.
//!
//! A message is `[topic, number, payload]`, a request `["", number]` (a REQ socket adds the empty part itself), its
//! answers `["", number, payload]`, the last of them with number -1 and an empty payload; numbers are 8 bytes,
//! big-endian.
//!
//! Nothing is queued for a peer: each connection stores the number of its next step, and holds one step at a time. A
//! peer that is slower than steps are dropped sees a gap in the numbers.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::steps::{Step, Steps};
use super::subscriptions::Subscriptions;
use super::zmtp::{self, Incoming, Receiver, Sender, SocketType, ZmtpError};

/// The number of the message that ends an answer.
const END: i64 = -1;
/// Maximum pending requests and PINGs of a peer; reading from a peer that sends more is suspended.
const WAITING_MAX: usize = 4;
/// How long a peer may ask for nothing before its place is another's: ZeroMQ connects again by itself.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Publishes all steps, as long as the runtime runs.
pub(super) fn publish(listener: TcpListener, topic: Bytes, steps: Arc<Steps>) -> io::Result<()> {
    zmtp::serve(listener, SocketType::Pub, move |receiver, sender| {
        to_subscriber(receiver, sender, topic.clone(), steps.clone())
    })
}

/// Answers requests for missed steps, as long as the runtime runs.
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

/// Updates a subscriber's topics; ends with the connection.
async fn follow_wishes<R: AsyncRead + Unpin>(
    mut receiver: Receiver<R>,
    wanted: &Mutex<Subscriptions>,
    pings: mpsc::Sender<Bytes>,
) -> Result<(), ZmtpError> {
    // No call below panics while the lock is held.
    let wanted = || wanted.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(incoming) = receiver.receive().await? {
        match incoming {
            Incoming::Subscribe(topic) => wanted().add(topic)?,
            Incoming::Cancel(topic) => wanted().remove(&topic),
            Incoming::Message(parts) => wanted().take_message(&parts)?,
            // If this fails, the sending task has ended, and both end together.
            Incoming::Ping(context) => pings.send(context).await.unwrap_or(()),
        }
    }
    Ok(())
}

/// Sends the steps from now on that match the subscriber's topics.
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
    while let Ok(received) = timeout(IDLE_MAX, receiver.receive()).await {
        let Some(incoming) = received? else { break };
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

/// The number of the first requested step; `None` if the message is not a request.
fn requested(parts: &[Bytes]) -> Option<u64> {
    let [empty, number] = parts else { return None };
    let number = <[u8; 8]>::try_from(number.as_ref()).ok().filter(|_| empty.is_empty())?;
    Some(u64::from_be_bytes(number))
}

/// Sends the buffered steps from a number on, up to the end of the buffer when the answer begins: later ones are
/// published normally.
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex, split};
    use tokio::time::{Instant, sleep};

    use super::*;

    /// As of a router whose machine has ended without a word.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_asks_for_nothing_for_long_is_let_go() {
        let (mut peer, here) = duplex(1 << 10);
        let (reader, writer) = split(here);
        let began = Instant::now();
        let answering = answer_requests(Receiver(reader), Sender(writer), Arc::new(Steps::new(1, 1 << 10)));
        let asking = async {
            sleep(IDLE_MAX / 2).await;
            peer.write_all(&[0, 1, b'x']).await.unwrap();
            // The connection stays open.
            peer
        };
        let (ended, _peer) = tokio::join!(answering, asking);
        assert!(ended.is_ok());
        let took = began.elapsed();
        assert!(took >= IDLE_MAX * 3 / 2 && took < IDLE_MAX * 2, "{took:?}");
    }
}
