//! Clients that close their half of a connection after the request and wait for the answer.
//!
//! TCP does not distinguish such a client from one that has gone: both send a FIN, and only data sent to the
//! one that has gone is answered by a reset. So an interim answer (`100 Continue`, which clients must skip)
//! is sent while there is nothing else to send; the frames of a stream have the same effect. hyper sees the
//! end of input when the exchange is over, or at the reset.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use super::connections::{Open, Phase};

/// Interval at which a connection whose input has ended is checked.
const LOOK: Duration = Duration::from_millis(100);
/// Number of checks until a partial request counts as aborted: the last of its body may not have been read
/// yet.
const LOOKS_FOR_BODY: u32 = 2;
/// Number of checks between two interim answers.
const LOOKS_PER_PROBE: u32 = 20;
/// Without content, and answered by a reset if the client has gone.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A stream that withholds the end of input while a request is being answered.
pub(super) struct HalfOpen {
    stream: TcpStream,
    open: Arc<Open>,
    /// Set once the input has ended.
    ended: Option<Ended>,
}

struct Ended {
    looks: Interval,
    count: u32,
}

impl HalfOpen {
    pub(super) fn new(stream: TcpStream, open: Arc<Open>) -> HalfOpen {
        HalfOpen { stream, open, ended: None }
    }

    /// Withholds the end of input while there is an answer to come and a client to receive it.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let looked = self.ended.as_ref().map_or(0, |ended| ended.count);
            match self.open.phase() {
                Phase::Idle if self.open.is_flushed() => return Poll::Ready(Ok(())),
                Phase::Receiving if looked >= LOOKS_FOR_BODY => return Poll::Ready(Ok(())),
                Phase::Working if !self.open.knows_interim() => return Poll::Ready(Ok(())),
                Phase::Idle | Phase::Receiving | Phase::Working | Phase::Responding => {}
            }
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            let ended = self.ended.get_or_insert_with(|| {
                let mut looks = interval_at(Instant::now() + LOOK, LOOK);
                looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                Ended { looks, count: 0 }
            });
            ready!(ended.looks.poll_tick(cx));
            ended.count += 1;
            if ended.count % LOOKS_PER_PROBE == 1 {
                self.probe()?;
            }
        }
    }

    /// Sends an interim answer, unless other data is being sent.
    fn probe(&self) -> io::Result<()> {
        if self.open.phase() != Phase::Working || !self.open.is_flushed() {
            return Ok(());
        }
        match self.stream.try_write(INTERIM) {
            Ok(written) if written < INTERIM.len() => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

impl AsyncRead for HalfOpen {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended.is_none() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            if buf.filled().len() > before || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_end(cx)
    }
}

impl AsyncWrite for HalfOpen {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.open.set_flushed(false);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open.set_flushed(false);
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.open.set_flushed(true);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
