//! What is posted to a provider and what comes back, in our own types.

use std::ffi::c_void;
use std::fmt;

use crate::errno::{CompletionError, FabricErrno};

/// What a completion of a send says.
///
/// The levels of `fi_msg.3`: `FI_TRANSMIT_COMPLETE`-like or `FI_DELIVERY_COMPLETE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Level {
    /// The provider is done with the buffer, which may be reused. Over tcp: the bytes are in the
    /// kernel. Says nothing of the peer.
    #[default]
    Sent,
    /// The message is in a receive buffer of the peer.
    Delivered,
}

/// Which messages go out injected (`FI_INJECT` of `fi_msg.3`): the provider copies them as it takes
/// them, and some hand the card the bytes together with the command, which saves it a read. Each
/// still has its one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Inject {
    /// Where the provider's row says that it pays
    /// ([`Provider::inject_pays`](crate::fabric::Provider::inject_pays)), all that it takes.
    #[default]
    Auto,
    /// None.
    Off,
    /// Messages of at most so many bytes, header included; never more than the provider takes.
    UpTo(usize),
}

/// Which messages are copied into a frame with others, while an earlier one is in flight. A frame
/// is one message of the provider's; it leaves when it is full, at the next poll, and with a flush.
/// A message that finds nothing in flight leaves at once, without a copy. A post costs about as
/// much for 20 bytes as for 2,000, so this is what makes many small messages fast. Each keeps its
/// header, key, number, deadline and outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Packing {
    /// Messages that the provider's row says it pays for
    /// ([`Provider::pack_below`](crate::fabric::Provider::pack_below)).
    #[default]
    Auto,
    /// None.
    Off,
    /// Messages of at most so many bytes, header included; never more than a frame takes, which is
    /// 32,764 bytes or what the peer's receives do.
    UpTo(usize),
}

/// The most bytes of private data that a connection request, an acceptance or a refusal carries.
///
/// Providers take 256 at least and some write past their own buffer beyond it, so we stay far
/// below.
pub(crate) const CM_DATA_MAX: usize = 64;

/// Private data of the connection manager, copied out of the provider.
#[derive(Clone, Copy)]
pub(crate) struct CmData {
    bytes: [u8; CM_DATA_MAX],
    len: usize,
}

impl CmData {
    /// Copies what fits; our own formats are all shorter, what follows them is padding of the
    /// provider.
    pub(crate) fn new(data: &[u8]) -> Self {
        let len = data.len().min(CM_DATA_MAX);
        let mut bytes = [0; CM_DATA_MAX];
        bytes[..len].copy_from_slice(&data[..len]);
        Self { bytes, len }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for CmData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The context of a completion that nobody posted for: a peer's one-sided write came, with
/// immediate data. No operation of ours has it: neither an address nor a generation with an index
/// is all ones.
pub(crate) const PEER_WROTE: usize = usize::MAX;

/// One completion, read from the provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkCompletion {
    /// What was given when the operation was posted, or [`PEER_WROTE`]; not to be trusted.
    pub(crate) context: usize,
    /// Bytes received (0 for sends).
    pub(crate) len: usize,
    /// Remote CQ data, if the message carried any.
    pub(crate) data: Option<u64>,
    /// Why it failed, if it did.
    pub(crate) error: Option<Box<CompletionError>>,
}

/// What to post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendPost<'a> {
    pub(crate) iov: &'a [libc::iovec],
    pub(crate) desc: &'a [*mut c_void],
    pub(crate) context: usize,
    /// CQ data: marks a control message; in the RDM form every message has some.
    pub(crate) data: Option<u64>,
    pub(crate) level: Level,
    /// The provider copies the bytes now; there are no more than it takes so.
    pub(crate) inject: bool,
    /// Another send follows at once, without this mark; until then the provider may keep this one
    /// back.
    pub(crate) more: bool,
}

impl<'a> SendPost<'a> {
    /// One send by itself, from where its bytes lie.
    pub(crate) fn plain(
        iov: &'a [libc::iovec],
        desc: &'a [*mut c_void],
        context: usize,
        data: Option<u64>,
        level: Level,
    ) -> Self {
        Self {
            iov,
            desc,
            context,
            data,
            level,
            inject: false,
            more: false,
        }
    }
}

/// Where a one-sided operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    /// A virtual address or an offset, as the owner's provider wants it.
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

/// A one-sided operation to post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmaPost<'a> {
    /// The local side, as long as the remote one.
    pub(crate) iov: &'a [libc::iovec],
    pub(crate) desc: &'a [*mut c_void],
    pub(crate) remote: RemoteRange,
    pub(crate) context: usize,
    /// A write's immediate data.
    pub(crate) data: Option<u64>,
    /// What a write's completion says. Not looked at for a read, which is complete when the bytes
    /// are here.
    pub(crate) level: Level,
}

/// Why a post did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostRefused {
    /// The provider's queue is full: poll, then try again.
    Again,
    /// It will not take it.
    Errno(FabricErrno),
}

/// A reused batch of completions.
pub(crate) type Completions = Vec<LinkCompletion>;

/// How many completions one read takes at most.
pub(crate) const COMPLETION_BATCH: usize = 32;
