//! Golden bytes, round trips, hostile bytes.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use crate::object::store::{
    ChecksumKind, ListQuery, ListedObject, ObjectChecksum, ObjectEtag, ObjectName, PutCondition,
};

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

fn etag(text: &str) -> ObjectEtag {
    ObjectEtag::new(text).unwrap()
}

/// A header of these parts, zeros behind them.
fn bytes(parts: &[&[u8]]) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    let parts = parts.concat();
    header[..parts.len()].copy_from_slice(&parts);
    header
}

const ID: u64 = 0x0807_0605_0403_0201;
const ID_BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

#[track_caller]
fn golden_request(body: RequestBody, expected: [u8; HEADER_LEN], payload: &[u8]) {
    let request = Request {
        id: ID,
        budget_ms: 0x0a0b,
        body,
    };
    let (mut header, mut room) = ([0xee; HEADER_LEN], Vec::new());
    request.encode(&mut header, &mut room);
    assert_eq!((header, &room[..]), (expected, payload));
    assert_eq!(Request::parse(&expected, payload), Ok(request));
}

#[track_caller]
fn golden_answer(kind: u8, body: AnswerBody<'_>, expected: [u8; HEADER_LEN], payload: &[u8]) {
    let answer = Answer { id: ID, kind, body };
    let (mut header, mut room) = ([0xee; HEADER_LEN], Vec::new());
    answer.encode(&mut header, &mut room);
    assert_eq!((header, &room[..]), (expected, payload));
    assert_eq!(Answer::parse(&expected, payload), Ok(answer));
}

/// What all requests begin with.
fn front(kind: u8, flags: u8, payload_len: u8) -> Vec<u8> {
    let mut front = b"FCO1".to_vec();
    front.extend([kind, flags, 0, 0]);
    front.extend(ID_BYTES);
    front.extend([payload_len, 0, 0, 0, 0x0b, 0x0a, 0, 0]);
    front
}

#[test]
fn requests_have_these_bytes() {
    let lens =
        |name, other, etag, condition, checksum| [name, 0, other, 0, etag, 0, condition, checksum];
    let head = RequestBody::Head { name: name("a/b") };
    let zeros = [0; 32];
    golden_request(
        head,
        bytes(&[&front(1, 0, 3), &zeros, &lens(3, 0, 0, 0, 0)]),
        b"a/b",
    );
    let get = RequestBody::Get {
        name: name("x"),
        offset: 0x1122,
        len: 0x33,
        etag: Some(etag("e1")),
        checksum: Some(ChecksumKind::Crc64Nvme),
        token: "token".into(),
    };
    let numbers = [&[0x22, 0x11, 0, 0, 0, 0, 0, 0, 0x33][..], &[0; 23]].concat();
    let header = bytes(&[&front(2, 0, 8), &numbers, &lens(1, 5, 2, 2, 1)]);
    golden_request(get, header, b"xtokene1");
    let put = RequestBody::Put(PutRequest {
        name: name("x"),
        offset: 1,
        len: 2,
        total: 3,
        upload: 4,
        begins: true,
        ends: true,
        condition: PutCondition::Absent,
        checksum: Some(ChecksumKind::Crc32c),
        given: Some(0x0605),
        token: "t".into(),
    });
    let numbers: Vec<u8> = (1..5).flat_map(u64::to_le_bytes).collect();
    let header = bytes(&[&front(3, 7, 10), &numbers, &lens(1, 1, 0, 1, 2)]);
    golden_request(put, header, b"xt\x05\x06\0\0\0\0\0\0");
    let list = RequestBody::List(ListQuery {
        prefix: "p/".into(),
        start_after: "p/q".into(),
        limit: 1000,
    });
    let numbers = [&[0; 8][..], &[0xe8, 3], &[0; 22]].concat();
    let header = bytes(&[&front(4, 0, 5), &numbers, &lens(2, 3, 0, 0, 0)]);
    golden_request(list, header, b"p/p/q");
    let delete = RequestBody::Delete {
        name: name("x"),
        etag: Some(etag("e")),
    };
    let header = bytes(&[&front(5, 0, 2), &zeros, &lens(1, 0, 1, 2, 0)]);
    golden_request(delete, header, b"xe");
    golden_request(RequestBody::Cancel, bytes(&[&front(6, 0, 0)]), b"");
    let key = "000102030405060708090a0b0c0d0e0f";
    let take_up = |anew| {
        RequestBody::TakeUp(TakeUpRequest {
            name: name("x"),
            total: 3,
            upload: 4,
            key: key.parse().expect("a key"),
            anew,
            condition: PutCondition::Matches(etag("e1")),
        })
    };
    let numbers: Vec<u8> = [0, 0, 3, 4]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    for anew in [false, true] {
        let header = bytes(&[&front(7, anew.into(), 35), &numbers, &lens(1, 32, 2, 2, 0)]);
        golden_request(take_up(anew), header, format!("x{key}e1").as_bytes());
    }
    let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
    let (id, budget_ms) = (1, 0);
    let body = take_up(false);
    Request {
        id,
        budget_ms,
        body,
    }
    .encode(&mut header, &mut payload);
    payload[1] = b'X';
    let wrong = Request::parse(&header, &payload);
    assert!(
        matches!(wrong, Err(ObjectWireError::Field { .. })),
        "{wrong:?}"
    );
}

