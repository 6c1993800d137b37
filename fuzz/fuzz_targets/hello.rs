//! The address behind the hello of a peer over FI_EP_RDM, from hostile bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::hello(bytes));
