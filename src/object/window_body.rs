//! `WindowBody`: memory that is lent, and until when somebody may reach it.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::endpoint::WindowMemory;
use crate::memory::{AccessLedger, DeviceRange, volatile};
use crate::object::ObjectError;
use crate::object::telemetry::Telemetry;
use crate::process::Owner;

/// The memory. Whoever can still reach it keeps it, by an `Arc` or by the ledger of the domain.
#[derive(Debug)]
pub(super) struct WindowBody {
    base: NonNull<u8>,
    len: usize,
    device: Option<DeviceRange>,
    /// Bytes can be copied by the host, this way and that.
    copies: CopyRights,
    ledger: Arc<AccessLedger>,
    state: Mutex<Reach>,
    /// A child of this process gives nothing back.
    owner: Owner,
    telemetry: Arc<Telemetry>,
}

/// What the host may do with the bytes while they are lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyRights {
    /// The memory is a unique buffer.
    Both,
    /// Others have references to it.
    Out,
    /// It is a device's, or an address that somebody else may use.
    Neither,
}

/// Who reaches the memory.
#[derive(Debug)]
pub(super) struct Reach {
    /// `None` once it was given back.
    memory: Option<WindowMemory>,
    /// Tokens that stand.
    pub(super) tokens: usize,
    /// Registrations that stay open until their endpoint is closed.
    pub(super) held: usize,
    /// The epoch of the domain that ends what began under the keys that were closed.
    pub(super) epoch: u64,
    /// A write may still land that belongs to a transfer which was given up.
    pub(super) abandoned: bool,
}

// SAFETY: `base` is an address in the memory that `state` keeps, which may be sent; it is only
// followed under the lock of `state` (`copy_out`, `copy_in`).
unsafe impl Send for WindowBody {}
// SAFETY: as above.
unsafe impl Sync for WindowBody {}

impl WindowBody {
    pub(super) fn new(
        mut memory: WindowMemory,
        ledger: &Arc<AccessLedger>,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, (ObjectError, WindowMemory)> {
        let len = memory.len();
        let Some(base) = memory.base().filter(|_| len > 0) else {
            return Err((ObjectError::Empty, memory));
        };
        let device = memory.device_range();
        let copies = match (&device, memory.is_unique(), memory.is_shared()) {
            (None, true, _) => CopyRights::Both,
            (None, false, true) => CopyRights::Out,
            _ => CopyRights::Neither,
        };
        Ok(Self {
            base,
            len,
            device,
            copies,
            ledger: Arc::clone(ledger),
            state: Mutex::new(Reach {
                memory: Some(memory),
                tokens: 0,
                held: 0,
                epoch: 0,
                abandoned: false,
            }),
            owner: Owner::current(),
            telemetry: Arc::clone(telemetry),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn device(&self) -> Option<&DeviceRange> {
        self.device.as_ref()
    }

    /// The address of a byte, to be registered; `offset` is less than the length.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.len, "{offset} of {}", self.len);
        // Memory of a device is a number only: nothing is said of an allocation.
        let at = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: within the memory, by the assertion, which does not wrap around
        // (`Region::external`; mappings don't).
        unsafe { NonNull::new_unchecked(at) }
    }

    /// The address of the first byte of `len`, which are within the memory.
    pub(super) fn first(&self, len: usize) -> NonNull<u8> {
        assert!(len <= self.len, "{len} of {}", self.len);
        self.base
    }

    pub(super) fn reach(&self) -> MutexGuard<'_, Reach> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies bytes out as they are at this moment.
    pub(super) fn copy_out(&self, from: u64, into: &mut [u8]) -> Result<(), ObjectError> {
        if self.copies == CopyRights::Neither {
            return Err(ObjectError::NotCopied);
        }
        let at = self.checked(from, into.len())?;
        let _reach = self.reach();
        // SAFETY: within the memory (`checked`), which `_reach` keeps; those who have references to
        // it only read (`CopyRights`), and those who write it in this process hold the lock.
        unsafe { volatile::copy_out(at.cast_const(), into) };
        Ok(())
    }

    /// Copies bytes in.
    pub(super) fn copy_in(&self, at: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        if self.copies != CopyRights::Both {
            return Err(ObjectError::NotCopied);
        }
        let to = self.checked(at, bytes.len())?;
        let _reach = self.reach();
        // SAFETY: within the memory (`checked`), which is a unique buffer that nobody else refers
        // to; others in this process copy under the same lock.
        unsafe { volatile::copy_in(to, bytes) };
        Ok(())
    }

    /// The address of a range, if it lies within.
    fn checked(&self, from: u64, len: usize) -> Result<*mut u8, ObjectError> {
        let end = from.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len as u64) {
            return Err(ObjectError::OutOfRange {
                offset: from,
                len: len as u64,
                memory_len: self.len as u64,
            });
        }
        Ok(self.base.as_ptr().wrapping_add(from as usize))
    }

    /// Whether nobody can reach the memory any more.
    pub(super) fn is_free(&self, reach: &Reach) -> bool {
        reach.tokens == 0 && !self.is_reached_late(reach)
    }

    /// Whether what began under keys that are closed may go on.
    pub(super) fn is_reached_late(&self, reach: &Reach) -> bool {
        reach.held > 0 || reach.epoch > self.ledger.passed()
    }

    /// Whether a write may still land that belongs to a transfer which was given up.
    pub(super) fn is_quarantined(&self, reach: &mut Reach) -> bool {
        if reach.abandoned && !self.is_reached_late(reach) {
            self.end_quarantine(reach);
        }
        reach.abandoned
    }

    /// A transfer into it was given up.
    pub(super) fn quarantine(&self, reach: &mut Reach) {
        if self.is_reached_late(reach) && !reach.abandoned {
            reach.abandoned = true;
            self.telemetry.on_quarantine(self.len as u64);
        }
    }

    fn end_quarantine(&self, reach: &mut Reach) {
        if std::mem::take(&mut reach.abandoned) {
            self.telemetry.on_quarantine_over(self.len as u64);
        }
    }

    /// Gives the memory back, if it is free.
    pub(super) fn take(&self) -> Option<WindowMemory> {
        let mut reach = self.reach();
        if !self.is_free(&reach) {
            return None;
        }
        self.end_quarantine(&mut reach);
        reach.memory.take()
    }
}

impl Drop for WindowBody {
    /// Whoever holds registrations of it has an `Arc` of it, so there are none.
    fn drop(&mut self) {
        let reach = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut reach.abandoned) {
            self.telemetry.on_quarantine_over(self.len as u64);
        }
        let Some(memory) = reach.memory.take() else {
            return;
        };
        if self.owner.is_here() {
            self.ledger.keep(reach.epoch, Box::new(memory));
        } else {
            std::mem::forget(memory);
        }
    }
}
