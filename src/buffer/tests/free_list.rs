use super::*;

#[cfg(not(loom))]
mod plain {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_list_has_nothing() {
        let list = FreeList::full(0);
        assert_eq!((list.pop(), list.len(), list.low_water()), (None, 0, 0));
    }

    #[test]
    fn low_water_is_the_least_and_starts_anew() {
        let list = FreeList::full(4);
        let taken = [
            list.pop().unwrap(),
            list.pop().unwrap(),
            list.pop().unwrap(),
        ];
        taken.into_iter().for_each(|index| list.push(index));
        assert_eq!((list.len(), list.low_water()), (4, 1));
        assert_eq!(list.take_low_water(), 1);
        assert_eq!(list.low_water(), 4);
        let index = list.pop().unwrap();
        assert_eq!(list.take_low_water(), 3);
        list.push(index);
        assert_eq!(list.low_water(), 3);
    }

    #[test]
    fn an_index_has_one_owner_among_threads() {
        let list = Arc::new(FreeList::full(5));
        let owned: Arc<[AtomicBool]> = (0..5).map(|_| AtomicBool::new(false)).collect();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (list, owned) = (Arc::clone(&list), Arc::clone(&owned));
                std::thread::spawn(move || {
                    for _ in 0..50_000 {
                        let Some(index) = list.pop() else { continue };
                        assert!(
                            !owned[index as usize].swap(true, Ordering::Relaxed),
                            "two owners"
                        );
                        assert!(list.len() <= 5);
                        owned[index as usize].store(false, Ordering::Relaxed);
                        list.push(index);
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(list.len(), 5);
        let mut all: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Pop,
        Push(usize),
        TakeLow,
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn list_follows_a_stack(
            capacity in 0u32..8,
            steps in prop::collection::vec(
                prop_oneof![
                    4 => Just(Step::Pop),
                    4 => any::<usize>().prop_map(Step::Push),
                    1 => Just(Step::TakeLow),
                ],
                0..200,
            ),
        ) {
            let list = FreeList::full(capacity);
            let mut stack: Vec<u32> = (0..capacity).rev().collect();
            let (mut held, mut low) = (Vec::new(), stack.len());
            for step in steps {
                match step {
                    Step::Pop => {
                        let index = list.pop();
                        prop_assert_eq!(index, stack.pop());
                        held.extend(index);
                        low = low.min(stack.len());
                    }
                    Step::Push(n) if !held.is_empty() => {
                        let index = held.swap_remove(n % held.len());
                        list.push(index);
                        stack.push(index);
                    }
                    Step::Push(_) => {}
                    Step::TakeLow => {
                        prop_assert_eq!(list.take_low_water() as usize, low);
                        low = stack.len();
                    }
                }
                prop_assert_eq!(list.len() as usize, stack.len());
                prop_assert_eq!(list.low_water() as usize, low);
            }
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Owned {
        list: FreeList,
        cells: Vec<UnsafeCell<u32>>,
    }

    /// Pops, writes to what it owns then (loom complains about a second owner), and pushes it back.
    fn use_once(owned: &Owned) {
        if let Some(index) = owned.list.pop() {
            #[allow(unsafe_code)]
            // SAFETY: what is tested: the index has one owner.
            owned.cells[index as usize].with_mut(|cell| unsafe { *cell += 1 });
            owned.list.push(index);
        }
    }

    fn model(capacity: u32, threads: usize, rounds: usize) {
        let mut builder = loom::model::Builder::new();
        // Bounded, or three threads take minutes.
        builder.preemption_bound = Some(if threads > 2 { 2 } else { 3 });
        builder.check(move || {
            let cells = (0..capacity).map(|_| UnsafeCell::new(0)).collect();
            let owned = Arc::new(Owned {
                list: FreeList::full(capacity),
                cells,
            });
            let run = move |owned: Arc<Owned>| (0..rounds).for_each(|_| use_once(&owned));
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let owned = Arc::clone(&owned);
                    thread::spawn(move || run(owned))
                })
                .collect();
            run(Arc::clone(&owned));
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(owned.list.len(), capacity);
            let mut all: Vec<_> = std::iter::from_fn(|| owned.list.pop()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..capacity).collect::<Vec<_>>());
        });
    }

    #[test]
    fn loom_free_list_two_threads() {
        model(2, 2, 2);
    }

    #[test]
    fn loom_free_list_three_threads() {
        model(2, 3, 1);
    }

    /// The ABA case: one thread is about to pop 0 with next 1, while the other takes both and puts
    /// 0 back.
    #[test]
    fn loom_free_list_aba() {
        loom::model(|| {
            let list = Arc::new(FreeList::full(2));
            let other = {
                let list = Arc::clone(&list);
                thread::spawn(move || {
                    let (first, second) = (list.pop(), list.pop());
                    first.into_iter().for_each(|index| list.push(index));
                    second
                })
            };
            let mine = list.pop();
            let held = other.join().unwrap();
            let mut all: Vec<_> = mine
                .into_iter()
                .chain(held)
                .chain(std::iter::from_fn(|| list.pop()))
                .collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1], "each index is somewhere, once");
        });
    }
}
