//! The ledger against a model that keeps a list of everything.

use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum Step {
    Join,
    Leave(usize),
    Begin,
    Keep(u64),
    Pass(usize, u64),
    WaitFor(u64),
    /// Its peer is asked nothing any more.
    LastWord(usize),
    WaitForStaying(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Join),
        2 => (0_usize..6).prop_map(Step::Leave),
        3 => Just(Step::Begin),
        3 => (0_u64..4).prop_map(Step::Keep),
        6 => (0_usize..6, 0_u64..4).prop_map(|(at, back)| Step::Pass(at, back)),
        1 => (0_u64..3).prop_map(Step::WaitFor),
        2 => (0_usize..6).prop_map(Step::LastWord),
        1 => (0_u64..3).prop_map(Step::WaitForStaying),
    ]
}

/// Memory that tells when it goes.
struct Told(u64, Arc<Mutex<Vec<u64>>>);

impl Drop for Told {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

#[derive(Default)]
struct Model {
    epoch: u64,
    /// Of each participant, and whether it is leaving.
    passed: Vec<u64>,
    leaving: Vec<bool>,
    kept: Vec<(u64, u64)>,
    freed: Vec<u64>,
}

impl Model {
    fn all_passed(&self) -> u64 {
        self.passed.iter().copied().min().unwrap_or(self.epoch)
    }

    fn staying_passed(&self) -> u64 {
        let all = self.passed.iter().zip(&self.leaving);
        let staying = all.filter(|(_, leaving)| !**leaving);
        staying
            .map(|(passed, _)| *passed)
            .min()
            .unwrap_or(self.epoch)
    }

    fn free(&mut self) {
        let passed = self.all_passed();
        let kept = std::mem::take(&mut self.kept);
        let (gone, kept) = kept.into_iter().partition(|(epoch, _)| *epoch <= passed);
        self.kept = kept;
        let gone: Vec<(u64, u64)> = gone;
        self.freed.extend(gone.iter().map(|(_, number)| *number));
    }
}

fn counter() -> (Arc<AtomicUsize>, Wake) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let wake = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    (count, Arc::new(wake))
}

proptest! {
    /// Memory goes when, and not before, every participant that was there has passed its epoch or
    /// is gone.
    #[test]
    fn it_says_what_the_model_says(steps in prop::collection::vec(any_step(), 0..120)) {
        let ledger = AccessLedger::new();
        let (woken, wake) = counter();
        let (others, wake_others) = counter();
        let watcher = ledger.watch(wake);
        let _other = ledger.watch(wake_others);
        let mut model = Model::default();
        let mut participants = Vec::new();
        let freed = Arc::new(Mutex::new(Vec::new()));
        let (mut number, mut waits): (u64, Option<u64>) = (0, None);
        let mut waits_for_staying = None;
        for step in steps {
            let (woken_before, others_before) = (
                woken.load(Ordering::Relaxed),
                others.load(Ordering::Relaxed),
            );
            let mut told = false;
            match step {
                Step::Join => {
                    participants.push(ledger.join());
                    model.passed.push(model.epoch);
                    model.leaving.push(false);
                }
                Step::Leave(at) if at < participants.len() => {
                    participants.remove(at);
                    model.passed.remove(at);
                    model.leaving.remove(at);
                }
                Step::Begin => {
                    model.epoch += 1;
                    prop_assert_eq!(watcher.begin(), model.epoch);
                    told = !model.passed.is_empty();
                }
                Step::Keep(back) => {
                    number += 1;
                    let epoch = model.epoch.saturating_sub(back);
                    ledger.keep(epoch, Box::new(Told(number, Arc::clone(&freed))));
                    model.kept.push((epoch, number));
                }
                Step::Pass(at, back) if at < participants.len() => {
                    let epoch = model.epoch.saturating_sub(back);
                    participants[at].pass(epoch);
                    model.passed[at] = model.passed[at].max(epoch);
                }
                Step::WaitFor(back) => {
                    let epoch = model.epoch.saturating_sub(back);
                    let late = model.all_passed() < epoch;
                    prop_assert_eq!(watcher.wait_for(epoch), late);
                    if late {
                        waits = Some(epoch);
                    }
                }
                Step::LastWord(at) if at < participants.len() => {
                    participants[at].leave();
                    model.leaving[at] = true;
                }
                Step::WaitForStaying(back) => {
                    let epoch = model.epoch.saturating_sub(back);
                    let late = model.staying_passed() < epoch;
                    prop_assert_eq!(watcher.wait_for_staying(epoch), late);
                    if late {
                        waits_for_staying = Some(epoch);
                    }
                }
                _ => {}
            }
            model.free();
            let mut gone = freed.lock().unwrap().clone();
            gone.sort_unstable();
            let mut expected = model.freed.clone();
            expected.sort_unstable();
            prop_assert_eq!(gone, expected);
            prop_assert_eq!(
                (ledger.epoch(), ledger.passed()),
                (model.epoch, model.all_passed())
            );
            prop_assert_eq!(ledger.passed_by_staying(), model.staying_passed());
            for (participant, passed) in participants.iter().zip(&model.passed) {
                prop_assert_eq!(
                    participant.lags(),
                    (*passed < model.epoch).then_some(model.epoch)
                );
            }
            let due = waits
                .take_if(|epoch| *epoch <= model.all_passed())
                .is_some()
                | waits_for_staying
                    .take_if(|epoch| *epoch <= model.staying_passed())
                    .is_some();
            prop_assert_eq!(
                woken.load(Ordering::Relaxed) - woken_before,
                usize::from(due),
                "who waits is told once"
            );
            prop_assert_eq!(
                others.load(Ordering::Relaxed) - others_before,
                usize::from(told),
                "others hear of each epoch"
            );
        }
        drop(participants);
        prop_assert_eq!(
            freed.lock().unwrap().len() as u64,
            number,
            "with the last of them \
            everything is free"
        );
    }
}

