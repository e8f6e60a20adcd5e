//! `kvik ps`: lists the models of a running server, and which are in memory.

use clap::Args;
use serde_json::{Value, json};
use ureq::http::Method;

use super::remote::ServerArgs;
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

const HEADS: [&str; 8] = ["NAME", "STATUS", "MEMORY", "AT MOST", "IN USE", "WAITING", "LOADS", "STAYS"];

/// A line for each model, and one for the memory that they share.
fn table(shelf: &Value) -> String {
    let models = shelf["models"].as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<[String; 8]> =
        std::iter::once(HEADS.map(str::to_owned)).chain(models.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let shared =
        shelf["bytes"].as_u64().map(|bytes| format!("\nall together may take {}\n", ByteSize(bytes)));
    rows.iter().map(line).collect::<String>() + &shared.unwrap_or_default()
}

/// The row of a model: the memory that it takes now, and what it may take with all its keys and values.
fn row(model: &Value) -> [String; 8] {
    let text = |field: &str| model[field].as_str().unwrap_or_default().to_owned();
    let count = |field: &str| model[field].as_u64().map_or_else(|| "-".to_owned(), |count| count.to_string());
    let stays = match (model["status"].as_str(), model["expires_in_s"].as_u64()) {
        (Some("loaded"), Some(seconds)) => format!("{seconds} s"),
        (Some("loaded"), None) => "forever".to_owned(),
        _ => model["failed"].as_str().map(|why| format!("cannot be loaded: {why}")).unwrap_or_default(),
    };
    let bytes = |field: &str| {
        model[field].as_u64().map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string())
    };
    let (used, most) = (bytes("bytes_used"), bytes("bytes"));
    [text("name"), text("status"), used, most, count("in_use"), count("waiting"), count("loads"), stays]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_each_model() {
        let shelf = json!({"bytes": 2u64 << 30, "models": [
            {"name": "small", "status": "loaded", "bytes": 8u64 << 30, "bytes_used": 1 << 20, "in_use": 2, "waiting": 0, "loads": 3},
            {"name": "wide", "status": "unloaded", "bytes": 5 << 20, "loads": 0, "failed": "no such file"},
        ]});
        let table = table(&shelf);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["small", "loaded", "1", "MiB", "8", "GiB", "2", "0", "3", "forever"]
        );
        assert!(
            lines[2].ends_with("cannot be loaded: no such file") && lines[2].contains("-  "),
            "{}",
            lines[2]
        );
        assert_eq!(lines[4], "all together may take 2 GiB");
    }
}
