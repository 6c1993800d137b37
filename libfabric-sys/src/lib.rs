//! The C ABI of libfabric, written by hand and loaded at run time.
