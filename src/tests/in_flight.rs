use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[test]
fn opaque_contexts_are_never_zero_and_name_an_index() {
    let mut slab = InFlight::new(2, ContextKind::Opaque);
    let first = slab.begin('a').unwrap();
    let second = slab.begin('b').unwrap();
    assert_ne!(first >> 32, 0);
    assert_ne!(first, second);
    assert_eq!(slab.begin('c'), Err('c'));
    assert_eq!(slab.finish(second), Ok('b'));
    assert_eq!(slab.get(first), Some(&'a'));
    *slab.get_mut(first).unwrap() = 'x';
    assert_eq!(slab.abort(first), 'x');
    assert!(slab.is_empty());
}

#[test]
fn an_operation_is_made_and_ended_where_it_lies() {
    for contexts in [ContextKind::Opaque, ContextKind::Cells] {
        let kept = std::rc::Rc::new(());
        let mut slab = InFlight::new(1, contexts);
        // Room that is not used stays.
        assert!(slab.vacant().is_some() && slab.is_empty());
        let context = slab.vacant().unwrap().fill(kept.clone());
        assert!(slab.vacant().is_none() && slab.len() == 1);
        let mut finished = slab.finish_in_place(context).unwrap();
        assert!(finished.op().is_some());
        assert!(
            finished
                .into_op()
                .is_some_and(|op| std::rc::Rc::ptr_eq(&op, &kept))
        );
        assert_eq!(
            slab.finish(context),
            Err(ContextError::Idle),
            "it is over once"
        );
        // What the caller leaves is dropped, or is not where he says that nothing is left.
        let context = slab.begin(kept.clone()).unwrap();
        drop(slab.finish_in_place(context).unwrap());
        assert!(slab.is_empty() && std::rc::Rc::strong_count(&kept) == 1);
        let context = slab.begin(kept.clone()).unwrap();
        let mut finished = slab.finish_in_place(context).unwrap();
        drop(finished.op().take());
        finished.clear_away();
        assert!(slab.is_empty() && std::rc::Rc::strong_count(&kept) == 1);
        assert_eq!(slab.finish(context), Err(ContextError::Idle));
        assert!(slab.begin(kept).is_ok(), "the place is free");
    }
}

#[test]
fn generation_skips_zero_when_it_wraps() {
    let mut slab = InFlight::new(1, ContextKind::Opaque);
    slab.slots[0].generation = u32::MAX;
    let context = slab.begin(()).unwrap();
    assert_eq!(context >> 32, 1);
}

#[test]
fn doubled_completion_is_idle_then_stale() {
    let mut slab = InFlight::new(1, ContextKind::Opaque);
    let old = slab.begin(1).unwrap();
    assert_eq!(slab.finish(old), Ok(1));
    assert_eq!(slab.finish(old), Err(ContextError::Idle));
    let new = slab.begin(2).unwrap();
    assert_eq!(slab.finish(old), Err(ContextError::Stale));
    assert_eq!(slab.finish(new), Ok(2));
}

#[test]
fn opaque_errors_name_what_is_wrong() {
    let mut slab = InFlight::<u8>::new(4, ContextKind::Opaque);
    assert_eq!(slab.finish(0), Err(ContextError::Null));
    assert_eq!(slab.finish(1 << 32 | 4), Err(ContextError::OutOfRange));
    assert_eq!(slab.finish(usize::MAX), Err(ContextError::OutOfRange));
    assert_eq!(slab.finish(1 << 32), Err(ContextError::Idle));
}

#[test]
fn cells_are_addresses_that_rest_for_a_while() {
    let mut slab = InFlight::new(3, ContextKind::Cells);
    let mut seen = HashSet::new();
    // 3 operations have 12 cells: 12 operations one after the other see each cell once.
    for op in 0..12 {
        let context = slab.begin(op).unwrap();
        assert_eq!(context % size_of::<usize>(), 0);
        assert!(seen.insert(context), "cell used again too early");
        assert_eq!(slab.finish(context), Ok(op));
        assert_eq!(slab.finish(context), Err(ContextError::Idle));
    }
    assert!(seen.contains(&slab.begin(12).unwrap()));
}

#[test]
fn cells_can_be_written_by_the_provider_while_in_flight() {
    let mut slab = InFlight::new(2, ContextKind::Cells);
    let context = slab.begin("op").unwrap();
    let moved = &mut Box::new(slab);
    let cell = std::ptr::with_exposed_provenance_mut::<[usize; 8]>(context);
    #[allow(unsafe_code)]
    // SAFETY: a cell of 64 bytes that lives as long as the slab and that nobody of us accesses.
    unsafe {
        cell.write([usize::MAX; 8])
    };
    assert_eq!(moved.finish(context), Ok("op"));
}

#[test]
fn cell_errors_name_what_is_wrong() {
    let mut slab = InFlight::new(2, ContextKind::Cells);
    let context = slab.begin(()).unwrap();
    assert_eq!(slab.finish(0), Err(ContextError::Null));
    assert_eq!(slab.finish(context - 1), Err(ContextError::OutOfRange));
    assert_eq!(slab.finish(context + 1), Err(ContextError::Misaligned));
    assert_eq!(slab.finish(context + 64), Err(ContextError::Idle));
    assert_eq!(slab.finish(context + 64 * 8), Err(ContextError::OutOfRange));
    assert_eq!(slab.finish(usize::MAX), Err(ContextError::OutOfRange));
    assert_eq!(slab.len(), 1);
}

#[test]
fn a_slab_without_room_refuses() {
    for kind in [ContextKind::Opaque, ContextKind::Cells] {
        let mut slab = InFlight::new(0, kind);
        assert_eq!(slab.begin(7), Err(7));
        assert_eq!(slab.finish(64), Err(ContextError::OutOfRange));
        assert_eq!(slab.take_where(|_| true).len(), 0);
    }
}

