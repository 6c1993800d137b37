//! Messages of a stream, its handshake, its manifest and its journal, from hostile bytes; and both
//! sides' accounts of a stream against a peer that is the bytes.
//!
//! The same function runs over random bytes in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::stream_wire(bytes));
