//! Protection against requests of foreign pages in a browser: the hosts of this server, and the allowed origins.
//!
//! A browser sends requests for every page it shows, also to `127.0.0.1`. A foreign page is detected by its `Origin`;
//! one whose name was pointed at this machine after it was loaded (DNS rebinding) has the right origin and is detected
//! by its `Host`, which is still that name. An address in `Host` can only be the address that was contacted.

use std::{net::IpAddr, str::FromStr};

use axum::http::{
    HeaderMap, HeaderValue, Method, StatusCode, Uri, header,
    uri::{Authority, Scheme},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::error::ApiError;

/// Maximum characters of a host or an origin in an error.
const NAMED_CHARS: usize = 100;

/// Allowed senders of requests.
#[derive(Debug, Clone)]
pub struct Senders {
    /// Names by which the server may be addressed.
    pub hosts: Hosts,
    /// Origins whose pages may send requests.
    pub origins: Vec<AllowedOrigin>,
}

/// Hosts by which the server may be addressed.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Address that the server listens on.
    bound: IpAddr,
    allowed: Vec<AllowedHost>,
}

/// A host that is allowed by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHost {
    /// `*`
    Any,
    /// In lower case, without a port.
    Named(String),
}

/// An origin whose pages may send requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// `*`
    Any,
    /// `localhost`: pages served by this machine, from any port.
    Local,
    /// An origin as browsers write it: `https://example.org`, or `null`. One `*` stands for any text, as Ollama reads it:
    /// `chrome-extension://*`.
    Page(HeaderValue),
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedHost, String> {
        if text == "*" {
            return Ok(AllowedHost::Any);
        }
        let bracketed = if text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
            format!("[{text}]")
        } else {
            text.to_owned()
        };
        match bracketed.parse::<Authority>() {
            Ok(authority) if authority.as_str() == authority.host() && !text.is_empty() => {
                Ok(AllowedHost::Named(host_name(&authority)))
            }
            _ => Err(format!("`{text}` is no host; write a name or an address without port, or * for all")),
        }
    }
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedOrigin, String> {
        let origin = text.trim_end_matches('/').to_ascii_lowercase();
        let origin = without_default_port(&origin);
        let is_origin = origin == "null"
            || origin.split_once("://").is_some_and(|(scheme, host)| {
                !scheme.is_empty()
                    && !host.is_empty()
                    && !host.contains(['/', '?', '#', '@'])
                    && origin.matches('*').count() <= 1
            });
        match HeaderValue::from_str(origin) {
            _ if text == "*" => Ok(AllowedOrigin::Any),
            _ if text == "localhost" => Ok(AllowedOrigin::Local),
            Ok(value) if is_origin => Ok(AllowedOrigin::Page(value)),
            _ => Err(format!(
                "`{text}` is no origin; write it as https://example.org, chrome-extension://* where one * is any text, localhost for pages of this machine, or * for all"
            )),
        }
    }
}

impl AllowedOrigin {
    /// True if this allows pages of the origin.
    fn has(&self, origin: &HeaderValue) -> bool {
        match self {
            AllowedOrigin::Any => true,
            AllowedOrigin::Local => is_local(origin),
            AllowedOrigin::Page(page) => is_like(page.as_bytes(), origin.as_bytes()),
        }
    }
}

/// An origin as browsers write it, which is without the port of its scheme. Behind a `*` the port stays: without it, any
/// port would do.
fn without_default_port(origin: &str) -> &str {
    let port = match origin.split_once("://") {
        Some(("http", _)) => ":80",
        Some(("https", _)) => ":443",
        _ => return origin,
    };
    origin.strip_suffix(port).filter(|rest| !rest.ends_with('*')).unwrap_or(origin)
}

/// True if the origin is this one, in which a `*` is any text.
fn is_like(page: &[u8], origin: &[u8]) -> bool {
    let Some(at) = page.iter().position(|&byte| byte == b'*') else { return page == origin };
    let (before, after) = (&page[..at], &page[at + 1..]);
    origin.len() >= before.len() + after.len() && origin.starts_with(before) && origin.ends_with(after)
}

impl Hosts {
    /// The hosts of a server that listens at `bound`.
    pub fn new(bound: IpAddr, allowed: Vec<AllowedHost>) -> Hosts {
        Hosts { bound: bound.to_canonical(), allowed }
    }

