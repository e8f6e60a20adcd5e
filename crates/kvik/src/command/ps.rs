//! `kvik ps`: lists the models of a running server, and which are in memory.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use ureq::http::Method;

use super::{output::count, remote::ServerArgs};
use kvik_server::clock::spoken;
use kvik_serving::settings::size::ByteSize;

/// Lists the models of a running server
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik ps                       which models are in memory, who has them, and how long they stay
  kvik ps --load notes          loads one
  kvik ps --unload notes        takes it out of memory; what it knows stays on disk")]
pub(crate) struct PsArgs {
    /// Load this model first
    #[arg(long, value_name = "NAME", conflicts_with = "unload")]
    load: Option<String>,
    /// Take this model out of memory first
    #[arg(long, value_name = "NAME")]
    unload: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PsArgs) -> anyhow::Result<()> {
    let change = |what: &str, name: &String| {
        args.server.call(Method::POST, &format!("/v1/shelf/{what}"), Some(&json!({"model": name})))
    };
    let shelf = match (&args.load, &args.unload) {
        (Some(name), _) => change("load", name)?,
        (None, Some(name)) => change("unload", name)?,
        (None, None) => args.server.call(Method::GET, "/v1/shelf", None)?,
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&shelf)?),
        false => print!("{}", table(&shelf)),
    }
    Ok(())
}

const COLUMNS: usize = 9;
const HEADS: [&str; COLUMNS] =
    ["NAME", "STATUS", "MEMORY", "AT MOST", "IN USE", "WAITING", "LOADS", "LOADED IN", "STAYS"];

/// A line for each model, and one for the memory that they share.
fn table(shelf: &Value) -> String {
    let models = shelf["models"].as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<[String; COLUMNS]> =
        std::iter::once(HEADS.map(str::to_owned)).chain(models.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let shared =
        shelf["bytes"].as_u64().map(|bytes| format!("\nall together may take {}\n", ByteSize(bytes)));
    rows.iter().map(line).collect::<String>() + &shared.unwrap_or_default()
}

/// The row of a model: the memory that it takes now, what it may take with all its keys and values, and how long loading
/// it took last.
fn row(model: &Value) -> [String; COLUMNS] {
    let text = |field: &str| model[field].as_str().unwrap_or_default().to_owned();
    let stays = match (model["status"].as_str(), model["expires_in_s"].as_u64()) {
        (Some("loaded"), Some(seconds)) => format!("{seconds} s"),
        // A tenant is not told.
        (Some("loaded"), None) if model["loads"].is_null() => "-".to_owned(),
        (Some("loaded"), None) => "forever".to_owned(),
        _ => model["failed"].as_str().map(|why| format!("cannot be loaded: {why}")).unwrap_or_default(),
    };
    let bytes = |field: &str| {
        model[field].as_u64().map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string())
    };
    // 0 before the first time.
    let took = model["load_ms"].as_u64().filter(|&ms| ms > 0).map(Duration::from_millis);
    let took = took.map_or_else(|| "-".to_owned(), spoken);
    let (used, most) = (bytes("bytes_used"), bytes("bytes"));
    let [name, status] = ["name", "status"].map(text);
    let [in_use, waiting, loads] = ["in_use", "waiting", "loads"].map(|field| count(&model[field]));
    [name, status, used, most, in_use, waiting, loads, took, stays]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_each_model() {
        let shelf = json!({"bytes": 2u64 << 30, "models": [
            {"name": "small", "status": "loaded", "bytes": 8u64 << 30, "bytes_used": 1 << 20, "in_use": 2, "waiting": 0, "loads": 3, "load_ms": 2060},
            {"name": "told", "status": "loaded", "bytes": 8u64 << 30, "bytes_used": null, "in_use": null, "waiting": null, "loads": null, "load_ms": 2060},
            {"name": "wide", "status": "unloaded", "bytes": 5 << 20, "loads": 0, "load_ms": 0, "failed": "no such file"},
        ]});
        let table = table(&shelf);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["small", "loaded", "1", "MiB", "8", "GiB", "2", "0", "3", "2.06", "s", "forever"]
        );
        assert_eq!(
            lines[2].split_whitespace().collect::<Vec<_>>(),
            ["told", "loaded", "-", "8", "GiB", "-", "-", "-", "2.06", "s", "-"]
        );
        assert!(
            lines[3].ends_with("cannot be loaded: no such file") && lines[3].contains("-  "),
            "{}",
            lines[3]
        );
        assert_eq!(lines[5], "all together may take 2 GiB");
    }
}