#[test]
fn answers_have_these_bytes() {
    let front = |kind: u8, flags, status: [u8; 2], payload_len: u8, entries: u8| {
        let mut front = b"FCO1".to_vec();
        front.extend([kind, flags]);
        front.extend(status);
        front.extend(ID_BYTES);
        front.extend([payload_len, 0, 0, 0, entries, 0, 0, 0]);
        front
    };
    let head = AnswerHead {
        size: 5,
        moved: 6,
        etag: etag("e1"),
        checksum: Some(ObjectChecksum {
            kind: ChecksumKind::Crc32c,
            value: 7,
        }),
        modified: Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(8)),
    };
    let numbers: Vec<u8> = (5..9).flat_map(u64::to_le_bytes).collect();
    let header = bytes(&[&front(130, 0, [0, 0], 2, 0), &numbers, &[2]]);
    golden_answer(2, AnswerBody::Object(head), header, b"e1");
    let moved = [[0; 8], 6_u64.to_le_bytes()].concat();
    let header = bytes(&[&front(131, 0, [0, 0], 0, 0), &moved]);
    golden_answer(3, AnswerBody::Done { moved: 6 }, header, b"");
    let refused = AnswerBody::Refused {
        status: ObjectStatus::NOT_FOUND,
        moved: 6,
        text: "no".into(),
    };
    let header = bytes(&[&front(129, 0, [4, 0], 2, 0), &moved]);
    golden_answer(1, refused, header, b"no");
    let mut writer = EntryWriter::default();
    assert!(writer.push(&ListedObject {
        name: name("n"),
        size: 9,
        etag: etag("e"),
        modified: None,
    }));
    let entry: &[&[u8]] = &[
        &9_u64.to_le_bytes(),
        &[0, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 1, 0],
        b"ne",
    ];
    let list = AnswerBody::List {
        entries: Entries::of(&writer),
        more: true,
    };
    let header = bytes(&[&front(132, 1, [0, 0], 22, 1)]);
    golden_answer(4, list, header, &entry.concat());
    let taken_up = AnswerBody::TakenUp {
        total: 9,
        there: 6,
        crc64: 7,
    };
    let numbers: Vec<u8> = [9, 6, 7, 0]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let header = bytes(&[&front(135, 0, [0, 0], 0, 0), &numbers, &[1]]);
    golden_answer(7, taken_up, header, b"");
    let more = bytes(&[&front(135, 0, [0, 0], 0, 0), &[5, 0, 0, 0, 0, 0, 0, 0, 6]]);
    assert!(Answer::parse(&more, b"").is_err(), "more than there is");
}

