//! `object demo`: a server and clients as processes of this machine.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fabricast::PeerAddr;
use fabricast::fabric::provider;

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::{open_fabric, say};

/// The server; ended when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let dir = tempfile::tempdir().map_err(Failure::of)?;
    let (sent, back) = (dir.path().join("sent"), dir.path().join("back"));
    fill(&sent, args.bytes)?;
    let mut common = Vec::new();
    if let Some(provider) = &args.common.provider {
        common.extend(["--provider".to_owned(), provider.clone()]);
    }
    if args.common.json {
        common.push("--json".to_owned());
    }
    let (_server, addr) = serve(&dir.path().join("objects"), args, &common)?;
    let memory = args.bytes.to_string();
    let text = |path: &Path| path.display().to_string();
    let client = |words: &[&str]| run_client(words, &addr, &common);
    client(&["put", "demo/object", &text(&sent), "--memory", &memory])?;
    client(&["list", "--prefix", "demo/"])?;
    client(&["get", "demo/object", &text(&back), "--memory", &memory])?;
    client(&["delete", "demo/object"])?;
    let [sent, back] = [&sent, &back].map(|path| std::fs::read(path).map_err(Failure::of));
    match sent? == back? {
        true => {
            if !args.common.json {
                say("what came back is what was sent");
            }
            Ok(())
        }
        false => Err(Failure::new("what came back is not what was sent")),
    }
}

/// A file of so many bytes, none of which follow from their neighbours.
fn fill(path: &Path, bytes: usize) -> Result<(), Failure> {
    let mut state = 1u64;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    std::fs::write(path, content).map_err(|error| Failure::file(path, &error))
}

fn program() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe().map_err(Failure::of)?))
}

/// Where both meet.
fn meeting_place(args: &DemoArgs) -> Result<PeerAddr, Failure> {
    let at = |node| PeerAddr::from(SocketAddr::new(node, 0));
    if let Some(node) = args.node {
        return Ok(at(node));
    }
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let row = args.common.provider.as_deref().and_then(provider);
    match row {
        Some(row) if row.names.is_some() => Ok(PeerAddr::any()),
        // A device has an address of its own, and none on the loopback interface.
        Some(row) if !row.over_tcp => {
            let domain = open_fabric(&args.common, None)?.open_domain()?;
            Ok(at(domain.report().address.unwrap_or(loopback)))
        }
        _ => Ok(at(loopback)),
    }
}

/// Starts the server, at a port that the system chooses; its address.
fn serve(dir: &Path, args: &DemoArgs, common: &[String]) -> Result<(Server, String), Failure> {
    let listen = meeting_place(args)?.to_string();
    let mut server = program()?
        .args(["serve", "--child", "--listen", &listen, "--dir"])
        .arg(dir)
        .args(common)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::of)?;
    let out = server.stdout.take().expect("piped");
    let server = Server(server);
    let mut line = String::new();
    BufReader::new(out)
        .read_line(&mut line)
        .map_err(Failure::of)?;
    let addr = match serde_json::from_str::<serde_json::Value>(&line) {
        Ok(said) => said["address"].as_str().unwrap_or_default().to_owned(),
        Err(_) => line
            .trim()
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .to_owned(),
    };
    match addr.is_empty() {
        true => Err(Failure::new("the server did not start")),
        false => Ok((server, addr)),
    }
}

fn run_client(words: &[&str], addr: &str, common: &[String]) -> Result<(), Failure> {
    std::io::stdout().flush().map_err(Failure::of)?;
    let status = program()?
        .args(words)
        .args(["--to", addr])
        .args(common)
        .status()
        .map_err(Failure::of)?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(format!("{} failed", words[0]))),
    }
}
