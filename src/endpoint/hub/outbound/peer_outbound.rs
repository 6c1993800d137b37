//! `PeerOutbound`: what goes out on one connection.

use std::ffi::c_void;

use crate::endpoint::error::Blocked;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::frames::PeerFrames;
use crate::endpoint::hub::gathering::GatheredStream;
use crate::endpoint::hub::line::{Line, LineState};
use crate::endpoint::hub::long_send::LongSend;

/// What goes out on one connection.
pub(in crate::endpoint::hub) struct PeerOutbound {
    /// Of the header slots; none where no messages are sent. Boxed, as is the line: a listener has
    /// many connections on which it only receives.
    pub(super) header_desc: Option<Box<HeldDescriptor>>,
    pub(in crate::endpoint::hub) in_flight: u32,
    /// Where small messages may be packed.
    pub(in crate::endpoint::hub) frames: Option<Box<PeerFrames>>,
    /// Where the kernel may gather small messages.
    pub(in crate::endpoint::hub) stream: Option<Box<GatheredStream>>,
    /// From the first time on that something waits.
    pub(super) line: Option<Box<Line>>,
    /// In the list of connections with something in their line.
    pub(super) queued: bool,
    /// Why the last one was refused, if it may be taken later.
    pub(super) refused: Option<BlockedOn>,
    /// In the list of those that wait for something shared.
    pub(super) listed: bool,
}

#[derive(Clone, Copy)]
pub(super) struct BlockedOn {
    pub(super) why: Blocked,
    /// The connection is told when there is a credit, too.
    pub(super) credit: bool,
}

impl PeerOutbound {
    pub(in crate::endpoint::hub) fn header_desc(&self) -> *mut c_void {
        let desc = self.header_desc.as_ref();
        desc.map_or(std::ptr::null_mut(), |desc| desc.desc())
    }

    /// Whether a message that is given now may be posted.
    #[inline]
    pub(in crate::endpoint::hub) fn messages(&self) -> LineState {
        let line = self.line.as_ref();
        line.map_or(LineState::Open, |line| line.messages.state())
    }

    /// How the line of one-sided operations stands.
    #[inline]
    pub(in crate::endpoint::hub) fn operations(&self) -> LineState {
        let line = self.line.as_ref();
        line.map_or(LineState::Open, |line| line.operations.state())
    }

    /// The connection is over.
    pub(in crate::endpoint::hub) fn take_line(&mut self) -> Option<Box<Line>> {
        self.line.take()
    }

    pub(in crate::endpoint::hub) fn line(&mut self) -> Option<&mut Line> {
        self.line.as_deref_mut()
    }

    /// The long message that is under way.
    pub(in crate::endpoint::hub) fn long(&self) -> Option<&LongSend> {
        self.line.as_ref()?.long()
    }

    /// For something that has to wait.
    pub(in crate::endpoint::hub) fn open_line(&mut self) -> &mut Line {
        self.line.get_or_insert_default()
    }

    /// What waits, if anything ever did.
    pub(in crate::endpoint::hub) fn waits(&self) -> Option<&Line> {
        self.line.as_deref()
    }

    /// Why the last one was refused, if it may be taken later.
    pub(in crate::endpoint::hub) fn blocked(&self) -> Option<Blocked> {
        self.refused.map(|refused| refused.why)
    }

    /// Nothing that uses the header slots is posted, or will be.
    pub(in crate::endpoint::hub) fn release(&mut self) {
        if let Some(desc) = &mut self.header_desc {
            desc.release();
        }
        if let Some(frames) = &mut self.frames {
            frames.release();
        }
    }

    /// The connection's endpoint would not close.
    pub(in crate::endpoint::hub) fn leak(&mut self) {
        if let Some(desc) = &mut self.header_desc {
            desc.leak();
        }
        if let Some(frames) = &mut self.frames {
            frames.leak();
        }
    }

    /// Something was refused, which waits for nothing but what happens on this connection.
    #[inline]
    pub(in crate::endpoint::hub) fn waits_alone(&self) -> bool {
        self.refused.is_some() && !self.listed
    }
}
