//! The examples that are tools, as a user runs them.

mod readout;
mod stream;
