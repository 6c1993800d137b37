//! Streams that were cut, and go on.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::Domain;
use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    DirectorySink, FileSource, PeerOutcome, RefusalCode, SendOptions, SourceError, StreamError,
    StreamEvent, StreamReceiver, StreamSender, Transport,
};

use crate::common::child::{Child, argument, role, tell};
use crate::world::*;

const SIZE: usize = 4 << 20;

/// The hidden directory of a stream that was cut.
fn work_dir(to: &Path) -> PathBuf {
    let name = names(to)
        .into_iter()
        .find(|name| name.to_string_lossy().starts_with(".fabricast-"));
    to.join(name.expect("what is kept of the stream"))
}

/// Sends until some of it is written, and then drops the sender: it can't be done before, since
/// half of it can't be read.
fn cut(domain: &Arc<Domain>, path: &Path, receiver: &StreamReceiver, transport: Transport) {
    let sender = StreamSender::open(domain, sender_config()).unwrap();
    let options = SendOptions::default().transport(transport);
    let gate = Arc::new(Gate::default());
    let source = Gated::new(FileSource::file(path).unwrap(), &gate);
    let transfer = sender
        .send(source, [receiver.local_addr()], options)
        .unwrap();
    let by = by();
    while transfer.progress()[0].written < SIZE as u64 / 4 {
        assert!(Instant::now() < by, "{:?}", transfer.progress());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(sender);
    let outcome = transfer.wait(by).unwrap().pop().unwrap();
    gate.open();
    outcome.result.expect_err("it was cut");
    match next_end(receiver) {
        StreamEvent::Cut(..) => {}
        other => panic!("{other:?}"),
    }
}

fn send_one(
    domain: &Arc<Domain>,
    path: &Path,
    receiver: &StreamReceiver,
    options: SendOptions,
) -> PeerOutcome {
    let source = FileSource::file(path).unwrap();
    send(domain, source, &[receiver.local_addr()], options)
        .pop()
        .unwrap()
}

struct Place {
    from: tempfile::TempDir,
    to: tempfile::TempDir,
    path: PathBuf,
    receiver: StreamReceiver,
}

/// A file of which about a quarter is at the receiver.
fn cut_place(domain: &Arc<Domain>, transport: Transport) -> Place {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = from.path().join("file");
    fs::write(&path, content(SIZE, 5)).unwrap();
    let config = receiver_config(DirectorySink::new(to.path()).unwrap());
    // What a sender that was lost over FI_EP_RDM could write, it could still.
    let receiver = listen(domain, config.rma_slots(20));
    cut(domain, &path, &receiver, transport);
    assert!(
        !to.path().join("file").exists(),
        "nothing is under the name"
    );
    Place {
        from,
        to,
        path,
        receiver,
    }
}

#[test]
fn a_cut_stream_goes_on_where_it_was() {
    over_both_by_both(|domain, transport| {
        let Place {
            from,
            to,
            path,
            receiver,
        } = cut_place(domain, transport);
        let options = SendOptions::default().blake3(true).transport(transport);
        let outcome = send_one(domain, &path, &receiver, options);
        outcome.result.unwrap();
        let report = outcome.report;
        // Of all of it, though the sender read the rest only.
        let whole = *blake3::hash(&fs::read(&path).unwrap()).as_bytes();
        assert_eq!(
            (report.blake3, report.blake3_compared),
            (Some(whole), false)
        );
        assert!(report.resumed_bytes >= SIZE as u64 / 8, "{report:?}");
        assert_eq!(report.resumed_bytes + report.sent_bytes, SIZE as u64);
        assert_same(&path, &to.path().join("file"));
        assert_eq!(
            names(to.path()),
            names(from.path()),
            "nothing else is left there"
        );
        receiver.close(by());
    });
}

#[test]
fn what_was_kept_is_believed_only_byte_for_byte() {
    over_both(|domain| {
        let Place {
            from: _from,
            to,
            path,
            receiver,
        } = cut_place(domain, Transport::Auto);
        let work = work_dir(to.path());
        // A byte of the first block that arrived is another; the journal's last record is torn.
        let partial = fs::File::options()
            .read(true)
            .write(true)
            .open(work.join("tree/file"))
            .unwrap();
        let mut byte = [0];
        partial.read_exact_at(&mut byte, 1000).unwrap();
        partial.write_all_at(&[byte[0] ^ 1], 1000).unwrap();
        let journal = fs::File::options()
            .write(true)
            .open(work.join("journal"))
            .unwrap();
        let len = journal.metadata().unwrap().len();
        journal.set_len(len - 5).unwrap();
        let outcome = send_one(domain, &path, &receiver, SendOptions::default());
        outcome.result.unwrap();
        assert!(outcome.report.resumed_bytes > 0);
        assert_same(&path, &to.path().join("file"));
        receiver.close(by());
    });
}

#[test]
fn what_nobody_goes_on_with_is_forgotten_and_nothing_else() {
    let Some(domain) = domain(EndpointKind::Msg) else {
        return;
    };
    let Place { to, receiver, .. } = cut_place(&domain, Transport::Auto);
    let sink = DirectorySink::new(to.path()).unwrap();
    let work = work_dir(to.path());
    // The same name as far as one can see, but nothing says that it is ours.
    let other = to.path().join(format!(".fabricast-{}", "a".repeat(32)));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), b"").unwrap();
    assert_eq!(sink.forget_partials(Duration::from_secs(3600)).unwrap(), 0);
    let held = fs::File::open(&work).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(sink.forget_partials(Duration::ZERO).unwrap(), 0);
    drop(held);
    assert_eq!(sink.forget_partials(Duration::ZERO).unwrap(), 1);
    assert!(!work.exists());
    assert!(other.join("precious").exists());
    receiver.close(by());
}

