//! `RemoteObjects`: the client of an `ObjectService`.

mod check;
mod list;
mod outcome;
mod remote_config;
mod remote_error;
mod remote_upload;
mod transfer;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::endpoint::{CloseReason, ConnectionEvent, ConnectionId, Message, ReceiveEvent};
use crate::event_loop::EventLoop;
use crate::fabric::{Fabric, PeerAddr};
use crate::object::control::{ControlConfig, ControlMessage, ControlPort, Flushed};
use crate::object::store::{ListPage, ListQuery, ObjectEtag, ObjectName, PutCondition, UploadKey};
use crate::object::wire::{ANSWER_PAYLOAD_MAX, Answer, AnswerBody, HEADER_LEN};
use crate::object::wire::{REQUEST_PAYLOAD_MAX, Request, RequestBody, TakeUpRequest};
use crate::object::{ObjectClient, ObjectMemory};

pub use list::RemoteList;
pub use outcome::RemoteObject;
pub use remote_config::RemoteConfig;
pub use remote_error::RemoteError;
pub use remote_upload::RemoteUpload;
use transfer::{AskedPart, GetTransfer, PutTransfer};

/// How long it sleeps at most while it waits: the client's window is to be served meanwhile.
const NAP: Duration = Duration::from_micros(500);
/// How often it says that a request is given up, which nobody answers.
const CANCEL_WAITING_MAX: usize = 16;

/// The client of an [`ObjectService`](crate::object::ObjectService): one connection, one request at
/// a time.
///
/// Bytes move between the service and memory that an [`ObjectClient`] has registered, by one-sided
/// operations of the service. Every call has a deadline; who gives up says so to the service, and
/// the memory is kept from being lent again until nothing can land in it any more
/// ([`ObjectError::Quarantined`](crate::object::ObjectError::Quarantined)).
///
/// Checksums are on by default: those of a GET are computed over what landed, and compared with
/// the service's; those of a PUT are sent along, and the service compares before the object is
/// there. Memory that the host can't read goes without ([`RemoteObject::is_checked`]).
///
/// [`ObjectService`](crate::object::ObjectService) has an example.
#[derive(Debug)]
pub struct RemoteObjects {
    client: ObjectClient,
    config: RemoteConfig,
    address: PeerAddr,
    event_loop: EventLoop,
    port: ControlPort,
    connection: ConnectionId,
    state: RemoteState,
    outbox: VecDeque<ControlMessage>,
    /// Of requests and of uploads.
    next_number: u64,
}

#[derive(Debug, Clone)]
enum RemoteState {
    Connecting,
    Connected,
    Closed(Option<CloseReason>),
}

impl RemoteObjects {
    /// Connects to a service: over this fabric, at an address that
    /// [`ObjectService::local_addr`](crate::object::ObjectService::local_addr) said.
    ///
    /// # Errors
    /// [`RemoteError::Endpoint`], [`RemoteError::TimedOut`] after
    /// [`connect_timeout`](RemoteConfig::connect_timeout), [`RemoteError::Closed`].
    pub fn connect(
        client: &ObjectClient,
        control: &Arc<Fabric>,
        address: &PeerAddr,
        config: RemoteConfig,
    ) -> Result<Self, RemoteError> {
        let domain = control.open_domain()?;
        let settings = ControlConfig {
            connections: 1,
            of_host: None,
            incoming: ANSWER_PAYLOAD_MAX,
            outgoing: REQUEST_PAYLOAD_MAX,
            connect_timeout: config.connect_timeout,
            lost_after: config.lost_after,
        };
        let mut port = ControlPort::dialing(&domain, &settings)?;
        let mut event_loop = EventLoop::new()?;
        event_loop.add_endpoint(&port)?;
        let connection = port.dial(address)?;
        let mut remote = Self {
            client: client.clone(),
            address: *address,
            event_loop,
            port,
            connection,
            state: RemoteState::Connecting,
            outbox: VecDeque::new(),
            next_number: 1,
            config,
        };
        remote.wait_connected()?;
        Ok(remote)
    }

