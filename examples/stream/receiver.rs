//! The receiving side: a listener, a writer thread for each sender, and a way back to each.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabricast::buffer::{SharedBufferConfig, SharedBufferManager};
use fabricast::endpoint::{
    CloseReason, ConnectionId, ConnectionInfo, Message, ReceiveConfig, SendConfig,
};
use fabricast::event_loop::{EventLoop, LoopEvent, Token};
use fabricast::{
    Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use crate::args::RecvArgs;
use crate::failure::Failure;
use crate::target::Directory;
use crate::wire::{HEADER_LEN, Outcome, REASON_LEN_MAX, Reply};
use crate::writer::{self, Verdict, WriterConfig};
use crate::{HEADER_MODE, new_loop, open_domain, say};

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Receives files until the process is ended, or with `--once` until one sender is done.
pub(crate) fn run(args: &RecvArgs) -> Result<(), Failure> {
    let mut event_loop = new_loop()?;
    let mut receiver = FileReceiver::new(args, &mut event_loop)?;
    say(format_args!(
        "listening on {}",
        receiver.endpoint.local_addr()
    ));
    event_loop.run(|event_loop, event| {
        if let Err(failure) = receiver.on_event(event_loop, event) {
            receiver.end = Some(Err(failure));
            event_loop.stop();
        }
    })?;
    receiver.end.unwrap_or(Ok(()))
}

struct FileReceiver {
    domain: Arc<Domain>,
    endpoint: ReceiveEndpoint,
    endpoint_token: Token,
    senders: HashMap<ConnectionId, Sender>,
    senders_max: usize,
    /// Texts of replies.
    texts: SharedBufferManager,
    writers: WriterConfig,
    verdicts: Receiver<Verdict>,
    events: Vec<ReceiveEvent>,
    once: bool,
    end: Option<Result<(), Failure>>,
}

/// One sender, from its first byte until its writer has ended.
struct Sender {
    address: Option<PeerAddr>,
    /// Dropped when the connection is gone, which ends the writer.
    inbox: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    back: Option<WayBack>,
    /// Waits for the way back. One at most: a sender that opens the next file has read the reply to the last.
    unsent: Option<Reply>,
    closed: Option<CloseReason>,
}

/// The return connection.
struct WayBack {
    endpoint: SendEndpointZeroCopy,
    token: Token,
}

impl FileReceiver {
    fn new(args: &RecvArgs, event_loop: &mut EventLoop) -> Result<Self, Failure> {
        let directory =
            Directory::open(&args.dir).map_err(|error| Failure::file(&args.dir, &error))?;
        let domain = open_domain(
            &args.common.provider,
            crate::failure::socket_addr(&args.listen)?.ip(),
        )?;
        let endpoint = listen(args, &domain)?;
        let endpoint_token = event_loop.add_endpoint(&endpoint)?;
        let texts = SharedBufferManager::allocate(2 * args.peers, REASON_LEN_MAX)?;
        texts.region().register(&domain)?;
        let (sender, verdicts) = sync_channel(4 * args.peers as usize);
        let writers = WriterConfig {
            directory,
            max_size: args.max_size,
            sync: args.sync,
            patience: args.common.patience(),
            verdicts: sender,
            waker: event_loop.waker(),
        };
        Ok(Self {
            domain,
            endpoint,
            endpoint_token,
            senders: HashMap::new(),
            senders_max: 2 * args.peers as usize,
            texts,
            writers,
            verdicts,
            events: Vec::new(),
            once: args.once,
            end: None,
        })
    }

    fn on_event(&mut self, event_loop: &mut EventLoop, event: LoopEvent) -> Result<(), Failure> {
        match event {
            LoopEvent::Endpoint(token) if token == self.endpoint_token => {
                self.poll_data(event_loop)
            }
            LoopEvent::Endpoint(token) => self.poll_way_back(event_loop, token),
            LoopEvent::Woken => self.read_verdicts(event_loop),
            _ => Ok(()),
        }
    }

    // ---- the data connections --------------------------------------------------------------------------------------

    fn poll_data(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        let mut events = std::mem::take(&mut self.events);
        if self.endpoint.poll(&mut events)? > 0 {
            event_loop.mark_busy();
        }
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Connected { connection, info } => self.on_sender(connection, &info),
                ReceiveEvent::Message(message) => self.on_message(message),
                ReceiveEvent::Disconnected { connection, reason } => {
                    self.on_gone(connection, reason)
                }
                // The pool is empty: the writers hold it all. The sender waits, and nothing needs to be done.
                _ => {}
            }
        }
        self.events = events;
        Ok(())
    }

    fn on_sender(&mut self, connection: ConnectionId, info: &ConnectionInfo) {
        if self.senders.len() >= self.senders_max {
            // Writers of connections that are gone still wait for the disk: no more threads before they are done.
            self.goodbye(connection);
            return;
        }
        // Each message holds a buffer, so the channel has room for all that there can be.
        let (inbox, messages) = sync_channel(self.endpoint.pool().slots());
        let thread = match writer::spawn(self.writers.clone(), connection, messages) {
            Ok(thread) => thread,
            Err(error) => {
                eprintln!("stream: no thread for another sender: {error}");
                self.goodbye(connection);
                return;
            }
        };
        let sender = Sender {
            address: info.peer,
            inbox: Some(inbox),
            thread: Some(thread),
            back: None,
            unsent: None,
            closed: None,
        };
        self.senders.insert(connection, sender);
    }

    fn on_message(&mut self, message: Message) {
        let sender = self.senders.get(&message.connection());
        if let Some(inbox) = sender.and_then(|sender| sender.inbox.as_ref()) {
            let sent = inbox.try_send(message);
            debug_assert!(sent.is_ok(), "the channel has room for every buffer");
        }
    }

    fn on_gone(&mut self, connection: ConnectionId, reason: CloseReason) {
        if let Some(sender) = self.senders.get_mut(&connection) {
            sender.inbox = None;
            sender.closed = Some(reason);
        }
    }

    fn goodbye(&mut self, connection: ConnectionId) {
        self.endpoint
            .close_connection(connection, Instant::now() + GOODBYE);
    }

    // ---- verdicts of the writers -----------------------------------------------------------------------------------

    fn read_verdicts(&mut self, event_loop: &mut EventLoop) -> Result<(), Failure> {
        while let Ok(verdict) = self.verdicts.try_recv() {
            match verdict {
                Verdict::Hello { connection, port } => {
                    self.connect_back(event_loop, connection, port);
                }
                Verdict::Reply { connection, reply } => self.on_reply(connection, reply),
                Verdict::Over {
                    connection,
                    said_hello,
                    result,
                } => self.on_over(event_loop, connection, said_hello, result),
            }
        }
        Ok(())
    }

    /// Makes the return connection: to the host that the sender is at, whatever it says, and only the port is its choice.
    fn connect_back(&mut self, event_loop: &mut EventLoop, connection: ConnectionId, port: u16) {
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        let made = way_back(&self.domain, event_loop, sender.address, port);
        match made {
            Ok(back) => sender.back = Some(back),
            Err(failure) => {
                eprintln!("stream: no way back to a sender: {failure}");
                self.goodbye(connection);
            }
        }
    }

    fn on_reply(&mut self, connection: ConnectionId, reply: Reply) {
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        if sender.back.is_none() || sender.unsent.is_some() {
            // No Hello, or the next file before the reply to the last was read: nobody to talk to.
            self.goodbye(connection);
            return;
        }
        sender.unsent = Some(reply);
        self.send_reply(connection);
    }

    fn on_over(
        &mut self,
        event_loop: &mut EventLoop,
        connection: ConnectionId,
        said_hello: bool,
        result: Result<(), String>,
    ) {
        let Some(mut sender) = self.senders.remove(&connection) else {
            return;
        };
        if let Some(thread) = sender.thread.take() {
            // It has said its last word, so this does not wait; what a panic says is on stderr already.
            let _ = thread.join();
        }
        if !said_hello {
            return;
        }
        let result = result.and_then(|()| match sender.closed {
            Some(CloseReason::Finished) | None => Ok(()),
            Some(reason) => Err(format!("the sender was lost: {reason}")),
        });
        if self.once {
            self.end = Some(result.map_err(Failure::new));
            event_loop.stop();
        } else if let Err(reason) = result {
            eprintln!("stream: {reason}");
        }
    }

    // ---- the way back ----------------------------------------------------------------------------------------------

    fn poll_way_back(&mut self, event_loop: &mut EventLoop, token: Token) -> Result<(), Failure> {
        let mut found = self.senders.iter_mut().filter_map(|(id, sender)| {
            let back = sender.back.as_mut().filter(|back| back.token == token)?;
            Some((*id, back))
        });
        let Some((connection, back)) = found.next() else {
            return Ok(());
        };
        let mut events = Vec::new();
        if back.endpoint.poll(&mut events)? > 0 {
            event_loop.mark_busy();
        }
        for event in events {
            match event {
                // It has gone out with the key that says so: the sender was told why, and this ends the connection.
                SendEvent::Completed { key: LAST, .. } => self.goodbye(connection),
                SendEvent::Disconnected(_) => {
                    if let Some(sender) = self.senders.get_mut(&connection) {
                        sender.back = None;
                    }
                    self.goodbye(connection);
                }
                _ => {}
            }
        }
        self.send_reply(connection);
        Ok(())
    }

    /// Sends the reply that waits, if the way back takes it now; else its next event tries again.
    fn send_reply(&mut self, connection: ConnectionId) {
        let Some(sender) = self.senders.get_mut(&connection) else {
            return;
        };
        let (Some(back), Some(reply)) = (&mut sender.back, &sender.unsent) else {
            return;
        };
        let Some(mut text) = self.texts.try_acquire() else {
            return;
        };
        let payload = reply.payload().as_bytes();
        text[..payload.len()].copy_from_slice(payload);
        let text = text.freeze(payload.len());
        let key = match reply.outcome {
            Outcome::Written { .. } => ONE_OF_MANY,
            Outcome::Failed { .. } => LAST,
        };
        match back.endpoint.send_data(text, &reply.encode(), key) {
            Ok(()) => sender.unsent = None,
            Err(refused) if refused.is_would_block() => {}
            Err(_) => self.goodbye(connection),
        }
    }
}

