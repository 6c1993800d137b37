//! From a message to the bytes of its header.

use zerocopy::IntoBytes;

use super::layout::{
    AcceptWire, BlockWire, Body, CompleteWire, CountsWire, FinishWire, HeaderWire, HelloAckWire,
    HelloWire, ManifestWire, OpenWire, PackWire, RailLostWire, RangesWire, ReasonWire, WindowWire,
};
use super::read::{MORE, NEEDS_PROOF, NO_BLOCK, PAUSED};
use super::*;

pub(super) fn message<'s>(message: &'s Message<'_>, header: &mut [u8; HEADER_LEN]) -> &'s [u8] {
    let payload = payload(message);
    let new = |flags| HeaderWire::new(message.kind(), flags, message.stream(), payload.len());
    let wire = match message {
        Message::Block(it) => {
            block(it, header);
            return payload;
        }
        Message::Pack(it) => {
            let len = Pack::payload_len(it.crcs.len(), it.len as usize);
            HeaderWire::new(Kind::PACK, 0, it.stream, len).with(&pack(it))
        }
        Message::Zeros(it) => new(0).with(&PackWire {
            first: it.first.into(),
            blocks: it.blocks.into(),
            ..zeroed()
        }),
        Message::Same(it) => new(0).with(&PackWire {
            first: it.first.into(),
            // At most `PACK_BLOCKS_MAX`.
            blocks: (it.crcs.len() as u32).into(),
            ..zeroed()
        }),
        Message::Owners(it) => new(0).with(&ManifestWire {
            first: it.first.into(),
            ..zeroed()
        }),
        Message::Attributes(it) => new(0).with(&ManifestWire {
            first: it.first.into(),
            ..zeroed()
        }),
        Message::Sums(it) => new(0).with(&ManifestWire {
            first: it.first.into(),
            ..zeroed()
        }),
        Message::Placed(it) => new(0).with(&BlockWire {
            len: it.block.len.into(),
            slot: it.slot.into(),
            ..block_body(&it.block)
        }),
        Message::Hello(it) => new(0).with(&hello(it)),
        Message::HelloAck(it) => {
            let flags = if it.needs_proof { NEEDS_PROOF } else { 0 };
            new(flags).with(&hello_ack(it))
        }
        Message::Proof(_) => new(0),
        Message::Pause(it) => new(if it.on { PAUSED } else { 0 }),
        Message::Open(it) => new(it.flags.bits().to_le_bytes()[0]).with(&open(it)),
        Message::Manifest(it) => new(0).with(&ManifestWire {
            first: it.first.into(),
            ..zeroed()
        }),
        Message::Finish(it) => new(0).with(&finish(it)),
        Message::RailLost(it) => new(0).with(&rail_lost(it)),
        Message::Accept(it) => new(0).with(&accept(it)),
        Message::Have(it) | Message::Missing(it) => {
            new(if it.more { MORE } else { 0 }).with(&RangesWire {
                lap: it.lap.into(),
                ..zeroed()
            })
        }
        Message::Credit(it) => new(0).with(&counts(it.granted, 0, 0)),
        Message::Written(it) => new(0).with(&counts(it.blocks, it.bytes, 0)),
        Message::Damaged(it) => new(0).with(&counts(it.index, 0, it.crc)),
        Message::Freed(it) => new(0).with(&counts(0, 0, it.slot)),
        Message::Complete(it) => new(it.checks.bits()).with(&complete(it)),
        Message::Window(it) => new(0).with(&window(it)),
        Message::Refuse(it) => new(0).with(&given_up(it.code, it.details)),
        Message::Cancel(it) => new(0).with(&given_up(it.code, [0; 2])),
        Message::Failed(it) => new(0).with(&given_up(it.code, [it.block.unwrap_or(NO_BLOCK), 0])),
    };
    header.copy_from_slice(wire.as_bytes());
    payload
}

