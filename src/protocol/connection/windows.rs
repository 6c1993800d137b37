//! How the right to a window ends, on both sides of one connection. Pure: ids and times, no memory.
//!
//! ```text
//! owner:  revoke ─► Revoke ──────────────► peer: no new use; when what is in flight is over
//!         close the registration ◄──────── RevokeAck
//! ```
//!
//! One revocation of each side is under way at a time, so that the receives for its messages can be
//! counted: [`WINDOW_MESSAGES_MAX`]. The rest wait in line.
//!
//! A peer that lies acknowledges while it goes on, on this connection or on another one of its own:
//! a key is good on all of the domain. So the acknowledgement says only that an honest peer is
//! done. When the memory is free, the `AccessLedger` says.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::{Action, Connection, SendBlocked, State, Violation};
use crate::protocol::wire::{self, Control, WindowId};

/// Window messages of one side that the other has not read, at most: a revocation, and the answer
/// to one of the other side's.
pub(crate) const WINDOW_MESSAGES_MAX: usize = 2;

/// Windows that one side exposes on a connection at once, at most.
pub(crate) const WINDOWS_MAX: u32 = 65_536;

/// What the endpoint is to do about a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowAction {
    /// Send this message.
    Send(Control),
    /// Owner: close the registration.
    Release(WindowId),
    /// User: tell the application, then say how many operations use the window (`in_use`).
    Revoked(WindowId),
}

/// Both sides' windows of one connection.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct WindowAccount {
    exposed: u64,
    waiting: VecDeque<Revocation>,
    current: Option<(Revocation, RevokeStage)>,
    revoked: RevokedSet,
    answer: Option<RevokeAnswer>,
    /// Writes with immediate data that this side posted.
    immediates: u64,
}

#[derive(Debug, Clone, Copy)]
struct Revocation {
    window: WindowId,
    deadline: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RevokeStage {
    /// The peer was told, and has not answered.
    Asked,
    /// It has answered; the registration is to be closed.
    Answered,
}

/// The peer has revoked a window and waits.
#[derive(Debug, Clone, Copy)]
struct RevokeAnswer {
    window: WindowId,
    told: bool,
    /// Operations that still use it; `None` until the endpoint has said.
    users: Option<u32>,
}

impl WindowAccount {
    // ---- owner ----------------------------------------------------------------------------------

    /// The number of a new window.
    pub(super) fn expose(&mut self) -> WindowId {
        self.exposed += 1;
        WindowId(self.exposed)
    }

    /// Puts a revocation in line. Each window once.
    pub(super) fn revoke(&mut self, window: WindowId, deadline: Option<Instant>) {
        self.waiting.push_back(Revocation { window, deadline });
    }

