//! What is admitted, and what a sender may not do. The rest is in `simulation.rs` and `hostile.rs`.

use super::*;
use crate::stream::manifest::{Entry, EntryKind, Modified};
use crate::stream::name::RelativeName;
use crate::stream::wire::StreamIdentity;

fn settings() -> IntakeSettings {
    IntakeSettings {
        limits: Limits::default(),
        memory_left: 1 << 20,
        features: Features::empty(),
        payload_max: 8192,
        window: 2,
        slots: 0,
    }
}

/// One file of 100 bytes.
fn manifest() -> Manifest {
    let entry = Entry {
        name: RelativeName::new(b"file").unwrap(),
        kind: EntryKind::File,
        mode: 0o644,
        size: 100,
        modified: Modified::default(),
    };
    Manifest::new([entry]).unwrap()
}

fn open() -> Open {
    Open {
        stream: 1,
        flags: OpenFlags::CRC32C,
        block_bytes: 10,
        entries: 1,
        manifest_bytes: manifest().encoded_len(),
        bytes: 100,
        blocks: 10,
        identity: StreamIdentity::default(),
    }
}

fn announced(open: Open) -> (Intake, Result<Arrival, StreamViolation>) {
    let mut intake = Intake::new(0, open, settings()).unwrap();
    let (entries, _) = manifest().encode_part(0, 8192);
    let part = ManifestPart {
        stream: 1,
        first: 0,
        entries: &entries,
    };
    let arrival = intake.on_message(0, &Message::Manifest(part));
    (intake, arrival)
}

/// A stream whose blocks may come.
fn begun() -> Intake {
    let (mut intake, arrival) = announced(open());
    assert_eq!(arrival, Ok(Arrival::Announced));
    intake.accept(BlockSet::new(10), 0);
    assert!(matches!(intake.next_to_say(), Some(Message::Accept(_))));
    intake.on_said();
    intake
}

fn block(index: u64) -> BlockHeader {
    BlockHeader {
        stream: 1,
        index,
        entry: 0,
        offset: index * 10,
        len: 10,
        crc: 5,
    }
}

#[test]
fn what_is_beyond_a_limit_is_refused_before_it_comes() {
    let refused = |open: Open, change: &dyn Fn(&mut IntakeSettings)| {
        let mut settings = settings();
        change(&mut settings);
        let refusal = Intake::new(0, open, settings).unwrap_err();
        (refusal.code, refusal.details)
    };
    let bytes = refused(open(), &|it| it.limits.bytes = 99);
    assert_eq!(bytes, (RefusalCode::BYTES, [100, 99]));
    let entries = refused(open(), &|it| it.limits.entries = 0);
    assert_eq!(entries, (RefusalCode::ENTRIES, [1, 0]));
    let names = refused(open(), &|it| it.limits.name_bytes = 3);
    assert_eq!(names, (RefusalCode::NAMES, [4, 3]));
    let blocks = refused(open(), &|it| it.limits.blocks = 9);
    assert_eq!(blocks, (RefusalCode::BLOCKS, [10, 9]));
    let size = refused(open(), &|it| it.payload_max = 9);
    assert_eq!(size, (RefusalCode::BLOCKS, [10, 9]));
    let (memory, [asked, limit]) = refused(open(), &|it| it.memory_left = 10);
    assert_eq!((memory, limit), (RefusalCode::BUSY, 10));
    assert!(asked > 10);
    for flags in [OpenFlags::BLAKE3, OpenFlags::READ_BACK, OpenFlags::BY_WRITE] {
        let (code, _) = refused(Open { flags, ..open() }, &|_| {});
        assert_eq!(code, RefusalCode::FEATURE);
    }
}

#[test]
fn a_manifest_that_is_not_as_announced_is_refused() {
    let other = Open {
        blocks: 11,
        ..open()
    };
    let (mut intake, arrival) = announced(other);
    assert_eq!(arrival, Ok(Arrival::Over));
    match intake.next_to_say() {
        Some(Message::Refuse(refuse)) => assert_eq!(refuse.code, RefusalCode::MALFORMED),
        other => panic!("{other:?}"),
    }
}

#[test]
fn blocks_that_the_stream_does_not_have_end_it() {
    let wrong = [
        BlockHeader {
            index: 10,
            ..block(9)
        },
        BlockHeader {
            offset: 11,
            ..block(1)
        },
        BlockHeader {
            entry: 1,
            ..block(1)
        },
        BlockHeader { len: 9, ..block(1) },
    ];
    for header in wrong {
        let mut intake = begun();
        let index = header.index;
        let result = intake.on_message(0, &Message::Block(header));
        assert_eq!(result, Err(StreamViolation::NoSuchBlock { index }));
        assert!(matches!(intake.next_to_say(), Some(Message::Failed(_))));
        intake.on_said();
        assert!(matches!(
            intake.outcome(),
            Some(Err(StreamError::Violation(_)))
        ));
    }
}

#[test]
fn a_sender_that_claims_more_than_was_granted_ends_it() {
    let mut intake = begun();
    let finish = Finish {
        stream: 1,
        lap: 0,
        sent_here: 3,
        sent: 3,
        digest: 0,
        blake3: None,
    };
    let result = intake.on_message(0, &Message::Finish(finish));
    let (sent, granted) = (3, 2);
    assert_eq!(result, Err(StreamViolation::OverCredit { sent, granted }));
}

#[test]
fn a_damaged_block_is_asked_for_again() {
    let mut intake = begun();
    let arrival = intake.on_message(0, &Message::Block(block(3)));
    let Ok(Arrival::Block(taken)) = arrival else {
        panic!("{arrival:?}");
    };
    let twice = intake.on_message(0, &Message::Block(block(3)));
    assert_eq!(twice, Ok(Arrival::Twice));
    intake.on_damaged(&taken, 7);
    let mut said = Vec::new();
    while let Some(message) = intake.next_to_say() {
        said.push(message.kind());
        intake.on_said();
    }
    assert!(
        said.contains(&crate::stream::wire::Kind::DAMAGED),
        "{said:?}"
    );
    let again = intake.on_message(0, &Message::Block(block(3)));
    assert_eq!(again, Ok(Arrival::Block(taken)));
}
