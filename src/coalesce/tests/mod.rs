//! The formats: golden bytes, a naive parser as oracle, mutated buffers.

use proptest::prelude::*;

use super::*;
use crate::buffer::SharedBufferManager;

const FORMATS: [Format; 2] = [Format::Compact, Format::Netio3];

type Owned = (u64, u8, Vec<u8>);

fn pack(format: Format, messages: &[Owned]) -> Vec<u8> {
    let room = 16 + messages.iter().map(|m| m.2.len() + 13).sum::<usize>();
    let mut packer = Packer::new(format, vec![0xaa; room]);
    for (tag, status, bytes) in messages {
        packer.push(*tag, *status, bytes).expect("there is room");
    }
    let (mut buffer, len) = packer.finish();
    buffer.truncate(len);
    buffer
}

fn parse(format: Format, bytes: &[u8]) -> (Vec<Owned>, Option<FormatError>) {
    let (mut messages, mut error) = (Vec::new(), None);
    for item in SmallMessages::new(format, bytes) {
        assert_eq!(error, None, "something came behind an error");
        match item {
            Ok(m) => messages.push((m.tag, m.status, m.bytes.to_vec())),
            Err(e) => error = Some(e),
        }
    }
    (messages, error)
}

/// The formats read again as docs/wire.md says it, byte by byte, with no thought of speed. `None`:
/// malformed.
fn oracle(format: Format, bytes: &[u8]) -> (Vec<Owned>, bool) {
    let mut rest = bytes.iter().copied();
    let mut take = |n: usize| -> Option<u64> {
        (0..n).try_fold(0, |sum, i| Some(sum | u64::from(rest.next()?) << (8 * i)))
    };
    let mut messages: Vec<Owned> = Vec::new();
    let mut end = bytes.len();
    let mut count = None;
    let mut at = 0;
    if format == Format::Compact {
        let header = [take(4), take(1), take(3), take(4), take(4)];
        let [Some(magic), Some(1), Some(0), Some(n), Some(len)] = header else {
            return (messages, false);
        };
        if magic != 0x6f43_6246 || len < 16 {
            return (messages, false);
        }
        (at, count) = (16, Some((n, len as usize)));
        end = end.min(len as usize);
    }
    while at < end {
        let mut one = || -> Option<(Owned, usize)> {
            let word = take(4)?;
            let before = messages.last().map(|m| m.0);
            let (status, tag, len, head) = match format {
                Format::Compact if word >> 23 & 1 == 1 => {
                    (word >> 24, take(8)?, word & 0x7f_ffff, 12)
                }
                Format::Compact => (word >> 24, before.unwrap_or(0), word & 0x7f_ffff, 4),
                Format::Netio3 => {
                    let (s, t) = (word >> 30 & 1, word >> 31);
                    let status = if s == 1 { take(1)? } else { 0 };
                    let tag = if t == 1 { take(8)? } else { before? };
                    (
                        status,
                        tag,
                        word & 0x3fff_ffff,
                        4 + s as usize + 8 * t as usize,
                    )
                }
            };
            let len = len as usize;
            let next = at + head + len;
            if next > end {
                return None;
            }
            let mut body = Vec::new();
            for _ in 0..len {
                body.push(take(1)? as u8);
            }
            Some(((tag, status as u8, body), next))
        };
        let Some((message, next)) = one() else {
            return (messages, false);
        };
        messages.push(message);
        at = next;
    }
    let whole = count.is_none_or(|(n, len)| len == bytes.len() && n == messages.len() as u64);
    (messages, whole)
}

// ---- golden bytes -------------------------------------------------------------------------------

#[test]
fn the_compact_format_byte_by_byte() {
    let bytes = pack(
        Format::Compact,
        &[
            (0, 0, b"ab".to_vec()),
            (0x0102_0304_0506_0708, 0x81, b"cde".to_vec()),
            (0x0102_0304_0506_0708, 0, Vec::new()),
            (0, 2, b"f".to_vec()),
        ],
    );
    #[rustfmt::skip]
    let golden = [
        0x46, 0x62, 0x43, 0x6f, 1, 0, 0, 0,     // magic, version, reserved
        4, 0, 0, 0, 54, 0, 0, 0,                // count, length
        2, 0, 0, 0, b'a', b'b',                 // tag 0 is the one before the first
        3, 0, 0x80, 0x81, 8, 7, 6, 5, 4, 3, 2, 1, b'c', b'd', b'e',
        0, 0, 0, 0,                             // same tag, no byte
        1, 0, 0x80, 2, 0, 0, 0, 0, 0, 0, 0, 0, b'f',
    ];
    assert_eq!(bytes, golden);
}

