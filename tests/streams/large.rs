//! Much at once: long files in little memory, and many small ones.
//!
//! FABRICAST_SOAK=1: 5 GiB, and 100,000 files.

use std::fs;
use std::time::Instant;

use fabricast::fabric::EndpointKind;
use fabricast::stream::{DirectorySink, DiscardSink, FileSource, SendOptions, StreamSender};

use crate::common::child::{Child, role, tell};
use crate::common::rounds;
use crate::world::*;

/// The most memory that this process ever had, in bytes.
fn peak_rss() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.expect("a number of KiB") * 1024
}

/// Both sides in one process of its own: a sparse file, to nowhere.
fn stream_in_little_memory() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return tell("skipped");
    };
    let from = tempfile::tempdir().expect("a directory");
    let path = from.path().join("long");
    let size = u64::from(rounds(256, 5 * 1024)) << 20;
    let file = fs::File::create(&path).expect("created");
    file.set_len(size).expect("sparse files");
    let receiver = listen(&domain, receiver_config(DiscardSink));
    let sender = StreamSender::open(&domain, sender_config()).expect("a sender");
    let source = FileSource::file(&path).expect("a file");
    let before = peak_rss();
    let peers = [receiver.local_addr()];
    let transfer = sender
        .send(source, peers, SendOptions::default())
        .expect("begun");
    let outcome = transfer
        .wait(Instant::now() + 10 * PATIENCE)
        .expect("in time")
        .remove(0);
    outcome.result.expect("it arrived");
    assert_eq!(outcome.report.bytes, size);
    tell(format!("grew {}", peak_rss() - before));
    sender.stop(by());
    receiver.stop(by());
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
    // 16 + 76 blocks of 64 KiB, the kernel's copy of nothing, and what the provider allocates for a connection.
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
        fs::write(dir.join(format!("file {number}")), number.to_le_bytes()).unwrap();
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
    println!("{count} files in {:?}: {}", began.elapsed(), outcome.report);
    assert_same(&top, &to.path().join("many"));
    sender.stop(by());
    receiver.stop(by());
}
