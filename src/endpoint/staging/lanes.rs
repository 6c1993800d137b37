//! `CopyLanes`: what copies out of devices' memory go by, or those into it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::{CudaError, Device, Event, Stream};

/// A stream for each device that had a copy, made when it is needed. A clone is the same.
#[derive(Clone, Default)]
pub(crate) struct CopyLanes(Arc<Mutex<Vec<CopyLane>>>);

/// What a device's copies go by.
struct CopyLane {
    stream: Stream,
    /// Events that have happened, to be used again: making one costs more than recording it.
    spare: Vec<Event>,
}

impl CopyLanes {
    fn with_lane<T>(
        &self,
        device: Device,
        work: impl FnOnce(&mut CopyLane) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lanes.iter().position(|lane| lane.stream.device() == device);
        let at = match known {
            Some(at) => at,
            None => {
                lanes.push(CopyLane {
                    stream: Stream::new(device)?,
                    spare: Vec::new(),
                });
                lanes.len() - 1
            }
        };
        work(&mut lanes[at])
    }

    /// The stream of a device's copies.
    pub(super) fn stream(&self, device: Device) -> Result<Stream, CudaError> {
        self.with_lane(device, |lane| Ok(lane.stream.clone()))
    }

    /// An event behind all that a device's stream was given.
    pub(super) fn record(&self, device: Device) -> Result<Event, CudaError> {
        self.with_lane(device, |lane| {
            let event = match lane.spare.pop() {
                Some(event) => event,
                None => lane.stream.event()?,
            };
            lane.stream.record_in(&event).map(|()| event)
        })
    }

    /// The event has happened, and nobody else has it.
    pub(super) fn give_back(&self, device: Device, event: Event) {
        // No lane: then it goes.
        let _ = self.with_lane(device, |lane| {
            lane.spare.push(event);
            Ok(())
        });
    }
}

impl fmt::Debug for CopyLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyLanes").finish_non_exhaustive()
    }
}
