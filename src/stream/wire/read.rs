//! From the bytes of a header to a message. What is reserved is looked at by the caller.

use super::layout::{
    AcceptWire, BlockWire, CompleteWire, CountsWire, FinishWire, HeaderWire, HelloAckWire,
    HelloWire, ManifestWire, OpenWire, PackWire, RailLostWire, RangesWire, ReasonWire, WindowWire,
};
use super::*;

/// Flag of a `HelloAck`: the sender must prove that it has the key.
pub(super) const NEEDS_PROOF: u8 = 1;
/// Flag of a `Pause`: it begins.
pub(super) const PAUSED: u8 = 1;
/// Flag of `Have` and `Missing`: there are further ranges.
pub(super) const MORE: u8 = 1;
/// What stands for no block.
pub(super) const NO_BLOCK: u64 = u64::MAX;

pub(super) fn message<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<Message<'a>, WireError> {
    let stream = wire.stream.get();
    let kind = Kind(wire.kind);
    let message = match kind {
        Kind::HELLO => Message::Hello(hello(wire, payload)?),
        Kind::HELLO_ACK => Message::HelloAck(hello_ack(wire, payload)?),
        Kind::PROOF => Message::Proof(Proof {
            mac: exactly(wire, payload)?,
        }),
        Kind::OPEN => Message::Open(open(wire, payload)?),
        Kind::MANIFEST => {
            at_least(wire, payload, 1)?;
            let body: ManifestWire = wire.body();
            Message::Manifest(ManifestPart {
                stream,
                first: body.first.get(),
                entries: payload,
            })
        }
        Kind::ATTRIBUTES => {
            at_least(wire, payload, 1)?;
            let body: ManifestWire = wire.body();
            Message::Attributes(AttributePart {
                stream,
                first: body.first.get(),
                bytes: payload,
            })
        }
        Kind::BLOCK => Message::Block(block(wire, &wire.body(), payload.len())?),
        Kind::PACK => Message::Pack(pack(wire, payload)?),
        Kind::ZEROS => Message::Zeros(zeros(wire, payload)?),
        Kind::SAME => Message::Same(same(wire, payload)?),
        Kind::OWNERS => Message::Owners(owners(wire, payload)?),
        Kind::SUMS => Message::Sums(sums(wire, payload)?),
        Kind::PLACED => Message::Placed(placed(wire, payload)?),
        Kind::FINISH => Message::Finish(finish(wire, payload)?),
        Kind::RAIL_LOST => Message::RailLost(rail_lost(wire, payload)?),
        Kind::PAUSE => {
            nothing(wire, payload)?;
            let on = wire.flags & PAUSED != 0;
            Message::Pause(Pause { stream, on })
        }
        Kind::ACCEPT => Message::Accept(accept(wire, payload)?),
        Kind::HAVE => Message::Have(range_list(wire, payload)?),
        Kind::MISSING => Message::Missing(range_list(wire, payload)?),
        Kind::CREDIT | Kind::WRITTEN | Kind::DAMAGED | Kind::FREED => {
            nothing(wire, payload)?;
            counts(kind, stream, &wire.body())
        }
        Kind::COMPLETE => Message::Complete(complete(wire, payload)?),
        Kind::WINDOW => Message::Window(window(wire, payload)?),
        Kind::REFUSE | Kind::CANCEL | Kind::FAILED => given_up(kind, wire, payload)?,
        Kind(other) => return Err(WireError::Kind(other)),
    };
    let is_for_connection = message.stream() == 0;
    match kind {
        // All of these encode a stream of 0, so that another one is found as reserved bits.
        Kind::HELLO | Kind::HELLO_ACK | Kind::PROOF | Kind::REFUSE => Ok(message),
        _ if is_for_connection => Err(field("stream", 0_u8)),
        _ => Ok(message),
    }
}

fn payload_len(wire: &HeaderWire, payload: &[u8], said: usize) -> WireError {
    WireError::PayloadLen {
        kind: wire.kind,
        said: said as u64,
        len: payload.len(),
    }
}

fn exactly<const N: usize>(wire: &HeaderWire, payload: &[u8]) -> Result<[u8; N], WireError> {
    payload
        .try_into()
        .map_err(|_| payload_len(wire, payload, N))
}

fn nothing(wire: &HeaderWire, payload: &[u8]) -> Result<(), WireError> {
    exactly::<0>(wire, payload).map(|_| ())
}

