//! A frame: a byte of flags, its length in one byte or eight (big-endian), and its body.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ZmtpError;

/// Maximum bytes of a peer's frame body. Topics, identities and numbers are small; only this side sends large ones.
pub(super) const BODY_BYTES_MAX: usize = 4096;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A frame from a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// True for a command of the protocol, false for a part of a message.
    pub(super) command: bool,
    /// Whether another part of the same message follows.
    pub(super) more: bool,
    /// At most [`BODY_BYTES_MAX`] bytes.
    pub(super) body: Bytes,
}

/// Reads a frame; `None` if the peer has ended the connection before it.
pub(super) async fn read_frame<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Option<Frame>, ZmtpError> {
    let mut flags = [0];
    if reader.read(&mut flags).await? == 0 {
        return Ok(None);
    }
    let [flags] = flags;
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(ZmtpError::Malformed("flags of a frame that are reserved"));
    }
    let bytes =
        if flags & LONG == 0 { u64::from(reader.read_u8().await?) } else { reader.read_u64().await? };
    let mut body = vec![0; within(bytes)?];
    reader.read_exact(&mut body).await?;
    Ok(Some(Frame { command: flags & COMMAND != 0, more: flags & MORE != 0, body: body.into() }))
}

fn within(bytes: u64) -> Result<usize, ZmtpError> {
    let length = usize::try_from(bytes).ok().filter(|&length| length <= BODY_BYTES_MAX);
    length.ok_or(ZmtpError::FrameTooLong { bytes, limit: BODY_BYTES_MAX })
}

/// Writes all parts of a message.
pub(super) async fn write_message<W: AsyncWrite + Unpin>(
    writer: &mut W,
    parts: &[Bytes],
) -> Result<(), ZmtpError> {
    for (index, part) in parts.iter().enumerate() {
        let more = if index + 1 < parts.len() { MORE } else { 0 };
        write_frame(writer, more, part).await?;
    }
    Ok(writer.flush().await?)
}

/// Writes a command.
pub(super) async fn write_command<W: AsyncWrite + Unpin>(
    writer: &mut W,
    body: &[u8],
) -> Result<(), ZmtpError> {
    write_frame(writer, COMMAND, body).await?;
    Ok(writer.flush().await?)
}

async fn write_frame<W: AsyncWrite + Unpin>(writer: &mut W, flags: u8, body: &[u8]) -> Result<(), ZmtpError> {
    match u8::try_from(body.len()) {
        Ok(bytes) => writer.write_all(&[flags, bytes]).await?,
        Err(_) => {
            writer.write_u8(flags | LONG).await?;
            writer.write_u64(body.len() as u64).await?;
        }
    }
    Ok(writer.write_all(body).await?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(mut bytes: &[u8]) -> Result<Option<Frame>, ZmtpError> {
        pollster::block_on(read_frame(&mut bytes))
    }

    #[test]
    fn frames_of_both_lengths_are_read() {
        let frame = |command, more, body: &[u8]| Frame { command, more, body: Bytes::copy_from_slice(body) };
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[1, 2, 7, 8]).unwrap(), Some(frame(false, true, &[7, 8])));
        assert_eq!(read(&[4, 0]).unwrap(), Some(frame(true, false, &[])));
        assert_eq!(read(&[6, 0, 0, 0, 0, 0, 0, 0, 1, 9]).unwrap(), Some(frame(true, false, &[9])));
    }

    #[test]
    fn a_length_is_only_believed_within_the_limit() {
        for bytes in [BODY_BYTES_MAX as u64 + 1, 1 << 40, 1 << 62, u64::MAX] {
            let header: Vec<u8> = [LONG].into_iter().chain(bytes.to_be_bytes()).collect();
            let error = read(&header).unwrap_err();
            assert!(matches!(error, ZmtpError::FrameTooLong { bytes: told, .. } if told == bytes), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some(frame)) = read(&bytes) {
                prop_assert!(frame.body.len() <= BODY_BYTES_MAX.min(bytes.len()));
            }
        }

        #[test]
        fn a_message_is_read_as_it_was_written(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..600), 1..4),
        ) {
            let parts: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
            let mut written = Vec::new();
            pollster::block_on(write_message(&mut written, &parts)).unwrap();
            let mut rest = written.as_slice();
            for (index, part) in parts.iter().enumerate() {
                let frame = pollster::block_on(read_frame(&mut rest)).unwrap().unwrap();
                prop_assert_eq!(&frame.body, part);
                prop_assert_eq!(frame.more, index + 1 < parts.len());
            }
            prop_assert!(rest.is_empty());
        }
    }
}