    pub(super) fn on_ack(&mut self, window: WindowId) -> Result<(), Violation> {
        match &mut self.current {
            Some((revocation, stage @ RevokeStage::Asked)) if revocation.window == window => {
                *stage = RevokeStage::Answered;
                Ok(())
            }
            _ => Err(Violation::OutOfTurn("an answer to no revocation")),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let current = self
            .current
            .iter()
            .filter_map(|(revocation, stage)| match stage {
                RevokeStage::Asked => revocation.deadline,
                _ => None,
            });
        let waiting = self.waiting.iter().filter_map(|waiting| waiting.deadline);
        current.chain(waiting).min()
    }

    // ---- user -----------------------------------------------------------------------------------

    pub(super) fn on_revoke(&mut self, window: WindowId) -> Result<(), Violation> {
        if self.answer.is_some() {
            return Err(Violation::OutOfTurn(
                "a revocation before the last one was answered",
            ));
        }
        if !self.revoked.insert(window.0) {
            return Err(Violation::OutOfTurn("a second revocation of a window"));
        }
        if self.revoked.runs() > WINDOWS_MAX as usize + 1 {
            return Err(Violation::OutOfTurn("more windows than there may be"));
        }
        self.answer = Some(RevokeAnswer {
            window,
            told: false,
            users: None,
        });
        Ok(())
    }

    pub(super) fn is_revoked(&self, window: WindowId) -> bool {
        self.revoked.contains(window.0)
    }

    /// So many operations use the window that [`WindowAction::Revoked`] named.
    pub(super) fn in_use(&mut self, window: WindowId, operations: u32) {
        if let Some(answer) = self
            .answer
            .as_mut()
            .filter(|answer| answer.window == window)
        {
            answer.users = Some(operations);
        }
    }

    /// An operation on a window is over.
    #[inline]
    pub(super) fn on_operation_done(&mut self, window: WindowId) {
        if let Some(answer) = &mut self.answer
            && answer.window == window
            && let Some(users) = &mut answer.users
        {
            *users = users.saturating_sub(1);
        }
    }

    /// Writes with immediate data so far: they use a credit each, but no number of the RDM form,
    /// since they can't carry one.
    pub(super) fn immediates(&self) -> u64 {
        self.immediates
    }

    pub(super) fn on_immediate_posted(&mut self) {
        self.immediates += 1;
    }

    pub(super) fn on_immediate_undone(&mut self) {
        self.immediates -= 1;
    }

    // ---- both -----------------------------------------------------------------------------------

    /// What is to be done; `may_send`: messages can go out now.
    pub(super) fn next_action(&mut self, may_send: bool) -> Option<WindowAction> {
        if let Some(answer) = &mut self.answer {
            if !std::mem::replace(&mut answer.told, true) {
                return Some(WindowAction::Revoked(answer.window));
            }
            if may_send && answer.users == Some(0) {
                let window = answer.window.0;
                self.answer = None;
                return Some(WindowAction::Send(Control::RevokeAck { window }));
            }
        }
        self.next_revocation(may_send)
    }

    fn next_revocation(&mut self, may_send: bool) -> Option<WindowAction> {
        match self.current {
            None => self.begin(may_send),
            Some((_, RevokeStage::Asked)) => None,
            Some((Revocation { window, .. }, RevokeStage::Answered)) => {
                self.current = None;
                Some(WindowAction::Release(window))
            }
        }
    }

    fn begin(&mut self, may_send: bool) -> Option<WindowAction> {
        if !may_send {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.current = Some((next, RevokeStage::Asked));
        Some(WindowAction::Send(Control::Revoke {
            window: next.window.0,
        }))
    }
}

/// The windows that a peer has revoked, as runs of numbers: between two runs lies at least one
/// window that it still exposes, so an honest peer's runs are bounded by the windows that it has,
/// however many it had.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
struct RevokedSet(BTreeMap<u64, u64>);

impl RevokedSet {
    fn contains(&self, number: u64) -> bool {
        self.run_before(number)
            .is_some_and(|(_, last)| number <= last)
    }

    /// The run that starts at `number` or before it: its first and last.
    fn run_before(&self, number: u64) -> Option<(u64, u64)> {
        let run = self.0.range(..=number).next_back();
        run.map(|(first, last)| (*first, *last))
    }

    /// False: it was there.
    fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let first = match self.run_before(number) {
            Some((first, last)) if last + 1 == number => first,
            _ => number,
        };
        let next = number.checked_add(1);
        let last = next.and_then(|next| self.0.remove(&next)).unwrap_or(number);
        self.0.insert(first, last);
        true
    }

    fn runs(&self) -> usize {
        self.0.len()
    }
}

impl Connection {
    /// Both sides know what windows are.
    pub(crate) fn has_windows(&self) -> bool {
        self.peer
            .is_some_and(|peer| peer.features & self.local.features & wire::FEATURE_WINDOWS != 0)
    }

    fn windows(&mut self) -> &mut WindowAccount {
        self.windows.get_or_insert_default()
    }

    pub(super) fn on_window_message(&mut self, control: Control) {
        let said = [
            "a window message before the connection was established",
            "a window message after its goodbye",
        ];
        if !self.takes(control.kind(), self.has_windows(), said) {
            return;
        }
        let taken = match control {
            Control::Revoke { window } => self.windows().on_revoke(WindowId(window)),
            Control::RevokeAck { window } => self.windows().on_ack(WindowId(window)),
            _ => Ok(()),
        };
        if let Err(violation) = taken {
            self.violate(violation);
        }
    }

    /// The number of a new window of this side; `None` when the connection does not stand, or the
    /// peer does not know windows.
    pub(crate) fn expose_window(&mut self) -> Option<WindowId> {
        (self.state == State::Established && self.has_windows()).then(|| self.windows().expose())
    }

    /// Asks the peer not to use a window any more, once for each window; the connection ends where
    /// it does not agree in time.
    pub(crate) fn revoke_window(&mut self, window: WindowId, deadline: Option<Instant>) {
        self.windows().revoke(window, deadline);
    }

    /// Whether the peer has revoked a window of its own.
    pub(crate) fn is_window_revoked(&self, window: WindowId) -> bool {
        let windows = self.windows.as_ref();
        windows.is_some_and(|windows| windows.is_revoked(window))
    }

    /// The answer to [`Action::WindowRevoked`].
    pub(crate) fn window_in_use(&mut self, window: WindowId, operations: u32) {
        self.windows().in_use(window, operations);
    }

    /// Whether a one-sided operation without immediate data can be posted; one with them is like a
    /// data message (`may_send`).
    ///
    /// # Errors
    ///
    /// What stands in the way.
    #[inline]
    pub(crate) fn may_use_window(&self) -> Result<(), SendBlocked> {
        match self.may_send() {
            Err(SendBlocked::NoCredit | SendBlocked::Long) => Ok(()),
            answer => answer,
        }
    }

