//! What clients ask for: requests become jobs.

use std::time::Instant;

use crate::endpoint::{ConnectionId, Message};
use crate::object::RdmaToken;
use crate::object::service::get_job::GetJob;
use crate::object::service::job::{Job, JobFailure, JobWork};
use crate::object::service::put_job::{OpenUpload, PutJob};
use crate::object::service::store_desk::StoreAnswer;
use crate::object::service::worker::ServiceWorker;
use crate::object::store::{ListQuery, ObjectNameError};
use crate::object::wire::{
    ObjectStatus, ObjectWireError, PutRequest, Request, RequestBody, id_and_kind,
};

impl ServiceWorker {
    /// A client said something.
    pub(super) fn on_message(&mut self, message: &Message) {
        let connection = message.connection();
        if !self.clients.contains_key(&connection) {
            return;
        }
        match Request::parse(message.header(), message.payload()) {
            Ok(request) => self.on_request(connection, request),
            // A name that is none is the user's error, and not the program's.
            Err(ObjectWireError::Name(error)) => self.refuse_name(message, error),
            Err(error) => {
                tracing::debug!(%error, ?connection, "a client of objects makes no sense");
                self.abort(connection);
            }
        }
    }

    fn refuse_name(&mut self, message: &Message, error: ObjectNameError) {
        match id_and_kind(message.header()) {
            Some(names) => self.refuse(message.connection(), names, 0, &error.into()),
            None => self.abort(message.connection()),
        }
    }

    fn on_request(&mut self, connection: ConnectionId, request: Request) {
        if request.body == RequestBody::Cancel {
            if let Some(number) = self.find(connection, request.id) {
                self.forget(number);
            }
            return;
        }
        if self.find(connection, request.id).is_some() {
            tracing::debug!(?connection, "a client of objects used a number twice");
            self.abort(connection);
            return;
        }
        let names = (request.id, request.kind());
        if let Err(failure) = self.has_room(connection) {
            self.refuse(connection, names, 0, &failure);
            return;
        }
        let job = Job {
            connection,
            id: request.id,
            kind: request.kind(),
            by: self.by(&request),
            moved_at: self.now,
            work: JobWork::Asked,
        };
        match self.begin(job, request.body) {
            Ok(()) => {}
            Err(failure) => self.refuse(connection, names, 0, &failure),
        }
    }

    fn find(&self, connection: ConnectionId, id: u64) -> Option<u64> {
        let mut jobs = self.jobs.iter();
        let found = jobs.find(|(_, job)| job.connection == connection && job.id == id);
        found.map(|(number, _)| *number)
    }

    fn by(&self, request: &Request) -> Instant {
        let budget = self.config.budget;
        self.now + request.budget().map_or(budget, |asked| asked.min(budget))
    }

    fn has_room(&self, connection: ConnectionId) -> Result<(), JobFailure> {
        if self.is_stopping() {
            return Err(JobFailure::new(ObjectStatus::CLOSING, "the service ends"));
        }
        let its = self
            .clients
            .get(&connection)
            .map_or(0, |client| client.jobs);
        let (own, all) = (self.config.connection_requests, self.config.requests);
        if its >= own {
            let text = format!("{own} requests of this connection are being served: wait for one");
            return Err(JobFailure::new(ObjectStatus::BUSY, text));
        }
        if self.jobs.len() >= all as usize {
            let text = format!("{all} requests are being served: wait, and ask again");
            return Err(JobFailure::new(ObjectStatus::BUSY, text));
        }
        Ok(())
    }

