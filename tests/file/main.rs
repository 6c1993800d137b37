//! Files: against a model, on odd files, under faults.

mod futures;
mod kinds;
mod model;
mod random;
