//! Two endpoints of one domain that send, and their receivers, who lie together: grants, credits,
//! revocations, fences and answers that fit or do not, one-sided operations that they serve piece
//! by piece or refuse, and the keys of the endpoints' windows over either connection; and a model
//! of who may touch which memory.
//!
//! The same function runs over random bytes in the library's own tests.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fabricast::__fuzz::lying_receivers(bytes));
