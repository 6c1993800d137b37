//! What a client and a service of objects say to each other: one header of 64 bytes a message, and
//! a payload behind it.
//!
//! Everything is little-endian and written down byte by byte in `docs/wire.md`, "Objects". A parser
//! trusts nothing: it never panics, allocates no more than the bytes that came, and says with an
//! [`ObjectWireError`] what it did not like. A message has one encoding: what is understood would
//! be written again as it was.
//!
//! ```text
//!  client                                   service
//!    │ Request{id, get, name, token} ─────────►│
//!    │◄═══════════ RMA writes into the window ═│
//!    │◄───────────── Answer{id, etag, checksum}│
//! ```

mod answer;
mod entries;
mod layout;
mod put_request;
mod request;
mod status;
mod wire_error;

pub(crate) use answer::{Answer, AnswerBody, AnswerHead, line};
pub(crate) use entries::{Entries, EntryWriter};
pub(crate) use put_request::{PutRequest, TakeUpRequest};
pub(crate) use request::{Request, RequestBody, id_and_kind};
pub use status::ObjectStatus;
pub use wire_error::ObjectWireError;

/// Bytes of every header.
pub(crate) const HEADER_LEN: usize = 64;
/// The longest payload of a request, in bytes: a name, a token and an etag.
pub(crate) const REQUEST_PAYLOAD_MAX: usize = 2048;
/// The longest payload of an answer, in bytes: a part of a list.
pub(crate) const ANSWER_PAYLOAD_MAX: usize = 16 * 1024;
/// The longest text of an error, in bytes.
pub(crate) const TEXT_MAX: usize = 512;
/// The longest text of a token, in bytes.
pub(crate) const TOKEN_MAX: usize = 512;

/// Both parsers over bytes that anybody may have made: what is understood is written again as it
/// was.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(bytes: &[u8]) {
    let (header, payload) = bytes.split_at(bytes.len().min(HEADER_LEN));
    let mut again = [0; HEADER_LEN];
    let mut room = Vec::new();
    if let Ok(request) = Request::parse(header, payload) {
        request.encode(&mut again, &mut room);
        assert_eq!((&again[..], &room[..]), (header, payload), "{request:?}");
    }
    room.clear();
    if let Ok(answer) = Answer::parse(header, payload) {
        answer.encode(&mut again, &mut room);
        assert_eq!((&again[..], &room[..]), (header, payload), "{answer:?}");
        if let AnswerBody::List { entries, .. } = answer.body {
            assert!(
                entries
                    .iter()
                    .all(|entry| entry.name.as_str().len() <= 1024)
            );
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "wire/tests/mod.rs"]
mod tests;
