//! Files: against a model, on odd files, under faults.

mod faults;
mod futures;
mod kinds;
mod model;
mod random;
mod whole;
mod writer;