/// What follows the header; of blocks nothing, since that is the caller's.
fn payload<'s>(message: &'s Message<'_>) -> &'s [u8] {
    match message {
        Message::Hello(it) => &it.nonce,
        Message::HelloAck(it) => &it.nonce,
        Message::Proof(it) => &it.mac,
        Message::Open(it) => it.identity.as_bytes(),
        Message::Manifest(it) => it.entries,
        Message::Finish(it) => it.blake3.as_ref().map_or(&[], |hash| hash),
        Message::Complete(it) => it.blake3.as_ref().map_or(&[], |hash| hash),
        Message::Have(it) | Message::Missing(it) => it.ranges.as_bytes(),
        Message::Refuse(it) => it.reason.as_bytes(),
        Message::Cancel(it) => it.reason.as_bytes(),
        Message::Failed(it) => it.reason.as_bytes(),
        Message::Window(it) => it.descriptor,
        Message::Same(it) => it.crcs.as_bytes(),
        Message::Sums(it) => it.sums.as_bytes(),
        Message::Owners(it) => it.owners.as_bytes(),
        Message::Attributes(it) => it.bytes,
        Message::Block(_)
        | Message::Pack(_)
        | Message::Zeros(_)
        | Message::Placed(_)
        | Message::RailLost(_)
        | Message::Pause(_)
        | Message::Accept(_)
        | Message::Credit(_)
        | Message::Written(_)
        | Message::Damaged(_)
        | Message::Freed(_) => &[],
    }
}

pub(super) fn block(block: &BlockHeader, header: &mut [u8; HEADER_LEN]) {
    let wire =
        HeaderWire::new(Kind::BLOCK, 0, block.stream, block.len as usize).with(&block_body(block));
    header.copy_from_slice(wire.as_bytes());
}

fn block_body(block: &BlockHeader) -> BlockWire {
    BlockWire {
        index: block.index.into(),
        entry: block.entry.into(),
        offset: block.offset.into(),
        crc: block.crc.into(),
        ..zeroed()
    }
}

fn pack(pack: &Pack<'_>) -> PackWire {
    PackWire {
        first: pack.first.into(),
        // At most `PACK_BLOCKS_MAX`.
        blocks: (pack.crcs.len() as u32).into(),
        ..zeroed()
    }
}

fn zeroed<T: Body>() -> T {
    T::new_zeroed()
}

fn hello(hello: &Hello) -> HelloWire {
    HelloWire {
        version: hello.version.into(),
        oldest: hello.oldest.into(),
        rail: hello.rail.into(),
        rails: hello.rails.into(),
        features: hello.features.bits().into(),
        session: hello.session,
        ..zeroed()
    }
}

fn hello_ack(ack: &HelloAck) -> HelloAckWire {
    HelloAckWire {
        version: ack.version.into(),
        streams: ack.streams.into(),
        features: ack.features.bits().into(),
        session: ack.session,
        payload_max: ack.payload_max.into(),
        ports: ack.ports.map(Into::into),
        ..zeroed()
    }
}

fn open(open: &Open) -> OpenWire {
    OpenWire {
        entries: open.entries.into(),
        manifest_bytes: open.manifest_bytes.into(),
        bytes: open.bytes.into(),
        blocks: open.blocks.into(),
        block_bytes: open.block_bytes.into(),
        more_flags: open.flags.bits().to_le_bytes()[1],
        attribute_bytes: open.attribute_bytes.into(),
        ..zeroed()
    }
}

fn accept(accept: &Accept) -> AcceptWire {
    AcceptWire {
        granted: accept.granted.into(),
        have_blocks: accept.have_blocks.into(),
        have_digest: accept.have_digest.into(),
        slots: accept.slots.into(),
        unchanged: accept.unchanged.into(),
        compared: accept.compared.into(),
        ..zeroed()
    }
}

fn counts(first: u64, second: u64, third: u32) -> CountsWire {
    CountsWire {
        first: first.into(),
        second: second.into(),
        third: third.into(),
        ..zeroed()
    }
}

fn given_up(code: RefusalCode, details: [u64; 2]) -> ReasonWire {
    ReasonWire {
        details: details.map(Into::into),
        code: code.0.into(),
        ..zeroed()
    }
}

fn finish(finish: &Finish) -> FinishWire {
    FinishWire {
        sent_here: finish.sent_here.into(),
        sent: finish.sent.into(),
        lap: finish.lap.into(),
        digest: finish.digest.into(),
        ..zeroed()
    }
}

fn rail_lost(rail_lost: &RailLost) -> RailLostWire {
    RailLostWire {
        sent_there: rail_lost.sent_there.into(),
        rail: rail_lost.rail.into(),
        ..zeroed()
    }
}

fn complete(complete: &Complete) -> CompleteWire {
    CompleteWire {
        blocks: complete.blocks.into(),
        bytes: complete.bytes.into(),
        digest: complete.digest.into(),
        deleted: complete.deleted.into(),
        ..zeroed()
    }
}

fn window(window: &Window<'_>) -> WindowWire {
    WindowWire {
        stride: window.stride.into(),
        first_slot: window.first_slot.into(),
        slots: window.slots.into(),
        ..zeroed()
    }
}
