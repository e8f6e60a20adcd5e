//! `kvik usage`: shows the usage of tenants, by day and model.

use std::{collections::BTreeMap, time::SystemTime};

use anyhow::{Context, bail};
use clap::{ArgMatches, Args, parser::ValueSource};
use kvik_memory::records::{Records, RecordsError};
use serde_json::Value;
use ureq::http::Method;

use super::remote::{ServerArgs, escaped};
use crate::command::flags::accounts::StateArgs;
use kvik_server::{
    accounts::ledger::{self, Bill, Day},
    http::answer::value,
};
use kvik_serving::settings::logging::say;

/// Shows requests, tokens, hit rates and costs
#[derive(Debug, Args)]
#[command(
    after_help = "Reads the records in the state directory. While a server uses them it asks that server, and where --url
names one, that one: the admin's key shows all tenants, a tenant's key its own usage.

Examples:
  kvik usage                        every day, tenant and model
  kvik usage --day today            this day (UTC)
  kvik usage --url http://10.0.0.5:8080 --key SECRET
  kvik usage --tenant acme --since 2026-11-01 --json"
)]
pub(crate) struct UsageArgs {
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this day, as 2026-11-21 or today (UTC)
    #[arg(long, value_name = "DAY", value_parser = day, conflicts_with = "since")]
    day: Option<Day>,
    /// From this day on
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<Day>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Older form of --key
    #[arg(long, value_name = "KEY", hide = true, hide_env_values = true)]
    admin_key: Option<String>,
}

fn day(text: &str) -> Result<Day, String> {
    if text == "today" { Ok(Day::of(SystemTime::now())) } else { text.parse() }
}

/// Runs the command; `matches` show which flags are on the command line.
pub(crate) fn run(args: &UsageArgs, matches: &ArgMatches) -> anyhow::Result<()> {
    let given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let server = args.server(given("admin_key"));
    let listing =
        if ["url", "host", "port"].into_iter().any(given) { args.ask(&server)? } else { args.read(&server)? };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listing)?);
    } else {
        print!("{}", table(listing["data"].as_array().map_or(&[], Vec::as_slice)));
    }
    for line in listing["unreadable"].as_array().into_iter().flatten() {
        say(&format!(
            "warning: a record of {} cannot be read and is missing from these sums; it is kept",
            text(line)
        ));
    }
    Ok(())
}

impl UsageArgs {
    fn query(&self) -> ledger::Query {
        ledger::Query { tenant: self.tenant.clone(), since: self.day.or(self.since), until: self.day }
    }

    /// The usage in the records, or from the server that has them open.
    fn read(&self, server: &ServerArgs) -> anyhow::Result<Value> {
        let folder = self.state.folder().context("there is no home directory; give --state-dir")?;
        if !folder.is_dir() {
            bail!(
                "there is no state directory {}; no server has run here yet, or it uses another --state-dir",
                folder.display()
            )
        }
        let bill = match Records::copy(&folder) {
            Ok(Some(records)) => ledger::recorded(&records, &self.query())?,
            Ok(None) => Bill::default(),
            // Uses the recorded address of the server that has them open: another server would report other records.
            Err(RecordsError::InUse(_)) => {
                let url = self.state.address().with_context(|| {
                    format!("a server uses the records in {}; name it with --url and --key", folder.display())
                })?;
                let asked = self.ask(&server.clone().at(url));
                return asked
                    .context("the records are in use, and their server was asked; --url and --key name it");
            }
            Err(error) => return Err(error.into()),
        };
        Ok(value(&kvik_server::api::usage_listing(&bill)))
    }

    fn ask(&self, server: &ServerArgs) -> anyhow::Result<Value> {
        let ledger::Query { tenant, since, until } = self.query();
        let days = [("since", since), ("until", until)].map(|(name, day)| Some((name, day?.to_string())));
        let parameters = days.into_iter().flatten().chain(tenant.map(|tenant| ("tenant", tenant)));
        let parameters: Vec<String> =
            parameters.map(|(name, value)| format!("{name}={}", escaped(&value))).collect();
        server.call(Method::GET, &format!("/v1/usage?{}", parameters.join("&")), None)
    }

    /// Address and key of the server; a key on the command line takes precedence over other keys.
    fn server(&self, admin_first: bool) -> ServerArgs {
        let server = self.server.clone();
        let (key, admin_key) = (server.own_key().map(str::to_owned), self.admin_key.clone());
        server.with_key(if admin_first { admin_key.or(key) } else { key.or(admin_key) })
    }
}