#[test]
fn slabs_of_one_endpoint_have_no_context_in_common() {
    for kind in [ContextKind::Opaque, ContextKind::Cells] {
        let mut slabs = [
            InFlight::new(3, kind),
            InFlight::second(3, kind),
            InFlight::third(3, kind),
            InFlight::fourth(3, kind),
        ];
        for op in 0..12 {
            let at = op % 4;
            let context = slabs[at].begin(op).unwrap();
            let [_, others @ ..] = [0, 1, 2, 3].map(|n| (at + n) % 4);
            for other in others {
                assert_eq!(slabs[other].finish(context), Err(ContextError::OutOfRange));
            }
            if op >= 8 {
                assert_eq!(slabs[at].finish(context), Ok(op));
                assert_eq!(slabs[at].finish(context), Err(ContextError::Idle));
            }
        }
        assert!(slabs.iter().all(|slab| slab.len() == 2));
    }
}

#[test]
fn a_second_slab_takes_memory_with_its_first_operation() {
    let mut slab = InFlight::second(2, ContextKind::Cells);
    assert_eq!((slab.capacity(), slab.len(), slab.slots.len()), (2, 0, 0));
    assert_eq!(slab.finish(64), Err(ContextError::OutOfRange));
    assert_eq!(slab.take_where(|_| true).len(), 0);
    let context = slab.begin('a').unwrap();
    assert_eq!((slab.capacity(), slab.len(), slab.slots.len()), (2, 1, 2));
    assert_eq!(slab.finish(context), Ok('a'));
}

#[test]
fn what_is_not_picked_stays() {
    let mut slab = InFlight::new(3, ContextKind::Opaque);
    for op in 0..3 {
        slab.begin(op).unwrap();
    }
    assert_eq!(slab.take_where(|op| *op == 0), [0]);
    assert_eq!(slab.len(), 2);
    assert_eq!(slab.iter().copied().collect::<Vec<_>>(), [1, 2]);
}

#[derive(Debug, Clone)]
enum Step {
    Begin,
    /// The n-th context in flight completes, or is aborted.
    Finish(usize),
    Abort(usize),
    /// A context that was finished before completes again.
    Again(usize),
    Garbage(usize),
    /// Garbage close to a context in flight.
    Near(usize, usize),
    Drain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => Just(Step::Begin),
        6 => any::<usize>().prop_map(Step::Finish),
        1 => any::<usize>().prop_map(Step::Abort),
        2 => any::<usize>().prop_map(Step::Again),
        1 => any::<usize>().prop_map(Step::Garbage),
        1 => (any::<usize>(), 1usize..4096).prop_map(|(n, off)| Step::Near(n, off)),
        1 => Just(Step::Drain),
    ];
    prop::collection::vec(step, 0..300)
}

fn run(kind: ContextKind, capacity: u32, steps: Vec<Step>) {
    let mut slab = InFlight::new(capacity, kind);
    let mut model: HashMap<usize, u64> = HashMap::new();
    let mut order: Vec<usize> = Vec::new();
    let mut finished: Vec<usize> = Vec::new();
    let mut next = 0u64;
    for step in steps {
        match step {
            Step::Begin => match slab.begin(next) {
                Ok(context) => {
                    assert!(model.len() < capacity as usize);
                    assert!(model.insert(context, next).is_none(), "a context twice");
                    order.push(context);
                    next += 1;
                }
                Err(op) => assert_eq!((op, model.len()), (next, capacity as usize)),
            },
            Step::Finish(n) if !order.is_empty() => {
                let context = order.swap_remove(n % order.len());
                assert_eq!(slab.finish(context).ok(), model.remove(&context));
                finished.push(context);
            }
            Step::Abort(n) if !order.is_empty() => {
                let context = order.swap_remove(n % order.len());
                assert_eq!(Some(slab.abort(context)), model.remove(&context));
                finished.push(context);
            }
            Step::Again(n) if !finished.is_empty() => {
                let context = finished[n % finished.len()];
                // A cell comes round again after three rounds of the slab: then it is a context in
                // flight.
                if !model.contains_key(&context) {
                    assert!(matches!(
                        slab.finish(context),
                        Err(ContextError::Idle | ContextError::Stale)
                    ));
                }
            }
            Step::Garbage(context) if !model.contains_key(&context) => {
                assert!(slab.finish(context).is_err())
            }
            Step::Near(n, off) if !order.is_empty() => {
                let context = order[n % order.len()].wrapping_add(off).wrapping_sub(2048);
                assert_eq!(slab.get(context), model.get(&context));
                if !model.contains_key(&context) {
                    assert!(slab.finish(context).is_err());
                }
            }
            Step::Drain => {
                let mut drained: Vec<u64> = slab.take_where(|_| true);
                let mut expected: Vec<u64> = model.drain().map(|(_, op)| op).collect();
                drained.sort_unstable();
                expected.sort_unstable();
                assert_eq!(drained, expected);
                finished.append(&mut order);
            }
            _ => {}
        }
        assert_eq!(slab.len(), model.len());
        let mut held: Vec<u64> = slab.iter().copied().collect();
        let mut expected: Vec<u64> = model.values().copied().collect();
        held.sort_unstable();
        expected.sort_unstable();
        assert_eq!(held, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn opaque_follows_the_model(capacity in 0u32..9, steps in steps()) {
        run(ContextKind::Opaque, capacity, steps);
    }

    #[test]
    fn cells_follow_the_model(capacity in 0u32..9, steps in steps()) {
        run(ContextKind::Cells, capacity, steps);
    }
}
