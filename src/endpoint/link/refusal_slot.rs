//! `RefusalSlot`: a refusal for a provider that injects nothing. Many that take a device's memory
//! (`FI_HMEM`) don't: what they copy by themselves has to be the host's, and nobody tells them.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::fabric::{Domain, Ep, FiAddr, Level, LinkCompletion, PostRefused, SendPost};
use crate::memory::{HugePages, Region, Registrar, Scope};

/// Longer than any refusal (`CmData`), in bytes.
const ROOM: usize = 64;
/// The context of its send. No operation of a core's has it: neither an address nor a generation
/// with an index is that.
const CONTEXT: usize = usize::MAX - 1;

/// A place for one refusal at a time, and who it is for.
#[derive(Debug)]
pub(crate) struct RefusalSlot<T> {
    region: Arc<Region>,
    scope: Scope,
    on_its_way: Option<T>,
}

impl<T> RefusalSlot<T> {
    /// `None` where the memory can't be had: then refusals are not told.
    pub(crate) fn new(domain: &Domain) -> Option<Self> {
        let region = Region::host(ROOM)
            .huge_pages(HugePages::Never)
            .build()
            .ok()?;
        region.register_with(domain).ok()?;
        Some(Self {
            region,
            scope: domain.scope(),
            on_its_way: None,
        })
    }

    /// Sends it. Refused with `Again` while another is on its way; gives back who it was for where
    /// it is refused.
    pub(crate) fn send(
        &mut self,
        ep: &Ep,
        (peer, mark): (FiAddr, u32),
        bytes: &[u8],
        to: T,
    ) -> Result<(), (PostRefused, T)> {
        if self.on_its_way.is_some() {
            return Err((PostRefused::Again, to));
        }
        let len = bytes.len().min(ROOM);
        let Some(desc) = self.region.lease(self.scope) else {
            return Err((PostRefused::Again, to));
        };
        // SAFETY: the region is this slot's alone, as long as that, and no send of it is under
        // way.
        unsafe {
            bytes
                .as_ptr()
                .copy_to_nonoverlapping(self.region.as_ptr(), len)
        };
        let iov = [libc::iovec {
            iov_base: self.region.as_ptr().cast(),
            iov_len: len,
        }];
        let desc = [desc];
        let post = SendPost::plain(&iov, &desc, CONTEXT, Some(mark.into()), Level::Sent);
        // SAFETY: the region stays, registered and unwritten, until the completion was read or the
        // endpoint was closed.
        match unsafe { ep.send(peer, &post) } {
            Ok(()) => {
                self.on_its_way = Some(to);
                Ok(())
            }
            Err(refused) => {
                // SAFETY: the lease taken above, which no operation has.
                unsafe { self.region.release(self.scope) };
                Err((refused, to))
            }
        }
    }

    /// Takes its completion out of what was read, and says who it was for.
    pub(crate) fn take_completion(
        &mut self,
        read: &mut Vec<LinkCompletion>,
        from: usize,
    ) -> Option<T> {
        let mine = read[from..].iter().position(|it| it.context == CONTEXT)?;
        read.remove(from + mine);
        self.end()
    }

    /// The endpoint was closed.
    pub(crate) fn end(&mut self) -> Option<T> {
        let to = self.on_its_way.take()?;
        // SAFETY: the lease of `send`, whose operation is over.
        unsafe { self.region.release(self.scope) };
        Some(to)
    }

    /// The endpoint could not be closed: the provider may still read it.
    pub(crate) fn leak(&mut self) {
        if self.on_its_way.take().is_some() {
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}
