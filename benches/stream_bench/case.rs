//! `Case`: the settings that all runs share; `Operation`: what is measured; `Way`: by what the
//! bytes go in one run.

use clap::{Args, ValueEnum};
use libfabric_sys as sys;

/// The settings of all runs, handed to both children.
#[derive(Args, Clone, Debug)]
pub(crate) struct Case {
    /// Bytes of the file, with K, M or G for powers of 1024.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub(crate) size: usize,
    /// Bytes of a block, of all sides.
    #[arg(long, default_value = "1M", value_parser = parse_size)]
    pub(crate) block: usize,
    /// Buffers of a block that are filled and sent, of all sides.
    #[arg(long, default_value_t = 16, value_parser = parse_count)]
    pub(crate) buffers: usize,
    /// Of them, on their way at once.
    #[arg(long, default_value_t = 8, value_parser = parse_count)]
    pub(crate) depth: usize,
    /// Receives posted; of ours, the blocks that the receiver grants.
    #[arg(long, default_value_t = 16, value_parser = parse_count)]
    pub(crate) receives: usize,
    /// Threads of ours that read; the bare loop and the socket loop have one. The reader alone has
    /// as many as ours.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) readers: u32,
    /// Threads of ours that take blocks from the network to the sink; a file that is written alone
    /// has one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) writers: u32,
    /// The GPU of operations with one.
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u32,
    /// What the bare loop does when there is nothing to do.
    #[arg(long, value_enum, default_value_t = BareWait::Spin)]
    pub(crate) bare_wait: BareWait,
    /// The provider, with connections.
    #[arg(long, default_value = "tcp")]
    pub(crate) provider: String,
    /// Ours go over FI_EP_RDM (libfabric 1.x: with --provider net).
    #[arg(long)]
    pub(crate) rdm: bool,
    /// The address of this machine that everything goes over.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) node: String,
}

impl Case {
    /// What the bare loop's queues are opened with.
    pub(crate) fn wait_obj(&self) -> sys::fi_wait_obj {
        match self.bare_wait {
            BareWait::Spin => sys::FI_WAIT_NONE,
            BareWait::Fd => sys::FI_WAIT_FD,
        }
    }

    /// Receives that are posted.
    pub(crate) fn receive_depth(&self) -> usize {
        self.receives
    }

    pub(crate) fn blocks(&self) -> usize {
        self.size.div_ceil(self.block)
    }

    /// The bytes of this block.
    pub(crate) fn len(&self, index: usize) -> usize {
        self.block.min(self.size - index * self.block)
    }

    /// The command line that says the same.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut all = vec![
            format!("--size={}", self.size),
            format!("--block={}", self.block),
            format!("--buffers={}", self.buffers),
            format!("--depth={}", self.depth),
            format!("--receives={}", self.receives),
            format!("--readers={}", self.readers),
            format!("--writers={}", self.writers),
            format!("--device={}", self.device),
            format!("--bare-wait={}", name(self.bare_wait)),
            format!("--provider={}", self.provider),
            format!("--node={}", self.node),
        ];
        all.extend(self.rdm.then(|| "--rdm".to_owned()));
        all
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    let size = crate::size::parse(text);
    size.filter(|size| (4096..=1 << 40).contains(size))
        .ok_or_else(|| "a number of bytes from 4K to 1024G".to_owned())
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok();
    count
        .filter(|count| (2..=256).contains(count))
        .ok_or_else(|| "a number from 2 to 256".to_owned())
}

/// What the bare loop does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BareWait {
    /// Polls on, and offers its core to others.
    Spin,
    /// Sleeps after 64 empty polls, until the queue's file descriptor (FI_WAIT_FD) is ready.
    Fd,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// From the page cache, dropped by the receiver.
    WarmDiscard,
    /// The same by RMA writes beside messages, of ours only.
    ByWrite,
    /// From the page cache at 500 MB/s and no more, dropped by the receiver.
    ThrottledDiscard,
    /// From the disk (nothing of the file is in the page cache), dropped by the receiver.
    ColdDiscard,
    /// From the disk to a file in memory.
    DiskTmpfs,
    /// From a file in memory to the disk, synced.
    TmpfsDisk,
    /// From the disk to a file on the same disk, synced.
    DiskDisk,
    /// From the page cache to a GPU's memory, to the peer, to a GPU's memory, to a file in memory.
    GpuTmpfs,
}

impl Operation {
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    pub(crate) fn name(self) -> String {
        name(self)
    }

    /// Whether the file is on the disk.
    pub(crate) fn reads_disk(self) -> bool {
        matches!(self, Self::ColdDiscard | Self::DiskTmpfs | Self::DiskDisk)
    }