    /// Takes a request in.
    fn begin(&mut self, mut job: Job, body: RequestBody) -> Result<(), JobFailure> {
        match body {
            RequestBody::Head { name } => {
                self.add(job, |worker, number| {
                    worker
                        .desk
                        .ask(number, move |store| StoreAnswer::Headed(store.head(&name)));
                });
            }
            RequestBody::List(query) => {
                let limit = query.limit.min(self.config.page);
                let query = ListQuery { limit, ..query };
                self.add(job, |worker, number| {
                    worker
                        .desk
                        .ask(number, move |store| StoreAnswer::Listed(store.list(&query)));
                });
            }
            RequestBody::Delete { name, etag } => {
                self.add(job, |worker, number| {
                    worker.desk.ask(number, move |store| {
                        StoreAnswer::Deleted(store.delete(&name, etag.as_ref()))
                    });
                });
            }
            RequestBody::Get {
                name,
                offset,
                len,
                etag,
                checksum,
                token,
            } => {
                let token = self.token_of(job.connection, &token)?;
                let get = GetJob::new(token, (offset, len), etag, checksum);
                job.work = JobWork::Get(Box::new(get));
                self.add(job, |worker, number| {
                    worker
                        .desk
                        .ask(number, move |store| StoreAnswer::Opened(store.open(&name)));
                });
            }
            RequestBody::Put(put) => return self.begin_put(job, put),
            RequestBody::Cancel => {}
        }
        Ok(())
    }

    fn begin_put(&mut self, mut job: Job, asked: PutRequest) -> Result<(), JobFailure> {
        let token = self.token_of(job.connection, &asked.token)?;
        let PutRequest { offset, len, .. } = asked;
        if len > 0 && token.as_ref().is_none_or(|token| token.len() < len) {
            let text = format!("the token names fewer than the {len} bytes that are to be moved");
            return Err(JobFailure::new(ObjectStatus::TOKEN, text));
        }
        if (asked.begins && offset != 0) || (asked.ends && offset + len != asked.total) {
            return Err(JobFailure::malformed(
                "a put begins at 0 and ends at the total",
            ));
        }
        let key = (job.connection, asked.upload);
        let (upload, first) = match asked.begins {
            true => {
                self.may_begin(key)?;
                let first = (asked.name.clone(), asked.total, asked.condition.clone());
                (None, Some(first))
            }
            false => (Some(self.take_upload(key, &asked)?), None),
        };
        let put = PutJob::new(token, asked, upload, self.config.piece_bytes);
        job.work = JobWork::Put(Box::new(put));
        self.add(job, |worker, number| {
            if let Some((name, total, condition)) = first {
                worker.desk.ask(number, move |store| {
                    StoreAnswer::Began(store.begin(&name, total, &condition))
                });
            }
        });
        Ok(())
    }

    /// The token of a request, if it has one, and may have it.
    fn token_of(
        &self,
        connection: ConnectionId,
        text: &str,
    ) -> Result<Option<RdmaToken>, JobFailure> {
        let token: Option<RdmaToken> = match text {
            "" => None,
            text => Some(text.parse()?),
        };
        let asker = self
            .clients
            .get(&connection)
            .and_then(|client| client.address);
        if let Some(token) = &token {
            let checked = self
                .channel
                .check_asker(&self.networks, token, asker.as_ref());
            checked.map_err(|refused| JobFailure::from(&refused))?;
        }
        Ok(token)
    }

    /// Whether a connection may have one more object half put.
    fn may_begin(&self, key: (ConnectionId, u64)) -> Result<(), JobFailure> {
        if self.uploads.contains_key(&key) {
            return Err(JobFailure::malformed(
                "an object is being put under that number",
            ));
        }
        let its = self
            .uploads
            .keys()
            .filter(|(connection, _)| *connection == key.0);
        if its.count() >= self.config.connection_requests as usize {
            let text = "too many objects of this connection are half put: end one first";
            return Err(JobFailure::new(ObjectStatus::BUSY, text));
        }
        Ok(())
    }

    fn take_upload(
        &mut self,
        key: (ConnectionId, u64),
        put: &PutRequest,
    ) -> Result<OpenUpload, JobFailure> {
        let gone = || JobFailure::malformed("no object is being put under that number any more");
        let upload = self.uploads.get(&key).ok_or_else(gone)?;
        let is_same = upload.name == put.name && upload.total == put.total;
        if !is_same || upload.next() != put.offset {
            return Err(JobFailure::malformed(
                "a put goes on with another name, total or offset",
            ));
        }
        self.uploads.remove(&key).ok_or_else(gone)
    }

    /// Takes a job in, and then begins it.
    fn add(&mut self, job: Job, begin: impl FnOnce(&Self, u64)) {
        let number = self.next_number;
        self.next_number += 1;
        if let Some(client) = self.clients.get_mut(&job.connection) {
            client.jobs += 1;
        }
        self.jobs.insert(number, job);
        begin(self, number);
    }
}
