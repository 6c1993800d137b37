//! Senders that lie about what they wrote, over real connections: a receiver believes no word of
//! it.

use std::collections::VecDeque;

use super::*;
use crate::Fabric;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{
    ConnectionEvent, ConnectionId, ReceiveEvent, RemoteWindow, WindowDescriptor, WindowEvent,
};
use crate::stream::network::control_pool;
use crate::stream::outbox::Outbox;
use crate::stream::wire::{
    BlockHeader, Features, Finish, Hello, ManifestPart, Message, OLDEST, Open, OpenFlags, Placed,
    VERSION,
};
use crate::stream::{
    BlockPlan, BlockSource, BufferSource, Manifest, MemorySink, ReceiverConfig, RefusalCode,
    StreamDigest, StreamIdentity, StreamReceiver, crc32c,
};

const BLOCK: usize = 8192;

fn by() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn drawn() -> [u8; 16] {
    let number = crate::random::random_u64().to_le_bytes();
    number.repeat(2).try_into().expect("16")
}

/// Says what it is told to, over one connection.
struct Impostor {
    endpoint: DuplexEndpoint,
    connection: ConnectionId,
    control: SharedBufferManager,
    outbox: Outbox,
    heard: VecDeque<(Vec<u8>, Vec<u8>)>,
    connected: bool,
    written: usize,
}

impl Impostor {
    fn dial(domain: &Arc<Domain>, to: crate::PeerAddr) -> Self {
        let config = duplex(&domain.into(), &SenderConfig::default(), 1).expect("settings");
        let mut endpoint = DuplexEndpoint::dialing(domain, &config).expect("an endpoint");
        let connection = endpoint.dial(&to).expect("dialed");
        Self {
            endpoint,
            connection,
            control: control_pool([domain.into()].iter()).expect("a pool"),
            outbox: Outbox::default(),
            heard: VecDeque::new(),
            connected: false,
            written: 0,
        }
    }

