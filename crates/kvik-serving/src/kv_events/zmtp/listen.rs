//! Accepting peers, each served by a task of its own.

use std::future::Future;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{BufReader, BufWriter};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::handshake::shake_hands;
use super::{Receiver, Sender, SocketType, ZmtpError};
use crate::system::probe_peer;

/// Maximum concurrent peers of a socket; others wait in the system's queue of connections.
const PEERS_MAX: usize = 64;
/// Timeout of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Silence after which the system probes whether the machine of a peer still answers.
const SILENCE: Duration = Duration::from_secs(60);
/// Pause after a failed accept, most likely for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

pub(in crate::kv_events) type FromPeer = Receiver<BufReader<OwnedReadHalf>>;
pub(in crate::kv_events) type ToPeer = Sender<BufWriter<OwnedWriteHalf>>;

/// Serves the peers of a socket, as long as the runtime runs.
pub(in crate::kv_events) fn serve<F, S>(
    listener: StdListener,
    socket: SocketType,
    serve_peer: F,
) -> io::Result<()>
where
    F: Fn(FromPeer, ToPeer) -> S + Clone + Send + 'static,
    S: Future<Output = Result<(), ZmtpError>> + Send,
{
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(PEERS_MAX));
    tokio::spawn(async move {
        // The semaphore is never closed.
        while let Ok(place) = places.clone().acquire_owned().await {
            let Some(stream) = accept(&listener).await else { continue };
            let serve_peer = serve_peer.clone();
            tokio::spawn(async move {
                if let Err(error) = connection(stream, socket, serve_peer).await {
                    tracing::debug!("a peer of the KV events was let go: {error}");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            tracing::warn!("a connection for KV events could not be accepted: {error}");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

async fn connection<F, S>(stream: TcpStream, socket: SocketType, serve_peer: F) -> Result<(), ZmtpError>
where
    F: Fn(FromPeer, ToPeer) -> S,
    S: Future<Output = Result<(), ZmtpError>>,
{
    // Events are small and latency-sensitive.
    stream.set_nodelay(true)?;
    probe_peer(&stream, SILENCE)?;
    let (reader, writer) = stream.into_split();
    let (mut reader, mut writer) = (BufReader::new(reader), BufWriter::new(writer));
    let shaken = timeout(HANDSHAKE, shake_hands(&mut reader, &mut writer, socket)).await;
    shaken.unwrap_or(Err(ZmtpError::Stalled { seconds: HANDSHAKE.as_secs() }))?;
    serve_peer(Receiver(reader), Sender(writer)).await
}
