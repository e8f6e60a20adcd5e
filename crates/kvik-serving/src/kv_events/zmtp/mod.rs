//! ZMTP 3.1, the wire protocol of ZeroMQ (<https://rfc.zeromq.org/spec/37/>), for sockets that others connect to.
//!
//! All sizes are bounded, unlike in the crate `zeromq`: that reserves the length that a frame announces, so nine bytes
//! from a peer abort the process. Here memory grows with the bytes received, and frames, parts of a message and peers
//! each have a limit.
//!
//! | module      | cares about                                         |
//! |-------------|-----------------------------------------------------|
//! | `frames`    | bytes of a frame, read within bounds and written    |
//! | `commands`  | frames that the protocol itself uses                |
//! | `handshake` | greeting, mechanism NULL, which sockets go together |
//! | `peer`      | both directions of a connection, after the handshake |
//! | `listen`    | accepting peers, as many as there are places for    |

mod commands;
mod frames;
mod handshake;
mod listen;
mod peer;

pub(super) use handshake::SocketType;
pub(super) use listen::serve;
pub(super) use peer::{Incoming, Receiver, Sender};

use std::io;

/// A reason to end a connection; other peers and the process are unaffected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ZmtpError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("a frame of {bytes} bytes, more than the {limit} that a peer may send")]
    FrameTooLong { bytes: u64, limit: usize },
    #[error("a message of more than {limit} parts")]
    TooManyParts { limit: usize },
    #[error("{0}, which is not ZMTP 3")]
    Malformed(&'static str),
    #[error("a socket of type {0:?}, which does not go with this one")]
    Incompatible(String),
    #[error("more than {limit} subscriptions")]
    TooManySubscriptions { limit: usize },
    #[error("nothing was taken for {seconds} s")]
    Stalled { seconds: u64 },
}

/// Reads everything that a peer sends, from its greeting on.
///
/// # Panics
/// If something was larger than the limits allow.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(mut bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(async {
        let all = bytes.len();
        if handshake::shake_hands(&mut bytes, &mut tokio::io::sink(), SocketType::Pub).await.is_err() {
            return;
        }
        let mut receiver = Receiver(&mut bytes);
        while let Ok(Some(incoming)) = receiver.receive().await {
            let parts = match &incoming {
                Incoming::Message(parts) => parts.as_slice(),
                Incoming::Subscribe(part) | Incoming::Cancel(part) | Incoming::Ping(part) => {
                    std::slice::from_ref(part)
                }
            };
            let held: usize = parts.iter().map(|part| part.len()).sum();
            assert!(held <= all, "{held} of {all} bytes: {incoming:?}");
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvik_testing::effort;
    use kvik_testing::fuzz::{Campaign, corpus, mutate};

    #[test]
    fn no_peer_ends_the_process() {
        let campaign = Campaign {
            name: "zmtp",
            target: &super::fuzz,
            corpus: corpus("zmtp").unwrap(),
            mutate: &mutate,
            input_max: Duration::from_secs(5),
            duration: effort(Duration::from_millis(300), Duration::from_secs(60)),
        };
        campaign.run();
    }
}
