//! What the loops over objects have in common, ours and bare alike: one end posts, with `depth` in
//! flight, and says when the time begins and ends; the other lends memory, and makes progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::case::{Arrived, Case, Pacer, Sent};
use crate::clock::{Patience, Sampler};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;

/// An end that moves bytes into or out of a window.
pub(crate) trait Mover {
    /// Operations that may be posted now.
    fn free(&self) -> usize;
    /// Posts one; false when it is not taken now.
    fn post(&mut self) -> Result<bool, Failure>;
    /// Takes what completed; how many.
    fn poll(&mut self) -> Result<usize, Failure>;
}

/// How long the other end may take to say something.
pub(crate) fn patience(case: &Case) -> Duration {
    case.limit() + Duration::from_secs(10)
}

/// Posts with `depth` in flight for the time of the case. Nothing is in flight when it begins, and
/// nothing when it ends.
pub(crate) fn drive(
    case: &Case,
    mover: &mut impl Mover,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let mut pacer = Pacer::new(case);
    let mut sampler = Sampler::new(case.limit());
    while !pacer.is_over() {
        while mover.free() > 0 {
            let Some(header) = pacer.next() else { break };
            if header.is_mark() {
                if mover.free() < case.depth {
                    break;
                }
                mark(control, header.is_end())?;
                sampler.on_message(header);
            } else if !mover.post()? {
                break;
            }
            pacer.sent();
        }
        let found = mover.poll()?;
        pacer.on_poll(found)?;
    }
    finish(case, pacer, &sampler, control)
}

/// Says to the other end that the time begins or ends.
pub(crate) fn mark(control: &mut Control, is_end: bool) -> Result<(), Failure> {
    control.say(if is_end { "end now" } else { "begin now" })
}

/// The time and the count are this end's, the processor's time that of both.
pub(crate) fn finish(
    case: &Case,
    pacer: Pacer,
    sampler: &Sampler,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let theirs = control.expect("arrived", patience(case))?;
    let marks = Arrived {
        cpu_s: crate::client::arrived(&theirs)?.cpu_s,
        ..sampler.arrived()?
    };
    pacer.finish_with(marks)
}

/// Makes progress by `turn` until the other end says that its time is over.
pub(crate) fn serve(
    case: &Case,
    control: &mut Control,
    mut turn: impl FnMut() -> Result<usize, Failure>,
) -> Result<Arrived, Failure> {
    let over = AtomicBool::new(false);
    let mut looks = Patience::new(patience(case));
    std::thread::scope(|scope| {
        let heard = scope.spawn(|| {
            let heard = hear(case, control);
            over.store(true, Ordering::Release);
            heard
        });
        while !over.load(Ordering::Acquire) {
            let found = turn()?;
            looks.on_poll(found)?;
        }
        match heard.join() {
            Ok(heard) => heard,
            Err(_) => fail("the thread that listens ended"),
        }
    })
}

/// Waits until the other end says that its time is over; what this process took in it.
pub(crate) fn hear(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    control.expect("begin", patience(case))?;
    let from = (Instant::now(), cpu_seconds());
    control.expect("end", patience(case))?;
    Ok(Arrived {
        messages: 0,
        elapsed_s: from.0.elapsed().as_secs_f64(),
        cpu_s: cpu_seconds() - from.1,
    })
}
