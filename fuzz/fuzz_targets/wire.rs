//! Hello, refusal, control messages and header framing from hostile bytes.
//!
//! The same function runs over 200,000 inputs in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::wire(bytes));
