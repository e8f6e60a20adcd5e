//! `kvik cache`: lists and changes the cache of a running server.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use kvik_cache::tier::{Record, SlotId};
use kvik_engine::store::{Picked, erase_answers_at_rest, erase_at_rest};
use kvik_remote::FleetKey;
use serde_json::Value;
use ureq::http::Method;

use super::{
    backend::ServedShelf,
    client::AskError,
    output::count,
    remote::{ServedModelArgs, ServerArgs, escaped, path_of_model, read_json},
};
use kvik_serving::settings::{disk_place::DiskPlace, size::ByteSize};

/// List, pin and evict what a running server has cached
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik cache ls                     the largest prefixes
  kvik cache ls --by hits -n 50     the most used ones
  kvik cache show                   memory, disk, hit rate
  kvik cache pin agent.json         compute a prompt and keep it
  kvik cache pins                   what is pinned
  kvik cache unpin 7                remove pin 7; --tenant NAME, --all for more
  kvik cache evict agent.json       evict a prompt, pinned or not
  kvik cache clear                  evict all that is neither in use nor pinned, with or without a server
  kvik cache show --model notes     the cache of one model, of a server that has several
  kvik cache key > fleet.key        a key for nodes that share a cache; asks no server")]
pub(crate) struct CacheCommandArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    model: ServedModelArgs,
    #[command(subcommand)]
    task: CacheTask,
}

#[derive(Debug, Subcommand)]
enum CacheTask {
    /// Lists prefixes
    #[command(visible_alias = "list")]
    Ls {
        /// Order: by size (blocks) or by uses (hits), largest first
        #[arg(long, value_name = "ORDER", default_value = "blocks", value_parser = ["blocks", "hits"])]
        by: String,
        /// Prefixes to list at most
        #[arg(short, long, value_name = "N", default_value_t = 20)]
        n: usize,
    },
    /// Shows memory, disk and hit rate
    Show,
    /// Computes a prompt and pins it
    Pin {
        /// A JSON file with `messages` or `prompt`, as in a request
        file: PathBuf,
    },
    /// Lists pins
    Pins,
    /// Removes pins, so that their prompts may be evicted, in memory and on disk
    Unpin {
        /// The number that `kvik cache pins` shows
        #[arg(value_name = "PIN", required_unless_present_any = ["tenant", "all"])]
        pin: Option<u64>,
        /// All pins of a tenant
        #[arg(long, value_name = "NAME", conflicts_with = "pin")]
        tenant: Option<String>,
        /// All pins that this key may remove; the admin's key removes those of all tenants
        #[arg(long, conflicts_with_all = ["pin", "tenant"])]
        all: bool,
    },
    /// Evicts a prompt and all that begins with it, in memory and on disk
    Evict {
        /// A JSON file with `messages` or `prompt`, as in a request
        file: PathBuf,
    },
    /// Evicts all that is neither in use nor pinned, and gives its memory and disk back; of the disk also where no server
    /// runs. Of a server with several models it clears those in memory, and names the others
    Clear {
        /// Directory of the disk cache that is cleared where no server answers [default: the user's cache directory]
        #[arg(long, value_name = "DIR", default_value = "default", hide_default_value = true)]
        cache_disk: DiskPlace,
    },
    /// Prints a new key for nodes that share a cache: --cache-remote-key names a file with it
    Key,
}

/// Runs the command.
pub(crate) fn run(args: &CacheCommandArgs) -> anyhow::Result<()> {
    let call = |method: Method, path: &str, body: Option<&Value>| {
        args.server.call(method, &args.model.path(path), body)
    };
    match &args.task {
        CacheTask::Key => println!("{}", FleetKey::generate()?),
        CacheTask::Ls { by, n } => {
            list(&call(Method::GET, &format!("/v1/cache?order={by}&limit={n}"), None)?);
        }
        CacheTask::Show => show(&call(Method::GET, "/v1/cache?limit=0", None)?),
        CacheTask::Pin { file } => {
            let answer = call(Method::POST, "/v1/cache/pin", Some(&read_json(file)?))?;
            println!("{} tokens pinned, {} of them computed", answer["tokens"], answer["computed_tokens"]);
        }
        CacheTask::Evict { file } => {
            let answer = call(Method::POST, "/v1/cache/evict", Some(&read_json(file)?))?;
            println!("{} blocks evicted, {} pins removed", answer["blocks"], answer["pins"]);
            for name in answer["prompts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                println!(
                    "the prompt {name} is still registered and will be computed again: kvik prompt rm {name} removes it"
                );
            }
        }
        CacheTask::Pins => pins(&call(Method::GET, "/v1/cache/pins", None)?),
        CacheTask::Unpin { pin, tenant, .. } => {
            let path = match (pin, tenant) {
                (Some(pin), _) => format!("/v1/cache/pins/{pin}"),
                (None, Some(tenant)) => format!("/v1/cache/pins?tenant={}", escaped(tenant)),
                (None, None) => "/v1/cache/pins".to_owned(),
            };
            println!("{} pins removed", call(Method::DELETE, &path, None)?["pins"]);
        }
        CacheTask::Clear { cache_disk } => clear(args, cache_disk)?,
    }
    Ok(())
}

