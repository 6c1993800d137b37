//! What this machine has: GPUs, network providers, and which way GPU memory takes over each of
//! them, with what was tried and why not another.
//!
//! ```text
//! fabricast info
//! fabricast info --provider shm --device 1
//! ```

use std::sync::Arc;

use clap::Args;
use fabricast::cuda::{CudaError, Device};
use fabricast::error::Error;
use fabricast::fabric::{DevicePaths, PROVIDERS, Provider};
use fabricast::storage::cufile::CuFile;
use fabricast::{Fabric, Region};

use crate::failure::{End, Failure};
use crate::say::say;

/// Bytes that are registered to find a path.
const BYTES: usize = 2 << 20;

#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// This provider only, as libfabric spells it
    #[arg(long)]
    provider: Option<String>,
    /// The GPU whose memory is registered
    #[arg(long, default_value_t = 0)]
    device: u32,
}

/// Prints it.
///
/// # Errors
/// There is no provider of that name.
pub(crate) fn run(args: &InfoArgs) -> Result<(), Failure> {
    let wanted = |name: &str| args.provider.iter().all(|it| it == name);
    if !PROVIDERS.iter().any(|row| wanted(row.name)) {
        let names: Vec<_> = PROVIDERS.iter().map(|row| row.name).collect();
        let asked = args.provider.as_deref().unwrap_or_default();
        let names = names.join(", ");
        let text = format!("--provider {asked}: there is none of that name; there are {names}");
        return Err(Failure::new(text).ends(End::Usage));
    }
    say("GPUs");
    let devices = Device::all();
    match &devices {
        Ok(devices) => devices.iter().for_each(|device| print_device(*device)),
        Err(why) => say(format_args!("  none: {why}")),
    }
    say("\nFiles");
    match CuFile::get() {
        Ok(cufile) => say(format_args!(
            "  cuFile {} ({})",
            cufile.version(),
            cufile.path().display()
        )),
        Err(why) => say(format_args!("  no cuFile, GPU memory is staged: {why}")),
    }
    say("\nProviders");
    for row in PROVIDERS.iter().filter(|row| wanted(row.name)) {
        print_provider(row, &devices, args.device);
    }
    Ok(())
}

fn print_device(device: Device) {
    let text = |answer: Result<String, CudaError>| answer.unwrap_or_else(|why| why.to_string());
    say(format_args!(
        "  {device}: {}, {}, {}, NUMA node {}",
        text(device.name()),
        text(device.pci_bus_id()),
        text(device.total_memory().map(|it| format!("{} MiB", it >> 20))),
        device
            .numa_node()
            .map_or_else(|| "unknown".to_owned(), |node| node.to_string())
    ));
    match device.features() {
        Ok(has) => say(format_args!(
            "    dmabuf {}, GPUDirect RDMA {} (virtual memory {}), remote writes are {}",
            yes(has.dma_buf),
            yes(has.gpu_direct_rdma),
            yes(has.gpu_direct_rdma_with_virtual_memory),
            match (has.writes_are_ordered, has.flush_by_host) {
                (true, _) => "in order",
                (false, true) => "flushed by the host",
                (false, false) => "flushed by nobody",
            }
        )),
        Err(why) => say(format_args!("    {why}")),
    }
}

fn yes(has: bool) -> &'static str {
    if has { "yes" } else { "no" }
}

fn print_provider(row: &Provider, devices: &Result<Vec<Device>, CudaError>, device: u32) {
    let name = row.name;
    say(format_args!("  {name}"));
    if row.ran_on().next().is_none() {
        say("    ran on: nothing, it is from documentation and sources");
    }
    row.ran_on()
        .for_each(|run| say(format_args!("    ran on: {run}")));
    // On a machine with a GPU every provider is asked: a library without CUDA may offer what it
    // can't do, and that is worth knowing.
    let fabric = match Fabric::builder()
        .provider(name)
        .device_memory(DevicePaths::Auto)
        .open()
    {
        Ok(fabric) => fabric,
        Err(Error::NoProvider(why)) => {
            let verdict = why.verdicts.iter().find(|it| it.provider == name);
            let verdict = verdict.map_or(why.wanted.as_str(), |it| it.ruled_out_by.as_str());
            return say(format_args!("    not here: {verdict}"));
        }
        Err(why) => return say(format_args!("    not here: {why}")),
    };
    say(format_args!("    {}", fabric.report()));
    match fabric.device_memory() {
        Ok(()) => say("    GPU memory: it says that it takes it"),
        Err(why) => say(format_args!(
            "    GPU memory: not asked for, or refused: {why}"
        )),
    }
    if devices.is_err() {
        return say("    path of GPU memory: no GPU to try it with");
    }
    for virtual_memory in [false, true] {
        let what = if virtual_memory {
            "CUDA virtual memory"
        } else {
            "cuMemAlloc"
        };
        match path(&fabric, device, virtual_memory) {
            Ok(path) => say(format_args!("    path of {what}: {path}")),
            Err(why) => say(format_args!("    path of {what}: {why}")),
        }
    }
}

/// The path that a region's registration finds, in words.
fn path(
    fabric: &Arc<Fabric>,
    device: u32,
    virtual_memory: bool,
) -> Result<String, fabricast::Error> {
    let region = Region::device(BYTES)
        .device(device)
        .virtual_memory(virtual_memory)
        .build()?;
    let domain = fabric.open_domain()?;
    region.register(&domain)?;
    let path = region.path(&domain);
    Ok(path.map_or_else(|| "not registered".to_owned(), |path| path.to_string()))
}
