//! Uploads that are cut, and taken up again; and what liars make of that.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Fabric;
use crate::object::tests::service::{
    by, bytes, client, config, connect, content, fabrics, filled, memory, serve,
};
use crate::object::wire::{HEADER_LEN, PutRequest, RequestBody};
use crate::object::*;

/// Bytes of a part.
const PART: usize = 200_000;
const NAME: &str = "d/large";
const ANY: PutCondition = PutCondition::Any;

/// A served directory.
struct Served {
    fabric: Arc<Fabric>,
    dir: tempfile::TempDir,
    service: Option<ObjectService>,
}

impl Served {
    fn each(check: impl Fn(&mut Self)) {
        for fabric in fabrics() {
            println!("{}", fabric.provider().name);
            let dir = tempfile::tempdir().unwrap();
            let mut served = Self {
                fabric,
                dir,
                service: None,
            };
            served.start();
            check(&mut served);
        }
    }

    /// As after the end of the process.
    fn start(&mut self) {
        drop(self.service.take());
        let store = FileStore::open(self.dir.path()).unwrap();
        self.service = Some(serve(&self.fabric, store, config()));
    }

    fn connect(&self) -> RemoteObjects {
        let client = client(&self.fabric);
        let service = self.service.as_ref().expect("it serves");
        connect(&client, &self.fabric, service)
    }

