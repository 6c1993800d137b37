//! The futures of a sending endpoint, over anything that sends: each owns its part until it is
//! dropped, and cleans up then.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::after::After;
use super::driver::Driver;
use super::error::Failed;
use super::send_engine::{SendEngine, Topic};
use super::waiters::Ticket;
use super::work::{Back, Header, Outcome, Sender, Unposted, Work};
use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::{
    CloseReason, ConnectionEvent, ConnectionInfo, Destination, WindowEvent, WindowPlace,
};

/// How far a send is.
#[derive(Debug)]
enum Stage {
    Unposted(Unposted),
    Posted(u64),
    Resolved,
}

/// One operation.
pub(crate) struct OpOn<S: Sender> {
    driver: Arc<Driver<S>>,
    stage: Stage,
}

impl<S: Sender> OpOn<S> {
    pub(crate) fn new(driver: &Arc<Driver<S>>, work: Work) -> Self {
        Self {
            driver: Arc::clone(driver),
            stage: Stage::Unposted(Unposted { work, ticket: None }),
        }
    }

    pub(crate) fn is_posted(&self) -> bool {
        matches!(self.stage, Stage::Posted(_))
    }
}

impl<S: Sender> Future for OpOn<S> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { driver, stage } = self.get_mut();
        assert!(
            !matches!(stage, Stage::Resolved),
            "an operation was polled after it had resolved"
        );
        let result = driver.poll(cx, |engine, waker, after| match stage {
            Stage::Unposted(unposted) => match engine.poll_post(unposted, waker, after) {
                Poll::Ready(Ok(key)) => {
                    *stage = Stage::Posted(key);
                    Poll::Pending
                }
                Poll::Ready(Err(failed)) => Poll::Ready(Err(failed)),
                Poll::Pending => Poll::Pending,
            },
            Stage::Posted(key) => engine.poll_outcome(*key, waker, after),
            Stage::Resolved => unreachable!("asserted above"),
        });
        if result.is_ready() {
            *stage = Stage::Resolved;
        }
        result
    }
}

impl<S: Sender> Drop for OpOn<S> {
    fn drop(&mut self) {
        match &mut self.stage {
            Stage::Unposted(Unposted { ticket, .. }) if ticket.is_some() => {
                self.driver
                    .with(|engine, after| engine.leave_queue(ticket, after));
            }
            Stage::Posted(key) => self.driver.with(|engine, after| engine.detach(*key, after)),
            Stage::Unposted(_) | Stage::Resolved => {}
        }
    }
}

/// One operation that gives a payload back: a send, or a write.
pub(crate) struct SendOn<S: Sender>(OpOn<S>);

impl<S: Sender> SendOn<S> {
    pub(crate) fn new(driver: &Arc<Driver<S>>, payload: Payload, header: &[u8]) -> Self {
        let header = Header::from_slice(header);
        Self(OpOn::new(driver, Work::Send { payload, header }))
    }

    pub(crate) fn write(
        driver: &Arc<Driver<S>>,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
    ) -> Self {
        let work = Work::Write {
            payload,
            window: place.window.clone(),
            offset: place.offset,
            data,
        };
        Self(OpOn::new(driver, work))
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.0.is_posted()
    }
}

impl<S: Sender> Future for SendOn<S> {
    type Output = Result<Payload, Failed<Payload>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let payload = |back| match back {
            Back::Payload(payload) => Some(payload),
            Back::Into(_) | Back::Nothing => None,
        };
        Pin::new(&mut self.0).poll(cx).map(|outcome| match outcome {
            Ok(back) => Ok(payload(back).unwrap_or_else(Payload::empty)),
            Err((back, why)) => Err(Failed {
                given: payload(back),
                why,
            }),
        })
    }
}

/// One read.
pub(crate) struct ReadOn<S: Sender>(OpOn<S>);

impl<S: Sender> ReadOn<S> {
    pub(crate) fn new(driver: &Arc<Driver<S>>, into: Destination, place: WindowPlace<'_>) -> Self {
        let work = Work::Read {
            into: Some(into),
            window: place.window.clone(),
            offset: place.offset,
        };
        Self(OpOn::new(driver, work))
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.0.is_posted()
    }
}

