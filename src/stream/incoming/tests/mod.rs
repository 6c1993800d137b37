//! What is admitted, and what a sender may not do. The rest: `stream/tests` and `stream/testing`.

use super::*;
use crate::stream::Attribute;
use crate::stream::attributes::ATTRIBUTE_BYTES_MAX;
use crate::stream::digest::StreamDigest;
use crate::stream::limits::Limits;
use crate::stream::manifest::{Entry, EntryKind, Modified};
use crate::stream::name::RelativeName;
use crate::stream::wire::{Features, OwnerWire, StreamIdentity};
use zerocopy::little_endian::U32;

fn settings() -> IncomingSettings {
    IncomingSettings {
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
    manifest_of(100)
}

fn manifest_of(size: u64) -> Manifest {
    let entry = Entry {
        name: RelativeName::new(b"file").unwrap(),
        kind: EntryKind::File,
        mode: 0o644,
        size,
        modified: Modified::default(),
        sparse: false,
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
        attribute_bytes: 0,
        identity: StreamIdentity::default(),
    }
}

fn announced(open: Open) -> (IncomingStream, Result<MessageOutcome, StreamViolation>) {
    let mut incoming = IncomingStream::new(0, open, settings()).unwrap();
    let (entries, _) = manifest().encode_part(0, 8192, true);
    let part = ManifestPart {
        stream: 1,
        first: 0,
        entries: &entries,
    };
    let arrival = incoming.on_message(0, &Message::Manifest(part));
    (incoming, arrival)
}

/// A stream whose blocks may come.
fn begun() -> IncomingStream {
    let (mut incoming, arrival) = announced(open());
    assert_eq!(arrival, Ok(MessageOutcome::Announced));
    incoming.accept(BlockSet::new(10), 0, None);
    assert!(matches!(incoming.next_control(), Some(Message::Accept(_))));
    incoming.on_control_sent();
    incoming
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

/// A sender that says whose files are too early, unasked, out of order, or of too many.
#[test]
fn owners_are_those_of_the_entries_once_all_are_there() {
    let said = |flags: OpenFlags, manifest_first: bool, runs: &[(u64, usize)]| {
        let open = Open { flags, ..open() };
        let mut settings = settings();
        settings.features = Features::OWNERS;
        let mut incoming = IncomingStream::new(0, open, settings).unwrap();
        let (entries, _) = manifest().encode_part(0, 8192, true);
        let part = ManifestPart {
            stream: 1,
            first: 0,
            entries: &entries,
        };
        let mut last = Ok(MessageOutcome::Nothing);
        if manifest_first {
            last = incoming.on_message(0, &Message::Manifest(part));
        }
        for (first, count) in runs {
            let owner = OwnerWire {
                user: 5.into(),
                group: 6.into(),
            };
            let owners = Owners {
                stream: 1,
                first: *first,
                owners: &vec![owner; *count],
            };
            last = incoming.on_message(0, &Message::Owners(owners));
        }
        let owner = incoming.manifest().owner(0);
        last.map(|outcome| (outcome == MessageOutcome::Announced, owner))
    };
    let owned = OpenFlags::CRC32C | OpenFlags::OWNERS;
    let owner = Owner { user: 5, group: 6 };
    assert_eq!(
        said(owned, true, &[]),
        Ok((false, None)),
        "they are to come"
    );
    assert_eq!(said(owned, true, &[(0, 1)]), Ok((true, Some(owner))));
    assert_eq!(said(OpenFlags::CRC32C, true, &[]), Ok((true, None)));
    for (flags, manifest_first, runs) in [
        (owned, false, &[(0, 1)][..]),
        (owned, true, &[(1, 1)]),
        (owned, true, &[(u64::MAX, 1)]),
        (owned, true, &[(0, 2)]),
        (owned, true, &[(0, 1), (1, 1)]),
        (OpenFlags::CRC32C, true, &[(0, 1)]),
    ] {
        let taken = said(flags, manifest_first, runs);
        taken.expect_err(&format!("{flags:?} {manifest_first} {runs:?}"));
    }
}

/// A sender that says extended attributes too early, unasked, out of order, or more than announced.
#[test]
fn attributes_are_those_that_were_announced_once_all_are_there() {
    let attribute = |entry: usize, name: &'static [u8]| {
        let value = &b"value"[..];
        (entry, Attribute { name, value })
    };
    let encoded = |it: (usize, Attribute<'_>)| {
        let mut list = AttributeList::default();
        list.push(it.0 as u64, it.1).unwrap();
        list.encoded().to_vec()
    };
    let all = &encoded(attribute(0, b"user.a"))[..];
    let len = all.len();
    let said = |flags: OpenFlags, announced: usize, is_late: bool, parts: &[(u64, &[u8])]| {
        let attribute_bytes = announced as u32;
        let open = Open {
            flags,
            attribute_bytes,
            ..open()
        };
        let mut settings = settings();
        settings.features = Features::OWNERS | Features::ATTRIBUTES;
        let mut incoming = IncomingStream::new(0, open, settings).unwrap();
        let (entries, _) = manifest().encode_part(0, 8192, true);
        let part = ManifestPart {
            stream: 1,
            first: 0,
            entries: &entries,
        };
        let mut last = Ok(MessageOutcome::Nothing);
        if is_late {
            last = incoming.on_message(0, &Message::Manifest(part));
        }
        for (first, bytes) in parts {
            let part = AttributePart {
                stream: 1,
                first: *first,
                bytes,
            };
            last = incoming.on_message(0, &Message::Attributes(part));
        }
        let names = incoming.manifest().attributes(0);
        let names = names.map(|found| found.map(|it| it.name.to_vec()).collect::<Vec<_>>());
        (last, names)
    };
    let asked = OpenFlags::CRC32C | OpenFlags::ATTRIBUTES;
    let (nothing, announced) = (Ok(MessageOutcome::Nothing), Ok(MessageOutcome::Announced));
    let found = Some(vec![b"user.a".to_vec()]);
    assert_eq!(said(asked, len, true, &[]), (nothing.clone(), None));
    assert_eq!(
        said(asked, len, true, &[(0, &all[..9])]),
        (nothing, None),
        "the rest is to come"
    );
    assert_eq!(
        said(asked, len, true, &[(0, all)]),
        (announced.clone(), found.clone())
    );
    let cut = [(0, &all[..9]), (9, &all[9..])];
    assert_eq!(said(asked, len, true, &cut), (announced.clone(), found));
    assert_eq!(
        said(asked, 0, true, &[]),
        (announced.clone(), Some(Vec::new())),
        "there are none"
    );
    assert_eq!(
        said(OpenFlags::CRC32C, 0, true, &[]),
        (announced, None),
        "nothing is said of them"
    );
    for (flags, announced, is_late, parts) in [
        (asked, len, false, &[(0, all)][..]),
        (asked | OpenFlags::OWNERS, len, true, &[(0, all)]),
        (asked, len, true, &[(1, &all[1..])]),
        (asked, len, true, &[(0, &all[..9]), (8, &all[9..])]),
        (asked, len, true, &[(u64::MAX, all)]),
        (asked, len - 1, true, &[(0, all)]),
        (asked, 0, true, &[(0, all)]),
        (asked, len, true, &[(0, all), (len as u64, all)]),
        (OpenFlags::CRC32C, 0, true, &[(0, all)]),
    ] {
        let (taken, _) = said(flags, announced, is_late, parts);
        taken.expect_err(&format!("{flags:?} {announced} {is_late} {parts:?}"));
    }
    let twice = [all, all].concat();
    let elsewhere = encoded(attribute(1, b"user.a"));
    let kernels = {
        let mut bytes = encoded(attribute(0, b"user.capability.xyz"));
        bytes[16..35].copy_from_slice(b"security.capability");
        bytes
    };
    for bytes in [&twice, &elsewhere, &kernels, &all[..len - 1].to_vec()] {
        let (taken, names) = said(asked, bytes.len(), true, &[(0, bytes)]);
        assert_eq!(
            (taken, names),
            (Ok(MessageOutcome::Over), None),
            "{bytes:?}"
        );
    }
}

/// A sender that says that blocks are kept of which it was told nothing.
#[test]
fn blocks_are_kept_only_where_the_sender_was_told_of_them() {
    let said = |tell: bool, first: u64, count: usize| {
        let (mut incoming, _) = announced(open());
        let sums = [2, 3, 5].map(|index| (index, [7; 16]));
        incoming.accept_counted(HadContent {
            blocks: BlockSet::new(10),
            bytes: 0,
            unchanged: 0,
            sums: sums.into_iter().collect(),
            digest_part: 0,
            hash: None,
        });
        let mut heard = Vec::new();
        while tell && let Some(message) = incoming.next_control() {
            match message {
                Message::Accept(accept) => assert_eq!(accept.compared, 3),
                Message::Sums(sums) => heard.push((sums.first, sums.sums.len())),
                other => panic!("{other:?}"),
            }
            incoming.on_control_sent();
        }
        assert_eq!(heard, if tell { vec![(2, 2), (5, 1)] } else { vec![] });
        let crcs = vec![9.into(); count];
        let same = Same {
            stream: 1,
            first,
            crcs: &crcs,
        };
        incoming.on_message(0, &Message::Same(same))
    };
    match said(true, 2, 2) {
        Ok(MessageOutcome::Same(blocks)) => {
            let blocks = blocks.iter().map(|(block, crc)| (block.index, *crc));
            assert_eq!(blocks.collect::<Vec<_>>(), [(2, 9), (3, 9)]);
        }
        other => panic!("{other:?}"),
    }
    for (tell, first, count) in [(false, 2, 1), (true, 1, 1), (true, 3, 3), (true, 10, 1)] {
        let taken = said(tell, first, count);
        taken.expect_err(&format!("{tell} {first} {count}"));
    }
    let twice = said(true, u64::MAX - 1, 1);
    twice.expect_err("there is no such block");
}

#[test]
fn what_is_beyond_a_limit_is_refused_before_it_comes() {
    let refused = |open: Open, change: &dyn Fn(&mut IncomingSettings)| {
        let mut settings = settings();
        change(&mut settings);
        let refusal = IncomingStream::new(0, open, settings).unwrap_err();
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
    let flags = OpenFlags::BLAKE3;
    let hashed = refused(Open { flags, ..open() }, &|it| {
        it.features = Features::all()
    });
    assert_eq!(hashed.0, RefusalCode::BLOCKS, "blocks of 10 bytes");
    for flags in [
        OpenFlags::BLAKE3,
        OpenFlags::READ_BACK,
        OpenFlags::BY_WRITE,
        OpenFlags::DELETE,
        OpenFlags::COMPARE,
        OpenFlags::OWNERS,
        OpenFlags::ATTRIBUTES,
    ] {
        let (code, _) = refused(Open { flags, ..open() }, &|_| {});
        assert_eq!(code, RefusalCode::FEATURE);
    }
    let attributed = |attribute_bytes: u32, memory: u64| {
        let open = Open {
            flags: OpenFlags::ATTRIBUTES,
            attribute_bytes,
            ..open()
        };
        refused(open, &|it| {
            it.features = Features::all();
            it.memory_left = memory;
        })
    };
    let most = ATTRIBUTE_BYTES_MAX as u32;
    let (bytes, details) = attributed(most + 1, u64::MAX);
    let wanted = [u64::from(most) + 1, u64::from(most)];
    assert_eq!((bytes, details), (RefusalCode::BYTES, wanted));
    let (memory, [asked, _]) = attributed(most, 1 << 20);
    assert_eq!(memory, RefusalCode::BUSY);
    assert!(asked >= 2 * u64::from(most), "{asked}");
    let flags = OpenFlags::READ_BACK;
    let nothing_to_compare = refused(Open { flags, ..open() }, &|it| {
        it.features = Features::all()
    });
    assert_eq!(nothing_to_compare.0, RefusalCode::FEATURE);
}

/// Directories that nobody names are made, too.
#[test]
fn directories_on_the_way_count_as_entries() {
    let deep = "a/".repeat(200) + "file";
    let other = "a/".repeat(150) + "b/file";
    let names = [deep, other];
    let entries = names.iter().map(|name| Entry {
        name: RelativeName::new(name.as_bytes()).unwrap(),
        kind: EntryKind::File,
        mode: 0o644,
        size: 0,
        modified: Modified::default(),
        sparse: false,
    });
    let manifest = Manifest::new(entries).unwrap();
    let (entries, _) = manifest.encode_part(0, 8192, true);
    // Two files, 200 directories to the one, and one more to the other.
    for (limit, fits) in [(203, true), (202, false), (10, false)] {
        let mut settings = settings();
        settings.limits.entries = limit;
        let open = Open {
            entries: 2,
            manifest_bytes: manifest.encoded_len(),
            bytes: 0,
            blocks: 0,
            ..open()
        };
        let mut incoming = IncomingStream::new(0, open, settings).unwrap();
        let part = ManifestPart {
            stream: 1,
            first: 0,
            entries: &entries,
        };
        let arrival = incoming.on_message(0, &Message::Manifest(part));
        if fits {
            assert_eq!(arrival, Ok(MessageOutcome::Announced));
            continue;
        }
        assert_eq!(arrival, Ok(MessageOutcome::Over), "{limit}");
        match incoming.next_control() {
            Some(Message::Refuse(refuse)) => assert_eq!(refuse.code, RefusalCode::ENTRIES),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_manifest_that_is_not_as_announced_is_refused() {
    let other = Open {
        blocks: 11,
        ..open()
    };
    let (mut incoming, arrival) = announced(other);
    assert_eq!(arrival, Ok(MessageOutcome::Over));
    match incoming.next_control() {
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
        let mut incoming = begun();
        let index = header.index;
        let result = incoming.on_message(0, &Message::Block(header));
        assert_eq!(result, Err(StreamViolation::NoSuchBlock { index }));
        assert!(matches!(incoming.next_control(), Some(Message::Failed(_))));
        incoming.on_control_sent();
        assert!(matches!(
            incoming.outcome(),
            Some(Err(StreamError::Violation(_)))
        ));
    }
}

#[test]
fn a_sender_that_claims_more_than_was_granted_ends_it() {
    let mut incoming = begun();
    let finish = Finish {
        stream: 1,
        lap: 0,
        sent_here: 3,
        sent: 3,
        digest: 0,
        blake3: None,
    };
    let result = incoming.on_message(0, &Message::Finish(finish));
    let (sent, granted) = (3, 2);
    assert_eq!(result, Err(StreamViolation::OverCredit { sent, granted }));
}

#[test]
fn a_damaged_block_is_asked_for_again() {
    let mut incoming = begun();
    let arrival = incoming.on_message(0, &Message::Block(block(3)));
    let Ok(MessageOutcome::Block(taken)) = arrival else {
        panic!("{arrival:?}");
    };
    let twice = incoming.on_message(0, &Message::Block(block(3)));
    assert_eq!(twice, Ok(MessageOutcome::Twice));
    incoming.on_damaged(&taken, 7);
    let mut said = Vec::new();
    while let Some(message) = incoming.next_control() {
        said.push(message.kind());
        incoming.on_control_sent();
    }
    assert!(
        said.contains(&crate::stream::wire::Kind::DAMAGED),
        "{said:?}"
    );
    let again = incoming.on_message(0, &Message::Block(block(3)));
    assert_eq!(again, Ok(MessageOutcome::Block(taken)));
}

/// Blocks from this one on as one message; each has 10 bytes.
fn pack(first: u64, crcs: &[U32]) -> Message<'_> {
    let len = 10 * crcs.len() as u32;
    let stream = 1;
    Message::Pack(Pack {
        stream,
        first,
        crcs,
        len,
    })
}

#[test]
fn of_a_pack_each_block_is_judged_by_itself() {
    let mut incoming = begun();
    let first = incoming.on_message(0, &Message::Block(block(3)));
    let Ok(MessageOutcome::Block(third)) = first else {
        panic!("{first:?}");
    };
    let crcs = [5, 6, 7].map(U32::new);
    let Ok(MessageOutcome::Pack(new)) = incoming.on_message(0, &pack(2, &crcs)) else {
        panic!("two of its blocks are new");
    };
    let known: Vec<_> = new
        .iter()
        .map(|packed| (packed.block.index, packed.crc, packed.at))
        .collect();
    assert_eq!(known, [(2, 5, 0), (4, 7, 20)], "the other one was there");
    incoming.on_written(&third, 5, None);
    let outcomes = [
        (new[0].block, PackedOutcome::Written(5, None)),
        (new[1].block, PackedOutcome::Damaged(9)),
    ];
    incoming.on_pack_done(&outcomes);
    let have: Vec<_> = incoming.have().ranges(0).flatten().collect();
    assert_eq!(have, [2, 3]);
    // Two messages came and were dealt with, whatever they had.
    assert_eq!(incoming.arrived(), (2, 2));
    let mut granted = 0;
    let mut damaged = None;
    while let Some(message) = incoming.next_control() {
        match message {
            Message::Credit(credit) => granted = credit.granted,
            Message::Damaged(it) => damaged = Some((it.index, it.crc)),
            _ => {}
        }
        incoming.on_control_sent();
    }
    assert_eq!((granted, damaged), (4, Some((4, 9))));
    let again = incoming.on_message(0, &pack(2, &crcs));
    assert!(matches!(again, Ok(MessageOutcome::Pack(new)) if new.len() == 1));
    let twice = incoming.on_message(0, &pack(2, &crcs[..2]));
    assert_eq!(twice, Ok(MessageOutcome::Twice));
}

#[test]
fn packs_that_are_not_of_the_stream_end_it() {
    let crcs = [U32::ZERO; 3];
    let lies = |message: Message<'_>| {
        let mut incoming = begun();
        let violation = incoming.on_message(0, &message).expect_err("it is a lie");
        assert!(matches!(incoming.next_control(), Some(Message::Failed(_))));
        violation
    };
    let behind = lies(pack(8, &crcs));
    assert_eq!(behind, StreamViolation::NoSuchBlock { index: 10 });
    for len in [29, 31] {
        let stream = 1;
        let (first, crcs) = (0, &crcs[..]);
        let other = lies(Message::Pack(Pack {
            stream,
            first,
            crcs,
            len,
        }));
        assert!(matches!(other, StreamViolation::Count { .. }), "{other}");
    }
    let no_crc = Open {
        flags: OpenFlags::empty(),
        ..open()
    };
    let (mut incoming, _) = announced(no_crc);
    incoming.accept(BlockSet::new(10), 0, None);
    assert!(incoming.next_control().is_some());
    incoming.on_control_sent();
    let summed = incoming.on_message(0, &pack(0, &[U32::ZERO, U32::new(1)]));
    assert!(matches!(summed, Err(StreamViolation::Count { .. })));
}

fn zeros(first: u64, blocks: u32) -> Message<'static> {
    let stream = 1;
    Message::Zeros(Zeros {
        stream,
        first,
        blocks,
    })
}

/// A stream of one file of 10 blocks, which is said to have holes, and is accepted.
fn begun_sparse() -> IncomingStream {
    let manifest = manifest();
    let entry = manifest.get(0).unwrap();
    let manifest = Manifest::new([Entry {
        sparse: true,
        ..entry
    }]);
    let mut settings = settings();
    settings.features = Features::all();
    settings.limits = Limits::default().resent(100);
    let flags = OpenFlags::CRC32C | OpenFlags::SPARSE;
    let mut incoming = IncomingStream::new(0, Open { flags, ..open() }, settings).unwrap();
    let (entries, _) = manifest.unwrap().encode_part(0, 8192, true);
    let part = ManifestPart {
        stream: 1,
        first: 0,
        entries: &entries,
    };
    let arrival = incoming.on_message(0, &Message::Manifest(part));
    assert_eq!(arrival, Ok(MessageOutcome::Announced));
    incoming.accept(BlockSet::new(10), 0, None);
    assert!(matches!(incoming.next_control(), Some(Message::Accept(_))));
    incoming.on_control_sent();
    incoming
}

#[test]
fn of_zeros_those_are_written_that_are_not_there() {
    let mut incoming = begun_sparse();
    let first = incoming.on_message(0, &Message::Block(block(3)));
    let Ok(MessageOutcome::Block(third)) = first else {
        panic!("{first:?}");
    };
    let Ok(MessageOutcome::Zeros(new)) = incoming.on_message(0, &zeros(2, 3)) else {
        panic!("two of its blocks are new");
    };
    let indices: Vec<_> = new.iter().map(|block| block.index).collect();
    assert_eq!(indices, [2, 4], "the other one was there");
    incoming.on_written(&third, 5, None);
    let done = new
        .iter()
        .map(|block| (*block, PackedOutcome::Written(5, None)));
    incoming.on_pack_done(&done.collect::<Vec<_>>());
    let have: Vec<_> = incoming.have().ranges(0).flatten().collect();
    assert_eq!(have, [2, 3, 4]);
    // As a pack, it is one message against the credit.
    assert_eq!(incoming.arrived(), (2, 1));
    let twice = incoming.on_message(0, &zeros(2, 3));
    assert_eq!(twice, Ok(MessageOutcome::Twice));
}

#[test]
fn zeros_that_are_not_of_the_stream_end_it() {
    let lies = |mut incoming: IncomingStream, message: Message<'_>| {
        let violation = incoming.on_message(0, &message).expect_err("it is a lie");
        assert!(matches!(incoming.next_control(), Some(Message::Failed(_))));
        violation
    };
    let behind = lies(begun_sparse(), zeros(8, 3));
    assert_eq!(behind, StreamViolation::NoSuchBlock { index: 10 });
    // Zeros of a file without holes take room, and nobody sent them.
    let dense = lies(begun(), zeros(0, 1));
    assert!(matches!(dense, StreamViolation::Count { value: 0, .. }));
    // They are on credit as blocks are, however few bytes they have.
    let mut incoming = begun_sparse();
    incoming.on_message(0, &zeros(0, 10)).unwrap();
    for _ in 0..1000 {
        let again = incoming.on_message(0, &zeros(0, 10));
        if again == Ok(MessageOutcome::Over) {
            return;
        }
        assert_eq!(again, Ok(MessageOutcome::Twice));
    }
    panic!("what is said again and again ends the stream");
}

/// A stream of two blocks of 1024 bytes whose blocks are there; the sender says that the content
/// has this hash.
fn hashed(said: Option<[u8; HASH_LEN]>) -> IncomingStream {
    let bytes = [7; 2048];
    let manifest = manifest_of(2048);
    let open = Open {
        flags: OpenFlags::CRC32C | OpenFlags::BLAKE3,
        block_bytes: 1024,
        manifest_bytes: manifest.encoded_len(),
        bytes: 2048,
        blocks: 2,
        ..open()
    };
    let features = Features::all();
    let settings = IncomingSettings {
        features,
        ..settings()
    };
    let mut incoming = IncomingStream::new(0, open, settings).unwrap();
    let (entries, _) = manifest.encode_part(0, 8192, true);
    let part = ManifestPart {
        stream: 1,
        first: 0,
        entries: &entries,
    };
    incoming.on_message(0, &Message::Manifest(part)).unwrap();
    // The sink has the second block.
    let plan = Arc::clone(incoming.plan());
    let (first, second) = (plan.get(0).unwrap(), plan.get(1).unwrap());
    let hash = |block: &Block| BlockHash::new(&plan, block, &bytes[..1024]);
    let (mut have, mut content) = (BlockSet::new(2), ContentHash::new(&plan, 1));
    have.insert(1);
    content.add(&second, hash(&second));
    let mut digest = StreamDigest::new(2);
    digest.add(1, 1024, 5);
    incoming.accept(have, digest.part(), Some(content));
    while incoming.next_control().is_some() {
        incoming.on_control_sent();
    }
    let came = BlockHeader {
        len: 1024,
        ..block(0)
    };
    incoming.on_message(0, &Message::Block(came)).unwrap();
    assert_eq!(incoming.blake3(), None, "not all of it is there");
    incoming.on_written(&first, 5, Some(hash(&first)));
    assert_eq!(incoming.blake3(), Some(*blake3::hash(&bytes).as_bytes()));
    digest.add(0, 1024, 5);
    let finish = Finish {
        stream: 1,
        lap: 0,
        sent_here: 1,
        sent: 1,
        digest: digest.digest(),
        blake3: said,
    };
    incoming.on_message(0, &Message::Finish(finish)).unwrap();
    incoming
}

#[test]
fn content_with_another_hash_is_not_complete() {
    let right = *blake3::hash(&[7; 2048]).as_bytes();
    for (said, compared) in [(Some(right), true), (None, false)] {
        let mut incoming = hashed(said);
        assert!(incoming.is_whole());
        assert_eq!(incoming.is_blake3_compared(), compared);
        incoming.complete(Checks::CRC32C, 0);
        match incoming.next_control() {
            Some(Message::Complete(complete)) => assert_eq!(complete.blake3, Some(right)),
            other => panic!("{other:?}"),
        }
    }
    let mut wrong = hashed(Some([1; HASH_LEN]));
    assert!(!wrong.is_whole());
    match wrong.next_control() {
        Some(Message::Failed(failed)) => assert_eq!(failed.code, RefusalCode::DIGEST),
        other => panic!("{other:?}"),
    }
}
