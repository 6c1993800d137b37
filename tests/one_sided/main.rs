//! One-sided operations over real providers: what they do, what nobody may do, peers that stop in
//! the middle of one, and memory that comes and goes; and traps that others fell into.

#[path = "../common/mod.rs"]
mod common;
mod forged;
mod objects;
mod remapped;
mod rma;
mod rma_stop;
mod traps;
