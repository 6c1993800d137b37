//! Code of the user's that panics: its own stream ends with an error that says so; the threads, the
//! buffers and all other streams stay.

use std::sync::atomic::{AtomicBool, Ordering};

use fabricast::buffer::Buffer;
use fabricast::stream::{
    Block, BlockSink, BlockSource, DiscardSink, Entry, EntryKind, Kept, Manifest, Modified,
    ReadBack, RefusalCode, RelativeName, SendOptions, SinkError, SinkFactory, SourceError, Stop,
    StreamError, StreamEvent, StreamOffer, StreamSender,
};

use crate::world::*;

/// Where it panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    Stamp,
    Lend,
    Path,
    Read,
    Check,
    /// From the second call on, since the first is made by whoever sends.
    Manifest,
    Dropped,
}

#[derive(Debug)]
struct Panicking {
    at: At,
    manifest: Manifest,
    was_asked: AtomicBool,
}

impl Panicking {
    fn new(at: At) -> Self {
        // Two streams of the same names would wait for each other.
        let name = format!("{at:?}");
        let entry = Entry {
            name: RelativeName::new(name.as_bytes()).unwrap(),
            kind: EntryKind::File,
            mode: 0o644,
            size: 300_000,
            modified: Modified::default(),
            sparse: false,
        };
        Self {
            at,
            manifest: Manifest::new([entry]).unwrap(),
            was_asked: AtomicBool::new(false),
        }
    }

    fn panic_at(&self, here: At) {
        assert!(self.at != here, "no luck at {here:?}");
    }
}

impl BlockSource for Panicking {
    fn manifest(&self) -> &Manifest {
        if self.was_asked.swap(true, Ordering::Relaxed) {
            self.panic_at(At::Manifest);
        }
        &self.manifest
    }
    fn stamp(&self) -> [u8; 16] {
        self.panic_at(At::Stamp);
        [0; 16]
    }
    fn read(&self, _entry: usize, _offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.panic_at(At::Read);
        into.fill(1);
        Ok(())
    }
    fn lend(&self, _entry: usize, _offset: u64, _len: usize) -> Option<Buffer> {
        self.panic_at(At::Lend);
        None
    }
    fn path(&self) -> Option<String> {
        self.panic_at(At::Path);
        None
    }
    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.panic_at(At::Check);
        Ok(())
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        self.panic_at(At::Dropped);
    }
}

#[test]
fn a_source_that_panics_ends_its_own_transfer_and_no_other() {
    over_both(|domain| {
        let receiver = listen(domain, receiver_config(DiscardSink));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let begin = |at| {
            let source = Panicking::new(at);
            let options = SendOptions::default().reconnects(0);
            sender
                .send(source, [receiver.local_addr()], options)
                .unwrap()
        };
        for at in [
            At::Stamp,
            At::Lend,
            At::Read,
            At::Check,
            At::Manifest,
            At::Path,
            At::Dropped,
        ] {
            println!("{at:?}");
            let (broken, beside) = (begin(at), begin(At::Nowhere));
            let over = |transfer: fabricast::stream::Transfer| {
                let outcomes = transfer.wait(by());
                outcomes.expect("it ends").pop().unwrap().result
            };
            let ended = over(broken);
            over(beside).unwrap_or_else(|error| panic!("{at:?}: {error}"));
            match (at, ended) {
                // What it was asked for in vain is only shown.
                (At::Path | At::Dropped, ended) => ended.unwrap(),
                (_, Err(StreamError::GivenUp { code, reason })) => {
                    assert_eq!(code, RefusalCode::SOURCE);
                    assert!(
                        reason.contains(&format!("panicked: no luck at {at:?}")),
                        "{reason}"
                    );
                }
                (_, other) => panic!("{at:?}: {other:?}"),
            }
        }
        let slots = sender.pool().slots();
        let until = by();
        while sender.pool().free_count() < slots {
            assert!(std::time::Instant::now() < until, "a buffer is lost");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        sender.close(by());
        receiver.close(by());
    });
}

/// Which of a sink's calls panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum In {
    Make,
    Open,
    Write,
    Path,
    Finish,
    Abandon,
    Dropped,
}

#[derive(Debug)]
struct PanickingSink(In);

#[derive(Debug)]
struct PanickingFactory(In, AtomicBool);

impl SinkFactory for PanickingFactory {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        if self.1.swap(true, Ordering::Relaxed) {
            return DiscardSink.make(offer);
        }
        assert!(self.0 != In::Make, "no luck in Make");
        Ok(Box::new(PanickingSink(self.0)))
    }
}

impl PanickingSink {
    fn panic_in(&self, here: In) {
        assert!(self.0 != here, "no luck in {here:?}");
    }
}

impl BlockSink for PanickingSink {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        self.panic_in(In::Open);
        Ok(Kept::default())
    }
    fn write(&self, _block: Block, _crc: u32, _bytes: &[u8]) -> Result<(), SinkError> {
        self.panic_in(In::Write);
        Ok(())
    }
    fn path(&self) -> Option<String> {
        self.panic_in(In::Path);
        None
    }
    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        self.panic_in(In::Finish);
        match self.0 {
            In::Abandon => Err(SinkError::Other("it fails first".to_owned())),
            _ => Ok(ReadBack::default()),
        }
    }
    fn abandon(&self) {
        self.panic_in(In::Abandon);
    }
}

impl Drop for PanickingSink {
    fn drop(&mut self) {
        self.panic_in(In::Dropped);
    }
}

#[test]
fn a_sink_that_panics_ends_its_own_stream_and_no_other() {
    over_both(|domain| {
        for here in [
            In::Make,
            In::Open,
            In::Write,
            In::Path,
            In::Finish,
            In::Abandon,
            In::Dropped,
        ] {
            println!("{here:?}");
            let factory = PanickingFactory(here, AtomicBool::new(false));
            let receiver = listen(domain, receiver_config(factory));
            let attempt = || {
                let options = SendOptions::default().reconnects(0);
                let source = Panicking::new(At::Nowhere);
                let mut outcomes = send(domain, source, &[receiver.local_addr()], options);
                outcomes.pop().unwrap().result
            };
            let ended = attempt();
            let said = match (&ended, next_end(&receiver)) {
                (Ok(()), StreamEvent::Complete(..)) => {
                    assert!(matches!(here, In::Path | In::Dropped), "{here:?}");
                    None
                }
                (Err(StreamError::Refused { code, reason, .. }), StreamEvent::Refused { .. })
                | (Err(StreamError::Failed { code, reason, .. }), StreamEvent::Cut(..)) => {
                    assert_eq!(*code, RefusalCode::SINK);
                    Some(reason.clone())
                }
                (ended, news) => panic!("{here:?}: {ended:?}, {news:?}"),
            };
            match (here, said) {
                (In::Abandon, Some(said)) => assert!(said.contains("fails first"), "{said}"),
                (_, Some(said)) => {
                    let wanted = format!("panicked: no luck in {here:?}");
                    assert!(said.contains(&wanted), "{said}");
                }
                _ => {}
            }
            attempt().unwrap_or_else(|error| panic!("{here:?}: {error}"));
            receiver.close(by());
        }
    });
}