#[test]
fn the_netio3_format_byte_by_byte() {
    let bytes = pack(
        Format::Netio3,
        &[
            (0, 0, b"ab".to_vec()),
            (0x0102_0304_0506_0708, 0x81, b"cde".to_vec()),
            (0x0102_0304_0506_0708, 0, Vec::new()),
            (0x0102_0304_0506_0708, 2, b"f".to_vec()),
        ],
    );
    #[rustfmt::skip]
    let golden = [
        // The first has a tag, 0 too.
        2, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, b'a', b'b',
        // Status, then tag.
        3, 0, 0, 0xc0, 0x81, 8, 7, 6, 5, 4, 3, 2, 1, b'c', b'd', b'e',
        // Neither, no byte.
        0, 0, 0, 0,
        // Status only.
        1, 0, 0, 0x40, 2, b'f',
    ];
    assert_eq!(bytes, golden);
}

// ---- packing ------------------------------------------------------------------------------------

#[test]
fn a_message_that_does_not_fit_changes_nothing() {
    for format in FORMATS {
        let head = format.buffer_header();
        let mut packer = Packer::new(format, vec![0; head + 12 + 10 + 4 + 3]);
        packer.push(1, 0, &[1; 10]).unwrap();
        let error = packer.push(1, 0, &[2; 4]).unwrap_err();
        assert_eq!(error, PackError::Full { need: 8, free: 7 });
        assert!(!packer.fits(2, 0, 0), "another tag takes 8 bytes more");
        packer.push(1, 0, &[3; 3]).unwrap();
        assert_eq!((packer.free(), packer.count()), (0, 2));
        let too_long = packer.push(1, 0, &[4; 18]).unwrap_err();
        assert_eq!(too_long, PackError::TooLong { len: 18, max: 17 });
        let (buffer, len) = packer.finish();
        let (messages, error) = parse(format, &buffer[..len]);
        assert_eq!(error, None);
        assert_eq!(messages, [(1, 0, vec![1; 10]), (1, 0, vec![3; 3])]);
    }
}

#[test]
fn a_length_that_the_format_cannot_express_is_refused() {
    for (format, bytes) in [(Format::Compact, 1 << 23), (Format::Netio3, 1 << 23)] {
        let mut packer = Packer::new(format, vec![0; (1 << 23) + 64]);
        let message = vec![0; bytes];
        match format {
            Format::Compact => assert_eq!(
                packer.push(0, 0, &message),
                Err(PackError::TooLong {
                    len: 1 << 23,
                    max: (1 << 23) - 1
                })
            ),
            Format::Netio3 => packer.push(0, 0, &message).unwrap(),
        }
    }
    assert_eq!(Format::Compact.max_message(), 8_388_607);
    assert_eq!(Format::Netio3.max_message(), 1_073_741_823);
}

#[test]
fn a_buffer_too_short_for_the_header_takes_nothing() {
    let mut packer = Packer::new(Format::Compact, vec![0; 15]);
    assert_eq!(
        packer.push(0, 0, b""),
        Err(PackError::TooLong { len: 0, max: 0 })
    );
    assert_eq!(packer.finish().1, 0);
    let packer = Packer::new(Format::Compact, vec![0; 16]);
    let (buffer, len) = packer.finish();
    assert_eq!(parse(Format::Compact, &buffer[..len]), (vec![], None));
}

#[test]
fn a_limit_is_kept() {
    let mut packer = Packer::with_limit(Format::Compact, vec![0; 4096], 64);
    while packer.push(9, 0, &[7; 8]).is_ok() {}
    assert_eq!(packer.count(), 3);
    assert!(packer.finish().1 <= 64);
}

#[test]
fn segments_and_places_make_the_same_bytes_as_a_push() {
    for format in FORMATS {
        let whole = pack(
            format,
            &[(3, 1, b"hello".to_vec()), (3, 0, b"wor".to_vec())],
        );
        let mut packer = Packer::new(format, vec![0; 64]);
        packer.push_segments(3, 1, &[b"he", b"", b"llo"]).unwrap();
        // Written in place, and shorter than it was asked for.
        let placed = packer.place(3, 0, 8).unwrap();
        packer.bytes_mut(&placed)[..3].copy_from_slice(b"wor");
        packer.commit(&placed, 3);
        let (buffer, len) = packer.finish();
        assert_eq!(buffer[..len], whole);
    }
}

