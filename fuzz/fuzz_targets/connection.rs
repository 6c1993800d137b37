//! One connection whose peer says anything at any time: hellos, control messages, data, in any
//! order, among the calls of this side.
//!
//! The same function runs over random bytes in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::connection(bytes));
