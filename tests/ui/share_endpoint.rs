//! An endpoint can't be shared, not even for what takes `&self`.
use std::sync::Arc;

use fabricast::SendEndpointZeroCopy;

fn share(sender: Arc<SendEndpointZeroCopy>) {
    std::thread::spawn(move || sender.stats());
}

fn main() {}
