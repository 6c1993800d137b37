//! Golden bytes, round trips, hostile bytes.

use proptest::prelude::*;

use super::*;

fn hello() -> Hello {
    Hello {
        kind: HelloKind::Hello,
        header_mode: HeaderMode::Fixed(0x0102),
        version: 2,
        oldest: 1,
        features: 0x0304_0506,
        receive_size: 0x1112_1314_1516_1718,
        receive_depth: 0x2122_2324,
        credits: 0x2022_2324,
        incarnation: 0x3132_3334_3536_3738,
        connection: 0x4142_4344_4546_4748,
    }
}

#[test]
fn hello_has_these_bytes() {
    let expected: [u8; HELLO_LEN] = [
        b'F', b'b', b'C', b't', 1, 2, 0x02, 0x01, // magic, kind, header mode and length
        2, 0, 1, 0, 0x06, 0x05, 0x04, 0x03, // version, oldest, features
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // receive_size
        0x24, 0x23, 0x22, 0x21, 0x24, 0x23, 0x22, 0x20, // receive_depth, credits
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, // incarnation
        0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, // connection
    ];
    assert_eq!(hello().encode(), expected);
    assert_eq!(Hello::parse(&expected), Ok(hello()));
    assert_eq!(
        Hello {
            kind: HelloKind::Ack,
            ..hello()
        }
        .encode()[4],
        2
    );
}

#[test]
fn refusal_has_these_bytes() {
    let refusal = Refusal::new(RefusalCode::TOO_MANY_CONNECTIONS, [0x0102, 0x0304]);
    let mut expected = [0; HELLO_LEN];
    expected[..8].copy_from_slice(&[b'F', b'b', b'C', b't', 3, 0, 3, 0]);
    expected[8..12].copy_from_slice(&[2, 0, 2, 0]);
    expected[16..18].copy_from_slice(&[0x02, 0x01]);
    expected[24..26].copy_from_slice(&[0x04, 0x03]);
    assert_eq!(refusal.encode(), expected);
    assert_eq!(Refusal::parse(&expected[..32]), Ok(refusal));
}

#[test]
fn control_messages_have_these_bytes() {
    let bye = Control::Bye {
        last_sequence: 0x0102,
        reason: ByeReason(0x0304),
    };
    let mut expected = [0; CONTROL_LEN];
    expected[..8].copy_from_slice(&[b'f', b'b', b'c', b't', 2, 0, 0x04, 0x03]);
    expected[16..18].copy_from_slice(&[0x02, 0x01]);
    assert_eq!(bye.encode().as_slice(), expected);

    let credit = Control::Credit { granted: 0x0a0b };
    let mut expected = [0; CONTROL_LEN];
    expected[..5].copy_from_slice(&[b'f', b'b', b'c', b't', 1]);
    expected[16..18].copy_from_slice(&[0x0b, 0x0a]);
    assert_eq!(credit.encode().as_slice(), expected);

    let heartbeat = Control::Heartbeat {
        number: 0x0c0d,
        answer: true,
    };
    let mut expected = [0; CONTROL_LEN];
    expected[..8].copy_from_slice(&[b'f', b'b', b'c', b't', 3, 0, 1, 0]);
    expected[16..18].copy_from_slice(&[0x0d, 0x0c]);
    assert_eq!(heartbeat.encode().as_slice(), expected);
    for (kind, control) in [
        (4, Control::Revoke { window: 0x0c0d }),
        (5, Control::RevokeAck { window: 0x0c0d }),
        (14, Control::Fence { nonce: 0x0c0d }),
        (15, Control::Fenced { nonce: 0x0c0d }),
    ] {
        let mut expected = [0; CONTROL_LEN];
        expected[..5].copy_from_slice(&[b'f', b'b', b'c', b't', kind]);
        expected[16..18].copy_from_slice(&[0x0d, 0x0c]);
        assert_eq!(control.encode().as_slice(), expected);
    }

    assert_eq!(written_data(0x12_3456, 0xaabb_ccdd), 0xaabb_ccdd_2112_3456);
    let split = split_written(0xaabb_ccdd_2112_3456);
    assert_eq!(split, Some((0x12_3456, 0xaabb_ccdd)));
    assert_eq!(split_written(0xaabb_ccdd_2012_3456), None);

    assert_eq!(cq_data(ControlKind::BYE, 0), 0x0200_0000);
    assert_eq!(cq_data(ControlKind::BYE, 0xff12_3456), 0x0212_3456);
    assert_eq!(split_cq_data(0x0212_3456), (ControlKind::BYE, 0x12_3456));
}

