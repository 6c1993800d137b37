//! `LibraryStart`: libfabric starts while something else is done.

use std::thread::JoinHandle;

use fabricast::Fabric;

/// The start of libfabric, in a thread of its own: 1.17 takes a third of a second for it, whatever
/// provider is asked for. What it finds, or fails with, whoever opens a fabric next finds again.
pub(crate) struct LibraryStart(Option<JoinHandle<()>>);

impl LibraryStart {
    pub(crate) fn begin() -> Self {
        let thread = std::thread::Builder::new().name("libfabric".to_owned());
        let start = || drop(Fabric::builder().provider("tcp").open());
        // Without a thread it starts later.
        Self(thread.spawn(start).ok())
    }

    pub(crate) fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for LibraryStart {
    /// A process that ends while a library starts in it may end badly.
    fn drop(&mut self) {
        self.join();
    }
}
