//! What a connection says to its endpoint: what to do next, what a message is, and why none can be
//! sent.

use super::CloseReason;
use crate::protocol::wire::{
    ByeReason, ControlBody, HELLO_LEN, SubscriptionAnswer, SubscriptionRequest, WindowId,
};

/// What the endpoint is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// MSG form: `fi_connect` with this private data.
    Connect { data: [u8; HELLO_LEN] },
    /// MSG form: `fi_accept` with this private data.
    Accept { data: [u8; HELLO_LEN] },
    /// MSG form: `fi_reject` with this private data; `Close` follows.
    Reject { data: [u8; HELLO_LEN] },
    /// Send this body with this CQ data, then call `on_control_done`.
    SendControl { cq_data: u32, body: ControlBody },
    /// Tell the application: messages can arrive and, as soon as `may_send` agrees, be sent.
    Established,
    /// Tell the application: nothing was heard from the peer for a while.
    Unresponsive,
    /// Tell the application: something came from the peer again.
    Responsive,
    /// Tell the application: the peer has said goodbye; nothing more comes, nothing more can be
    /// sent.
    PeerClosing { reason: ByeReason },
    /// The peer does not use a window of this side any more, it says: close its registration.
    ReleaseWindow(WindowId),
    /// Everything that the peer began before this epoch did is over.
    FencePassed { epoch: u64 },
    /// The peer has revoked a window of its own: tell the application, and the machine how many
    /// operations use it (`window_in_use`).
    WindowRevoked(WindowId),
    /// A subscriber asks: say what it is answered (`answer_subscription`).
    SubscriptionAsked(SubscriptionRequest),
    /// The publisher's answer to the request of `ask_subscription`; the next one may be made.
    SubscriptionAnswered {
        request: SubscriptionRequest,
        answer: SubscriptionAnswer,
    },
    /// A long message was offered: give it a destination (`grant_long`) or refuse it
    /// (`refuse_long`), now or later.
    LongOffered { len: u64 },
    /// The destination of this side's long message.
    LongGranted { base: u64, key: u64 },
    /// This side's long message is not taken: it is over. The limit, if that is why.
    LongRefused { limit: Option<u64> },
    /// Close the transport now. The last action, exactly once.
    Close(CloseReason),
}

/// What a message is that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Data: for `on_data`.
    Data,
    /// The header of the message behind it: for `on_header`.
    Header,
    /// The payload of the header in front of it: for `on_payload`.
    Payload,
    /// Several data messages in one: for `on_frame`.
    Frame,
    /// With this CQ data: for `on_control`.
    Control(u32),
}

/// A message that must be dropped: the connection was over, or is over because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped;

/// Why a data message can't be posted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendBlocked {
    /// Not yet: a transmit now would crash inside the provider.
    NotConnected,
    /// The peer has granted no room.
    NoCredit,
    /// A long message is under way.
    Long,
    /// One of the two sides is saying goodbye.
    Closing,
    /// Over.
    Closed,
}
