use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;

fn pool(slots: u32) -> SharedBufferManager {
    SharedBufferManager::allocate(slots, 64).unwrap()
}

fn reserve(pool: &SharedBufferManager, least: u32, most: u32) -> PoolShare {
    PoolShare::reserve(pool, least, most).expect("free")
}

fn take(share: &PoolShare, count: usize) -> Vec<BufferMut> {
    let taken: Vec<_> = (0..count).map_while(|_| share.try_acquire()).collect();
    assert_eq!(taken.len(), count);
    taken
}

/// A share that counts how often it was woken.
fn count_wakes(share: &mut PoolShare) -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let wake: WakeFn = Arc::new(move || _ = counted.fetch_add(1, Ordering::Relaxed));
    share.wake_by(&wake);
    count
}

#[test]
fn what_is_reserved_is_there_whatever_others_take() {
    let pool = pool(10);
    let (a, b) = (reserve(&pool, 3, 10), reserve(&pool, 2, 4));
    assert_eq!(
        (pool.free_count(), a.free_count(), b.free_count()),
        (5, 8, 4)
    );
    let of_a = take(&a, 8);
    assert!(a.try_acquire().is_none(), "the others are reserved for b");
    assert!(pool.try_acquire().is_none());
    let of_b = take(&b, 2);
    assert!(b.try_acquire().is_none());
    drop((of_a, of_b));
    assert_eq!(
        (pool.free_count(), a.free_count(), b.free_count()),
        (5, 8, 4)
    );
}

#[test]
fn a_share_takes_no_more_than_its_most() {
    let pool = pool(10);
    let share = reserve(&pool, 2, 5);
    let mut taken = take(&share, 5);
    assert!(share.try_acquire().is_none());
    assert_eq!((share.free_count(), pool.free_count()), (0, 5));
    // Whichever comes back, there is room for one.
    for at in [0, 4, 2] {
        drop(taken.swap_remove(at));
        assert_eq!(share.free_count(), 1);
        taken.extend(share.try_acquire());
    }
    assert_eq!(taken.len(), 5);
}

#[test]
fn what_is_taken_beyond_leaves_that_much_of_what_is_reserved() {
    let pool = pool(6);
    let share = reserve(&pool, 3, 5);
    let taken: Vec<_> = (0..6).map_while(|_| share.try_acquire_beyond(2)).collect();
    assert_eq!((taken.len(), share.free_count()), (3, 2));
    drop(taken);
    let whole = PoolShare::from(pool.clone());
    assert_eq!((whole.free_count(), whole.most()), (3, 6));
    assert!(
        whole.try_acquire_beyond(6).is_some(),
        "it has none reserved"
    );
}

#[test]
fn a_share_is_refused_whole() {
    let pool = pool(4);
    let first = reserve(&pool, 3, 4);
    assert!(PoolShare::reserve(&pool, 2, 4).is_none());
    assert!(PoolShare::reserve(&pool, u32::MAX, u32::MAX).is_none());
    assert_eq!(pool.free_count(), 1, "nothing of it was taken");
    drop(first);
    assert_eq!(reserve(&pool, 4, 4).free_count(), 4);
}

#[test]
fn what_a_share_leaves_is_everybodys_at_once_or_when_it_is_dropped() {
    let pool = pool(8);
    let mut other = reserve(&pool, 1, 8);
    let woken = count_wakes(&mut other);
    let share = reserve(&pool, 4, 6);
    let mut held = take(&share, 5);
    let rest = take(&other, 3);
    assert!(!other.arm(), "nothing is left");
    drop(share);
    assert_eq!(pool.free_count(), 0, "its own were all taken");
    let own = held.remove(0);
    drop(own);
    assert_eq!((other.free_count(), woken.load(Ordering::Relaxed)), (1, 1));
    drop((held, rest));
    assert_eq!((pool.free_count(), other.free_count()), (7, 8));
}

#[test]
fn a_reserved_buffer_wakes_its_owner_and_another_one_whoever_waits() {
    let pool = pool(4);
    let (mut a, mut b) = (reserve(&pool, 1, 4), reserve(&pool, 1, 2));
    let (of_a, of_b) = (count_wakes(&mut a), count_wakes(&mut b));
    let woken = || (of_a.load(Ordering::Relaxed), of_b.load(Ordering::Relaxed));
    let mut held_a = take(&a, 3);
    let held_b = take(&b, 1);
    assert!(!a.arm() && !b.arm());
    drop(held_a.remove(0));
    assert_eq!(woken(), (1, 0), "it is a's own");
    held_a.extend(take(&a, 1));
    assert!(!a.arm());
    drop(held_a.remove(0));
    assert_eq!(woken(), (2, 1), "either may take it");
    assert!(b.arm(), "it is there");
    drop(held_b);
    assert_eq!(pool.wakers(), 2);
    drop((a, b));
    assert_eq!(pool.wakers(), 0);
}

