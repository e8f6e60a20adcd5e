//! URLs of this machine: requests to them go through no proxy, and those to a loopback address leave it by no way.

use std::net::{IpAddr, UdpSocket};

use ureq::http::Uri;

/// Whether a URL names this machine as only this machine can: by a loopback address, or as localhost.
pub fn is_loopback(url: &str) -> bool {
    let Some(host) = host_of(url) else { return false };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Whether a URL names this machine: by a loopback address, or by another address of its own. Only to those can a socket
/// be bound.
pub(crate) fn is_own(url: &str) -> bool {
    let has_address = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    is_loopback(url) || host_of(url).and_then(|host| host.parse().ok()).is_some_and(has_address)
}

/// The host of a URL, without the brackets of an IPv6 address.
fn host_of(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_told_from_others() {
        for (url, expect) in [
            ("http://127.0.0.1:80", true),
            ("http://localhost:80/kvik", true),
            ("https://LOCALHOST", true),
            ("http://[::1]:80", true),
            ("http://[::ffff:127.0.0.1]:80", true),
            ("http://localhost.example:80", false),
            ("http://kvik.example", false),
            // An address for documents (RFC 5737), which no machine has.
            ("http://192.0.2.1:80", false),
            ("x", false),
            ("", false),
        ] {
            assert_eq!((is_loopback(url), is_own(url)), (expect, expect), "{url}");
        }
        assert!(is_own("http://0.0.0.0:80") && !is_loopback("http://0.0.0.0:80"), "every address of its own");
    }
}