/// Clears the cache of a server, or the disk cache if no server has it open.
fn clear(args: &CacheCommandArgs, place: &DiskPlace) -> anyhow::Result<()> {
    if args.server.answers()? {
        return clear_served(&args.server, args.model.name());
    }
    if let Some(name) = args.model.name() {
        bail!(
            "no server answers, and `{name}` is to be a model of one; without --model the disk caches of all models are \
             cleared"
        );
    }
    let Some(folder) = place.directory() else { bail!("no server answers, and there is no disk cache") };
    erase_answers_at_rest(&folder, None)?;
    let cleared = erase_at_rest(&folder, unpinned)?;
    println!(
        "no server answers; evicted {} blocks in {}, which frees {}",
        cleared.blocks,
        folder.display(),
        ByteSize(cleared.bytes)
    );
    if cleared.in_use > 0 {
        bail!("{} of its caches are written by other processes and stay as they are", cleared.in_use);
    }
    Ok(())
}

/// Clears the caches of a server's models that are in memory, or of the named one. None is loaded to be cleared.
fn clear_served(server: &ServerArgs, named: Option<&str>) -> anyhow::Result<()> {
    let Some(shelf) = ServedShelf::parse(server.call(Method::GET, "/v1/shelf", None)?) else {
        return Err(AskError::Foreign { url: server.url()? }.into());
    };
    if shelf.only().is_some() {
        println!("{}", evicted(&server.call(Method::DELETE, "/v1/cache", None)?));
        return Ok(());
    }
    let (loaded, others) = to_clear(&shelf, named)?;
    for name in loaded {
        let answer = server.call(Method::DELETE, &path_of_model("/v1/cache", name), None)?;
        println!("{name}: {}", evicted(&answer));
    }
    if !others.is_empty() {
        println!(
            "not in memory, so that what they have on disk stays: {}; `kvik ps --load NAME` loads one, which can then be \
             cleared",
            others.join(", ")
        );
    }
    Ok(())
}

/// The names of a shelf's models in memory, and of the others; of the named one alone, which has to be in memory.
fn to_clear<'a>(shelf: &'a ServedShelf, named: Option<&str>) -> anyhow::Result<(Vec<&'a str>, Vec<&'a str>)> {
    let (loaded, others) = shelf.standing();
    let Some(named) = named else { return Ok((loaded, others)) };
    let Some(model) = shelf.find(named) else {
        bail!("the server has no model `{named}`; it has {}", shelf.names())
    };
    let name = model.name.as_str();
    ensure!(
        loaded.contains(&name),
        "{name} is not in memory, so that what it has on disk stays; `kvik ps --load {name}` loads it, and it can then be \
         cleared"
    );
    Ok((vec![name], Vec::new()))
}

/// Words for what a server has evicted.
fn evicted(answer: &Value) -> String {
    let (ram, disk) = (&answer["blocks"]["ram"], &answer["blocks"]["disk"]);
    format!("evicted {ram} blocks in memory and {disk} on disk")
}

/// The unpinned blocks of a store; all its files if none are pinned.
fn unpinned(records: Vec<(SlotId, Record)>) -> Picked {
    let count = records.len();
    let free: Vec<SlotId> =
        records.into_iter().filter(|(_, record)| !record.pinned).map(|(slot, _)| slot).collect();
    if free.len() == count { Picked::All } else { Picked::Slots(free) }
}

fn list(answer: &Value) {
    let prefixes = answer["prefixes"].as_array().map_or(&[][..], Vec::as_slice);
    if prefixes.is_empty() {
        println!("the cache is empty");
        return;
    }
    println!("{}", prefix_row(["tokens", "size", "hits", "idle", ""], "text"));
    prefixes.iter().for_each(|prefix| println!("{}", row_of_prefix(prefix)));
}

fn row_of_prefix(prefix: &Value) -> String {
    let [tokens, hits] = ["tokens", "hits"].map(|field| count(&prefix[field]));
    let idle = prefix["idle_s"].as_f64().map_or_else(|| "in use".to_owned(), |s| format!("{s:.0} s"));
    let mark = if prefix["pinned"] == Value::Bool(true) { "pinned" } else { "" };
    prefix_row([&tokens, &size(prefix), &hits, &idle, mark], &beginning(prefix))
}

fn prefix_row([tokens, size, hits, idle, mark]: [&str; 5], text: &str) -> String {
    format!("{tokens:>8} {size:>10} {hits:>6} {idle:>9}  {mark:<7} {text}")
}