/// One that has its most waits for what it has itself, and not for what others give back.
#[test]
fn a_share_at_its_most_is_woken_when_it_has_room_again() {
    let pool = pool(6);
    let mut share = reserve(&pool, 1, 2);
    let woken = count_wakes(&mut share);
    let mut held = take(&share, 2);
    let other = pool.try_acquire();
    assert!(!share.arm());
    drop(other);
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    held.truncate(1);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    take(&share, 1);
}

/// Three threads take what the others need, and sleep when there is none: each goes on, and nothing
/// is lost.
#[test]
fn shares_on_threads_wake_each_other() {
    const ROUNDS: u32 = if cfg!(miri) { 50 } else { 20_000 };
    let pool = pool(4);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mut share = reserve(&pool, 1, 3);
            scope.spawn(move || {
                let me = std::thread::current();
                let wake: WakeFn = Arc::new(move || me.unpark());
                share.wake_by(&wake);
                for _ in 0..ROUNDS {
                    let mut held = Vec::new();
                    while held.len() < 2 {
                        match share.try_acquire() {
                            Some(buffer) => held.push(buffer),
                            // One that has its own gives it back rather than wait with it.
                            None if held.pop().is_some() => {}
                            None if share.arm() => {}
                            None => std::thread::park(),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(pool.free_count(), 4);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(u32, u32),
    Leave(usize),
    Take(usize),
    TakePlain,
    GiveBack(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u32..5, 0u32..8).prop_map(|(least, more)| Step::Join(least, least + more)),
        1 => any::<usize>().prop_map(Step::Leave),
        8 => any::<usize>().prop_map(Step::Take),
        2 => Just(Step::TakePlain),
        6 => any::<usize>().prop_map(Step::GiveBack),
    ]
}

const SLOTS: u32 = 12;

/// What a share should have, and the buffers that are out, each with whose it is.
#[derive(Default)]
struct Model {
    shares: Vec<(u32, PoolShare, u32, u32)>,
    out: Vec<(Option<u32>, BufferMut)>,
    joined: u32,
}

impl Model {
    fn taken_by(&self, name: u32) -> usize {
        let its = |owner: &Option<u32>| *owner == Some(name);
        self.out.iter().filter(|(owner, _)| its(owner)).count()
    }

    fn step(&mut self, pool: &SharedBufferManager, step: Step) {
        let count = self.shares.len().max(1);
        match step {
            Step::Join(least, most) => {
                let free = pool.free_count();
                let share = PoolShare::reserve(pool, least, most);
                assert_eq!(share.is_some(), least as usize <= free);
                self.joined += 1;
                let name = self.joined;
                self.shares.extend(share.map(|it| (name, it, least, most)));
            }
            Step::Leave(which) if !self.shares.is_empty() => {
                drop(self.shares.swap_remove(which % count));
            }
            Step::Take(which) if !self.shares.is_empty() => {
                let (name, share, ..) = &self.shares[which % count];
                let (name, free) = (*name, share.free_count());
                let buffer = share.try_acquire();
                assert_eq!(buffer.is_some(), free > 0);
                self.out.extend(buffer.map(|it| (Some(name), it)));
            }
            Step::TakePlain => self.out.extend(pool.try_acquire().map(|it| (None, it))),
            Step::GiveBack(which) if !self.out.is_empty() => {
                let at = which % self.out.len();
                drop(self.out.swap_remove(at));
            }
            _ => {}
        }
    }

    /// Each slot is somewhere once, and each share has what it was promised, and no more.
    fn check(&self, pool: &SharedBufferManager) {
        let mut reserved = 0;
        for (name, share, least, most) in &self.shares {
            let taken = self.taken_by(*name);
            assert!(taken <= *most as usize);
            assert!(taken + share.free_count() >= *least as usize);
            assert!(taken + share.free_count() <= *most as usize);
            reserved += share.account.as_ref().expect("a share").reserved();
        }
        let all = self.out.len() + pool.free_count() + reserved;
        assert_eq!(all, SLOTS as usize);
        let mut slots: Vec<_> = self.out.iter().map(|(_, it)| it.index()).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), self.out.len());
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(200, 20_000))]

    #[test]
    fn no_walk_of_shares_loses_a_buffer_or_breaks_a_promise(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let pool = pool(SLOTS);
        let mut model = Model::default();
        for step in steps {
            model.step(&pool, step);
            model.check(&pool);
        }
        drop(model);
        assert_eq!(pool.free_count(), SLOTS as usize);
    }
}