fn at_least(wire: &HeaderWire, payload: &[u8], least: usize) -> Result<(), WireError> {
    match payload.len() >= least {
        true => Ok(()),
        false => Err(payload_len(wire, payload, least)),
    }
}

fn hello(wire: &HeaderWire, payload: &[u8]) -> Result<Hello, WireError> {
    let body: HelloWire = wire.body();
    let hello = Hello {
        version: body.version.get(),
        oldest: body.oldest.get(),
        rail: body.rail.get(),
        rails: body.rails.get(),
        // A later version may know more of them: only those of both are used.
        features: Features::from_bits_retain(body.features.get()),
        session: body.session,
        nonce: exactly(wire, payload)?,
    };
    if hello.oldest == 0 || hello.oldest > hello.version {
        return Err(field("oldest", hello.oldest));
    }
    if hello.rail >= RAILS_MAX {
        return Err(field("rail", hello.rail));
    }
    if hello.rails == 0 || hello.rails > RAILS_MAX {
        return Err(field("rails", hello.rails));
    }
    Ok(hello)
}

fn hello_ack(wire: &HeaderWire, payload: &[u8]) -> Result<HelloAck, WireError> {
    let body: HelloAckWire = wire.body();
    let ack = HelloAck {
        version: body.version.get(),
        needs_proof: wire.flags & NEEDS_PROOF != 0,
        streams: body.streams.get(),
        payload_max: body.payload_max.get(),
        features: Features::from_bits_retain(body.features.get()),
        session: body.session,
        ports: body.ports.map(|port| port.get()),
        nonce: exactly(wire, payload)?,
    };
    if ack.ports != [0; PORTS_MAX] && !ack.features.contains(Features::PORTS) {
        return Err(WireError::Reserved { kind: wire.kind });
    }
    if ack.version == 0 {
        return Err(field("version", ack.version));
    }
    if ack.streams == 0 {
        return Err(field("streams", ack.streams));
    }
    if ack.payload_max < PAYLOAD_ROOM_MIN {
        return Err(field("payload_max", ack.payload_max));
    }
    Ok(ack)
}

fn open(wire: &HeaderWire, payload: &[u8]) -> Result<Open, WireError> {
    let body: OpenWire = wire.body();
    let identity: [u8; 32] = exactly(wire, payload)?;
    let open = Open {
        stream: wire.stream.get(),
        flags: OpenFlags::from_bits_truncate(u16::from_le_bytes([wire.flags, body.more_flags])),
        block_bytes: body.block_bytes.get(),
        entries: body.entries.get(),
        manifest_bytes: body.manifest_bytes.get(),
        bytes: body.bytes.get(),
        blocks: body.blocks.get(),
        attribute_bytes: body.attribute_bytes.get(),
        identity: zerocopy::transmute!(identity),
    };
    if open.block_bytes == 0 {
        return Err(field("block_bytes", open.block_bytes));
    }
    let has_attributes = open.flags.contains(OpenFlags::ATTRIBUTES) && open.entries > 0;
    if open.attribute_bytes > 0 && !has_attributes {
        return Err(field("attribute_bytes", open.attribute_bytes));
    }
    if (open.entries == 0) != (open.manifest_bytes == 0) {
        return Err(field("manifest_bytes", open.manifest_bytes));
    }
    // Each block has a byte at least, and at most block_bytes.
    let least = open.bytes.div_ceil(open.block_bytes.into());
    if open.blocks < least || open.blocks > open.bytes {
        return Err(field("blocks", open.blocks));
    }
    Ok(open)
}

pub(super) fn block(
    wire: &HeaderWire,
    body: &BlockWire,
    len: usize,
) -> Result<BlockHeader, WireError> {
    let block = BlockHeader {
        stream: wire.stream.get(),
        index: body.index.get(),
        entry: body.entry.get(),
        offset: body.offset.get(),
        // The same as the payload_len of the header, which has 32 bits.
        len: len as u32,
        crc: body.crc.get(),
    };
    if block.stream == 0 {
        return Err(field("stream", 0_u8));
    }
    if block.len == 0 {
        return Err(WireError::PayloadLen {
            kind: wire.kind,
            said: 1,
            len,
        });
    }
    match block.offset.checked_add(block.len.into()) {
        Some(_) => Ok(block),
        None => Err(field("offset", block.offset)),
    }
}

