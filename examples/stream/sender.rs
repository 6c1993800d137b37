//! The sending side: what the reader has read goes out, and each file waits for its reply.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabricast::buffer::{SharedBufferConfig, SharedBufferManager};
use fabricast::endpoint::{CloseReason, ConnectionInfo, Message, ReceiveConfig, SendConfig};
use fabricast::error::{Blocked, SendErrorKind};
use fabricast::event_loop::{EventLoop, LoopEvent, Token};
use fabricast::{
    Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use crate::args::SendArgs;
use crate::failure::Failure;
use crate::report::{Progress, Stalls, Summary};
use crate::source::{self, Outgoing, Read, ReadStats, Source};
use crate::wire::{HEADER_LEN, NAME_LEN_MAX, Outcome, REASON_LEN_MAX, Reply, Request};
use crate::{HEADER_MODE, new_loop, open_domain, say};

/// How often progress is shown and deadlines are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a reply may take that was under way when the data connection ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long the goodbye may take, when every file has been answered for.
const GOODBYE: Duration = Duration::from_secs(5);

/// Sends all files, and returns when the receiver has them.
pub(crate) fn run(args: SendArgs) -> Result<(), Failure> {
    let sources = open_sources(&args)?;
    let mut event_loop = new_loop()?;
    let mut session = Session::new(&args, sources, &mut event_loop)?;
    event_loop.run(|event_loop, event| {
        if let Err(failure) = session.on_event(event_loop, event) {
            session.end = Some(Err(failure));
        }
        if session.end.is_some() {
            event_loop.stop();
        }
    })?;
    let summary = session.finish()?;
    say(summary);
    Ok(())
}

/// All of them before the first byte is sent: a mistyped name costs nothing.
fn open_sources(args: &SendArgs) -> Result<Vec<Source>, Failure> {
    let mut sources: Vec<Source> = Vec::with_capacity(args.files.len());
    for path in &args.files {
        let source = Source::open(path.clone())?;
        if sources.iter().any(|other| other.name() == source.name()) {
            return Err(Failure::new(format!(
                "two files are named {:?}",
                source.name()
            )));
        }
        sources.push(source);
    }
    Ok(sources)
}

struct Session {
    to: PeerAddr,
    patience: Duration,
    endpoint: SendEndpointZeroCopy,
    endpoint_token: Token,
    /// Takes the replies.
    replies: ReceiveEndpoint,
    replies_token: Token,
    domain: Arc<Domain>,
    pool: SharedBufferManager,
    block: usize,
    /// What replies must repeat: anybody can connect to the port.
    secret: u64,
    /// Until the reader has them.
    sources: Vec<Source>,
    files: usize,
    reader: Option<(Receiver<Read>, JoinHandle<ReadStats>)>,
    /// Refused by the endpoint for the time being, or the next file while the last one has no reply.
    next: Option<Outgoing>,
    /// The endpoint refused the last message for the time being; its next event says when to try again.
    blocked: bool,
    awaited: Option<Awaited>,
    answered: usize,
    /// The data connection ended, and a last reply may be on its way.
    lost: Option<(CloseReason, Instant)>,
    replies_connected: bool,
    bytes_total: u64,
    bytes_done: u64,
    started: Instant,
    last_progress: Instant,
    stalls: Stalls,
    progress: Progress,
    end: Option<Result<Duration, Failure>>,
}

/// The file that is being sent.
struct Awaited {
    file: u32,
    size: u64,
    /// Once all of it was sent.
    crc: Option<u32>,
}

impl Session {
    fn new(
        args: &SendArgs,
        sources: Vec<Source>,
        event_loop: &mut EventLoop,
    ) -> Result<Self, Failure> {
        let local = local_address(crate::failure::socket_addr(&args.to)?)?;
        let domain = open_domain(&args.common.provider, local)?;
        let replies = listen_for_replies(&domain, local)?;
        let pool = new_pool(&domain, args)?;
        let config = SendConfig::default()
            .depth(args.common.buffers)
            .header_mode(HEADER_MODE)
            .send_deadline(Some(args.common.patience()));
        let endpoint = SendEndpointZeroCopy::connect(&domain, args.to, config)?;
        let bytes_total = sources.iter().map(Source::size).sum();
        event_loop.add_timer(TICK, Some(TICK));
        let now = Instant::now();
        Ok(Self {
            to: args.to,
            patience: args.common.patience(),
            endpoint_token: event_loop.add_endpoint(&endpoint)?,
            endpoint,
            replies_token: event_loop.add_endpoint(&replies)?,
            replies,
            domain,
            pool,
            block: args.common.block,
            secret: random()?,
            files: sources.len(),
            sources,
            reader: None,
            next: None,
            blocked: false,
            awaited: None,
            answered: 0,
            lost: None,
            replies_connected: false,
            bytes_total,
            bytes_done: 0,
            started: now,
            last_progress: now,
            stalls: Stalls::default(),
            progress: Progress::new(bytes_total),
            end: None,
        })
    }

    fn on_event(&mut self, event_loop: &mut EventLoop, event: LoopEvent) -> Result<(), Failure> {
        match event {
            LoopEvent::Endpoint(token) if token == self.endpoint_token => {
                self.poll_sends(event_loop)?;
            }
            LoopEvent::Endpoint(token) if token == self.replies_token => {
                self.poll_replies(event_loop)?;
            }
            LoopEvent::Timer(_) => self.on_tick()?,
            _ => {}
        }
        self.pump()
    }

    // ---- data ------------------------------------------------------------------------------------------------------

    fn poll_sends(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        let mut events = Vec::new();
        if self.endpoint.poll(&mut events)? > 0 {
            event_loop.mark_busy();
        }
        for event in events {
            match event {
                SendEvent::Writable => self.blocked = false,
                SendEvent::Connected(info) => self.on_connected(event_loop, &info)?,
                // The key is the number of bytes of the file that the message carried. The payload is dropped: the
                // buffer goes back to the pool, and the reader fills it again.
                SendEvent::Completed { key, .. } => {
                    self.bytes_done += key;
                    self.last_progress = Instant::now();
                }
                SendEvent::Disconnected(reason) => self.lost = Some((reason, Instant::now())),
                // `Failed` sends are followed by `Disconnected`, which says why.
                _ => {}
            }
        }
        Ok(())
    }

    fn on_connected(
        &mut self,
        event_loop: &mut EventLoop,
        info: &ConnectionInfo,
    ) -> Result<(), Failure> {
        let max = usize::try_from(info.max_message).unwrap_or(usize::MAX);
        self.block = self.block.min(max.saturating_sub(HEADER_LEN));
        if self.block < NAME_LEN_MAX {
            return Err(Failure::new(format!(
                "{}: takes messages of {max} bytes only",
                self.to
            )));
        }
        self.reader = Some(source::spawn(
            std::mem::take(&mut self.sources),
            self.pool.clone(),
            self.block,
            self.patience,
            event_loop.waker(),
        ));
        self.next = Some(Outgoing::without_payload(Request::Hello {
            port: crate::failure::socket_addr(&self.replies.local_addr())?.port(),
            token: self.secret,
        }));
        self.started = Instant::now();
        self.last_progress = self.started;
        Ok(())
    }

    /// Sends what there is, until there is nothing or the endpoint would block.
    fn pump(&mut self) -> Result<(), Failure> {
        while self.lost.is_none()
            && !self.blocked
            && let Some(next) = self.take_next()?
        {
            let Outgoing { request, payload } = next;
            let header = request.encode(payload.len_bytes());
            let key = match request {
                Request::Block { .. } => payload.len_bytes() as u64,
                _ => 0,
            };
            match self.endpoint.send_data(payload, &header, key) {
                Ok(()) => self.on_sent(request),
                Err(refused) => {
                    let payload = refused.payload;
                    self.next = Some(Outgoing { request, payload });
                    return self.on_refused(refused.kind);
                }
            }
        }
        Ok(())
    }

    /// The next message, unless it begins a file and the last one has no reply yet.
    fn take_next(&mut self) -> Result<Option<Outgoing>, Failure> {
        if self.next.is_none() {
            let Some((read, _)) = &self.reader else {
                return Ok(None);
            };
            self.next = match read.try_recv() {
                Ok(outgoing) => Some(outgoing?),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            };
        }
        match self.next.as_ref().map(|next| next.request) {
            Some(Request::Open { .. }) if self.awaited.is_some() => Ok(None),
            _ => Ok(self.next.take()),
        }
    }

    fn on_sent(&mut self, request: Request) {
        match request {
            Request::Open { file, size } => {
                let crc = None;
                self.awaited = Some(Awaited { file, size, crc });
            }
            Request::Close { crc, .. } => {
                if let Some(awaited) = &mut self.awaited {
                    awaited.crc = Some(crc);
                }
            }
            Request::Hello { .. } | Request::Block { .. } => {}
        }
    }

    fn on_refused(&mut self, kind: SendErrorKind) -> Result<(), Failure> {
        let SendErrorKind::WouldBlock(blocked) = kind else {
            return match kind {
                // The connection's own event says more.
                SendErrorKind::Closing | SendErrorKind::Closed(_) => Ok(()),
                other => Err(Failure::new(format!("{}: {other}", self.to))),
            };
        };
        self.blocked = true;
        match blocked {
            Blocked::Credits => self.stalls.credits += 1,
            Blocked::Depth => self.stalls.depth += 1,
            Blocked::HeaderSlots => self.stalls.header_slots += 1,
            Blocked::Provider => self.stalls.provider += 1,
            _ => {}
        }
        Ok(())
    }

    // ---- replies ---------------------------------------------------------------------------------------------------

    fn poll_replies(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        let mut events = Vec::new();
        if self.replies.poll(&mut events)? > 0 {
            event_loop.mark_busy();
        }
        for event in events {
            match event {
                ReceiveEvent::Message(message) => self.on_reply(&message)?,
                ReceiveEvent::Connected { .. } => self.replies_connected = true,
                ReceiveEvent::Disconnected { .. } => {
                    self.replies_connected = self.replies.connections() > 0;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn on_reply(&mut self, message: &Message) -> Result<(), Failure> {
        let reply = match Reply::parse(message.header(), message.payload()) {
            Ok(reply) if reply.token == self.secret => reply,
            // Not from our receiver.
            _ => return Ok(()),
        };
        match reply.outcome {
            Outcome::Written { size, crc } => self.on_written(reply.file, size, crc),
            Outcome::Failed { reason } => Err(Failure::new(format!(
                "the receiver at {}: {reason}",
                self.to
            ))),
        }
    }

    fn on_written(&mut self, file: u32, size: u64, crc: u32) -> Result<(), Failure> {
        let right = self.awaited.take().is_some_and(|awaited| {
            (awaited.file, awaited.size, awaited.crc) == (file, size, Some(crc))
        });
        if !right {
            let to = self.to;
            return Err(Failure::new(format!(
                "the receiver at {to} answers for another file"
            )));
        }
        self.last_progress = Instant::now();
        self.answered += 1;
        if self.answered == self.files {
            self.end = Some(Ok(self.started.elapsed()));
        }
        Ok(())
    }

    // ---- time and the end ------------------------------------------------------------------------------------------

    fn on_tick(&mut self) -> Result<(), Failure> {
        self.progress.show(self.bytes_done);
        if let Some((reason, at)) = self.lost
            && (!self.replies_connected || at.elapsed() > LAST_WORDS)
        {
            return Err(self.lost_failure(reason));
        }
        if self.last_progress.elapsed() > self.patience {
            let (to, patience) = (self.to, self.patience);
            return Err(Failure::new(format!(
                "{to}: nothing moved for {patience:?}"
            )));
        }
        Ok(())
    }

    fn lost_failure(&self, reason: CloseReason) -> Failure {
        let to = self.to;
        if self.reader.is_none() {
            return Failure::new(format!("{to}: {reason}"));
        }
        let (done, total) = (self.bytes_done, self.bytes_total);
        Failure::new(format!(
            "the receiver at {to} ended the connection, {done} of {total} bytes were sent: {reason}"
        ))
    }

    /// Says goodbye, and sums up.
    fn finish(self) -> Result<Summary, Failure> {
        let sends = self.endpoint.stats();
        drop(self.progress);
        let took = match self.end {
            Some(end) => end?,
            None => return Err(Failure::new("stopped before the end")),
        };
        // Every file has been answered for: how the goodbye goes changes nothing.
        let _ = self.endpoint.close(Instant::now() + GOODBYE);
        let reader = match self.reader {
            Some((_, thread)) => thread.join().unwrap_or_default(),
            None => ReadStats::default(),
        };
        Ok(Summary {
            files: self.files,
            bytes: self.bytes_total,
            took,
            fabric: self.domain.report(),
            block: self.block,
            buffers: self.pool.slots(),
            pages: self.pool.region().pages(),
            reader,
            stalls: self.stalls,
            sends,
        })
    }
}

/// The address that this machine has towards a peer. No packet is sent: a datagram socket only looks up the route.
fn local_address(peer: SocketAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    found
        .map(|address| address.ip())
        .map_err(|error| Failure::new(format!("{peer}: {}", crate::failure::describe(&error))))
}

fn listen_for_replies(domain: &Arc<Domain>, local: IpAddr) -> Result<ReceiveEndpoint, Failure> {
    // One connection is enough; the others are there so that a stranger's does not keep the receiver's out.
    let config = ReceiveConfig::default()
        .max_connections(4)
        .slots(16)
        .max_message(HEADER_LEN + REASON_LEN_MAX)
        .depth(2)
        .header_mode(HEADER_MODE);
    let any_port = SocketAddr::new(local, 0);
    Ok(ReceiveEndpoint::listen(domain, any_port.into(), config)?)
}

/// The buffers that the reader fills and the endpoint sends from, in huge pages where there are some.
fn new_pool(domain: &Domain, args: &SendArgs) -> Result<SharedBufferManager, Failure> {
    let (block, slots) = (args.common.block, args.common.buffers);
    let region = Region::host(block.next_multiple_of(4096) * slots as usize).build()?;
    region.register(domain)?;
    let config = SharedBufferConfig {
        slots: Some(slots),
        alignment: 4096,
        ..SharedBufferConfig::new(block)
    };
    Ok(SharedBufferManager::new(region, config)?)
}

fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::new(format!("getrandom: {error}")))?;
    Ok(u64::from_ne_bytes(bytes))
}
