//! `ObjectTransfer`: one transfer, with all that must stay alive until it is over.

#![allow(unsafe_code)]

use std::time::Instant;

use crate::buffer::{LeaseError, LeasedPayload, Payload};
use crate::endpoint::{Destination, LeasedDestination};
use crate::memory::Scope;
use crate::object::ObjectOperation;
use crate::object::server::engine::GenerationId;
use crate::object::server::error::TransferErrorKind;
use crate::object::server::runs::RunList;

/// Where a transfer goes to, or comes from: checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferTarget {
    /// The client, in the channel's table.
    pub(super) peer: u32,
    /// The first byte there, as the client's provider wants it.
    pub(super) addr: u64,
    pub(super) rkey: u64,
}

/// The local side.
#[derive(Debug)]
enum LocalBytes {
    Write(LeasedPayload),
    Read(LeasedDestination),
}

/// What comes back of a transfer.
#[derive(Debug)]
pub(super) enum GivenBack {
    /// `None`: it was leaked.
    Write(Option<Payload>),
    Read(Option<Destination>),
}

/// A transfer that was accepted.
#[derive(Debug)]
pub(super) struct ObjectTransfer {
    /// Taken out once.
    local: Option<LocalBytes>,
    write: bool,
    /// Of the leased memory, which lies where it lies as long as `local` has it. The engine alone
    /// goes on with them, and counts what is in flight.
    pub(super) runs: RunList,
    pub(super) target: TransferTarget,
    /// The application's.
    pub(super) key: u64,
    pub(super) deadline: Instant,
    /// When it was accepted.
    pub(super) began: Option<Instant>,
    pub(super) len: u64,
    /// So many bytes were posted.
    pub(super) begun: u64,
    /// Pieces that the provider has.
    pub(super) in_flight: u32,
    pub(super) failed: Option<TransferErrorKind>,
    /// Where the provider's connection to the client ended with it.
    pub(super) broke: Option<GenerationId>,
    /// Its outcome was told.
    pub(super) told: bool,
    /// The provider may use the memory for ever.
    pub(super) leaked: bool,
}

// SAFETY: what it owns goes to any thread; the runs are addresses of that memory and opaque values
// of a provider that was opened with FI_THREAD_SAFE.
unsafe impl Send for ObjectTransfer {}

impl ObjectTransfer {
    /// A write of the payload.
    pub(super) fn write(
        payload: Payload,
        scope: Scope,
        target: TransferTarget,
        (key, deadline): (u64, Instant),
    ) -> Result<Self, (TransferErrorKind, Payload)> {
        let mut runs = RunList::default();
        let len = payload.len_bytes() as u64;
        let leased = payload
            .wire()
            .lease(scope, &mut |base, len, desc| runs.push(base, len, desc));
        let leases = match leased {
            Ok(leases) if payload.is_gated() => leases.of_gated(),
            Ok(leases) => leases,
            Err(error) => return Err((not_leased(error), payload)),
        };
        // SAFETY: the leases are this payload's, or those of what is sent in its place.
        let local = LocalBytes::Write(unsafe { LeasedPayload::new(payload, leases) });
        Ok(Self::new(local, runs, len, target, (key, deadline)))
    }

    /// A read into the destination.
    pub(super) fn read(
        into: Destination,
        scope: Scope,
        target: TransferTarget,
        (key, deadline): (u64, Instant),
    ) -> Result<Self, (TransferErrorKind, Destination)> {
        let len = into.len() as u64;
        let (leased, run) = match into.lease(scope) {
            Ok(leased) => leased,
            Err(into) => return Err((not_registered(&into, scope), into)),
        };
        let mut runs = RunList::default();
        runs.push(run.base, run.len, run.desc);
        let local = LocalBytes::Read(leased);
        Ok(Self::new(local, runs, len, target, (key, deadline)))
    }

    fn new(
        local: LocalBytes,
        runs: RunList,
        len: u64,
        target: TransferTarget,
        (key, deadline): (u64, Instant),
    ) -> Self {
        Self {
            write: matches!(local, LocalBytes::Write(_)),
            local: Some(local),
            runs,
            target,
            key,
            deadline,
            began: None,
            len,
            begun: 0,
            in_flight: 0,
            failed: None,
            broke: None,
            told: false,
            leaked: false,
        }
    }

    pub(super) fn operation(&self) -> ObjectOperation {
        match self.is_write() {
            true => ObjectOperation::Get,
            false => ObjectOperation::Put,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        self.write
    }

    /// Whether nothing more of it is posted.
    pub(super) fn is_stopped(&self) -> bool {
        self.told || self.failed.is_some() || self.begun == self.len
    }

    /// The first failure counts.
    pub(super) fn fail(&mut self, kind: TransferErrorKind) {
        self.failed.get_or_insert(kind);
    }

    /// Whether it may be posted now, as far as what it was to wait for is concerned.
    pub(super) fn poll_gate(&mut self) -> Result<bool, TransferErrorKind> {
        let Some(LocalBytes::Write(payload)) = &mut self.local else {
            return Ok(true);
        };
        payload
            .poll_gate()
            .map_err(|error| TransferErrorKind::Gate {
                reason: error.to_string().into(),
            })
    }

    /// Ends the leases. To be called when the provider has nothing of it any more; what it may use
    /// for ever stays, and is leaked.
    pub(super) fn into_given(mut self) -> GivenBack {
        let local = match self.leaked {
            true => None,
            false => self.local.take(),
        };
        match local {
            Some(LocalBytes::Write(payload)) => GivenBack::Write(Some(payload.into_payload())),
            Some(LocalBytes::Read(into)) => GivenBack::Read(Some(into.into_destination())),
            None if self.write => GivenBack::Write(None),
            None => GivenBack::Read(None),
        }
    }
}

impl Drop for ObjectTransfer {
    fn drop(&mut self) {
        if self.leaked {
            std::mem::forget(self.local.take());
            crate::stats::count_leaked(1);
        }
    }
}

/// What was given to a write that is refused.
pub(super) fn unwritten(transfer: ObjectTransfer) -> Option<Payload> {
    match transfer.into_given() {
        GivenBack::Write(payload) => payload,
        GivenBack::Read(_) => None,
    }
}

/// The same of a read.
pub(super) fn unread(transfer: ObjectTransfer) -> Option<Destination> {
    match transfer.into_given() {
        GivenBack::Read(into) => into,
        GivenBack::Write(_) => None,
    }
}

fn not_leased(error: LeaseError) -> TransferErrorKind {
    match error {
        LeaseError::ForeignBuffer { segment } => TransferErrorKind::ForeignBuffer { segment },
        LeaseError::NotRegistered { segment } => TransferErrorKind::NotRegistered { segment },
        LeaseError::Staged { segment } => TransferErrorKind::NotStaged { segment },
    }
}

fn not_registered(into: &Destination, scope: Scope) -> TransferErrorKind {
    let region = into.region();
    if region.is_staged(scope) {
        TransferErrorKind::NotStaged { segment: 0 }
    } else if region.is_registered_anywhere() {
        TransferErrorKind::ForeignBuffer { segment: 0 }
    } else {
        TransferErrorKind::NotRegistered { segment: 0 }
    }
}
