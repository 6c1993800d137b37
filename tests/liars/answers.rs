//! Answers to what nobody asked, and wrong ones: each ends its connection, and no other.

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{Access, CloseReason};

use crate::common::{SOON, Watchdog, after, alone};
use crate::victim::{Guest, Victim, config, long, until};
use crate::wire::{self, Control};

/// Says it on a connection on which nothing was asked.
fn unasked(test: &'static str, controls: &[Control]) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let (to, _) = long(4096);
    let Some(mut victim) = Victim::new(1, &config().incoming(|i| i.long_messages(to))) else {
        return;
    };
    let mut honest = Guest::polite(&mut victim, 0, None);
    for control in controls {
        let mut liar = Guest::polite(&mut victim, 0, None);
        liar.liar.say(*control);
        until(
            "it is closed",
            &mut victim,
            &mut [&mut liar],
            |victim, guests| guests[0].ended(victim).is_some(),
        );
        assert_violation(&victim, &liar, &format!("{control:?}"));
    }
    // The others are served.
    let question = honest.liar.ask_for_life();
    until("an answer", &mut victim, &mut [&mut honest], |_, guests| {
        guests[0].liar.is_answered(question)
    });
    assert_eq!(honest.ended(&victim), None);
}

fn assert_violation(victim: &Victim, guest: &Guest, what: &str) {
    let reason = guest.ended(victim);
    assert!(
        matches!(reason, Some(CloseReason::Violation(_))),
        "{what}: {reason:?}"
    );
}

#[test]
fn answers_to_nothing() {
    let all = [
        Control::new(wire::FENCED).value(7),
        Control::new(wire::FENCED).number(7),
        Control::new(wire::FENCED),
        Control::new(wire::REVOKE_ACK).value(1),
        Control::new(wire::LONG_DONE),
        Control::new(wire::LONG_GRANT).value(1),
        Control::new(wire::HEARTBEAT).code(1).value(1),
    ];
    unasked("answers", &all);
}

/// A fence is answered with another nonce than it had, or twice.
fn fence_answered(test: &'static str, answers: impl Fn(Control) -> Vec<Control>) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let Some(mut victim) = Victim::new(1, &config()) else {
        return;
    };
    let pool = SharedBufferManager::allocate(1, 4096).expect("memory");
    let mut first = Guest::polite(&mut victim, 0, None);
    let mut liar = Guest::polite(&mut victim, 0, None);
    liar.liar.manners.fences = false;
    let window = first.expose(&mut victim, &pool, Access::WRITE);
    assert!(
        victim
            .endpoint(0)
            .windows(window.connection())
            .revoke(window, after(10 * SOON))
            .expect("its own window")
    );
    let mut fence = None;
    let mut both = [&mut first, &mut liar];
    until("a fence", &mut victim, &mut both, |_, guests| {
        fence = guests[1].liar.take(wire::FENCE);
        fence.is_some()
    });
    assert!(victim.released.is_empty(), "before the fence was answered");
    for answer in answers(fence.expect("just heard")) {
        liar.liar.say(answer);
    }
    let mut both = [&mut first, &mut liar];
    until("it is closed", &mut victim, &mut both, |victim, guests| {
        guests[1].ended(victim).is_some() && victim.released.len() == 1
    });
    assert_violation(&victim, &liar, test);
    assert_eq!(first.ended(&victim), None, "who is honest stays");
}

#[test]
fn a_fence_is_answered_with_another_nonce() {
    fence_answered("another nonce", |fence| {
        let answer = wire::fenced(fence);
        vec![Control {
            number: answer.number ^ 1,
            value: answer.value ^ 1,
            ..answer
        }]
    });
}

#[test]
fn a_fence_is_answered_twice() {
    fence_answered("twice", |fence| vec![wire::fenced(fence); 2]);
}

/// Nonces can't be guessed from those before.
#[test]
fn nonces_do_not_follow_each_other() {
    let _alone = alone();
    let _dog = Watchdog::new("nonces");
    let Some(mut victim) = Victim::new(1, &config()) else {
        return;
    };
    let pool = SharedBufferManager::allocate(1, 4096).expect("memory");
    let mut first = Guest::polite(&mut victim, 0, None);
    first.liar.manners.fences = false;
    let mut fences = Vec::new();
    for n in 1..=4 {
        let window = first.expose(&mut victim, &pool, Access::WRITE);
        assert!(
            victim
                .endpoint(0)
                .windows(window.connection())
                .revoke(window, after(10 * SOON))
                .expect("its own window")
        );
        until(
            "a fence",
            &mut victim,
            &mut [&mut first],
            |victim, guests| {
                if let Some(fence) = guests[0].liar.take(wire::FENCE) {
                    fences.push(fence.value);
                    guests[0].liar.say(wire::fenced(fence));
                }
                victim.released.len() == 1
            },
        );
        victim.released.clear();
        fences.dedup();
        assert_eq!(fences.len(), n, "a nonce of its own: {fences:?}");
    }
    let mut steps: Vec<_> = fences
        .windows(2)
        .map(|two| two[1].wrapping_sub(two[0]))
        .collect();
    steps.dedup();
    assert_eq!(steps.len(), 3, "{fences:?}");
}
