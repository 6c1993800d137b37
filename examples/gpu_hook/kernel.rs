//! The hook: a kernel over a block in a GPU's memory, in the order of a stream.

#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use fabricast::buffer::DeviceBuffer;
use fabricast::cuda::{Device, Event, Stream};

use crate::{Block, Failure};

/// The driver compiles it for the GPU at hand.
const SOURCE: &str = include_str!("whiten.ptx");
const THREADS: u32 = 256;
/// More would only add to the sum more often.
const GROUPS_MAX: u32 = 264;

/// What the kernel is to do.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Sum up, then whiten.
    Whiten,
    /// Undo it, then sum up.
    Undo,
}

/// The kernel, with a stream that it runs in and a sum for each block of the file.
pub(crate) struct Hook {
    theirs: Arc<CudaStream>,
    ours: Stream,
    function: CudaFunction,
    sums: CudaSlice<u64>,
}

impl Hook {
    pub(crate) fn new(device: Device, blocks: u64) -> Result<Self, Failure> {
        let context = device.cudarc_context()?;
        let module = context.load_module(Ptx::from_src(SOURCE));
        let module = module.map_err(|why| format!("whiten.ptx: the driver answers {why}"))?;
        let theirs = context.new_stream()?;
        Ok(Self {
            ours: Stream::from_cudarc(&theirs)?,
            function: module.load_function("whiten")?,
            sums: theirs.alloc_zeros(usize::try_from(blocks)?)?,
            theirs,
        })
    }

    /// The stream that the kernel runs in.
    pub(crate) fn stream(&self) -> &Stream {
        &self.ours
    }

    /// Gives the kernel to the stream, and an event behind it. The buffer has to stay until that
    /// has happened.
    pub(crate) fn launch(
        &mut self,
        buffer: &DeviceBuffer,
        block: Block,
        work: Work,
    ) -> Result<Event, Failure> {
        // What the kernel may touch, whatever came in by the wire.
        if block.wire_len() > buffer.len() {
            return Err(format!("block {} is cut off", block.index).into());
        }
        let (address, bytes) = (buffer.address(), block.len as u64);
        let (first, undo) = (block.offset / 8, u32::from(matches!(work, Work::Undo)));
        let index = block.index as usize;
        let mut sum = self.sums.slice_mut(index..index + 1);
        let groups = (block.wire_len() / 8).div_ceil(THREADS as usize) as u32;
        let size = LaunchConfig {
            grid_dim: (groups.min(GROUPS_MAX), 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = self.theirs.launch_builder(&self.function);
        launch.arg(&address).arg(&bytes).arg(&first);
        launch.arg(&mut sum).arg(&undo);
        // SAFETY: five arguments of the types that whiten.ptx names. It touches the words that the
        // block's bytes lie in, which the buffer has, and the sum, which cudarc keeps; who calls
        // keeps the buffer, and nobody else uses it before the event.
        unsafe { launch.launch(size) }?;
        Ok(self.ours.record()?)
    }

    /// The sums of all blocks, behind all kernels.
    pub(crate) fn sums(self) -> Result<Vec<u64>, Failure> {
        let sums = self.theirs.clone_dtoh(&self.sums)?;
        self.theirs.synchronize()?;
        Ok(sums)
    }
}

/// What the kernel finds, by the host: of bytes that lie so many words from the beginning of the
/// file.
pub(crate) fn sum_on_the_host(bytes: &[u8], first: u64) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.zip(first + 1..).fold(0, |sum: u64, (word, place)| {
        sum.wrapping_add(mix(word.wrapping_add(mix(place))))
    })
}

/// splitmix64's mixing of a number.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