#[test]
fn nobody_can_pass_what_has_not_begun() {
    let ledger = AccessLedger::new();
    let watcher = ledger.watch(counter().1);
    let participant = ledger.join();
    participant.pass(7);
    let epoch = watcher.begin();
    assert_eq!((epoch, participant.lags()), (1, Some(1)));
    participant.pass(epoch);
    assert_eq!((ledger.passed(), participant.lags()), (1, None));
}

#[test]
fn what_an_endpoint_that_never_closes_may_reach_is_leaked() {
    let freed = Arc::new(Mutex::new(Vec::new()));
    let ledger = AccessLedger::new();
    let mut stuck = std::mem::ManuallyDrop::new(ledger.join());
    let watcher = ledger.watch(counter().1);
    let epoch = watcher.begin();
    ledger.keep(epoch, Box::new(Told(1, Arc::clone(&freed))));
    drop(watcher);
    // What goes with the domain, without a word to the ledger.
    // The participant itself stays; only its share of the ledger goes, as when a process of many
    // domains drops one.
    let share = std::mem::replace(&mut stuck.ledger, AccessLedger::new());
    drop((share, ledger));
    assert!(freed.lock().unwrap().is_empty());
}

#[test]
fn memory_that_holds_what_holds_the_ledger_goes_without_a_deadlock() {
    let ledger = AccessLedger::new();
    let participant = ledger.join();
    let watcher = ledger.watch(counter().1);
    let epoch = watcher.begin();
    // As memory whose region is registered with the domain.
    let inner = ledger.watch(counter().1);
    ledger.keep(epoch, Box::new((inner, Arc::clone(&ledger))));
    let weak = Arc::downgrade(&ledger);
    drop((watcher, ledger));
    assert!(weak.upgrade().is_some());
    drop(participant);
    assert!(weak.upgrade().is_none(), "nothing of it is left");
}

/// Who leaves is waited for by memory, and by nobody's last word.
#[test]
fn one_that_leaves_keeps_memory_and_not_who_waits_for_those_that_stay() {
    let ledger = AccessLedger::new();
    let (woken, wake) = counter();
    let watcher = ledger.watch(wake);
    let (leaves, stays) = (ledger.join(), ledger.join());
    let epoch = watcher.begin();
    assert!(watcher.wait_for_staying(epoch));
    leaves.leave();
    leaves.leave();
    assert_eq!((ledger.passed_by_staying(), ledger.passed()), (0, 0));
    stays.pass(epoch);
    assert_eq!((ledger.passed_by_staying(), ledger.passed()), (epoch, 0));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(!watcher.wait_for_staying(epoch));
    // An answer that was on its way, and its end, which is no second one.
    leaves.pass(epoch);
    assert_eq!(ledger.passed(), epoch);
    drop((leaves, stays));
    assert_eq!(watcher.begin(), ledger.passed_by_staying());
}