    /// A one-sided operation is about to be posted; with immediate data it uses a credit, as a data
    /// message.
    ///
    /// # Errors
    ///
    /// What stands in the way; then nothing changes.
    #[inline]
    pub(crate) fn on_window_posted(&mut self, immediate: bool) -> Result<(), SendBlocked> {
        if immediate {
            self.on_data_posted()?;
            self.windows().on_immediate_posted();
            return Ok(());
        }
        self.may_use_window()?;
        self.data.posted += 1;
        Ok(())
    }

    /// The provider did not take the operation of the last `on_window_posted`.
    pub(crate) fn on_window_undone(&mut self, immediate: bool) {
        if immediate {
            self.on_immediate_undone();
        }
        self.on_data_done();
    }

    /// Immediate data that were counted will not be posted: their credit is free again.
    pub(crate) fn on_immediate_undone(&mut self) {
        self.data.send.undo();
        self.windows().on_immediate_undone();
    }

    /// A one-sided operation completed, or failed.
    #[inline]
    pub(crate) fn on_window_done(&mut self, window: WindowId) {
        if let Some(windows) = &mut self.windows {
            windows.on_operation_done(window);
        }
        self.on_data_done();
    }

    pub(super) fn next_window(&mut self) -> Option<Action> {
        let may_send = self.transmit && !self.goodbye.is_said() && !self.goodbye.is_heard();
        Some(match self.windows.as_mut()?.next_action(may_send)? {
            WindowAction::Send(control) => self.control(&control),
            WindowAction::Release(window) => Action::ReleaseWindow(window),
            WindowAction::Revoked(window) => Action::WindowRevoked(window),
        })
    }

