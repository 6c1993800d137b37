//! How a long message is loaded: it has any number of segments.

#![allow(unsafe_code)]

use super::{Outgoing, PostingContext};
use crate::buffer::{LeasedPayload, Leases, Payload, TakenSlot};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::data_op::{LongOp, Run};
use crate::endpoint::hub::headers::Header;
use crate::endpoint::hub::leases::{hold_region, lease_runs, not_here};
use crate::endpoint::link::LinkConn;
use crate::endpoint::staging::StagingRing;
use crate::fabric::Shape;

impl Outgoing {
    /// As [`load`](Self::load), for a message of any number of segments, which go one after the
    /// other.
    #[cold]
    pub(crate) fn load_long<C: LinkConn>(
        &mut self,
        payload: Payload,
        header: Header<'_>,
        key: u64,
        lane: PostingContext<'_, C>,
    ) -> Result<LongOp, (SendErrorKind, Payload)> {
        let slot = match self.long_header(header, key, payload.parts().is_empty()) {
            Ok(slot) => slot,
            Err(kind) => return Err((kind, payload)),
        };
        let mut runs = Vec::new();
        if let Some(slot) = &slot {
            runs.push(Run {
                base: self.headers.slots.start(slot),
                len: slot.len(),
                desc: lane.header_desc,
                device: None,
            });
        }
        let (mut leases, staged) = match self.lease_long(&payload, lane, &mut runs) {
            Ok(leased) => leased,
            Err(kind) => {
                self.headers.give_back(slot);
                return Err((kind, payload));
            }
        };
        if payload.is_gated() {
            leases = leases.of_gated();
        }
        // SAFETY: the leases are this payload's, or those of what is sent of it.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        Ok(LongOp {
            payload,
            slot,
            runs,
            staged,
        })
    }

    /// What a long message begins with, whatever the shape is: it is written as one run. `alone`:
    /// there is nothing else of it.
    fn long_header(
        &self,
        header: Header<'_>,
        key: u64,
        alone: bool,
    ) -> Result<Option<TakenSlot>, SendErrorKind> {
        let header = match header {
            Header::Bytes(bytes) => bytes,
            Header::Prepared(prepared) => match &mut prepared.slot {
                None => &[],
                // Nothing is in front of it, since it travels alone as a rule.
                Some(slot) if self.shape == Shape::TwoMessages => self.headers.slots.bytes(slot),
                Some(slot) => return Ok(Some(self.headers.slots.share(slot))),
            },
        };
        let prefix = self.headers.prefix(header);
        let framed = prefix.0.is_some() || !header.is_empty() || alone;
        let parts = [prefix.as_slice(), header];
        framed.then(|| self.headers.fill(&parts, key)).transpose()
    }

    fn lease_long<C: LinkConn>(
        &self,
        payload: &Payload,
        lane: PostingContext<'_, C>,
        runs: &mut Vec<Run>,
    ) -> Result<(Leases, Vec<HeldDescriptor>), SendErrorKind> {
        let scope = lane.scoped.scope();
        if !self.staging.must_stage(payload, scope)? {
            let leases = lease_runs(payload.wire(), lane.conn, lane.scoped, runs)?;
            return Ok((leases, Vec::new()));
        }
        let ring = self.staging.ring().map(StagingRing::region);
        let ring = ring.and_then(|region| hold_region(region, lane.conn, lane.scoped).ok());
        let mut held = vec![ring.ok_or(SendErrorKind::NotStaged { segment: 0 })?];
        for (index, segment) in payload.segments().iter().enumerate() {
            let region = segment.region();
            let device = region.kind().device().filter(|_| region.is_staged(scope));
            let desc = match device {
                Some(_) => std::ptr::null_mut(),
                None => {
                    let one = hold_region(region, lane.conn, lane.scoped)
                        .map_err(|error| error.unwrap_or_else(|| not_here(region, index)))?;
                    let desc = one.desc();
                    held.push(one);
                    desc
                }
            };
            segment.name_runs(desc, &mut |base, len, desc| {
                runs.push(Run {
                    base,
                    len,
                    desc,
                    device,
                });
            });
        }
        Ok((Leases::elsewhere(scope), held))
    }

    /// As [`end`](Self::end).
    pub(crate) fn end_long(&mut self, op: LongOp) -> Payload {
        self.headers.give_back(op.slot);
        op.payload.into_payload()
    }
}
