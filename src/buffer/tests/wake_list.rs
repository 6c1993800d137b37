use super::*;

#[cfg(not(loom))]
mod plain {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn counter() -> (Arc<AtomicUsize>, WakeFn) {
        let count = Arc::new(AtomicUsize::new(0));
        let wake = Arc::clone(&count);
        (
            count,
            Arc::new(move || {
                wake.fetch_add(1, Ordering::SeqCst);
            }),
        )
    }

    #[test]
    fn a_hook_is_called_once_for_each_time_it_is_armed() {
        let list = WakeList::new();
        let (count, wake) = counter();
        let id = list.add(wake);
        list.notify();
        assert_eq!(count.load(Ordering::SeqCst), 0, "not armed");
        assert!(list.arm(id) && list.arm(id));
        list.notify();
        list.notify();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(list.arm(id) && list.remove(id));
        list.notify();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(!list.arm(id) && !list.remove(id));
        assert_eq!(list.interested.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_hook_that_panics_takes_no_call_of_another_with_it() {
        let list = WakeList::new();
        let (count, wake) = counter();
        let bad: WakeFn = Arc::new(|| std::panic::resume_unwind(Box::new("a hook of a test")));
        let hooks = [list.add(Arc::clone(&bad)), list.add(wake), list.add(bad)];
        for told in 1..=3 {
            assert!(hooks.iter().all(|hook| list.arm(*hook)));
            list.notify();
            assert_eq!(count.load(Ordering::SeqCst), told);
            assert_eq!(list.interested.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_hook_may_call_back() {
        let list = Arc::new(WakeList::new());
        let (again, id) = (Arc::downgrade(&list), Arc::new(Mutex::new(None)));
        let own = Arc::clone(&id);
        let hook = list.add(Arc::new(move || {
            let own = own.lock().unwrap().expect("set before it is armed");
            assert!(again.upgrade().unwrap().remove(own));
        }));
        *id.lock().unwrap() = Some(hook);
        list.arm(hook);
        list.notify();
        assert!(!list.arm(hook));
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::Arc as LoomArc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;
    use crate::buffer::slot_table::SlotTable;

    /// A thread that sleeps for a slot is woken by the one that frees it: loom reports a lost
    /// wake-up as a deadlock.
    #[test]
    fn loom_wake_list_loses_no_sleeper() {
        loom::model(|| {
            let table = LoomArc::new(SlotTable::new(1));
            let index = table.try_acquire().unwrap();
            let other = {
                let table = LoomArc::clone(&table);
                thread::spawn(move || table.release(index))
            };
            let far = Instant::now() + Duration::from_secs(3600);
            assert_eq!(table.acquire(far), Ok(index));
            other.join().unwrap();
            assert_eq!(table.wakes().interested.load(Ordering::SeqCst), 0);
        });
    }

    /// Who arms a hook and then finds no slot is called.
    #[test]
    fn loom_wake_list_loses_no_hook() {
        loom::model(|| {
            let table = LoomArc::new(SlotTable::new(1));
            let index = table.try_acquire().unwrap();
            let called = Arc::new(AtomicBool::new(false));
            let hook = Arc::clone(&called);
            let id = table
                .wakes()
                .add(Arc::new(move || hook.store(true, Ordering::SeqCst)));
            let other = {
                let table = LoomArc::clone(&table);
                thread::spawn(move || table.release(index))
            };
            assert!(table.wakes().arm(id));
            let found = table.try_acquire().is_some();
            other.join().unwrap();
            assert!(
                found || called.load(Ordering::SeqCst),
                "no slot, and no call"
            );
        });
    }
}
