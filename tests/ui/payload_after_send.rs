//! A payload moves into the endpoint; only the event of its outcome gives it back.
use fabricast::SendEndpointZeroCopy;
use fabricast::buffer::SharedBufferManager;

fn send(sender: &mut SendEndpointZeroCopy, pool: &SharedBufferManager) {
    let payload = pool.try_acquire().unwrap().freeze(5);
    sender.send_data(payload, b"header", 1).unwrap();
    println!("{}", payload.len());
}

fn main() {}
