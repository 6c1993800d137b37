//! A kernel in the data path: a file goes block by block into a GPU's memory, a kernel whitens each
//! block and sums it up, it is sent as the kernel is done with it, arrives in a GPU's memory, where
//! the same kernel undoes that and sums up again, and is written to a file.
//!
//! ```text
//!  file ─ read ─► GPU ─ kernel ─ event ─► wire ─► GPU ─ kernel ─ event ─► file
//!          cuFile, else staged   payload.after(&event)    the stream waits for the bytes
//! ```
//!
//! Nothing here waits for a kernel, but what has to come behind it. The kernel is text
//! ([whiten.ptx](kernel)), which the driver compiles for the GPU at hand when it is loaded, through
//! cudarc: `cargo run --release --features cudarc --example gpu_hook`.

mod kernel;
mod receive;
mod send;
#[path = "../../crates/fabricast-bench/src/size.rs"]
#[allow(unreachable_pub, reason = "of a library, too")]
mod size;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use fabricast::cuda::Device;
use fabricast::{Domain, Fabric};

type Failure = Box<dyn Error + Send + Sync>;

/// How long nothing may happen.
const LIMIT: Duration = Duration::from_secs(30);

/// File to GPU to kernel to wire to GPU to kernel to file, over tcp on this machine; both files are
/// compared, and each block's sum by three hands: the sender's GPU, the receiver's, and the host.
#[derive(Parser)]
struct Cli {
    /// The file that is sent. Default: one that is made and removed again.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Bytes of the file that is made, with K, M or G.
    #[arg(long, default_value = "256M")]
    size: String,
    /// Bytes of a block, a multiple of 4K.
    #[arg(long, default_value = "4M")]
    block: String,
    /// Blocks that are under way on each side.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// The GPU that the file is read into.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// The GPU that receives. Default: the same.
    #[arg(long)]
    to_device: Option<u32>,
    /// A folder for what is written: the file that is made, and the copy. It is left as it was.
    /// Default: that for temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Without a GPU: say SKIPPED and why, and end well.
    #[arg(long)]
    or_skip: bool,
}

/// What both sides are told.
struct Plan {
    domain: Arc<Domain>,
    file: PathBuf,
    copy: PathBuf,
    bytes: u64,
    block: usize,
    depth: u32,
}

/// A part of the file.
#[derive(Clone, Copy)]
struct Block {
    index: u64,
    offset: u64,
    len: usize,
}

impl Plan {
    fn blocks(&self) -> u64 {
        self.bytes.div_ceil(self.block as u64)
    }

    fn get(&self, index: u64) -> Block {
        let offset = index * self.block as u64;
        let len = (self.bytes - offset).min(self.block as u64) as usize;
        Block { index, offset, len }
    }
}

