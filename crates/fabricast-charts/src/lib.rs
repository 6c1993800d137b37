//! Charts of measurements: SVG, PNG and one page of HTML.
#![doc = include_str!("../README.md")]

mod canvas;
mod figure;
mod lanes;
mod number;
mod page;
mod palette;
#[cfg(feature = "png")]
pub mod png;
mod samples;
mod scale;
mod table;

pub use figure::{Figure, Line, Point};
pub use lanes::{Lane, Lanes};
pub use number::{bytes, short};
pub use page::{Page, Picture, Section};
pub use palette::LOOKS;
pub use samples::Samples;
pub use scale::Scale;
pub use table::Table;
