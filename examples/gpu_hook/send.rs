//! The half that reads the file and sends.

use std::collections::VecDeque;
use std::time::Instant;

use fabricast::buffer::{DeviceBuffer, DeviceBufferManager, Payload};
use fabricast::cuda::Device;
use fabricast::endpoint::{SendConfig, StagingConfig, StagingRing, StagingStats};
use fabricast::storage::{BackEnd, FileHandle, IoFuture, IoOptions};
use fabricast::{ConnectionEvent, PeerAddr, Region, SendEndpointZeroCopy, SendEvent};

use crate::kernel::{Hook, Work};
use crate::{Block, Failure, LIMIT, Plan};

/// What came of it.
pub(crate) struct Sent {
    /// Before the first block was read, with all set up.
    pub(crate) begun: Instant,
    pub(crate) sums: Vec<u64>,
    pub(crate) staging: StagingStats,
    pub(crate) read_by: BackEnd,
    /// Why by that.
    pub(crate) compat: String,
}

/// Blocks on their way: read, then whitened, then sent.
struct Sender<'a> {
    plan: &'a Plan,
    file: FileHandle,
    pool: DeviceBufferManager,
    hook: Hook,
    endpoint: SendEndpointZeroCopy,
    /// In the order of the file.
    reading: VecDeque<(Block, IoFuture<DeviceBuffer>)>,
    /// Refused for want of room, with the kernel behind it.
    refused: Option<(u64, Payload)>,
    read_by: BackEnd,
    /// Blocks whose reading has begun, and that the provider is done with.
    begun: u64,
    done: u64,
}

pub(crate) fn run(plan: &Plan, device: Device, peer: PeerAddr) -> Result<Sent, Failure> {
    let region = Region::device(plan.depth as usize * plan.block);
    let region = region.device(device.ordinal()).build()?;
    region.register(&plan.domain)?;
    let ring = StagingRing::new(StagingConfig {
        slots: plan.depth,
        slot_bytes: plan.block,
        numa_node: device.numa_node(),
        ..StagingConfig::default()
    })?;
    let config = SendConfig::default().outgoing(|out| out.depth(plan.depth).staging(&ring));
    let mut endpoint = SendEndpointZeroCopy::connect(&plan.domain, peer, config)?;
    endpoint.wait_connected()?;
    let mut sender = Sender {
        plan,
        file: FileHandle::open(&plan.file, "r")?,
        pool: DeviceBufferManager::new(region, plan.block)?,
        hook: Hook::new(device, plan.blocks())?,
        endpoint,
        reading: VecDeque::new(),
        refused: None,
        read_by: BackEnd::Staged,
        begun: 0,
        done: 0,
    };
    let begun = Instant::now();
    let (mut events, mut last) = (Vec::new(), begun);
    while sender.done < plan.blocks() {
        sender.read()?;
        let busy = sender.whiten()? | sender.take_events(&mut events)?;
        if busy {
            last = Instant::now();
        } else if last.elapsed() > LIMIT {
            return Err(format!("nothing happened for {LIMIT:?}").into());
        }
    }
    // Their outcomes came before: what is said now is how the connection ended.
    sender.endpoint.close(Instant::now() + LIMIT)?;
    Ok(Sent {
        begun,
        sums: sender.hook.sums()?,
        staging: ring.stats(),
        read_by: sender.read_by,
        compat: sender.file.compat_reason().to_owned(),
    })
}

impl Sender<'_> {
    /// Begins to read what there are buffers for.
    fn read(&mut self) -> Result<(), Failure> {
        while self.begun < self.plan.blocks()
            && let Some(mut buffer) = self.pool.try_acquire()
        {
            let block = self.plan.get(self.begun);
            buffer.set_len(block.len);
            let options = IoOptions::default();
            let read = self.file.pread(buffer, .., block.offset, &options);
            self.reading.push_back((block, read));
            self.begun += 1;
        }
        Ok(())
    }

    /// Gives the kernel what was read, and the endpoint what the kernel was given; it is sent when
    /// the kernel is done with it.
    fn whiten(&mut self) -> Result<bool, Failure> {
        if let Some((key, payload)) = self.refused.take() {
            return self.send(key, payload);
        }
        if !self.reading.front().is_some_and(|(_, read)| read.is_done()) {
            return Ok(false);
        }
        let Some((block, read)) = self.reading.pop_front() else {
            return Ok(false);
        };
        let (mut buffer, moved) = read.wait().into_result()?;
        if moved.bytes != block.len {
            return Err(format!("the file ends in block {}", block.index).into());
        }
        self.read_by = moved.back_end;
        buffer.set_len(block.wire_len());
        let event = self.hook.launch(&buffer, block, Work::Whiten)?;
        self.send(block.index, Payload::from(buffer).after(&event))
    }

    fn send(&mut self, key: u64, payload: Payload) -> Result<bool, Failure> {
        match self.endpoint.send_data(payload, &key.to_le_bytes(), key) {
            Ok(()) => Ok(true),
            Err(refused) if refused.is_would_block() => {
                self.refused = Some((key, refused.given));
                Ok(false)
            }
            Err(refused) => Err(refused.into()),
        }
    }

    fn take_events(&mut self, events: &mut Vec<SendEvent>) -> Result<bool, Failure> {
        self.endpoint.poll(events)?;
        let busy = !events.is_empty();
        for event in events.drain(..) {
            match event {
                // With the payload its buffer goes back to the pool.
                SendEvent::Completed { .. } => self.done += 1,
                SendEvent::Failed { key, error, .. } => {
                    return Err(format!("block {key}: {error}").into());
                }
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    return Err(reason.to_string().into());
                }
                _ => {}
            }
        }
        Ok(busy)
    }
}
