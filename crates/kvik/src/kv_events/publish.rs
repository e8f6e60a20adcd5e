//! The sockets: PUB for what happens, ROUTER for what was missed, as vLLM's `ZmqEventPublisher` has them.
//!
//! A message is `[topic, number, payload]`, a request `[number]` by a REQ or `["", number]` by a DEALER, its answers
//! `["", number, payload]`, the last of them with number -1 and nothing; numbers have 8 bytes, the largest first.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use zeromq::{
    PubSocket, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage, ZmqResult,
};

use super::steps::{Step, Steps};

/// Steps that are taken from those kept at a time.
const SLICE: usize = 256;
/// Who asks for what they missed at a time; others wait for their turn.
const REPLAYS_MAX: usize = 8;
/// How long an answer may take: who does not read it gets no more.
const REPLAY_TIME: Duration = Duration::from_secs(10);
/// The number of the message that ends an answer.
const END: i64 = -1;

/// Publishes all steps, as long as the runtime runs.
pub(super) async fn publish(listener: TcpListener, topic: Bytes, steps: Arc<Steps>) -> ZmqResult<()> {
    let mut socket = PubSocket::new();
    socket.bind_listener(listener).await?;
    tokio::spawn(async move {
        let mut next = 0;
        loop {
            for Step { number, payload } in steps.from(next, SLICE) {
                next = number + 1;
                let parts = vec![topic.clone(), number_bytes(number), payload];
                // To be dropped for a subscriber is no error here; the number tells.
                if let Err(error) = socket.send(message(parts)).await {
                    tracing::warn!("KV events of step {number} were not sent: {error}");
                }
            }
            if steps.from(next, 1).is_empty() {
                steps.news().await;
            }
        }
    });
    Ok(())
}

/// Answers those who missed something, as long as the runtime runs.
pub(super) async fn replay(listener: TcpListener, steps: Arc<Steps>) -> ZmqResult<()> {
    let mut socket = RouterSocket::new();
    socket.bind_listener(listener).await?;
    let (sender, mut receiver) = socket.split();
    let turns = Arc::new(Semaphore::new(REPLAYS_MAX));
    tokio::spawn(async move {
        // The semaphore is never closed.
        while let (Ok(turn), Ok(request)) = (turns.clone().acquire_owned().await, receiver.recv().await) {
            let Some((client, from)) = read(request) else { continue };
            let (sender, steps) = (sender.clone(), steps.clone());
            tokio::spawn(async move {
                match timeout(REPLAY_TIME, answer(sender, client, from, &steps)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!("missed KV events were not sent: {error}"),
                    Err(_) => tracing::warn!("missed KV events were asked for and not read"),
                }
                drop(turn);
            });
        }
    });
    Ok(())
}

/// Who asks, and from which number on; none if it is no such request.
fn read(request: ZmqMessage) -> Option<(Bytes, u64)> {
    let parts = request.into_vec();
    let [client, empty, number] = parts.as_slice() else { return None };
    let number = <[u8; 8]>::try_from(number.as_ref()).ok().filter(|_| empty.is_empty())?;
    Some((client.clone(), u64::from_be_bytes(number)))
}

async fn answer(mut sender: RouterSendHalf, client: Bytes, mut from: u64, steps: &Steps) -> ZmqResult<()> {
    // What is published meanwhile is not missed.
    loop {
        let slice = steps.from(from, SLICE);
        let Some(last) = slice.last() else { break };
        from = last.number + 1;
        for Step { number, payload } in slice {
            sender.send(message(vec![client.clone(), Bytes::new(), number_bytes(number), payload])).await?;
        }
    }
    let end = Bytes::copy_from_slice(&END.to_be_bytes());
    sender.send(message(vec![client, Bytes::new(), end, Bytes::new()])).await
}

fn number_bytes(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn message(parts: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(parts).expect("a message has parts")
}
