//! A stream that fails when a reply is larger than any expected one: the client would buffer it whole.
//!
//! Follows the framing of RESP (<https://redis.io/docs/latest/develop/reference/protocol-spec/>), versions 2 and 3,
//! without interpreting replies.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum size of a reply: far more than a block of the largest models has, or the names of all records.
const REPLY_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of elements of a reply, those of nested arrays included.
const ELEMENTS_MAX: u64 = 1 << 20;
/// Maximum length of a number that encodes a length or a count.
const NUMBER_BYTES: usize = 20;

/// A stream to a server whose replies are bounded.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    reply: Reply,
}

/// The state of parsing a reply.
#[derive(Debug)]
struct Reply {
    bytes: u64,
    elements: u64,
    /// Elements still to come.
    awaited: u64,
    at: At,
}

#[derive(Debug)]
enum At {
    /// Before the first byte of an element.
    Element,
    /// In a line of this kind; the bytes of its number so far.
    Line { kind: u8, number: Vec<u8> },
    /// In the bytes of a string, including the line end after it.
    Text { left: u64 },
}

impl<S> Bounded<S> {
    pub(super) fn new(stream: S) -> Bounded<S> {
        Bounded { stream, reply: Reply::new() }
    }
}

impl Reply {
    fn new() -> Reply {
        Reply { bytes: 0, elements: 0, awaited: 1, at: At::Element }
    }

    /// Parses further bytes.
    fn follow(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.step(bytes)?;
            bytes = &bytes[taken..];
            self.bytes += taken as u64;
            if self.bytes > REPLY_BYTES_MAX || self.elements > ELEMENTS_MAX {
                return Err(too_large());
            }
            if self.awaited == 0 {
                *self = Reply::new();
            }
        }
        Ok(())
    }

    /// Parses some of these bytes, at least one; returns how many.
    fn step(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.at {
            At::Element => {
                self.at = At::Line { kind: bytes[0], number: Vec::new() };
                Ok(1)
            }
            At::Text { left } => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                if *left == 0 {
                    self.end_element();
                }
                Ok(taken)
            }
            At::Line { kind, number } => {
                let end = bytes.iter().position(|&byte| byte == b'\n');
                let taken = end.map_or(bytes.len(), |end| end + 1);
                let room = NUMBER_BYTES + 1 - number.len().min(NUMBER_BYTES + 1);
                number.extend(bytes[..taken].iter().take(room));
                if end.is_some() {
                    let (kind, number) = (*kind, std::mem::take(number));
                    self.end_line(kind, &number)?;
                }
                Ok(taken)
            }
        }
    }

    fn end_line(&mut self, kind: u8, number: &[u8]) -> io::Result<()> {
        let each = match kind {
            b'$' | b'!' | b'=' => return self.begin_text(number),
            b'*' | b'~' | b'>' => 1,
            b'%' | b'|' => 2,
            _ => 0,
        };
        if each > 0 {
            let more = counted(number)?.unwrap_or(0).checked_mul(each).ok_or_else(too_large)?;
            self.awaited =
                self.awaited.checked_add(more).filter(|&all| all <= ELEMENTS_MAX).ok_or_else(too_large)?;
        }
        // Attributes precede the element to which they belong.
        if kind == b'|' {
            self.at = At::Element;
        } else {
            self.end_element();
        }
        Ok(())
    }

    fn begin_text(&mut self, number: &[u8]) -> io::Result<()> {
        match counted(number)? {
            None => self.end_element(),
            Some(bytes) if bytes > REPLY_BYTES_MAX => return Err(too_large()),
            Some(bytes) => self.at = At::Text { left: bytes + b"\r\n".len() as u64 },
        }
        Ok(())
    }

    fn end_element(&mut self) {
        self.awaited -= 1;
        self.elements += 1;
        self.at = At::Element;
    }
}