impl<S: Sender> Future for ReadOn<S> {
    type Output = Result<Destination, Failed<Destination>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let into = |back| match back {
            Back::Into(into) => Some(into),
            Back::Payload(_) | Back::Nothing => None,
        };
        Pin::new(&mut self.0).poll(cx).map(|outcome| match outcome {
            Ok(Back::Into(into)) => Ok(into),
            Ok(_) => unreachable!("a read that is done gives its destination back"),
            Err((back, error)) => Err(Failed {
                given: into(back),
                why: error,
            }),
        })
    }
}

/// A place among those that wait for a topic; given up when it is dropped.
struct Place<S: Sender> {
    driver: Arc<Driver<S>>,
    topic: Topic,
    ticket: Option<Ticket>,
}

impl<S: Sender> Place<S> {
    fn new(driver: &Arc<Driver<S>>, topic: Topic) -> Self {
        Self {
            driver: Arc::clone(driver),
            topic,
            ticket: None,
        }
    }

    /// Waits until `look` finds something.
    async fn until<R>(
        mut self,
        mut look: impl FnMut(&mut SendEngine<S>, &mut After) -> Option<R>,
    ) -> R {
        let Self {
            driver,
            topic,
            ticket,
        } = &mut self;
        std::future::poll_fn(|cx| {
            driver.poll(cx, |engine, waker, after| match look(engine, after) {
                Some(found) => Poll::Ready(found),
                None => {
                    engine.wait(*topic, ticket, waker, after);
                    Poll::Pending
                }
            })
        })
        .await
    }
}

impl<S: Sender> Drop for Place<S> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        self.driver
            .with(|engine, after| engine.leave(self.topic, ticket, after));
        if self.topic == Topic::Driving {
            self.driver.driver_left();
        }
    }
}

pub(crate) async fn connected<S: Sender>(driver: Arc<Driver<S>>) -> Result<ConnectionInfo, Error> {
    let place = Place::new(&driver, Topic::Connected);
    place
        .until(|engine, _| match (engine.ended(), engine.info()) {
            (Some(reason), _) => Some(Err(engine.error_of_end(reason))),
            (None, Some(info)) => Some(Ok(info.clone())),
            (None, None) => None,
        })
        .await
}

/// What happens to windows next; `None`: the connection is over, and everything was told.
pub(crate) async fn window_event<S: Sender>(driver: Arc<Driver<S>>) -> Option<WindowEvent> {
    let place = Place::new(&driver, Topic::Window);
    place
        .until(|engine, _| match engine.take_window_event() {
            Some(event) => Some(Some(event)),
            None => engine.ended().map(|_| None),
        })
        .await
}

/// What happens to the connection next; `None`: it is over, and everything was told.
pub(crate) async fn connection_event<S: Sender>(driver: Arc<Driver<S>>) -> Option<ConnectionEvent> {
    let place = Place::new(&driver, Topic::Connection);
    place
        .until(|engine, _| match engine.take_connection_event() {
            Some(event) => Some(Some(event)),
            None => engine.ended().map(|_| None),
        })
        .await
}

pub(crate) async fn closed<S: Sender>(driver: Arc<Driver<S>>) -> CloseReason {
    let place = Place::new(&driver, Topic::Closed);
    place.until(|engine, _| engine.ended()).await
}

pub(crate) async fn close<S: Sender>(driver: Arc<Driver<S>>, deadline: Instant) -> CloseReason {
    driver.with(|engine, after| engine.begin_close(deadline, after));
    closed(driver).await
}

pub(crate) async fn drive<S: Sender>(driver: Arc<Driver<S>>) -> CloseReason {
    let place = Place::new(&driver, Topic::Driving);
    place.until(|engine, _| engine.ended()).await
}

/// What the user holds; with the last of them the connection ends.
pub(crate) struct Handle<S: Sender>(pub(crate) Arc<Driver<S>>);

impl<S: Sender> Drop for Handle<S> {
    /// Rude, as an endpoint that is dropped: futures that live are woken, find the connection ended
    /// and give their payloads back. Where none lives, the endpoint goes now. A future that is
    /// neither polled nor dropped keeps it.
    fn drop(&mut self) {
        self.0.with(|engine, after| {
            if engine.ended().is_none() {
                engine.begin_close(Instant::now(), after);
            }
        });
    }
}

impl<S: Sender> fmt::Debug for Handle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<S: Sender> fmt::Debug for OpOn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpOn")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}