    /// Connects anew, where the connection is lost. What was half put before is gone.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn reconnect(&mut self) -> Result<(), RemoteError> {
        if self.is_connected() {
            return Ok(());
        }
        self.outbox.clear();
        self.connection = self.port.dial(&self.address)?;
        self.state = RemoteState::Connecting;
        self.wait_connected()
    }

    /// Whether the connection stands, as far as is known.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, RemoteState::Connected)
    }

    /// The client whose memory is used.
    pub fn client(&self) -> &ObjectClient {
        &self.client
    }

    /// Says what there is under a name.
    ///
    /// # Errors
    /// [`RemoteError`]; [`ObjectStatus::NOT_FOUND`](crate::object::ObjectStatus::NOT_FOUND) in
    /// [`RemoteError::Refused`] where there is nothing.
    pub fn head(&mut self, name: &str, deadline: Instant) -> Result<RemoteObject, RemoteError> {
        let name = ObjectName::new(name)?;
        self.call(RequestBody::Head { name }, deadline, |body| match body {
            AnswerBody::Object(head) => Ok(RemoteObject::new(head, false)),
            _ => Err(RemoteError::Violation(
                "an answer to head without an object",
            )),
        })
    }

    /// Gets bytes of an object, from `offset` on, into a range of the memory. It ends early where
    /// the object does: [`RemoteObject::moved`] says how many bytes came.
    ///
    /// A range that is longer than the memory's
    /// [`max_callback_size`](ObjectMemory::max_callback_size) is several requests, all for one
    /// version of the object.
    ///
    /// # Errors
    /// [`RemoteError`]. What is in the range then is anything.
    pub fn get(
        &mut self,
        name: &str,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
        deadline: Instant,
    ) -> Result<RemoteObject, RemoteError> {
        let name = ObjectName::new(name)?;
        let client = self.client.clone();
        let mut transfer = GetTransfer::new(self, name, deadline);
        if range.start == range.end {
            transfer.ask(AskedPart::empty(offset))?;
        } else {
            let got = client.get(&mut transfer, memory, range, offset);
            got.map_err(RemoteError::of_transfer)?;
        }
        transfer.finish(memory)
    }

    /// Puts a range of the memory as an object, all at once, if the condition holds. Who reads sees
    /// what was there before, or all of the new object.
    ///
    /// # Errors
    /// [`RemoteError`]. After [`RemoteError::TimedOut`] and [`RemoteError::Closed`] it is not known
    /// whether the object is there; otherwise nothing has changed.
    pub fn put(
        &mut self,
        name: &str,
        memory: &ObjectMemory,
        range: Range<u64>,
        condition: &PutCondition,
        deadline: Instant,
    ) -> Result<RemoteObject, RemoteError> {
        let name = ObjectName::new(name)?;
        let client = self.client.clone();
        let total = range.end.saturating_sub(range.start);
        let given = match self.config.checksum {
            Some(kind) => check::sum_of(memory, range.start, total, kind)?,
            None => None,
        };
        let upload = self.number();
        let object = (name, total, upload);
        let mut transfer = PutTransfer::new(self, object, condition, given, deadline);
        if range.start == range.end {
            transfer.ask(AskedPart::empty(0))?;
        } else {
            let put = client.put(&mut transfer, memory, range, 0);
            put.map_err(RemoteError::of_transfer)?;
        }
        transfer.finish()
    }

    /// Begins to put an object of `total` bytes in parts, or goes on where it was cut: under a key
    /// that only this client knows. What is there already is in
    /// [`RemoteUpload::there`], with its checksum: compare that with what is to be put, and begin
    /// `anew` where it is something else. Services whose store keeps nothing begin at byte 0.
    ///
    /// A service keeps what is there for a while, and within limits
    /// ([`FileStore::keep_uploads`](crate::object::FileStore::keep_uploads)), also when the
    /// connection or the service ends; nobody sees it before it is whole.
    ///
    /// # Errors
    /// [`RemoteError`]; [`ObjectStatus::BUSY`](crate::object::ObjectStatus::BUSY) in
    /// [`RemoteError::Refused`] while another connection has the upload, which may be one that the
    /// service has not given up yet.
    pub fn take_up(
        &mut self,
        name: &str,
        total: u64,
        key: &UploadKey,
        condition: &PutCondition,
        anew: bool,
        deadline: Instant,
    ) -> Result<RemoteUpload, RemoteError> {
        let name = ObjectName::new(name)?;
        let upload = self.number();
        let body = RequestBody::TakeUp(TakeUpRequest {
            name: name.clone(),
            total,
            upload,
            key: *key,
            anew,
            condition: condition.clone(),
        });
        let (there, crc64) = self.call(body, deadline, |body| match body {
            AnswerBody::TakenUp {
                total: said,
                there,
                crc64,
            } if said == total && !(anew && there > 0) => Ok((there, crc64)),
            _ => Err(RemoteError::Violation(
                "an answer to an upload that does not fit",
            )),
        })?;
        let object = (name, total, upload);
        Ok(RemoteUpload::new(object, condition, (there, crc64)))
    }

    /// Puts the next part of an object: a range of the memory that becomes the bytes behind those
    /// that are [there](RemoteUpload::there). With the last one the object is there, and is what is
    /// returned.
    ///
    /// # Errors
    /// [`RemoteError`]; the upload has to be [taken up](Self::take_up) again then. After
    /// [`RemoteError::TimedOut`] and [`RemoteError::Closed`] of the last part it is not known
    /// whether the object is there.
    pub fn put_part(
        &mut self,
        upload: &mut RemoteUpload,
        memory: &ObjectMemory,
        range: Range<u64>,
        deadline: Instant,
    ) -> Result<Option<RemoteObject>, RemoteError> {
        let client = self.client.clone();
        let len = range.end.saturating_sub(range.start);
        upload.add(memory, range.start, len)?;
        let (object, there) = (upload.object(), upload.there());
        let condition = upload.condition().clone();
        let given = upload.given();
        let mut transfer = PutTransfer::new(self, object, &condition, given, deadline);
        transfer.goes_on();
        if range.start == range.end {
            transfer.ask(AskedPart::empty(there))?;
        } else {
            let put = client.put(&mut transfer, memory, range, there);
            put.map_err(RemoteError::of_transfer)?;
        }
        let is_over = upload.moved(len);
        is_over.then(|| transfer.finish()).transpose()
    }

    /// Removes an object; where an etag is given, only the version that has it.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn delete(
        &mut self,
        name: &str,
        etag: Option<&ObjectEtag>,
        deadline: Instant,
    ) -> Result<(), RemoteError> {
        let (name, etag) = (ObjectName::new(name)?, etag.cloned());
        self.call(
            RequestBody::Delete { name, etag },
            deadline,
            |body| match body {
                AnswerBody::Done { .. } => Ok(()),
                _ => Err(RemoteError::Violation("an answer to delete that is none")),
            },
        )
    }

    /// Lists objects whose names begin with the prefix, in the order of the bytes of their names.
    /// Parts of the list are asked for as it is read.
    pub fn list(&mut self, prefix: &str, deadline: Instant) -> RemoteList<'_> {
        RemoteList::new(self, prefix, deadline)
    }

    /// One part of a list, which may have fewer objects than the query allows.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn list_page(
        &mut self,
        query: &ListQuery,
        deadline: Instant,
    ) -> Result<ListPage, RemoteError> {
        for text in [&query.prefix, &query.start_after] {
            crate::object::store::check_text(text)?;
        }
        let body = RequestBody::List(query.clone());
        self.call(body, deadline, |body| match body {
            AnswerBody::List { entries, more } => list::page_of(query, entries, more),
            _ => Err(RemoteError::Violation("an answer to list without a list")),
        })
    }

    /// Asks, and waits for the answer.
    fn call<T>(
        &mut self,
        body: RequestBody,
        deadline: Instant,
        understand: impl FnOnce(AnswerBody<'_>) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        self.take_events::<()>(&mut |_| None)?;
        if let RemoteState::Closed(reason) = &self.state {
            return Err(RemoteError::Closed(*reason));
        }
        let begin = Instant::now();
        let left = deadline.saturating_duration_since(begin);
        let request = Request {
            id: self.number(),
            // At least 1, since 0 says nothing.
            budget_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1),
            body,
        };
        self.push(&request);
        let id = request.id;
        let mut understand = Some(understand);
        let kind = request.kind();
        let mut take = |message: &Message| {
            let answer = match Answer::parse(message.header(), message.payload()) {
                Ok(answer) if answer.id == id => answer,
                // To a request that was given up.
                Ok(_) => return None,
                Err(error) => return Some(Err(error.into())),
            };
            Some(match (answer.body, understand.take()) {
                (
                    AnswerBody::Refused {
                        status,
                        moved,
                        text,
                    },
                    _,
                ) => Err(RemoteError::Refused {
                    status,
                    moved,
                    text,
                }),
                (body, Some(understand)) if answer.kind == kind => understand(body),
                _ => Err(RemoteError::Violation("an answer of another kind")),
            })
        };
        match self.wait(deadline, &mut take)? {
            Some(answered) => answered,
            None => {
                self.cancel(id);
                Err(RemoteError::TimedOut {
                    waited: begin.elapsed(),
                })
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn push(&mut self, request: &Request) {
        let mut message = ControlMessage {
            header: [0; HEADER_LEN],
            payload: Vec::new(),
        };
        request.encode(&mut message.header, &mut message.payload);
        self.outbox.push_back(message);
    }

    /// Says that a request is given up; the answer may come all the same.
    fn cancel(&mut self, id: u64) {
        if self.outbox.len() < CANCEL_WAITING_MAX {
            let body = RequestBody::Cancel;
            self.push(&Request {
                id,
                budget_ms: 0,
                body,
            });
        }
        // An error is told by the next call.
        let _ = self.take_events::<()>(&mut |_| None);
    }
}

/// What is done with a message: something, when it is what was waited for.
type Take<'t, T> = dyn FnMut(&Message) -> Option<T> + 't;

impl RemoteObjects {
    fn wait_connected(&mut self) -> Result<(), RemoteError> {
        let begin = Instant::now();
        let deadline = begin + self.config.connect_timeout;
        loop {
            self.take_events::<()>(&mut |_| None)?;
            match &self.state {
                RemoteState::Connected => return Ok(()),
                RemoteState::Closed(reason) => return Err(RemoteError::Closed(*reason)),
                RemoteState::Connecting if Instant::now() >= deadline => {
                    self.port.abort(self.connection);
                    self.state = RemoteState::Closed(None);
                    let waited = begin.elapsed();
                    return Err(RemoteError::TimedOut { waited });
                }
                RemoteState::Connecting => self.sleep(deadline)?,
            }
        }
    }

    /// Until something was taken, or the deadline: `None`.
    fn wait<T>(
        &mut self,
        deadline: Instant,
        take: &mut Take<'_, T>,
    ) -> Result<Option<T>, RemoteError> {
        loop {
            if let Some(taken) = self.take_events(take)? {
                return Ok(Some(taken));
            }
            if let RemoteState::Closed(reason) = &self.state {
                return Err(RemoteError::Closed(*reason));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.sleep(deadline)?;
        }
    }

    /// Serves the connection and the client's window.
    fn take_events<T>(&mut self, take: &mut Take<'_, T>) -> Result<Option<T>, RemoteError> {
        self.client.progress();
        let mut events = Vec::new();
        self.port.poll(&mut events)?;
        let mut taken = None;
        for event in events {
            match event {
                ReceiveEvent::Connection(id, event) if id == self.connection => {
                    self.on_connection(event);
                }
                ReceiveEvent::Message(message) if taken.is_none() => taken = take(&message),
                _ => {}
            }
        }
        if self.is_connected() {
            let flushed = self.port.flush(self.connection, &mut self.outbox);
            if flushed == Flushed::Dead {
                self.port.abort(self.connection);
                self.state = RemoteState::Closed(None);
            }
        }
        Ok(taken)
    }

    fn on_connection(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Connected(_) => self.state = RemoteState::Connected,
            ConnectionEvent::Disconnected(reason) => {
                self.state = RemoteState::Closed(Some(reason));
            }
            _ => {}
        }
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.event_loop.run_once(Some(left.min(NAP)), |_, _| {})?;
        Ok(())
    }
}

/// For tests of what clients of others may say.
#[cfg(all(test, not(loom)))]
impl RemoteObjects {
    /// Sends what this makes of a request, and takes any answer that is no refusal.
    pub(super) fn call_with(
        &mut self,
        body: RequestBody,
        deadline: Instant,
        encode: impl FnOnce(&Request) -> ([u8; HEADER_LEN], Vec<u8>),
    ) -> Result<(), RemoteError> {
        let id = self.number();
        let request = Request {
            id,
            budget_ms: 0,
            body,
        };
        let (header, payload) = encode(&request);
        self.outbox.push_back(ControlMessage { header, payload });
        let mut take = |message: &Message| {
            let answer = Answer::parse(message.header(), message.payload()).unwrap();
            assert_eq!(answer.id, id);
            Some(match answer.body {
                AnswerBody::Refused {
                    status,
                    moved,
                    text,
                } => Err(RemoteError::Refused {
                    status,
                    moved,
                    text,
                }),
                _ => Ok(()),
            })
        };
        self.wait(deadline, &mut take)?.expect("an answer in time")
    }
}