#[test]
fn what_is_said_of_long_messages_has_these_bytes() {
    let number = 0x0102_0304_0506_0708;
    let value = 0x1112_1314_1516_1718;
    let (base, key) = (value, 0x2122_2324_2526_2728);
    let long = [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11];
    let last = [0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21];
    let none = [0; 8];
    for (kind, control, third, fourth) in [
        (9, Control::LongOffer { number, len: value }, long, none),
        (10, Control::LongGrant { number, base, key }, long, last),
        (11, Control::LongDone { number }, none, none),
        (
            12,
            Control::LongRefused {
                number,
                limit: value,
            },
            long,
            none,
        ),
    ] {
        let mut expected = [0; CONTROL_LEN];
        expected[..8].copy_from_slice(&[b'f', b'b', b'c', b't', kind, 0, 0, 0]);
        expected[8..16].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        expected[16..24].copy_from_slice(&third);
        expected[24..].copy_from_slice(&fourth);
        assert_eq!(control.kind(), ControlKind(kind));
        assert_eq!(control.encode().as_slice(), expected, "kind {kind}");
        let read = |body: &[u8]| Control::parse(ControlKind(kind), body);
        assert_eq!(read(&expected), Ok(control));

        // What has no meaning there is ignored; a byte less is not enough, and another kind's bytes
        // are not read.
        let mut padded = expected.to_vec();
        padded[5..8].fill(0xa5);
        let unused = match kind {
            10 => 32..32,
            11 => 16..32,
            _ => 24..32,
        };
        padded[unused].fill(0xa5);
        padded.extend([0xa5; 7]);
        assert_eq!(read(&padded), Ok(control), "kind {kind}");
        let short = WireError::Short {
            len: CONTROL_LEN - 1,
            need: CONTROL_LEN,
        };
        assert_eq!(read(&expected[..CONTROL_LEN - 1]), Err(short));
        let other = ControlKind(if kind == 9 { 12 } else { kind - 1 });
        assert_eq!(Control::parse(other, &expected), Err(WireError::Kind(kind)));
    }
}

#[test]
fn garbage_behind_a_hello_is_ignored() {
    let mut padded = hello().encode().to_vec();
    padded.extend([0xa5; 208]);
    assert_eq!(Hello::parse(&padded), Ok(hello()));
}

#[test]
fn each_wrong_field_is_named() {
    let broken = |at: usize, value: u8| {
        let mut bytes = hello().encode();
        bytes[at] = value;
        Hello::parse(&bytes)
    };
    assert_eq!(broken(0, b'X'), Err(WireError::Magic(*b"XbCt")));
    assert_eq!(broken(4, 3), Err(WireError::Kind(3)));
    assert_eq!(broken(5, 9), Err(field("header_mode", 9_u8)));
    assert_eq!(broken(5, 0), Err(field("header_len", 0x0102_u16)));
    assert_eq!(broken(8, 0), Err(field("oldest", 1_u8)));
    assert_eq!(broken(10, 0), Err(field("oldest", 0_u8)));
    assert_eq!(broken(31, 0xff), Err(field("credits", 0xff22_2324_u32)));
    let none = Hello {
        receive_size: 0,
        ..hello()
    };
    assert_eq!(
        Hello::parse(&none.encode()),
        Err(field("receive_size", 0_u8))
    );
    assert_eq!(
        Hello::parse(&[]),
        Err(WireError::Short {
            len: 0,
            need: HELLO_LEN
        })
    );
}

