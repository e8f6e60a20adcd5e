//! Flags of the listening address, of API keys, and of allowed hosts and origins.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, builder::FalseyValueParser};
use kvik_text::files::small::{SETTINGS_BYTES_MAX, read_small_text};
use tokio::net::TcpListener;

use crate::command::pid_file;
use kvik_server::{
    app::keys::Keys,
    http::{AllowedHost, AllowedOrigin, Hosts, Senders},
};
use kvik_serving::system::warn_if_readable_by_others;

/// The listening address, and the clients that may use it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct AccessArgs {
    /// Address to listen on; 0.0.0.0 for all
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 for a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// A key that clients must send; may be repeated
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        value_parser = key,
        hide_env_values = true,
        hide_default_value = true
    )]
    pub(crate) api_key: Vec<String>,
    /// A file with one key per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen on an address that other machines can reach without requiring a key
    #[arg(long, value_parser = FalseyValueParser::new())]
    allow_no_key: bool,
    /// A host name that requests may use beside the server's address and localhost, or * for any; may be repeated
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    allow_host: Vec<AllowedHost>,
    // This is text of `--help`; rustdoc asks for a link.
    #[allow(rustdoc::bare_urls)]
    /// An origin whose pages may send requests, as https://example.org, chrome-extension://* where one * is any text,
    /// localhost for pages of this machine, or * for all; may be repeated
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    cors: Vec<AllowedOrigin>,
}

/// Parses a key from a flag, the environment or the configuration. An empty key is an error: it comes from an unset
/// variable, and must not open the server. So is a key that no header can carry.
pub(crate) fn key(text: &str) -> Result<String, String> {
    let can_be_sent = |key: &str| key.chars().all(|c| matches!(c, ' '..='~'));
    match text.trim() {
        "" => Err("the key is empty; give a key, or leave the setting out to ask for none".to_owned()),
        key if !can_be_sent(key) => Err("the key has a character that no header of HTTP can carry; \
            use English letters, digits and punctuation"
            .to_owned()),
        key => Ok(key.to_owned()),
    }
}

/// The keys in a file, one per line.
pub(crate) fn keys_in(path: &Path, flag: &str) -> anyhow::Result<Vec<String>> {
    let text = read_small_text(path, SETTINGS_BYTES_MAX)
        .with_context(|| format!("the keys in {} cannot be read", path.display()))?;
    warn_if_readable_by_others(path, "the file of keys");
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let keys = lines.map(|(line, number)| {
        key(line).map_err(|error| anyhow!("line {number} of the file {} of {flag}: {error}", path.display()))
    });
    let keys = keys.collect::<anyhow::Result<Vec<String>>>()?;
    if keys.is_empty() {
        // An empty file must not open the server to all clients.
        bail!("the file {} of {flag} holds no key", path.display());
    }
    Ok(keys)
}

impl AccessArgs {
    /// The keys of the default tenant.
    pub(crate) fn keys(&self) -> anyhow::Result<Keys> {
        let of_file = match &self.api_key_file {
            None => Vec::new(),
            Some(path) => keys_in(path, "--api-key-file")?,
        };
        Ok(Keys::new(self.api_key.iter().chain(&of_file).map(String::as_str)))
    }

    /// Opens the listening socket.
    pub(crate) async fn listen(&self) -> anyhow::Result<TcpListener> {
        let (host, port) = (self.host.trim_matches(['[', ']']), self.port);
        TcpListener::bind((host, port)).await.map_err(|error| self.cannot_listen(host, error))
    }

    /// Says why the port is not to be had, and which kvik of this user has it, if one does.
    fn cannot_listen(&self, host: &str, error: io::Error) -> anyhow::Error {
        let port = self.port;
        let holder = pid_file::find(port).ok().flatten().filter(|_| error.kind() == ErrorKind::AddrInUse);
        let said = match holder {
            Some(kvik) => anyhow!(
                "cannot listen on {host}, port {port}: process {} is a kvik that has it, which \
                 `kvik stop --port {port}` ends; or choose another --port",
                kvik.pid()
            ),
            None => anyhow!("cannot listen on {host}, port {port}; choose another --port"),
        };
        anyhow::Error::new(error).context(said)
    }

    /// The hosts and origins that a server listening at `bound` accepts.
    pub(crate) fn senders(&self, bound: IpAddr) -> Senders {
        // Requests may use the name that the server listens on.
        let own = self.host.parse::<AllowedHost>().ok().filter(|host| *host != AllowedHost::Any);
        let hosts = Hosts::new(bound, self.allow_host.iter().cloned().chain(own).collect());
        Senders { hosts, origins: self.cors.clone() }
    }

