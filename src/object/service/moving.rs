//! How jobs go on: pieces between the store, the buffers and clients' windows; and how they end.

use std::sync::Arc;
use std::time::Instant;

use crate::buffer::BufferMut;
use crate::endpoint::{ConnectionId, Destination};
use crate::object::TransferErrorKind;
use crate::object::server::ChannelEvent;
use crate::object::service::account::BufferHold;
use crate::object::service::errands::ErrandPace;
use crate::object::service::get_job::GetJob;
use crate::object::service::job::{Job, JobFailure, JobWork};
use crate::object::service::put_job::{OpenUpload, PutJob};
use crate::object::service::shares::Asking;
#[cfg(doc)]
use crate::object::service::shares::BufferShares;
use crate::object::service::store_desk::StoreAnswer;
use crate::object::service::worker::{ServiceWorker, TransferNote};
use crate::object::store::{ListPage, StoreCompletion, StoreError};
use crate::object::wire::{Answer, AnswerBody, AnswerHead, Entries, EntryWriter};

/// What a job does next.
enum JobStep {
    Stay,
    Say(AnswerHead),
    /// A put that goes on with another request.
    Part(u64, OpenUpload),
    Commit(OpenUpload),
}

impl ServiceWorker {
    // ---- pieces begin ---------------------------------------------------------------------------

    /// Begins what can be begun of a job; whether there was something.
    pub(super) fn pump_job(&mut self, number: u64) -> bool {
        let Some(mut job) = self.jobs.remove(&number) else {
            return false;
        };
        let mut work = std::mem::replace(&mut job.work, JobWork::Asked);
        let pumped = match &mut work {
            JobWork::Asked => Ok(false),
            JobWork::Get(get) => self.pump_get(number, &mut job, get),
            JobWork::Put(put) => self.pump_put(number, &mut job, put),
        };
        job.work = work;
        self.jobs.insert(number, job);
        match pumped {
            Ok(worked) => self.step(number) || worked,
            Err(failure) => {
                self.fail(number, failure);
                true
            }
        }
    }

    /// One more buffer for a job, if its connection may have one ([`BufferShares`]) and one is
    /// free. A job that has none begins to wait, and one that gets one does not wait any more.
    fn buffer(&mut self, job: &mut Job, in_flight: u32) -> Option<(BufferMut, BufferHold)> {
        let taken = match in_flight < self.config.pieces {
            true => self.take_buffer(job.connection),
            false => None,
        };
        if taken.is_some() {
            if job.waits_since.take().is_some() {
                job.moved_at = self.now;
            }
        } else if in_flight == 0 {
            job.waits_since.get_or_insert(self.now);
        }
        taken
    }

    fn take_buffer(&mut self, connection: ConnectionId) -> Option<(BufferMut, BufferHold)> {
        let client = self.clients.get_mut(&connection)?;
        let (its, origin) = (client.account.buffers(), client.account.origin);
        let trust = client.record.trust(its, self.now);
        let asking = Asking {
            trust,
            origin,
            is_origin_late: self.late_origins.has(origin, self.now),
            its,
        };
        let free = u32::try_from(self.pool.free_count()).unwrap_or(u32::MAX);
        if !self.shares.may_take(&asking, free) {
            return None;
        }
        let buffer = self.pool.try_acquire()?;
        self.shares.add(trust, origin, 1);
        if its == 0 {
            client.record.begins(self.now);
        }
        Some((buffer, client.account.buffer()))
    }

    fn pump_get(
        &mut self,
        number: u64,
        job: &mut Job,
        get: &mut GetJob,
    ) -> Result<bool, JobFailure> {
        let mut worked = self.write_ready(number, job, get)?;
        let Some(object) = get.object.clone() else {
            return Ok(worked);
        };
        while let Some((at, len)) = get.walk.peek() {
            let Some((buffer, hold)) = self.buffer(job, get.walk.in_flight) else {
                break;
            };
            get.walk.begin();
            worked = true;
            let answers = self.desk.answers.clone();
            let done = StoreCompletion::new(move |buffer, result| {
                answers.put(
                    number,
                    StoreAnswer::PieceRead {
                        at,
                        len,
                        buffer,
                        hold,
                        result,
                    },
                );
            });
            crate::contain::contain("an object store", || object.read(at, len, buffer, done));
        }
        Ok(worked)
    }