#[test]
fn a_future_version_is_told_apart_from_nonsense() {
    let future = Hello {
        version: 9,
        oldest: 1,
        ..hello()
    };
    assert_eq!(Hello::parse(&future.encode()), Ok(future));

    let mut bytes = Hello {
        version: 9,
        oldest: 7,
        ..hello()
    }
    .encode();
    bytes[5] = 77; // whatever a later layout has there
    let error = Hello::parse(&bytes).expect_err("no version in common");
    assert_eq!(
        error,
        WireError::Version {
            theirs: 9,
            oldest_theirs: 7,
            ours: VERSION,
            oldest_ours: OLDEST
        }
    );
    let refusal = Refusal::of_wire_error(&error);
    assert_eq!(
        refusal.to_string(),
        "the endpoint speaks wire versions 2 to 2, it was offered 7 to 9"
    );
    assert_eq!(Hello::peek_connection(&bytes), Some(hello().connection));
}

#[test]
fn refusals_are_told_in_words() {
    let text = |code, details| Refusal::new(code, details).to_string();
    assert!(text(RefusalCode::TOO_MANY_CONNECTIONS, [128, 0]).contains("128 connections"));
    let of_host = text(RefusalCode::TOO_MANY_CONNECTIONS, [48, 64]);
    assert!(of_host.contains("48 connections from this host") && of_host.contains("64"));
    assert!(text(RefusalCode::BY_APPLICATION, [42, 0]).contains("42"));
    assert!(text(RefusalCode::RECEIVE_DEPTH, [9000, 4096]).contains("4096"));
    let modes = [
        HeaderMode::Raw.to_detail(),
        HeaderMode::Fixed(64).to_detail(),
    ];
    let said = text(RefusalCode::HEADER_MODE, modes);
    assert!(
        said.contains("64 bytes") && said.contains("no header framing"),
        "{said}"
    );
    assert!(text(RefusalCode::HEADER_MODE, [u64::MAX; 2]).contains("another header mode"));
    assert!(text(RefusalCode(999), [1, 2]).contains("999"));
}

#[test]
fn control_parsing_refuses_what_has_no_place() {
    let credit = Control::Credit { granted: 5 }.encode();
    let body = credit.as_slice();
    assert_eq!(
        Control::parse(ControlKind::BYE, body),
        Err(WireError::Kind(1))
    );
    assert_eq!(
        Control::parse(ControlKind(19), body),
        Err(WireError::Kind(19))
    );
    let mut heartbeat = Control::Heartbeat {
        number: 1,
        answer: true,
    }
    .encode();
    heartbeat.bytes[6] = 2;
    assert_eq!(
        Control::parse(ControlKind::HEARTBEAT, heartbeat.as_slice()),
        Err(field("code", 2_u8))
    );
    assert_eq!(
        Control::parse(ControlKind::DATA, body),
        Err(WireError::Kind(32))
    );
    let short = WireError::Short {
        len: 31,
        need: CONTROL_LEN,
    };
    assert_eq!(Control::parse(ControlKind::CREDIT, &body[..31]), Err(short));
    let hello = hello().encode();
    assert_eq!(
        Control::parse(ControlKind::CREDIT, &hello),
        Err(WireError::Magic(MAGIC))
    );
    assert_eq!(
        Control::parse(ControlKind::HELLO_ACK, &hello),
        Err(WireError::Kind(16))
    );
}