    /// Ratios that are printed, the one with the bar first.
    pub(crate) fn comparisons(self) -> &'static [Comparison] {
        use Way::{
            Bare, CopyAlone, Gpu, GpuCrc, Ours, OursCrc, OursWrite, OursWriteCrc, ReadAlone,
            ReadStage, Sendfile, SlowestStage, Socket, Splice, Throttled, ThrottledAlone,
            WireStage, WriteAlone, WriteStage,
        };
        const fn of(way: Way, by: Way, bar: Option<f64>) -> Comparison {
            Comparison { way, by, bar }
        }
        match self {
            Self::WarmDiscard => {
                const {
                    &[
                        of(Ours, Bare, Some(0.97)),
                        of(Ours, Sendfile, None),
                        of(Ours, Splice, None),
                        of(Ours, Socket, None),
                        of(OursCrc, Ours, None),
                        of(Bare, Sendfile, None),
                        of(Socket, Sendfile, None),
                    ]
                }
            }
            Self::ByWrite => {
                const { &[of(OursWrite, Ours, None), of(OursWriteCrc, OursCrc, None)] }
            }
            Self::ThrottledDiscard => const { &[of(Throttled, ThrottledAlone, Some(0.98))] },
            Self::ColdDiscard => const { &[of(Ours, ReadAlone, Some(0.95))] },
            Self::DiskTmpfs => const { &[of(Ours, ReadAlone, Some(0.9))] },
            Self::TmpfsDisk => const { &[of(Ours, WriteAlone, Some(0.9))] },
            Self::DiskDisk => const { &[of(Ours, CopyAlone, Some(0.9))] },
            Self::GpuTmpfs => {
                const {
                    &[
                        of(Gpu, SlowestStage, Some(0.9)),
                        of(Gpu, ReadStage, None),
                        of(Gpu, WireStage, None),
                        of(Gpu, WriteStage, None),
                        of(GpuCrc, Gpu, None),
                    ]
                }
            }
        }
    }
}

/// The rate of one way to that of another, in the same round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    pub(crate) way: Way,
    pub(crate) by: Way,
    pub(crate) bar: Option<f64>,
}

/// By what the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Way {
    /// `StreamSender` and `StreamReceiver`, no checksums.
    Ours,
    /// The same with CRC32C.
    OursCrc,
    /// `StreamSender` and `StreamReceiver`, blocks by RMA write, no checksums.
    OursWrite,
    /// The same with CRC32C.
    OursWriteCrc,
    /// Double-buffered, over bare libfabric.
    Bare,
    /// Double-buffered, read and write over a socket.
    Socket,
    /// sendfile(2) to a socket.
    Sendfile,
    /// splice(2) from the file to a pipe, and from there to a socket.
    Splice,
    /// Ours' source read into memory, and nothing else.
    ReadAlone,
    /// A file written and synced, and nothing else.
    WriteAlone,
    /// A file read by one thread and written by another, double-buffered, and synced.
    CopyAlone,
    /// Ours, its source throttled.
    Throttled,
    /// The throttled source read into memory, and nothing else.
    ThrottledAlone,
    /// Ours through a GPU's memory on both sides, no checksums.
    Gpu,
    /// The same with CRC32C.
    GpuCrc,
    /// Of `gpu`: from the file to the GPU and from there to the buffers that blocks are sent from,
    /// while the other stages run as fast as the last chain did.
    ReadStage,
    /// Of `gpu`: from one process's memory to the other's, in the same way.
    WireStage,
    /// Of `gpu`: from the buffers that blocks arrive in to the GPU, and from there to the file, in
    /// the same way.
    WriteStage,
    /// The slowest of the three in a round.
    SlowestStage,
}

impl Way {
    pub(crate) fn name(self) -> String {
        name(self)
    }

    /// Whether it is a stream of the library's.
    pub(crate) fn is_ours(self) -> bool {
        let by_message = matches!(self, Self::Ours | Self::OursCrc | Self::Throttled);
        by_message || self.is_by_write()
    }

    pub(crate) fn is_by_write(self) -> bool {
        matches!(self, Self::OursWrite | Self::OursWriteCrc)
    }

    pub(crate) fn has_crc(self) -> bool {
        matches!(self, Self::OursCrc | Self::OursWriteCrc)
    }

    /// The stages of `gpu`.
    pub(crate) const STAGES: [Self; 3] = [Self::ReadStage, Self::WireStage, Self::WriteStage];

    /// Whether there is nobody to receive.
    pub(crate) fn is_alone(self) -> bool {
        matches!(
            self,
            Self::ReadAlone | Self::WriteAlone | Self::CopyAlone | Self::ThrottledAlone
        )
    }
}

/// As it is written on a command line.
pub(crate) fn name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Shares of a stream's time in which it waited for disk, wire, credits and sink, as its sender's
/// report says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits(pub(crate) [f64; 4]);

impl Default for Waits {
    /// Nobody said.
    fn default() -> Self {
        Self([f64::NAN; 4])
    }
}

impl Waits {
    pub(crate) const NAMES: [&'static str; 4] = ["disk", "wire", "credits", "sink"];
}

/// What a run gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) gb_per_s: f64,
    /// Processor seconds for 10^9 bytes, of the process that sends and of the one that receives.
    pub(crate) send_cpu: f64,
    pub(crate) receive_cpu: f64,
    /// Of ours only.
    pub(crate) waits: Waits,
}
