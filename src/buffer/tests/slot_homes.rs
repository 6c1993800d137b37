use loom::sync::Arc as LoomArc;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::*;

/// One that has its most, arms its hook and finds nothing is called when a slot of it comes back.
#[test]
fn loom_slot_homes_lose_no_hook_of_a_share_at_its_most() {
    loom::model(|| {
        let table = LoomArc::new(SlotTable::new(1));
        let share = table.add_share(0, 1).unwrap();
        let index = table.try_acquire_of(&share).unwrap();
        let called = Arc::new(AtomicBool::new(false));
        let hook = Arc::clone(&called);
        let id = share
            .wakes()
            .add(Arc::new(move || hook.store(true, Ordering::SeqCst)));
        let other = {
            let table = LoomArc::clone(&table);
            thread::spawn(move || table.release(index))
        };
        assert!(share.wakes().arm(id));
        let has_room = share.room() > 0;
        other.join().unwrap();
        assert!(
            has_room || called.load(Ordering::SeqCst),
            "no room, no call"
        );
        assert!(table.try_acquire_of(&share).is_some());
    });
}

/// A slot of its own that is freed while the share ends is everybody's.
#[test]
fn loom_slot_homes_lose_no_slot_of_a_share_that_ends() {
    loom::model(|| {
        let table = LoomArc::new(SlotTable::new(2));
        let share = table.add_share(1, 0).unwrap();
        let index = table.try_acquire_of(&share).unwrap();
        let other = {
            let table = LoomArc::clone(&table);
            thread::spawn(move || table.release(index))
        };
        table.end_share(&share);
        other.join().unwrap();
        assert_eq!(table.free().len(), 2);
    });
}
