//! Peers by hand, who lie together: what they know, what they were told, and what they say whatever
//! their role.

use super::{KNOWN_MAX, QUEUED_MAX, SLOT};
use crate::endpoint::link::fake::{FakeLink, Net};
use crate::endpoint::link::{ConnKey, RemoteRange};
use crate::memory::Access;
use crate::protocol::wire;

/// The bytes, read once; behind their end everything is 0.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    pub(super) fn bit(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes([0; 8].map(|_| self.byte()))
    }

    /// One of these, if there are any.
    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.below(all.len())).copied()
    }
}

/// Remembers the last few.
pub(super) fn remember<T>(known: &mut Vec<T>, new: T) {
    if known.len() >= KNOWN_MAX {
        known.remove(0);
    }
    known.push(new);
}

/// A peer by hand.
pub(super) struct Liar {
    pub(super) conn: ConnKey,
    pub(super) link: FakeLink,
    /// Data messages and offers so far, as it counts them.
    pub(super) said: u64,
    /// Data messages that it may send, as it was told.
    pub(super) allowed: u64,
    pub(super) questions: u64,
    /// Its question, its fence, its offer was not answered; its offer was granted.
    pub(super) asking: bool,
    pub(super) fencing: bool,
    pub(super) offering: bool,
    pub(super) granted: bool,
    /// The number of the long message that it was offered and that it has not answered, and its
    /// length.
    pub(super) offered: Option<(u64, u64)>,
    /// Its windows that it revoked, by number from 1 on, and whether the last one was not answered.
    pub(super) revoked: u64,
    pub(super) revoking: bool,
}

impl Liar {
    /// One that may send so many messages at first.
    pub(super) fn new(link: FakeLink, conn: ConnKey, allowed: u32) -> Self {
        Self {
            conn,
            link,
            said: 0,
            allowed: allowed.into(),
            questions: 0,
            asking: false,
            fencing: false,
            offering: false,
            granted: false,
            offered: None,
            revoked: 0,
            revoking: false,
        }
    }
}

/// What liars were told, together.
#[derive(Default)]
pub(super) struct Known {
    pub(super) ranges: Vec<RemoteRange>,
    pub(super) marks: Vec<u32>,
    /// Whatever came in a control message: kind, number, value.
    pub(super) heard: Vec<(u8, u64, u64)>,
}

pub(super) fn mark(kind: u8) -> u32 {
    u32::from(kind) << 24
}

/// A control message, written here once more: whatever the fields.
pub(super) fn control(kind: u8, code: u16, number: u64, value: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(b"fbct");
    bytes[4] = kind;
    bytes[6..8].copy_from_slice(&code.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The same with its last word.
pub(super) fn control2(kind: u8, number: u64, value: u64, value2: u64) -> [u8; 32] {
    let mut bytes = control(kind, 0, number, value);
    bytes[24..].copy_from_slice(&value2.to_le_bytes());
    bytes
}

/// A frame of a few messages, most of them of the lengths that they say; sometimes none, or what
/// is no frame at all.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..input.below(4) {
        let len = input.below(SLOT / 8);
        let said = match input.byte() {
            0..8 => u32::from(input.byte()) << 24 | len as u32,
            8..16 => len as u32 + 1,
            _ => len as u32,
        };
        bytes.extend(said.to_le_bytes());
        bytes.extend([7; SLOT][..len].iter());
    }
    bytes.truncate(SLOT);
    bytes
}

/// As in docs/wire.md.
pub(super) mod kinds {
    pub(in super::super) const CREDIT: u8 = 1;
    pub(in super::super) const BYE: u8 = 2;
    pub(in super::super) const HEARTBEAT: u8 = 3;
    pub(in super::super) const REVOKE: u8 = 4;
    pub(in super::super) const REVOKE_ACK: u8 = 5;
    pub(in super::super) const REVOKED: u8 = 8;
    pub(in super::super) const LONG_OFFER: u8 = 9;
    pub(in super::super) const LONG_GRANT: u8 = 10;
    pub(in super::super) const LONG_DONE: u8 = 11;
    pub(in super::super) const LONG_REFUSED: u8 = 12;
    pub(in super::super) const FENCE: u8 = 14;
    pub(in super::super) const FENCED: u8 = 15;
    pub(in super::super) const FRAME: u8 = 37;
}

/// The liars of one network, and what they did.
pub(super) struct Crowd {
    pub(super) net: Net,
    pub(super) liars: Vec<Liar>,
    pub(super) known: Known,
    /// Fences that they heard.
    pub(super) fences: u64,
    /// Pieces of operations that moved.
    pub(super) pieces: u64,
}

impl Crowd {
    pub(super) fn new(net: Net) -> Self {
        Self {
            net,
            liars: Vec::new(),
            known: Known::default(),
            fences: 0,
            pieces: 0,
        }
    }

    pub(super) fn liar(&self, input: &mut Input<'_>) -> Option<usize> {
        (!self.liars.is_empty()).then(|| input.below(self.liars.len()))
    }

    /// One that may post something.
    pub(super) fn speaker(&self, input: &mut Input<'_>) -> Option<usize> {
        let which = self.liar(input)?;
        let conn = self.liars[which].conn;
        (self.net.stands(conn) && self.net.queued(conn) < QUEUED_MAX).then_some(which)
    }

