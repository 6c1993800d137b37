//! Two connections of one domain whose peers lie together: any control message with any field in
//! any state, writes and reads with the keys of the other one, which go on piece by piece, as late
//! as they like; and a model of who may touch which memory.
//!
//! The same function runs over random bytes in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::two_connections(bytes));