    /// Refuses a request for another host. A request without a host does not come from a browser.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.allowed.contains(&AllowedHost::Any) {
            return Ok(());
        }
        let named = headers.get_all(header::HOST).iter().filter(|host| !host.is_empty());
        named
            .map(|host| host.to_str().unwrap_or("?"))
            .chain(uri.authority().map(Authority::as_str))
            .try_for_each(|host| if self.are_called(host) { Ok(()) } else { Err(foreign_host(host)) })
    }

    /// True if this host, with or without a port, is one of the server's.
    fn are_called(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if host.contains('@') {
            return false;
        }
        let name = host_name(&authority);
        let is_bound = |ip: IpAddr| self.bound.is_unspecified() || ip.to_canonical() == self.bound;
        is_this_machine(&name)
            || name.parse::<IpAddr>().is_ok_and(is_bound)
            || self.allowed.contains(&AllowedHost::Named(name))
    }
}

impl Senders {
    /// Refuses a request for another host and one of a foreign page.
    ///
    /// The host matters if no key is required: a page that has taken another name has no key. The origin always
    /// matters, because a proxy may add the key; so do the Fetch Metadata headers for images and frames, which have no
    /// origin.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap, asks_no_key: bool) -> Result<(), ApiError> {
        if asks_no_key {
            self.hosts.check(uri, headers)?;
        }
        if !self.origins.contains(&AllowedOrigin::Any) {
            check_site(headers)?;
        }
        check_origin(headers, &self.origins)
    }
}

/// Headers that browsers send and other programs do not; a page's `POST` always has an `Origin`, even to its own site
/// (Fetch, WHATWG, section 3.2).
const OF_BROWSERS: [&str; 5] = ["origin", "referer", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];

impl Senders {
    /// True if a request comes from a program and not from a page: it is for a host of this server, and no header shows
    /// that a browser has sent it.
    pub(crate) fn is_a_programs(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        self.hosts.check(uri, headers).is_ok() && !OF_BROWSERS.iter().any(|name| headers.contains_key(*name))
    }
}

/// Refuses a foreign page's embedded request: browsers mark each request (Fetch Metadata, W3C, section 2). A request
/// with an origin is judged by the origin, and following a link is allowed.
fn check_site(headers: &HeaderMap) -> Result<(), ApiError> {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    let follows_a_link = is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document");
    let is_embedded =
        is("sec-fetch-site", "cross-site") && !headers.contains_key(header::ORIGIN) && !follows_a_link;
    if is_embedded { Err(embedded()) } else { Ok(()) }
}

fn check_origin(headers: &HeaderMap, allowed: &[AllowedOrigin]) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_welcome = |origin: &HeaderValue| {
        allowed.iter().any(|allowed| allowed.has(origin)) || is_same_origin(origin, host)
    };
    match headers.get_all(header::ORIGIN).iter().find(|origin| !is_welcome(origin)) {
        None => Ok(()),
        Some(origin) => Err(foreign_origin(origin)),
    }
}

/// True if the origin is of this machine.
fn is_local(origin: &HeaderValue) -> bool {
    let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    origin.as_ref().and_then(Uri::authority).map(host_name).is_some_and(|host| is_this_machine(&host))
}

/// True if a host is this machine under a name that no other machine can take. A client that is given `0.0.0.0`, as
/// servers write it for all addresses, connects to its own machine.
fn is_this_machine(host: &str) -> bool {
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) => ip.is_loopback() || ip.is_unspecified(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// True if a page of `origin` was served under the host that it addresses now. The scheme is ignored: a proxy may
/// terminate TLS for this server.
fn is_same_origin(origin: &HeaderValue, host: Option<&str>) -> bool {
    let Some(origin) = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()) else {
        return false;
    };
    let default_port = match origin.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => 80,
        Some(scheme) if *scheme == Scheme::HTTPS => 443,
        _ => return false,
    };
    let place = |authority: &Authority| (host_name(authority), authority.port_u16().unwrap_or(default_port));
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| origin.authority().is_some_and(|origin| place(origin) == place(&host)))
}