#[test]
fn split_finds_header_and_payload() {
    assert_eq!(split(HeaderMode::Raw, &[7; 5]), Ok((0..0, 0..5)));
    assert_eq!(split(HeaderMode::Fixed(3), &[7; 5]), Ok((0..3, 3..5)));
    assert_eq!(split(HeaderMode::Fixed(5), &[7; 5]), Ok((0..5, 5..5)));
    assert_eq!(
        split(HeaderMode::Fixed(6), &[7; 5]),
        Err(WireError::Short { len: 5, need: 6 })
    );
    assert_eq!(
        split(HeaderMode::Prefixed, &[2, 0, 1, 1, 9]),
        Ok((2..4, 4..5))
    );
    assert_eq!(split(HeaderMode::Prefixed, &[0, 0]), Ok((2..2, 2..2)));
    assert_eq!(
        split(HeaderMode::Prefixed, &[2]),
        Err(WireError::Short { len: 1, need: 2 })
    );
    let long = WireError::Short {
        len: 3,
        need: 2 + 0xffff,
    };
    assert_eq!(split(HeaderMode::Prefixed, &[0xff, 0xff, 0]), Err(long));
}

fn any_header_mode() -> impl Strategy<Value = HeaderMode> {
    prop_oneof![
        Just(HeaderMode::Raw),
        Just(HeaderMode::Prefixed),
        any::<u16>().prop_map(HeaderMode::Fixed),
    ]
}

prop_compose! {
    fn any_hello()(
        ack in any::<bool>(),
        header_mode in any_header_mode(),
        version in OLDEST..,
        features in any::<u32>(),
        receive_size in 1_u64..,
        receive_depth in any::<u32>(),
        incarnation in any::<u64>(),
        connection in any::<u64>(),
    ) -> Hello {
        let kind = if ack { HelloKind::Ack } else { HelloKind::Hello };
        let credits = receive_depth / 2;
        Hello {
            kind,
            header_mode,
            version,
            oldest: 1,
            features,
            receive_size,
            receive_depth,
            credits,
            incarnation,
            connection,
        }
    }
}

proptest! {
    #[test]
    fn hello_round_trip(hello in any_hello(), tail in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut bytes = hello.encode().to_vec();
        bytes.extend(tail);
        prop_assert_eq!(Hello::parse(&bytes), Ok(hello));
        let control = Control::Hello(hello);
        prop_assert_eq!(Control::parse(control.kind(), &bytes), Ok(control));
    }

    #[test]
    fn truncated_is_short(hello in any_hello(), len in 0..HELLO_LEN) {
        let need = HELLO_LEN;
        prop_assert_eq!(Hello::parse(&hello.encode()[..len]), Err(WireError::Short { len, need }));
    }

    #[test]
    fn control_round_trip(
        value in any::<u64>(),
        number in any::<u64>(),
        key in any::<u64>(),
        reason in any::<u16>(),
    ) {
        let bye = Control::Bye {
            last_sequence: value,
            reason: ByeReason(reason),
        };
        let beat = |answer| Control::Heartbeat {
            number: value,
            answer,
        };
        let others = [
            beat(true),
            beat(false),
            Control::Revoke { window: value },
            Control::RevokeAck { window: value },
            Control::Fence { nonce: value },
            Control::Fenced { nonce: value },
            Control::LongOffer { number, len: value },
            Control::LongGrant {
                number,
                base: value,
                key,
            },
            Control::LongDone { number },
            Control::LongRefused {
                number,
                limit: value,
            },
        ];
        for control in [Control::Credit { granted: value }, bye]
            .into_iter()
            .chain(others)
        {
            prop_assert_eq!(
                Control::parse(control.kind(), control.encode().as_slice()),
                Ok(control)
            );
        }
    }

    #[test]
    fn refusal_round_trip(code in any::<u16>(), details in any::<[u64; 2]>()) {
        let refusal = Refusal::new(RefusalCode(code), details);
        prop_assert_eq!(Refusal::parse(&refusal.encode()), Ok(refusal));
        prop_assert!(!refusal.to_string().is_empty());
    }

    #[test]
    fn split_undoes_framing(
        mode in any_header_mode(),
        payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let len = match mode {
            HeaderMode::Fixed(n) => usize::from(n),
            HeaderMode::Prefixed => 300,
            HeaderMode::Raw => 0,
        };
        let header = vec![0xee; len];
        prop_assert!(mode.admits(len));
        let mut message = Vec::new();
        if mode == HeaderMode::Prefixed {
            message.extend(prefix(len as u16));
        }
        prop_assert_eq!(message.len(), mode.overhead());
        message.extend(&header);
        message.extend(&payload);
        let (h, p) = split(mode, &message).expect("our own framing");
        prop_assert_eq!(&message[h], &header[..]);
        prop_assert_eq!(&message[p], &payload[..]);
    }
}

