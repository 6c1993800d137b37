//! Over FI_EP_RDM, where a listener's connections share its endpoint, and a peer can open further
//! connections beneath it that nobody sees: there is nothing that a peer's word could prove. Memory
//! comes back when the endpoint is closed, and never before.

use std::sync::Arc;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{
    Access, ConnectionId, LocalWindow, LongMessages, SendConfig, WindowDescriptor, WindowEvent,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, Fabric, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent,
};

use crate::common::{
    SOON, Watchdog, after, alone, any_port, buffer, drive, millis, node, pool, send_end,
};
use crate::victim::{BEFORE, MANY, OWN, THEIRS, config};

/// Providers whose peers can't be fenced: each library has one of them.
pub(crate) const PROVIDERS: [&str; 2] = ["net", "tcp"];

const BYTES: usize = 64 << 10;

pub(crate) fn open(provider: &str) -> Option<Arc<Domain>> {
    let builder = Fabric::builder().endpoint_kind(EndpointKind::Rdm);
    let fabric = builder.provider(provider).node(node()).open().ok()?;
    Some(fabric.open_domain().expect("a domain"))
}

/// How the peer lets the window go.
#[derive(Debug, Clone, Copy)]
enum Leave {
    Answers,
    SaysGoodbye,
    HangsUp,
}

/// The owner of a window, whose peer is the library itself: that it is honest proves nothing here.
struct Two {
    owner: ReceiveEndpoint,
    peer: Option<SendEndpointZeroCopy>,
    connection: Option<ConnectionId>,
    released: Vec<fabricast::buffer::BufferMut>,
    ended: bool,
    revoked: bool,
    windows: Vec<WindowEvent>,
    over: bool,
    messages: Vec<fabricast::endpoint::Message>,
}

impl Two {
    fn open(provider: &str, long: Option<LongMessages>) -> Option<(Self, Arc<Domain>)> {
        let (near, far) = (open(provider)?, open(provider)?);
        let mut config = config();
        if let Some(long) = long {
            config = config.incoming(|i| i.long_messages(long));
        }
        let owner = ReceiveEndpoint::listen(&far, any_port(), config).expect("listens");
        let to = owner.local_addr();
        let peer = SendEndpointZeroCopy::connect(&near, to, SendConfig::default());
        let mut two = Self {
            owner,
            peer: Some(peer.expect("begins")),
            connection: None,
            released: Vec::new(),
            ended: false,
            revoked: false,
            windows: Vec::new(),
            over: false,
            messages: Vec::new(),
        };
        two.until("connected", |two| {
            two.connection.is_some() && two.peer().is_connected()
        });
        Some((two, near))
    }

    fn peer(&mut self) -> &mut SendEndpointZeroCopy {
        self.peer.as_mut().expect("not gone")
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.owner.poll(&mut events).expect("polls");
        events.into_iter().for_each(|event| self.take(event));
        let mut events = Vec::new();
        if let Some(peer) = &mut self.peer {
            peer.poll(&mut events).expect("polls");
        }
        self.over |= send_end(&events).is_some();
        for event in events {
            if let SendEvent::Window(event) = event {
                self.revoked |= matches!(event, WindowEvent::Revoked { .. });
                self.windows.push(event);
            }
        }
    }

    fn take(&mut self, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                self.connection = Some(connection)
            }
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => self.ended = true,
            ReceiveEvent::Message(message) => self.messages.push(message),
            ReceiveEvent::Window {
                event: WindowEvent::Released { memory, .. },
                ..
            } => {
                let mut buffer = memory.into_buffer_mut().expect("what was exposed");
                buffer.fill(OWN);
                self.released.push(buffer);
            }
            _ => {}
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.poll();
            done(self)
        });
    }

    fn a_while(&mut self) {
        (0..MANY).for_each(|_| self.poll());
    }

    /// What is left of the window's handle: who drops it does not want the memory.
    fn leave(&mut self, how: Leave, window: LocalWindow) -> Option<LocalWindow> {
        let mut window = Some(window);
        match how {
            Leave::Answers => {
                let window = window.take().expect("not revoked yet");
                assert!(
                    self.owner
                        .windows(window.connection())
                        .revoke(window, after(10 * SOON))
                        .expect("its own window")
                );
                self.until("it is revoked", |two| two.revoked);
            }
            Leave::SaysGoodbye => {
                self.peer().begin_close(after(SOON));
                self.until("the goodbye", |two| two.over && two.ended);
            }
            Leave::HangsUp => {
                self.peer = None;
                self.until("the end", |two| two.ended);
            }
        }
        self.a_while();
        window
    }
}

fn let_go(test: &'static str, how: Leave) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let here: Vec<_> = PROVIDERS
        .into_iter()
        .filter(|p| open(p).is_some())
        .collect();
    if here.is_empty() {
        println!("SKIPPED: none of {PROVIDERS:?} over FI_EP_RDM");
    }
    for provider in here {
        println!("{provider}");
        for access in [Access::WRITE, Access::READ] {
            let memory = SharedBufferManager::allocate(1, BYTES).expect("memory");
            let Some((mut two, near)) = Two::open(provider, None) else {
                continue;
            };
            let mut slot = memory.try_acquire().expect("free");
            slot.fill(BEFORE);
            let id = two.connection.expect("connected");
            let window = two.owner.windows(id).expose(slot, access).expect("exposed");
            let bytes = window.descriptor().to_bytes();
            let descriptor = WindowDescriptor::parse(&bytes).expect("ours");
            // It is reached, so that the provider has seen it.
            let remote = two.peer().windows().open(&descriptor).expect("opened");
            let local = pool(&near, 1, BYTES);
            match access {
                Access::WRITE => {
                    let bytes = buffer(&local, &[THEIRS; 64]);
                    two.peer()
                        .windows()
                        .write(bytes, &remote, 1)
                        .expect("posted");
                }
                _ => {
                    let into = local.try_acquire().expect("free");
                    two.peer().windows().read(into, &remote, 1).expect("posted");
                }
            }
            two.until("it is done", |two| !two.windows.is_empty());
            let _handle = two.leave(how, window);
            let early = two.released.len() + memory.free_count();
            assert_eq!(
                early, 0,
                "{provider}, {access}: before the endpoint was closed"
            );
            let events = two.owner.close(after(millis(200))).expect("closes");
            let back = events.iter().filter(|event| {
                let released = |event| matches!(event, &WindowEvent::Released { .. });
                matches!(event, ReceiveEvent::Window { event, .. } if released(event))
            });
            assert_eq!(back.count(), 1, "{provider}, {access}: with its end");
        }
    }
}

#[test]
fn a_window_whose_peer_answers_waits_for_the_end_of_the_endpoint() {
    let_go("answers", Leave::Answers);
}

#[test]
fn a_window_whose_peer_says_goodbye_waits_for_the_end_of_the_endpoint() {
    let_go("goodbye", Leave::SaysGoodbye);
}

#[test]
fn a_window_whose_peer_hangs_up_waits_for_the_end_of_the_endpoint() {
    let_go("hangs up", Leave::HangsUp);
}
