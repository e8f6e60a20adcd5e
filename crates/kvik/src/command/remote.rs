//! The server that a command asks, and requests to it with one answer each.
//!
//! The only code that locates the server: `--url`, or `KVIK_URL`; else the address at which `kvik serve` with the same
//! settings listens, whether set by a flag, a variable (`KVIK_PORT`) or config.toml; else the only one that this user
//! runs, which has written itself down. Nothing is sent to an address that none of them says.

use std::{convert::Infallible, fs, net::IpAddr, path::Path, str::FromStr, time::Duration};

use anyhow::Context;
use clap::Args;
use kvik_shelf::{is_loopback, tls::agent_to};
use serde_json::Value;
use ureq::{
    Agent,
    http::{Method, Request},
};

use super::{
    client::{AskError, address_of},
    pid_file::{self, RunningServer},
};

/// The parts of an address that the settings leave out.
const LOCAL: &str = "127.0.0.1";
const PORT: u16 = 8080;

/// Address and key of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    // Its variable, KVIK_URL, is read where no flag says another address; see `config`.
    /// URL of the server [default: where `kvik serve` listens by the same settings, else the only one that this user
    /// runs]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    // `kvik serve` has these three settings, which gives them their variables and their keys of config.toml here too.
    /// Where the server listens, without --url
    #[arg(long, value_name = "HOST", hide = true, global = true)]
    host: Option<String>,
    #[arg(long, value_name = "PORT", hide = true, global = true)]
    port: Option<u16>,
    /// Keys that the server of this machine asks for
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        hide = true,
        hide_env_values = true,
        global = true
    )]
    api_key: Vec<String>,
    /// API key, where the server requires one [default: that of `kvik serve` by the same settings (KVIK_API_KEY), for a
    /// server of this machine]
    #[arg(long, value_name = "KEY", env = "KVIK_KEY", hide_env_values = true, global = true)]
    key: Option<String>,
}

/// A server that may be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) url: String,
    /// The only model that it has, as it has written that down.
    pub(crate) model: Option<String>,
}

impl ServerArgs {
    /// Replaces the server's address.
    pub(crate) fn at(self, url: String) -> ServerArgs {
        ServerArgs { url: Some(url), ..self }
    }

    /// The address to which requests are sent.
    ///
    /// # Errors
    /// If nothing says where the server is, and this user runs none or several.
    pub(crate) fn url(&self) -> Result<String, AskError> {
        only(self.candidates())
    }

    /// Whether an address is named, by `--url` or its variable.
    pub(crate) fn is_named(&self) -> bool {
        self.url.is_some()
    }

    /// Whether anything says where the server is.
    fn is_set(&self) -> bool {
        self.is_named() || self.host.is_some() || self.port.is_some()
    }

