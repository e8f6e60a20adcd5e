//! Connections: accepted up to a limit, protected from slow clients, drained at shutdown.
//!
//! hyper is driven directly, because `axum::serve` sets no time limit on reading a head or writing an answer.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, Sleep, sleep_until, timeout},
};

use super::{
    connections::{Connections, Open},
    exchange::Exchange,
    front::Front,
    half_open::HalfOpen,
};

/// Time for a client that was answered before its request was read to send the rest: data that arrives at a closed
/// socket would cause a reset, and the answer would be lost.
const LINGER_TIME: Duration = Duration::from_secs(5);
/// Maximum bytes of a request's head: anybody may send that much of one, on each connection, without a key. Bodies are
/// read in pieces of as many.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of open connections; beyond, the one that was silent for longest is closed.
    pub max: usize,
    /// Time limit for a request's head, and for an idle connection.
    pub head_time: Duration,
    /// Time after which a client that accepts no byte is disconnected.
    pub write_time: Duration,
    /// Time limit for running answers after the server was told to stop.
    pub drain_time: Duration,
}

/// Serves until `stop` turns true, then lets running answers end.
///
/// Returns the number of connections that were aborted because they did not end in time.
pub async fn serve(
    listener: TcpListener,
    front: Arc<Front>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
) -> usize {
    let mut tasks = JoinSet::new();
    let connections = Connections::new(limits.max);
    let mut stopping = stop.clone();
    loop {
        let accepted = tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        while tasks.try_join_next().is_some() {}
        let Some((stream, open)) = accepted else { continue };
        tasks.spawn(connection(stream, open, front.clone(), limits, stop.clone()));
    }
    drop(listener);
    let _ = timeout(limits.drain_time, async { while tasks.join_next().await.is_some() {} }).await;
    let cut_off = tasks.len();
    tasks.shutdown().await;
    cut_off
}

/// Waits until the server is told to stop, or the sender of `stop` is dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Waits for a client, then for a slot.
async fn accept(listener: &TcpListener, connections: &Arc<Connections>) -> Option<(TcpStream, Arc<Open>)> {
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, connections.open().await)),
        Err(error) => {
            // Most likely out of file descriptors: without a pause this would spin.
            tracing::warn!("a connection could not be accepted: {error}");
            connections.displace();
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn connection(
    stream: TcpStream,
    open: Arc<Open>,
    front: Arc<Front>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
) {
    // Tokens are small frames: Nagle's algorithm would delay each until the one before is acknowledged.
    let _ = stream.set_nodelay(true);
    tokio::select! {
        ended = exchanges(stream, open.clone(), front, limits, stop) => {
            if let Err(error) = ended {
                tracing::debug!("connection ended: {error}");
            }
        }
        () = open.displaced() => tracing::debug!("an idle connection makes room"),
    }
}

/// Answers the requests of a connection until it ends.
async fn exchanges(
    stream: TcpStream,
    open: Arc<Open>,
    front: Arc<Front>,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let exchange = Exchange::new(front, open.clone());
    let left_unread = exchange.left_unread();
    let io = TokioIo::new(TimedWrites::new(HalfOpen::new(stream, open.clone()), limits.write_time));
    let mut builder = http1::Builder::new();
    // Some clients expect the header names in llama-server's capitalisation, although HTTP ignores case.
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head_time).title_case_headers(true);
    builder.max_buf_size(HEAD_BYTES_MAX);
    let mut connection = builder.serve_connection(io, exchange);
    // The connection itself, because `poll_without_shutdown` may end before all is sent.
    let ended = tokio::select! {
        ended = &mut connection => ended,
        // Half a head of a request may never become a whole one.
        () = stopped(&mut stop) => if open.is_idle() {
            Ok(())
        } else {
            Pin::new(&mut connection).graceful_shutdown();
            (&mut connection).await
        },
    };
    // hyper has answered it, and reads no further.
    let is_head_too_long = ended.as_ref().is_err_and(hyper::Error::is_parse_too_large);
    if !is_head_too_long {
        ended?;
    }
    let mut stream = connection.into_parts().io.into_inner();
    let _ = stream.shutdown().await;
    if is_head_too_long || left_unread.load(Ordering::Relaxed) {
        let _ = timeout(LINGER_TIME, read_to_nowhere(&mut stream)).await;
    }
    Ok(())
}

/// Reads and discards all further input.
async fn read_to_nowhere(stream: &mut (impl AsyncRead + Unpin)) {
    let mut bytes = [0; 8 << 10];
    while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
}

/// A stream whose writes fail if the other side accepts nothing for too long.
struct TimedWrites<S> {
    stream: S,
    patience: Duration,
    /// Set while a write is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedWrites<S> {
    fn new(stream: S, patience: Duration) -> Self {
        TimedWrites { stream, patience, deadline: None }
    }

    /// Passes a write's outcome on; a write that is pending for too long fails.
    fn watch<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.deadline = None;
            return outcome;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watch(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_cut_off() {
        let (server, _client) = duplex(16);
        let mut server = TimedWrites::new(server, Duration::from_secs(30));
        let error = server.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_is_served() {
        let (server, mut client) = duplex(16);
        let mut server = TimedWrites::new(server, Duration::from_secs(30));
        let reader = tokio::spawn(async move {
            let mut taken = 0;
            while taken < 64 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                taken += client.read(&mut [0; 16]).await.unwrap();
            }
        });
        server.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }
}
