//! Commands: a name with its length before it, and the command's data.

use bytes::Bytes;

use super::ZmtpError;

/// A command of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// Ends the handshake: properties of the peer, `(length, name, length, value)` each.
    Ready(Bytes),
    /// The peer ends the connection, with its reason.
    Error,
    /// The peer subscribes to messages whose first part begins with this prefix.
    Subscribe(Bytes),
    /// The peer cancels such a subscription.
    Cancel(Bytes),
    /// A liveness check, to be answered with these bytes.
    Ping(Bytes),
    /// The answer to a liveness check.
    Pong,
    /// A command of another mechanism or a later version.
    Unknown,
}

/// Maximum bytes of a PING's context by the specification.
const CONTEXT_BYTES_MAX: usize = 16;
/// Bytes of a PING before its context: the time that the peer may be silent.
const TTL_BYTES: usize = 2;

/// Reads the body of a command's frame.
pub(super) fn read_command(body: &Bytes) -> Result<Command, ZmtpError> {
    let (name, rest) = named(body).ok_or(ZmtpError::Malformed("a command without its name"))?;
    let rest = body.slice_ref(rest);
    Ok(match name {
        b"READY" => Command::Ready(rest),
        b"ERROR" => Command::Error,
        b"SUBSCRIBE" => Command::Subscribe(rest),
        b"CANCEL" => Command::Cancel(rest),
        b"PING" => Command::Ping(context(&rest)?),
        b"PONG" => Command::Pong,
        _ => Command::Unknown,
    })
}

fn context(rest: &Bytes) -> Result<Bytes, ZmtpError> {
    let fits = (TTL_BYTES..=TTL_BYTES + CONTEXT_BYTES_MAX).contains(&rest.len());
    fits.then(|| rest.slice(TTL_BYTES..)).ok_or(ZmtpError::Malformed("a PING of another size"))
}

/// The body of a command.
pub(super) fn command(name: &str, rest: &[u8]) -> Vec<u8> {
    [short(name.as_bytes()).as_slice(), rest].concat()
}

/// The value of a property of READY, whose name is compared without regard to case.
pub(super) fn property<'a>(mut properties: &'a [u8], wanted: &str) -> Result<Option<&'a [u8]>, ZmtpError> {
    while !properties.is_empty() {
        let (name, value, rest) =
            first_property(properties).ok_or(ZmtpError::Malformed("a property that is cut off"))?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Ok(Some(value));
        }
        properties = rest;
    }
    Ok(None)
}

/// A property as encoded in READY.
pub(super) fn written_property(name: &str, value: &[u8]) -> Vec<u8> {
    [short(name.as_bytes()).as_slice(), &(value.len() as u32).to_be_bytes(), value].concat()
}

fn first_property(properties: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = named(properties)?;
    let (bytes, rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*bytes) as usize)?;
    Some((name, value, rest))
}

/// Splits off a name that follows its length.
fn named(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(length))
}

fn short(name: &[u8]) -> Vec<u8> {
    let length = u8::try_from(name.len()).expect("names of this side are short");
    [&[length], name].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(name: &str, rest: &[u8]) -> Result<Command, ZmtpError> {
        read_command(&command(name, rest).into())
    }

    #[test]
    fn commands_are_told_by_their_names() {
        let bytes = Bytes::from_static;
        assert_eq!(read("SUBSCRIBE", b"kv@").unwrap(), Command::Subscribe(bytes(b"kv@")));
        assert_eq!(read("CANCEL", b"").unwrap(), Command::Cancel(Bytes::new()));
        assert_eq!(read("PING", b"\0\x05abc").unwrap(), Command::Ping(bytes(b"abc")));
        assert_eq!(read("JOIN", b"group").unwrap(), Command::Unknown);
        assert!(read("PING", b"\0").is_err() && read("PING", &[0; 19]).is_err());
        assert!(read_command(&Bytes::new()).is_err() && read_command(&bytes(b"\x05REA")).is_err());
    }

    #[test]
    fn a_property_is_found_among_others() {
        let properties =
            [written_property("Identity", b""), written_property("Socket-Type", b"SUB")].concat();
        assert_eq!(property(&properties, "socket-type").unwrap(), Some(b"SUB".as_slice()));
        assert_eq!(property(&properties, "Resource").unwrap(), None);
        assert!(property(&properties[..properties.len() - 1], "Socket-Type").is_err());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_command_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Command::Ready(properties)) = read_command(&bytes.clone().into()) {
                let _ = property(&properties, "Socket-Type");
            }
            let _ = property(&bytes, "Socket-Type");
        }
    }
}
