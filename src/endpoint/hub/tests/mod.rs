//! Hubs over the fake link: with one peer that sends, and with many.

mod batches;
mod bounds;
mod device;
mod documented;
mod frames;
mod future;
mod gate;
mod gathering;
mod long;
mod many;
mod many_long;
mod many_walk;
mod receive;
mod receive_scale;
mod send;
mod shape;
mod wakers;
mod walk;
