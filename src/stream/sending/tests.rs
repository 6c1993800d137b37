//! See `simulation.rs`.