fn pack<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<Pack<'a>, WireError> {
    let body: PackWire = wire.body();
    let (first, blocks) = (body.first.get(), body.blocks.get());
    // One block has a message of its own.
    if !(2..=PACK_BLOCKS_MAX as u64).contains(&u64::from(blocks)) {
        return Err(field("blocks", blocks));
    }
    let blocks = blocks as usize;
    // Each block has a byte at least.
    at_least(wire, payload, Pack::payload_len(blocks, blocks))?;
    let (crcs, bytes) =
        Pack::split(payload, blocks).ok_or_else(|| payload_len(wire, payload, blocks))?;
    if first.checked_add(blocks as u64).is_none() {
        return Err(field("first", first));
    }
    Ok(Pack {
        stream: wire.stream.get(),
        first,
        crcs,
        // No more than the payload_len of the header, which has 32 bits.
        len: bytes.len() as u32,
    })
}

fn zeros(wire: &HeaderWire, payload: &[u8]) -> Result<Zeros, WireError> {
    nothing(wire, payload)?;
    let body: PackWire = wire.body();
    let (first, blocks) = (body.first.get(), body.blocks.get());
    if !(1..=ZEROS_BLOCKS_MAX).contains(&blocks) {
        return Err(field("blocks", blocks));
    }
    if first.checked_add(blocks.into()).is_none() {
        return Err(field("first", first));
    }
    Ok(Zeros {
        stream: wire.stream.get(),
        first,
        blocks,
    })
}

fn same<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<Same<'a>, WireError> {
    let body: PackWire = wire.body();
    let (first, blocks) = (body.first.get(), body.blocks.get());
    if !(1..=PACK_BLOCKS_MAX as u64).contains(&u64::from(blocks)) {
        return Err(field("blocks", blocks));
    }
    let blocks = blocks as usize;
    let (crcs, rest) =
        Pack::split(payload, blocks).ok_or_else(|| payload_len(wire, payload, blocks))?;
    if !rest.is_empty() {
        return Err(payload_len(wire, payload, Pack::payload_len(blocks, 0)));
    }
    if first.checked_add(blocks as u64).is_none() {
        return Err(field("first", first));
    }
    Ok(Same {
        stream: wire.stream.get(),
        first,
        crcs,
    })
}

fn owners<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<Owners<'a>, WireError> {
    let body: ManifestWire = wire.body();
    let first = body.first.get();
    let owners = <[OwnerWire]>::ref_from_bytes(payload);
    let owners = owners.map_err(|_| payload_len(wire, payload, CONTROL_PAYLOAD_MAX))?;
    if !(1..=OWNERS_MAX).contains(&owners.len()) {
        return Err(payload_len(wire, payload, CONTROL_PAYLOAD_MAX));
    }
    Ok(Owners {
        stream: wire.stream.get(),
        first,
        owners,
    })
}

fn sums<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<Sums<'a>, WireError> {
    let body: ManifestWire = wire.body();
    let first = body.first.get();
    let (sums, rest) = payload.as_chunks();
    if !rest.is_empty() || !(1..=SUMS_MAX).contains(&sums.len()) {
        return Err(payload_len(wire, payload, CONTROL_PAYLOAD_MAX));
    }
    if first.checked_add(sums.len() as u64).is_none() {
        return Err(field("first", first));
    }
    Ok(Sums {
        stream: wire.stream.get(),
        first,
        sums,
    })
}

fn placed(wire: &HeaderWire, payload: &[u8]) -> Result<Placed, WireError> {
    nothing(wire, payload)?;
    let body: BlockWire = wire.body();
    let len = body.len.get();
    if len == 0 {
        return Err(field("len", len));
    }
    Ok(Placed {
        block: block(wire, &body, len as usize)?,
        slot: body.slot.get(),
    })
}

/// A hash, or nothing.
fn hash(wire: &HeaderWire, payload: &[u8]) -> Result<Option<[u8; HASH_LEN]>, WireError> {
    match payload.is_empty() {
        true => Ok(None),
        false => exactly(wire, payload).map(Some),
    }
}

fn finish(wire: &HeaderWire, payload: &[u8]) -> Result<Finish, WireError> {
    let body: FinishWire = wire.body();
    let finish = Finish {
        stream: wire.stream.get(),
        lap: body.lap.get(),
        sent_here: body.sent_here.get(),
        sent: body.sent.get(),
        digest: body.digest.get(),
        blake3: hash(wire, payload)?,
    };
    match finish.sent_here <= finish.sent {
        true => Ok(finish),
        false => Err(field("sent_here", finish.sent_here)),
    }
}