    /// The server of the settings, which may not run; without any those that this user runs.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        if !self.is_set() {
            return pid_file::all().into_iter().map(Candidate::of).collect();
        }
        let running = pid_file::all().into_iter().map(Candidate::of);
        let url = match &self.url {
            Some(url) => completed(url),
            None => url_of(self.host.as_deref().unwrap_or(LOCAL), self.port.unwrap_or(PORT)),
        };
        let found = running.into_iter().find(|found| found.url == url);
        vec![found.unwrap_or(Candidate { url, model: None })]
    }

    /// The key of a client, apart from those of the server's own settings.
    pub(crate) fn own_key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The key for a server at this address. Keys of this machine's settings are sent to no other machine.
    pub(crate) fn key_for(&self, url: &str) -> Option<&str> {
        let is_own = || !self.is_named() || is_loopback(url);
        let of_settings = || self.api_key.iter().map(|key| key.trim()).find(|key| !key.is_empty());
        self.own_key().or_else(|| of_settings().filter(|_| is_own()))
    }

    pub(crate) fn with_key(self, key: Option<String>) -> ServerArgs {
        ServerArgs { key, ..self }
    }

    /// Whether a server answers at its address; none does that is not named and does not run.
    ///
    /// # Errors
    /// If that is no address, or one of several.
    pub(crate) fn answers(&self) -> Result<bool, AskError> {
        let url = match self.url() {
            Err(AskError::NoneRuns) => return Ok(false),
            url => url?,
        };
        address_of(&url)?;
        let answer = agent_to(&url, Agent::config_builder().http_status_as_error(false)).get(&url).call();
        // A redirect that leads nowhere is an answer too. Whatever else fails, also in a proxy, is none.
        Ok(matches!(answer, Ok(_) | Err(ureq::Error::RedirectFailed | ureq::Error::TooManyRedirects)))
    }

    /// Sends a request, with a JSON body or none, and returns the JSON of the response.
    pub(crate) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        self.call_within(None, method, path, body)
    }

    /// [`ServerArgs::call`] with a limit on its time.
    pub(crate) fn call_within(
        &self,
        limit: Option<Duration>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let server = self.url()?;
        address_of(&server)?;
        let url = format!("{server}{path}");
        let mut request =
            Request::builder().method(method).uri(&url).header("content-type", "application/json");
        if let Some(key) = self.key_for(&server) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(body.map(Value::to_string).unwrap_or_default())?;
        let config = Agent::config_builder().http_status_as_error(false).allow_non_standard_methods(true);
        let response = agent_to(&server, config.timeout_global(limit)).run(request);
        let mut response =
            response.map_err(|error| AskError::Unreachable { url: url.clone(), source: cause(error) })?;
        let text =
            response.body_mut().read_to_string().with_context(|| format!("the answer of {url} broke off"))?;
        if !response.status().is_success() {
            return Err(AskError::refused(Some(&server), response.status(), &text).into());
        }
        serde_json::from_str(&text).map_err(|_| AskError::Foreign { url }.into())
    }
}

/// Why a request had no response: kvik's own errors are told without the words of the HTTP client.
fn cause(error: ureq::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        ureq::Error::Other(own) => own,
        error => Box::new(error),
    }
}

/// The address of the only one of these servers: none of several is meant more than the others.
fn only(mut found: Vec<Candidate>) -> Result<String, AskError> {
    match found.len() {
        0 => Err(AskError::NoneRuns),
        1 => Ok(found.remove(0).url),
        _ => {
            let urls: Vec<String> = found.into_iter().map(|found| found.url).collect();
            Err(AskError::SeveralRun { urls: urls.join(", ") })
        }
    }
}

impl Candidate {
    fn of(server: RunningServer) -> Candidate {
        Candidate { url: server.url.clone(), model: server.model_at_url() }
    }
}

/// The model of a server that has several.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServedModelArgs {
    /// The model, as `kvik ps` names it, of a server that has several [default: the one that was used last]
    #[arg(short, long, value_name = "NAME", global = true)]
    model: Option<ServedName>,
}

/// A model's name at a server. Its type keeps `--model` apart from that of `kvik serve`, which names a model of this
/// machine, and whose variable and key of config.toml say nothing about a server.
#[derive(Debug, Clone)]
struct ServedName(String);

impl FromStr for ServedName {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<ServedName, Infallible> {
        Ok(ServedName(name.to_owned()))
    }
}

impl ServedModelArgs {
    /// The name, if the command line has one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.model.as_ref().map(|ServedName(name)| name.as_str())
    }

    /// A path of the server's routes, for this model.
    pub(crate) fn path(&self, path: &str) -> String {
        self.name().map_or_else(|| path.to_owned(), |name| path_of_model(path, name))
    }
}

/// A path of the server's routes, for the model of this name.
pub(crate) fn path_of_model(path: &str, name: &str) -> String {
    let joint = if path.contains('?') { '&' } else { '?' };
    format!("{path}{joint}model={}", escaped(name))
}

