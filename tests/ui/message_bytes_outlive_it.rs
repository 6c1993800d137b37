//! The bytes of a message are there as long as the message: then its buffer is posted again.
use fabricast::endpoint::Message;

fn keep(message: Message) -> usize {
    let header = message.header();
    drop(message);
    header.len()
}

fn main() {}
