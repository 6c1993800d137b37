//! Buffers of small messages, in both formats, from hostile bytes.
//!
//! The same function runs over mutated buffers in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::coalesced(bytes));
