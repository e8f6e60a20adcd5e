//! `kvik devices`: lists the devices that models can be computed on.

use clap::Args;
use kvik_kernels::{Isa, performance_cores};

/// Lists what models can be computed on
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik devices                the processor, and the GPUs with the names that --device takes
  kvik serve --device gpu:1   the second of them")]
pub(crate) struct DevicesArgs {}

/// Runs the command.
pub(crate) fn run(_: &DevicesArgs) -> anyhow::Result<()> {
    println!("cpu     {} threads, {}", performance_cores(), Isa::chosen()?.name());
    print_gpus();
    Ok(())
}

#[cfg(feature = "gpu")]
fn print_gpus() {
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
    for DeviceInfo { index, name, kind: is, backend, driver, buffer_bytes_max, binding_bytes_max } in &devices
    {
        let (buffer, layer) = (ByteSize(*buffer_bytes_max), ByteSize(*binding_bytes_max));
        println!("gpu:{index}   {name}: {}, by {backend}, {driver}", kind(*is));
        println!("        a buffer holds up to {buffer}, the blocks of one layer up to {layer}");
    }
    if devices.is_empty() {
        println!("no GPU was found: is its Vulkan driver installed?");
    }
}

#[cfg(not(feature = "gpu"))]
fn print_gpus() {
    println!("this kvik was built without GPUs; `cargo build --release --features gpu` builds one with them");
}