/// Keys of replies: after a failure the connection is closed.
const ONE_OF_MANY: u64 = 0;
const LAST: u64 = 1;

/// The listener, with a pool of its own in huge pages where there are some.
fn listen(args: &RecvArgs, domain: &Arc<Domain>) -> Result<ReceiveEndpoint, Failure> {
    let slot_size = HEADER_LEN + args.common.block;
    // One sender alone gets `buffers` of credit; each further one finds three, with which it can make progress.
    let slots = args.common.buffers + 2 + 3 * (args.peers - 1);
    let stride = slot_size.next_multiple_of(4096);
    let region = Region::host(stride * slots as usize).build()?;
    let pool = SharedBufferManager::new(
        region,
        SharedBufferConfig {
            slots: Some(slots),
            alignment: 4096,
            ..SharedBufferConfig::new(slot_size)
        },
    )?;
    let config = ReceiveConfig::default()
        .pool(&pool)
        .depth(args.common.buffers)
        .max_connections(args.peers)
        .header_mode(HEADER_MODE);
    ReceiveEndpoint::listen(domain, args.listen, config)
        .map_err(|error| Failure::new(format!("{}: {error}", args.listen)))
}

fn way_back(
    domain: &Arc<Domain>,
    event_loop: &mut EventLoop,
    sender: Option<PeerAddr>,
    port: u16,
) -> Result<WayBack, Failure> {
    let Some(sender) = sender else {
        return Err(Failure::new("the provider does not say where it is"));
    };
    let address = SocketAddr::new(crate::failure::socket_addr(&sender)?.ip(), port);
    let config = SendConfig::default().depth(4).header_mode(HEADER_MODE);
    let endpoint = SendEndpointZeroCopy::connect(domain, address.into(), config)?;
    let token = event_loop.add_endpoint(&endpoint)?;
    Ok(WayBack { endpoint, token })
}
