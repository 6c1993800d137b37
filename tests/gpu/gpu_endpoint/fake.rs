//! What the tests of this program run on: the fake libcuda, or, with `FABRICAST_TEST_GPU=real`, the
//! driver of the machine.

use std::time::Duration;

use fabricast::cuda::{Device, Stream};

use crate::fake_cuda;

/// What a test runs on.
pub(crate) struct Gpu {
    pub(crate) fake: Option<Fake>,
}

impl Gpu {
    pub(crate) fn is_fake(&self) -> bool {
        self.fake.is_some()
    }

    pub(crate) fn device(&self) -> Device {
        Device::new(0).expect("there is one")
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::new(self.device()).expect("a stream")
    }

    /// Nothing was done that a real driver would not forgive.
    #[track_caller]
    pub(crate) fn check(&self) {
        if let Some(fake) = &self.fake {
            fake.0.assert_innocent();
        }
    }
}

/// Runs the body in a process of its own, over the fake or over the machine's driver: the test
/// calls this first, under its own name, and its child comes back to the same place. What the body
/// asserts fails the test.
pub(crate) fn on_gpu(test: &str, env: &[(&str, &str)], body: impl FnOnce(&Gpu)) {
    fake_cuda::on_a_gpu(test, env, || {
        let fake = (!fake_cuda::wants_real()).then(|| Fake(fake_cuda::Fake::load()));
        body(&Gpu { fake });
    });
}

/// The fake of this child, to steer and to ask.
pub(crate) struct Fake(fake_cuda::Fake);

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Copies with memory of the host that is not pinned.
    Pageable,
    Streams,
    Events,
    Allocations,
}

impl Fake {
    /// How long each copy takes besides.
    pub(crate) fn delay(&self, time: Duration) {
        self.0.delay(time);
    }

    /// The next call of that function answers this.
    pub(crate) fn fail(&self, function: &str, code: i32) {
        self.0.fail(function, code);
    }

    /// The stream stops here until `unblock`.
    pub(crate) fn block(&self, stream: &Stream) {
        self.0.block(stream);
    }

    pub(crate) fn unblock(&self) {
        self.0.unblock();
    }

    pub(crate) fn count(&self, of: Count) -> i64 {
        let name = match of {
            Count::Pageable => "fake_cuda_pageable",
            Count::Streams => "fake_cuda_streams_live",
            Count::Events => "fake_cuda_events_live",
            Count::Allocations => "fake_cuda_device_live",
        };
        self.0.number(name).expect("in the fake").into()
    }
}
