//! A header slot is released once.
use fabricast::buffer::HeaderSlotManager;
use fabricast::endpoint::EndpointId;

fn release(headers: &HeaderSlotManager, endpoint: EndpointId) {
    let slot = headers.acquire(b"header", 1, endpoint).unwrap();
    headers.release(slot);
    headers.release(slot);
}

fn main() {}
