//! Connections: accepted in bounded number, protected from slow clients, drained at the end.
//!
//! hyper is driven directly, because `axum::serve` sets no time limit on reading a head or
//! writing an answer.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, Sleep, sleep_until, timeout},
};

/// Limits on connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connections {
    /// Open at the same time; more wait in the system's backlog.
    pub(crate) max: usize,
    /// A client has this long to send a request's head, and an idle connection lives this long.
    pub(crate) head_time: Duration,
    /// A client that takes no byte for this long is cut off.
    pub(crate) write_time: Duration,
    /// Running answers have this long to end once the server is stopping.
    pub(crate) drain_time: Duration,
}

/// Serves until `stop` turns true, then lets running answers end.
///
/// Returns how many connections were cut off because they did not end in time.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Connections,
    stop: watch::Receiver<bool>,
) -> usize {
    let mut connections = JoinSet::new();
    let places = Arc::new(Semaphore::new(limits.max));
    let mut stopping = stop.clone();
    loop {
        let accepted = tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = accept(&listener, &places) => accepted,
        };
        while connections.try_join_next().is_some() {}
        let Some((stream, place)) = accepted else { continue };
        let connection = connection(stream, router.clone(), limits, stop.clone());
        connections.spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(limits.drain_time, async { while connections.join_next().await.is_some() {} }).await;
    let cut_off = connections.len();
    connections.shutdown().await;
    cut_off
}

/// Waits until the server is told to stop; a teller that is gone counts as that.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Waits for a free place, then for a client.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            // Out of file descriptors, most likely: without a pause this would spin.
            tracing::warn!("a connection could not be accepted: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn connection(stream: TcpStream, router: Router, limits: Connections, mut stop: watch::Receiver<bool>) {
    // Tokens are small frames: Nagle's algorithm would hold each until the one before is acknowledged.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(TimedWrites::new(stream, limits.write_time));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    let connection = builder.serve_connection(io, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("connection ended: {error}");
    }
}

/// A stream whose writes fail when the other side takes nothing for too long.
struct TimedWrites<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write is pending.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedWrites<S> {
    fn new(stream: S, patience: Duration) -> Self {
        TimedWrites { stream, patience, deadline: None }
    }

    /// Passes a write's outcome on, and turns one that is pending for too long into an error.
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
