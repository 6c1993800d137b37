//! A frozen buffer, which may be in flight, can't be written.
use fabricast::buffer::SharedBufferManager;

fn main() {
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let mut buffer = pool.try_acquire().unwrap();
    let frozen = buffer.freeze(5);
    buffer[0] = 1;
    frozen[0] = 1;
}
