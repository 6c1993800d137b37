//! Data messages of one connection: their credits, their numbers, and which are in flight.

use super::headers::Headers;
use super::{Connection, Dropped, Form, SendBlocked, State, Violation, index_of};
use crate::protocol::credit::{ReceiveCredits, SendCredits};
use crate::protocol::wire::{self, Control, ControlKind, Counts, Hello};

/// What both sides have sent.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Data {
    pub(super) send: SendCredits,
    pub(super) receive: ReceiveCredits,
    /// Messages posted and not yet completed.
    pub(super) posted: u64,
    /// Numbered messages up to this one were done with when nothing was posted, modulo 2^32.
    settled: u32,
    /// A credit message was handed to the endpoint and its send has not completed.
    credit_under_way: bool,
    pub(super) headers: Headers,
    /// Messages that came in frames, less those frames.
    joined: u64,
}

impl Data {
    /// Before the peer has said what it takes. The peer may send as many as that.
    pub(super) fn new(credits: u32) -> Self {
        Self {
            send: SendCredits::new(0, 0),
            receive: ReceiveCredits::new(credits),
            posted: 0,
            settled: 0,
            credit_under_way: false,
            headers: Headers::default(),
            joined: 0,
        }
    }

    /// What the peer takes is known.
    pub(super) fn set_peer(&mut self, hello: &Hello) {
        self.send = SendCredits::new(hello.credits, hello.receive_depth);
    }

    /// Credits that the peer is to be told of now, one message at a time.
    pub(super) fn next_credit(&mut self) -> Option<Control> {
        if self.credit_under_way {
            return None;
        }
        let granted = self.receive.take_grant()?;
        self.credit_under_way = true;
        Some(Control::Credit { granted })
    }

    /// The send of such a message completed.
    pub(super) fn on_credit_sent(&mut self) {
        self.credit_under_way = false;
    }

    /// What was sent and granted so far. `immediates`: how many of the sent have no number.
    pub(super) fn counts(&mut self, immediates: u64) -> Counts {
        if self.posted == 0 {
            let numbered = (self.send.used() - immediates) as u32;
            self.settled = numbered.wrapping_add(self.headers.sent);
        }
        Counts {
            sent: self.settled,
            granted: match self.credit_under_way {
                true => 0,
                false => self.receive.granted(),
            },
        }
    }
}

impl Connection {
    /// The CQ data that each data message to the peer carries; none where the endpoint itself is
    /// the connection.
    #[inline]
    pub(crate) fn data_mark(&self) -> Option<u32> {
        match (self.form, &self.peer) {
            (Form::Rdm, Some(peer)) => Some(wire::mark(
                self.has_short_marks(),
                ControlKind::DATA,
                index_of(peer.connection),
            )),
            _ => None,
        }
    }

    /// Data messages carry short marks: one of the two providers has no room for long ones.
    #[inline]
    pub(crate) fn has_short_marks(&self) -> bool {
        let peer = self.peer.as_ref().map_or(0, |peer| peer.features);
        (self.local.features | peer) & wire::FEATURE_SHORT_MARKS != 0
    }

    /// Whether a data message can be posted.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    #[inline]
    pub(crate) fn may_send(&self) -> Result<(), SendBlocked> {
        match self.state {
            State::Closed => Err(SendBlocked::Closed),
            State::Closing => Err(SendBlocked::Closing),
            State::Connecting | State::Accepting => Err(SendBlocked::NotConnected),
            State::Established if !self.transmit => Err(SendBlocked::NotConnected),
            State::Established if self.long.as_ref().is_some_and(|long| long.is_sending()) => {
                Err(SendBlocked::Long)
            }
            State::Established if self.data.send.available() == 0 => Err(SendBlocked::NoCredit),
            State::Established => Ok(()),
        }
    }

    /// A data message is about to be posted: takes its credit and gives its number, counted from 0,
    /// writes with immediate data left out and headers that travel alone counted.
    ///
    /// # Errors
    ///
    /// As [`Connection::may_send`]; then nothing changes.
    #[inline]
    pub(crate) fn on_data_posted(&mut self) -> Result<u64, SendBlocked> {
        self.may_send()?;
        Ok(self.on_data_admitted())
    }