#[test]
fn a_source_that_changed_is_refused_and_can_be_restarted() {
    over_both(|domain| {
        let Place {
            from,
            to,
            path,
            receiver,
        } = cut_place(domain, Transport::Auto);
        fs::write(&path, content(SIZE, 6)).unwrap();
        let outcome = send_one(domain, &path, &receiver, SendOptions::default());
        match outcome.result.unwrap_err() {
            StreamError::Refused { code, .. } => assert_eq!(code, RefusalCode::SOURCE_CHANGED),
            other => panic!("{other:?}"),
        }
        assert!(!to.path().join("file").exists());
        let outcome = send_one(
            domain,
            &path,
            &receiver,
            SendOptions::default().restart(true),
        );
        outcome.result.unwrap();
        assert_eq!(outcome.report.resumed_bytes, 0);
        assert_same(&path, &to.path().join("file"));
        assert_eq!(names(to.path()), names(from.path()));
        receiver.close(by());
    });
}

#[test]
fn a_source_that_changes_meanwhile_fails_and_nothing_appears() {
    over_both(|domain| {
        for change in ["shorter", "longer", "other bytes", "replaced"] {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let path = from.path().join("file");
            fs::write(&path, content(SIZE, 5)).unwrap();
            let receiver = listen(
                domain,
                receiver_config(DirectorySink::new(to.path()).unwrap()),
            );
            let sender = StreamSender::open(domain, sender_config()).unwrap();
            // After the first block, it waits.
            let options = SendOptions::default().rate(Some(1));
            let source = FileSource::file(&path).unwrap();
            let transfer = sender
                .send(source, [receiver.local_addr()], options)
                .unwrap();
            while transfer.progress()[0].sent == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let file = fs::File::options().write(true).open(&path).unwrap();
            match change {
                "shorter" => file.set_len(SIZE as u64 / 2).unwrap(),
                "longer" => file.set_len(SIZE as u64 + 1).unwrap(),
                "other bytes" => file.write_all_at(b"other", SIZE as u64 - 5).unwrap(),
                _ => {
                    fs::write(from.path().join("new"), content(SIZE, 7)).unwrap();
                    fs::rename(from.path().join("new"), &path).unwrap();
                }
            }
            transfer.set_rate(None);
            let outcome = transfer.wait(by()).unwrap().pop().unwrap();
            let error = outcome.result.unwrap_err();
            assert!(
                matches!(error, StreamError::SourceChanged { .. }),
                "{change}: {error:?}"
            );
            assert!(!to.path().join("file").exists(), "{change}");
            sender.close(by());
            receiver.close(by());
        }
    });
    let gone = FileSource::file("/does/not/exist").unwrap_err();
    assert!(matches!(gone, SourceError::Os { .. }), "{gone:?}");
}

/// In a mount namespace of its own: a file system of 6 MiB, half of it taken, and two files of 2
/// MiB for it.
fn fill_up() {
    let (from, to) = (tempfile::tempdir().unwrap(), PathBuf::from(argument()));
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=6M", "none"]);
    if !mount.arg(&to).status().is_ok_and(|it| it.success()) {
        return tell("skipped");
    }
    let domain = domain(EndpointKind::Msg).unwrap();
    let (filler, top) = (to.join("filler"), from.path().join("top"));
    fs::write(&filler, content(3 << 20, 1)).unwrap();
    fs::create_dir(&top).unwrap();
    for (name, seed) in [("a", 2), ("b", 3)] {
        fs::write(top.join(name), content(2 << 20, seed)).unwrap();
    }
    let sink = DirectorySink::new(&to).unwrap();
    let receiver = listen(&domain, receiver_config(sink));
    let attempt = || {
        let source = FileSource::tree(&top).unwrap();
        let peers = [receiver.local_addr()];
        send(&domain, source, &peers, SendOptions::default()).remove(0)
    };
    match attempt().result.unwrap_err() {
        StreamError::Failed { code, reason, .. } => {
            assert_eq!(code, RefusalCode::SPACE, "{reason}");
            assert!(reason.contains("No space left"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!to.join("top").exists(), "nothing is under the name");
    fs::remove_file(filler).unwrap();
    let outcome = attempt();
    outcome.result.unwrap();
    assert!(outcome.report.resumed_bytes > 0, "{:?}", outcome.report);
    assert_same(&top, &to.join("top"));
    assert_eq!(names(&to), ["top"]);
    receiver.close(by());
    tell("done");
}

#[test]
fn a_stream_that_filled_the_disk_goes_on_when_there_is_room() {
    if role().is_some() {
        return fill_up();
    }
    let test = "resume::a_stream_that_filled_the_disk_goes_on_when_there_is_room";
    let may = Command::new("unshare").args(["-m", "true"]).status();
    if domain(EndpointKind::Msg).is_none() {
        return;
    }
    if !may.is_ok_and(|status| status.success()) {
        println!("SKIPPED: no mount namespace can be made here (unshare(1))");
        return;
    }
    let to = tempfile::tempdir().unwrap();
    let place = to.path().display();
    let mut child = Child::through(&["unshare", "-m"], test, "both", place);
    if child.expect("", PATIENCE) == "skipped" {
        println!("SKIPPED: no file system may be mounted in a namespace of our own");
    }
    child.finish(PATIENCE);
}
