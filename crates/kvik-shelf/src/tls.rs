//! TLS: the cryptography provider for requests to `https://`, and agents that use it.
//!
//! Without the feature `tls-ring` it is graviola, which needs no C compiler but a processor of about 2014 or later.
//! With the feature it is ring, which runs on any processor but needs a C compiler to build.

use std::{env, ffi::OsStr, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject},
};
use ureq::{
    Agent,
    config::ConfigBuilder,
    tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem},
    typestate::AgentScope,
    unversioned::{
        resolver::DefaultResolver,
        transport::{Connector, DefaultConnector, TcpConnector},
    },
};

use crate::{
    ShelfError,
    disk::read_small,
    machine::is_own,
    proxy::{Refusal, Route},
};

/// Maximum size of a certificate file: those of all authorities take a quarter of a million bytes.
const PEM_BYTES_MAX: u64 = 16 << 20;

/// A cryptography provider that works on this machine.
#[derive(Debug, Clone)]
pub struct Tls {
    name: &'static str,
    provider: Arc<CryptoProvider>,
}

impl Tls {
    /// Its name, for people.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn config(self, roots: RootCerts) -> TlsConfig {
        TlsConfig::builder().unversioned_rustls_crypto_provider(self.provider).root_certs(roots).build()
    }
}

/// The provider of this build.
///
/// # Errors
/// [`ShelfError::NoTls`] if it does not support this processor.
pub fn provider() -> Result<Tls, ShelfError> {
    chosen().ok_or(ShelfError::NoTls)
}

/// An agent with this configuration, through the proxy of the environment. If this machine has no TLS, it fails
/// requests to `https://` with [`ureq::Error::TlsRequired`], and carries out others as usual. If it cannot use the
/// proxy, it fails with a [`ProxyError`](crate::ProxyError) in [`ureq::Error::Other`].
pub fn agent(config: ConfigBuilder<AgentScope>) -> Agent {
    through(Route::from_variables(env::var_os), config)
}

/// An agent for requests to this URL. Those to this machine go through no proxy: the proxy would reach another machine's
/// port, and would read their keys.
pub fn agent_to(url: &str, config: ConfigBuilder<AgentScope>) -> Agent {
    through(route_to(url, Route::from_variables(env::var_os)), config)
}

/// The way to a URL, where `others` is the one to other machines.
fn route_to(url: &str, others: Route) -> Route {
    if is_own(url) { Route::default() } else { others }
}

fn through(Route { proxy, refusal }: Route, config: ConfigBuilder<AgentScope>) -> Agent {
    let config = config.proxy(proxy);
    match provider() {
        Ok(tls) => with_tls(config, tls, roots(env::var_os("SSL_CERT_FILE").as_deref()), refusal),
        // Without a provider ureq's own connector would panic.
        Err(_) => without_tls(config, refusal),
    }
}

/// Configuration for clients that use TLS without HTTP, or with an HTTP of their own. They trust the same
/// authorities as [`agent`].
///
/// # Errors
/// [`ShelfError::NoTls`] if this machine has no TLS.
pub fn client() -> Result<ClientConfig, ShelfError> {
    client_trusting(env::var_os("SSL_CERT_FILE").as_deref())
}

/// Like [`client`], trusting the authorities of this file of PEM certificates, or those that browsers trust.
///
/// # Errors
/// [`ShelfError::NoTls`] if this machine has no TLS.
pub fn client_trusting(file: Option<&OsStr>) -> Result<ClientConfig, ShelfError> {
    let builder = ClientConfig::builder_with_provider(provider()?.provider);
    // The provider supports both versions, so this cannot fail.
    let builder = builder.with_safe_default_protocol_versions().map_err(|_| ShelfError::NoTls)?;
    Ok(builder.with_root_certificates(authorities(file)).with_no_client_auth())
}

/// The authorities that [`roots`] trusts, as a rustls store.
fn authorities(file: Option<&OsStr>) -> RootCertStore {
    let mut store = RootCertStore::empty();
    if let Some(pem) = certificates_in(file) {
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    }
    if store.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    store
}

/// The content of a certificate file, if it is readable.
fn certificates_in(file: Option<&OsStr>) -> Option<Vec<u8>> {
    read_small(file?.as_ref(), PEM_BYTES_MAX).ok()
}

/// The trusted authorities: those of this file of PEM certificates, which a machine behind a proxy may have;
/// without such a file, or if it contains none, those that browsers trust.
fn roots(file: Option<&OsStr>) -> RootCerts {
    let Some(pem) = certificates_in(file) else { return RootCerts::WebPki };
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let found: Vec<Certificate<'static>> = parse_pem(&pem).filter_map(certificate).collect();
    if found.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&found) }
}

fn with_tls(config: ConfigBuilder<AgentScope>, tls: Tls, roots: RootCerts, refusal: Refusal) -> Agent {
    let config = config.tls_config(tls.config(roots)).build();
    Agent::with_parts(config, refusal.chain(DefaultConnector::default()), DefaultResolver::default())
}

fn without_tls(config: ConfigBuilder<AgentScope>, refusal: Refusal) -> Agent {
    Agent::with_parts(config.build(), refusal.chain(TcpConnector::default()), DefaultResolver::default())
}