/// The host in lower case: without the port, the brackets of IPv6, and the root's dot.
fn host_name(authority: &Authority) -> String {
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn foreign_host(host: &str) -> ApiError {
    let host = shortened(host);
    let message = format!(
        "the request is for the host `{host}`, which is not this server's: a page elsewhere could have pointed that name here; use 127.0.0.1 or localhost, or start kvik with --allow-host and that name"
    );
    ApiError::new(StatusCode::FORBIDDEN, Some("host_not_allowed"), message)
}

fn foreign_origin(origin: &HeaderValue) -> ApiError {
    let origin = shortened(origin.to_str().unwrap_or("?"));
    let message = format!(
        "pages of `{origin}` may not call this server; if they should, start kvik with --cors {origin}"
    );
    ApiError::new(StatusCode::FORBIDDEN, Some("origin_not_allowed"), message)
}

fn embedded() -> ApiError {
    let message =
        "a page of another site may not embed answers of this server; open them in a window of their own";
    ApiError::new(StatusCode::FORBIDDEN, Some("origin_not_allowed"), message)
}

fn shortened(text: &str) -> String {
    text.chars().take(NAMED_CHARS).collect()
}

/// CORS headers: pages of these origins may send requests, with the headers they ask for.
pub(crate) fn cors(allowed: &[AllowedOrigin]) -> CorsLayer {
    let pages = allowed.to_vec();
    let origins = match allowed {
        [] => return CorsLayer::new(),
        _ if allowed.contains(&AllowedOrigin::Any) => Any.into(),
        _ => AllowOrigin::predicate(move |origin, _| pages.iter().any(|allowed| allowed.has(origin))),
    };
    // Allowed origins may send any header: clients have their own, such as `x-stainless-os`.
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<HeaderMap>()
    }

    #[test]
    fn a_server_answers_to_its_own_hosts() {
        let check = |bound: &str, allowed: &[&str], host: &str, expect: bool| {
            let allowed = allowed.iter().map(|host| host.parse().unwrap()).collect();
            let hosts = Hosts::new(bound.parse().unwrap(), allowed);
            let answered = hosts.check(&Uri::from_static("/health"), &headers(&[("host", host)])).is_ok();
            assert_eq!(answered, expect, "{host} at {bound}");
        };
        for host in [
            "127.0.0.1:8080",
            "127.1.2.3",
            "localhost",
            "LOCALHOST:1",
            "kvik.localhost",
            "localhost.",
            "[::1]:8080",
            "0.0.0.0:8080",
            "[::]:8080",
        ] {
            check("127.0.0.1", &[], host, true);
            check("0.0.0.0", &[], host, true);
            check("10.0.0.7", &[], host, true);
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "evillocalhost",
            "a@localhost",
            "127.0.0.1.evil.example",
            "[::1",
            "10.0.0.7",
            "ü",
        ] {
            check("127.0.0.1", &[], host, false);
        }
        check("10.0.0.7", &[], "10.0.0.7:8080", true);
        check("10.0.0.7", &[], "10.0.0.8", false);
        check("0.0.0.0", &[], "192.168.1.5", true);
        check("::", &[], "[fe80::1]:80", true);
        check("::", &[], "evil.example", false);
        check("127.0.0.1", &["kvik.lan", "fd00::7"], "KVIK.lan:80", true);
        check("127.0.0.1", &["kvik.lan", "fd00::7"], "[fd00::7]:80", true);
        check("127.0.0.1", &["kvik.lan"], "other.lan", false);
        check("127.0.0.1", &["*"], "evil.example", true);
        check("127.0.0.1", &[], "", true);
    }

    #[test]
    fn every_host_that_a_request_names_counts() {
        let hosts = Hosts::new([127, 0, 0, 1].into(), Vec::new());
        let check = |uri: &str, pairs: &[(&'static str, &str)], expect: bool| {
            assert_eq!(
                hosts.check(&uri.parse().unwrap(), &headers(pairs)).is_ok(),
                expect,
                "{uri} {pairs:?}"
            );
        };
        check("/", &[], true);
        check("http://evil.example/", &[("host", "localhost")], false);
        check("http://localhost/", &[("host", "evil.example")], false);
        check("/", &[("host", "localhost"), ("host", "evil.example")], false);
    }

    #[test]
    fn pages_call_the_server_that_served_them_and_others_if_they_may() {
        let allowed = ["https://page.example/".parse().unwrap()];
        let check = |allowed: &[AllowedOrigin], origin: &str, host: &str, expect: bool| {
            let headers = headers(&[("origin", origin), ("host", host)]);
            assert_eq!(check_origin(&headers, allowed).is_ok(), expect, "{origin} to {host}");
        };
        check(&allowed, "http://127.0.0.1:8080", "127.0.0.1:8080", true);
        check(&allowed, "http://localhost", "localhost:80", true);
        check(&allowed, "https://kvik.example", "kvik.example", true);
        check(&allowed, "http://127.0.0.1:3000", "127.0.0.1:8080", false);
        check(&allowed, "http://localhost:8080", "127.0.0.1:8080", false);
        check(&allowed, "https://page.example", "127.0.0.1:8080", true);
        for origin in [
            "https://evil.example",
            "null",
            "",
            "http://page.example",
            "https://page.example.evil.example",
            "file://",
        ] {
            check(&allowed, origin, "127.0.0.1:8080", false);
            check(&[AllowedOrigin::Any], origin, "127.0.0.1:8080", true);
            check(&[AllowedOrigin::Local], origin, "127.0.0.1:8080", false);
        }
        for origin in [
            "http://localhost",
            "https://localhost:3000",
            "http://127.0.0.1:1",
            "http://[::1]:3000",
            "http://0.0.0.0:3000",
            "http://tauri.localhost",
        ] {
            check(&[AllowedOrigin::Local], origin, "kvik.lan", true);
        }
        for origin in
            ["http://notlocalhost", "http://localhost.evil.example", "http://127.0.0.1.evil.example"]
        {
            check(&[AllowedOrigin::Local], origin, "kvik.lan", false);
        }
        // As a literal such an origin was allowed and none was equal to it.
        for (pattern, origin, expect) in [
            ("chrome-extension://*", "chrome-extension://abcdefgh", true),
            ("chrome-extension://*", "moz-extension://abcdefgh", false),
            ("http://localhost:*", "http://localhost:3000", true),
            ("http://localhost:*", "http://localhost.evil.example", false),
            ("https://*.page.example", "https://a.page.example", true),
            ("https://*.page.example", "https://a.page.example.evil.example", false),
            ("https://a.*a.example", "https://a.example", false),
            ("https://page.example:443", "https://page.example", true),
            ("http://page.example:80/", "http://page.example", true),
            ("http://page.example:443", "http://page.example", false),
            ("http://page.example:8080", "http://page.example", false),
            ("http://*:80", "http://evil.example:3000", false),
            ("https://*.page.example:443", "https://a.page.example", true),
        ] {
            check(&[pattern.parse().unwrap()], origin, "127.0.0.1:8080", expect);
        }
        check_origin(&headers(&[("host", "127.0.0.1")]), &[]).unwrap();
        assert!(
            check_origin(&headers(&[("origin", "http://127.0.0.1")]), &[]).is_err(),
            "no host to be the same as"
        );
    }

    #[test]
    fn a_foreign_page_embeds_nothing_and_links_to_what_it_likes() {
        let check = |site: &str, mode: &str, dest: &str, more: &[(&'static str, &str)], expect: bool| {
            let said = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            let headers = headers(&[&said, more].concat());
            assert_eq!(check_site(&headers).is_ok(), expect, "{headers:?}");
        };
        for dest in ["image", "script", "iframe", "style", "empty"] {
            check("cross-site", "no-cors", dest, &[], false);
            for site in ["same-origin", "same-site", "none"] {
                check(site, "no-cors", dest, &[], true);
            }
        }
        check("cross-site", "navigate", "document", &[], true);
        check("cross-site", "navigate", "iframe", &[], false);
        // Judged by its origin.
        check("cross-site", "cors", "empty", &[("origin", "https://page.example")], true);
        check_site(&headers(&[])).unwrap();
    }

    #[test]
    fn a_program_is_told_from_a_browser() {
        let senders = Senders { hosts: Hosts::new([127, 0, 0, 1].into(), Vec::new()), origins: Vec::new() };
        let check = |pairs: &[(&'static str, &str)], expect: bool| {
            assert_eq!(senders.is_a_programs(&Uri::from_static("/"), &headers(pairs)), expect, "{pairs:?}");
        };
        check(&[("host", "127.0.0.1:8080"), ("user-agent", "curl/8.1"), ("accept", "*/*")], true);
        check(&[], true);
        check(&[("host", "evil.example")], false);
        for name in OF_BROWSERS {
            for value in ["null", "http://127.0.0.1:8080", "none"] {
                check(&[("host", "127.0.0.1:8080"), (name, value)], false);
            }
        }
    }

    #[test]
    fn what_is_no_host_or_no_origin_is_refused_at_the_start() {
        for text in ["", "http://kvik.lan", "kvik.lan:8080", "a b", "a@b", "[::1]:80"] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
        for text in [
            "",
            "page.example",
            "https://",
            "https://page.example/path",
            "://x",
            "https://a b\n",
            "http://*.*",
        ] {
            assert!(text.parse::<AllowedOrigin>().is_err(), "{text}");
        }
    }
}
