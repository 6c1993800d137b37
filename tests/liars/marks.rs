//! Immediate data: a write names the window by its mark, and whoever guesses is stopped.

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::Access;

use crate::common::{Watchdog, alone};
use crate::victim::{Guest, Victim, a_while, config, until};
use crate::wire::{self, Target};

/// Writes with guessed marks that an endpoint takes before it ends what it can end.
const STRAYS: u64 = 16;

/// Those that are under way when it does.
const UNDER_WAY: u64 = 8;

#[test]
fn who_guesses_marks_is_stopped() {
    let _alone = alone();
    let _dog = Watchdog::new("marks");
    let Some(mut victim) = Victim::new(1, &config()) else {
        return;
    };
    let pool = SharedBufferManager::allocate(2, 4096).expect("memory");
    let mut owner = Guest::polite(&mut victim, 0, None);
    let mut guesser = Guest::polite(&mut victim, 0, None);
    let mut without = Guest::polite(&mut victim, 0, None);
    let window = owner.expose(&mut victim, &pool, Access::WRITE);
    let own = guesser.expose(&mut victim, &pool, Access::WRITE);
    let mark = Target::of(&window.descriptor().to_bytes()).mark;
    let target = Target::of(&own.descriptor().to_bytes());
    let mut guess = mark;
    for n in 0..10 * STRAYS {
        if guesser.liar.over {
            break;
        }
        guess = guess.wrapping_add(1) & 0x00ff_ffff;
        if guess == target.mark || guess == mark {
            continue;
        }
        let data = Some(wire::written(guess, n as u32));
        guesser.liar.write(target.first(1), vec![1], data);
        let mut all = [&mut owner, &mut guesser, &mut without];
        until("one more guess", &mut victim, &mut all, |_, guests| {
            let liar = &guests[1].liar;
            liar.over || liar.done + liar.failed > n as usize
        });
    }
    a_while(&mut victim, &mut [&mut owner, &mut guesser, &mut without]);
    let strays = victim.endpoint(0).stats().stray_writes;
    assert!(
        guesser.ended(&victim).is_some() && owner.ended(&victim).is_some(),
        "connections with windows after {strays} guesses: {:?}",
        victim.ended
    );
    assert!(strays <= STRAYS + UNDER_WAY, "{strays} guesses");
    assert_eq!(without.ended(&victim), None, "who has no window stays");
    assert_eq!(victim.released.len(), 2, "their windows are back");
}
