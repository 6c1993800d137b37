//! Golden bytes, round trips, hostile bytes.

use proptest::prelude::*;

use super::*;

/// A header: the part that all have in common, then 48 bytes by kind.
fn bytes(
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    payload_len: u32,
    body: &[&[u8]],
) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(b"FCS2");
    header[4] = kind;
    header[5] = flags;
    header[8..12].copy_from_slice(&stream);
    header[12..16].copy_from_slice(&payload_len.to_le_bytes());
    let body = body.concat();
    header[16..16 + body.len()].copy_from_slice(&body);
    header
}

#[track_caller]
fn golden(message: Message<'_>, expected: [u8; HEADER_LEN], payload: &[u8]) {
    let mut header = [0xee; HEADER_LEN];
    assert_eq!(message.encode(&mut header), payload);
    assert_eq!(header, expected);
    assert_eq!(Message::parse(&expected, payload), Ok(message));
}

const STREAM: u32 = 0x0403_0201;
const S: [u8; 4] = [1, 2, 3, 4];
const NONE: [u8; 4] = [0; 4];

#[test]
fn handshake_has_these_bytes() {
    let session = *b"session-16-bytes";
    let hello = Hello {
        version: 1,
        oldest: 1,
        rail: 2,
        rails: 3,
        features: Features::BLAKE3 | Features::RESUME,
        session,
        nonce: [7; 32],
    };
    let body: &[&[u8]] = &[
        &[1, 0, 1, 0, 2, 0, 3, 0, 0x12, 0, 0, 0, 0, 0, 0, 0],
        &session,
    ];
    golden(Message::Hello(hello), bytes(1, 0, NONE, 32, body), &[7; 32]);
    let ack = HelloAck {
        version: 1,
        needs_proof: true,
        streams: 0x0a0b_0c0d,
        payload_max: 0x0010_2000,
        features: Features::RESUME | Features::PORTS,
        session,
        ports: [0x1b58, 1, 0, 0, 0, 0xffff],
        nonce: [8; 32],
    };
    let body: &[&[u8]] = &[
        &[
            1, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a, 0x10, 1, 0, 0, 0, 0, 0, 0,
        ],
        &session,
        &[0, 0x20, 0x10, 0],
        &[0x58, 0x1b, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
    ];
    golden(
        Message::HelloAck(ack),
        bytes(17, 1, NONE, 32, body),
        &[8; 32],
    );
    let proof = Proof { mac: [9; 32] };
    golden(Message::Proof(proof), bytes(2, 0, NONE, 32, &[]), &[9; 32]);
}

#[test]
fn opening_has_these_bytes() {
    let open = Open {
        stream: STREAM,
        flags: OpenFlags::CRC32C | OpenFlags::RESTART | OpenFlags::DELETE,
        block_bytes: 0x1000,
        entries: 2,
        manifest_bytes: 0x3a,
        bytes: 0x1_0001,
        blocks: 0x12,
        attribute_bytes: 0,
        identity: StreamIdentity {
            key: [5; 16],
            stamp: [6; 16],
        },
    };
    let body: &[&[u8]] = &[
        &[2, 0, 0, 0, 0, 0, 0, 0, 0x3a, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 1, 0, 0, 0, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0x10, 0, 0, 1],
    ];
    let identity = [[5; 16], [6; 16]].concat();
    golden(Message::Open(open), bytes(3, 0x11, S, 32, body), &identity);
    let part = ManifestPart {
        stream: STREAM,
        first: 0x0102,
        entries: b"entries",
    };
    golden(
        Message::Manifest(part),
        bytes(4, 0, S, 7, &[&[2, 1]]),
        b"entries",
    );
    let accept = Accept {
        stream: STREAM,
        granted: 0x11,
        have_blocks: 0x22,
        have_digest: 0x0403_0201,
        slots: 0x44,
        unchanged: 0x55,
        compared: 0x66,
    };
    let body: &[&[u8]] = &[
        &[0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0],
        &[1, 2, 3, 4, 0x44, 0, 0, 0, 0x55, 0, 0, 0, 0, 0, 0, 0, 0x66],
    ];
    golden(Message::Accept(accept), bytes(18, 0, S, 0, body), b"");
}

#[test]
fn blocks_have_these_bytes() {
    let block = BlockHeader {
        stream: STREAM,
        index: 0x0102,
        entry: 0x0304,
        offset: 0x0506,
        len: 3,
        crc: 0x0403_0201,
    };
    let body: &[&[u8]] = &[
        &[2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0],
        &[6, 5, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
    ];
    let expected = bytes(5, 0, S, 3, body);
    let mut header = [0xee; HEADER_LEN];
    assert_eq!(Message::Block(block).encode(&mut header), b"");
    assert_eq!(header, expected);
    assert_eq!(Message::parse(&expected, b"abc"), Ok(Message::Block(block)));
    assert_eq!(BlockHeader::parse(&expected, 3), Ok(block));
    let placed = Placed {
        block,
        slot: 0x0708,
    };
    let body = &[body[0], body[1], &[3, 0, 0, 0, 8, 7, 0, 0]];
    golden(Message::Placed(placed), bytes(8, 0, S, 0, body), b"");
}

#[test]
fn packs_have_these_bytes() {
    let crcs = [0x0403_0201, 0x0807_0605].map(U32::new);
    let pack = Pack {
        stream: STREAM,
        first: 0x0102,
        crcs: &crcs,
        len: 5,
    };
    let body: &[&[u8]] = &[&[2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]];
    let expected = bytes(11, 0, S, 13, body);
    let mut header = [0xee; HEADER_LEN];
    assert_eq!(Message::Pack(pack).encode(&mut header), b"");
    assert_eq!(header, expected);
    let payload = b"\x01\x02\x03\x04\x05\x06\x07\x08abcde";
    let parsed = Message::parse(&expected, payload);
    assert_eq!(parsed, Ok(Message::Pack(pack)));
    let mut crcs_only = [0; 8];
    Pack::put_crcs(&mut crcs_only, crcs.iter().map(|crc| crc.get()));
    assert_eq!(payload[..8], crcs_only);
    // As many as there may be, and one more; a byte for each block at least; and no end of numbers.
    let refused = |first: u64, blocks: usize, payload: usize| {
        let mut header = expected;
        header[12..16].copy_from_slice(&(payload as u32).to_le_bytes());
        header[16..24].copy_from_slice(&first.to_le_bytes());
        header[24..28].copy_from_slice(&(blocks as u32).to_le_bytes());
        Message::parse(&header, &vec![0; payload]).err()
    };
    let most = PACK_BLOCKS_MAX;
    assert_eq!(refused(0, most, 5 * most), None);
    assert_eq!(
        refused(0, most + 1, 5 * most + 5),
        Some(field("blocks", 257_u16))
    );
    assert_eq!(refused(0, 1, 100), Some(field("blocks", 1_u8)));
    assert_eq!(
        refused(u64::MAX - 1, 2, 10),
        Some(field("first", u64::MAX - 1))
    );
    assert!(matches!(
        refused(0, 2, 9),
        Some(WireError::PayloadLen { .. })
    ));
}

#[test]
fn zeros_have_these_bytes() {
    let zeros = Zeros {
        stream: STREAM,
        first: 0x0102,
        blocks: 256,
    };
    let body: &[&[u8]] = &[&[2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]];
    let expected = bytes(12, 0, S, 0, body);
    golden(Message::Zeros(zeros), expected, b"");
    let refused = |first: u64, blocks: u32| {
        let mut header = expected;
        header[16..24].copy_from_slice(&first.to_le_bytes());
        header[24..28].copy_from_slice(&blocks.to_le_bytes());
        Message::parse(&header, b"").err()
    };
    assert_eq!(refused(u64::MAX - 1, 1), None);
    assert_eq!(refused(0, 0), Some(field("blocks", 0_u8)));
    assert_eq!(refused(0, 257), Some(field("blocks", 257_u16)));
    let end = u64::MAX - 1;
    assert_eq!(refused(end, 2), Some(field("first", end)));
}

#[test]
fn what_a_sender_ends_with_has_these_bytes() {
    let finish = Finish {
        stream: STREAM,
        lap: 5,
        sent_here: 6,
        sent: 7,
        digest: 0x0403_0201,
        blake3: Some([3; 32]),
    };
    let body: &[&[u8]] = &[&[
        6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 2, 3, 4,
    ]];
    golden(Message::Finish(finish), bytes(6, 0, S, 32, body), &[3; 32]);
    let without = Finish {
        blake3: None,
        ..finish
    };
    golden(Message::Finish(without), bytes(6, 0, S, 0, body), b"");
    let lost = RailLost {
        stream: STREAM,
        rail: 9,
        sent_there: 0x0a0b,
    };
    golden(
        Message::RailLost(lost),
        bytes(7, 0, S, 0, &[&[0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 9]]),
        b"",
    );
    let cancel = Cancel {
        stream: STREAM,
        code: RefusalCode::CANCELLED,
        reason: Reason::new("enough"),
    };
    let body: &[&[u8]] = &[&[0; 16], &[21]];
    golden(Message::Cancel(cancel), bytes(9, 0, S, 6, body), b"enough");
    let pause = |on| Message::Pause(Pause { stream: STREAM, on });
    golden(pause(true), bytes(10, 1, S, 0, &[]), b"");
    golden(pause(false), bytes(10, 0, S, 0, &[]), b"");
}

#[test]
fn what_a_receiver_reports_has_these_bytes() {
    let mut builder = RangesBuilder::default();
    builder.push(1..3);
    builder.push(5..6);
    let list = RangeList {
        stream: STREAM,
        lap: 0,
        more: true,
        ranges: builder.ranges(),
    };
    let mut payload = [0; 32];
    (payload[0], payload[8], payload[16], payload[24]) = (1, 2, 5, 1);
    golden(Message::Have(list), bytes(19, 1, S, 32, &[]), &payload);
    let missing = RangeList { lap: 3, ..list };
    let body: &[&[u8]] = &[&[3]];
    golden(
        Message::Missing(missing),
        bytes(24, 1, S, 32, body),
        &payload,
    );
    assert_eq!(list.ranges.iter().collect::<Vec<_>>(), [1..3, 5..6]);
    let stream = STREAM;
    let body: &[&[u8]] = &[&[0x22, 0, 0, 0, 0, 0, 0, 0]];
    golden(
        Message::Credit(Credit {
            stream,
            granted: 0x22,
        }),
        bytes(21, 0, S, 0, body),
        b"",
    );
    let written = Written {
        stream,
        blocks: 0x22,
        bytes: 0x33,
    };
    golden(
        Message::Written(written),
        bytes(22, 0, S, 0, &[body[0], &[0x33]]),
        b"",
    );
    let damaged = Damaged {
        stream,
        index: 0x22,
        crc: 0x0403_0201,
    };
    let with_crc: &[&[u8]] = &[body[0], &[0; 8], &[1, 2, 3, 4]];
    golden(Message::Damaged(damaged), bytes(23, 0, S, 0, with_crc), b"");
    let freed = Freed {
        stream,
        slot: 0x0403_0201,
    };
    golden(
        Message::Freed(freed),
        bytes(28, 0, S, 0, &[&[0; 16], &[1, 2, 3, 4]]),
        b"",
    );
}

#[test]
fn owners_have_these_bytes() {
    let owner = OwnerWire {
        user: 0x0403_0201.into(),
        group: 0x0807_0605.into(),
    };
    let owners = Owners {
        stream: STREAM,
        first: 0x0102,
        owners: &[owner],
    };
    golden(
        Message::Owners(owners),
        bytes(14, 0, S, 8, &[&[2, 1]]),
        &[1, 2, 3, 4, 5, 6, 7, 8],
    );
    for len in [0, 7, 9, 4104] {
        let header = bytes(14, 0, S, len as u32, &[]);
        Message::parse(&header, &vec![0; len]).expect_err("no whole number of owners");
    }
}

#[test]
fn attributes_have_these_bytes() {
    let part = AttributePart {
        stream: STREAM,
        first: 0x0102,
        bytes: b"part",
    };
    golden(
        Message::Attributes(part),
        bytes(15, 0, S, 4, &[&[2, 1]]),
        b"part",
    );
    Message::parse(&bytes(15, 0, S, 0, &[]), &[]).expect_err("nothing");
    let open = Open {
        stream: STREAM,
        flags: OpenFlags::CRC32C | OpenFlags::ATTRIBUTES,
        block_bytes: 0x1000,
        entries: 1,
        manifest_bytes: 0x3a,
        bytes: 1,
        blocks: 1,
        attribute_bytes: 0x0403_0201,
        identity: StreamIdentity::default(),
    };
    let numbers = [1_u64, 0x3a, 1, 1].map(u64::to_le_bytes).concat();
    let body = |more: u8| [&numbers[..], &[0, 0x10, 0, 0, more, 1, 2, 3, 4]].concat();
    golden(
        Message::Open(open),
        bytes(3, 1, S, 32, &[&body(8)]),
        &[0; 32],
    );
    let unasked = bytes(3, 1, S, 32, &[&body(0)]);
    Message::parse(&unasked, &[0; 32]).expect_err("they are not said");
}

#[test]
fn what_is_compared_has_these_bytes() {
    let sums = Sums {
        stream: STREAM,
        first: 0x0102,
        sums: &[[5; 16], [6; 16]],
    };
    golden(
        Message::Sums(sums),
        bytes(29, 0, S, 32, &[&[2, 1]]),
        &[[5; 16], [6; 16]].concat(),
    );
    let same = Same {
        stream: STREAM,
        first: 0x0102,
        crcs: &[U32::new(0x0403_0201), U32::new(7)],
    };
    golden(
        Message::Same(same),
        bytes(13, 0, S, 8, &[&[2, 1, 0, 0, 0, 0, 0, 0, 2]]),
        &[1, 2, 3, 4, 7, 0, 0, 0],
    );
    let mut header = bytes(13, 0, S, 8, &[&[2, 1, 0, 0, 0, 0, 0, 0, 2]]);
    for (at, value) in [(24, 0), (24, 1), (24, 3), (25, 1)] {
        let before = std::mem::replace(&mut header[at], value);
        Message::parse(&header, &[0; 8]).expect_err("not two blocks");
        header[at] = before;
    }
    header[16..24].fill(0xff);
    Message::parse(&header, &[0; 8]).expect_err("beyond the last number");
    for len in [0, 15, 17, 4112] {
        let header = bytes(29, 0, S, len as u32, &[]);
        Message::parse(&header, &vec![0; len]).expect_err("no whole number of sums");
    }
}

#[test]
fn how_a_receiver_ends_has_these_bytes() {
    let complete = Complete {
        stream: STREAM,
        checks: Checks::CRC32C | Checks::BLAKE3,
        digest: 0x0403_0201,
        blocks: 0x11,
        bytes: 0x22,
        deleted: 0x33,
        blake3: Some([4; 32]),
    };
    let body: &[&[u8]] = &[&[
        0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0x33,
    ]];
    golden(
        Message::Complete(complete),
        bytes(25, 3, S, 32, body),
        &[4; 32],
    );
    let refuse = Refuse {
        stream: 0,
        code: RefusalCode::VERSION,
        details: [0x0102, 0x0304],
        reason: Reason::new("no"),
    };
    let body: &[&[u8]] = &[&[2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 1, 0]];
    golden(Message::Refuse(refuse), bytes(20, 0, NONE, 2, body), b"no");
    let failed = Failed {
        stream: STREAM,
        code: RefusalCode::SPACE,
        block: Some(0x0102),
        reason: Reason::new(""),
    };
    let body: &[&[u8]] = &[&[2, 1, 0, 0, 0, 0, 0, 0], &[0; 8], &[12]];
    golden(Message::Failed(failed), bytes(26, 0, S, 0, body), b"");
    let body: &[&[u8]] = &[&[0xff; 8], &[0; 8], &[12]];
    let failed = Failed {
        block: None,
        ..failed
    };
    golden(Message::Failed(failed), bytes(26, 0, S, 0, body), b"");
    let window = Window {
        stream: STREAM,
        first_slot: 1,
        slots: 8,
        stride: 0x1000,
        descriptor: &[5; WINDOW_DESCRIPTOR_LEN],
    };
    let body: &[&[u8]] = &[&[0, 0x10, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0]];
    golden(Message::Window(window), bytes(27, 0, S, 64, body), &[5; 64]);
}

/// One message of each kind.
fn samples() -> Vec<([u8; HEADER_LEN], Vec<u8>)> {
    let stream = STREAM;
    let block = BlockHeader {
        stream,
        index: 1,
        entry: 0,
        offset: 4096,
        len: 16,
        crc: 5,
    };
    let mut builder = RangesBuilder::default();
    builder.push(1..3);
    let list = RangeList {
        stream,
        lap: 0,
        more: false,
        ranges: builder.ranges(),
    };
    let code = RefusalCode::SINK;
    let reason = Reason::new("a reason");
    let messages = [
        Message::Hello(Hello {
            version: 1,
            oldest: 1,
            rail: 0,
            rails: 1,
            features: Features::empty(),
            session: [1; 16],
            nonce: [2; 32],
        }),
        Message::HelloAck(HelloAck {
            version: 1,
            needs_proof: false,
            streams: 1,
            payload_max: PAYLOAD_ROOM_MIN,
            features: Features::empty(),
            session: [1; 16],
            ports: [0; PORTS_MAX],
            nonce: [2; 32],
        }),
        Message::Proof(Proof { mac: [3; 32] }),
        Message::Open(Open {
            stream,
            flags: OpenFlags::CRC32C,
            block_bytes: 4096,
            entries: 1,
            manifest_bytes: 30,
            bytes: 5000,
            blocks: 2,
            attribute_bytes: 0,
            identity: StreamIdentity::default(),
        }),
        Message::Manifest(ManifestPart {
            stream,
            first: 0,
            entries: b"some entries",
        }),
        Message::Block(block),
        Message::Same(Same {
            stream,
            first: 5,
            crcs: &[U32::ZERO],
        }),
        Message::Owners(Owners {
            stream,
            first: 6,
            owners: &[OwnerWire {
                user: U32::ZERO,
                group: U32::ZERO,
            }],
        }),
        Message::Attributes(AttributePart {
            stream,
            first: 6,
            bytes: b"some",
        }),
        Message::Sums(Sums {
            stream,
            first: 6,
            sums: &[[7; 16]],
        }),
        Message::Placed(Placed { block, slot: 3 }),
        Message::Finish(Finish {
            stream,
            lap: 0,
            sent_here: 1,
            sent: 2,
            digest: 3,
            blake3: None,
        }),
        Message::RailLost(RailLost {
            stream,
            rail: 1,
            sent_there: 2,
        }),
        Message::Cancel(Cancel {
            stream,
            code,
            reason,
        }),
        Message::Pause(Pause { stream, on: true }),
        Message::Accept(Accept {
            stream,
            granted: 4,
            have_blocks: 2,
            have_digest: 7,
            slots: 0,
            unchanged: 0,
            compared: 0,
        }),
        Message::Have(list),
        Message::Missing(list),
        Message::Refuse(Refuse {
            stream,
            code,
            details: [1, 2],
            reason,
        }),
        Message::Credit(Credit { stream, granted: 9 }),
        Message::Written(Written {
            stream,
            blocks: 1,
            bytes: 2,
        }),
        Message::Damaged(Damaged {
            stream,
            index: 1,
            crc: 2,
        }),
        Message::Complete(Complete {
            stream,
            checks: Checks::SYNC,
            digest: 3,
            blocks: 4,
            bytes: 5,
            deleted: 6,
            blake3: None,
        }),
        Message::Failed(Failed {
            stream,
            code,
            block: None,
            reason,
        }),
        Message::Window(Window {
            stream,
            first_slot: 0,
            slots: 4,
            stride: 4096,
            descriptor: &[1; WINDOW_DESCRIPTOR_LEN],
        }),
        Message::Freed(Freed { stream, slot: 2 }),
        Message::Pack(Pack {
            stream,
            first: 1,
            crcs: &[U32::ZERO; 3],
            len: 20,
        }),
        Message::Zeros(Zeros {
            stream,
            first: 1,
            blocks: 2,
        }),
    ];
    messages
        .iter()
        .map(|message| {
            let mut header = [0; HEADER_LEN];
            let payload = match message {
                Message::Block(block) => {
                    message.encode(&mut header);
                    vec![0; block.len as usize]
                }
                Message::Pack(pack) => {
                    message.encode(&mut header);
                    vec![0; Pack::payload_len(pack.crcs.len(), pack.len as usize)]
                }
                _ => message.encode(&mut header).to_vec(),
            };
            assert_eq!(Kind::peek(&header), Some(message.kind()));
            (header, payload)
        })
        .collect()
}

/// Each byte of a header means something, or must be 0: no two headers mean the same.
#[test]
fn no_bit_of_a_header_is_ignored() {
    for (header, payload) in samples() {
        let message = Message::parse(&header, &payload).unwrap();
        for bit in 0..HEADER_LEN * 8 {
            let mut other = header;
            other[bit / 8] ^= 1 << (bit % 8);
            let parsed = Message::parse(&other, &payload);
            assert_ne!(parsed, Ok(message), "bit {bit} of kind {}", header[4]);
            exercise(&other, &payload);
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for (header, payload) in samples() {
        for len in 0..HEADER_LEN {
            let result = Message::parse(&header[..len], &payload);
            assert_eq!(result, Err(WireError::HeaderLen { len }));
        }
        for len in [0, 1, 31, 33, 63, 65, 513, 5000] {
            if len != payload.len() {
                let other = vec![0; len];
                let result = Message::parse(&header, &other);
                assert!(
                    matches!(result, Err(WireError::PayloadLen { .. })),
                    "{result:?}"
                );
            }
        }
    }
}

#[test]
fn fields_have_their_limits() {
    let [mut hello, mut open] = [0, 3].map(|at| samples().swap_remove(at));
    let refused = |header: &[u8], payload: &[u8]| match Message::parse(header, payload) {
        Err(WireError::Field { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    hello.0[18] = 0;
    assert_eq!(refused(&hello.0, &hello.1), "oldest");
    hello.0[18] = 2;
    assert_eq!(refused(&hello.0, &hello.1), "oldest");
    open.0[48] = 0;
    open.0[49] = 0;
    assert_eq!(refused(&open.0, &open.1), "block_bytes");
    let mut open = samples().swap_remove(3);
    open.0[40] = 1;
    assert_eq!(refused(&open.0, &open.1), "blocks");
    let mut block = samples().swap_remove(5);
    block.0[32..40].fill(0xff);
    assert_eq!(refused(&block.0, &block.1), "offset");
    block.0[8..12].fill(0);
    assert_eq!(refused(&block.0, &block.1), "stream");
}

/// A speaker of a later version is told so by its version, not by a byte that means something
/// there.
#[test]
fn a_later_hello_is_understood_so_far() {
    let (mut header, nonce) = samples().swap_remove(0);
    (header[5], header[16], header[18], header[60]) = (0x80, 9, 8, 1);
    let Ok(Message::Hello(hello)) = Message::parse(&header, &nonce) else {
        panic!("no hello");
    };
    assert_eq!((hello.version, hello.oldest), (9, 8));
    header[16] = 1;
    header[18] = 1;
    assert_eq!(
        Message::parse(&header, &nonce),
        Err(WireError::Reserved { kind: 1 })
    );
}

#[test]
fn ranges_are_in_order_and_apart() {
    let range = |first: u64, count: u64| [first.to_le_bytes(), count.to_le_bytes()].concat();
    let parse = |ranges: &[(u64, u64)]| {
        let bytes: Vec<u8> = ranges.iter().flat_map(|(a, b)| range(*a, *b)).collect();
        Ranges::parse(19, &bytes).map(|ranges| ranges.iter().collect::<Vec<_>>())
    };
    assert_eq!(parse(&[(0, 1), (2, 1)]), Ok(vec![0..1, 2..3]));
    assert!(parse(&[(u64::MAX - 1, 1)]).is_ok_and(|ranges| ranges[0].end == u64::MAX));
    for (ranges, index) in [
        (&[(0, 0)][..], 0),
        (&[(0, 1), (1, 1)], 1),
        (&[(5, 1), (2, 1)], 1),
        (&[(0, 4), (3, 4)], 1),
        (&[(1, u64::MAX)], 0),
    ] {
        assert_eq!(parse(ranges), Err(WireError::Ranges { index }));
    }
    assert_eq!(parse(&[]), Ok(vec![]));
    let most: Vec<(u64, u64)> = (0..RangesBuilder::ROOM as u64)
        .map(|n| (2 * n, 1))
        .collect();
    assert!(parse(&most).is_ok());
    let more: Vec<(u64, u64)> = (0..=RangesBuilder::ROOM as u64)
        .map(|n| (2 * n, 1))
        .collect();
    assert!(parse(&more).is_err());
}

#[test]
fn reasons_are_cut_and_harmless() {
    let long = "ä".repeat(300);
    let reason = Reason::new(&long);
    assert_eq!(reason.as_bytes().len(), REASON_LEN_MAX);
    assert_eq!(reason.to_string(), "ä".repeat(256));
    let reason = Reason::parse(26, b"a\x1b[2J\n\xffz").unwrap();
    assert_eq!(reason.to_string(), "a [2J \u{fffd}z");
    assert!(Reason::parse(26, &[b'x'; 513]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes behind the magic number: refused, or written again as they were.
    #[test]
    fn hostile_bytes_are_refused_or_canonical(
        sample in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((4..HEADER_LEN, any::<u8>()), 0..12),
        payload in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
    ) {
        let samples = samples();
        let (mut header, mut bytes) = samples[sample.index(samples.len())].clone();
        for (at, value) in changes {
            header[at] = value;
        }
        if let Some(payload) = payload {
            bytes = payload;
        }
        exercise(&header, &bytes);
        header[12..16].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        exercise(&header, &bytes);
    }
}
