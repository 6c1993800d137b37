//! The half that receives and writes the copy.

use std::collections::VecDeque;
use std::time::Instant;

use fabricast::buffer::{DeviceBuffer, DeviceBufferManager};
use fabricast::cuda::{Device, Event};
use fabricast::endpoint::{DeviceDelivery, DeviceMessage, ReceiveConfig};
use fabricast::storage::{BackEnd, FileHandle, IoFuture, IoOptions};
use fabricast::{ConnectionEvent, PeerAddr, ReceiveEndpoint, ReceiveEvent, Region};

use crate::kernel::{Hook, Work};
use crate::{Block, Failure, LIMIT, Plan};

/// Bytes in front of a block, more than it takes.
const HEADER_MAX: usize = 64;

/// What came of it.
pub(crate) struct Received {
    /// When the last block was written, and the sender had said goodbye.
    pub(crate) ended: Instant,
    pub(crate) sums: Vec<u64>,
    pub(crate) written_by: BackEnd,
}

/// Blocks on their way: received, then made plain, then written.
pub(crate) struct Receiver {
    endpoint: ReceiveEndpoint,
    hook: Hook,
    copy: FileHandle,
    /// Behind their kernels, which run in this order.
    undoing: VecDeque<(Block, DeviceBuffer, Event)>,
    writing: VecDeque<IoFuture<DeviceBuffer>>,
    written_by: BackEnd,
    /// Blocks that came, and that are written.
    came: u64,
    written: u64,
}

impl Receiver {
    pub(crate) fn new(plan: &Plan, device: Device) -> Result<Self, Failure> {
        let hook = Hook::new(device, plan.blocks())?;
        let room = plan.block + HEADER_MAX;
        let region = Region::device(plan.depth as usize * room.next_multiple_of(256));
        let region = region.device(device.ordinal()).build()?;
        let pool = DeviceBufferManager::new(region, room)?;
        let config = ReceiveConfig::default()
            .incoming(|incoming| {
                incoming
                    .max_message(room)
                    .credits(plan.depth)
                    .slots(2 * plan.depth + 4)
                    // The kernel's stream waits for the bytes; nobody else does.
                    .deliver_to(DeviceDelivery::new(pool).stream(hook.stream()))
            })
            .connection(|c| c.max_connections(1));
        Ok(Self {
            endpoint: ReceiveEndpoint::listen(&plan.domain, "127.0.0.1:0".parse()?, config)?,
            hook,
            copy: FileHandle::open(&plan.copy, "w")?,
            undoing: VecDeque::new(),
            writing: VecDeque::new(),
            written_by: BackEnd::Staged,
            came: 0,
            written: 0,
        })
    }

    pub(crate) fn addr(&self) -> PeerAddr {
        self.endpoint.local_addr()
    }

    pub(crate) fn run(mut self, plan: &Plan) -> Result<Received, Failure> {
        let (mut events, mut last) = (Vec::new(), Instant::now());
        let mut open = true;
        // Until the sender has said goodbye, too: it waits for ours.
        while open || self.written < plan.blocks() {
            self.endpoint.poll(&mut events)?;
            let busy = !events.is_empty();
            for event in events.drain(..) {
                match event {
                    ReceiveEvent::DeviceMessage(message) => self.undo(plan, message)?,
                    ReceiveEvent::Undelivered { error, .. } => return Err(error.into()),
                    ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                        if self.came < plan.blocks() {
                            return Err(reason.to_string().into());
                        }
                        open = false;
                    }
                    _ => {}
                }
            }
            if self.write()? | busy {
                last = Instant::now();
            } else if last.elapsed() > LIMIT {
                return Err(format!("nothing happened for {LIMIT:?}").into());
            }
        }
        Ok(Received {
            ended: last,
            sums: self.hook.sums()?,
            written_by: self.written_by,
        })
    }

    /// Gives the kernel what came.
    fn undo(&mut self, plan: &Plan, message: DeviceMessage) -> Result<(), Failure> {
        let index = u64::from_le_bytes(message.header().try_into()?);
        if index != self.came || index >= plan.blocks() {
            return Err(format!("block {index} came for {}", self.came).into());
        }
        let block = plan.get(index);
        let buffer = message.into_payload();
        let event = self.hook.launch(&buffer, block, Work::Undo)?;
        self.undoing.push_back((block, buffer, event));
        self.came += 1;
        Ok(())
    }

    /// Begins to write what the kernel is done with, and takes what is written.
    fn write(&mut self) -> Result<bool, Failure> {
        let before = (self.undoing.len(), self.written);
        while let Some((.., event)) = self.undoing.front()
            && event.is_done()?
            && let Some((block, buffer, _)) = self.undoing.pop_front()
        {
            let options = IoOptions::default();
            let write = self
                .copy
                .pwrite(buffer, ..block.len, block.offset, &options);
            self.writing.push_back(write);
        }
        while self.writing.front().is_some_and(IoFuture::is_done)
            && let Some(write) = self.writing.pop_front()
        {
            // With the buffer there is room for another message.
            let (_, moved) = write.wait().into_result()?;
            self.written_by = moved.back_end;
            self.written += 1;
        }
        Ok(before != (self.undoing.len(), self.written))
    }
}