    /// What one of them posted goes on. True: the endpoints are to be polled at once.
    pub(super) fn advance(&mut self, input: &mut Input<'_>) -> bool {
        let Some(which) = self.liar(input) else {
            return false;
        };
        let bytes = input.byte();
        let moved = self.net.advance(self.liars[which].conn, bytes.into());
        self.pieces += u64::from(moved);
        bytes & 1 != 0
    }

    /// Something on its way to one of them goes on; the kind of the message, if it was one about
    /// the connection, and whose it is.
    pub(super) fn hear(&mut self, input: &mut Input<'_>) -> Option<(usize, u8)> {
        let which = self.liar(input)?;
        let heard = self.net.hear(self.liars[which].conn, input.byte().into());
        let Some((Some(_), body)) = heard else {
            return None;
        };
        let word = |at: usize| {
            let bytes = body.get(at..at + 8).and_then(|word| word.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let kind = body.get(4).copied().unwrap_or(0);
        let (number, value) = (word(8), word(16));
        remember(&mut self.known.heard, (kind, number, value));
        self.fences += u64::from(kind == kinds::FENCE);
        if kind == kinds::LONG_GRANT {
            let range = RemoteRange {
                addr: value,
                len: SLOT,
                key: word(24),
            };
            remember(&mut self.known.ranges, range);
        }
        let liar = &mut self.liars[which];
        match kind {
            kinds::CREDIT => liar.allowed = liar.allowed.max(value),
            kinds::HEARTBEAT => liar.asking &= body[6] == 0,
            kinds::FENCED => liar.fencing = false,
            kinds::LONG_GRANT => liar.granted = true,
            kinds::LONG_OFFER => liar.offered = Some((number, value)),
            kinds::REVOKE_ACK => liar.revoking = false,
            kinds::LONG_REFUSED => {
                liar.offering = false;
                liar.said = liar.said.saturating_sub(1);
            }
            _ => {}
        }
        // As an honest peer, mostly.
        if !input.byte().is_multiple_of(32) {
            self.answer(which, kind, number, value);
        }
        Some((which, kind))
    }

    /// The honest answer.
    pub(super) fn answer(&mut self, which: usize, kind: u8, number: u64, value: u64) {
        let answer = match kind {
            kinds::FENCE => control(kinds::FENCED, 0, number, value),
            kinds::REVOKE => control(kinds::REVOKE_ACK, 0, 0, value),
            kinds::HEARTBEAT => control(kinds::HEARTBEAT, 1, 0, value),
            _ => return,
        };
        self.net
            .say(self.liars[which].conn, Some(mark(answer[4])), &answer);
    }

    /// Any bytes with any mark.
    pub(super) fn say_nonsense(&mut self, input: &mut Input<'_>) {
        let Some(which) = self.speaker(input) else {
            return;
        };
        let (number, value) = (input.word(), input.word());
        let code = u16::from(input.byte());
        let kind = input.byte() % 40;
        let mut body = control(kind, code, number, value).to_vec();
        if input.byte().is_multiple_of(4) {
            body.truncate(input.below(33));
        }
        let data = if input.byte().is_multiple_of(8) {
            input.word() as u32
        } else {
            mark(kind)
        };
        self.net.say(self.liars[which].conn, Some(data), &body);
    }

    pub(super) fn say_data(&mut self, input: &mut Input<'_>) {
        let Some(which) = self.speaker(input) else {
            return;
        };
        let rude = input.byte().is_multiple_of(32);
        let liar = &mut self.liars[which];
        let may = liar.said < liar.allowed && !liar.offering;
        if !may && !rude {
            return;
        }
        liar.said += 1;
        if input.bit() {
            let frame = frame(input);
            return self.net.say(liar.conn, Some(mark(kinds::FRAME)), &frame);
        }
        let bytes = [7; SLOT];
        self.net.say(liar.conn, None, &bytes[..input.below(SLOT)]);
    }

    /// A write or a read, with whatever key.
    pub(super) fn touch(&mut self, input: &mut Input<'_>) {
        let Some(which) = self.speaker(input) else {
            return;
        };
        let Some(mut range) = input.one_of(&self.known.ranges) else {
            return;
        };
        let how = input.byte();
        range.len = match how % 8 {
            0 => input.below(2 * SLOT),
            1 => input.below(range.len),
            _ => range.len.min(1 + usize::from(how)),
        };
        let access = match how & 0x80 {
            0 => Access::WRITE,
            _ => Access::READ,
        };
        let named = input.byte();
        let mark = input.one_of(&self.known.marks).unwrap_or(0);
        let immediate = match (access, named % 8) {
            (Access::WRITE, 0) => Some(wire::written_data(mark, 5)),
            (Access::WRITE, 1) => Some(wire::written_data(u32::from(named), 5)),
            _ => None,
        };
        self.net
            .touch_by_hand(self.liars[which].conn, access, range, immediate);
    }

    /// One of them goes. True: the endpoints are to be polled at once.
    pub(super) fn hang_up(&mut self, input: &mut Input<'_>) -> bool {
        let which = self.liar(input);
        let end = which.and_then(|which| self.net.other_end(self.liars[which].conn));
        end.inspect(|end| self.net.shut_down(*end)).is_some()
    }

    /// All go, with what they have begun as far as it gets.
    pub(super) fn all_hang_up(&mut self) {
        for liar in &self.liars {
            while self.net.advance(liar.conn, 3) {}
            if let Some(end) = self.net.other_end(liar.conn) {
                self.net.shut_down(end);
            }
        }
    }
}