/// xorshift64*: enough to vary inputs, the same on every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn hostile_inputs_are_refused_or_understood() {
    // All of them in the soak run.
    let inputs = if crate::soak::is_soak() {
        2_000_000
    } else {
        60_000
    };
    let seeds: Vec<Vec<u8>> = vec![
        hello().encode().to_vec(),
        Hello {
            kind: HelloKind::Ack,
            ..hello()
        }
        .encode()
        .to_vec(),
        Refusal::new(RefusalCode::VERSION, [2, 2]).encode().to_vec(),
        Control::Revoke { window: 7 }.encode().as_slice().to_vec(),
        Control::RevokeAck { window: 7 }
            .encode()
            .as_slice()
            .to_vec(),
        WindowDescriptor {
            access: crate::memory::Access::all(),
            connection: 1,
            incarnation: 2,
            window: WindowId(3),
            base: u64::MAX - 8,
            len: 8,
            key: 4,
            mark: 5,
        }
        .to_bytes()
        .to_vec(),
        Control::Credit { granted: 17 }.encode().as_slice().to_vec(),
        Control::Bye {
            last_sequence: 3,
            reason: ByeReason::DONE,
        }
        .encode()
        .as_slice()
        .to_vec(),
    ];
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let mut understood = 0_u32;
    for round in 0..inputs {
        let mut bytes = if round % 4 == 0 {
            (0..next(&mut random) % 80)
                .map(|_| next(&mut random) as u8)
                .collect()
        } else {
            seeds[round % seeds.len()].clone()
        };
        for _ in 0..next(&mut random) % 4 {
            let at = next(&mut random) as usize % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = next(&mut random) as u8;
            }
        }
        if next(&mut random).is_multiple_of(8) {
            bytes.truncate((next(&mut random) % 64) as usize);
        }
        exercise(&bytes);
        understood += u32::from(Hello::parse(&bytes).is_ok() || Refusal::parse(&bytes).is_ok());
    }
    // Else the mutations would only show that garbage is refused.
    assert!(
        understood > inputs as u32 / 20,
        "only {understood} inputs were understood"
    );
}

#[test]
fn marks_of_data_messages_are_told_apart_and_read_back() {
    // Those that are numbered; what is written has no mark.
    let kinds = prop_oneof![Just(32u8), Just(34), Just(35), Just(37)];
    proptest!(|(short: bool, kind in kinds, index in 1u32..=SHORT_INDEX_MASK, number: u32)| {
        let mark = mark(short, ControlKind(kind), index);
        let data = numbered(mark, number.into());
        prop_assert_eq!(u32::try_from(data).is_ok(), short || number == 0);
        let (back, read) = split_numbered(data);
        prop_assert_eq!((back, is_short(back)), (mark, short));
        prop_assert_eq!(read, if short { number % SHORT_NUMBERS } else { number });
        prop_assert_eq!(split_cq_data(back), (ControlKind(kind), index));
    });
    // Golden: index 3, message 70,000.
    let data = |short| numbered(mark(short, ControlKind::DATA, 3), 70_000);
    assert_eq!(data(false), 0x0001_1170_2000_0003);
    assert_eq!(data(true), 0x88b8_0003);
    let frame = |short| numbered(mark(short, ControlKind::FRAME, 3), 70_000);
    assert_eq!(frame(false), 0x0001_1170_2500_0003);
    assert_eq!(frame(true), 0xa8b8_0003);
    // A control message of every kind is none.
    for kind in 0..128 {
        assert!(!is_short(cq_data(ControlKind(kind), INDEX_MASK)));
    }
}