    fn turn(&mut self) {
        if self.connected {
            self.outbox
                .pump_by(&mut self.endpoint, self.connection, &self.control);
        }
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("it works");
        for event in events {
            match event {
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => self.connected = true,
                ReceiveEvent::Message(it) => {
                    self.heard
                        .push_back((it.header().to_vec(), it.payload().to_vec()));
                }
                ReceiveEvent::Window { event, .. } => {
                    self.written += usize::from(matches!(event, WindowEvent::Written { .. }));
                }
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }

    /// Waits for a message of which something is wanted; what comes before goes.
    fn hear<T>(&mut self, mut want: impl FnMut(&Message<'_>) -> Option<T>) -> T {
        let by = by();
        let mut others = Vec::new();
        loop {
            while let Some((header, payload)) = self.heard.pop_front() {
                let message = Message::parse(&header, &payload).expect("it keeps to the protocol");
                if let Some(wanted) = want(&message) {
                    return wanted;
                }
                others.push(format!("{message:?}"));
            }
            assert!(Instant::now() < by, "it says something else: {others:?}");
            self.turn();
        }
    }

    /// Up to where blocks may come, with this many windows.
    fn begin(
        &mut self,
        manifest: &Manifest,
        flags: OpenFlags,
        windows: usize,
    ) -> Vec<RemoteWindow> {
        let plan = BlockPlan::new(manifest, BLOCK as u32);
        self.outbox.push(&Message::Hello(Hello {
            version: VERSION,
            oldest: OLDEST,
            rail: 0,
            rails: 1,
            features: Features::all(),
            session: drawn(),
            nonce: [1; 32],
        }));
        let features = self.hear(|message| match message {
            Message::HelloAck(ack) => Some(ack.features),
            _ => None,
        });
        assert!(features.contains(Features::BY_WRITE));
        self.outbox.push(&Message::Open(Open {
            stream: 1,
            flags: flags | OpenFlags::CRC32C | OpenFlags::BY_WRITE,
            block_bytes: BLOCK as u32,
            entries: manifest.len() as u64,
            manifest_bytes: manifest.encoded_len(),
            bytes: plan.bytes(),
            blocks: plan.blocks(),
            // A key of its own: the sink of the one before may be on its way out, and a stream with
            // its key is refused as long as that takes.
            attribute_bytes: 0,
            identity: StreamIdentity {
                key: drawn(),
                ..StreamIdentity::default()
            },
        }));
        let (entries, _) = manifest.encode_part(0, BLOCK, true);
        self.outbox.push(&Message::Manifest(ManifestPart {
            stream: 1,
            first: 0,
            entries: &entries,
        }));
        let (mut descriptors, mut accepted) = (Vec::new(), false);
        self.hear(|message| {
            match message {
                Message::Accept(accept) => {
                    assert_eq!(accept.slots as usize, windows);
                    accepted = true;
                }
                Message::Window(window) => descriptors.push(*window.descriptor),
                _ => {}
            }
            (accepted && descriptors.len() == windows).then_some(())
        });
        let parsed = descriptors
            .iter()
            .map(|bytes| WindowDescriptor::parse(bytes));
        let opened = parsed.map(|it| {
            let window = self
                .endpoint
                .open_window(self.connection, &it.expect("a window"));
            window.expect("it is for this connection")
        });
        opened.collect()
    }

    fn place(&mut self, index: u64, len: usize, crc: u32, slot: u32) {
        let block = BlockHeader {
            stream: 1,
            index,
            entry: 0,
            offset: index * BLOCK as u64,
            len: len as u32,
            crc,
        };
        self.outbox.push(&Message::Placed(Placed { block, slot }));
    }

    fn write(&mut self, bytes: &[u8], window: &RemoteWindow) {
        let mut buffer = self.control.try_acquire().expect("one is free");
        buffer[..bytes.len()].copy_from_slice(bytes);
        let payload = buffer.freeze(bytes.len()).into();
        self.endpoint
            .write(payload, window.at(0), 7)
            .expect("posted");
        let (by, before) = (by(), self.written);
        while self.written == before {
            assert!(Instant::now() < by, "it is not confirmed");
            self.turn();
        }
    }

    fn failed(&mut self) -> RefusalCode {
        self.hear(|message| match message {
            Message::Failed(failed) => Some(failed.code),
            _ => None,
        })
    }
}

struct Scene {
    domain: Arc<Domain>,
    receiver: StreamReceiver,
    sink: MemorySink,
    manifest: Manifest,
    content: Vec<u8>,
}

/// None, after a line that says why, without libfabric.
fn scene() -> Option<Scene> {
    let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open();
    let domain = match fabric {
        Ok(fabric) => fabric.open_domain().expect("a domain"),
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    let sink = MemorySink::new(1 << 20);
    let config = ReceiverConfig::new(sink.clone());
    let config = config
        .stream(|s| s.block_bytes(BLOCK as u32))
        .credits(4)
        .rma_slots(16);
    let addr = "127.0.0.1:0".parse().expect("an address");
    let receiver = StreamReceiver::listen(&domain, addr, config).expect("it listens");
    let content: Vec<u8> = (0..2 * BLOCK).map(|at| (at * 7 % 251) as u8).collect();
    let pool = SharedBufferManager::allocate(1, 2 * BLOCK).expect("a pool");
    let buffer = pool.try_acquire().expect("one is free").freeze(2 * BLOCK);
    let source = BufferSource::new("file", buffer, [0; 16]).expect("a name");
    Some(Scene {
        domain,
        receiver,
        sink,
        manifest: source.manifest().clone(),
        content,
    })
}

impl Scene {
    fn sums(&self) -> (Vec<u32>, u32) {
        let crcs: Vec<u32> = self.content.chunks(BLOCK).map(crc32c).collect();
        let mut digest = StreamDigest::new(crcs.len() as u64);
        for (index, crc) in crcs.iter().enumerate() {
            digest.add(index as u64, BLOCK as u32, *crc);
        }
        (crcs, digest.digest())
    }
}

#[test]
fn what_was_not_written_is_damaged_and_can_be_written_then() {
    let Some(scene) = scene() else { return };
    let (crcs, digest) = scene.sums();
    let mut liar = Impostor::dial(&scene.domain, scene.receiver.local_addr());
    let windows = liar.begin(&scene.manifest, OpenFlags::BLAKE3, 4);
    // Slot 3 was never written: nothing of anybody's is in it.
    liar.place(1, BLOCK, crcs[1], 3);
    let found = liar.hear(|message| match message {
        Message::Damaged(damaged) => Some((damaged.index, damaged.crc)),
        _ => None,
    });
    assert_eq!(found, (1, crc32c(&[0; BLOCK])));
    for (index, slot) in [(1, 3), (0, 0)] {
        let bytes = &scene.content[index * BLOCK..][..BLOCK];
        liar.write(bytes, &windows[slot]);
        liar.place(index as u64, BLOCK, crcs[index], slot as u32);
        let freed = liar.hear(|message| match message {
            Message::Freed(freed) => Some(freed.slot as usize),
            _ => None,
        });
        assert_eq!(freed, slot);
        // It may write whenever it likes: what was checked is a copy.
        liar.write(&[0xee; 100], &windows[slot]);
    }
    let hash = *blake3::hash(&scene.content).as_bytes();
    liar.outbox.push(&Message::Finish(Finish {
        stream: 1,
        lap: 0,
        sent_here: 3,
        sent: 3,
        digest,
        blake3: Some(hash),
    }));
    let complete = liar.hear(|message| match message {
        Message::Complete(complete) => Some(*complete),
        _ => None,
    });
    assert_eq!(complete.blake3, Some(hash));
    assert!(scene.sink.take()[0].bytes == scene.content);
    scene.receiver.close(by());
}

#[test]
fn slots_blocks_and_hashes_that_are_not_right_end_the_stream() {
    let Some(scene) = scene() else { return };
    type Lie = fn(&mut Impostor, &Scene, &[RemoteWindow]);
    let lies: [(&str, RefusalCode, Lie); 4] = [
        (
            "a slot that there is not",
            RefusalCode::MALFORMED,
            |liar, _, _| {
                liar.place(0, BLOCK, 0, 4);
            },
        ),
        (
            "a block longer than blocks are",
            RefusalCode::MALFORMED,
            |liar, _, _| {
                liar.place(0, BLOCK + 1, 0, 0);
            },
        ),
        (
            "a block as a message",
            RefusalCode::MALFORMED,
            |liar, scene, _| {
                let mut buffer = liar.control.try_acquire().expect("one is free");
                buffer[..BLOCK].copy_from_slice(&scene.content[..BLOCK]);
                let block = BlockHeader {
                    stream: 1,
                    index: 0,
                    entry: 0,
                    offset: 0,
                    len: BLOCK as u32,
                    crc: 0,
                };
                let mut header = [0; HEADER_LEN];
                block.encode(&mut header);
                let payload = buffer.freeze(BLOCK).into();
                let sent = liar.endpoint.send(liar.connection, payload, &header, 1);
                sent.expect("sent");
            },
        ),
        (
            "another BLAKE3",
            RefusalCode::DIGEST,
            |liar, scene, windows| {
                let (crcs, digest) = scene.sums();
                for index in 0..2 {
                    liar.write(&scene.content[index * BLOCK..][..BLOCK], &windows[index]);
                    liar.place(index as u64, BLOCK, crcs[index], index as u32);
                }
                liar.outbox.push(&Message::Finish(Finish {
                    stream: 1,
                    lap: 0,
                    sent_here: 2,
                    sent: 2,
                    digest,
                    blake3: Some([5; 32]),
                }));
            },
        ),
    ];
    for (what, code, lie) in lies {
        println!("{what}");
        let mut liar = Impostor::dial(&scene.domain, scene.receiver.local_addr());
        let windows = liar.begin(&scene.manifest, OpenFlags::BLAKE3, 4);
        lie(&mut liar, &scene, &windows);
        assert_eq!(liar.failed(), code, "{what}");
        // Its connection is closed with the stream, and its slots come back.
        let by = by();
        while liar.endpoint.connections() > 0 {
            assert!(Instant::now() < by, "{what}: it is not left");
            liar.turn();
        }
    }
    assert!(scene.sink.take().is_empty());
    scene.receiver.close(by());
}
