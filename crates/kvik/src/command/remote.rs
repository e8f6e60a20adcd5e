//! HTTP client of a running server, for the commands that read or change its cache.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;
use ureq::http::{Method, Request};

/// Address and key of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", global = true)]
    url: String,
    /// API key, where the server requires one
    #[arg(long, value_name = "KEY", env = "KVIK_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
}

impl ServerArgs {
    /// The same server at another address.
    pub(crate) fn at(self, url: String) -> ServerArgs {
        ServerArgs { url, ..self }
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(crate) fn with_key(self, key: Option<String>) -> ServerArgs {
        ServerArgs { key, ..self }
    }

    /// Sends a request, with a JSON body or none, and returns the JSON of the response.
    pub(crate) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
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
    use super::*;

    #[test]
    fn a_name_stays_one_segment_of_a_path() {
        assert_eq!(escaped("notify-1.2_x"), "notify-1.2_x");
        assert_eq!(escaped("a/b?c d"), "a%2Fb%3Fc%20d");
        assert_eq!(escaped("é"), "%C3%A9");
    }
}