#[test]
fn owned_messages_are_parts_of_the_one_buffer() {
    let pool = SharedBufferManager::allocate(1, 256).unwrap();
    for format in FORMATS {
        let mut packer = Packer::new(format, pool.try_acquire().unwrap());
        packer.push(1, 2, b"first").unwrap();
        packer.push(1, 0, b"second").unwrap();
        let buffer = packer.freeze();
        let inside = buffer.as_ptr_range();
        let owned: Vec<_> = OwnedSmallMessages::new(format, buffer)
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(
            (&owned[0].bytes[..], &owned[1].bytes[..]),
            (&b"first"[..], &b"second"[..])
        );
        assert_eq!((owned[0].tag, owned[0].status, owned[1].status), (1, 2, 0));
        assert!(
            owned.iter().all(|m| inside.contains(&m.bytes.as_ptr())),
            "no copy"
        );
        assert_eq!(pool.free_count(), 0, "each keeps the buffer");
        drop(owned);
        assert_eq!(pool.free_count(), 1);
    }
}

// ---- malformed buffers --------------------------------------------------------------------------

/// Two messages, and then a fault: both come out, then the error, then nothing.
#[track_caller]
fn two_then(format: Format, bytes: &[u8], offset: usize, kind: FormatErrorKind) {
    let (messages, error) = parse(format, bytes);
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(error, Some(FormatError { offset, kind }));
    exercise(bytes);
}

fn three(format: Format) -> Vec<u8> {
    let message = |byte| (5, 0, vec![byte; 4]);
    pack(format, &[message(1), message(2), message(3)])
}

#[test]
fn a_cut_buffer_gives_what_is_in_front_of_the_cut_and_one_error() {
    for format in FORMATS {
        let bytes = three(format);
        let third = format.buffer_header() + 16 + 8;
        for cut in third + 1..bytes.len() {
            let have = cut - third;
            let need = if have < 4 { 4 } else { 8 };
            let kind = FormatErrorKind::Truncated { need, have };
            two_then(format, &bytes[..cut], third, kind);
        }
    }
    // Cut between two messages only a length shows it.
    let bytes = three(Format::Compact);
    let kind = FormatErrorKind::Length {
        said: bytes.len(),
        have: bytes.len() - 8,
    };
    two_then(Format::Compact, &bytes[..bytes.len() - 8], 12, kind);
    assert_eq!(parse(Format::Netio3, &three(Format::Netio3)[..24]).1, None);
}

#[test]
fn a_length_that_reaches_beyond_the_end_is_an_error() {
    for format in FORMATS {
        let mut bytes = three(format);
        let third = format.buffer_header() + 16 + 8;
        bytes[third] = 5;
        two_then(
            format,
            &bytes,
            third,
            FormatErrorKind::Truncated { need: 9, have: 8 },
        );
        bytes[third..third + 3].copy_from_slice(&[0xff, 0xff, 0x7f]);
        let need = 4 + (1 << 23) - 1;
        two_then(
            format,
            &bytes,
            third,
            FormatErrorKind::Truncated { need, have: 8 },
        );
    }
}

#[test]
fn bytes_behind_the_end_and_a_wrong_count_are_errors() {
    let mut bytes = three(Format::Compact);
    bytes.push(0);
    let (messages, error) = parse(Format::Compact, &bytes);
    assert_eq!(messages.len(), 3);
    let (said, have) = (bytes.len() - 1, bytes.len());
    assert_eq!(error, Some(FormatErrorKind::Length { said, have }.at(12)));
    bytes.pop();
    bytes[8] = 4;
    let (messages, error) = parse(Format::Compact, &bytes);
    assert_eq!(messages.len(), 3);
    assert_eq!(
        error,
        Some(FormatErrorKind::Count { said: 4, have: 3 }.at(8))
    );
}

#[test]
fn a_buffer_of_something_else_is_recognised_where_there_is_a_magic_number() {
    let (messages, error) = parse(Format::Compact, &three(Format::Netio3));
    assert_eq!(messages, []);
    let found = [4, 0, 0, 0x80];
    assert_eq!(error, Some(FormatErrorKind::NotCompact { found }.at(0)));
    let mut bytes = three(Format::Compact);
    bytes[4] = 2;
    let version = FormatErrorKind::Version { found: 2 }.at(4);
    assert_eq!(parse(Format::Compact, &bytes), (vec![], Some(version)));
    bytes[4] = 1;
    bytes[7] = 1;
    let reserved = FormatErrorKind::Reserved.at(5);
    assert_eq!(parse(Format::Compact, &bytes), (vec![], Some(reserved)));
    let short = FormatErrorKind::Truncated { need: 16, have: 3 }.at(0);
    assert_eq!(parse(Format::Compact, &bytes[..3]), (vec![], Some(short)));
    // A length within the header leaves no room for messages.
    let mut bytes = three(Format::Compact);
    bytes[12] = 15;
    let length = FormatErrorKind::Length {
        said: 15,
        have: bytes.len(),
    };
    assert_eq!(
        parse(Format::Compact, &bytes),
        (vec![], Some(length.at(12)))
    );
}

