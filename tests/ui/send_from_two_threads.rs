//! An endpoint belongs to one thread at a time.
use fabricast::SendEndpointZeroCopy;

fn poll_twice(sender: &mut SendEndpointZeroCopy) {
    std::thread::scope(|scope| {
        scope.spawn(|| sender.poll(&mut Vec::new()));
        scope.spawn(|| sender.poll(&mut Vec::new()));
    });
}

fn main() {}
