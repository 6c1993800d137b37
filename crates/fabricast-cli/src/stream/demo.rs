//! The demo: receiver and sender as two processes at one address of this machine, and the checksums
//! of both files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crc_fast::{CrcAlgorithm, Digest};
use fabricast::PeerAddr;
use tempfile::TempDir;

use crate::failure::{Failure, describe};
use crate::say::say;
use crate::stream::args::{CommonArgs, DemoArgs};
use crate::stream::recv::addresses_in;
use crate::stream::{device_buffers, open_domain};

/// Bytes that are made, and checked, at a time.
const PIECE: usize = 1 << 20;

/// Streams one file between two processes, and compares what arrived with what was sent.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    // Else both children would say that there is no GPU.
    drop(device_buffers(&args.common, Some(1))?);
    let place = temporary_directory(args)?;
    let target_dir = place.path().join("received");
    std::fs::create_dir(&target_dir).map_err(|error| Failure::file(&target_dir, &error))?;
    let source = match &args.file {
        Some(file) => file.clone(),
        None => make_file(&place.path().join("demo.dat"), args.size)?,
    };
    let listen = meeting_place(args)?.to_string();
    let mut receiver = Process::start("recv", |command| {
        command.args(["--once", "--listen", &listen, "--dir"]);
        command.arg(&target_dir);
        pass_on(command, &args.common);
    })?;
    let (address, output) = receiver.address()?;
    let mut sender = Process::start("send", |command| {
        command.arg("--to").arg(address);
        pass_on(command, &args.common);
        command.stdout(Stdio::inherit()).arg("--").arg(&source);
    })?;
    // It has said why on stderr. The receiver is ended if it has not ended itself.
    sender.wait()?;
    receiver.wait()?;
    // What it says for people, the sender has said: how much, how fast, and what was waited for.
    for line in output.lines().map_while(Result::ok) {
        if args.common.json {
            say(line);
        }
    }
    let name = source.file_name().unwrap_or(source.as_os_str());
    compare(&source, &target_dir.join(name))
}

/// Where both meet.
fn meeting_place(args: &DemoArgs) -> Result<PeerAddr, Failure> {
    let at = |node| PeerAddr::from(SocketAddr::new(node, 0));
    if let Some(node) = args.node {
        return Ok(at(node));
    }
    let row = fabricast::fabric::provider(&args.common.provider);
    if row.is_some_and(|row| row.names.is_some()) {
        return Ok(PeerAddr::any());
    }
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    if row.is_none_or(|row| row.over_tcp) {
        return Ok(at(loopback));
    }
    // A device has an address of its own, and none on the loopback interface.
    let found = open_domain(&args.common, None)?.report().address;
    Ok(at(found.unwrap_or(loopback)))
}

fn temporary_directory(args: &DemoArgs) -> Result<TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("fabricast-demo-");
    let made = match &args.dir {
        Some(dir) => builder.tempdir_in(dir),
        None => builder.tempdir(),
    };
    made.map_err(|error| Failure::new(format!("temporary directory: {}", describe(&error))))
}

fn pass_on(command: &mut Command, common: &CommonArgs) {
    command
        .arg(format!("--block={}", common.block))
        .arg(format!("--timeout={}", common.timeout))
        .arg(format!("--provider={}", common.provider));
    command.args(common.numbers());
    if common.rdm {
        command.arg("--rdm");
    }
    if let Some(gpu) = common.gpu {
        command.arg(format!("--gpu={gpu}"));
    }
    if common.json {
        command.arg("--json");
    }
    if let Some(key) = &common.key {
        command.arg("--key").arg(key);
    }
}

/// A child: this program with other arguments. Ended, if it has not ended, when this is dropped.
struct Process {
    what: &'static str,
    child: Child,
}

impl Process {
    fn start(what: &'static str, arguments: impl FnOnce(&mut Command)) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(format!("{what}: {}", describe(&error)));
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg(what).arg("--child");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        arguments(&mut command);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { what, child })
    }

    /// The address in the receiver's first line, and the rest of its output.
    fn address(&mut self) -> Result<(String, BufReader<ChildStdout>), Failure> {
        let stdout = self
            .child
            .stdout
            .take()
            .expect("it was started with a pipe");
        let mut output = BufReader::new(stdout);
        let mut line = String::new();
        let read = output.read_line(&mut line);
        match (read, addresses_in(&line)) {
            (Ok(_), Some(address)) => Ok((address, output)),
            _ => Err(Failure::new("the receiver did not start")),
        }
    }

    fn wait(&mut self) -> Result<(), Failure> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(format!("{} ended with {status}", self.what))),
            Err(error) => Err(Failure::new(format!("{}: {}", self.what, describe(&error)))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing when `wait` has seen its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a file in which no two blocks are equal, so that a block at the wrong place is noticed.
fn make_file(path: &Path, size: u64) -> Result<PathBuf, Failure> {
    let failed = |error: io::Error| Failure::file(path, &error);
    let mut file = File::create(path).map_err(failed)?;
    let mut piece = vec![0; PIECE];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = size;
    while left > 0 {
        fill(&mut piece, &mut state);
        let len = PIECE.min(usize::try_from(left).unwrap_or(PIECE));
        file.write_all(&piece[..len]).map_err(failed)?;
        left -= len as u64;
    }
    Ok(path.to_owned())
}

/// Xorshift: not random enough for anything but this, and as fast as the memory.
fn fill(piece: &mut [u8], state: &mut u64) {
    for word in piece.chunks_exact_mut(8) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}

/// Reads both files again, from the file system and not from what the two processes say.
fn compare(source: &Path, target: &Path) -> Result<(), Failure> {
    let (sent, received) = (checksum(source)?, checksum(target)?);
    say(format_args!(
        "source       crc32c {sent:08x}  {}",
        source.display()
    ));
    say(format_args!(
        "destination  crc32c {received:08x}  {}",
        target.display()
    ));
    if sent != received {
        return Err(Failure::new("the checksums differ"));
    }
    say("the checksums are equal");
    Ok(())
}

fn checksum(path: &Path) -> Result<u32, Failure> {
    let failed = |error: io::Error| Failure::file(path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece).map_err(failed)? {
            0 => return Ok(digest.finalize() as u32),
            len => digest.update(&piece[..len]),
        }
    }
}
