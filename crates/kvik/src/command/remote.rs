//! HTTP client of a running server, for the commands that read or change its cache.
//!
//! The only code that locates the server: `--url`, else the address at which `kvik serve` with the same settings
//! listens, whether set by a flag, a variable (`KVIK_PORT`) or config.toml.

use std::{fs, net::IpAddr, path::Path};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;
use ureq::http::{Method, Request};

/// Default address of a server.
const LOCAL: &str = "127.0.0.1";

/// Address and key of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// URL of the server [default: where `kvik serve` listens by the same settings, http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    // `kvik serve` has these two settings, which gives them their variables and their keys of config.toml here too.
    /// Where the server listens, without --url
    #[arg(long, value_name = "HOST", default_value = LOCAL, hide = true, global = true)]
    host: String,
    #[arg(long, value_name = "PORT", default_value_t = 8080, hide = true, global = true)]
    port: u16,
    /// API key, where the server requires one
    #[arg(long, value_name = "KEY", env = "KVIK_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
}

impl ServerArgs {
    /// Replaces the server's address.
    pub(crate) fn at(self, url: String) -> ServerArgs {
        ServerArgs { url: Some(url), ..self }
    }

    /// The address to which requests are sent.
    pub(crate) fn url(&self) -> String {
        let named = self.url.as_ref().map(|url| url.trim_end_matches('/').to_owned());
        named.unwrap_or_else(|| url_of(&self.host, self.port))
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(crate) fn with_key(self, key: Option<String>) -> ServerArgs {
        ServerArgs { key, ..self }
    }

    /// Whether something listens at its address.
    pub(crate) fn answers(&self) -> bool {
        let agent = kvik_shelf::tls::agent(ureq::Agent::config_builder().http_status_as_error(false));
        !matches!(
            agent.get(self.url()).call(),
            Err(ureq::Error::ConnectionFailed | ureq::Error::HostNotFound | ureq::Error::Io(_))
        )
    }

    /// Sends a request, with a JSON body or none, and returns the JSON of the response.
    pub(crate) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.url());
        let mut request =
            Request::builder().method(method).uri(&url).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(body.map(Value::to_string).unwrap_or_default())?;
        let config =
            ureq::Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true);
        let response = kvik_shelf::tls::agent(config).run(request);
        let mut response = response.with_context(|| {
            format!("{url} does not answer; is `kvik serve` running there? --url names another address")
        })?;
        let text =
            response.body_mut().read_to_string().with_context(|| format!("the answer of {url} broke off"))?;
        let answer: Value =
            serde_json::from_str(&text).with_context(|| format!("{url} did not answer as kvik does"))?;
        if !response.status().is_success() {
            bail!("{}", answer["error"]["message"].as_str().unwrap_or("the server refused the request"));
        }
        Ok(answer)
    }
}

/// The URL for a client on this machine of a server that listens at this address.
pub(crate) fn url_of(host: &str, port: u16) -> String {
    let plain = host.trim_matches(['[', ']']);
    let host = match plain.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => LOCAL.to_owned(),
        Ok(ip) if ip.is_ipv6() => format!("[{ip}]"),
        _ => plain.to_owned(),
    };
    format!("http://{host}:{port}")
}

/// The JSON in a file.
pub(crate) fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// A name, percent-encoded as one segment of a path.
pub(crate) fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command::Cli;
    use crate::command::config;

    /// Every command with `--url` also finds the server by the settings of `kvik serve`.
    #[test]
    fn commands_that_ask_a_server_have_the_settings_of_its_address() {
        let command =
            config::configure(Cli::command(), &["kvik".into(), "--config=/dev/null".into()]).unwrap();
        let of_servers = |sub: &&clap::Command| sub.get_arguments().any(|arg| arg.get_long() == Some("url"));
        let mut names = Vec::new();
        for sub in command.get_subcommands().filter(of_servers) {
            for (long, variable) in [("host", "KVIK_HOST"), ("port", "KVIK_PORT")] {
                let arg = sub.get_arguments().find(|arg| arg.get_long() == Some(long));
                let env = arg.and_then(|arg| arg.get_env()).and_then(|env| env.to_str());
                assert_eq!(env, Some(variable), "{} --{long}", sub.get_name());
            }
            names.push(sub.get_name().to_owned());
        }
        assert_eq!(
            names,
            ["explain", "cache", "prompt", "ps", "health", "stop", "usage"],
            "tests/it/asking.rs runs each but `stop`, which sends a signal"
        );
    }

    #[test]
    fn a_server_is_reached_where_it_listens() {
        for (host, expect) in [
            ("127.0.0.1", "http://127.0.0.1:80"),
            ("0.0.0.0", "http://127.0.0.1:80"),
            ("::", "http://127.0.0.1:80"),
            ("[::]", "http://127.0.0.1:80"),
            ("::1", "http://[::1]:80"),
            ("[fe80::1]", "http://[fe80::1]:80"),
            ("kvik.lan", "http://kvik.lan:80"),
        ] {
            assert_eq!(url_of(host, 80), expect, "{host}");
        }
    }

    #[test]
    fn a_name_stays_one_segment_of_a_path() {
        assert_eq!(escaped("notify-1.2_x"), "notify-1.2_x");
        assert_eq!(escaped("a/b?c d"), "a%2Fb%3Fc%20d");
        assert_eq!(escaped("é"), "%C3%A9");
    }
}