/// An address as it is meant: with `http://` where it has no scheme, and without the base path of OpenAI's clients.
fn completed(url: &str) -> String {
    let url = url.trim();
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let base = url.trim_end_matches('/');
    base.strip_suffix("/v1").unwrap_or(base).trim_end_matches('/').to_owned()
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
            let mut of_model = sub.get_arguments().filter(|arg| arg.get_long() == Some("model"));
            let is_of_server = ["cache", "prompt"].contains(&sub.get_name());
            assert!(of_model.all(|arg| arg.get_env().is_none() == is_of_server), "{}", sub.get_name());
            names.push(sub.get_name().to_owned());
        }
        assert_eq!(
            names,
            ["chat", "run", "bench", "explain", "cache", "prompt", "ps", "health", "stop", "usage"],
            "tests/it/asking.rs runs each but `stop`, which sends a signal, and those that can do without a server"
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

    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        server: ServerArgs,
    }

    /// The server of these flags.
    fn server(flags: &[&str]) -> ServerArgs {
        <Flags as clap::Parser>::try_parse_from([&["kvik"], flags].concat()).unwrap().server
    }

    #[test]
    fn an_address_is_read_as_it_is_meant() {
        for (url, expect) in [
            ("http://a:80", "http://a:80"),
            ("http://a:80/", "http://a:80"),
            ("http://a:80/v1", "http://a:80"),
            ("http://a:80/v1/", "http://a:80"),
            ("https://a/kvik/v1", "https://a/kvik"),
            ("http://a/kvik", "http://a/kvik"),
            ("a:80", "http://a:80"),
            ("localhost:8080/v1", "http://localhost:8080"),
            ("127.0.0.1", "http://127.0.0.1"),
            (" [::1]:80 ", "http://[::1]:80"),
        ] {
            assert_eq!(server(&["--url", url]).url().unwrap(), expect, "{url}");
        }
    }

    #[test]
    fn the_only_server_is_meant_and_none_of_several() {
        let found = |ports: &[u16]| {
            let found = ports.iter().map(|port| Candidate { url: url_of(LOCAL, *port), model: None });
            only(found.collect()).map_err(|error| error.to_string())
        };
        assert_eq!(found(&[9000]).unwrap(), "http://127.0.0.1:9000");
        let none = found(&[]).unwrap_err();
        assert!(none.contains("no kvik of this user runs") && none.contains("`kvik serve`"), "{none}");
        let several = found(&[81, 9000]).unwrap_err();
        for says in ["http://127.0.0.1:81, http://127.0.0.1:9000;", "--port or --url names one"] {
            assert!(several.contains(says), "{several} says {says}");
        }
    }

    #[test]
    fn a_path_names_its_model_behind_what_it_has() {
        let path = |model: Option<&str>, path: &str| {
            let model = model.map(|name| ServedName(name.to_owned()));
            ServedModelArgs { model }.path(path)
        };
        assert_eq!(path(None, "/v1/cache?limit=0"), "/v1/cache?limit=0");
        assert_eq!(path(Some("a"), "/v1/cache"), "/v1/cache?model=a");
        assert_eq!(path(Some("hf.co/a b"), "/v1/cache?limit=0"), "/v1/cache?limit=0&model=hf.co%2Fa%20b");
    }

    #[test]
    fn what_is_no_address_is_told_so_before_anything_is_asked() {
        for url in ["ftp://a", "http://", "a b", "/health"] {
            let server = server(&["--url", url]);
            let called = server.call(Method::GET, "/health", None).unwrap_err().to_string();
            for error in [called, server.answers().unwrap_err().to_string()] {
                assert!(error.contains("is no address of a server; write it as http://127"), "{error}");
            }
        }
    }

    #[test]
    fn keys_of_this_machines_settings_stay_on_it() {
        let key = |flags: &[&str]| {
            let server = server(&[&["--api-key", "own,other"], flags].concat());
            server.key_for(&server.url().unwrap()).map(str::to_owned)
        };
        for own in ["http://127.0.0.1:80", "http://localhost:80/kvik", "http://[::1]:80"] {
            assert_eq!(key(&["--url", own]).as_deref(), Some("own"), "{own}");
        }
        assert_eq!(key(&["--port", "9000"]).as_deref(), Some("own"));
        for other in ["http://192.0.2.1:80", "https://kvik.example", "http://localhost.example:80", "x"] {
            assert_eq!(key(&["--url", other]), None, "{other}");
            assert_eq!(key(&["--url", other, "--key", "named"]).as_deref(), Some("named"), "{other}");
        }
    }

    #[test]
    fn a_name_stays_one_segment_of_a_path() {
        assert_eq!(escaped("notify-1.2_x"), "notify-1.2_x");
        assert_eq!(escaped("a/b?c d"), "a%2Fb%3Fc%20d");
        assert_eq!(escaped("é"), "%C3%A9");
    }
}
