//! Windows over the fake link.

mod line;
mod one_sided;
