//! Both directions of a connection, after the handshake.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::ZmtpError;
use super::commands::{Command, command, read_command};
use super::frames::{Frame, read_frame, write_command, write_message};

/// Maximum parts of a peer's message.
const PARTS_MAX: usize = 4;
/// How long sending a message to a peer may block.
const STALLED: Duration = Duration::from_secs(60);

/// A message or command from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::kv_events) enum Incoming {
    /// The parts of a message.
    Message(Vec<Bytes>),
    /// A subscription to messages whose first part begins with this prefix.
    Subscribe(Bytes),
    /// The cancellation of such a subscription.
    Cancel(Bytes),
    /// A liveness check, to be answered with these bytes.
    Ping(Bytes),
}

/// The direction from a peer.
#[derive(Debug)]
pub(in crate::kv_events) struct Receiver<R>(pub(in crate::kv_events) R);

impl<R: AsyncRead + Unpin> Receiver<R> {
    /// Waits for the next message or command; `None` if the peer has ended the connection.
    pub(in crate::kv_events) async fn receive(&mut self) -> Result<Option<Incoming>, ZmtpError> {
        while let Some(frame) = read_frame(&mut self.0).await? {
            if !frame.command {
                return Ok(Some(Incoming::Message(self.message(frame).await?)));
            }
            match read_command(&frame.body)? {
                Command::Subscribe(topic) => return Ok(Some(Incoming::Subscribe(topic))),
                Command::Cancel(topic) => return Ok(Some(Incoming::Cancel(topic))),
                Command::Ping(context) => return Ok(Some(Incoming::Ping(context))),
                Command::Error => return Ok(None),
                Command::Pong | Command::Unknown => {}
                Command::Ready(_) => return Err(ZmtpError::Malformed("a second READY")),
            }
        }
        Ok(None)
    }

    async fn message(&mut self, first: Frame) -> Result<Vec<Bytes>, ZmtpError> {
        let (mut parts, mut more) = (vec![first.body], first.more);
        while more {
            if parts.len() == PARTS_MAX {
                return Err(ZmtpError::TooManyParts { limit: PARTS_MAX });
            }
            let next = read_frame(&mut self.0).await?.filter(|frame| !frame.command);
            let next = next.ok_or(ZmtpError::Malformed("a message that is cut off"))?;
            more = next.more;
            parts.push(next.body);
        }
        Ok(parts)
    }
}

/// The direction to a peer.
#[derive(Debug)]
pub(in crate::kv_events) struct Sender<W>(pub(in crate::kv_events) W);

impl<W: AsyncWrite + Unpin> Sender<W> {
    /// Sends the parts of a message, and waits until the connection has accepted it.
    pub(in crate::kv_events) async fn send(&mut self, parts: &[Bytes]) -> Result<(), ZmtpError> {
        in_time(write_message(&mut self.0, parts)).await
    }

    /// Answers a PING.
    pub(in crate::kv_events) async fn pong(&mut self, context: &[u8]) -> Result<(), ZmtpError> {
        in_time(write_command(&mut self.0, &command("PONG", context))).await
    }
}

async fn in_time(sending: impl Future<Output = Result<(), ZmtpError>>) -> Result<(), ZmtpError> {
    timeout(STALLED, sending).await.unwrap_or(Err(ZmtpError::Stalled { seconds: STALLED.as_secs() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn received(mut bytes: &[u8]) -> Vec<Result<Incoming, String>> {
        let mut receiver = Receiver(&mut bytes);
        let mut all = Vec::new();
        while let Some(next) = receiver.receive().await.map_err(|error| error.to_string()).transpose() {
            let ended = next.is_err();
            all.push(next);
            if ended {
                break;
            }
        }
        all
    }

    #[tokio::test]
    async fn messages_and_commands_are_told_apart() {
        let ping = [&[4, 8], command("PING", b"\0\0x").as_slice()].concat();
        let unknown = [&[4, 5], command("JOIN", b"").as_slice()].concat();
        let bytes = [&[0, 2, 1, b'k'], ping.as_slice(), &unknown, &[1, 0], &[0, 1, 5]].concat();
        let part = Bytes::copy_from_slice;
        assert_eq!(
            received(&bytes).await,
            [
                Ok(Incoming::Message(vec![part(b"\x01k")])),
                Ok(Incoming::Ping(part(b"x"))),
                Ok(Incoming::Message(vec![Bytes::new(), part(b"\x05")])),
            ]
        );
    }

    #[tokio::test]
    async fn a_message_has_few_parts_and_an_end() {
        let endless = [1, 0].repeat(1000);
        assert_eq!(received(&endless).await, [Err(ZmtpError::TooManyParts { limit: PARTS_MAX }.to_string())]);
        let cut = [1, 0];
        assert!(received(&cut).await[0].is_err());
        let interrupted = [&[1, 0, 4, 5], command("PONG", b"").as_slice()].concat();
        assert!(received(&interrupted).await[0].is_err());
    }
}