    /// Refuses an unintended exposure to other machines, and warns about an intended one.
    pub(crate) fn check_exposure(&self, bound: SocketAddr, keys: &Keys) -> anyhow::Result<()> {
        if !keys.are_open() {
            return Ok(());
        }
        let address = bound.ip().to_canonical();
        if !address.is_loopback() && !self.allow_no_key {
            bail!(
                "other machines can reach {address} and no key is asked for: set --api-key, --api-key-file or --tenants, listen on 127.0.0.1 only, or set --allow-no-key if everybody may use the model"
            );
        }
        if !address.is_loopback() {
            tracing::warn!("NO KEY: everybody who can reach {bound} can use the model (--allow-no-key)");
        }
        if keys.have_admin() {
            tracing::warn!(
                "--admin-key protects what concerns all tenants only: without --api-key or --tenants everybody who can reach {bound} can use the model without a key"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        access: AccessArgs,
    }

    fn parse(flags: &[&str]) -> Result<AccessArgs, String> {
        let flags = std::iter::once("kvik").chain(flags.iter().copied());
        Flags::try_parse_from(flags).map(|flags| flags.access).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_key_is_an_error() {
        for flags in [&["--api-key", ""], &["--api-key", " "], &["--api-key", ","], &["--api-key", "a,"]] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains("--api-key") && error.contains("the key is empty"), "{error}");
        }
        assert_eq!(parse(&["--api-key", "a, b"]).unwrap().api_key, ["a", "b"]);
        assert!(parse(&[]).unwrap().api_key.is_empty());
    }

    #[test]
    fn a_key_that_cannot_be_sent_is_an_error() {
        for key in ["schlüssel", "钥匙", "a\u{200b}b", "a\tb", "a\u{7f}"] {
            let error = parse(&["--api-key", key]).unwrap_err();
            assert!(error.contains("--api-key") && error.contains("no header of HTTP can carry"), "{error}");
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), format!("alpha\n\n{key}\n")).unwrap();
            let error = keys_in(file.path(), "--api-key-file").unwrap_err().to_string();
            assert!(error.contains("line 3") && error.contains("--api-key-file"), "{error}");
        }
        assert_eq!(parse(&["--api-key", "a b~!"]).unwrap().api_key, ["a b~!"]);
    }

    #[test]
    fn a_file_without_a_key_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\n \n").unwrap();
        assert!(keys_in(file.path(), "--api-key-file").unwrap_err().to_string().contains("--api-key-file"));
        std::fs::write(file.path(), "alpha\r\n\n beta\n").unwrap();
        assert_eq!(keys_in(file.path(), "--api-key-file").unwrap(), ["alpha", "beta"]);
    }

    #[test]
    fn a_server_that_others_can_reach_requires_a_key_or_allow_no_key() {
        let check = |bound: &str, flags: &[&str], keys: Keys, expect: bool| {
            let checked = parse(flags).unwrap().check_exposure(bound.parse().unwrap(), &keys);
            assert_eq!(checked.is_ok(), expect, "{bound} {flags:?}");
            if let Err(error) = checked {
                assert!(error.to_string().contains("--allow-no-key"), "{error}");
            }
        };
        let open = || Keys::new([]);
        check("127.0.0.1:80", &[], open(), true);
        check("[::1]:80", &[], open(), true);
        check("[::ffff:127.0.0.1]:80", &[], open(), true);
        for bound in ["0.0.0.0:80", "[::]:80", "192.168.1.5:80"] {
            check(bound, &[], open(), false);
            check(bound, &[], open().with_admin(Some("root")).unwrap(), false);
            check(bound, &["--allow-no-key"], open(), true);
            check(bound, &[], Keys::new(["sesame"]), true);
        }
    }

    #[test]
    fn requests_may_use_the_name_that_the_server_listens_on() {
        let access = parse(&["--host", "kvik.lan", "--allow-host", "a.lan,b.lan"]).unwrap();
        let hosts = access.senders([10, 0, 0, 7].into()).hosts;
        for (host, expect) in [("kvik.lan:80", true), ("b.lan", true), ("c.lan", false), ("10.0.0.7", true)] {
            let headers = [(axum::http::header::HOST, host.parse().unwrap())].into_iter().collect();
            assert_eq!(hosts.check(&"/".parse().unwrap(), &headers).is_ok(), expect, "{host}");
        }
    }
}
