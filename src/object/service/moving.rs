//! How jobs go on: pieces between the store, the buffers and clients' windows; and how they end.

use std::time::Instant;

use crate::endpoint::Destination;
use crate::object::server::ChannelEvent;
use crate::object::service::get_job::GetJob;
use crate::object::service::job::{Job, JobFailure, JobWork};
use crate::object::service::put_job::{OpenUpload, PutJob};
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
            JobWork::Get(get) => self.pump_get(number, &job, get),
            JobWork::Put(put) => self.pump_put(number, &job, put),
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

    /// Whether a job may have one more buffer: the first one whenever there is one, more while half
    /// of them are free. A connection has a fourth of them at most.
    fn may_take(&self, job: &Job, in_flight: u32) -> bool {
        let its = self
            .clients
            .get(&job.connection)
            .map_or(0, |client| client.pieces);
        let (free, slots) = (self.pool.free_count(), self.pool.slots());
        let most = (slots as u32 / 4).max(1);
        in_flight < self.config.pieces && its < most && (in_flight == 0 || 2 * free > slots)
    }

    fn pump_get(&mut self, number: u64, job: &Job, get: &mut GetJob) -> Result<bool, JobFailure> {
        let mut worked = self.write_ready(number, job, get)?;
        let Some(object) = get.object.clone() else {
            return Ok(worked);
        };
        while let Some((at, len)) = get.walk.peek() {
            if !self.may_take(job, get.walk.in_flight) {
                break;
            }
            let Some(buffer) = self.pool.try_acquire() else {
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
        while let Some((at, piece)) = get.ready.pop_front() {
            let (key, to) = (self.next_number, at - get.offset);
            match self.channel.handle_get(token, to, piece, key, by) {
                Ok(()) => {
                    worked = true;
                    self.note(number, job, at);
                }
                Err(refused) if refused.kind.is_would_block() => {
                    if let Ok(piece) = refused.given.into_buffer() {
                        get.ready.push_front((at, piece));
                    }
                    break;
                }
                Err(refused) => return Err((&refused.kind).into()),
            }
        }
        Ok(worked)
    }

    fn pump_put(&mut self, number: u64, job: &Job, put: &mut PutJob) -> Result<bool, JobFailure> {
        let (Some(token), Some(_)) = (&put.token, &put.upload) else {
            return Ok(false);
        };
        let (mut worked, by) = (false, self.transfer_by(job));
        while let Some((at, len)) = put.walk.peek() {
            if !self.may_take(job, put.walk.in_flight) {
                break;
            }
            let Some(buffer) = self.pool.try_acquire() else {
                break;
            };
            let (key, from) = (self.next_number, at - put.asked.offset);
            let into = Destination::buffer(buffer, len);
            match self.channel.handle_put(token, from, into, key, by) {
                Ok(()) => {
                    put.walk.begin();
                    worked = true;
                    self.note(number, job, at);
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
    fn note(&mut self, number: u64, job: &Job, at: u64) {
        let note = TransferNote {
            job: number,
            connection: job.connection,
            at,
        };
        self.transfers.insert(self.next_number, note);
        self.next_number += 1;
        if let Some(client) = self.clients.get_mut(&job.connection) {
            client.pieces += 1;
        }
    }

    // ---- pieces end -----------------------------------------------------------------------------

    /// Something became of a transfer.
    pub(super) fn on_transfer(&mut self, event: ChannelEvent) {
        let key = event.key();
        match event {
            ChannelEvent::Written { payload, .. } => {
                let (len, note) = (payload.len_bytes(), self.settle(key));
                drop(payload);
                if let Some(note) = note {
                    self.written(note.job, len);
                }
            }
            ChannelEvent::Read { into, .. } => {
                if let Some(note) = self.settle(key) {
                    self.arrived(&note, into);
                }
            }
            ChannelEvent::WriteFailed { payload, error, .. } => {
                self.transfer_failed(key, payload.is_some(), &(&error.kind).into());
            }
            ChannelEvent::ReadFailed { into, error, .. } => {
                self.transfer_failed(key, into.is_some(), &(&error.kind).into());
            }
            ChannelEvent::WriteReturned { .. } | ChannelEvent::ReadReturned { .. } => {
                self.late -= usize::from(self.settle(key).is_some());
            }
        }
    }

    /// The channel has nothing of a transfer any more.
    fn settle(&mut self, key: u64) -> Option<TransferNote> {
        let note = self.transfers.remove(&key)?;
        if let Some(client) = self.clients.get_mut(&note.connection) {
            client.pieces = client.pieces.saturating_sub(1);
        }
        Some(note)
    }

    fn transfer_failed(&mut self, key: u64, is_back: bool, failure: &JobFailure) {
        let job = self.transfers.get(&key).map(|note| note.job);
        if is_back {
            self.settle(key);
        } else {
            self.late += usize::from(job.is_some());
        }
        if let Some(number) = job {
            let failure = JobFailure::new(failure.status, failure.text.clone());
            self.fail(number, failure);
        }
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
    fn arrived(&mut self, note: &TransferNote, into: Destination) {
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
        let done = StoreCompletion::new(move |_, result| {
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
            self.desk.discard(Late(answer));
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
                    result,
                },
                JobWork::Get(get),
            ) => {
                let read = result?;
                let buffer = buffer.filter(|_| read == len).ok_or(StoreError::Changed)?;
                get.read(at, buffer.freeze(len));
            }
            (StoreAnswer::Began(upload), JobWork::Put(put)) => {
                put.upload = Some(OpenUpload::new(&put.asked, upload?, expires));
                self.step(number);
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
            Ok(JobStep::Part(moved, upload)) => self.keep_upload(number, moved, upload),
            Ok(JobStep::Commit(upload)) => {
                let crc64 = upload.crc64();
                let commit = move || StoreAnswer::Committed(upload.upload.commit(crc64));
                self.desk.ask(number, move |_| commit());
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
        upload.expires = self.now + self.config.stall;
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        if let JobWork::Put(put) = &job.work {
            let key = (job.connection, put.asked.upload);
            // Two at once under one number: the first is given up.
            if let Some(first) = self.uploads.insert(key, upload) {
                self.desk.discard(first);
            }
        }
        self.say_done(number, moved);
    }

    /// A job is over, and its client need not be told.
    pub(super) fn forget(&mut self, number: u64) -> Option<Job> {
        let mut job = self.jobs.remove(&number)?;
        if let Some(client) = self.clients.get_mut(&job.connection) {
            client.jobs = client.jobs.saturating_sub(1);
        }
        if let JobWork::Put(put) = &mut job.work
            && let Some(upload) = put.upload.take()
        {
            self.desk.discard(upload);
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
