//! A service that lies, and what its client says of it; and a client that does, to a service.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::Fabric;
use crate::endpoint::{ConnectionEvent, ReceiveEvent};
use crate::fabric::PeerAddr;
use crate::object::control::{ControlConfig, ControlMessage, ControlPort};
use crate::object::tests::service::{by, bytes, client, config, connect, fabrics, filled, serve};
use crate::object::wire::{
    ANSWER_PAYLOAD_MAX, Answer, AnswerBody, AnswerHead, Entries, EntryWriter, HEADER_LEN,
    REQUEST_PAYLOAD_MAX, Request,
};
use crate::object::*;

/// What is answered to a request, in bytes.
type Lie = fn(&Request) -> ([u8; HEADER_LEN], Vec<u8>);

/// A service that answers each request with the next of these lies, and moves nothing.
fn liar(fabric: &Arc<Fabric>, lies: Vec<Lie>) -> (PeerAddr, Sender<()>) {
    let domain = fabric.open_domain().unwrap();
    let config = ControlConfig {
        connections: 4,
        of_host: None,
        incoming: REQUEST_PAYLOAD_MAX,
        outgoing: ANSWER_PAYLOAD_MAX,
        connect_timeout: Duration::from_secs(10),
        lost_after: Duration::from_secs(60),
    };
    let mut port = ControlPort::listen(&domain, "127.0.0.1:0".parse().unwrap(), &config).unwrap();
    let address = port.local_addr().expect("an address");
    let (stop, stopped) = channel();
    std::thread::spawn(move || {
        let mut lies = lies.into_iter();
        let (mut waiting, mut at) = (VecDeque::new(), None);
        while stopped
            .recv_timeout(Duration::from_millis(1))
            .is_err_and(|it| it.is_timeout())
        {
            let mut events = Vec::new();
            port.poll(&mut events).unwrap();
            for event in events {
                match event {
                    ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) => at = Some(id),
                    ReceiveEvent::Message(message) => {
                        let request = Request::parse(message.header(), message.payload()).unwrap();
                        if let Some(lie) = lies.next() {
                            let (header, payload) = lie(&request);
                            waiting.push_back(ControlMessage { header, payload });
                        }
                    }
                    _ => {}
                }
            }
            if let Some(id) = at {
                port.flush(id, &mut waiting);
            }
        }
    });
    (address, stop)
}

trait IsTimeout {
    fn is_timeout(&self) -> bool;
}

impl IsTimeout for std::sync::mpsc::RecvTimeoutError {
    fn is_timeout(&self) -> bool {
        *self == Self::Timeout
    }
}

fn encoded(answer: &Answer<'_>) -> ([u8; HEADER_LEN], Vec<u8>) {
    let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
    answer.encode(&mut header, &mut payload);
    (header, payload)
}

/// The answer to a get of 100 bytes of an object that has as many, whose sum is that.
fn object(request: &Request, moved: u64, value: Option<u64>) -> ([u8; HEADER_LEN], Vec<u8>) {
    let kind = ChecksumKind::Crc64Nvme;
    let head = AnswerHead {
        size: 100,
        moved,
        etag: ObjectEtag::new("e").unwrap(),
        checksum: value.map(|value| ObjectChecksum { kind, value }),
        modified: None,
    };
    let body = AnswerBody::Object(head);
    encoded(&Answer {
        id: request.id,
        kind: request.kind(),
        body,
    })
}

fn list(request: &Request, name: &str, more: bool) -> ([u8; HEADER_LEN], Vec<u8>) {
    let mut writer = EntryWriter::default();
    if !name.is_empty() {
        writer.push(&ListedObject {
            name: ObjectName::new(name).unwrap(),
            size: 0,
            etag: ObjectEtag::new("e").unwrap(),
            modified: None,
        });
    }
    let entries = Entries::of(&writer);
    let body = AnswerBody::List { entries, more };
    encoded(&Answer {
        id: request.id,
        kind: request.kind(),
        body,
    })
}

