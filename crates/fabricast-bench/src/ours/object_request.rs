//! Objects by request, through `fabricast`: the client lends memory by a token for each request,
//! and sends its text in a message; the server writes the object by it, and answers in another.
//! The messages go over endpoints of their own, one each way, both without connections.

use std::time::{Duration, Instant};

use fabricast::buffer::{RegionSlice, SharedBufferManager};
use fabricast::memory::Access;
use fabricast::object::{
    CallbackError, ChannelEvent, ObjectChannel, ObjectChunk, ObjectClient, ObjectOps, ObjectServer,
    ObjectServerConfig, RdmaToken,
};
use fabricast::{Domain, ReceiveEvent, Region};

use super::{Receiver, Sender, Server, builder, connect_both};
use crate::case::{Arrived, Case, HEADER, Header, Operation, Pacer, Sent};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::object;
use crate::object_request;

const BUDGET: Duration = Duration::from_secs(60);
/// Bytes of the longest token's text here.
const TEXT_MAX: usize = 512;
/// Messages in flight, more than one after the other needs.
const MESSAGES: usize = 16;

/// The messages of a control path.
fn messages(case: &Case) -> Case {
    Case {
        operation: Operation::Rdm,
        size: TEXT_MAX,
        depth: MESSAGES,
        pack: 0,
        ..case.clone()
    }
}

/// The server's half.
struct Answering {
    receiver: Receiver,
    sender: Sender,
    channel: ObjectChannel,
    /// The objects, as many as there are requests at once.
    free: Vec<RegionSlice>,
    events: Vec<ChannelEvent>,
}

impl Answering {
    fn turn(&mut self) -> Result<usize, Failure> {
        let asked = self.receiver.endpoint.poll(&mut self.receiver.events)?;
        for event in self.receiver.events.drain(..) {
            let ReceiveEvent::Message(message) = event else {
                continue;
            };
            let token: RdmaToken = std::str::from_utf8(message.payload())?.parse()?;
            let object = self.free.pop();
            let object = object.ok_or_else(|| Failure::of("a request too many"))?;
            let deadline = Instant::now() + BUDGET;
            let accepted = self.channel.handle_get(&token, 0, object, 0, deadline);
            accepted.map_err(|refused| Failure::new(refused.to_string()))?;
        }
        let done = self.channel.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                ChannelEvent::Written { payload, .. } => {
                    self.free.extend(payload.into_slice().ok());
                    if !self.sender.post(Header::from_tag(0))? {
                        return fail("an answer was refused");
                    }
                }
                ChannelEvent::WriteFailed { error, .. } => return fail(error.to_string()),
                _ => {}
            }
        }
        self.sender.poll_if_low()?;
        Ok(asked + done)
    }
}

/// Answers requests until the client is done.
pub(crate) fn answer(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    let Server {
        domain,
        mut receiver,
        addr,
    } = Server::listen(&messages(case))?;
    control.say(&format!("ready {addr}"))?;
    let back = control.expect("back", object::patience(case))?;
    let answers = Case {
        size: HEADER,
        ..messages(case)
    };
    let mut sender = Sender::connect(&domain, &answers, back.parse()?)?;
    connect_both(&mut sender, &mut receiver)?;
    // What comes before this would be lost.
    control.say("connected now")?;
    let server = ObjectServer::open(&builder(case).open()?, ObjectServerConfig::default())?;
    let region = Region::host(case.size).build()?;
    region
        .register(server.domain())
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut answering = Answering {
        receiver,
        sender,
        channel: server.channel()?,
        free: vec![region.slice(0..case.size)?],
        events: Vec::new(),
    };
    object::serve(case, control, || answering.turn())
}

/// The client's half.
struct Asking<'a> {
    receiver: &'a mut Receiver,
    sender: &'a mut Sender,
    texts: &'a SharedBufferManager,
    client: &'a ObjectClient,
    pacer: &'a mut Pacer,
}

impl Asking<'_> {
    fn ask(&mut self, token: &RdmaToken) -> Result<(), Failure> {
        let text = token.to_string();
        let Some(mut buffer) = self.texts.try_acquire() else {
            return fail("no buffer for a request");
        };
        buffer[..text.len()].copy_from_slice(text.as_bytes());
        let header = Header::from_tag(0).to_bytes();
        let message = buffer.freeze(text.len());
        let sent = self.sender.endpoint.send_data(message, &header, 0);
        sent.map_err(|refused| Failure::new(refused.to_string()))?;
        let mut back = false;
        while !back {
            let found = self.receiver.poll(|_| {
                back = true;
                Ok(())
            })?;
            if !back {
                self.client.progress();
            }
            self.pacer.on_poll(found)?;
        }
        // As in a ping-pong: most requests look at what is to come, and not at what went.
        if self.texts.free_count() <= MESSAGES / 2 {
            self.sender.poll()?;
            // Back to their pool.
            self.sender.payloads.clear();
        }
        Ok(())
    }
}

impl ObjectOps for Asking<'_> {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        match self.ask(chunk.token()) {
            Ok(()) => Ok(chunk.len()),
            Err(failure) => Err(failure.to_string().into()),
        }
    }

    fn put(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Err("only GET is measured".into())
    }
}

fn texts(domain: &std::sync::Arc<Domain>) -> Result<SharedBufferManager, Failure> {
    let pool = SharedBufferManager::allocate(MESSAGES as u32, TEXT_MAX)?;
    pool.region()
        .register(domain)
        .map_err(|error| Failure::new(error.to_string()))?;
    Ok(pool)
}

/// One request at a time, for the time of the case.
pub(crate) fn run(
    case: &Case,
    to: &str,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let Server {
        domain,
        mut receiver,
        addr,
    } = Server::listen(&messages(case))?;
    control.say(&format!("back {addr}"))?;
    let mut sender = Sender::connect(&domain, &messages(case), to.parse()?)?;
    connect_both(&mut sender, &mut receiver)?;
    control.expect("connected", object::patience(case))?;
    sender.payloads.clear();
    let texts = texts(&domain)?;
    let client = super::object::client(case)?;
    let pool = SharedBufferManager::allocate(1, case.size)?;
    let buffer = pool.try_acquire();
    let buffer = buffer.ok_or_else(|| Failure::of("no memory"))?;
    let memory = client.register(buffer, Access::WRITE);
    let memory = memory.map_err(|error| Failure::new(error.to_string()))?;
    object_request::drive(case, control, |pacer| {
        let mut asking = Asking {
            receiver: &mut receiver,
            sender: &mut sender,
            texts: &texts,
            client: &client,
            pacer,
        };
        let got = client.get(&mut asking, &memory, 0..memory.len(), 0);
        got.map_err(|error| Failure::new(error.to_string()))?;
        Ok(())
    })
}