    /// Has the channel write what was read.
    fn write_ready(
        &mut self,
        number: u64,
        job: &Job,
        get: &mut GetJob,
    ) -> Result<bool, JobFailure> {
        let (Some(token), by) = (&get.token, self.transfer_by(job)) else {
            return Ok(false);
        };
        let mut worked = false;
        while let Some((at, piece, hold)) = get.ready.pop_front() {
            let (key, to) = (self.next_number, at - get.offset);
            match self.channel.handle_get(token, to, piece, key, by) {
                Ok(()) => {
                    worked = true;
                    self.note(number, job, at, hold);
                }
                Err(refused) if refused.kind.is_would_block() => {
                    if let Ok(piece) = refused.given.into_buffer() {
                        get.ready.push_front((at, piece, hold));
                    }
                    break;
                }
                Err(refused) => return Err((&refused.kind).into()),
            }
        }
        Ok(worked)
    }

    fn pump_put(
        &mut self,
        number: u64,
        job: &mut Job,
        put: &mut PutJob,
    ) -> Result<bool, JobFailure> {
        let (Some(token), Some(_)) = (&put.token, &put.upload) else {
            return Ok(false);
        };
        let (mut worked, by) = (false, self.transfer_by(job));
        while let Some((at, len)) = put.walk.peek() {
            let Some((buffer, hold)) = self.buffer(job, put.walk.in_flight) else {
                break;
            };
            let (key, from) = (self.next_number, at - put.asked.offset);
            let into = Destination::buffer(buffer, len);
            match self.channel.handle_put(token, from, into, key, by) {
                Ok(()) => {
                    put.walk.begin();
                    worked = true;
                    self.note(number, job, at, hold);
                }
                Err(refused) if refused.kind.is_would_block() => break,
                Err(refused) => return Err((&refused.kind).into()),
            }
        }
        Ok(worked)
    }

    fn transfer_by(&self, job: &Job) -> Instant {
        job.by.min(self.now + self.config.stall)
    }

    /// The channel took a transfer.
    fn note(&mut self, number: u64, job: &Job, at: u64, hold: BufferHold) {
        let note = TransferNote {
            job: number,
            connection: job.connection,
            at,
            hold,
        };
        self.transfers.insert(self.next_number, note);
        self.next_number += 1;
    }

    // ---- pieces end -----------------------------------------------------------------------------

    /// Something became of a transfer.
    pub(super) fn on_transfer(&mut self, event: ChannelEvent) {
        let key = event.key();
        match event {
            ChannelEvent::Written { payload, .. } => {
                let (len, note) = (payload.len_bytes(), self.transfers.remove(&key));
                drop(payload);
                if let Some(note) = note {
                    self.moved(note.connection);
                    self.written(note.job, len);
                }
            }
            ChannelEvent::Read { into, .. } => {
                if let Some(note) = self.transfers.remove(&key) {
                    self.moved(note.connection);
                    self.arrived(note, into);
                }
            }
            ChannelEvent::WriteFailed { payload, error, .. } => {
                self.transfer_failed(key, payload.is_some(), &error.kind);
            }
            ChannelEvent::ReadFailed { into, error, .. } => {
                self.transfer_failed(key, into.is_some(), &error.kind);
            }
            ChannelEvent::WriteReturned { .. } | ChannelEvent::ReadReturned { .. } => {
                self.late -= usize::from(self.transfers.remove(&key).is_some());
            }
        }
    }