#[test]
fn lying_answers_are_told() {
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let lies: Vec<Lie> = vec![
        |request| object(request, 100, Some(7)),
        |request| object(request, 50, Some(7)),
        |request| object(request, 100, None),
        |request| list(request, "other", false),
        |request| list(request, "", true),
        |request| list(request, "a", true),
        |request| list(request, "a", true),
        |_| ([0x55; HEADER_LEN], vec![1, 2, 3]),
        |request| {
            object(
                &Request {
                    id: 1 << 40,
                    ..request.clone()
                },
                100,
                None,
            )
        },
    ];
    let (address, stop) = liar(&fabric, lies);
    let client = client(&fabric);
    let memory = filled(&client, &bytes(100, 1));
    let config = RemoteConfig::default();
    let mut remote = RemoteObjects::connect(&client, &fabric, &address, config).unwrap();
    let get = |remote: &mut RemoteObjects| remote.get("a", &memory, 0..100, 0, by());
    let told = get(&mut remote).unwrap_err();
    assert!(
        matches!(told, RemoteError::Checksum { offset: 0, len: 100, said, .. } if said.value == 7),
        "{told}"
    );
    for _ in 0..2 {
        let told = get(&mut remote).unwrap_err();
        assert!(matches!(told, RemoteError::Violation(_)), "{told}");
    }
    let query = ListQuery {
        prefix: "a".into(),
        limit: 5,
        ..ListQuery::default()
    };
    for _ in 0..2 {
        let told = remote.list_page(&query, by()).unwrap_err();
        assert!(matches!(told, RemoteError::Violation(_)), "{told}");
    }
    let told: Vec<_> = remote.list("a", by()).collect();
    assert!(
        matches!(told[..], [Ok(_), Err(RemoteError::Violation(_))]),
        "it ends: {told:?}"
    );
    let told = remote.head("a", by()).unwrap_err();
    assert!(matches!(told, RemoteError::Wire(_)), "{told}");
    // An answer to something else is none.
    let soon = std::time::Instant::now() + Duration::from_millis(200);
    let told = remote.head("a", soon).unwrap_err();
    assert!(matches!(told, RemoteError::TimedOut { .. }), "{told}");
    drop(stop);
}

#[test]
fn a_client_that_makes_no_sense_is_cut_off_and_others_go_on() {
    use crate::object::wire::RequestBody;
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let service = serve(&fabric, MemoryStore::new(), config());
    let client = client(&fabric);
    let mut other = connect(&client, &fabric, &service);
    for lie in [0, 4, 5, 6, 24] {
        let mut remote = connect(&client, &fabric, &service);
        let name = ObjectName::new("x").unwrap();
        let cut = remote.call_with(RequestBody::Head { name }, by(), |request| {
            let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
            request.encode(&mut header, &mut payload);
            header[lie] = 0xee;
            (header, payload)
        });
        assert!(
            matches!(cut, Err(RemoteError::Closed(_))),
            "byte {lie}: {cut:?}"
        );
        let missing = other.head("x", by()).unwrap_err();
        assert_eq!(missing.status(), Some(ObjectStatus::NOT_FOUND));
        remote.reconnect().unwrap();
        assert!(remote.head("x", by()).unwrap_err().status().is_some());
    }
}

#[test]
fn what_came_otherwise_than_it_was_sent_is_not_put() {
    use crate::object::wire::{PutRequest, RequestBody};
    let Some(fabric) = fabrics().into_iter().next() else {
        return;
    };
    let store = MemoryStore::new();
    let service = serve(&fabric, store.clone(), config());
    let client = client(&fabric);
    let mut remote = connect(&client, &fabric, &service);
    let memory = filled(&client, &bytes(1000, 1));
    let token = memory.token(0..1000, ObjectOperation::Put).unwrap();
    let put = |len: u64, text: String, given| {
        RequestBody::Put(PutRequest {
            name: ObjectName::new("x").unwrap(),
            offset: 0,
            len,
            total: len,
            upload: 1,
            begins: true,
            ends: true,
            condition: PutCondition::Any,
            checksum: Some(ChecksumKind::Crc64Nvme),
            given,
            token: text,
        })
    };
    let right = ObjectChecksum::of(ChecksumKind::Crc64Nvme, &bytes(1000, 1)).value;
    let text = token.to_string();
    let cases = [
        (
            put(1000, text.clone(), Some(right ^ 1)),
            Some(ObjectStatus::DAMAGED),
        ),
        (put(1001, text.clone(), None), Some(ObjectStatus::TOKEN)),
        (put(10, String::new(), None), Some(ObjectStatus::TOKEN)),
        (
            put(10, "0:10:uet1:x:1".into(), None),
            Some(ObjectStatus::TOKEN),
        ),
        (put(1 << 50, text.clone(), None), Some(ObjectStatus::TOKEN)),
        (put(1000, text, Some(right)), None),
    ];
    for (body, expected) in cases {
        let answered = remote.call_with(body.clone(), by(), |request| {
            let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
            request.encode(&mut header, &mut payload);
            (header, payload)
        });
        let status = answered.err().and_then(|error| error.status());
        assert_eq!(status, expected, "{body:?}");
        assert_eq!(
            store.used_bytes(),
            if expected.is_none() { 1000 } else { 0 }
        );
    }
    token.done();
}
