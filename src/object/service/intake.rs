//! What clients ask for: requests become jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::endpoint::{ConnectionId, Message};
use crate::object::RdmaToken;
use crate::object::service::account::Place;
use crate::object::service::errands::ErrandPace;
use crate::object::service::get_job::GetJob;
use crate::object::service::job::{Job, JobFailure, JobWork};
use crate::object::service::put_job::{OpenUpload, PutJob};
use crate::object::service::shares::Trust;
use crate::object::service::store_desk::StoreAnswer;
use crate::object::service::worker::ServiceWorker;
use crate::object::store::{ListQuery, ObjectNameError, ObjectStore, TakeUp};
use crate::object::wire::{
    ObjectStatus, ObjectWireError, PutRequest, Request, RequestBody, TakeUpRequest, id_and_kind,
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
        let place = match self.place(connection) {
            Ok(place) => place,
            Err(failure) => return self.refuse(connection, names, 0, &failure),
        };
        let job = Job {
            connection,
            place,
            id: request.id,
            kind: request.kind(),
            by: self.by(&request),
            moved_at: self.now,
            waits_since: None,
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

    /// A place for a request. What a client gave up has one until the store is done with it.
    fn place(&self, connection: ConnectionId) -> Result<Arc<Place>, JobFailure> {
        if self.is_stopping() {
            return Err(JobFailure::new(ObjectStatus::CLOSING, "the service ends"));
        }
        let Some(client) = self.clients.get(&connection) else {
            return Err(JobFailure::new(
                ObjectStatus::CLOSING,
                "the connection ends",
            ));
        };
        let (its, taken) = (client.account.places(), self.places.load(Ordering::Relaxed));
        let all = self.config.requests;
        let own = match client.record.trust(0, self.now) {
            Trust::Late => (self.config.connection_requests / 8).max(1),
            Trust::New | Trust::Proven => self.config.connection_requests,
        };
        let busy = |text: String| Err(JobFailure::new(ObjectStatus::BUSY, text));
        if its >= own {
            return busy(format!(
                "{own} requests of this connection are being served: wait for one"
            ));
        }
        // One for each connection is kept: nobody takes them all.
        let kept = self.config.connections.min(all / 2);
        if taken >= all || (its > 0 && taken >= all - kept) {
            return busy(format!(
                "{taken} requests are being served: wait, and ask again"
            ));
        }
        Ok(client.account.place())
    }

    /// Takes a request in.
    fn begin(&mut self, mut job: Job, body: RequestBody) -> Result<(), JobFailure> {
        let (quick, long) = (ErrandPace::Quick, ErrandPace::Long);
        match body {
            RequestBody::Head { name } => {
                let number = self.add(job);
                self.ask(number, quick, move |store| {
                    StoreAnswer::Headed(store.head(&name))
                });
            }
            RequestBody::List(query) => {
                let limit = query.limit.min(self.config.page);
                let query = ListQuery { limit, ..query };
                let place = Arc::clone(&job.place);
                let number = self.add(job);
                self.ask(number, long, move |store| {
                    StoreAnswer::Listed(store.list_while(&query, &|| !place.is_over()))
                });
            }
            RequestBody::Delete { name, etag } => {
                let number = self.add(job);
                self.ask(number, quick, move |store| {
                    StoreAnswer::Deleted(store.delete(&name, etag.as_ref()))
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
                let number = self.add(job);
                self.ask(number, quick, move |store| {
                    StoreAnswer::Opened(store.open(&name))
                });
            }
            RequestBody::Put(put) => return self.begin_put(job, put),
            RequestBody::TakeUp(asked) => {
                self.may_begin((job.connection, asked.upload))?;
                let owner = job.place.account().origin.to_string();
                let number = self.add(job);
                self.ask(number, quick, move |store| {
                    let TakeUpRequest {
                        key,
                        name,
                        total,
                        condition,
                        anew,
                        ..
                    } = &asked;
                    let taken =
                        store.take_up(&TakeUp::new((key, name, *total), condition, *anew, &owner));
                    StoreAnswer::TakenUp(asked, taken)
                });
            }
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
        let number = self.add(job);
        if let Some((name, total, condition)) = first {
            self.ask(number, ErrandPace::Quick, move |store| {
                StoreAnswer::Began(store.begin(&name, total, &condition))
            });
        }
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

    /// Takes a job in.
    fn add(&mut self, job: Job) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.jobs.insert(number, job);
        number
    }

    /// Asks the store for a job.
    pub(super) fn ask(
        &self,
        number: u64,
        pace: ErrandPace,
        question: impl FnOnce(&dyn ObjectStore) -> StoreAnswer + Send + 'static,
    ) {
        if let Some(job) = self.jobs.get(&number) {
            let place = Arc::clone(&job.place);
            self.desk
                .ask((number, place), job.connection, pace, question);
        }
    }
}
