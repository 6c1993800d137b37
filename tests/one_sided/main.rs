//! One-sided operations over real providers: what they do, what nobody may do, and peers that stop in the middle of one.

#[path = "../common/mod.rs"]
mod common;
mod forged;
mod rma;
mod rma_stop;