/// Header of a column, and its cell for a row of usage.
type Column = (&'static str, fn(&Value) -> String);

const COLUMNS: [Column; 11] = [
    ("day", |line| text(&line["day"])),
    ("tenant", |line| text(&line["tenant"])),
    ("model", |line| text(&line["model"])),
    ("requests", |line| text(&line["requests"])),
    ("prompt", |line| text(&line["prompt_tokens"])),
    ("cached", |line| {
        let tiers = line["cached_tokens"].as_object();
        tiers.into_iter().flatten().map(|(_, tokens)| number(tokens)).sum::<u64>().to_string()
    }),
    ("of disk", |line| text(&line["cached_tokens"]["disk"])),
    ("generated", |line| text(&line["generated_tokens"])),
    ("hit rate", |line| format!("{:.1}%", 100.0 * line["hit_rate"].as_f64().unwrap_or(0.0))),
    ("cost", |line| text(&line["cost"])),
    ("saved", |line| format!("{:.1} s", line["saved_seconds"].as_f64().unwrap_or(0.0))),
];

/// The rows below their headers; names are aligned left, numbers right.
fn table(lines: &[Value]) -> String {
    let heads = COLUMNS.map(|(head, _)| head.to_owned());
    let cells = lines.iter().map(|line| COLUMNS.map(|(_, cell)| cell(line)));
    let rows: Vec<[String; COLUMNS.len()]> = std::iter::once(heads).chain(cells).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: BTreeMap<usize, usize> = (0..COLUMNS.len()).map(|column| (column, width(column))).collect();
    let mut text = String::new();
    for row in &rows {
        let padded = row.iter().enumerate().map(|(column, cell)| match column {
            0..3 => format!("{cell:<width$}", width = widths[&column]),
            _ => format!("{cell:>width$}", width = widths[&column]),
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_lines_up() {
        let line = |tenant: &str, cost: &str| {
            json!({
                "day": "2026-11-21", "tenant": tenant, "model": "kvik-tiny", "requests": 12,
                "prompt_tokens": 2400, "cached_tokens": {"ram": 1800, "disk": 120}, "computed_tokens": 480,
                "generated_tokens": 96, "hit_rate": 0.8, "cost": cost, "saved_seconds": 4.25,
            })
        };
        let mut remote = line("far", "0");
        remote["cached_tokens"] = json!({"ram": 1700, "host": 80, "disk": 120, "remote": 20});
        let expect = "\
day         tenant  model      requests  prompt  cached  of disk  generated  hit rate    cost  saved
2026-11-21  a       kvik-tiny        12    2400    1920      120         96     80.0%    1872  4.2 s
2026-11-21  acme    kvik-tiny        12    2400    1920      120         96     80.0%  0.0001  4.2 s
2026-11-21  far     kvik-tiny        12    2400    1920      120         96     80.0%       0  4.2 s
";
        assert_eq!(table(&[line("a", "1872"), line("acme", "0.0001"), remote]), expect);
    }

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        usage: UsageArgs,
    }

    /// The request line and the key that the command sends to a server under these flags.
    fn sent(flags: &[&str]) -> (String, String) {
        sent_to(flags, |_| {})
    }

    /// The request line and key as [`sent`] returns them, after `before` was called with the server's URL.
    fn sent_to(flags: &[&str], before: impl FnOnce(&str)) -> (String, String) {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        before(&format!("http://{address}"));
        let flags = flags.iter().map(|flag| {
            flag.replace("URL", &format!("http://{address}")).replace("PORT", &address.port().to_string())
        });
        let flags: Vec<String> = std::iter::once("usage".to_owned()).chain(flags).collect();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let length = stream.read(&mut head).unwrap();
            let body = r#"{"data": []}"#;
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            String::from_utf8_lossy(&head[..length]).into_owned()
        });
        let matches = Flags::command().get_matches_from(flags);
        run(&Flags::from_arg_matches(&matches).unwrap().usage, &matches).unwrap();
        let head = server.join().unwrap();
        let mut lines = head.lines();
        let line = lines.next().unwrap().to_owned();
        let key = lines.find_map(|line| line.strip_prefix("authorization: Bearer ")).unwrap_or_default();
        (line, key.to_owned())
    }

    #[test]
    fn a_named_server_is_asked_whatever_the_state_directory_holds() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_str().unwrap();
        let check = |flags: &[&str], path: &str, key: &str| {
            let flags = [&["--state-dir", state], flags].concat();
            assert_eq!(sent(&flags), (format!("GET {path} HTTP/1.1"), key.to_owned()), "{flags:?}");
        };
        check(&["--url", "URL", "--key", "k"], "/v1/usage?", "k");
        check(&["--host", "127.0.0.1", "--port", "PORT", "--admin-key", "root"], "/v1/usage?", "root");
        check(&["--port", "PORT", "--key", "k"], "/v1/usage?", "k");
        check(
            &["--url", "URL", "--tenant", "a&b", "--since", "2026-11-21"],
            "/v1/usage?since=2026-11-21&tenant=a%26b",
            "",
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the command creates no file there");
    }

    /// The records of a state directory belong to one server, whichever listens at the default port.
    #[test]
    fn records_in_use_are_asked_of_the_server_that_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_str().unwrap();
        let _records = Records::open(dir.path(), std::time::Duration::ZERO).unwrap();
        let usage = |flags: &[&str]| {
            let matches =
                Flags::command().get_matches_from([&["usage", "--state-dir", state], flags].concat());
            run(&Flags::from_arg_matches(&matches).unwrap().usage, &matches)
        };
        let error = format!("{:#}", usage(&[]).unwrap_err());
        assert!(error.contains(state) && error.contains("--url"), "{error}");
        let flags = ["--state-dir", state, "--key", "k"];
        let says_where = |url: &str| {
            let state = Flags::try_parse_from(["usage", "--state-dir", state]).unwrap().usage.state;
            state.write_address(url);
        };
        let asked = sent_to(&flags, says_where);
        assert_eq!(asked, ("GET /v1/usage? HTTP/1.1".to_owned(), "k".to_owned()));
    }

    #[test]
    fn a_table_without_rows_has_its_headers() {
        assert!(table(&[]).starts_with("day"));
    }
}
