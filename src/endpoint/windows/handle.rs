//! `Windows`: what can be done with the windows of one connection.

use std::fmt;
use std::time::Instant;

use crate::buffer::Payload;
use crate::endpoint::error::{Refused, WindowError};
use crate::endpoint::event::Level;
use crate::endpoint::hub::Hub;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::send::core::SendCore;
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::window::{LocalWindow, RemoteWindow, WindowMemory, WindowPlace};
use crate::id::ConnectionId;
use crate::memory::Access;
use crate::process::Owner;
use crate::protocol::wire::WindowDescriptor;

/// The windows of one connection: [`SendEndpointZeroCopy::windows`] and
/// [`ReceiveEndpoint::windows`] lend them.
///
/// Memory of the peer is a [`RemoteWindow`], which this side writes and reads; memory of this side
/// that the peer does is a [`LocalWindow`]. What becomes of each operation is told by a
/// [`WindowEvent`](crate::endpoint::WindowEvent) among the endpoint's events. See [`LocalWindow`]
/// for an example of both sides.
///
/// [`SendEndpointZeroCopy::windows`]: crate::SendEndpointZeroCopy::windows
/// [`ReceiveEndpoint::windows`]: crate::ReceiveEndpoint::windows
pub struct Windows<'a> {
    owner: Owner,
    of: WindowsOf<'a>,
}

