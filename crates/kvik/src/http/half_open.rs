//! Clients that close their half of a connection after the request and wait for the answer.
//!
//! TCP does not tell such a client from one that has gone: both send an end, and only what is sent
//! to the one that has gone comes back as a reset. So an interim answer (`100 Continue`, which
//! clients must skip) is sent while there is nothing else to send; the frames of a stream do the
//! same by themselves. hyper is told of the end when the exchange is over, or of the reset.

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

/// How often a connection without input is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Looks until a request counts as broken off: the last of its body may not have been taken yet.
const LOOKS_FOR_BODY: u32 = 2;
/// Looks between two interim answers.
const LOOKS_PER_PROBE: u32 = 20;
/// Says nothing, and is answered by a reset where nobody listens any more.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A stream whose end of input is kept back while a request is being answered.
pub(super) struct HalfOpen {
    stream: TcpStream,
    open: Arc<Open>,
    /// Runs from the end of input on.
    ended: Option<Ended>,
    /// All that was written has gone to the system: an interim answer cannot tear an answer apart.
    is_flushed: bool,
}

struct Ended {
    looks: Interval,
    count: u32,
}

impl HalfOpen {
    pub(super) fn new(stream: TcpStream, open: Arc<Open>) -> HalfOpen {
        HalfOpen { stream, open, ended: None, is_flushed: true }
    }

    /// Keeps the end of input back while there is an answer to come and somebody to take it.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let looked = self.ended.as_ref().map_or(0, |ended| ended.count);
            match self.open.phase() {
                Phase::Idle => return Poll::Ready(Ok(())),
                Phase::Receiving if looked >= LOOKS_FOR_BODY => return Poll::Ready(Ok(())),
                Phase::Working if !self.open.knows_interim() => return Poll::Ready(Ok(())),
                Phase::Receiving | Phase::Working | Phase::Responding => {}
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

    /// Sends an interim answer, if nothing else is on its way.
    fn probe(&self) -> io::Result<()> {
        if self.open.phase() != Phase::Working || !self.is_flushed {
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
        self.is_flushed = false;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_flushed = false;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