/// Parses a length or a count; `None` for null, which is encoded as -1.
fn counted(line: &[u8]) -> io::Result<Option<u64>> {
    let text = std::str::from_utf8(line).ok().and_then(|text| text.strip_suffix("\r\n"));
    match text {
        Some("-1") => Ok(None),
        Some(digits) => digits.parse().map(Some).map_err(|_| malformed()),
        None => Err(malformed()),
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a reply larger than any that was asked for")
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a reply that is not RESP")
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.reply.follow(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Parses bytes in pieces of this size; returns whether the last reply is complete, or the error.
#[cfg(any(test, fuzzing))]
fn followed(bytes: &[u8], piece: usize) -> Result<bool, String> {
    let mut reply = Reply::new();
    for piece in bytes.chunks(piece) {
        reply.follow(piece).map_err(|error| error.to_string())?;
    }
    Ok(reply.bytes == 0)
}

/// Parses arbitrary bytes, whole and in pieces; the client parses what passes.
///
/// # Panics
/// If the result depends on the pieces.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let whole = followed(bytes, bytes.len().max(1));
    for piece in [1, 7, 100] {
        assert_eq!(followed(bytes, piece), whole, "in pieces of {piece} bytes");
    }
    if whole.is_ok() {
        // A value or an error.
        let _ = redis::parse_redis_value(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvik_testing::effort;
    use kvik_testing::fuzz::{Campaign, corpus, mutate};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn replies_end_where_their_framing_says() {
        for whole in [
            "+OK\r\n",
            "-ERR unknown command 'x', with args beginning with: 'a' 'b'\r\n",
            ":12\r\n",
            "$3\r\na\nb\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*2\r\n$1\r\na\r\n:1\r\n",
            "*0\r\n",
            "*-1\r\n",
            "*2\r\n*1\r\n+a\r\n*0\r\n",
            "%1\r\n+a\r\n$1\r\nb\r\n",
            "|1\r\n+ttl\r\n:3\r\n$1\r\nb\r\n",
            "_\r\n",
            ",1.5\r\n",
            "=7\r\ntxt:abc\r\n",
        ] {
            for piece in 1..=whole.len() {
                assert_eq!(followed(whole.as_bytes(), piece), Ok(true), "{whole:?} by {piece}");
                let cut = &whole.as_bytes()[..whole.len() - 1];
                assert_eq!(followed(cut, piece), Ok(false), "{whole:?} by {piece} without its end");
            }
        }
    }

    #[test]
    fn what_is_larger_than_anything_asked_for_is_refused_when_it_is_announced() {
        for text in [
            "$67108865\r\n",
            "$18446744073709551615\r\n",
            "*1048577\r\n",
            "%9223372036854775808\r\n",
            "$?\r\n",
            "*x\r\n",
        ] {
            assert!(followed(text.as_bytes(), 64).is_err(), "{text:?}");
        }
        let many = "*1000\r\n".repeat(2000);
        assert!(followed(many.as_bytes(), 1 << 10).is_err(), "arrays within each other");
        let endless = [b'+'].into_iter().chain(std::iter::repeat_n(b'a', 65 << 20)).collect::<Vec<u8>>();
        assert!(followed(&endless, 1 << 20).is_err(), "a line without an end");
    }

    #[test]
    fn no_reply_ends_the_process() {
        let campaign = Campaign {
            name: "resp",
            target: &fuzz,
            corpus: corpus("resp").unwrap(),
            mutate: &mutate,
            input_max: Duration::from_secs(5),
            duration: effort(Duration::from_millis(300), Duration::from_secs(60)),
        };
        campaign.run();
    }

    proptest! {
        #[test]
        fn anything_is_followed_alike_in_any_pieces(
            bytes in proptest::collection::vec(proptest::sample::select(b"$*+-:%|0123\r\na".to_vec()), 0..80),
            piece in 1_usize..9,
        ) {
            prop_assert_eq!(followed(&bytes, piece), followed(&bytes, 80));
        }
    }
}
