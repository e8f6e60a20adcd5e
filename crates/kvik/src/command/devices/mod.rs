//! `kvik devices`: lists the devices that models can be computed on, and checks what one computes.

#[cfg(feature = "gpu")]
mod check;

use anyhow::bail;
use clap::{ArgMatches, Args, parser::ValueSource};
use kvik_kernels::{Isa, performance_cores};
use kvik_serving::settings::{device::DeviceChoice, model::ModelArgs};

use super::status;

/// Lists what models can be computed on
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik devices                the processor, and the GPUs with the names that --device takes
  kvik devices --check gpu:0  whether a GPU computes what the processor does, cached as uncached, and after a lost step
  kvik serve --device gpu:1   the second of them

Exit status of --check: 0 when nothing differs that must not, 1 when something does, 2 when they could not be compared.")]
pub(crate) struct DevicesArgs {
    /// Print a JSON object a line
    #[arg(long)]
    jsonl: bool,
    /// Compare a GPU with the processor and with itself, on the model of -m
    #[arg(long, value_name = "DEVICE")]
    check: Option<DeviceChoice>,
    /// Prompts of that comparison
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1000))]
    prompts: u64,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    tokens: u64,
    #[command(flatten)]
    model: ModelArgs,
}

/// Runs the command; `matches` are its flags.
pub(crate) fn run(args: &DevicesArgs, matches: &ArgMatches) -> anyhow::Result<()> {
    match args.check {
        Some(device) => {
            refuse_formats(matches).map_err(status::unanswered)?;
            check(args, device)
        }
        None => list(args),
    }
}

/// Refuses flags of formats, which the comparison does not read. Those of a variable or a file are settings of servers.
fn refuse_formats(matches: &ArgMatches) -> anyhow::Result<()> {
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    if let Some(id) = ["weights", "kv", "kv_map", "kv_k", "kv_v"].iter().find(|id| is_given(id)) {
        bail!(
            "--{} does not apply to --check, which compares the weights of the file as they are, with keys and values in \
             f16; leave it out",
            id.replace('_', "-")
        );
    }
    Ok(())
}

fn list(args: &DevicesArgs) -> anyhow::Result<()> {
    let (threads, isa) = (performance_cores(), Isa::chosen()?.name());
    match args.jsonl {
        true => println!("{}", serde_json::json!({ "device": "cpu", "threads": threads, "isa": isa })),
        false => println!("cpu     {threads} threads, {isa}"),
    }
    print_gpus(args.jsonl);
    Ok(())
}

#[cfg(feature = "gpu")]
fn check(args: &DevicesArgs, device: DeviceChoice) -> anyhow::Result<()> {
    compare(args, device).map_err(status::unanswered)?.verdict()
}

/// Compares, and prints the result.
#[cfg(feature = "gpu")]
fn compare(args: &DevicesArgs, device: DeviceChoice) -> anyhow::Result<check::Report> {
    let report = check::check(&args.model, device, [args.prompts, args.tokens].map(|count| count as usize))?;
    super::output::print(&match args.jsonl {
        true => serde_json::to_string(&report)?,
        false => report.to_string(),
    })?;
    Ok(report)
}

#[cfg(feature = "gpu")]
fn print_gpus(jsonl: bool) {
    use kvik_model::device::{DeviceInfo, DeviceKind, devices};
    use kvik_serving::settings::size::ByteSize;

    let kind = |kind| match kind {
        DeviceKind::Discrete => "a card",
        DeviceKind::Integrated => "a part of the processor",
        DeviceKind::Virtual => "a virtual one",
        DeviceKind::Software => "software, which auto never chooses",
        DeviceKind::Other => "of unknown kind",
    };
    let devices = devices();
    for info in &devices {
        let DeviceInfo { index, name, kind: is, backend, driver, .. } = info;
        if jsonl {
            println!("{}", as_json(info, kind(*is)));
            continue;
        }
        let (buffer, layer) = (ByteSize(info.buffer_bytes_max), ByteSize(info.binding_bytes_max));
        println!("gpu:{index}   {name}: {}, by {backend}, {driver}", kind(*is));
        println!("        a buffer holds up to {buffer}, the blocks of one layer up to {layer}");
    }
    if devices.is_empty() && !jsonl {
        println!("no GPU was found: is its Vulkan driver installed?");
    }
}

#[cfg(feature = "gpu")]
fn as_json(info: &kvik_model::device::DeviceInfo, kind: &str) -> serde_json::Value {
    let [subgroup_min, subgroup_max] = info.subgroup.unwrap_or_default();
    serde_json::json!({
        "device": format!("gpu:{}", info.index),
        "name": info.name,
        "kind": kind,
        "backend": info.backend,
        "driver": info.driver,
        "buffer_bytes_max": info.buffer_bytes_max,
        "binding_bytes_max": info.binding_bytes_max,
        "shared_bytes_max": info.shared_bytes_max,
        "subgroup_min": subgroup_min,
        "subgroup_max": subgroup_max,
        "timestamps": info.timestamps,
    })
}

#[cfg(not(feature = "gpu"))]
fn check(_: &DevicesArgs, _: DeviceChoice) -> anyhow::Result<()> {
    let error = "this kvik was built without GPUs; build one with `cargo build --release --features gpu`";
    Err(status::unanswered(anyhow::anyhow!(error)))
}

#[cfg(not(feature = "gpu"))]
fn print_gpus(jsonl: bool) {
    if !jsonl {
        println!(
            "this kvik was built without GPUs; `cargo build --release --features gpu` builds one with them"
        );
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command::Cli;

    #[test]
    fn formats_that_the_comparison_does_not_read_are_refused() {
        let check = |words: &[&str]| {
            let words = [&["kvik", "devices", "--check", "gpu:0"], words].concat();
            let matches = Cli::command().try_get_matches_from(words).unwrap();
            refuse_formats(matches.subcommand().unwrap().1).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["-m", "a.gguf", "--tokens", "4"]), Ok(()));
        for flag in [["--weights", "q8_0"], ["--kv", "q8"], ["--kv-k", "q8"], ["--kv-map", "a"]] {
            let error = check(&flag).unwrap_err();
            assert!(error.contains(flag[0]) && error.contains("leave it out"), "{error}");
        }
    }
}