impl Block {
    /// As it goes over the wire: the kernel works on whole words.
    fn wire_len(self) -> usize {
        self.len.next_multiple_of(8)
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let to = cli.to_device.unwrap_or(cli.device);
    let devices = match (Device::new(cli.device), Device::new(to)) {
        (Ok(from), Ok(to)) => [from, to],
        (Err(why), _) | (_, Err(why)) if cli.or_skip => {
            println!("SKIPPED: {why}");
            return ExitCode::SUCCESS;
        }
        (Err(why), _) | (_, Err(why)) => {
            eprintln!("gpu_hook needs an NVIDIA GPU: {why}");
            return ExitCode::FAILURE;
        }
    };
    match run(&cli, devices) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("gpu_hook: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, [from, to]: [Device; 2]) -> Result<(), Failure> {
    let block = parse(&cli.block)?;
    if block == 0 || block % 4096 != 0 || block > 1 << 30 {
        return Err(format!("--block {}: a multiple of 4K, up to 1G", cli.block).into());
    }
    let dir = match &cli.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let file = match &cli.file {
        Some(file) => file.clone(),
        None => made(&dir.path().join("file"), parse(&cli.size)?)?,
    };
    let plan = Plan {
        domain: domain()?,
        bytes: fs::metadata(&file)?.len(),
        file,
        copy: dir.path().join("copy"),
        block,
        depth: cli.depth,
    };
    if plan.bytes == 0 {
        return Err(format!("{}: empty", plan.file.display()).into());
    }
    let names =
        [from, to].map(|device| format!("{device} ({})", device.name().unwrap_or_default()));
    println!("from      {}, {} bytes", plan.file.display(), plan.bytes);
    println!("          {} blocks of {block} bytes", plan.blocks());
    println!("way       {} -> tcp -> {}", names[0], names[1]);
    let (sent, received) = both_sides(&plan, from, to)?;
    println!("read      by {}: {}", sent.read_by, sent.compat);
    println!(
        "staged    {} of {} copies to the host ran behind others",
        sent.staging.overlapped, sent.staging.payloads
    );
    println!("written   by {}", received.written_by);
    compare(&plan, &sent.sums, &received.sums)?;
    let took = received.ended - sent.begun;
    let rate = plan.bytes as f64 / took.as_secs_f64() / 1e9;
    println!("rate      {rate:.2} GB/s from file to file");
    Ok(())
}

/// Runs the receiver on a thread of its own, and the sender on this one.
fn both_sides(
    plan: &Plan,
    from: Device,
    to: Device,
) -> Result<(send::Sent, receive::Received), Failure> {
    let receiver = receive::Receiver::new(plan, to)?;
    let addr = receiver.addr();
    let (sent, received) = std::thread::scope(|threads| {
        let receiving = threads.spawn(|| receiver.run(plan));
        let sent = send::run(plan, from, addr);
        (sent, receiving.join())
    });
    let received = received.map_err(|_| "the receiver panicked")?;
    match (sent, received) {
        (Ok(sent), Ok(received)) => Ok((sent, received)),
        (Err(why), Ok(_)) => Err(format!("sender: {why}").into()),
        (Ok(_), Err(why)) => Err(format!("receiver: {why}").into()),
        (Err(one), Err(other)) => Err(format!("sender: {one}; receiver: {other}").into()),
    }
}

/// The sums of three hands, and the bytes of both files.
fn compare(plan: &Plan, sent: &[u64], received: &[u64]) -> Result<(), Failure> {
    let (file, copy) = (fs::read(&plan.file)?, fs::read(&plan.copy)?);
    let mut different = Vec::new();
    for index in 0..plan.blocks() {
        let block = plan.get(index);
        let place = block.offset as usize..block.offset as usize + block.len;
        let host = kernel::sum_on_the_host(&file[place], block.offset / 8);
        if [sent[index as usize], received[index as usize]] != [host, host] {
            different.push(index);
        }
    }
    if !different.is_empty() {
        return Err(format!("other sums of the blocks {different:?}").into());
    }
    println!(
        "sums      {} of {0}: the sender's GPU, the receiver's and the host agree",
        plan.blocks()
    );
    if file != copy {
        return Err("the copy has other content than the file".into());
    }
    println!("content   the copy is the file, byte for byte");
    Ok(())
}

/// A file of that many bytes, no two blocks alike, whose end is no whole word.
fn made(path: &Path, len: usize) -> Result<PathBuf, Failure> {
    let mut file = std::io::BufWriter::new(fs::File::create(path)?);
    for word in 0..len as u64 / 8 {
        file.write_all(&kernel::mix(word ^ 0x5eed).to_le_bytes())?;
    }
    file.write_all(&b"the end"[..len % 8])?;
    file.into_inner()?.sync_all()?;
    Ok(path.to_owned())
}

fn domain() -> Result<Arc<Domain>, Failure> {
    let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open()?;
    Ok(fabric.open_domain()?)
}

fn parse(text: &str) -> Result<usize, Failure> {
    size::parse(text).ok_or_else(|| format!("{text:?} is no number of bytes").into())
}