#[test]
fn lies_are_told_by_name() {
    let put = |offset, total| {
        RequestBody::Put(PutRequest {
            name: name("x"),
            offset,
            len: 10,
            total,
            upload: 0,
            begins: true,
            ends: true,
            condition: PutCondition::Any,
            checksum: None,
            given: None,
            token: String::new(),
        })
    };
    let wrong = |body| {
        let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
        Request {
            id: 1,
            budget_ms: 0,
            body,
        }
        .encode(&mut header, &mut payload);
        Request::parse(&header, &payload).unwrap_err()
    };
    let field = |name, value| ObjectWireError::Field { name, value };
    assert_eq!(wrong(put(5, 14)), field("total", 14));
    assert_eq!(wrong(put(u64::MAX, u64::MAX)), field("len", 10));
    let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
    let head = RequestBody::Head { name: name("a/b") };
    Request {
        id: 1,
        budget_ms: 0,
        body: head,
    }
    .encode(&mut header, &mut payload);
    assert!(Request::parse(&header[..63], &payload).is_err());
    assert!(Request::parse(&header, b"a/").is_err());
    let escape = Request::parse(&header, b"../");
    assert!(
        matches!(escape, Err(ObjectWireError::Name(_))),
        "{escape:?}"
    );
    for (at, value) in [(0, b'X'), (4, 8), (5, 4), (6, 1), (24, 1), (62, 3), (63, 1)] {
        let mut header = header;
        header[at] = value;
        assert!(Request::parse(&header, &payload).is_err(), "byte {at}");
    }
}

#[test]
fn a_list_out_of_order_is_none() {
    let entry = |text: &str| ListedObject {
        name: name(text),
        size: 0,
        etag: etag("e"),
        modified: None,
    };
    for names in [["b", "a"], ["a", "a"]] {
        let mut writer = EntryWriter::default();
        assert!(names.iter().all(|name| writer.push(&entry(name))));
        let body = AnswerBody::List {
            entries: Entries::of(&writer),
            more: false,
        };
        let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
        Answer {
            id: 1,
            kind: 4,
            body,
        }
        .encode(&mut header, &mut payload);
        let wrong = Err(ObjectWireError::Entry { index: 1 });
        assert_eq!(Answer::parse(&header, &payload), wrong);
    }
    let mut writer = EntryWriter::default();
    let long = entry(&"n".repeat(1024));
    let fit = std::iter::from_fn(|| writer.push(&long).then_some(())).count();
    assert_eq!(fit, ANSWER_PAYLOAD_MAX / 1045);
}

#[test]
fn texts_are_one_line() {
    assert_eq!(line("a\nb"), "a b");
    let long = line(&"ö".repeat(400));
    assert_eq!(long.len(), TEXT_MAX);
    let times = [None, Some(SystemTime::UNIX_EPOCH - Duration::from_nanos(5))];
    for time in times {
        assert_eq!(entries::time_from_wire(entries::time_to_wire(time)), time);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn hostile_bytes_do_no_harm(
        kind in any::<u8>(),
        small in prop::collection::vec(0_u8..4, HEADER_LEN - 8),
        payload in prop::collection::vec(any::<u8>(), 0..64),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        exercise(&noise);
        let mut bytes = b"FCO1".to_vec();
        bytes.extend([if kind < 128 { kind % 8 } else { 128 + kind % 8 }, kind & 3, 0, 0]);
        bytes.extend(&small);
        bytes[16] = payload.len() as u8;
        bytes[17..20].fill(0);
        bytes.extend(&payload);
        exercise(&bytes);
    }

    #[test]
    fn requests_come_back(
        object in "[a-z]{1,20}(/[a-z.]{3,9}){0,3}",
        token in "[0-9a-f:;_]{0,100}",
        tag in "[!#-~]{1,128}",
        numbers in any::<[u32; 4]>(),
        flags in any::<[bool; 4]>(),
    ) {
        prop_assume!(ObjectName::new(&object).is_ok());
        let [offset, len, more, upload] = numbers.map(u64::from);
        let matches = || PutCondition::Matches(etag(&tag));
        let body = RequestBody::Put(PutRequest {
            name: name(&object),
            offset,
            len,
            total: offset + len + more,
            upload,
            begins: flags[0],
            ends: flags[1],
            condition: if flags[2] { PutCondition::Any } else { matches() },
            checksum: flags[3].then_some(ChecksumKind::Crc64Nvme),
            given: flags[3].then_some(len << 33),
            token,
        });
        let request = Request { id: upload << 7, budget_ms: numbers[0], body };
        let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
        request.encode(&mut header, &mut payload);
        prop_assert_eq!(Request::parse(&header, &payload), Ok(request));
    }
}
