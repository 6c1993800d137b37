use super::*;

#[cfg(not(loom))]
mod plain {
    use super::*;

    #[test]
    fn the_last_handle_frees_the_slot() {
        let table = SlotTable::new(1);
        let index = table.try_acquire().unwrap();
        assert!(table.is_unique(index));
        table.share(index, 1);
        assert!(!table.is_unique(index));
        assert!(!end_handle(table.handles_on(index)), "there is another");
        assert_eq!((table.free().len(), table.is_unique(index)), (0, true));
        table.release(index);
        assert_eq!(table.free().len(), 1);
    }

    #[test]
    fn handles_that_were_not_used_are_given_back_together() {
        let table = SlotTable::new(1);
        let index = table.try_acquire().unwrap();
        table.share(index, 5);
        table.unshare(index, 3);
        table.release(index);
        table.release(index);
        assert_eq!((table.free().len(), table.is_unique(index)), (0, true));
        table.share(index, 2);
        table.unshare(index, 2);
        table.release(index);
        assert_eq!(table.free().len(), 1);
    }

    #[test]
    fn handles_that_are_parts_are_said_until_the_slot_is_free() {
        let table = SlotTable::new(2);
        let (a, b) = (table.try_acquire().unwrap(), table.try_acquire().unwrap());
        assert_eq!(table.parted(), (0, 0));
        table.share(a, 2);
        table.set_parted(a);
        table.set_parted(a);
        assert_eq!((table.is_parted(a), table.is_parted(b)), (true, false));
        assert_eq!(table.parted(), (1, 3), "those of the other are none");
        table.release(a);
        table.release(a);
        assert_eq!(table.parted(), (1, 1));
        table.release(a);
        assert_eq!((table.parted(), table.is_parted(a)), ((0, 0), false));
        assert_eq!(table.try_acquire(), Some(a), "it is free, and as any other");
        assert_eq!(table.parted(), (0, 0));
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let table = SlotTable::new(0);
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(20);
        let waited = table.acquire(deadline).unwrap_err();
        let now = Instant::now();
        assert!(now >= deadline && waited <= now - begin, "{waited:?}");
        let past = Instant::now();
        assert!(table.acquire(past).is_err());
    }
}

#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Pool {
        table: SlotTable,
        cell: UnsafeCell<u32>,
    }

    /// Two handles of one slot are read and dropped on two threads while a third acquires and
    /// writes: loom reports a read that races with the next owner's write, a slot that is freed
    /// twice, and one that is lost.
    #[test]
    fn loom_slot_is_freed_once_and_after_the_last_access() {
        loom::model(|| {
            let pool = Arc::new(Pool {
                table: SlotTable::new(1),
                cell: UnsafeCell::new(0),
            });
            let index = pool.table.try_acquire().unwrap();
            pool.table.share(index, 1);
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let pool = Arc::clone(&pool);
                    thread::spawn(move || {
                        #[allow(unsafe_code)]
                        // SAFETY: what is tested: a handle keeps writers out.
                        let value = pool.cell.with(|cell| unsafe { *cell });
                        assert_eq!(value, 0);
                        pool.table.release(index);
                    })
                })
                .collect();
            if let Some(index) = pool.table.try_acquire() {
                #[allow(unsafe_code)]
                // SAFETY: what is tested: a slot from the free list has no other owner.
                pool.cell.with_mut(|cell| unsafe { *cell = 1 });
                pool.table.release(index);
            }
            readers
                .into_iter()
                .for_each(|reader| reader.join().unwrap());
            assert_eq!(pool.table.free().len(), 1);
        });
    }
}
