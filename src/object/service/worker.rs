//! `ServiceWorker`: one thread of a service: connections, jobs, and the channel that moves bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::Error;
use crate::buffer::{SharedBufferConfig, SharedBufferManager};
use crate::endpoint::origin::Origin;
use crate::endpoint::{ConnectionEvent, ConnectionId, ReceiveEvent};
use crate::event_loop::{EventLoop, Waker};
use crate::fabric::{Domain, PeerAddr};
use crate::id::IdMap;
use crate::memory::Region;
use crate::object::control::{ControlConfig, ControlMessage, ControlPort, Flushed};
use crate::object::server::{ClientNetworks, ObjectChannel, ObjectServer};
use crate::object::service::ObjectServiceConfig;
use crate::object::service::account::{Account, BufferHold};
use crate::object::service::job::{Job, JobFailure};
use crate::object::service::put_job::OpenUpload;
use crate::object::service::shares::{BufferShares, LateOrigins, Record, Trust};
use crate::object::service::store_desk::{AnswerQueue, StoreAnswer, StoreDesk};
use crate::object::store::ObjectStore;
use crate::object::wire::{ANSWER_PAYLOAD_MAX, Answer, AnswerBody, HEADER_LEN, ObjectStatus};
use crate::object::wire::{REQUEST_PAYLOAD_MAX, line};

/// How often deadlines are looked at, and how long a sleep without transfers is at most.
const TICK: Duration = Duration::from_millis(20);
/// The same while there is nothing to do.
const IDLE: Duration = Duration::from_secs(1);
/// The shortest and longest sleep while bytes move: new requests wait so long.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
/// Where buffers begin: what direct I/O wants.
const ALIGNMENT: usize = 4096;

/// One connection.
pub(super) struct ServiceClient {
    /// Answers that wait for room.
    pub(super) outbox: VecDeque<ControlMessage>,
    /// Where it asks from.
    pub(super) address: Option<PeerAddr>,
    pub(super) account: Arc<Account>,
    pub(super) record: Record,
}

/// A transfer that the channel has.
pub(super) struct TransferNote {
    pub(super) job: u64,
    pub(super) connection: ConnectionId,
    /// Where in the object it begins.
    pub(super) at: u64,
    pub(super) hold: BufferHold,
}

/// By when a worker is to be over, once it was told to stop.
pub(super) type StopBy = Arc<Mutex<Option<Instant>>>;

/// One thread of a service.
pub(super) struct ServiceWorker {
    pub(super) config: ObjectServiceConfig,
    pub(super) port: ControlPort,
    event_loop: EventLoop,
    pub(super) channel: ObjectChannel,
    /// Where clients may be.
    pub(super) networks: ClientNetworks,
    pub(super) pool: SharedBufferManager,
    pub(super) desk: StoreDesk,
    answers: Receiver<(u64, StoreAnswer)>,
    pub(super) clients: IdMap<ConnectionId, ServiceClient>,
    /// Of connections that have gone, and still have buffers.
    gone: Vec<Arc<Account>>,
    /// Places that are taken.
    pub(super) places: Arc<AtomicU32>,
    pub(super) shares: BufferShares,
    pub(super) late_origins: LateOrigins,
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) uploads: HashMap<(ConnectionId, u64), OpenUpload>,
    pub(super) transfers: IdMap<u64, TransferNote>,
    /// Those among them that failed, and whose memory the provider still has.
    pub(super) late: usize,
    /// Of jobs and transfers.
    pub(super) next_number: u64,
    /// The job that is served first in the next turn.
    first: u64,
    stop: StopBy,
    pub(super) now: Instant,
    looked_at: Instant,
    nap: Duration,
}

impl ServiceWorker {
    pub(super) fn open(
        store: &Arc<dyn ObjectStore>,
        control: &Arc<Domain>,
        listen: PeerAddr,
        server: &ObjectServer,
        networks: &ClientNetworks,
        config: &ObjectServiceConfig,
    ) -> Result<Self, Error> {
        let port = ControlPort::listen(
            control,
            listen,
            &ControlConfig {
                connections: config.connections,
                of_host: Some(config.connections_of_host()),
                incoming: REQUEST_PAYLOAD_MAX,
                outgoing: ANSWER_PAYLOAD_MAX,
                connect_timeout: config.lost_after,
                lost_after: config.lost_after,
            },
        )?;
        let mut event_loop = EventLoop::new()?;
        event_loop.add_endpoint(&port)?;
        let (queue, answers) = AnswerQueue::new(event_loop.waker());
        let now = Instant::now();
        Ok(Self {
            port,
            event_loop,
            channel: server.channel()?,
            networks: networks.clone(),
            pool: pieces(server.domain(), config)?,
            desk: StoreDesk::open(Arc::clone(store), config.store_threads, queue)?,
            answers,
            clients: IdMap::default(),
            gone: Vec::new(),
            places: Arc::default(),
            shares: BufferShares::default(),
            late_origins: LateOrigins::default(),
            jobs: BTreeMap::new(),
            uploads: HashMap::new(),
            transfers: IdMap::default(),
            late: 0,
            next_number: 1,
            first: 0,
            stop: StopBy::default(),
            now,
            looked_at: now,
            nap: NAP_MIN,
            config: config.clone(),
        })
    }