    fn take_up(&self, remote: &mut RemoteObjects, key: &UploadKey, total: u64) -> RemoteUpload {
        let end = by();
        loop {
            match remote.take_up(NAME, total, key, &ANY, false, by()) {
                Ok(upload) => return upload,
                // Of a connection whose end the service has not heard of yet.
                Err(error) => {
                    assert_eq!(error.status(), Some(ObjectStatus::BUSY), "{error}");
                    assert!(Instant::now() < end, "{error}");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    fn files(&self) -> Vec<String> {
        fn below(dir: &Path, into: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.path() {
                    path if path.is_dir() => below(&path, into),
                    path => into.push(path.display().to_string()),
                }
            }
        }
        let mut files = Vec::new();
        below(self.dir.path(), &mut files);
        files
    }
}

/// Puts parts until so many bytes are there, or all.
fn put_parts(
    remote: &mut RemoteObjects,
    upload: &mut RemoteUpload,
    data: &[u8],
    until: usize,
) -> Option<RemoteObject> {
    let memory = filled(remote.client(), data);
    let mut object = None;
    while (upload.there() as usize) < until {
        let at = upload.there();
        let end = (at + PART as u64).min(data.len() as u64);
        object = remote.put_part(upload, &memory, at..end, by()).unwrap();
    }
    object
}

fn assert_is_there(remote: &mut RemoteObjects, data: &[u8]) {
    let into = memory(remote.client(), data.len());
    let got = remote.get(NAME, &into, 0..into.len(), 0, by()).unwrap();
    assert_eq!((got.moved, got.is_checked), (data.len() as u64, true));
    assert!(content(&into, data.len()) == data);
}

/// The client goes, the service goes, and both come back.
#[test]
fn an_upload_that_is_cut_goes_on_where_it_was() {
    Served::each(|served| {
        let data = bytes(5 * PART + 17, 9);
        let (total, key) = (data.len() as u64, UploadKey::random());
        let mut there = 0;
        for restarts in [false, false, true, true] {
            let mut remote = served.connect();
            let mut upload = served.take_up(&mut remote, &key, total);
            assert_eq!(upload.there(), there);
            let front = ObjectChecksum::of(ChecksumKind::Crc64Nvme, &data[..there as usize]);
            assert_eq!(upload.checksum(), Some(front));
            there += PART as u64;
            assert_eq!(
                put_parts(&mut remote, &mut upload, &data, there as usize),
                None
            );
            // Nobody sees it.
            let missing = remote.head(NAME, by()).unwrap_err();
            assert_eq!(missing.status(), Some(ObjectStatus::NOT_FOUND));
            assert_eq!(remote.list("", by()).count(), 0);
            drop(remote);
            if restarts {
                served.start();
            }
        }
        let mut remote = served.connect();
        let mut upload = served.take_up(&mut remote, &key, total);
        assert_eq!(upload.there(), there);
        let object = put_parts(&mut remote, &mut upload, &data, data.len()).expect("the last");
        let all = ObjectChecksum::of(ChecksumKind::Crc64Nvme, &data);
        assert_eq!((object.checksum, object.is_checked), (Some(all), true));
        assert_is_there(&mut remote, &data);
        assert_eq!(served.files().len(), 1, "{:?}", served.files());
        assert_eq!(std::fs::read_dir(served.dir.path()).unwrap().count(), 1);
    });
}

/// What is there is of this key, this name and this size, or it is not used.
#[test]
fn what_is_to_be_another_object_begins_anew() {
    Served::each(|served| {
        let data = bytes(3 * PART, 5);
        let (total, key) = (data.len() as u64, UploadKey::random());
        let mut remote = served.connect();
        let mut upload = served.take_up(&mut remote, &key, total);
        put_parts(&mut remote, &mut upload, &data, PART);
        let mut remote = served.connect();
        let other = served.take_up(&mut remote, &UploadKey::random(), total);
        assert_eq!(other.there(), 0);
        let mut remote = served.connect();
        assert_eq!(served.take_up(&mut remote, &key, total + 1).there(), 0);
        drop(remote);
        let mut remote = served.connect();
        let mut upload = served.take_up(&mut remote, &key, total);
        assert_eq!(upload.there(), 0, "it went");
        put_parts(&mut remote, &mut upload, &data, PART);
        drop(remote);
        let mut remote = served.connect();
        assert_eq!(
            served.take_up(&mut remote, &key, total).there(),
            PART as u64
        );
        drop(remote);
        let end = by();
        let mut remote = served.connect();
        let mut upload = loop {
            match remote.take_up(NAME, total, &key, &ANY, true, by()) {
                Ok(upload) => break upload,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        assert_eq!(upload.there(), 0);
        let changed = bytes(3 * PART, 6);
        put_parts(&mut remote, &mut upload, &changed, changed.len()).expect("the last");
        assert_is_there(&mut remote, &changed);
    });
}

/// Two connections that know the key: one has the upload.
#[test]
fn an_upload_is_one_connections_at_a_time() {
    Served::each(|served| {
        let data = bytes(3 * PART, 4);
        let (total, key) = (data.len() as u64, UploadKey::random());
        let (mut one, mut other) = (served.connect(), served.connect());
        let mut upload = served.take_up(&mut one, &key, total);
        put_parts(&mut one, &mut upload, &data, PART);
        for anew in [false, true] {
            let busy = other
                .take_up(NAME, total, &key, &ANY, anew, by())
                .unwrap_err();
            assert_eq!(busy.status(), Some(ObjectStatus::BUSY), "{busy}");
            assert!(busy.to_string().contains("another connection"), "{busy}");
        }
        put_parts(&mut one, &mut upload, &data, 2 * PART);
        drop(one);
        let mut upload = served.take_up(&mut other, &key, total);
        assert_eq!(upload.there(), 2 * PART as u64);
        put_parts(&mut other, &mut upload, &data, data.len()).expect("the last");
        assert_is_there(&mut other, &data);
    });
}

/// Parts elsewhere than behind what is there, of other names and totals, of uploads of others, and
/// the end of what is not whole: each is refused, and what is there stays as it is.
#[test]
fn who_lies_about_an_upload_is_refused_and_gains_nothing() {
    Served::each(|served| {
        let data = bytes(3 * PART, 3);
        let (total, key) = (data.len() as u64, UploadKey::random());
        let part = PART as u64;
        let good = |number, offset, token: &str| PutRequest {
            name: ObjectName::new(NAME).unwrap(),
            offset,
            len: part,
            total,
            upload: number,
            begins: false,
            ends: offset + part == total,
            condition: ANY,
            checksum: Some(ChecksumKind::Crc64Nvme),
            given: None,
            token: token.to_owned(),
        };
        type Lie = fn(&mut PutRequest);
        let lies: &[(Lie, ObjectStatus)] = &[
            (|put| put.offset = 0, ObjectStatus::MALFORMED),
            (|put| put.offset += 1, ObjectStatus::MALFORMED),
            (|put| put.offset -= 1, ObjectStatus::MALFORMED),
            (
                |put| (put.offset, put.ends) = (put.total - put.len, true),
                ObjectStatus::MALFORMED,
            ),
            (|put| put.ends = true, ObjectStatus::MALFORMED),
            (|put| put.total += 1, ObjectStatus::MALFORMED),
            (|put| put.upload += 1, ObjectStatus::MALFORMED),
            (|put| put.begins = true, ObjectStatus::MALFORMED),
            (
                |put| put.name = ObjectName::new("d/other").unwrap(),
                ObjectStatus::MALFORMED,
            ),
            (|put| put.token.clear(), ObjectStatus::TOKEN),
        ];
        let mut there = 0;
        for (lie, status) in lies {
            let mut remote = served.connect();
            let mut upload = served.take_up(&mut remote, &key, total);
            assert_eq!(upload.there(), there);
            if there == 0 {
                put_parts(&mut remote, &mut upload, &data, PART);
                there = part;
            }
            let window = filled(remote.client(), &data[PART..2 * PART]);
            let token = window.token(0..part, ObjectOperation::Put).unwrap();
            let (_, _, number) = upload.object();
            let mut put = good(number, there, &token.to_string());
            lie(&mut put);
            let answered = remote.call_with(RequestBody::Put(put), by(), |request| {
                let (mut header, mut payload) = ([0; HEADER_LEN], Vec::new());
                request.encode(&mut header, &mut payload);
                (header, payload)
            });
            assert_eq!(answered.unwrap_err().status(), Some(*status));
            token.done();
        }
        let mut remote = served.connect();
        let mut upload = served.take_up(&mut remote, &key, total);
        assert_eq!(upload.there(), part);
        put_parts(&mut remote, &mut upload, &data, data.len()).expect("the last");
        assert_is_there(&mut remote, &data);
    });
}

/// A store that keeps nothing, and a directory where nothing may be kept.
#[test]
fn a_store_that_keeps_nothing_begins_at_the_first_byte() {
    for fabric in fabrics() {
        let dir = tempfile::tempdir().unwrap();
        let files = FileStore::open(dir.path()).unwrap();
        files.keep_uploads(KeptLimits::default().count(0));
        let services = [
            serve(&fabric, MemoryStore::new(), config()),
            serve(&fabric, files, config()),
        ];
        for service in &services {
            let data = bytes(3 * PART, 2);
            let (total, key) = (data.len() as u64, UploadKey::random());
            for until in [PART, data.len()] {
                let client = client(&fabric);
                let mut remote = connect(&client, &fabric, service);
                let taken = remote.take_up(NAME, total, &key, &ANY, false, by());
                let mut upload = taken.unwrap();
                assert_eq!(upload.there(), 0);
                let object = put_parts(&mut remote, &mut upload, &data, until);
                assert_eq!(object.is_some(), until == data.len());
                if object.is_some() {
                    assert_is_there(&mut remote, &data);
                }
            }
        }
    }
}