#[cfg(feature = "tls-ring")]
fn chosen() -> Option<Tls> {
    Some(Tls { name: "ring", provider: Arc::new(rustls::crypto::ring::default_provider()) })
}

#[cfg(all(not(feature = "tls-ring"), any(target_arch = "x86_64", target_arch = "aarch64")))]
fn chosen() -> Option<Tls> {
    runs_graviola().then(|| Tls { name: "graviola", provider: Arc::new(rustls_graviola::default_provider()) })
}

#[cfg(all(not(feature = "tls-ring"), not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn chosen() -> Option<Tls> {
    None
}

/// The processor features that graviola needs; it panics without them.
#[cfg(all(not(feature = "tls-ring"), target_arch = "x86_64"))]
fn runs_graviola() -> bool {
    use std::arch::is_x86_feature_detected as has;
    let wide = has!("ssse3") && has!("avx") && has!("avx2");
    wide && has!("aes") && has!("pclmulqdq") && has!("bmi1") && has!("bmi2") && has!("adx")
}

#[cfg(all(not(feature = "tls-ring"), target_arch = "aarch64"))]
fn runs_graviola() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests {
    use std::{
        fs,
        io::{Read, Write},
        net::{SocketAddr, TcpListener},
        path::Path,
        thread,
    };

    use super::*;
    use rustls::{
        ServerConfig, ServerConnection, Stream, SupportedProtocolVersion,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        version::{TLS12, TLS13},
    };

    /// Valid until 2126; the authority's key was discarded.
    const AUTHORITY: &[u8] = include_bytes!("tests/tls/ca.pem");
    const SERVER: &[u8] = include_bytes!("tests/tls/leaf.pem");
    const SERVER_KEY: &[u8] = include_bytes!("tests/tls/leaf.key");

    /// Serves one request on `localhost`, with this version of TLS.
    fn server(version: &'static SupportedProtocolVersion) -> SocketAddr {
        let chain = vec![CertificateDer::from_pem_slice(SERVER).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(SERVER_KEY).unwrap();
        let config = ServerConfig::builder_with_provider(provider().unwrap().provider);
        let config = config.with_protocol_versions(&[version]).unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(chain, key).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut connection = ServerConnection::new(config).unwrap();
            let mut tls = Stream::new(&mut connection, &mut stream);
            // A client that trusts no authority here ends the connection.
            if tls.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                let _ =
                    tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello");
            }
        });
        address
    }

    fn ask(agent: &Agent, host: &str, address: SocketAddr) -> Result<String, ureq::Error> {
        agent.get(format!("https://{host}:{}/", address.port())).call()?.body_mut().read_to_string()
    }

    fn trusting() -> Agent {
        let roots = RootCerts::new_with_certs(&[Certificate::from_pem(AUTHORITY).unwrap()]);
        with_tls(Agent::config_builder(), provider().unwrap(), roots, Refusal::default())
    }

    #[test]
    fn a_server_is_asked_in_both_versions() {
        for version in [&TLS12, &TLS13] {
            assert_eq!(ask(&trusting(), "localhost", server(version)).unwrap(), "hello", "{version:?}");
        }
    }

    #[test]
    fn a_server_of_an_unknown_authority_or_another_name_is_refused() {
        let refused = |agent: &Agent, host: &str| {
            let error = ask(agent, host, server(&TLS13)).unwrap_err().to_string();
            assert!(error.contains("certificate"), "{host}: {error}");
        };
        refused(&agent(Agent::config_builder()), "localhost");
        refused(&trusting(), "127.0.0.1");
    }

    #[test]
    fn this_machine_is_reached_without_a_proxy_and_others_through_it() {
        let others = Route::from_variables(|name| (name == "ALL_PROXY").then(|| "http://127.0.0.1:1".into()));
        let proxied = |url: &str| {
            through(route_to(url, others.clone()), Agent::config_builder()).config().proxy().is_some()
        };
        for (url, expect) in [
            ("http://127.0.0.1:80", false),
            ("http://localhost:80", false),
            ("http://[::1]:80", false),
            ("http://192.0.2.1:80", true),
            ("https://kvik.example", true),
        ] {
            assert_eq!(proxied(url), expect, "{url}");
        }
    }

    #[test]
    fn authorities_of_a_file_are_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("authorities.pem");
        fs::write(&file, [SERVER, AUTHORITY].concat()).unwrap();
        let agent = |file: &Path| {
            let roots = roots(Some(file.as_os_str()));
            with_tls(Agent::config_builder(), provider().unwrap(), roots, Refusal::default())
        };
        assert_eq!(ask(&agent(&file), "localhost", server(&TLS13)).unwrap(), "hello");
        fs::write(&file, "nothing").unwrap();
        for file in [&file, &dir.path().join("missing.pem")] {
            assert!(ask(&agent(file), "localhost", server(&TLS13)).is_err());
        }
    }

    #[test]
    fn without_tls_a_request_is_refused_and_nothing_panics() {
        let agent = without_tls(Agent::config_builder(), Refusal::default());
        let error = ask(&agent, "localhost", server(&TLS13)).unwrap_err();
        assert!(matches!(error, ureq::Error::TlsRequired), "{error}");
    }
}
