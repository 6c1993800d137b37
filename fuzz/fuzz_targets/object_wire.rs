//! Messages of clients and services of objects, from hostile bytes.
//!
//! The same function runs over random bytes in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::object_wire(bytes));
