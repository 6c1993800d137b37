//! A buffer that can be written has one owner.
use fabricast::buffer::SharedBufferManager;

fn main() {
    let pool = SharedBufferManager::allocate(1, 64).unwrap();
    let buffer = pool.try_acquire().unwrap();
    let second = buffer.clone();
    drop((buffer, second));
}
