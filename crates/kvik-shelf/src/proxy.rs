//! The proxy of the environment. One that kvik cannot use is an error: a request that goes around it shows a token and
//! the user's address to a network that they are kept from.

use std::ffi::{OsStr, OsString};

use ureq::{
    Proxy, ProxyBuilder, ProxyProtocol,
    unversioned::transport::{ConnectionDetails, Connector},
};

/// The variables that name a proxy, of which the first is taken that is set: the general one is the last, as curl has it.
const VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
/// The variables that name hosts to which requests go directly.
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Why the proxy of the environment cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// It speaks SOCKS.
    #[error(
        "{variable} names a SOCKS proxy, which kvik does not use, and nothing goes around it; HTTPS_PROXY names a proxy of \
         HTTP, and NO_PROXY hosts that are reached without one"
    )]
    Socks {
        /// The variable.
        variable: &'static str,
    },
    /// It has no address that can be read.
    #[error("{variable} is not the address of a proxy; write it as http://HOST:PORT")]
    Address {
        /// The variable.
        variable: &'static str,
    },
}

/// The way of requests: directly or through a proxy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Route {
    pub(crate) proxy: Option<Proxy>,
    pub(crate) refusal: Refusal,
}

impl Route {
    /// The way through the proxy of these variables, if they name one.
    pub(crate) fn from_variables(var: impl Fn(&'static str) -> Option<OsString>) -> Route {
        let set = |name: &'static str| var(name).filter(|value| !value.is_empty());
        let Some((variable, address)) = VARIABLES.iter().find_map(|&name| Some((name, set(name)?))) else {
            return Route::default();
        };
        let exceptions =
            EXCEPTIONS.iter().find_map(|&name| set(name)?.into_string().ok()).unwrap_or_default();
        let excepting = |builder: ProxyBuilder| {
            exceptions.split(',').fold(builder, |builder, host| builder.no_proxy(host.trim())).build()
        };
        let unreadable = |_| ProxyError::Address { variable };
        match read(variable, &address).and_then(|proxy| excepting(builder_of(&proxy)).map_err(unreadable)) {
            Ok(proxy) => Route { proxy: Some(proxy), refusal: Refusal(None) },
            // A proxy that is never asked stands in its place, and knows the exceptions.
            Err(error) => Route {
                proxy: excepting(Proxy::builder(ProxyProtocol::Http)).ok(),
                refusal: Refusal(Some(error)),
            },
        }
    }
}

/// The proxy that a variable names.
fn read(variable: &'static str, address: &OsStr) -> Result<Proxy, ProxyError> {
    let proxy = address.to_str().and_then(|address| Proxy::new(address).ok());
    let proxy = proxy.ok_or(ProxyError::Address { variable })?;
    match proxy.protocol() {
        ProxyProtocol::Http | ProxyProtocol::Https => Ok(proxy),
        _ => Err(ProxyError::Socks { variable }),
    }
}

/// A builder of this proxy.
fn builder_of(proxy: &Proxy) -> ProxyBuilder {
    let mut builder = Proxy::builder(proxy.protocol()).host(proxy.host()).port(proxy.port());
    if let Some(name) = proxy.username() {
        builder = builder.username(name);
    }
    if let Some(password) = proxy.password() {
        builder = builder.password(password);
    }
    builder
}

/// Refuses the connections that would have to go through a proxy which cannot be used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusal(Option<ProxyError>);

impl Connector for Refusal {
    type Out = ();

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<()>, ureq::Error> {
        let is_exception = || details.config.proxy().is_some_and(|proxy| proxy.is_no_proxy(details.uri));
        match self.0 {
            Some(error) if !is_exception() => Err(ureq::Error::Other(Box::new(error))),
            _ => Ok(chained),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use super::*;

    fn route(variables: &[(&str, &str)]) -> Route {
        Route::from_variables(|name| {
            variables.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_general_proxy_is_taken_last() {
        for (variables, expect) in [
            (&[][..], None),
            (&[("HTTPS_PROXY", "")], None),
            (&[("ALL_PROXY", "http://a:1")], Some("http://a:1/")),
            (&[("all_proxy", "a:1")], Some("http://a:1/")),
            (&[("ALL_PROXY", "http://a:1"), ("http_proxy", "http://b:2")], Some("http://b:2/")),
            (&[("HTTP_PROXY", "http://b:2"), ("https_proxy", "http://c")], Some("http://c:80/")),
            (
                &[("ALL_PROXY", "socks5://a:1"), ("HTTPS_PROXY", "https://u:p%40@c:3")],
                Some("https://u:p%40@c:3/"),
            ),
        ] {
            let Route { proxy, refusal } = route(variables);
            let address = proxy.map(|proxy| proxy.uri().to_string().to_ascii_lowercase());
            assert_eq!((address.as_deref(), refusal.0), (expect, None), "{variables:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_and_keeps_its_exceptions() {
        let socks = |variable| ProxyError::Socks { variable };
        let address = |variable| ProxyError::Address { variable };
        for (variable, value, expect) in [
            ("ALL_PROXY", "socks5://127.0.0.1:1080", socks("ALL_PROXY")),
            ("all_proxy", "socks5h://u:p@127.0.0.1:1080", socks("all_proxy")),
            ("HTTPS_PROXY", "SOCKS4://h", socks("HTTPS_PROXY")),
            ("HTTP_PROXY", "ftp://h", address("HTTP_PROXY")),
            ("HTTPS_PROXY", "//", address("HTTPS_PROXY")),
        ] {
            let Route { proxy, refusal } = route(&[(variable, value), ("NO_PROXY", "b.example, c.example")]);
            assert_eq!(refusal.0, Some(expect), "{value}");
            let is_direct = |url: &str| proxy.as_ref().unwrap().is_no_proxy(&url.parse().unwrap());
            let hosts = ["https://a.example", "https://b.example", "https://c.example"];
            assert_eq!(hosts.map(is_direct), [false, true, true], "{value}");
            assert!(!expect.to_string().contains("u:p"), "a password is not shown");
        }
    }
}