fn rail_lost(wire: &HeaderWire, payload: &[u8]) -> Result<RailLost, WireError> {
    nothing(wire, payload)?;
    let body: RailLostWire = wire.body();
    let lost = RailLost {
        stream: wire.stream.get(),
        rail: body.rail.get(),
        sent_there: body.sent_there.get(),
    };
    match lost.rail < RAILS_MAX {
        true => Ok(lost),
        false => Err(field("rail", lost.rail)),
    }
}

fn accept(wire: &HeaderWire, payload: &[u8]) -> Result<Accept, WireError> {
    nothing(wire, payload)?;
    let body: AcceptWire = wire.body();
    Ok(Accept {
        stream: wire.stream.get(),
        granted: body.granted.get(),
        have_blocks: body.have_blocks.get(),
        have_digest: body.have_digest.get(),
        slots: body.slots.get(),
        unchanged: body.unchanged.get(),
        compared: body.compared.get(),
    })
}

fn range_list<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<RangeList<'a>, WireError> {
    let body: RangesWire = wire.body();
    // A `Have` answers no lap.
    let lap = body.lap.get();
    if wire.kind == Kind::HAVE.0 && lap != 0 {
        return Err(field("lap", lap));
    }
    Ok(RangeList {
        stream: wire.stream.get(),
        lap,
        more: wire.flags & MORE != 0,
        ranges: Ranges::parse(wire.kind, payload)?,
    })
}

fn counts<'a>(kind: Kind, stream: u32, body: &CountsWire) -> Message<'a> {
    let (first, second, third) = (body.first.get(), body.second.get(), body.third.get());
    match kind {
        Kind::CREDIT => Message::Credit(Credit {
            stream,
            granted: first,
        }),
        Kind::WRITTEN => Message::Written(Written {
            stream,
            blocks: first,
            bytes: second,
        }),
        Kind::DAMAGED => Message::Damaged(Damaged {
            stream,
            index: first,
            crc: third,
        }),
        _ => Message::Freed(Freed {
            stream,
            slot: third,
        }),
    }
}

fn complete(wire: &HeaderWire, payload: &[u8]) -> Result<Complete, WireError> {
    let body: CompleteWire = wire.body();
    let complete = Complete {
        stream: wire.stream.get(),
        checks: Checks::from_bits_truncate(wire.flags),
        digest: body.digest.get(),
        blocks: body.blocks.get(),
        bytes: body.bytes.get(),
        deleted: body.deleted.get(),
        blake3: hash(wire, payload)?,
    };
    match complete.checks.contains(Checks::BLAKE3) == complete.blake3.is_some() {
        true => Ok(complete),
        false => Err(payload_len(wire, payload, HASH_LEN)),
    }
}

fn window<'a>(wire: &HeaderWire, payload: &'a [u8]) -> Result<Window<'a>, WireError> {
    let body: WindowWire = wire.body();
    let descriptor = payload
        .try_into()
        .map_err(|_| payload_len(wire, payload, WINDOW_DESCRIPTOR_LEN))?;
    let window = Window {
        stream: wire.stream.get(),
        first_slot: body.first_slot.get(),
        slots: body.slots.get(),
        stride: body.stride.get(),
        descriptor,
    };
    let end = window.first_slot.checked_add(window.slots);
    if window.slots == 0 || end.is_none() {
        return Err(field("slots", window.slots));
    }
    if window.stride == 0 || window.stride.checked_mul(window.slots.into()).is_none() {
        return Err(field("stride", window.stride));
    }
    Ok(window)
}

fn given_up<'a>(
    kind: Kind,
    wire: &HeaderWire,
    payload: &'a [u8],
) -> Result<Message<'a>, WireError> {
    let body: ReasonWire = wire.body();
    let stream = wire.stream.get();
    let code = RefusalCode(body.code.get());
    let reason = Reason::parse(wire.kind, payload)?;
    let details = [body.details[0].get(), body.details[1].get()];
    Ok(match kind {
        Kind::REFUSE => Message::Refuse(Refuse {
            stream,
            code,
            details,
            reason,
        }),
        Kind::CANCEL => Message::Cancel(Cancel {
            stream,
            code,
            reason,
        }),
        _ => Message::Failed(Failed {
            stream,
            code,
            block: (details[0] != NO_BLOCK).then_some(details[0]),
            reason,
        }),
    })
}
