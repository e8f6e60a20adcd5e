//! The handshake: each side sends a greeting, then its socket type. Neither authenticates (mechanism NULL).

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ZmtpError;
use super::commands::{Command, command, property, read_command, written_property};
use super::frames::{read_frame, write_command};

const GREETING_BYTES: usize = 64;
/// First byte of a greeting and the last of its signature, between which version 1 had a length.
const SIGNATURE: (u8, u8) = (0xff, 0x7f);
const VERSION: (u8, u8) = (3, 1);
/// Positions of the version and of the mechanism, padded with zeros, in a greeting.
const VERSION_AT: usize = 10;
const MECHANISM_AT: usize = 12;
const MECHANISM_BYTES: usize = 20;

/// A socket type of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kv_events) enum SocketType {
    Pub,
    Router,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            SocketType::Pub => "PUB",
            SocketType::Router => "ROUTER",
        }
    }

    /// Whether a peer's socket type is compatible.
    fn goes_with(self, peer: &[u8]) -> bool {
        match self {
            SocketType::Pub => matches!(peer, b"SUB" | b"XSUB"),
            SocketType::Router => matches!(peer, b"REQ" | b"DEALER" | b"ROUTER"),
        }
    }
}

/// Performs the handshake over both directions of a connection.
pub(super) async fn shake_hands<R, W>(
    reader: &mut R,
    writer: &mut W,
    socket: SocketType,
) -> Result<(), ZmtpError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    writer.write_all(&greeting()).await?;
    writer.flush().await?;
    let mut theirs = [0; GREETING_BYTES];
    reader.read_exact(&mut theirs).await?;
    check_greeting(&theirs)?;
    let ready = command("READY", &written_property("Socket-Type", socket.name().as_bytes()));
    write_command(writer, &ready).await?;
    let peer = socket_type_of(&ready_of(reader).await?)?;
    if !socket.goes_with(&peer) {
        let reason = b"\x13invalid socket type";
        write_command(writer, &command("ERROR", reason)).await?;
        return Err(ZmtpError::Incompatible(String::from_utf8_lossy(&peer).into_owned()));
    }
    Ok(())
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[VERSION_AT - 1]) = SIGNATURE;
    (greeting[VERSION_AT], greeting[VERSION_AT + 1]) = VERSION;
    greeting[MECHANISM_AT..][..4].copy_from_slice(b"NULL");
    greeting
}

fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), ZmtpError> {
    if (greeting[0], greeting[VERSION_AT - 1]) != SIGNATURE || greeting[VERSION_AT] < VERSION.0 {
        return Err(ZmtpError::Malformed("another greeting"));
    }
    let mechanism = &greeting[MECHANISM_AT..][..MECHANISM_BYTES];
    if mechanism.strip_prefix(b"NULL").is_some_and(|rest| rest.iter().all(|&byte| byte == 0)) {
        Ok(())
    } else {
        Err(ZmtpError::Malformed("a mechanism other than NULL"))
    }
}

async fn ready_of<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Bytes, ZmtpError> {
    let frame = read_frame(reader).await?.filter(|frame| frame.command);
    match frame.map(|frame| read_command(&frame.body)).transpose()? {
        Some(Command::Ready(properties)) => Ok(properties),
        _ => Err(ZmtpError::Malformed("no READY behind the greeting")),
    }
}

fn socket_type_of(properties: &Bytes) -> Result<Bytes, ZmtpError> {
    let named =
        property(properties, "Socket-Type")?.ok_or(ZmtpError::Malformed("a READY without Socket-Type"))?;
    Ok(properties.slice_ref(named))
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::io::duplex;

    use super::*;

    /// The bytes of a peer that begins a connection.
    pub(crate) fn hello(socket: &str) -> Vec<u8> {
        let body = command("READY", &written_property("Socket-Type", socket.as_bytes()));
        [greeting().as_slice(), &[4, body.len() as u8], &body].concat()
    }

    async fn answered(bytes: &[u8]) -> Result<(), ZmtpError> {
        let (near, mut far) = duplex(4096);
        far.write_all(bytes).await.unwrap();
        far.shutdown().await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(near);
        shake_hands(&mut reader, &mut writer, SocketType::Pub).await
    }

    #[tokio::test]
    async fn only_sockets_that_go_together_are_connected() {
        for (socket, expect) in [("SUB", true), ("XSUB", true), ("REQ", false), ("PUB", false), ("", false)] {
            assert_eq!(answered(&hello(socket)).await.is_ok(), expect, "{socket}");
        }
    }

    #[tokio::test]
    async fn a_damaged_beginning_ends_the_connection() {
        let whole = hello("SUB");
        for length in 0..whole.len() {
            assert!(answered(&whole[..length]).await.is_err(), "{length} bytes");
        }
        for (at, byte) in
            [(0, 0xfe), (9, 0x7e), (10, 2), (12, b'P'), (16, b'X'), (64, 0), (65, 255), (67, b'S')]
        {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            assert!(answered(&bytes).await.is_err(), "byte {at}");
        }
    }
}
