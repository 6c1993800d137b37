//! What a behaviour runs on: a row, its libraries, and the processes that it starts.

use std::time::Duration;

use crate::NAME;
use crate::common::SOON;
use crate::common::child::Child;

/// One row on one library, or on two.
#[derive(Clone)]
pub(crate) struct On {
    /// The sender's row.
    pub(crate) provider: &'static str,
    pub(crate) receiving: &'static str,
    /// The sender's library.
    pub(crate) sends: String,
    pub(crate) receives: String,
}

pub(crate) const FINISHED: &str = "finished: both sides said goodbye";

impl On {
    /// Both sides on one row of one library.
    pub(crate) fn one(provider: &'static str, library: &str) -> Self {
        Self {
            provider,
            receiving: provider,
            sends: library.to_owned(),
            receives: library.to_owned(),
        }
    }

    /// A process that listens and tells where: role `receive`.
    pub(crate) fn receiver(&self, words: &str) -> (Child, String) {
        self.listener("receive", words)
    }

    /// The same in another role: the first thing that it tells is `addr` and its address.
    pub(crate) fn listener(&self, role: &str, words: &str) -> (Child, String) {
        let mut child = start(role, self.receiving, &self.receives, words);
        let addr = child.expect("addr", SOON);
        (child, addr)
    }

    /// A process that connects to an address.
    pub(crate) fn sender(&self, role: &str, to: &str, words: &str) -> Child {
        start(
            role,
            self.provider,
            &self.sends,
            &format!("to={to} {words}"),
        )
    }
}

/// A process of one row, in a role of [`ROLES`](crate::behaviours::ROLES).
pub(crate) fn start(role: &str, row: &str, library: &str, words: &str) -> Child {
    let row = row.replace(';', "+");
    let env = [
        ("FABRICAST_LIBFABRIC", library),
        ("FABRICAST_ROW", ""),
        ("FABRICAST_CASE", ""),
        // What the rows of `ofi_rxm` ask for.
        ("FI_OFI_RXM_SAR_LIMIT", "0"),
        ("FI_OFI_RXM_USE_SRX", "1"),
    ];
    Child::with_env(NAME, role, format!("row={row} {words}"), &env)
}

/// Kills a child, and takes away the shared memory that `shm` leaves behind then.
pub(crate) fn kill(child: Child) {
    let regions = format!("{}:", child.id());
    child.kill();
    drop(child);
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.file_name().to_string_lossy().starts_with(&regions) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

pub(crate) fn finish_receiver(receiver: &mut Child, messages: u64) {
    let received = receiver.expect("received", 4 * SOON);
    assert_eq!(received, format!("{messages} strays 0"));
    assert_eq!(receiver.expect("failures", SOON), "0", "closes");
    receiver.finish(SOON);
}

pub(crate) fn expect_sent(sender: &mut Child, messages: u64) {
    let sent = sender.expect("sent", 5 * SOON);
    assert_eq!(sent, format!("{messages} {messages} 0 {FINISHED}"));
    sender.finish(SOON);
}

pub(crate) fn assert_all_back(sender: &mut Child, limit: Duration) -> String {
    let sent = sender.expect("sent", limit);
    let words: Vec<_> = sent.splitn(4, ' ').collect();
    let number = |i: usize| words[i].parse::<u64>().expect("a count");
    assert_eq!(number(0), number(1) + number(2), "{sent}");
    sender.finish(SOON);
    words[3].to_owned()
}
