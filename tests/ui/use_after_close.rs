//! A closed endpoint is gone.
use std::time::Instant;

use fabricast::{ReceiveEndpoint, SendEndpointZeroCopy};

fn close(mut sender: SendEndpointZeroCopy, mut receiver: ReceiveEndpoint) {
    sender.close(Instant::now()).unwrap();
    sender.poll(&mut Vec::new()).unwrap();
    receiver.close(Instant::now()).unwrap();
    receiver.poll(&mut Vec::new()).unwrap();
}

fn main() {}