/// Whose.
enum WindowsOf<'a> {
    One(&'a mut SendCore<ProviderLink>),
    Many(&'a mut Hub<ProviderLink>, ConnectionId),
}

impl<'a> Windows<'a> {
    #[inline]
    pub(crate) fn of_one(owner: Owner, core: &'a mut SendCore<ProviderLink>) -> Self {
        let of = WindowsOf::One(core);
        Self { owner, of }
    }

    #[inline]
    pub(crate) fn of_connection(
        owner: Owner,
        hub: &'a mut Hub<ProviderLink>,
        connection: ConnectionId,
    ) -> Self {
        let of = WindowsOf::Many(hub, connection);
        Self { owner, of }
    }

    /// Writes a payload into a window of the peer. Returns at once;
    /// [`WindowEvent::Written`](crate::endpoint::WindowEvent::Written) says that it is in the
    /// peer's memory, [`WindowEvent::WriteFailed`](crate::endpoint::WindowEvent::WriteFailed) that
    /// it may not be.
    ///
    /// The payload is registered memory, as for
    /// [`send_data`](crate::SendEndpointZeroCopy::send_data); it moves in, and comes back with the
    /// outcome. `place` is a [`RemoteWindow`], or a place in it ([`RemoteWindow::at`]). `key` is
    /// the caller's own. The completion is the peer's answer (`FI_DELIVERY_COMPLETE`): without it,
    /// providers report success for a write that the peer's rights forbid.
    ///
    /// The payload may lie in a GPU's memory, and may be written [after](Payload::after) an event.
    /// What the provider can't read goes through the endpoint's
    /// [`StagingRing`](crate::endpoint::StagingRing): in one piece up to the size of a slot, in
    /// several above that. One-sided operations on a connection are posted in the order in which
    /// they were given: those behind one that waits for an event or a copy wait, too. Messages have
    /// an order of their own: who tells the peer of a write by a message sends that when the write
    /// is done.
    ///
    /// # Errors
    ///
    /// Nothing was posted, and payload and key are in the error: back-pressure, or what
    /// [`SendErrorKind::Window`](crate::endpoint::SendErrorKind::Window) says of the window. What
    /// this side can't know, such as a key that is not good any more, fails the operation and ends
    /// the connection.
    #[inline]
    pub fn write<'p>(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'p>>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        self.write_at(payload.into(), place.into(), None, Level::Delivered, key)
    }

    /// As [`write`](Self::write), and tells the peer: it hears of it by
    /// [`WindowEvent::PeerWrote`](crate::endpoint::WindowEvent::PeerWrote) with `data`, when all of
    /// the payload is in its memory. It uses a credit, as a message does.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); [`WindowError::NoImmediateData`] where the provider's immediate
    /// data are too short for it.
    #[inline]
    pub fn write_with_data<'p>(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'p>>,
        data: u32,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let (payload, place) = (payload.into(), place.into());
        self.write_at(payload, place, Some(data), Level::Delivered, key)
    }

    /// As [`write`](Self::write), but
    /// [`WindowEvent::Written`](crate::endpoint::WindowEvent::Written) says only that the payload
    /// may be reused (level [`Sent`](Level::Sent)). **It comes for writes that never reach the
    /// peer's memory, too**: tcp reports success for a write that the peer refuses, and ends the
    /// connection afterwards. For those who hear of arrival by other means.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_unconfirmed<'p>(
        &mut self,
        payload: impl Into<Payload>,
        place: impl Into<WindowPlace<'p>>,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        self.write_at(payload.into(), place.into(), None, Level::Sent, key)
    }

    /// Reads from a window of the peer into registered memory: as many bytes as the destination
    /// has. Returns at once; [`WindowEvent::Read`](crate::endpoint::WindowEvent::Read) brings the
    /// destination back, filled. That may be memory of a GPU: see [`Destination`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), with the destination in the error.
    #[inline]
    pub fn read<'p>(
        &mut self,
        into: impl Into<Destination>,
        place: impl Into<WindowPlace<'p>>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        let (into, place) = (into.into(), place.into());
        if let Err(error) = self.check(place.window) {
            return Err(Refused::new(error, into, key));
        }
        match &mut self.of {
            WindowsOf::One(core) => core.read(into, place, key),
            WindowsOf::Many(hub, _) => hub.read(into, place, key),
        }
    }

    #[inline]
    fn write_at(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        level: Level,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        if let Err(error) = self.check(place.window) {
            return Err(Refused::new(error, payload, key));
        }
        match &mut self.of {
            WindowsOf::One(core) => core.write(payload, place, data, level, key),
            WindowsOf::Many(hub, _) => hub.write(payload, place, data, level, key),
        }
    }

    /// A child of the process that made the endpoint must not use what it has; and a window of
    /// another connection is none of these. A core of one connection knows that by itself.
    #[inline]
    fn check(&self, window: &RemoteWindow) -> Result<(), WindowError> {
        self.owner.check()?;
        match &self.of {
            WindowsOf::Many(_, connection) if window.connection() != *connection => {
                Err(WindowError::WrongConnection)
            }
            WindowsOf::One(_) | WindowsOf::Many(..) => Ok(()),
        }
    }

    /// A window of the peer, by the descriptor that it sent.
    ///
    /// # Errors
    ///
    /// [`WindowError`]: it is another connection's, it was revoked, or one of the two sides has no
    /// windows.
    pub fn open(&self, descriptor: &WindowDescriptor) -> Result<RemoteWindow, WindowError> {
        self.owner.check()?;
        match &self.of {
            WindowsOf::One(core) => core.open_window(descriptor),
            WindowsOf::Many(hub, connection) => hub.open_window(*connection, descriptor),
        }
    }

    /// Lets the peer use memory of this side, with these rights. The memory is the endpoint's until
    /// nobody can reach it any more: see [`LocalWindow`]. Send the peer the window's
    /// [descriptor](LocalWindow::descriptor).
    ///
    /// # Errors
    ///
    /// [`Refused`], with the memory in it; [`WindowError::TooManyWindows`] beyond the setting
    /// [`windows`](crate::endpoint::ConnectionSettings::windows).
    pub fn expose(
        &mut self,
        memory: impl Into<WindowMemory>,
        access: Access,
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        let memory = memory.into();
        if let Err(forked) = self.owner.check() {
            return Err(Refused::without_key(forked, memory));
        }
        match &mut self.of {
            WindowsOf::One(core) => core.expose(memory, access),
            WindowsOf::Many(hub, connection) => hub.expose(*connection, memory, access),
        }
    }

    /// Takes a window back: the peer is told not to use it, ends what it has in flight, and
    /// confirms. Then [`WindowEvent::Released`](crate::endpoint::WindowEvent::Released) brings the
    /// memory back. A peer that has not confirmed at the deadline loses the connection, whose end
    /// releases the memory, too. False: there is nothing to take back, its memory came back
    /// already.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the window in it, which stays as it was:
    /// [`WindowError::WrongConnection`] for one of another connection or another endpoint.
    pub fn revoke(
        &mut self,
        window: LocalWindow,
        deadline: Instant,
    ) -> Result<bool, Refused<LocalWindow, WindowError>> {
        if let Err(forked) = self.owner.check() {
            return Err(Refused::without_key(forked, window));
        }
        match &mut self.of {
            WindowsOf::One(core) => core.revoke(window, deadline),
            WindowsOf::Many(_, connection) if window.connection() != *connection => {
                Err(Refused::without_key(WindowError::WrongConnection, window))
            }
            WindowsOf::Many(hub, _) => hub.revoke(window, deadline),
        }
    }
}

impl fmt::Debug for Windows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Windows");
        match &self.of {
            WindowsOf::One(_) => {}
            WindowsOf::Many(_, connection) => {
                text.field("connection", connection);
            }
        }
        text.finish_non_exhaustive()
    }
}