    pub(super) fn window_deadline(&self) -> Option<Instant> {
        self.windows.as_ref()?.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_revoked_are_a_set(
            numbers in prop::collection::vec(prop_oneof![0_u64..40, u64::MAX - 5..=u64::MAX], 0..80)
        ) {
            let (mut set, mut model) = (RevokedSet::default(), BTreeSet::new());
            for number in numbers {
                prop_assert_eq!(set.insert(number), model.insert(number));
                let starts = model
                    .iter()
                    .filter(|n| **n == 0 || !model.contains(&(**n - 1)))
                    .count();
                prop_assert_eq!(set.runs(), starts, "runs are joined");
                for probe in (0..42).chain(u64::MAX - 6..=u64::MAX) {
                    prop_assert_eq!(set.contains(probe), model.contains(&probe));
                }
            }
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Expose,
        Revoke(usize),
        Post(usize),
        Done(usize),
        Act,
        Deliver,
    }

    fn any_step() -> impl Strategy<Value = (usize, Step)> {
        let step = prop_oneof![
            2 => Just(Step::Expose),
            2 => (0_usize..8).prop_map(Step::Revoke),
            3 => (0_usize..8).prop_map(Step::Post),
            3 => (0_usize..8).prop_map(Step::Done),
            6 => Just(Step::Act),
            6 => Just(Step::Deliver),
        ];
        (0_usize..2, step)
    }

    /// One side with what its model knows.
    #[derive(Default)]
    struct Side {
        windows: WindowAccount,
        incoming: VecDeque<Control>,
        /// Its windows, and whether the application has revoked them.
        owned: BTreeMap<WindowId, bool>,
        /// The peer's windows that the application has heard of, and operations in flight on each.
        known: BTreeMap<WindowId, u32>,
    }

    impl Side {
        fn pick(&self, n: usize) -> Option<WindowId> {
            self.known.keys().nth(n).copied()
        }
    }

    fn act(sides: &mut [Side; 2], at: usize) -> bool {
        let Some(action) = sides[at].windows.next_action(true) else {
            return false;
        };
        let other = 1 - at;
        match action {
            WindowAction::Send(control) => {
                sides[other].incoming.push_back(control);
                let unread = sides[other].incoming.len();
                assert!(unread <= WINDOW_MESSAGES_MAX, "{unread} messages unread");
            }
            WindowAction::Release(window) => {
                let revoked = sides[at].owned.remove(&window).expect("released once");
                assert!(revoked, "released without a revocation");
                let users = sides[other].known.get(&window).copied().unwrap_or(0);
                assert_eq!(users, 0, "released while in use");
                assert!(sides[other].windows.is_revoked(window));
            }
            WindowAction::Revoked(window) => {
                let users = sides[at].known.get(&window).copied().unwrap_or(0);
                sides[at].windows.in_use(window, users);
            }
        }
        true
    }

    fn deliver(side: &mut Side) -> bool {
        let Some(control) = side.incoming.pop_front() else {
            return false;
        };
        let taken = match control {
            Control::Revoke { window } => side.windows.on_revoke(WindowId(window)),
            Control::RevokeAck { window } => side.windows.on_ack(WindowId(window)),
            other => panic!("{other:?}"),
        };
        taken.expect("two honest sides");
        true
    }

    fn done(side: &mut Side, window: WindowId) {
        if let Some(users) = side.known.get_mut(&window).filter(|users| **users > 0) {
            *users -= 1;
            side.windows.on_operation_done(window);
        }
    }

    fn step(sides: &mut [Side; 2], at: usize, step: Step) {
        let other = 1 - at;
        match step {
            Step::Expose => {
                let window = sides[at].windows.expose();
                sides[at].owned.insert(window, false);
                sides[other].known.insert(window, 0);
            }
            Step::Revoke(n) => {
                let side = &mut sides[at];
                let mut live = side.owned.iter_mut().filter(|(_, revoked)| !**revoked);
                if let Some((window, revoked)) = live.nth(n) {
                    *revoked = true;
                    side.windows.revoke(*window, None);
                }
            }
            Step::Post(n) => {
                if let Some(window) = sides[at]
                    .pick(n)
                    .filter(|w| !sides[at].windows.is_revoked(*w))
                {
                    *sides[at].known.entry(window).or_default() += 1;
                }
            }
            Step::Done(n) => {
                if let Some(window) = sides[at].pick(n) {
                    done(&mut sides[at], window);
                }
            }
            Step::Act => drop(act(sides, at)),
            Step::Deliver => drop(deliver(&mut sides[at])),
        }
    }

    proptest! {
        #![proptest_config(crate::soak::cases(100, 3000))]

        /// No window is released while an operation of the peer uses it, each revoked one is in the
        /// end, and the messages under way stay within their bound.
        #[test]
        fn windows_are_released_in_the_end_and_never_in_use(
            steps in prop::collection::vec(any_step(), 0..200),
        ) {
            let mut sides = [Side::default(), Side::default()];
            for (at, what) in steps {
                step(&mut sides, at, what);
            }
            for turn in 0.. {
                prop_assert!(turn < 10_000, "it has no end");
                let mut moved = false;
                for at in [0, 1] {
                    for window in sides[at].known.keys().copied().collect::<Vec<_>>() {
                        while sides[at].known[&window] > 0 {
                            done(&mut sides[at], window);
                        }
                    }
                    moved |= act(&mut sides, at);
                    moved |= deliver(&mut sides[at]);
                }
                if !moved {
                    break;
                }
            }
            for side in &sides {
                let stuck = side.owned.values().filter(|revoked| **revoked).count();
                prop_assert_eq!(stuck, 0, "revoked and not released");
            }
        }
    }

    #[test]
    fn what_no_honest_peer_says_is_a_violation() {
        let mut windows = WindowAccount::default();
        assert!(windows.on_ack(WindowId(1)).is_err(), "nothing was asked");
        windows.on_revoke(WindowId(1)).unwrap();
        assert!(
            windows.on_revoke(WindowId(2)).is_err(),
            "the first is not answered"
        );
        windows.next_action(true);
        windows.in_use(WindowId(1), 0);
        let answer = windows.next_action(true);
        assert_eq!(
            answer,
            Some(WindowAction::Send(Control::RevokeAck { window: 1 }))
        );
        assert!(windows.on_revoke(WindowId(1)).is_err(), "twice");

        let own = windows.expose();
        windows.revoke(own, None);
        assert!(windows.on_ack(own).is_err(), "not asked yet");
        windows.next_action(true);
        assert!(windows.on_ack(WindowId(77)).is_err(), "another");
        windows.on_ack(own).unwrap();
        assert!(windows.on_ack(own).is_err(), "answered already");
    }

    #[test]
    fn a_peer_that_revokes_everywhere_is_stopped() {
        let mut windows = WindowAccount::default();
        let mut refused = 0;
        for n in 0..u64::from(WINDOWS_MAX) + 3 {
            if windows.on_revoke(WindowId(2 * n)).is_err() {
                refused += 1;
            }
            while windows.next_action(true).is_some() {
                windows.in_use(WindowId(2 * n), 0);
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn deadlines_are_those_of_revocations_not_answered() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        let mut windows = WindowAccount::default();
        let [first, second] = [windows.expose(), windows.expose()];
        windows.revoke(first, Some(now));
        windows.revoke(second, Some(later));
        assert_eq!(windows.next_deadline(), Some(now));
        windows.next_action(true);
        assert_eq!(windows.next_deadline(), Some(now));
        windows.on_ack(first).unwrap();
        assert_eq!(windows.next_deadline(), Some(later));
    }
}