#[test]
fn the_first_netio3_message_must_have_a_tag() {
    let bytes = [1, 0, 0, 0, b'x'];
    assert_eq!(
        parse(Format::Netio3, &bytes),
        (vec![], Some(FormatErrorKind::NoTag.at(0)))
    );
}

#[test]
fn an_empty_netio3_buffer_has_no_messages_and_no_error() {
    assert_eq!(parse(Format::Netio3, &[]), (vec![], None));
}

// ---- properties ---------------------------------------------------------------------------------

fn message() -> impl Strategy<Value = Owned> {
    let tag = prop_oneof![Just(0), Just(1), Just(2), any::<u64>()];
    let status = prop_oneof![3 => Just(0), 1 => any::<u8>()];
    (tag, status, prop::collection::vec(any::<u8>(), 0..80))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_packed_comes_out(messages in prop::collection::vec(message(), 0..40)) {
        for format in FORMATS {
            let bytes = pack(format, &messages);
            let back = parse(format, &bytes);
            prop_assert_eq!(&back.0, &messages);
            prop_assert_eq!(back.1, None);
            prop_assert_eq!(oracle(format, &bytes), (messages.clone(), true));
            let counted = SmallMessages::new(format, &bytes).promised();
            let count = (format == Format::Compact).then_some(messages.len() as u32);
            prop_assert_eq!(counted, count);
        }
    }

    #[test]
    fn a_full_buffer_loses_nothing(
        messages in prop::collection::vec(message(), 1..60),
        room in 16_usize..400,
    ) {
        for format in FORMATS {
            let mut accepted = Vec::new();
            let mut packer = Packer::new(format, vec![0; room]);
            for message in &messages {
                let before = accepted.len();
                let fits = packer.fits(message.0, message.1, message.2.len());
                match packer.push(message.0, message.1, &message.2) {
                    Ok(()) => accepted.push(message.clone()),
                    Err(PackError::Full { need, free }) => prop_assert!(need > free),
                    Err(PackError::TooLong { len, max }) => {
                        prop_assert!(len > max || max == 0);
                        prop_assert!(
                            format.buffer_header()
                                + format.first_message(message.0, message.1, len)
                                > room
                        );
                    }
                }
                prop_assert_eq!(fits, accepted.len() > before);
            }
            let (buffer, len) = packer.finish();
            prop_assert_eq!(parse(format, &buffer[..len]), (accepted, None));
        }
    }

    #[test]
    fn mutated_buffers_give_what_the_oracle_gives(
        messages in prop::collection::vec(message(), 0..12),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        for format in FORMATS {
            let mut bytes = pack(format, &messages);
            for (at, byte) in &edits {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
            if let Some(cut) = &cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            exercise(&bytes);
            let (found, error) = parse(format, &bytes);
            let (expected, whole) = oracle(format, &bytes);
            prop_assert_eq!(found, expected);
            prop_assert_eq!(error.is_none(), whole);
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exercise(&bytes);
        for format in FORMATS {
            let (found, error) = parse(format, &bytes);
            prop_assert_eq!((found, error.is_none()), oracle(format, &bytes));
        }
    }
}

/// The fuzz target's function over many inputs: packed buffers with bits flipped, bytes replaced,
/// ends cut.
#[test]
fn the_fuzz_target_finds_nothing_in_mutated_buffers() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below.max(1)
    };
    let mut bytes = Vec::new();
    for round in 0..100_000 {
        if round % 8 == 0 {
            let format = FORMATS[random(2)];
            let messages: Vec<Owned> = (0..random(9))
                .map(|_| {
                    let status = if random(3) == 0 { random(256) as u8 } else { 0 };
                    (random(3) as u64, status, vec![round as u8; random(40)])
                })
                .collect();
            bytes = pack(format, &messages);
        }
        for _ in 0..random(3) {
            let at = random(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if random(2) == 0 {
                    random(256) as u8
                } else {
                    *byte ^ 1 << random(8)
                };
            }
        }
        if random(10) == 0 {
            bytes.truncate(random(bytes.len() + 1));
        }
        exercise(&bytes);
    }
}