fn pins(answer: &Value) {
    let pins = answer["data"].as_array().map_or(&[][..], Vec::as_slice);
    if pins.is_empty() {
        println!("nothing is pinned");
        return;
    }
    println!("{}", pin_row(["pin", "tokens", "size", "tenant"], "text"));
    pins.iter().for_each(|pin| println!("{}", row_of_pin(pin)));
    if let Some(limit) = answer["blocks"]["limit"].as_u64() {
        println!("{} of the {limit} blocks that may be pinned", answer["blocks"]["pinned"]);
    }
}

fn row_of_pin(pin: &Value) -> String {
    let [id, tokens] = ["id", "tokens"].map(|field| count(&pin[field]));
    let tenant = pin["tenant"].as_str().unwrap_or_default();
    pin_row([&id, &tokens, &size(pin), tenant], &beginning(pin))
}

fn pin_row([id, tokens, size, tenant]: [&str; 4], text: &str) -> String {
    format!("{id:>6} {tokens:>8} {size:>10}  {tenant:<16} {text}")
}

fn size(listed: &Value) -> String {
    ByteSize(listed["bytes"].as_u64().unwrap_or_default()).to_string()
}

/// The beginning of a prefix, on one line.
fn beginning(prefix: &Value) -> String {
    let text: String = prefix["text"].as_str().unwrap_or_default().chars().take(60).collect();
    text.replace(char::is_control, " ")
}

fn show(answer: &Value) {
    let bytes = |value: &Value| ByteSize(value.as_u64().unwrap_or_default()).to_string();
    let (ram, disk) = (&answer["ram"], &answer["disk"]);
    if ram.is_null() {
        println!("this key sees only its own prefixes: kvik cache ls");
        return;
    }
    println!("memory  {} of {}, {} tokens", bytes(&ram["used_bytes"]), bytes(&ram["bytes"]), ram["tokens"]);
    println!(
        "        {} of {} blocks pinned, {} may be",
        ram["pinned_blocks"], ram["blocks"], ram["pinned_blocks_limit"]
    );
    println!("        {:.1}% of prompt tokens reused", 100.0 * ram["hit_rate"].as_f64().unwrap_or_default());
    match disk {
        Value::Null => println!("disk    off"),
        disk => {
            println!("disk    {} of {}", bytes(&disk["used_bytes"]), bytes(&disk["bytes"]));
            println!(
                "        {} blocks found at the start, {} written, {} read, {} faults",
                disk["found_at_start"], disk["written_blocks"], disk["read_blocks"], disk["faults"]
            );
            println!(
                "        writes {}: {} today, {} a year at this rate, {} blocks wait in memory",
                disk["write_policy"].as_str().unwrap_or_default(),
                bytes(&disk["written_bytes_today"]),
                bytes(&disk["written_bytes_per_year"]),
                disk["waiting_blocks"]
            );
            if disk["writes"] == Value::Bool(false) {
                let writer = disk["writer_pid"].as_u64().map_or_else(String::new, |pid| format!(" {pid}"));
                println!("        another process{writer} writes it, and this one takes over when that ends");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_below_their_heads() {
        let prefix =
            json!({"tokens": 96, "bytes": 1024, "hits": 3, "idle_s": 4.2, "pinned": true, "text": "a\nb"});
        let head = prefix_row(["tokens", "size", "hits", "idle", ""], "text");
        assert_eq!(head, "  tokens       size   hits      idle          text");
        assert_eq!(row_of_prefix(&prefix), "      96      1 KiB      3       4 s  pinned  a b");
        let pin = json!({"id": 7, "tokens": 96, "bytes": 1024, "tenant": "acme", "text": null});
        assert_eq!(
            pin_row(["pin", "tokens", "size", "tenant"], "text"),
            "   pin   tokens       size  tenant           text"
        );
        assert_eq!(row_of_pin(&pin), "     7       96      1 KiB  acme             ");
    }

    #[test]
    fn models_in_memory_are_cleared_and_the_others_are_named() {
        let model = |name: &str, status: &str| json!({"name": name, "aliases": ["the-small"], "source": "", "status": status});
        let models = [model("small", "loaded"), model("wide", "unloaded"), model("short", "loaded")];
        let list = json!({"object": "shelf", "bytes": 5, "can_pull": false, "models": models});
        let shelf = ServedShelf::parse(list).unwrap();
        assert_eq!(to_clear(&shelf, None).unwrap(), (vec!["small", "short"], vec!["wide"]));
        for named in ["small", "the-small"] {
            assert_eq!(to_clear(&shelf, Some(named)).unwrap(), (vec!["small"], vec![]), "{named}");
        }
        for (named, says) in [
            ("wide", "wide is not in memory, so that what it has on disk stays; `kvik ps --load wide`"),
            ("gone", "the server has no model `gone`; it has small, wide, short"),
        ] {
            let error = to_clear(&shelf, Some(named)).unwrap_err().to_string();
            assert!(error.contains(says), "{error} says {says}");
        }
    }
}