    /// The same for who has just asked whether it [may be sent](Self::may_send).
    #[inline]
    pub(crate) fn on_data_admitted(&mut self) -> u64 {
        debug_assert_eq!(self.may_send(), Ok(()), "admission asked the same");
        let number = self.data.send.used() + u64::from(self.data.headers.sent);
        let taken = self.data.send.take();
        debug_assert!(taken, "may_send saw a credit");
        self.data.posted += 1;
        let immediates = self
            .windows
            .as_ref()
            .map_or(0, |windows| windows.immediates());
        number - immediates
    }

    /// The provider did not take the message of the last `on_data_posted` (-FI_EAGAIN).
    pub(crate) fn on_post_undone(&mut self) {
        self.data.send.undo();
        self.on_data_done();
    }

    /// A posted data message completed, or failed.
    #[inline]
    pub(crate) fn on_data_done(&mut self) {
        self.on_all_done(1);
    }

    /// So many posted data messages completed.
    #[inline]
    pub(crate) fn on_all_done(&mut self, count: u32) {
        let count = u64::from(count);
        debug_assert!(self.data.posted >= count, "more completions than posts");
        self.data.posted = self.data.posted.saturating_sub(count);
    }

    /// The peer wrote to a window of this side, with immediate data. Gives its number among the
    /// data messages, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: it must not reach the application.
    pub(crate) fn on_peer_wrote(&mut self) -> Result<u64, Dropped> {
        self.on_counted(0, u64::MAX)
    }

    /// One data message of `len` bytes arrived. Gives its number, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: the message must not reach the application.
    #[inline]
    pub(crate) fn on_data(&mut self, len: u64) -> Result<u64, Dropped> {
        if self.data.headers.waiting.is_some() {
            self.violate(Violation::OutOfTurn("data where a payload is due"));
            return Err(Dropped);
        }
        self.on_counted(len, self.local.receive_size)
    }

    /// A long message is handed out. Gives its number, counted from 0.
    ///
    /// # Errors
    ///
    /// [`Dropped`]: it must not reach the application.
    pub(crate) fn on_long_data(&mut self) -> Result<u64, Dropped> {
        if self.data.headers.waiting.is_some() {
            self.violate(Violation::OutOfTurn(
                "a long message where a payload is due",
            ));
            return Err(Dropped);
        }
        self.on_counted(0, u64::MAX)
    }

    /// Something arrived that uses a credit.
    pub(super) fn on_counted(&mut self, len: u64, limit: u64) -> Result<u64, Dropped> {
        self.on_arrival("data before the connection was established");
        if self.state == State::Closed {
            return Err(Dropped);
        }
        self.hear();
        let sequence = self.data.receive.received() + self.data.joined;
        let found: Result<(), Violation> = if self.goodbye.is_heard() {
            Err(Violation::OutOfTurn("data after its goodbye"))
        } else if len > limit {
            Err(Violation::TooLong {
                len_bytes: len,
                limit_bytes: limit,
            })
        } else {
            self.data.receive.on_received().map_err(Violation::from)
        };
        found.map(|()| sequence).map_err(|violation| {
            self.violate(violation);
            Dropped
        })
    }

    /// The message that came last was a frame, with so many more in it than one.
    pub(super) fn on_joined(&mut self, more: u64) {
        self.data.joined += more;
    }

    /// `n` receive buffers that had held data messages are posted again.
    pub(crate) fn on_reposted(&mut self, n: u64) {
        self.data.receive.on_reposted(n);
    }

    pub(super) fn on_credit(&mut self, granted: u64) {
        self.on_arrival("credit before the connection was established");
        if self.goodbye.is_heard() {
            return self.violate(Violation::OutOfTurn("credit after its goodbye"));
        }
        if self.state != State::Closed
            && let Err(error) = self.data.send.grant(granted)
        {
            self.violate(error);
        }
    }

    /// Largest whole message that the peer takes, in bytes.
    #[inline]
    pub(crate) fn peer_receive_size(&self) -> u64 {
        self.peer.map_or(0, |peer| peer.receive_size)
    }

    /// Data messages that the peer has room for now.
    pub(crate) fn credits(&self) -> u64 {
        self.data.send.available()
    }

    /// Data messages posted since the connection began.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.data.send.used()
    }

    /// Data messages received since the connection began.
    pub(crate) fn received(&self) -> u64 {
        self.data.receive.received()
    }

    /// Data messages posted and not completed.
    #[cfg(test)]
    pub(crate) fn posted(&self) -> u64 {
        self.data.posted
    }
}
