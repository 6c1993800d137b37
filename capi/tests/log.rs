//! The log where a Rust program has a collector of its own.

#![allow(unsafe_code)] // Calls as C makes them.

use std::ffi::{c_char, c_void};

use fabricast_capi::log::{FCAST_LOG_TRACE, fcast_log_set};
use fabricast_capi::status::{FCAST_BUSY, FCAST_OK};
use tracing_core::subscriber::NoSubscriber;
use tracing_core::{Dispatch, dispatcher};

unsafe extern "C" fn never(_: *mut c_void, _: u32, _: *const c_char, _: *const c_char) {
    panic!("the program's collector has the log");
}

#[test]
fn a_collector_that_is_there_stays() {
    let dispatch = Dispatch::new(NoSubscriber::new());
    dispatcher::set_global_default(dispatch).expect("it is the first");
    // SAFETY: the function needs no context.
    let status = unsafe { fcast_log_set(Some(never), std::ptr::null_mut(), FCAST_LOG_TRACE) };
    assert_eq!(status, FCAST_BUSY);
    // SAFETY: nothing is called.
    let status = unsafe { fcast_log_set(None, std::ptr::null_mut(), 0) };
    assert_eq!(status, FCAST_OK);
}
