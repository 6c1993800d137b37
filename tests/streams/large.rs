//! Much at once: long files in little memory, and many small ones.
//!
//! FABRICAST_SOAK=1: 5 GiB, and 100,000 files.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    DirectorySink, DiscardSink, FileSource, ReceiverConfig, SendOptions, SenderConfig, StreamSender,
};

use crate::common::child::{Child, argument, role, tell};
use crate::common::rounds;
use crate::world::*;

/// The most memory that this process ever had, in bytes.
fn peak_rss() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.expect("a number of KiB") * 1024
}

const MIB: u64 = 1 << 20;

/// Holes, and bytes here and there: at both ends, and where numbers of 32 bits end.
fn make_long(path: &Path, size: u64) {
    let file = fs::File::create(path).expect("created");
    file.set_len(size).expect("sparse files");
    for (seed, at) in [0, 2048 * MIB - 5, 4096 * MIB - 5, size - MIB]
        .into_iter()
        .enumerate()
    {
        if at + MIB <= size {
            let bytes = content(MIB as usize, seed as u64);
            file.write_all_at(&bytes, at).expect("written");
        }
    }
}

fn assert_same_long(a: &Path, b: &Path) {
    let (mut a, mut b) = (
        fs::File::open(a).expect("there"),
        fs::File::open(b).expect("there"),
    );
    let (mut piece_a, mut piece_b) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    let size = a.metadata().expect("there").len();
    assert_eq!(size, b.metadata().expect("there").len());
    for at in 0..size / MIB {
        a.read_exact(&mut piece_a).expect("read");
        b.read_exact(&mut piece_b).expect("read");
        assert!(piece_a == piece_b, "other bytes in MiB {at}");
    }
}

/// Both sides in one process of its own: a long file to a directory.
fn stream_in_little_memory() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return tell("skipped");
    };
    let from = tempfile::tempdir().expect("a directory");
    let to = tempfile::tempdir().expect("a directory");
    let path = from.path().join("long");
    let size = u64::from(rounds(128, 5 * 1024)) * MIB;
    make_long(&path, size);
    let sink = DirectorySink::new(to.path()).expect("a directory");
    let receiver = listen(&domain, receiver_config(sink));
    let sender = StreamSender::open(&domain, sender_config()).expect("a sender");
    // Its holes are sent as any other bytes.
    let open = Arc::new(Gate::default());
    open.open();
    let source = Gated::new(FileSource::file(&path).expect("a file"), &open);
    let (before, began) = (peak_rss(), Instant::now());
    let peers = [receiver.local_addr()];
    let transfer = sender
        .send(source, peers, SendOptions::default())
        .expect("begun");
    let outcome = transfer
        .wait(Instant::now() + 10 * PATIENCE)
        .expect("in time")
        .remove(0);
    outcome.result.expect("it arrived");
    let (after, took) = (peak_rss(), began.elapsed());
    println!(
        "{size} bytes in {took:?}, at most {after} bytes of memory: {}",
        outcome.report
    );
    assert_eq!(outcome.report.bytes, size);
    assert_same_long(&path, &to.path().join("long"));
    tell(format!("grew {}", after - before));
    sender.close(by());
    receiver.close(by());
}

/// Sends to all the addresses that it was given, and tells how much memory it took.
fn send_to_all() {
    let domain = domain(EndpointKind::Msg).expect("the parent has one");
    let from = tempfile::tempdir().expect("a directory");
    let path = from.path().join("long");
    // No holes, which would not be sent.
    fs::write(&path, vec![1; 64 << 20]).expect("written");
    let sender = StreamSender::open(&domain, SenderConfig::default()).expect("a sender");
    let source = FileSource::file(&path).expect("a file");
    let argument = argument();
    let peers = argument
        .split(' ')
        .map(|addr| addr.parse::<fabricast::PeerAddr>());
    let peers: Vec<_> = peers.map(|addr| addr.expect("an address")).collect();
    let transfer = sender.send(source, peers, SendOptions::default());
    let outcomes = transfer.expect("begun").wait(by()).expect("in time");
    for outcome in outcomes {
        outcome.result.expect("it arrived");
    }
    tell(format!("peak {}", peak_rss()));
    sender.close(by());
}

#[test]
fn four_peers_cost_the_sender_no_more_memory_than_one() {
    if role().is_some() {
        return send_to_all();
    }
    let test = "large::four_peers_cost_the_sender_no_more_memory_than_one";
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let config = || ReceiverConfig::new(DiscardSink).stream(|s| s.connections(1).buffers(8));
    let receivers: Vec<_> = (0..4).map(|_| listen(&domain, config())).collect();
    let addrs: Vec<_> = receivers
        .iter()
        .map(|it| it.local_addr().to_string())
        .collect();
    let peak = |peers: usize| -> f64 {
        let mut child = Child::start(test, "sender", addrs[..peers].join(" "));
        let peak = child.expect("peak", PATIENCE);
        child.finish(PATIENCE);
        peak.parse().expect("a number")
    };
    let (one, four) = (peak(1), peak(4));
    println!(
        "{one} bytes at the peak with one peer, {four} with four: {:.3}",
        four / one
    );
    assert!(four <= 1.1 * one, "{four} {one}");
}

#[test]
fn memory_is_bounded_by_the_pools_whatever_the_size() {
    if role().is_some() {
        return stream_in_little_memory();
    }
    let test = "large::memory_is_bounded_by_the_pools_whatever_the_size";
    if domain(EndpointKind::Msg).is_none() {
        return;
    }
    let mut child = Child::start(test, "both", "");
    let grew: u64 = child
        .expect("grew", 10 * PATIENCE)
        .parse()
        .expect("a number");
    println!("{grew} bytes more at the peak than before");
    // 16 + 76 blocks of 64 KiB, the kernel's copy of nothing, and what the provider allocates for a
    // connection.
    assert!(grew < 64 << 20, "{grew}");
    child.finish(PATIENCE);
}

#[test]
fn many_small_files() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let top = from.path().join("many");
    let count = rounds(2000, 100_000);
    for number in 0..count {
        let dir = top.join(format!("{:03}", number % 500));
        if number < 500 {
            fs::create_dir_all(&dir).unwrap();
        }
        // Spaces, other letters, and the longest names that there are.
        let name = match number % 3 {
            0 => format!("file {number}"),
            1 => format!("größe {number} 大"),
            _ => format!("{number:0>255}"),
        };
        fs::write(dir.join(name), number.to_le_bytes()).unwrap();
    }
    let receiver = listen(
        &domain,
        receiver_config(DirectorySink::new(to.path()).unwrap()),
    );
    let sender = StreamSender::open(&domain, sender_config()).unwrap();
    let source = FileSource::tree(&top).unwrap();
    let began = Instant::now();
    let transfer = sender
        .send(source, [receiver.local_addr()], SendOptions::default())
        .unwrap();
    let outcome = transfer
        .wait(Instant::now() + 10 * PATIENCE)
        .unwrap()
        .remove(0);
    outcome.result.unwrap();
    let peak = peak_rss();
    println!(
        "{count} files in {:?}, at most {peak} bytes of memory: {}",
        began.elapsed(),
        outcome.report
    );
    assert_same(&top, &to.path().join("many"));
    sender.close(by());
    receiver.close(by());
}
