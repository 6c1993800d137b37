//! Tokens of objects' clients, and the names of endpoints in them, from hostile bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::token(bytes));