    /// Where it listens.
    pub(super) fn local_addr(&self) -> Option<PeerAddr> {
        self.port.local_addr()
    }

    /// How it is told to stop.
    pub(super) fn stopper(&self) -> (StopBy, Waker) {
        (Arc::clone(&self.stop), self.event_loop.waker())
    }

    /// Until it is told to stop, or something broke for good.
    pub(super) fn run(mut self) {
        let mut by = None;
        while let Ok(worked) = self.turn() {
            by = *self.stop.lock().unwrap_or_else(|it| it.into_inner());
            let is_idle = self.jobs.is_empty();
            if by.is_some_and(|by| is_idle || self.now >= by) {
                break;
            }
            if let Err(error) = self.rest(worked) {
                tracing::error!(%error, "a service of objects can't wait any more");
                break;
            }
        }
        let by = by.unwrap_or(self.now);
        self.end(by);
    }

    /// Whether it was told to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop
            .lock()
            .unwrap_or_else(|it| it.into_inner())
            .is_some()
    }

    fn end(mut self, by: Instant) {
        for number in self.jobs.keys().copied().collect::<Vec<_>>() {
            let text = "the service ends";
            self.fail(number, JobFailure::new(ObjectStatus::CLOSING, text));
        }
        self.flush();
        for (_, upload) in self.uploads.drain() {
            self.desk.discard(upload, None);
        }
        self.desk.end();
        self.port.close(by);
        drop(self.channel.close(by));
        self.desk.close(by);
    }

    /// Everything that there is to do now; whether there was something.
    fn turn(&mut self) -> Result<bool, Error> {
        self.now = Instant::now();
        let mut worked = self.take_control()?;
        worked |= self.take_transfers()?;
        worked |= self.desk.work();
        worked |= self.take_answers();
        worked |= self.pump();
        // What the store answered at once.
        worked |= self.take_answers();
        self.check_times();
        self.flush();
        Ok(worked)
    }

    fn take_control(&mut self) -> Result<bool, Error> {
        let mut events = Vec::new();
        if let Err(error) = self.port.poll(&mut events) {
            tracing::error!(%error, "the control endpoint of a service of objects failed");
            return Err(error);
        }
        let worked = !events.is_empty();
        for event in events {
            match event {
                ReceiveEvent::Connection(id, ConnectionEvent::Connected(info)) => {
                    self.connected(id, info.peer);
                }
                ReceiveEvent::Connection(id, ConnectionEvent::Disconnected(_)) => self.gone(id),
                ReceiveEvent::Message(message) => self.on_message(&message),
                _ => {}
            }
        }
        Ok(worked)
    }

    fn connected(&mut self, id: ConnectionId, address: Option<PeerAddr>) {
        let account = Account::new(Origin::of(address.as_ref()), &self.places);
        self.clients.entry(id).or_insert_with(|| ServiceClient {
            address,
            outbox: VecDeque::new(),
            account,
            record: Record::default(),
        });
    }

    /// How a client has moved until now.
    pub(super) fn trust(&self, client: &ServiceClient) -> Trust {
        client.record.trust(client.account.buffers(), self.now)
    }

    /// What a client had asked for is of no use any more.
    fn gone(&mut self, id: ConnectionId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        let its = self.jobs.iter().filter(|(_, job)| job.connection == id);
        for number in its.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.forget(number);
        }
        let its = self
            .uploads
            .extract_if(|(connection, _), _| *connection == id);
        for (_, upload) in its {
            self.desk.discard(upload, Some(client.account.place()));
        }
        self.desk.take_out(id);
        self.gone.push(client.account);
    }

    /// Cuts a client off.
    pub(super) fn abort(&mut self, id: ConnectionId) {
        self.port.abort(id);
        self.gone(id);
    }

    fn take_transfers(&mut self) -> Result<bool, Error> {
        let mut events = Vec::new();
        if let Err(error) = self.channel.poll(&mut events) {
            tracing::error!(%error, "the channel of a service of objects failed");
            return Err(error);
        }
        let worked = !events.is_empty();
        for event in events {
            self.on_transfer(event);
        }
        Ok(worked)
    }

    fn take_answers(&mut self) -> bool {
        let mut worked = false;
        while let Ok((number, answer)) = self.answers.try_recv() {
            worked = true;
            self.on_answer(number, answer);
        }
        worked
    }

    /// Begins pieces, of each job in its turn.
    fn pump(&mut self) -> bool {
        self.share();
        let behind = self.jobs.range(self.first..);
        let before = self.jobs.range(..self.first);
        let numbers: Vec<_> = behind.chain(before).map(|(number, _)| *number).collect();
        if let Some(second) = numbers.get(1) {
            self.first = *second;
        }
        let mut worked = false;
        for number in numbers {
            worked |= self.pump_job(number);
        }
        worked
    }

    /// Who has how many buffers.
    fn share(&mut self) {
        let slots = self.pool.slots();
        let mut shares = BufferShares::new(u32::try_from(slots).unwrap_or(u32::MAX));
        for client in self.clients.values() {
            let account = &client.account;
            shares.add(self.trust(client), account.origin, account.buffers());
        }
        self.gone.retain(|account| account.buffers() > 0);
        for account in &self.gone {
            shares.add(Trust::Late, account.origin, account.buffers());
        }
        self.shares = shares;
    }

    fn check_times(&mut self) {
        if self.now.duration_since(self.looked_at) < TICK / 4 {
            return;
        }
        self.looked_at = self.now;
        let (now, stall) = (self.now, self.config.stall);
        let failure = |job: &Job| match job.waits_since {
            _ if job.by <= now => Some(JobFailure::timed_out()),
            // Who has them is cut off after `stall`.
            Some(since) => (since + 2 * stall <= now).then(JobFailure::no_buffer),
            None if job.is_moving() && job.moved_at + stall <= now => Some(JobFailure::timed_out()),
            None => None,
        };
        let jobs = self.jobs.iter();
        let late = jobs.filter_map(|(number, job)| Some((*number, failure(job)?)));
        for (number, failure) in late.collect::<Vec<_>>() {
            self.fail(number, failure);
        }
        let expired = self.uploads.extract_if(|_, upload| upload.expires <= now);
        for ((connection, _), upload) in expired {
            let client = self.clients.get(&connection);
            let place = client.map(|client| client.account.place());
            self.desk.discard(upload, place);
        }
    }

    /// Sends answers.
    fn flush(&mut self) {
        // Who has so many waiting does not read.
        let most = 2 * self.config.connection_requests as usize + 16;
        let mut dead = Vec::new();
        for (id, client) in &mut self.clients {
            let flushed = self.port.flush(*id, &mut client.outbox);
            if flushed == Flushed::Dead || client.outbox.len() > most {
                dead.push(*id);
            }
        }
        for id in dead {
            self.abort(id);
        }
    }

    /// Queues an answer.
    pub(super) fn say(&mut self, connection: ConnectionId, answer: &Answer<'_>) {
        if let Some(client) = self.clients.get_mut(&connection) {
            let mut message = ControlMessage {
                header: [0; HEADER_LEN],
                payload: Vec::new(),
            };
            answer.encode(&mut message.header, &mut message.payload);
            client.outbox.push_back(message);
        }
    }

    pub(super) fn refuse(
        &mut self,
        connection: ConnectionId,
        (id, kind): (u64, u8),
        moved: u64,
        failure: &JobFailure,
    ) {
        let body = AnswerBody::Refused {
            status: failure.status,
            moved,
            text: line(&failure.text),
        };
        self.say(connection, &Answer { id, kind, body });
    }

    fn rest(&mut self, worked: bool) -> Result<(), Error> {
        if worked {
            self.nap = NAP_MIN;
            return Ok(());
        }
        // What failed, and the provider still has, is waited for at leisure.
        if self.transfers.len() <= self.late {
            let is_idle =
                self.jobs.is_empty() && self.uploads.is_empty() && self.transfers.is_empty();
            let sleep = if is_idle { IDLE } else { TICK };
            self.event_loop.run_once(Some(sleep), |_, _| {})?;
            return Ok(());
        }
        self.channel.wait(self.nap)?;
        self.nap = (self.nap * 2).min(NAP_MAX);
        Ok(())
    }
}

/// Memory between the store and clients, registered with the server's domain.
fn pieces(
    domain: &Arc<Domain>,
    config: &ObjectServiceConfig,
) -> Result<SharedBufferManager, Error> {
    let layout = SharedBufferConfig {
        slots: Some(config.buffers),
        alignment: ALIGNMENT,
        ..SharedBufferConfig::new(config.piece_bytes)
    };
    let bytes = layout.region_bytes(config.buffers)?;
    let region = Region::host(bytes + ALIGNMENT).build()?;
    let pool = SharedBufferManager::new(region, layout)?;
    pool.region().register(domain)?;
    Ok(pool)
}