    /// A client has moved.
    fn moved(&mut self, connection: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&connection) {
            client.record.moved(self.now);
        }
    }

    fn transfer_failed(&mut self, key: u64, is_back: bool, kind: &TransferErrorKind) {
        let Some(note) = self.transfers.get(&key) else {
            return;
        };
        let (number, connection) = (note.job, note.connection);
        if matches!(kind, TransferErrorKind::Deadline) {
            let origin = note.hold.account().origin;
            self.late_origins.add(origin, self.now);
            if let Some(client) = self.clients.get_mut(&connection) {
                client.record.was_late(self.now);
            }
        }
        match is_back {
            true => drop(self.transfers.remove(&key)),
            false => self.late += 1,
        }
        self.fail(number, kind.into());
    }

    /// A piece is in the client's window.
    fn written(&mut self, number: u64, len: usize) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        job.moved_at = now;
        if let JobWork::Get(get) = &mut job.work {
            get.walk.end(len);
        }
        self.step(number);
    }

    /// A piece came from the client's window: it goes on to the store.
    fn arrived(&mut self, note: TransferNote, into: Destination) {
        let (len, at, answers) = (into.len(), note.at, self.desk.answers.clone());
        let Some(job) = self.jobs.get_mut(&note.job) else {
            return;
        };
        let JobWork::Put(put) = &mut job.work else {
            return;
        };
        let (Some(upload), Ok(buffer)) = (&mut put.upload, into.into_buffer()) else {
            return;
        };
        let piece = buffer.freeze(len);
        upload.add(at, &piece);
        let number = note.job;
        let hold = note.hold;
        let done = StoreCompletion::new(move |_, result| {
            drop(hold);
            answers.put(number, StoreAnswer::PieceWritten { len, result });
        });
        let upload = &mut upload.upload;
        crate::contain::contain("an object store", || upload.write(at, piece, done));
    }

    // ---- the store answers ----------------------------------------------------------------------

    pub(super) fn on_answer(&mut self, number: u64, answer: StoreAnswer) {
        if let Err(failure) = self.answered(number, answer) {
            self.fail(number, failure);
        }
    }

    fn answered(&mut self, number: u64, answer: StoreAnswer) -> Result<(), JobFailure> {
        let (now, piece_bytes) = (self.now, self.config.piece_bytes);
        let expires = now + self.config.stall;
        let Some(job) = self.jobs.get_mut(&number) else {
            // Nobody waits for it; an upload that was begun is given up.
            self.desk.discard(Late(answer), None);
            return Ok(());
        };
        job.moved_at = now;
        match (answer, &mut job.work) {
            (StoreAnswer::Headed(info), _) => {
                let info = info?;
                self.finish(number, AnswerHead::new(&info, 0, info.checksum));
            }
            (StoreAnswer::Listed(page), _) => self.say_list(number, &page?),
            (StoreAnswer::Deleted(result), _) => {
                result?;
                self.say_done(number, 0);
            }
            (StoreAnswer::Opened(object), JobWork::Get(get)) => {
                get.opened(object?, piece_bytes)?;
                self.step(number);
            }
            (
                StoreAnswer::PieceRead {
                    at,
                    len,
                    buffer,
                    hold,
                    result,
                },
                JobWork::Get(get),
            ) => {
                let read = result?;
                let buffer = buffer.filter(|_| read == len).ok_or(StoreError::Changed)?;
                get.read(at, buffer.freeze(len), hold);
            }
            (StoreAnswer::Began(upload), JobWork::Put(put)) => {
                put.upload = Some(OpenUpload::new(&put.asked, upload?, expires));
                self.step(number);
            }
            (StoreAnswer::TakenUp(asked, taken), _) => {
                let taken = taken?;
                let (total, there, crc64) = (asked.total, taken.there, taken.crc64);
                let key = (job.connection, asked.upload);
                if there > total {
                    let text = format!("an upload of {total} bytes that has {there}");
                    return Err(StoreError::Failed(text).into());
                }
                let upload = OpenUpload::taken_up(asked, taken, expires);
                self.insert_upload(number, key, upload);
                self.tell(
                    number,
                    AnswerBody::TakenUp {
                        total,
                        there,
                        crc64,
                    },
                );
            }
            (StoreAnswer::Marked(upload), JobWork::Put(put)) => {
                let moved = put.walk.moved;
                self.keep_upload(number, moved, *upload);
            }
            (StoreAnswer::PieceWritten { len, result }, JobWork::Put(put)) => {
                if result? != len {
                    return Err(StoreError::NoSpace.into());
                }
                put.walk.end(len);
                self.step(number);
            }
            (StoreAnswer::Committed(info), JobWork::Put(put)) => {
                let head = AnswerHead::new(&info?, put.walk.moved, put.sum);
                self.finish(number, head);
            }
            (StoreAnswer::Broke(text), _) => return Err(StoreError::Failed(text).into()),
            _ => {}
        }
        Ok(())
    }

    // ---- jobs end -------------------------------------------------------------------------------

    /// Looks whether a job is over, or goes on to the next thing.
    fn step(&mut self, number: u64) -> bool {
        match self.next_step(number) {
            Ok(JobStep::Stay) => return false,
            Ok(JobStep::Say(head)) => self.finish(number, head),
            Ok(JobStep::Part(_, upload)) if upload.is_kept() => {
                self.ask(number, ErrandPace::Quick, move |_| {
                    StoreAnswer::Marked(Box::new(upload.mark()))
                });
            }
            Ok(JobStep::Part(moved, upload)) => self.keep_upload(number, moved, upload),
            Ok(JobStep::Commit(upload)) => {
                let crc64 = upload.crc64();
                let commit = move || StoreAnswer::Committed(upload.upload.commit(crc64));
                self.ask(number, ErrandPace::Quick, move |_| commit());
            }
            Err(failure) => self.fail(number, failure),
        }
        true
    }

    fn next_step(&mut self, number: u64) -> Result<JobStep, JobFailure> {
        let Some(job) = self.jobs.get_mut(&number) else {
            return Ok(JobStep::Stay);
        };
        match &mut job.work {
            JobWork::Asked => Ok(JobStep::Stay),
            JobWork::Get(get) => match get.answer() {
                Some(head) => Ok(JobStep::Say(head?)),
                None => Ok(JobStep::Stay),
            },
            JobWork::Put(put) => {
                if !put.walk.is_over() || put.upload.is_none() {
                    return Ok(JobStep::Stay);
                }
                if put.asked.ends {
                    put.check()?;
                }
                Ok(match put.upload.take() {
                    Some(upload) if put.asked.ends => JobStep::Commit(upload),
                    Some(upload) => JobStep::Part(put.walk.moved, upload),
                    None => JobStep::Stay,
                })
            }
        }
    }

    /// Keeps an upload for the next request of it.
    fn keep_upload(&mut self, number: u64, moved: u64, mut upload: OpenUpload) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        // What moved nothing renews nothing.
        if moved > 0 {
            upload.expires = self.now + self.config.stall;
        }
        if let JobWork::Put(put) = &job.work {
            let key = (job.connection, put.asked.upload);
            self.insert_upload(number, key, upload);
        }
        self.say_done(number, moved);
    }

    /// Two at once under one number: the first is given up.
    fn insert_upload(&mut self, number: u64, key: (ConnectionId, u64), upload: OpenUpload) {
        let place = self.jobs.get(&number).map(|job| Arc::clone(&job.place));
        if let Some(first) = self.uploads.insert(key, upload) {
            self.desk.discard(first, place);
        }
    }

    /// A job is over, and its client need not be told.
    pub(super) fn forget(&mut self, number: u64) -> Option<Job> {
        let mut job = self.jobs.remove(&number)?;
        job.place.end();
        if let JobWork::Put(put) = &mut job.work
            && let Some(upload) = put.upload.take()
        {
            self.desk.discard(upload, Some(Arc::clone(&job.place)));
        }
        Some(job)
    }

    pub(super) fn fail(&mut self, number: u64, failure: JobFailure) {
        if let Some(job) = self.forget(number) {
            let names = (job.id, job.kind);
            self.refuse(job.connection, names, job.moved(), &failure);
        }
    }

    fn finish(&mut self, number: u64, head: AnswerHead) {
        self.tell(number, AnswerBody::Object(head));
    }

    fn say_done(&mut self, number: u64, moved: u64) {
        self.tell(number, AnswerBody::Done { moved });
    }

    fn say_list(&mut self, number: u64, page: &ListPage) {
        let mut writer = EntryWriter::default();
        let fit = page
            .objects
            .iter()
            .take_while(|object| writer.push(object))
            .count();
        let more = page.more || fit < page.objects.len();
        let entries = Entries::of(&writer);
        self.tell(number, AnswerBody::List { entries, more });
    }

    fn tell(&mut self, number: u64, body: AnswerBody<'_>) {
        if let Some(job) = self.forget(number) {
            let (id, kind) = (job.id, job.kind);
            self.say(job.connection, &Answer { id, kind, body });
        }
    }
}

/// An answer that nobody waits for: dropped where that may take its time.
struct Late(#[expect(dead_code, reason = "held to be dropped")] StoreAnswer);
