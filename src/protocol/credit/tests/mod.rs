//! Credits against a naive model of two sides with messages under way.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[test]
fn a_sender_without_credit_can_not_take() {
    let mut credits = SendCredits::new(2, 4);
    assert!(credits.take() && credits.take() && !credits.take());
    credits.undo();
    assert_eq!((credits.available(), credits.used()), (1, 1));
    assert_eq!(credits.grant(5), Ok(3));
    assert_eq!(credits.available(), 4);
    assert_eq!(credits.grant(5), Ok(0));
}

#[test]
fn a_grant_backwards_or_too_far_is_refused_and_changes_nothing() {
    let mut credits = SendCredits::new(2, 4);
    assert_eq!(
        credits.grant(1),
        Err(CreditError::Backwards {
            granted: 1,
            before: 2
        })
    );
    assert_eq!(
        credits.grant(5),
        Err(CreditError::TooFar {
            ahead: 5,
            window: 4
        })
    );
    assert_eq!(
        credits.grant(u64::MAX),
        Err(CreditError::TooFar {
            ahead: u64::MAX,
            window: 4
        })
    );
    assert_eq!(credits, SendCredits::new(2, 4));
}

#[test]
fn a_message_without_credit_is_an_overrun() {
    let mut credits = ReceiveCredits::new(1);
    assert_eq!(credits.on_received(), Ok(()));
    assert_eq!(
        credits.on_received(),
        Err(CreditError::Overrun { granted: 1 })
    );
    assert_eq!(credits.received(), 1);
    let mut none = ReceiveCredits::new(0);
    assert_eq!(none.on_received(), Err(CreditError::Overrun { granted: 0 }));
    assert_eq!(none.take_grant(), None);
}

#[test]
fn a_grant_waits_for_a_quarter_unless_the_peer_may_be_dry() {
    let mut credits = ReceiveCredits::new(16);
    for _ in 0..4 {
        assert_eq!(credits.on_received(), Ok(()));
    }
    credits.on_reposted(3);
    assert_eq!(credits.take_grant(), None);
    credits.on_reposted(1);
    assert_eq!(credits.take_grant(), Some(20));
    assert_eq!(credits.take_grant(), None);
    for _ in 4..20 {
        assert_eq!(credits.on_received(), Ok(()));
    }
    credits.on_reposted(1);
    assert_eq!(credits.take_grant(), Some(21));
}

#[test]
fn a_large_window_is_granted_by_halves() {
    let mut credits = ReceiveCredits::new(100);
    for _ in 0..60 {
        assert_eq!(credits.on_received(), Ok(()));
    }
    credits.on_reposted(49);
    assert_eq!(credits.take_grant(), None);
    credits.on_reposted(1);
    assert_eq!(credits.take_grant(), Some(150));
}

/// Both sides with data and grants under way, and each count kept the plain way.
struct Model {
    send: SendCredits,
    receive: ReceiveCredits,
    window: u64,
    data: u64,
    grants: VecDeque<u64>,
    filled: u64,
    most_grants: usize,
}

impl Model {
    fn new(window: u32) -> Self {
        Self {
            send: SendCredits::new(window, window),
            receive: ReceiveCredits::new(window),
            window: window.into(),
            data: 0,
            grants: VecDeque::new(),
            filled: 0,
            most_grants: 0,
        }
    }

    fn step(&mut self, op: u8) {
        match op % 5 {
            0 => self.data += u64::from(self.send.take()),
            1 if self.data > 0 => {
                self.data -= 1;
                self.filled += 1;
                assert_eq!(
                    self.receive.on_received(),
                    Ok(()),
                    "an honest sender has credit"
                );
            }
            2 if self.filled > 0 => {
                self.filled -= 1;
                self.receive.on_reposted(1);
            }
            3 => self.grants.extend(self.receive.take_grant()),
            4 => {
                if let Some(granted) = self.grants.pop_front() {
                    assert!(
                        self.send.grant(granted).is_ok(),
                        "an honest receiver's grant is good"
                    );
                }
            }
            _ => {}
        }
        self.most_grants = self.most_grants.max(self.grants.len());
        assert!(self.grants.len() < CREDIT_MESSAGES_MAX);
        // A message always finds a buffer: those under way, those that hold one, and those still
        // allowed fit the window.
        assert!(self.data + self.filled + self.send.available() <= self.window);
    }
}

proptest! {
    #[test]
    fn grants_under_way_are_few_and_buffers_suffice(
        window in 1_u32..40,
        ops in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut model = Model::new(window);
        for op in ops {
            model.step(op);
        }
        // Whatever happened: when all under way has arrived, the whole window is free again and the
        // sender knows.
        for _ in 0..8 * window {
            for op in [1, 2, 3, 4] {
                model.step(op);
            }
        }
        prop_assert!(model.send.available() > 0, "starved");
    }
}

#[test]
fn the_worst_case_of_the_bound_is_seven() {
    let mut model = Model::new(7);
    for op in [0, 0, 0, 0, 0, 0, 0].into_iter().chain([1, 2, 3].repeat(7)) {
        model.step(op);
    }
    assert_eq!(model.most_grants, 7);
}
