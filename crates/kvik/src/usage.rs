//! `kvik usage`: what tenants have had, by day and model.

use std::{collections::BTreeMap, time::SystemTime};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    account_args::StateArgs,
    ledger::{self, Day, Records, RecordsError},
};

/// Shows requests, tokens, hit rates and costs
#[derive(Debug, Args)]
#[command(
    after_help = "Reads the records in the state directory. While a server uses them, it is asked instead,
at --host and --port, with --admin-key for all tenants or --key for one of them.

Examples:
  kvik usage                        every day, tenant and model
  kvik usage --day today            this day (UTC)
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
    /// Where the running server listens
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Its port
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Its admin's key
    #[arg(long, value_name = "KEY", hide_env_values = true, hide_default_value = true)]
    admin_key: Option<String>,
    /// The key of one of its tenants
    #[arg(long, value_name = "KEY", conflicts_with = "admin_key")]
    key: Option<String>,
}

fn day(text: &str) -> Result<Day, String> {
    if text == "today" { Ok(Day::of(SystemTime::now())) } else { text.parse() }
}

/// Runs the command.
pub(crate) fn run(args: &UsageArgs) -> anyhow::Result<()> {
    let folder = args.state.folder().context("there is no home directory; say --state-dir")?;
    let listing = if !folder.is_dir() {
        bail!(
            "there is no state directory {}; no server has run here yet, or it has another --state-dir",
            folder.display()
        )
    } else {
        match Records::open(&folder) {
            Ok(records) => crate::http::usage_listing(&ledger::recorded(&records, &args.query())?),
            Err(RecordsError::InUse(_)) => args.ask_the_server()?,
            Err(error) => return Err(error.into()),
        }
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listing)?);
    } else {
        print!("{}", table(listing["data"].as_array().map_or(&[], Vec::as_slice)));
    }
    Ok(())
}

impl UsageArgs {
    fn query(&self) -> ledger::Query {
        ledger::Query { tenant: self.tenant.clone(), since: self.day.or(self.since), until: self.day }
    }

    fn ask_the_server(&self) -> anyhow::Result<Value> {
        let ledger::Query { tenant, since, until } = self.query();
        let days = [("since", since), ("until", until)].map(|(name, day)| Some((name, day?.to_string())));
        let url = format!("http://{}:{}/v1/usage", self.host, self.port);
        let parameters = days.into_iter().flatten().chain(tenant.map(|tenant| ("tenant", tenant)));
        let mut request = ureq::get(&url).query_pairs(parameters);
        if let Some(key) = self.admin_key.as_ref().or(self.key.as_ref()) {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut response =
            request.config().http_status_as_error(false).build().call().with_context(|| {
                format!("a server uses the records and does not answer at {url}; say its --host and --port")
            })?;
        let text = response.body_mut().read_to_string()?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("{url} answers: {text}"))?;
        match answer["error"]["message"].as_str() {
            Some(message) => bail!("{url} answers: {message}"),
            None => Ok(answer),
        }
    }
}

/// Head of a column, and how a line fills it.
type Column = (&'static str, fn(&Value) -> String);

const COLUMNS: [Column; 11] = [
    ("day", |line| text(&line["day"])),
    ("tenant", |line| text(&line["tenant"])),
    ("model", |line| text(&line["model"])),
    ("requests", |line| text(&line["requests"])),
    ("prompt", |line| text(&line["prompt_tokens"])),
    ("cached", |line| {
        (number(&line["cached_tokens"]["ram"]) + number(&line["cached_tokens"]["disk"])).to_string()
    }),
    ("of disk", |line| text(&line["cached_tokens"]["disk"])),
    ("generated", |line| text(&line["generated_tokens"])),
    ("hit rate", |line| format!("{:.1}%", 100.0 * line["hit_rate"].as_f64().unwrap_or(0.0))),
    ("cost", |line| text(&line["cost"])),
    ("saved", |line| format!("{:.1} s", line["saved_seconds"].as_f64().unwrap_or(0.0))),
];

/// The lines below their heads; names to the left, numbers to the right.
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
        let expect = "\
day         tenant  model      requests  prompt  cached  of disk  generated  hit rate    cost  saved
2026-11-21  a       kvik-tiny        12    2400    1920      120         96     80.0%    1872  4.2 s
2026-11-21  acme    kvik-tiny        12    2400    1920      120         96     80.0%  0.0001  4.2 s
";
        assert_eq!(table(&[line("a", "1872"), line("acme", "0.0001")]), expect);
    }

    #[test]
    fn no_lines_give_the_heads() {
        assert!(table(&[]).starts_with("day"));
    }
}