#[test]
fn a_heartbeat_has_room_for_counts_and_zeros_are_none() {
    let beat = Control::Heartbeat {
        number: 7,
        answer: true,
    };
    let plain = beat.encode();
    assert_eq!(Counts::parse(plain.as_slice()), None);
    let counts = Counts {
        sent: 0x0102_0304,
        granted: 0x0506,
    };
    let body = plain.with_counts(counts);
    assert_eq!(Counts::parse(body.as_slice()), Some(counts));
    let parsed = Control::parse(ControlKind::HEARTBEAT, body.as_slice());
    assert_eq!(
        parsed,
        Ok(beat),
        "who knows nothing of them reads a heartbeat"
    );
    let bytes = body.as_slice();
    assert_eq!(bytes[..8], plain.as_slice()[..8]);
    assert_eq!(bytes[8..16], [6, 5, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..24], plain.as_slice()[16..24]);
    assert_eq!(bytes[24..32], [4, 3, 2, 1, 0, 0, 0, 0x80]);
    assert_eq!(Counts::parse(&bytes[..31]), None);
}

#[test]
fn a_frame_has_these_bytes() {
    let bytes = [2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0, 1, 0, 0, 0, b'c'];
    let read: Result<Vec<_>, _> = frame::messages(&bytes).collect();
    assert_eq!(read, Ok(vec![4..6, 10..10, 14..15]));
    let mut length = [0xff; 6];
    frame::put_length(&mut length, 0x0102);
    assert_eq!(length, [2, 1, 0, 0, 0xff, 0xff]);
}

#[test]
fn what_is_no_frame_is_told_where_it_ends() {
    let read = |bytes: &[u8]| -> (usize, Option<WireError>) {
        let mut messages = frame::messages(bytes);
        let good = messages.by_ref().take_while(Result::is_ok).count();
        assert!(messages.next().is_none(), "nothing comes behind an error");
        (good, frame::messages(bytes).find_map(Result::err))
    };
    let short = |len, need| Some(WireError::Short { len, need });
    assert_eq!(read(&[]), (0, short(0, 4)), "no message at all");
    assert_eq!(read(&[1, 0, 0]), (0, short(3, 4)));
    assert_eq!(read(&[1, 0, 0, 0]), (0, short(0, 1)));
    assert_eq!(read(&[0, 0, 0, 0, 9]), (1, short(1, 4)));
    assert_eq!(read(&[0xff; 8]), (0, short(4, u32::MAX as usize)));
    let most = [0; 4 * frame::MESSAGES_MAX];
    assert_eq!(read(&most), (frame::MESSAGES_MAX, None));
    let more = [0; 4 * (frame::MESSAGES_MAX + 1)];
    let (good, error) = read(&more);
    assert_eq!(good, frame::MESSAGES_MAX);
    assert!(matches!(error, Some(WireError::Field { value: 513, .. })));
}

#[test]
fn frames_are_read_as_they_were_written() {
    proptest!(|(lengths in proptest::collection::vec(0usize..200, 1..64), cut in 0usize..40)| {
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        for (n, len) in lengths.iter().enumerate() {
            let at = bytes.len();
            bytes.resize(at + frame::LENGTH_LEN, 0);
            frame::put_length(&mut bytes[at..], *len);
            bytes.resize(bytes.len() + len, n as u8);
            places.push(at + frame::LENGTH_LEN..bytes.len());
        }
        let read: Result<Vec<_>, _> = frame::messages(&bytes).collect();
        prop_assert_eq!(&read.unwrap(), &places);
        bytes.truncate(bytes.len().saturating_sub(cut));
        exercise(&bytes);
        let whole = places.iter().take_while(|place| place.end <= bytes.len()).count();
        let read = frame::messages(&bytes).take_while(Result::is_ok).count();
        prop_assert_eq!(read, whole);
    });
}
